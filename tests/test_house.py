"""Imports run one way, in the order of `LEVELS`."""

import ast
import inspect
import re
from pathlib import Path

import pytest

import bu_torch
import bu_torch.evaluation
import bu_torch.functional

ROOT = Path(__file__).parents[1]
FILES = [*ROOT.glob("bu_torch/**/*.py"), *ROOT.glob("callbacks/**/*.py")]
HEAVY = {"lightning", "pytorch_lightning", "faiss", "scipy", "sklearn", "plotly", "matplotlib", "torchvision"}
FRAMEWORKS = {"accelerate", "skorch", "transformers"}
OF_FUNCTIONAL = {"torch", "math", "typing", "collections", "importlib", "bu_torch"}

LEVELS = (
    ("functional", "_version"),
    ("internal",),
    ("samples", "neighbors"),
    ("space",),
    ("perturbation",),
    ("estimators", "papers"),
    ("signals", "evaluation"),
    ("rule",),
    ("run",),
    ("callbacks", "comparison", "ranking", "report"),
    ("integrations",),
    ("cli", "__main__", "examples", "benchmarks", "tests"),
)


def room(module):
    """Level in the house of a module of the project; None for others."""
    first, *rest = module.split(".")
    if first == "bu_torch":
        first = rest[0] if rest else ""
    return next((level for level, rooms in enumerate(LEVELS) if first in rooms), None)


def test_every_folder_has_its_place_and_nothing_else_stands_at_the_top():
    folders = {file.relative_to(ROOT).parts[1] for file in ROOT.glob("bu_torch/*/__init__.py")}
    assert folders | {"callbacks"} == {name for rooms in LEVELS[:-1] for name in rooms} - {"_version"}
    assert {file.name for file in ROOT.glob("bu_torch/*.py")} == {"__init__.py", "__main__.py", "_version.py", "cli.py"}


def module_of(file):
    relative = file.relative_to(ROOT).with_suffix("")
    return ".".join(("bu_torch", *relative.parts) if relative.parts[0] == "callbacks" else relative.parts)


def imported(nodes):
    """Full names of what is imported; those in `if TYPE_CHECKING:` are for the type checker alone."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import of {node.module}"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("file", FILES, ids=module_of)
def test_imports_run_one_way_and_heavy_packages_are_imported_where_they_belong(file):
    tree = ast.parse(file.read_text())
    names, at_once = set(imported(ast.walk(tree))), {name.split(".")[0] for name in imported(tree.body)}
    own = room(module_of(file))
    if file == ROOT / "bu_torch" / "__init__.py":
        own = len(LEVELS)  # the shop window: it shows everything, lazily
    assert [name for name in names if (level := room(name)) is not None and level > own] == []
    packages = {name.split(".")[0] for name in names}
    assert file.is_relative_to(ROOT / "callbacks") or not at_once & HEAVY
    assert file.parent.name != "functional" or packages <= OF_FUNCTIONAL
    assert file.parent.name == "integrations" or not packages & FRAMEWORKS


def public():
    for module in (bu_torch, bu_torch.evaluation, bu_torch.functional):
        for name in module.__all__:
            value = getattr(module, name)
            if not isinstance(value, str):
                yield pytest.param(value, id=name)


@pytest.mark.parametrize("value", list(public()))
def test_public_names_say_what_they_take_give_and_raise(value):
    doc = inspect.getdoc(value)
    if refers := re.search(r"Arguments and\s+errors\s+are\s+those\s+of `(\w+)`", doc):  # to a function beside it
        assert "Returns" in doc
        doc = inspect.getdoc(getattr(inspect.getmodule(value), refers[1]))
    if not inspect.isclass(value):
        assert [part for part in ("Args:", "Returns:", "Raises:") if part not in doc] == []
        return
    assert "Args:" in doc or "Attributes:" in doc
    for name, method in inspect.getmembers(value, inspect.isfunction):
        is_public = method.__module__.startswith("bu_torch") and not name.startswith("_")
        if is_public and not hasattr(value.__mro__[-2], name):
            is_hook = "callbacks" in method.__module__
            assert is_hook or inspect.getdoc(method), f"{value.__name__}.{name} has no docstring"
