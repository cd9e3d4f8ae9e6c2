"""The wheel and the imports, away from the repository."""

import ast
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import bu_torch

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]


def run(*command, **options):
    return subprocess.run(command, check=True, capture_output=True, text=True, **options)


def copy_tree(folder):
    """Lay out what is under version control, or all of an unpacked archive."""
    if (ROOT / ".git").exists():
        run("git", "-C", ROOT, "checkout-index", "--all", "--prefix", f"{folder}/")
    else:
        skip = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "dist", ".venv*", ".*_cache", ".hypothesis")
        shutil.copytree(ROOT, folder, ignore=skip, dirs_exist_ok=True)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """An archive of the sources of a copy of the tree, so that no build folder is left in it, and a wheel of that."""
    folder, tree = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("tree")
    copy_tree(tree)
    said = run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, tree)
    assert "would be ignored" not in said.stdout + said.stderr
    (archive,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return archive, wheel


def test_the_archive_of_the_sources_holds_all_that_the_tests_read(built, tmp_path):
    copy_tree(tmp_path)
    with tarfile.open(built[0]) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    files = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()}
    assert len(files) > 300
    assert files <= names


def test_wheel_holds_every_module_the_page_and_the_type_marker(built):
    names = set(zipfile.ZipFile(built[1]).namelist())
    modules = {str(f.relative_to(ROOT)) for f in ROOT.glob("bu_torch/**/*.py")}
    modules |= {f"bu_torch/callbacks/{f.name}" for f in ROOT.glob("callbacks/*.py")}
    parts = {f"bu_torch/report/page.{kind}" for kind in ("css", "html", "js")} | {"bu_torch/py.typed"}
    parts |= {f"bu_torch/report/plotly/{name}" for name in ("plotly-cartesian.min.js", "LICENSE")}
    assert modules | parts <= names
    assert not {name for name in names if name.startswith(("tests", "examples", "benchmarks", "callbacks"))}


PLAIN = """
import sys, bu_torch
from importlib.util import find_spec
print([name for name in ("lightning", "faiss", "plotly", "matplotlib") if name in sys.modules])
from bu_torch import BoundaryUncertaintyStopper
import torch
stopper = BoundaryUncertaintyStopper(torch.randn(100, 3), torch.arange(100) % 2)
stopper.check(torch.nn.Linear(3, 2))
print([name for name in ("lightning", "pytorch_lightning", "lightning_utilities") if name in sys.modules])
for folder in (sys.path[0], sys.argv[1]):
    sys.path[0] = folder
    print(find_spec("bu_torch").origin, find_spec("bu_torch.callbacks").origin, sep="\\n")
    for name in [name for name in sys.modules if name.partition(".")[0] == "bu_torch"]:
        del sys.modules[name]
"""


def test_an_installed_loop_imports_no_lightning_and_a_clone_s_root_finds_its_own_callbacks(built, tmp_path):
    """In a clone the source folder hides the installed package, and the callbacks stand beside it."""
    site, clone = tmp_path / "site", tmp_path / "clone"
    shutil.unpack_archive(built[1], site, "zip")
    copy_tree(clone)
    paths = [str(site), *(path for path in sys.path if path.endswith("site-packages"))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    said = run(sys.executable, "-S", "-c", PLAIN, clone, cwd=tmp_path, env=environment)  # without what is editable
    before, after, *found = said.stdout.splitlines()
    assert (before, after) == ("[]", "[]")
    expected = [site / "bu_torch", site / "bu_torch" / "callbacks", clone / "bu_torch", clone / "callbacks"]
    assert [Path(file).parent for file in found] == expected


@pytest.mark.parametrize(("asked", "out"), [("--version", f"bu-torch {bu_torch.__version__}\n"), ("--help", "usage: ")])
def test_the_command_speaks_before_heavy_packages_are_imported(tmp_path, asked, out):
    result = run(sys.executable, "-X", "importtime", "-m", "bu_torch", asked, cwd=tmp_path)
    assert result.stdout.startswith(out)
    loaded = {line.rpartition("|")[2].strip().split(".")[0] for line in result.stderr.splitlines()}
    assert "bu_torch" in loaded
    assert not loaded & {"torch", "numpy", "lightning", "faiss", "sklearn", "plotly"}


def test_the_oldest_versions_tested_are_the_oldest_allowed():
    allowed = dict(one.split(">=") for one in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["report"]])
    lines = (ROOT / "tests" / "oldest.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert pinned.keys() == allowed.keys()
    assert all(f"{version}.".startswith(f"{allowed[name]}.") for name, version in pinned.items())


@pytest.mark.parametrize("harmed", ["torch==2.9.1", "lightning==2.6.5", "pytorch-lightning==2.6.5"])
def test_versions_that_a_crafted_checkpoint_can_harm_are_not_allowed(harmed):
    name, version = harmed.split("==")
    (required,) = [one for one in map(Requirement, PROJECT["dependencies"]) if one.name == name]
    assert version not in required.specifier


def test_public_names_are_found_lazily_and_shown_to_type_checkers():
    (shown,) = [node for node in ast.parse(Path(bu_torch.__file__).read_text()).body if isinstance(node, ast.If)][:1]
    assert ast.unparse(shown.test) == "TYPE_CHECKING"
    imports = (node for node in shown.body if isinstance(node, ast.ImportFrom))
    names = {alias.name for node in imports for alias in node.names} - {"Any"}
    assert names == {*bu_torch._HOMES, "callbacks", "evaluation", "functional", "report"}
    assert set(bu_torch.__all__) <= names | {"__version__"}
    for name in names:
        assert getattr(bu_torch, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Missing'"):
        bu_torch.Missing  # noqa: B018
