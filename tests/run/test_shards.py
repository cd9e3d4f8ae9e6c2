"""Two processes of a plain loop, whose parameters are shards or whole, against the same loop in one."""

import pytest
import torch
from apart import run_apart
from problems import blobs

from bu_torch import BoundaryUncertaintyStopper

SCRIPT = """
import os
import torch
import torch.distributed as dist
from problems import blobs
from torch import nn
from torch.distributed.fsdp import fully_shard
from bu_torch import BoundaryUncertaintyStopper
from torch.distributed.tensor import DTensor

rank, n = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", rank=rank)
features, labels = blobs()

class Scaled(nn.Module):  # of 7 rows one process has 4, of a single one all
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 7), nn.Linear(7, 3)
        self.scale, self.infinite = nn.Parameter(torch.ones(1)), nn.Parameter(torch.tensor([0.0, -torch.inf]))
    def forward(self, x):
        return self.last(self.scale * torch.tanh(self.first(x)) + 0 * self.infinite[0])

def made():
    torch.manual_seed(1)
    model = nn.Sequential(Scaled())
    for part in (model[0].first, model) if n > 1 else ():
        fully_shard(part)
    stopper = BoundaryUncertaintyStopper(features, labels, n_neighbors=20, n_draws=2)
    return model, torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9), stopper

def train(model, optimizer, stopper, epochs, checks=True):
    for epoch in epochs:
        for rows in torch.randperm(120, generator=torch.Generator().manual_seed(epoch)).split(30):
            own = rows[rank::n]  # whose gradients FSDP averages
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(features[own]), labels[own]).backward()
            optimizer.step()
        with torch.no_grad():
            model(features)  # after which FSDP has some weights whole
        assert not checks or stopper.check(model) is False

def whole(model):
    state = {{name: value.detach() for name, value in model.state_dict().items()}}
    return {{name: (one.full_tensor() if isinstance(one, DTensor) else one).clone() for name, one in state.items()}}

alone, (model, optimizer, stopper), (other, other_optimizer, resumed) = made(), made(), made()
train(*alone, range(5), checks=False)
train(model, optimizer, stopper, range(3))
state = stopper.state_dict()
train(model, optimizer, stopper, [3, 4])
found = dict(alone=whole(alone[0]), trained=whole(model), history=stopper.history)
stopper.restore(model)
train(other, other_optimizer, None, range(3), checks=False)
resumed.load_state_dict(state)
resumed.restore(alone[0])
train(other, other_optimizer, resumed, [3, 4])
resumed.restore(other)
found |= dict(best=stopper.best_epoch, kept=whole(model), of_state=whole(alone[0]), resumed=whole(other))
found["again"] = resumed.history

broken, _, early = made()
early.check(broken)  # before FSDP has set itself up
with torch.no_grad():
    broken(features)
assert all(isinstance(value, DTensor) == (n > 1) for value in broken.state_dict().values())
with torch.no_grad():
    weight = broken[0].last.weight
    (weight if n == 1 else weight.to_local())[-1, -1] = torch.nan if rank == n - 1 else 0
early.check(broken)
found["early"] = [entry["expected_accuracy"] for entry in early.history]
torch.save(found, f"{folder}/{{n}}-{{rank}}.pt")
dist.destroy_process_group()
"""


def results_of(folder, script):
    """What one process has found, and each of two."""
    file = folder / "script.py"
    file.write_text(script.format(folder=folder))
    for n_processes in (1, 2):
        codes, said = run_apart(file, n_processes)
        assert codes == [0] * n_processes, said
    return [torch.load(folder / name) for name in ("1-0.pt", "2-0.pt", "2-1.pt")]


def close(first, second, atol=1e-5):
    return first.keys() == second.keys() and all(torch.allclose(first[n], second[n], atol, atol) for n in first)


def test_a_shard_is_trained_measured_kept_and_resumed_as_the_whole(tmp_path):
    one, *both = results_of(tmp_path, SCRIPT)
    for found in (one, *both):
        assert close(found["alone"], found["trained"], atol=0)
        assert close(found["resumed"], found["kept"], atol=0)
        assert found["again"] == found["history"]
        assert found["best"] == one["best"]
        for entry, expected in zip(found["history"], one["history"], strict=True):
            assert entry == pytest.approx(expected, abs=1e-4)
        assert close(found["kept"], one["kept"])
        assert close(found["of_state"], one["of_state"])
        assert not close(found["kept"], found["trained"])  # but their average
        first, last = found["early"]
        assert first == pytest.approx(one["early"][0], abs=1e-4)
        assert last != last  # what is not finite in one shard is so in all


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
stopper, passes = BoundaryUncertaintyStopper(*blobs(n=121), **options), []
class Counted(nn.Sequential):
    def forward(self, x):
        passes.append(len(x))
        return super().forward(x)
model = Counted(nn.BatchNorm1d(4), nn.Linear(4, 3))
model[0].running_mean += rank  # as other samples leave it; the first process's counts
optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
for _ in range(3):
    nn.functional.cross_entropy(model[1](stopper.inputs), stopper.labels).backward()
    optimizer.step()
    stopper.check(model)
stopper.restore(model)
found = {{"history": stopper.history, "kept": stopper.best_epoch, "weight": model[1].weight.sum().item()}}
found["mean"] = model[0].running_mean.tolist()
found["reads"] = max(passes, default=0) > 1
torch.save(found, f"{folder}/{{n}}-{{rank}}.pt")
"""


def test_the_first_process_of_a_plain_loop_reads_for_both_and_agrees_with_one(tmp_path):
    alone, first, second = results_of(tmp_path, SHARED)
    assert (first.pop("reads"), second.pop("reads")) == (True, False)
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
