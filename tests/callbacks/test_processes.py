"""Scripts in processes of their own: two agree with each other and with one; Lightning under its other name."""

import json
from pathlib import Path

import pytest
import torch
from apart import run_apart
from problems import assert_same_checks

COMMON = """
import json, os, warnings
from pathlib import Path
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from problems import Classifier, Weights, blobs, trainer
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler
from bu_torch import BoundaryUncertaintyStopper, BoundaryUncertaintyStopping
folder = Path({folder!r})

def done(rank, **values):
    (folder / f"{{rank}}.json").write_text(json.dumps(values))
"""

FIT = """
torch.manual_seed(0)
features, labels = blobs(n=151)
sample_weights = 1.0 + torch.arange(151.0)
data = DataLoader(TensorDataset(features, labels), batch_size=30, sampler=WeightedRandomSampler(sample_weights, 151))
settings = dict(n_neighbors=20, n_draws=3, averaging=None)
stopping = BoundaryUncertaintyStopping(patience=1, min_delta=0.01, every_n_train_steps=2, **settings)
weights = Weights()
made = trainer(folder, stopping, weights, max_epochs=30, strategy="ddp", devices=2)
module = Classifier()
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    made.fit(module, data)
said = [str(warning.message) for warning in said if "sync_dist" in str(warning.message)]
rank = made.global_rank

alone, twin = BoundaryUncertaintyStopper(features, labels, sample_weight=sample_weights, **settings), Classifier()
for entry in stopping.history if rank == 0 else []:
    twin.load_state_dict(weights.of_step[entry["step"]])
    alone.check(twin)
restored = {{name: value.double().sum().item() for name, value in module.state_dict().items()}}
done(rank, history=stopping.history, again=alone.history, best=stopping.best_epoch, path=stopping.best_model_path,
     reason=stopping.stopping_reason, stopped=stopping.stopped_epoch, record=stopping.record_path, restored=restored,
     said=said, summary=stopping.summary)
"""

FAIL = """
features, labels = blobs(n=150)
class Odd(Classifier):
    def forward(self, x):
        if not self.training and {where!r} == "forward":
            raise RuntimeError("only here")
        return super().forward(x)
class Data(TensorDataset):
    def __getitem__(self, index):
        if {where!r} == "data" and int(os.environ.get("LOCAL_RANK", 0)) == 0:
            raise OSError("no such file")
        return super().__getitem__(index)
stopping = BoundaryUncertaintyStopping(n_neighbors=20)
made = trainer(folder, stopping, max_epochs=3, strategy="ddp", devices=2)
try:
    made.fit(Odd(), DataLoader(Data(features, labels), batch_size=30))
except BaseException as error:
    done(made.global_rank, error=f"{{type(error).__name__}}: {{error}}")
    os._exit(3)
"""


def run(folder, script, n_processes=2, **arguments):
    """Exit codes of the processes, what they have said, and what each has written."""
    file = folder / "script.py"
    file.write_text((COMMON + script).format(**{"folder": str(folder)} | arguments))
    codes, said = run_apart(file, n_processes)
    return codes, said, [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def alone_and_together(folder, script, alone, together):
    """What one process has written with these arguments of the script, and each of two with others."""
    written = []
    for n_processes, arguments in ((1, alone), (2, together)):
        (own := folder / str(n_processes)).mkdir()
        codes, said, ranks = run(own, script, n_processes, **arguments)
        assert codes == [0] * n_processes, said
        written += ranks
    return written


def test_two_processes_agree_with_one_on_the_same_weights_and_decide_alike(tmp_path):
    """The last batch of an epoch is smaller than the others, and its step comes after one with a check."""
    codes, said, (first, second) = run(tmp_path, FIT)
    assert codes == [0, 0], said
    assert len(first["history"]) > 3
    for shared, alone in zip(first["history"], first["again"], strict=True):
        for name in alone.keys() - {"epoch"}:
            assert shared[name] == pytest.approx(alone[name], abs=1e-5), name
    for name in ("history", "best", "path", "reason", "stopped", "summary"):
        assert first[name] == second[name], name
    assert first["summary"]["word"] is not None
    assert first["restored"] == pytest.approx(second["restored"])
    assert first["stopped"] is not None
    assert Path(first["path"]).exists()
    assert second["record"] == ""
    assert Path(first["record"]).read_text().count("\n") == len(first["history"]) + 2  # header and end
    assert said.count("bu-torch kept epoch") == 1
    assert not any("boundary_uncertainty" in line or "agreement" in line for line in first["said"])


@pytest.mark.parametrize(("where", "message"), [("forward", "only here"), ("data", "no such file")])
def test_what_fails_in_the_first_process_ends_both(tmp_path, where, message):
    codes, _, (first, second) = run(tmp_path, FAIL, where=where)
    assert codes == [3, 3]
    assert message in first["error"]
    assert "The first process failed: " in second["error"]


SHARDED = """
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor import DTensor

way = {way!r}
n_shares, n_devices = 2 if way == "samples" else 1, 2 if way else 1
data = DataLoader(TensorDataset(*blobs()), batch_size=30)

class Sharded(Classifier):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.Sequential(nn.Linear(4, 14), nn.ReLU(), nn.Linear(14, 3))

    def configure_model(self):
        if way == "samples" and not isinstance(self.net[0].weight, DTensor):
            for part in (self.net[0], self.net):
                fully_shard(part, mesh=self.device_mesh["data_parallel"])
        elif way == "layers" and not isinstance(self.net[0].weight, DTensor):
            plan = {{"0": ColwiseParallel(), "2": RowwiseParallel()}}
            parallelize_module(self.net, self.device_mesh["tensor_parallel"], plan)

    def training_step(self, batch, batch_idx):
        return super().training_step([part[self.global_rank % n_shares :: n_shares] for part in batch], batch_idx)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

found = {{}}
def fit(name, max_epochs, ckpt_path=None, enable_checkpointing=True):
    averaging = 0.7 if enable_checkpointing else None
    stopping = BoundaryUncertaintyStopping(n_neighbors=20, n_draws=2, averaging=averaging)
    own = [ModelCheckpoint(folder / name, save_last=True)] if enable_checkpointing else []
    options = dict(max_epochs=max_epochs, devices=n_devices, enable_checkpointing=enable_checkpointing)
    if way:
        options["strategy"] = ModelParallelStrategy(n_shares, 2 // n_shares, save_distributed_checkpoint={as_folder!r})
    made, module = trainer(folder, stopping, *own, use_distributed_sampler=False, **options), Sharded()
    made.fit(module, data, ckpt_path=ckpt_path)
    if name == "first":
        made.test(module, data, ckpt_path="best", verbose=False)
    state = {{name: value.detach() for name, value in module.state_dict().items()}}
    kept = {{n: (one.full_tensor() if isinstance(one, DTensor) else one).tolist() for n, one in state.items()}}
    n_states = len(made.optimizers[0].state)
    found[name] = dict(kept=kept, best=stopping.best_epoch, history=stopping.history, n_states=n_states)
    return made.global_rank, stopping.best_model_path

rank, best = fit("first", 3)
fit("in memory", 3, enable_checkpointing=False)
if way != "layers":
    fit("from the kept", 5, best)
    fit("from the last", 5, folder / "first" / "last.ckpt")
done(rank, **found)
"""


@pytest.mark.parametrize(
    ("way", "as_folder"),
    [
        ("samples", True),
        pytest.param("samples", False, marks=pytest.mark.slow),
        pytest.param("layers", False, marks=pytest.mark.slow),  # split among processes that see the same samples
    ],
)
def test_shards_are_averaged_kept_restored_and_resumed_as_in_one_process(tmp_path, way, as_folder):
    options = {"way": way, "as_folder": as_folder}
    one, *both = alone_and_together(tmp_path, SHARDED, options | {"way": None}, options)
    for name, fitted in ((name, fitted) for found in both for name, fitted in found.items()):
        assert {**fitted, "kept": 0, "history": 0} == {**one[name], "kept": 0, "history": 0}
        assert_same_checks(fitted["history"], one[name]["history"], abs=1e-4)
        for key, weight in one[name]["kept"].items():
            assert torch.allclose(torch.tensor(fitted["kept"][key]), torch.tensor(weight), atol=1e-5), (name, key)
    assert both[0] == both[1]


SHARED = """
from torch import distributed, nn
from torchmetrics.classification import MulticlassAccuracy

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
done(rank, history=stopper.history, kept=stopper.best_epoch, weight=model[1].weight.sum().item(),
     mean=model[0].running_mean.tolist(), reads=max(passes, default=0) > 1)
"""


def test_the_first_process_of_a_plain_loop_reads_for_both_and_agrees_with_one(tmp_path):
    alone, first, second = alone_and_together(tmp_path, SHARED, {}, {})
    assert (first.pop("reads"), second.pop("reads")) == (True, False)
    assert first == second
    assert_same_checks(first["history"], alone["history"])
    assert first["mean"] == alone["mean"] == [0, 0, 0, 0]
    assert (first["kept"], first["weight"]) == (alone["kept"], pytest.approx(alone["weight"], abs=1e-6))


# What the process from which it is forked has imported is forgotten.
OTHER_NAME = """
import sys
for name in [name for name in sys.modules if name.partition(".")[0] in ("bu_torch", "lightning")]:
    del sys.modules[name]
import pytorch_lightning as pl
from bu_torch import BoundaryUncertaintyStopping
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)
    def forward(self, x):
        return self.net(x)
    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self(batch[0]), batch[1])
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

torch.manual_seed(0)
labels = torch.arange(120) % 3
loader = DataLoader(TensorDataset(torch.randn(120, 4) + labels.unsqueeze(1), labels), batch_size=20, shuffle=True)
stopping = BoundaryUncertaintyStopping(patience=2, n_neighbors=20)
options = dict(accelerator="cpu", logger=False, default_root_dir={folder!r}, enable_model_summary=False)
trainer = pl.Trainer(max_epochs=3, callbacks=stopping, enable_progress_bar=False, **options)
assert "lightning" not in sys.modules
trainer.fit(Module(), loader)
assert torch.load(stopping.best_model_path, weights_only=True)["epoch"] == stopping.best_epoch
keeper = trainer.checkpoint_callback
assert isinstance(keeper, pl.callbacks.ModelCheckpoint) and "bu_torch" in type(keeper).__module__
resumed = BoundaryUncertaintyStopping(patience=3, n_neighbors=20)
again = pl.Trainer(max_epochs=4, callbacks=[resumed], enable_progress_bar=False, **options)
again.fit(Module(), loader, ckpt_path=keeper.best_model_path)
assert [entry["epoch"] for entry in resumed.history[: stopping.best_epoch]] == list(range(stopping.best_epoch))
try:
    BoundaryUncertaintyStopping(patience=-1)
except pl.utilities.exceptions.MisconfigurationException:
    print("fine")
"""


def test_a_trainer_of_pytorch_lightning_is_stopped_by_its_own_classes(tmp_path):
    pytest.importorskip("pytorch_lightning")
    file = tmp_path / "script.py"
    file.write_text(OTHER_NAME.format(folder=str(tmp_path)))
    codes, said = run_apart(file)
    assert codes == [0], said
    assert said.strip().endswith("fine")
