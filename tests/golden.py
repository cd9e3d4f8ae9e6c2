"""The trainings of `scenarios.py` with the code of a commit and with that of this folder: same epochs, same scores?

python tests/golden.py COMMIT [SCENARIO ...]
"""

import io
import json
import logging
import os
import subprocess
import sys
import tarfile
import tempfile
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOLERANCE = 1e-6


def run(names, file):
    """Write what each training ends with, by the `bu_torch` that Python finds."""
    import torch
    from scenarios import SCENARIOS

    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    for name in ("lightning.pytorch", "bu_torch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    found = {}
    for name in names or SCENARIOS:
        with tempfile.TemporaryDirectory() as folder:
            stopping = SCENARIOS[name].stopping()
            SCENARIOS[name].train(Path(folder), stopping)
        ends = [stopping.best_epoch, stopping.best_step, stopping.stopped_epoch, stopping.stopping_reason]
        found[name] = {"ends": ends, "checks": stopping.history}
    file.write_text(json.dumps(found))


def differences(before, now):
    """What differs between two results: the epochs, or a number of a check by more than the tolerance."""
    for name, old in before.items():
        new = now[name]
        if old["ends"] != new["ends"] or len(old["checks"]) != len(new["checks"]):
            yield f"{name}: {old['ends']} -> {new['ends']}"
            continue
        for one, other in zip(old["checks"], new["checks"], strict=True):
            for entry in one.keys() & other.keys():
                if other[entry] != pytest.approx(one[entry], rel=TOLERANCE, abs=TOLERANCE, nan_ok=True):
                    yield f"{name}, epoch {one['epoch']}: {entry} {one[entry]:.9g} -> {other[entry]:.9g}"


def compare(commit, names):
    """Run both, each in a process of its own, and return their differences."""
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
        results = []
        for tree in (Path(folder), ROOT):
            file = Path(folder, f"results-{len(results)}.json")
            command = [sys.executable, __file__, "--run", str(file), *names]
            subprocess.run(command, env={**os.environ, "PYTHONPATH": str(tree)}, cwd=folder, check=True)
            results.append(json.loads(file.read_text()))
    return list(differences(*results))


def main(arguments):
    if arguments[:1] == ["--run"]:
        return run(arguments[2:], Path(arguments[1]))
    if not arguments:
        return __doc__
    found = compare(arguments[0], arguments[1:])
    sys.stdout.write("\n".join(found or ["all the same"]) + "\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
