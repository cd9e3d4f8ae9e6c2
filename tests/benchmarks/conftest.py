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
    for imported in ("quality", "images", "tables", "text", "training", "fitting", "noise"):
        sys.modules.pop(imported, None)


def fixture_of(name):
    @pytest.fixture(scope="module", name=name)
    def loaded():
        yield from script(name)

    return loaded


NAMES = ("quality", "tables", "speed", "why", "images", "text", "check", "errors", "finetune", "training", "noise")
quality, tables, speed, why, images, text, check, errors, finetune, training, noise = map(fixture_of, NAMES)
