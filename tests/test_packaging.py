"""The wheel and the imports, away from the repository."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel built from a copy of the tree, so that no build folder is left in it."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT]
    tree = tmp_path_factory.mktemp("tree")
    subprocess.run(["git", "-C", ROOT, "checkout-index", "--all", "--prefix", f"{tree}/"], check=True)
    command[-1] = tree
    subprocess.run(command, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def test_packages_listed_are_the_folders_there_are():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {str(f.parent.relative_to(ROOT)).replace("/", ".") for f in ROOT.glob("bu_torch/**/__init__.py")}
    assert set(settings["packages"]) == folders | {"bu_torch.callbacks"}


def test_wheel_holds_every_module_the_page_and_the_type_marker(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {str(f.relative_to(ROOT)) for f in ROOT.glob("bu_torch/**/*.py")}
    modules |= {f"bu_torch/callbacks/{f.name}" for f in ROOT.glob("callbacks/*.py")}
    parts = {f"bu_torch/report/page.{kind}" for kind in ("css", "html", "js")}
    assert modules | parts | {"bu_torch/py.typed"} <= names
    assert not {name for name in names if name.startswith(("tests", "examples", "benchmarks", "callbacks"))}


def test_wheel_imports_in_a_clean_environment_away_from_the_repository(wheel, tmp_path):
    """The environment sees the dependencies that are installed here, but of this project only the wheel."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True)
    python = tmp_path / "env" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel], check=True)
    installed = [p for p in sys.path if p.endswith("site-packages")]
    program = f"""
import sys
here = [p for p in sys.path if p.endswith("site-packages")]
sys.path += {installed!r}  # a plain path entry: the editable install's hook is not run
import bu_torch, bu_torch.callbacks
from bu_torch import BoundaryUncertaintyStopping
assert BoundaryUncertaintyStopping is bu_torch.callbacks.BoundaryUncertaintyStopping
for module in (bu_torch, bu_torch.callbacks):
    assert any(module.__file__.startswith(p) for p in here), module.__file__
BoundaryUncertaintyStopping()
print("imported")
"""
    result = subprocess.run([python, "-c", program], check=True, capture_output=True, text=True, cwd=tmp_path)
    assert result.stdout.strip() == "imported"


def test_importing_the_package_loads_neither_lightning_nor_faiss(tmp_path):
    program = (
        "import sys, bu_torch; print([m for m in ('lightning', 'faiss', 'plotly', 'matplotlib') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=tmp_path)
    assert result.stdout.strip() == "[]"


def test_version_is_in_the_changelog():
    import bu_torch

    assert f"## [{bu_torch.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_the_oldest_versions_tested_are_the_oldest_allowed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    allowed = dict(one.split(">=") for one in [*project["dependencies"], *project["optional-dependencies"]["report"]])
    lines = (ROOT / "tests" / "oldest.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    del pinned["pytorch-lightning"]  # comes with lightning
    assert pinned.keys() == allowed.keys()
    assert all(version.startswith(f"{allowed[name]}.") for name, version in pinned.items())
