"""Averaged weights in a trainer: what is measured, kept, saved and resumed, while training goes its own way."""

import copy
import math

import pytest
import torch
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    Callback,
    EMAWeightAveraging,
    ModelCheckpoint,
    StochasticWeightAveraging,
)
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from problems import Classifier, blobs, same, trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bu_torch import BoundaryUncertaintyMonitor, BoundaryUncertaintyStopper, BoundaryUncertaintyStopping, Signals
from bu_torch.callbacks.optimizers import RAW_WEIGHTS
from bu_torch.report import read_record
from bu_torch.run.averaging import WeightAverage

N_STEPS = 4  # an epoch
PAST = 0.6


class Plain(Classifier):
    """Without dropout, so that a resumed run is the uninterrupted one."""

    def __init__(self):
        super().__init__(lr=0.1)
        self.net[3] = nn.Identity()


class Weights(Callback):
    """The weights as training has them when a check is due, and the average of them by a loop over all checks."""

    def __init__(self, by_step=False):
        self.by_step, self.states, self.averages = by_step, [], {}

    def look(self, trainer, pl_module):
        self.states.append(copy.deepcopy(pl_module.state_dict()))
        left = [min(PAST, n / (n + 10)) for n in range(len(self.states))]
        shares = [(1 - left[n]) * math.prod(left[n + 1 :]) for n in range(len(left))]
        place = trainer.global_step if self.by_step else trainer.current_epoch
        self.averages[place] = {
            name: sum(share * state[name].double() for share, state in zip(shares, self.states, strict=True))
            if value.is_floating_point()
            else value
            for name, value in self.states[-1].items()
        }

    def on_train_batch_end(self, trainer, pl_module, *_):
        if self.by_step:
            self.look(trainer, pl_module)

    def on_train_epoch_end(self, trainer, pl_module):
        if not self.by_step:
            self.look(trainer, pl_module)


def close(found, expected):
    return found.keys() == expected.keys() and all(
        torch.allclose(value.double(), expected[name].double(), atol=1e-6) for name, value in found.items()
    )


def stopping(**kwargs):
    return BoundaryUncertaintyStopping(**{"n_neighbors": 20, "n_draws": 2, "averaging": PAST, "cache": None, **kwargs})


def fit(folder, *callbacks, module=None, max_epochs=6, ckpt_path=None, **kwargs):
    """Train on samples in a fixed order from fixed weights; the module and the trainer."""
    torch.manual_seed(3)
    module = module or Plain()
    data = DataLoader(TensorDataset(*blobs()), batch_size=120 // N_STEPS)
    made = trainer(folder, *callbacks, max_epochs=max_epochs, **kwargs)
    made.fit(module, data, ckpt_path=ckpt_path)
    return module, made


def measured(module, **settings):
    """The signals of a module, read anew."""
    inputs, labels = blobs()
    signals = Signals(20, 2, 0, **settings).fit(inputs, labels)
    with torch.no_grad():
        values = signals.measure(module.eval()(signals.perturbed_inputs), None).values
    return {name: float(value) for name, value in values.items()}


@pytest.mark.parametrize("checkpoints", [True, False])
def test_the_average_is_measured_kept_and_restored_and_training_goes_its_own_way(tmp_path, checkpoints):
    own, weights = stopping(), Weights()
    module, _ = fit(tmp_path / "averaged", own, weights, enable_checkpointing=checkpoints)
    raw = Weights()
    fit(tmp_path / "raw", stopping(averaging=None), raw, enable_checkpointing=checkpoints)
    assert all(same(one, other) for one, other in zip(weights.states, raw.states, strict=True))
    assert len(weights.states) == 6
    assert own.best_epoch is not None
    assert close(module.state_dict(), weights.averages[own.best_epoch])
    assert not close(module.state_dict(), weights.states[own.best_epoch])
    of_best = own.history[own.best_epoch]
    for name, value in measured(module).items():
        if name != "prediction_changes":
            assert value == pytest.approx(of_best[name], abs=1e-5)


def test_the_file_holds_the_average_and_loads_as_any_other(tmp_path):
    own, weights = stopping(), Weights()
    module, made = fit(tmp_path, own, weights)
    saved = torch.load(own.best_model_path, weights_only=True)
    assert close(saved["state_dict"], weights.averages[own.best_epoch])
    assert close(saved[RAW_WEIGHTS], {name: weights.states[own.best_epoch][name] for name in saved[RAW_WEIGHTS]})
    of_numbers = {name for name, value in saved["state_dict"].items() if value.is_floating_point()}
    assert saved[RAW_WEIGHTS].keys() == of_numbers
    assert same(Plain.load_from_checkpoint(own.best_model_path).state_dict(), saved["state_dict"])
    (tested,) = made.test(module, DataLoader(TensorDataset(*blobs())), ckpt_path="best", verbose=False)
    logits = module.eval()(blobs()[0])
    assert tested["test_loss"] == pytest.approx(float(nn.functional.cross_entropy(logits, blobs()[1])), abs=1e-5)


def test_a_checkpoint_of_the_users_holds_the_weights_of_training_and_grows_by_one_copy(tmp_path):
    sizes = []
    for averaging in (PAST, None):
        last, weights = ModelCheckpoint(tmp_path / str(averaging), save_last=True), Weights()
        own = stopping(averaging=averaging, restore_best_weights=False)
        fit(tmp_path / str(averaging), own, weights, last)
        content = torch.load(tmp_path / str(averaging) / "last.ckpt", weights_only=True)
        assert same(content["state_dict"], weights.states[-1])
        assert RAW_WEIGHTS not in content
        (state,) = [one for key, one in content["callbacks"].items() if key.startswith("BoundaryUncertaintyStopping")]
        sizes.append(sum(one.numel() for one in state.get("average", {}).get("weights", {}).values()))
    assert sizes == [sum(v.numel() for v in content["state_dict"].values() if v.is_floating_point()), 0]


@pytest.mark.parametrize("where", ["last", "kept"])
@pytest.mark.parametrize("cut", [1, 2, 4])
def test_a_run_resumes_as_if_uncut(tmp_path, cut, where):
    whole, of_whole = stopping(rule="expected_accuracy"), Weights()
    module, _ = fit(tmp_path / "whole", whole, of_whole)
    first, last = stopping(rule="expected_accuracy"), ModelCheckpoint(tmp_path / "user", save_last=True)
    fit(tmp_path, first, last, max_epochs=cut)
    path = tmp_path / "user" / "last.ckpt" if where == "last" else first.best_model_path
    resumed, of_resumed = stopping(rule="expected_accuracy"), Weights()
    again, _ = fit(tmp_path, resumed, of_resumed, ckpt_path=path)
    assert resumed.history == whole.history
    assert resumed.best_epoch == whole.best_epoch
    assert same(again.state_dict(), module.state_dict())
    assert of_resumed.states
    for one, other in zip(reversed(of_resumed.states), reversed(of_whole.states), strict=False):
        assert same(one, other)


@pytest.mark.filterwarnings("ignore:The run resumes with averaging=None", "ignore:Patience and the best epoch")
@pytest.mark.parametrize("resumed_by", [BoundaryUncertaintyMonitor(n_neighbors=20), stopping(averaging=None)])
def test_without_averaging_a_kept_file_still_resumes_from_the_weights_of_training(tmp_path, resumed_by):
    whole, first = Weights(), stopping()
    fit(tmp_path / "whole", stopping(restore_best_weights=False), whole)
    fit(tmp_path, first, max_epochs=3)
    epoch = torch.load(first.best_model_path, weights_only=True)["epoch"]
    weights = Weights()
    fit(tmp_path, resumed_by, weights, ckpt_path=first.best_model_path)
    assert len(weights.states) == 5 - epoch
    for one, other in zip(weights.states, whole.states[epoch + 1 :], strict=True):
        assert same(one, other)


def test_another_weight_of_the_past_starts_anew(tmp_path):
    last = ModelCheckpoint(tmp_path / "user", save_last=True)
    fit(tmp_path, stopping(), last, max_epochs=3)
    resumed, again = stopping(averaging=0.5), ModelCheckpoint(tmp_path / "again", save_last=True)
    with pytest.warns(UserWarning, match=r"resumes with averaging=0\.5 where it had averaging=0\.6"):
        fit(tmp_path, resumed, again, ckpt_path=tmp_path / "user" / "last.ckpt")
    assert resumed.tracker.checks.n_not_compared == 3
    content = torch.load(tmp_path / "again" / "last.ckpt", weights_only=True)
    (state,) = [one for key, one in content["callbacks"].items() if key.startswith("BoundaryUncertaintyStopping")]
    assert set(state["average"]["n_checks"].values()) == {3}


def test_within_epochs(tmp_path):
    own, weights = stopping(every_n_train_steps=1), Weights(by_step=True)
    module, _ = fit(tmp_path, own, weights, max_epochs=3)
    assert len(own.history) == 3 * N_STEPS
    assert close(module.state_dict(), weights.averages[own.best_step])
    saved = torch.load(own.best_model_path, weights_only=True)
    assert (saved["global_step"], saved["epoch"]) == (own.best_step, own.best_epoch)
    assert same(saved["state_dict"], module.state_dict())


@pytest.mark.parametrize(
    "theirs",
    [lambda: EMAWeightAveraging(decay=0.5), lambda: StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=1)],
)
def test_beside_an_average_of_lightning_s_there_is_none_of_ours(tmp_path, theirs, log):
    own, average = stopping(restore_best_weights=False), theirs()
    fit(tmp_path, own, average)
    assert own.tracker.average is None
    assert any(
        f"averages no weights: {type(average).__name__} does so" in record.getMessage() for record in log.records
    )
    assert read_record(own.record_path).settings["averaging"] is None


class Tuned(Plain):
    """Its first layers are the backbone."""

    def __init__(self):
        super().__init__()
        self.backbone, self.head = self.net[:3], self.net[4]

    def forward(self, x):
        return self.head(self.backbone(x))

    def configure_optimizers(self):
        return torch.optim.SGD([one for one in self.parameters() if one.requires_grad], lr=0.1)


def test_a_backbone_enters_when_it_is_unfrozen(tmp_path):
    own, names = stopping(restore_best_weights=False), []

    class Look(Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            names.append(own.tracker.average.state_dict()["n_checks"])

    tuning = BackboneFinetuning(unfreeze_backbone_at_epoch=2, train_bn=False, verbose=False)
    fit(tmp_path, tuning, own, Look(), module=Tuned(), max_epochs=4)
    assert "net.0.weight" not in names[1]
    assert "net.4.weight" in names[1]
    assert "net.0.weight" in names[2]
    assert names[-1]["net.0.weight"] == 2
    assert names[-1]["net.4.weight"] == 4
    assert own.tracker.average.state_dict()["weights"] == {}  # it is freed


class TwoOptimizers(Plain):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def configure_optimizers(self):
        return [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.net[:2], self.net[2:])]

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        for one in self.optimizers():
            one.zero_grad()
        self.manual_backward(loss)
        for one in self.optimizers():
            one.step()


class LeavesOut(Plain):
    def on_save_checkpoint(self, checkpoint):
        del checkpoint["state_dict"]["net.0.bias"]


@pytest.mark.parametrize("make", [TwoOptimizers, LeavesOut], ids=lambda make: make.__name__)
@pytest.mark.filterwarnings("ignore:The saved weights of the kept epoch leave out")
def test_modules_with_ways_of_their_own(tmp_path, make):
    own, weights = stopping(), Weights()
    module, _ = fit(tmp_path, own, weights, module=make())
    left_out = {"net.0.bias"} if make is LeavesOut else set()
    expected = weights.averages[own.best_epoch]
    for name, value in module.state_dict().items():
        of_average = torch.allclose(value.double(), expected[name].double(), atol=1e-6)
        assert of_average or name in left_out


def test_weights_that_are_not_finite_end_the_training_and_the_best_average_is_kept(tmp_path):
    class Diverging(Plain):
        def on_train_epoch_end(self):
            if self.current_epoch == 3:
                with torch.no_grad():
                    self.net[0].weight.fill_(torch.nan)

    own, weights = stopping(), Weights()
    module, _ = fit(tmp_path, weights, own, module=Diverging())
    # The module's hook comes after the callbacks': the check of epoch 4 is the first to see it.
    assert own.stopped_epoch == 4
    assert own.history[-1]["expected_accuracy"] != own.history[-1]["expected_accuracy"]
    assert close(module.state_dict(), weights.averages[own.best_epoch])


DAMAGED = {
    "no tensors": {"net.0.weight": 1.0},
    "no dict": [torch.ones(2)],
    "more than there is": {"net.0.bias": torch.ones(1).expand(16)},
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=list(DAMAGED))
def test_weights_of_training_that_others_crafted_are_refused(tmp_path, damage):
    path = crafted(tmp_path, damage)
    with pytest.raises(MisconfigurationException, match="The checkpoint holds"):
        fit(tmp_path, stopping(), ckpt_path=path)


def crafted(tmp_path, raw):
    """The kept checkpoint, with other weights of training."""
    own = stopping()
    fit(tmp_path, own, max_epochs=2)
    content = torch.load(own.best_model_path, weights_only=True)
    content[RAW_WEIGHTS] = raw
    torch.save(content, tmp_path / "crafted.ckpt")
    return tmp_path / "crafted.ckpt"


@pytest.mark.parametrize(
    "raw", [{"net.0.weight": torch.ones(2)}, {"net.9.weight": torch.ones(2)}], ids=["shape", "name"]
)
def test_weights_of_training_that_do_not_fit_are_warned_of(tmp_path, raw):
    path = crafted(tmp_path, raw)
    with pytest.warns(UserWarning, match="do not fit the module: training goes on from the average"):
        fit(tmp_path, stopping(), ckpt_path=path)


class Renamed(Plain):
    """A later version of `Plain`, which takes its files."""

    def __init__(self):
        super().__init__()
        self.network = self.net
        del self.net

    def forward(self, x):
        return self.network(x.flatten(1))

    def on_load_checkpoint(self, checkpoint):
        state = checkpoint["state_dict"]
        for name in [name for name in state if name.startswith("net.")]:
            state[name.replace("net.", "network.", 1)] = state.pop(name)


def test_a_module_that_renames_what_it_loads_goes_on_from_the_average(tmp_path):
    first, weights = stopping(), Weights()
    fit(tmp_path, first, max_epochs=3)
    with pytest.warns(UserWarning, match="goes on from the average, and another average begins"):
        fit(tmp_path, stopping(), weights, module=Renamed(), ckpt_path=first.best_model_path)
    assert len(weights.states) >= 3


@pytest.mark.parametrize("precision", ["bf16-true", "64-true"])
def test_a_kept_file_resumes_in_its_precision(tmp_path, precision):
    class Fed(Plain):
        def forward(self, x):
            return super().forward(x.to(self.dtype))

    def made():
        torch.manual_seed(3)
        return Fed()

    whole, of_whole = stopping(rule="expected_accuracy"), Weights()
    fit(tmp_path / "whole", whole, of_whole, module=made(), precision=precision)
    first = stopping(rule="expected_accuracy")
    fit(tmp_path, first, module=made(), precision=precision, max_epochs=2)
    resumed, weights = stopping(rule="expected_accuracy"), Weights()
    fit(tmp_path, resumed, weights, module=made(), precision=precision, ckpt_path=first.best_model_path)
    assert [check["epoch"] for check in resumed.history] == [check["epoch"] for check in whole.history]
    assert all(one == pytest.approx(other, abs=1e-5) for one, other in zip(resumed.history, whole.history, strict=True))
    if precision == "bf16-true":  # Lightning loads all precisions into a module of 32 bits, which it then converts
        assert resumed.history == whole.history
        assert same(weights.states[-1], of_whole.states[-1])


def test_nothing_is_exchanged_in_batches_without_a_check(tmp_path, monkeypatch):
    entered = []
    inside = WeightAverage.inside

    def counted(average, module):
        entered.append(average)
        return inside(average, module)

    monkeypatch.setattr(WeightAverage, "inside", counted)
    own = stopping()
    fit(tmp_path, own, max_epochs=3, enable_checkpointing=False)
    assert len(entered) == 2 * len(own.history) == 6  # to measure, and to keep


@pytest.mark.parametrize(
    "damage",
    [
        {"past": 2.0},
        {"past": "x"},
        {"n_checks": [1.0]},
        {"n_checks": {"net.0.bias": 0}},
        {"n_checks": {"net.0.bias": 1.5}},
        {"weights": {"net.0.bias": 1}},
    ],
    ids=str,
)
def test_an_average_that_others_crafted_is_refused(tmp_path, damage):
    last = ModelCheckpoint(tmp_path / "user", save_last=True)
    fit(tmp_path, stopping(), last, max_epochs=2)
    content = torch.load(tmp_path / "user" / "last.ckpt", weights_only=True)
    (state,) = [one for key, one in content["callbacks"].items() if key.startswith("BoundaryUncertaintyStopping")]
    state["average"].update(damage)
    torch.save(content, tmp_path / "crafted.ckpt")
    with pytest.raises(MisconfigurationException, match="holds no state that this package wrote"):
        fit(tmp_path, stopping(), ckpt_path=tmp_path / "crafted.ckpt")


class TestPlainLoop:
    def step(self, module, optimizer, epoch):
        inputs, labels = blobs(seed=epoch)
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(inputs), labels).backward()
        optimizer.step()

    def made(self):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        return module, torch.optim.SGD(module.parameters(), lr=0.3)

    def stopper(self, **kwargs):
        return BoundaryUncertaintyStopper(*blobs(), n_neighbors=20, n_draws=1, cache=None, averaging=PAST, **kwargs)

    def test_the_stopper_keeps_the_average_and_resumes(self):
        module, optimizer = self.made()
        stopper, by_hand, kept = self.stopper(), WeightAverage(PAST), {}
        state = None
        for epoch in range(8):
            self.step(module, optimizer, epoch)
            before = copy.deepcopy(module.state_dict())
            stopper.check(module)
            assert same(module.state_dict(), before)
            by_hand.update(module)
            kept[epoch] = by_hand.state_dict()["weights"]
            if epoch == 4:
                state = copy.deepcopy((stopper.state_dict(), module.state_dict(), optimizer.state_dict()))
        stopper.restore(module)
        assert close(module.state_dict(), kept[stopper.best_epoch])
        again, optimizer = self.made()
        resumed = self.stopper()
        resumed.load_state_dict(state[0])
        again.load_state_dict(state[1])
        optimizer.load_state_dict(state[2])
        for epoch in range(5, 8):
            self.step(again, optimizer, epoch)
            resumed.check(again)
        resumed.restore(again)
        assert resumed.history == stopper.history
        assert same(again.state_dict(), module.state_dict())

    def test_a_callable_that_is_no_module_is_measured_as_it_is(self):
        module, _ = self.made()
        stopper = self.stopper()
        stopper.check(lambda inputs: module(inputs))
        assert len(stopper.history) == 1
        assert stopper.state_dict()["checks"]["average"]["n_checks"] == {}


@pytest.mark.parametrize("value", [-0.1, 1.0, "x", float("nan")])
def test_a_weight_of_the_past_out_of_range_is_refused(value):
    with pytest.raises(MisconfigurationException, match="`averaging` must be"):
        BoundaryUncertaintyStopping(averaging=value)


def test_a_device_that_is_none_is_refused():
    with pytest.raises(MisconfigurationException, match="`averaging_device` must be a device"):
        BoundaryUncertaintyStopping(averaging_device="nowhere")
