import importlib.util
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


def script(name):
    """A script of `benchmarks`, imported with the others beside it as when it is run."""
    sys.path.insert(0, str(FOLDER))
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(FOLDER))
    del sys.modules[spec.name]
    for imported in ("quality", "images", "judging", "rivals"):
        sys.modules.pop(imported, None)


@pytest.fixture(scope="module")
def quality():
    yield from script("quality")


@pytest.fixture(scope="module")
def judging():
    yield from script("judging")


@pytest.fixture(scope="module")
def rivals():
    yield from script("rivals")


@pytest.fixture(scope="module")
def speed():
    yield from script("speed")


@pytest.fixture(scope="module")
def why():
    yield from script("why")


@pytest.fixture(scope="module")
def images():
    yield from script("images")


@pytest.fixture(scope="module")
def text():
    yield from script("text")


@pytest.fixture(scope="module")
def check():
    yield from script("check")


@pytest.fixture(scope="module")
def image_variants():
    yield from script("image_variants")
