import gc
import importlib
import logging
import multiprocessing
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from emulation import emulated
from hypothesis import HealthCheck, settings

from bu_torch.run.settings import Settings

# `make test-slow` runs the thorough one.
settings.register_profile("brief", max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", settings.get_profile("brief"), max_examples=10_000)
settings.load_profile("brief")


def pytest_addoption(parser):
    parser.addoption("--no-skips", action="store_true", help="fail if a test is skipped")


def pytest_sessionfinish(session):
    if session.config.getoption("no_skips"):
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter.stats.get("skipped"):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_collection_modifyitems(items):
    """Single tests that take long come first: at the end, all other processes would wait for them."""
    items.sort(key=lambda item: item.path.name not in ("test_packaging.py", "test_style.py"))


def pytest_collection_finish():
    """What has been imported stays: it need not be searched for garbage, nor be copied where a process forks."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def global_state_is_left_alone(request):
    """Each test sees, and must leave, the same global switches; a test that trains may move the random state."""
    torch.manual_seed(0)
    before = (torch.get_default_dtype(), torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled())
    levels = {log: log.level for log in map(logging.getLogger, ("lightning.pytorch", "bu_torch"))}  # some raise them
    yield
    for log, level in levels.items():
        log.setLevel(level or logging.INFO)
    after = (torch.get_default_dtype(), torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled())
    assert after == before


@pytest.fixture
def random_states():
    """A function that tells all global random states, to compare before and after."""
    return lambda: (torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state()))


@pytest.fixture
def log(caplog, monkeypatch):
    """All that the user is told, as `verbose` does."""
    caplog.set_level("INFO", logger="bu_torch")
    check = Settings.__post_init__
    monkeypatch.setattr(Settings, "__post_init__", lambda self: (check(self), setattr(self, "verbose", True)))
    return caplog


@pytest.fixture
def spawned():
    """Processes are spawned by default, as on Windows and macOS: samples are read from a copy."""
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method("spawn", force=True)
    yield
    multiprocessing.set_start_method(before, force=True)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


@pytest.fixture
def load(monkeypatch):
    """Import a script by its path, as when it is run: it finds those beside it. Afterwards all are forgotten."""
    folders = set()

    def load(path):
        monkeypatch.syspath_prepend(path.parent)
        folders.add(path.parent)
        return importlib.import_module(path.stem)

    yield load
    for name, module in list(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or "/").parent in folders:
            del sys.modules[name]


@pytest.fixture
def accelerator():
    """A device that is not the CPU: a GPU where there is one, an emulated one elsewhere."""
    if torch.cuda.is_available():
        yield torch.device("cuda")
    else:
        with emulated() as device:
            yield device


@pytest.fixture(params=["cpu", pytest.param("accelerator", marks=pytest.mark.gpu)])
def device(request):
    return torch.device("cpu") if request.param == "cpu" else request.getfixturevalue("accelerator")


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def dtype(request):
    return request.param
