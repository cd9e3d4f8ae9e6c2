import importlib
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


def fixture_of(name):
    """A script of `benchmarks`, imported with the others beside it as when it is run."""

    @pytest.fixture(scope="module", name=name)
    def loaded():
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(FOLDER)
            yield importlib.import_module(name)
        for file in FOLDER.glob("*.py"):
            sys.modules.pop(file.stem, None)

    return loaded


NAMES = ("quality", "tables", "speed", "why", "images", "text", "finetune", "training", "noise", "oracle")
quality, tables, speed, why, images, text, finetune, training, noise, oracle = map(fixture_of, NAMES)
