"""Each example runs as it stands, on less data."""

import importlib.util
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples"


@pytest.fixture
def load():
    """Import an example by its file."""

    def load(name):
        spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module

    yield load
    for name in [name for name in sys.modules if name.startswith("example_")]:
        del sys.modules[name]


def test_letter_mlp_says_what_was_kept_and_draws_the_figure(load, tmp_path, capsys, monkeypatch):
    example = load("letter_mlp")
    monkeypatch.setattr(example, "RUNS", tmp_path / "runs")
    example.main(["--samples", "3000", "--max-epochs", "3", "--plot", str(tmp_path / "figure.png")])
    said = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines() if ": " in line)
    assert said["kept epoch"] in {"0", "1", "2"}
    assert said["reason"] == "Training ran until `max_epochs=3`."
    names = ("of the kept epoch", "of the last epoch", "of the best epoch in hindsight")
    kept, last, best = (float(said[f"test error {name}"].split()[0]) for name in names)
    assert 0 < best <= min(kept, last) < 1
    assert "s (" in said["time in checks"]
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_two_gaussians_are_best_cut_where_they_meet(load, capsys):
    values = load("two_gaussians").main([])
    assert max(values, key=values.get) == 1.0
    assert 0.65 < values[1.0] < 0.95
    assert "largest at 1.00" in capsys.readouterr().out


def test_shifts_peak_where_the_gaussians_meet(load, tmp_path, capsys):
    values = load("shifts").main(["--smoke", "--plot", str(tmp_path / "figure.png")])
    assert len(values) == 3
    for name, at in values.items():
        assert max(at, key=at.get) == 0.0, name
    assert "Proposal 2" in capsys.readouterr().out
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_svm_selection_finds_the_width_and_the_omission(load, tmp_path, capsys):
    tables = load("svm_selection").main(["--smoke", "--plot", str(tmp_path / "figure.png")])
    rows = tables["GMM_inclusion"]
    assert rows["U"].idxmax() == rows["L_val"].idxmin() == 0
    assert rows["omission"][-5] > 0.02 > rows["omission"][0]
    assert (rows["L_tr"] <= rows["L_val"]).all()
    assert "GMM_inclusion" in capsys.readouterr().out
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
