"""Two processes of a plain loop against the same loop in one."""

import pytest
import torch
from apart import run_apart

SHARED = """
import os
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
(inputs, labels), passes = blobs(n=121), []
stopper = BoundaryUncertaintyStopper(inputs, labels, **options)
class Counted(nn.Sequential):
    def forward(self, x):
        passes.append(len(x))
        return super().forward(x)
model = Counted(nn.BatchNorm1d(4), nn.Linear(4, 3))
model[0].running_mean += rank  # as other samples leave it; the first process's counts
optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
for _ in range(3):
    nn.functional.cross_entropy(model[1](inputs), labels).backward()
    optimizer.step()
    stopper.check(model)
stopper.restore(model)
found = {{"history": stopper.history, "kept": stopper.best_epoch, "weight": model[1].weight.sum().item()}}
found["mean"] = model[0].running_mean.tolist()
found["reads"] = max(passes, default=0) > 1
torch.save(found, f"{folder}/{{n}}-{{rank}}.pt")
"""


def test_the_first_process_of_a_plain_loop_reads_for_both_and_agrees_with_one(tmp_path):
    file = tmp_path / "script.py"
    file.write_text(SHARED.format(folder=tmp_path))
    for n_processes in (1, 2):
        codes, said = run_apart(file, n_processes)
        assert codes == [0] * n_processes, said
    alone, first, second = (torch.load(tmp_path / name) for name in ("1-0.pt", "2-0.pt", "2-1.pt"))
    assert (first.pop("reads"), second.pop("reads")) == (True, False)
    assert first == second
    for shared, entry in zip(first["history"], alone["history"], strict=True):
        assert shared == pytest.approx(entry, abs=1e-6)
    assert first["mean"] == alone["mean"] == [0, 0, 0, 0]
    assert (first["kept"], first["weight"]) == (alone["kept"], pytest.approx(alone["weight"], abs=1e-6))
