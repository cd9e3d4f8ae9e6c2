import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import problems
import pytest
import torch
from torch import nn

from bu_torch import rank_checkpoints
from bu_torch.cli import main

CODE = """
import torch
from torch import nn

class Net(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)

net = Net()
inputs = torch.load("inputs.pt")
labels = torch.arange(len(inputs)) % 3
training = lambda: (inputs, labels)
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with code and three checkpoints, the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ranked_project.py").write_text(CODE)
    torch.save(problems.blobs()[0], "inputs.pt")
    (tmp_path / "checkpoints").mkdir()
    for epoch in range(3):
        torch.save({"state_dict": nn.Linear(4, 3).state_dict(), "epoch": epoch}, f"checkpoints/{epoch}.ckpt")
    yield tmp_path
    sys.modules.pop("ranked_project", None)


def rank(*arguments, data="ranked_project:training", module="ranked_project:Net"):
    return main(["rank", "--module", module, "--data", data, *map(str, arguments)])


def test_ranks_and_writes(project, capsys):
    assert rank("checkpoints", "--json", "r.json", "--rule", "trust_score") == 0
    ranking = rank_checkpoints(project / "checkpoints", nn.Linear(4, 3), problems.blobs(), rule="trust_score")
    candidates = json.loads((project / "r.json").read_text())["candidates"]
    assert [(c["epoch"], c["score"]) for c in candidates] == [(c.epoch, c.score) for c in ranking]
    assert capsys.readouterr().out.startswith("3 candidates")
    assert rank("checkpoints", "--json", project) == 1  # a folder, which no file replaces: printed all the same
    assert capsys.readouterr().out.startswith("3 candidates")


def test_settings_arrive(project, capsys):
    said = []
    for given in (("--seed", 3), ("--max-samples", 60), ("--device", "cpu"), ()):
        assert rank("checkpoints", *given, module="ranked_project:net") == 0  # an instance
        said.append(capsys.readouterr().out)
    assert said[2] == said[3]
    assert len(set(said)) == 3


PLACES = ("ranked_project", "ranked_project:", ":x", "no_project:x", "ranked_project:missing")
# What is said, arguments and places.
ROWS = [(name, [name], {}) for name in ("missing.ckpt", "inputs.pt", "ranked_project.py")]
ROWS += [("`\ufffd[31mred .ckpt`", ["\x1b[31mred\n.ckpt"], {})]
ROWS += [("nowhere", ["--device=nowhere"], {}), ("max_samples", ["--max-samples=9"], {})]
ROWS += [(at.strip(":").split(":")[0], [], {where: at}) for at in PLACES for where in ("module", "data")]


@pytest.mark.parametrize(("said", "arguments", "options"), ROWS)
def test_what_cannot_be_done_is_said_in_a_line(project, capsys, said, arguments, options):
    assert rank("checkpoints", *arguments, **options) == 1
    error = capsys.readouterr().err
    assert said in error.partition("bu-torch: ")[2]
    assert len(error.splitlines()) == 1


def test_a_module_of_python_s_own_with_the_name_of_the_user_s_is_named(project, capsys):
    (project / "code.py").write_text("Net = None")
    assert rank("checkpoints", module="code:Net") == 1
    assert sys.modules["code"].__file__ in capsys.readouterr().err


def test_a_pickle_is_run_only_if_told(project, capsys):
    torch.save({"state_dict": nn.Linear(4, 3).state_dict(), "other": problems.Bomb("mark")}, "crafted.ckpt")
    assert rank("checkpoints", "crafted.ckpt") == 1
    assert "--no-weights-only" in capsys.readouterr().err
    assert not (project / "mark").exists()
    assert rank("checkpoints", "crafted.ckpt", "--no-weights-only") == 0
    assert (project / "mark").exists()


PLANTED = ("faiss", "sklearn", "scipy", "torch", "numpy", "typing", "pathlib", "argparse", "csv", "safetensors")
HOSTILE = ["\x1b[31mred.ckpt", "two\nlines.ckpt", "\u202etpkc.ckpt", "ünïcode.ckpt", b"no \xff utf-8.ckpt"]


@pytest.mark.parametrize(
    ("start", "encoding"),
    [
        pytest.param(["-m", "bu_torch"], "utf-8", marks=pytest.mark.slow, id="python -m bu_torch"),
        pytest.param([str(Path(sys.executable).with_name("bu-torch"))], "ascii", id="bu-torch"),
    ],
)
def test_as_a_command_it_imports_nothing_else_from_here_and_prints_no_escapes(project, start, encoding):
    for name in PLANTED:  # which leave a mark where they are imported
        (project / f"{name}.py").write_text(f"open({str(project / 'mark')!r}, 'w').write({name!r})\nraise ImportError")
    files = [project / os.fsdecode(name) for name in HOSTILE]
    for file in files:
        shutil.copy(project / "checkpoints" / "0.ckpt", file)
    command = [sys.executable, *start, "rank", "--module", "ranked_project:Net", "--data", "ranked_project:training"]

    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0", "LC_ALL": "C.UTF-8"}
    command += ["--json", "r.json", *files, files[0]]
    result = subprocess.run(command, capture_output=True, check=False, env=environment)
    assert result.returncode == 0, result.stderr
    assert not (project / "mark").exists()
    assert (result.stdout + result.stderr).decode(encoding).replace("\n", "").isprintable()
    candidates = json.loads((project / "r.json").read_text())["candidates"]
    assert {candidate["name"] for candidate in candidates} == set(map(str, files))


def test_the_folder_is_on_the_path_last_and_only_while_the_user_s_module_is_imported(project):
    (project / "sibling.py").write_text("import sys\npath = list(sys.path)\n")
    (project / "ranked_project.py").write_text(f"{CODE}\nimport sibling\n")
    (project / "json.py").write_text("raise ImportError")
    before = list(sys.path)
    assert rank("checkpoints") == 0
    assert sys.modules.pop("sibling").path == [*before, str(project)]
    assert sys.path == before
