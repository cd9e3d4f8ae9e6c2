"""Two processes of a plain loop share the work of a check, and agree with one."""

import json

import pytest
import torch
from apart import run_apart
from problems import blobs

from bu_torch import BoundaryUncertaintyStopper

SCRIPT = """
import json, os
from pathlib import Path
import torch
from problems import blobs
from torch import distributed, nn
from torchmetrics.classification import MulticlassAccuracy
from bu_torch import BoundaryUncertaintyStopper

rank, n = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
torch.manual_seed(0)
options = {{"n_neighbors": 20, "n_draws": 1, "metric": MulticlassAccuracy(3)}}
if n > 1:
    distributed.init_process_group("gloo", rank=rank)
    options["process_group"] = distributed.group.WORLD
stopper = BoundaryUncertaintyStopper(*blobs(n=121), **options)
model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))
model[0].running_mean += rank  # as other samples leave it; the first process's counts
optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
for _ in range(3):
    nn.functional.cross_entropy(model[1](stopper.inputs), stopper.labels).backward()
    optimizer.step()
    stopper.check(model)
stopper.restore(model)
found = {{"history": stopper.history, "kept": stopper.best_epoch, "weight": model[1].weight.sum().item()}}
found["mean"] = model[0].running_mean.tolist()
found |= {{"read": len(stopper.tracker.inputs), "is_first": stopper.tracker.check_setup.is_prepared}}
Path({folder!r}, f"{{n}}-{{rank}}.json").write_text(json.dumps(found))
"""


def test_two_processes_of_a_plain_loop_read_half_each_and_agree_with_one(tmp_path):
    file = tmp_path / "script.py"
    file.write_text(SCRIPT.format(folder=str(tmp_path)))
    for n_processes in (1, 2):
        codes, said = run_apart(file, n_processes)
        assert codes == [0] * n_processes, said
    first, second, alone = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("2-0", "2-1", "1-0"))
    assert (first["read"], second["read"], alone["read"]) == (61, 61, 121)
    assert (first.pop("is_first"), second.pop("is_first")) == (True, False)
    assert first == second
    for shared, entry in zip(first["history"], alone["history"], strict=True):
        assert shared == pytest.approx(entry, abs=1e-6)
    assert first["mean"] == alone["mean"] == [0, 0, 0, 0]
    assert (first["kept"], first["weight"]) == (alone["kept"], pytest.approx(alone["weight"], abs=1e-6))


def test_a_process_that_checks_alone_among_several_is_told(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group=None: 2)
    with pytest.warns(UserWarning, match="process_group=torch.distributed.group.WORLD"):
        BoundaryUncertaintyStopper(*blobs(), n_neighbors=20).check(torch.nn.Linear(4, 3))
