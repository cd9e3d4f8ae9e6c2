"""Modules that a look would change: layers that merge, observe, are pruned, log, renormalise; optimisers with modes."""

import copy
import warnings

import lightning.pytorch as pl
import loralib
import pytest
import schedulefree
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger
from problems import blobs, loader, same, trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import CatMetric, MeanMetric

from bu_torch import Rule
from bu_torch.callbacks import BoundaryUncertaintyMonitor, BoundaryUncertaintyStopper, BoundaryUncertaintyStopping
from bu_torch.internal import traces
from bu_torch.internal.traces import RestoringError, evaluation_mode
from bu_torch.run.budget import count_operations

averaging = pytest.mark.parametrize("averaging", [0.7, None])


class Model(pl.LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.AdamW([one for one in self.parameters() if one.requires_grad], lr=0.05)


def perceptron(layer=nn.Linear, **options):
    return nn.Sequential(layer(4, 16, **options), nn.ReLU(), layer(16, 3, **options))


class Wrapped(nn.Module):
    """A layer of LoRA around a layer as it is, whose weight it merges into."""

    def __init__(self, *size):
        super().__init__()
        self.base = nn.Linear(*size)
        self.down, self.up = nn.Linear(size[0], 2, bias=False), nn.Linear(2, size[1], bias=False)
        nn.init.zeros_(self.up.weight)
        self.base.requires_grad_(False)
        self.is_merged = False

    def train(self, mode=True):
        super().train(mode)
        if mode == self.is_merged:
            self.base.weight.data += (-1 if mode else 1) * (self.up.weight @ self.down.weight).data
            self.is_merged = not mode
        return self

    def forward(self, x):
        return self.base(x) if self.is_merged else self.base(x) + self.up(self.down(x))


def trained(folder, make, *callbacks, data=None, **options):
    pl.seed_everything(3, verbose=False)
    model = make()
    trainer(folder, *callbacks, **{"max_epochs": 4, **options}).fit(model, loader(*(data or blobs())))
    return model


def both(folder, make, **options):
    """The model trained without and with the callback, and the callback."""
    averaging, perturbation = options.pop("averaging", 0.7), options.pop("perturbation", None)
    stopping = BoundaryUncertaintyStopping(
        restore_best_weights=False, averaging=averaging, perturbation=perturbation, cache=None
    )
    return trained(folder, make, **options), trained(folder, make, stopping, **options), stopping


class TestLora:
    @pytest.fixture(params=["loralib", "loralib, alone", "a wrapper"])
    def make(self, request):
        def made():
            model = Model(perceptron(Wrapped) if request.param == "a wrapper" else perceptron(loralib.Linear, r=2))
            if request.param == "loralib, alone":
                loralib.mark_only_lora_as_trainable(model)
            return model

        return made

    @averaging
    def test_layers_that_merge_are_trained_as_without(self, tmp_path, make, averaging):
        plain, watched, _ = both(tmp_path, make, averaging=averaging)
        learnt = {name: value for name, value in plain.state_dict().items() if "lora_B" in name or "up" in name}
        assert all(bool(value.any()) for value in learnt.values())
        assert same(plain.state_dict(), watched.state_dict())

    def test_a_check_measures_what_is_merged(self, tmp_path, make):
        """The kept weights are not merged, and give the logits that were measured."""
        stopping = BoundaryUncertaintyStopping(cache=None)
        model = trained(tmp_path, make, stopping)
        features, _ = blobs()
        in_training = model(features)
        assert all(part.training for part in model.modules())
        with evaluation_mode(model):
            torch.testing.assert_close(model(features), in_training)

    def test_in_a_plain_loop(self, make):
        features, labels = blobs()
        weights = []
        for is_checked in (False, True):
            torch.manual_seed(0)
            model = make()
            stopper = BoundaryUncertaintyStopper(features, labels, n_neighbors=10, cache=None)
            optimizer = model.configure_optimizers()
            for _ in range(4):
                optimizer.zero_grad()
                model.training_step((features, labels), 0).backward()
                optimizer.step()
                if is_checked:
                    stopper.check(model)
            weights.append(model.state_dict())
        assert same(*weights)

    def test_a_layer_that_was_merged_stays_so(self):
        model = Model(perceptron(Wrapped))
        nn.init.normal_(model.net[2].up.weight)
        model.net[2].eval()
        before = {name: value.clone() for name, value in model.state_dict().items()}
        with evaluation_mode(model):
            assert all(part.is_merged for part in (model.net[0], model.net[2]))
        assert [model.net[0].is_merged, model.net[2].is_merged] == [False, True]
        assert [part.training for part in model.net] == [True, True, False]
        assert same(before, model.state_dict())


class Observer(nn.Module):
    """Follows the ends of each feature, in buffers that are empty at first; names of fixed size come after."""

    def __init__(self):
        super().__init__()
        self.register_buffer("low", torch.empty(0))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        low = x.detach().amin(dim=0)
        self.low.resize_(low.shape).copy_(low if self.seen == 0 else torch.minimum(self.low, low))
        self.seen += 1
        return x - self.low


class TestObservers:
    @averaging
    def test_training_aware_of_quantisation_is_the_same(self, tmp_path, averaging):
        def make():
            net = perceptron()
            net.qconfig = torch.ao.quantization.get_default_qat_qconfig("fbgemm")  # an observer for each channel
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return Model(torch.ao.quantization.prepare_qat(net))

        plain, watched, _ = both(tmp_path, make, averaging=averaging)
        assert same(plain.state_dict(), watched.state_dict())

    def test_a_buffer_is_as_large_as_before(self):
        observer = Observer()
        with evaluation_mode(observer):
            observer(torch.ones(5, 3))
            assert observer.low.shape == (3,)
        assert observer.low.shape == (0,)
        assert observer.seen == 0

    def test_what_cannot_be_put_back_is_told_and_all_else_is_put_back(self, monkeypatch):
        def fail_for_one(tensor, memory):
            if tensor is observer.low:
                raise RuntimeError("it stays where it is")

        observer = Observer()
        monkeypatch.setattr(traces, "_move_back", fail_for_one)
        look = evaluation_mode(observer)(lambda: observer(torch.rand(5, 3)))
        with pytest.raises(RestoringError, match="buffer `low` of its Observer, which cannot be put back: RuntimeErr"):
            look()
        assert observer.seen == 0
        assert observer.training

    def test_a_buffer_is_where_it_was(self):
        observer = Observer()
        observer.low = torch.rand(3)
        before = observer.low.clone()
        with evaluation_mode(observer):
            observer.low.data = torch.zeros(1).expand(3)  # one number in memory, so that none can be written
        assert torch.equal(observer.low, before)
        assert observer.low.stride() == (1,)

    def test_counting_operations_does_not_hide_it(self):
        def fail():
            raise RestoringError("it stays changed")

        with pytest.raises(RestoringError, match="it stays changed"):
            count_operations(nn.Linear(2, 2), fail)


class Pruned(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = perceptron()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("mask", torch.ones(16, 4))

    def forward(self, x):
        first = self.net[0]
        return self.net[1:](nn.functional.linear(self.norm(x), first.weight * self.mask, first.bias))


class Prune(Callback):
    """Sets the smallest weights to 0 before the third epoch, when the mask has been looked at twice."""

    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == 2:
            size = pl_module.net.net[0].weight.abs()
            pl_module.net.mask.copy_(size > size.quantile(0.7))


def test_a_mask_stays_a_mask_and_running_statistics_are_averaged(tmp_path):
    stopping = BoundaryUncertaintyStopping(patience=100, rule="boundary_uncertainty", cache=None)
    averages = []

    class Look(Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            averages.append(stopping.tracker.average.state_dict()["weights"])

    trained(tmp_path, lambda: Model(Pruned()), Prune(), stopping, Look(), max_epochs=8)
    kept = torch.load(stopping.best_model_path, weights_only=True)["state_dict"]
    assert set(kept["net.mask"].unique().tolist()) <= {0.0, 1.0}
    assert all("net.mask" not in one for one in averages)
    assert all({"net.norm.running_mean", "net.norm.running_var"} <= one.keys() for one in averages)


class Gate(Model):
    on_step = False

    def forward(self, x):
        logits = self.net(x)
        self.log("spread", logits.std(), on_step=self.on_step, on_epoch=True)
        self.log_dict({"size": logits.abs().mean()}, on_step=False, on_epoch=True)
        self.logger.log_metrics({"direct": 1.0}, 0)
        return logits


class StepGate(Gate):
    on_step = True


class Nested(Model):
    """A module of Lightning's within another, both of which log."""

    def __init__(self, net):
        super().__init__(Gate(net))

    def forward(self, x):
        self.log("mean", x.mean(), on_step=False, on_epoch=True)
        return self.net.net(x)


@pytest.mark.parametrize("feature_extractor", [None, "module"])
@pytest.mark.parametrize("kind", [Gate, StepGate, Nested])
def test_what_forward_logs_is_that_of_training_alone(tmp_path, kind, feature_extractor):
    epochs = {}
    for callbacks in ((), (BoundaryUncertaintyMonitor(cache=None, feature_extractor=feature_extractor),)):
        found = epochs[bool(callbacks)] = []

        class Look(Callback):
            def on_train_epoch_end(self, trainer, pl_module, found=found):
                found.append(dict(trainer.callback_metrics))

            def on_fit_end(self, trainer, pl_module, found=found):
                found.append(dict(trainer.callback_metrics))

        logger = CSVLogger(tmp_path / str(bool(callbacks)))
        model = trained(tmp_path, lambda kind=kind: kind(perceptron()), *callbacks, Look(), logger=logger)
        assert "log" not in vars(model)
        assert model.trainer.loggers == [logger]
        found.append(len([row for row in logger.experiment.metrics if "direct" in row]))
    plain, watched = epochs[False], epochs[True]
    assert plain.pop() == watched.pop()
    names = set(plain[0])
    assert names
    assert [{name: one[name] for name in names} for one in watched] == plain


class Renormalised(nn.Module):
    """An embedding whose rows `forward` shortens; at first none is too long."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 8, max_norm=1.0)
        nn.init.normal_(self.embedding.weight, std=0.1)
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.embedding(x).mean(dim=1))


class TestParameters:
    @averaging
    def test_what_forward_changes_is_put_back(self, tmp_path, averaging):
        tokens = torch.randint(0, 50, (120, 6), generator=torch.Generator().manual_seed(0))
        data, options = (tokens, tokens[:, 0] % 3), {"perturbation": "tokens", "averaging": averaging}
        plain, watched, _ = both(tmp_path, lambda: Model(Renormalised()), data=data, **options)
        assert same(plain.state_dict(), watched.state_dict())

    def test_a_change_that_torch_does_not_count_is_put_back(self):
        class Normalised(nn.Linear):
            def forward(self, x):
                self.weight.data = nn.functional.normalize(self.weight.data)
                return super().forward(x)

        layer = Normalised(4, 3)
        before = layer.weight.detach().clone()
        for _ in range(2):
            with evaluation_mode(layer):
                layer(torch.rand(2, 4))
                assert not torch.equal(layer.weight, before)
            assert torch.equal(layer.weight, before)

    def test_a_change_that_comes_late_is_told_once_and_then_put_back(self):
        class Late(nn.Linear):
            is_late = False

            def forward(self, x):
                if self.is_late:
                    self.weight += 1
                return super().forward(x)

        layer, inputs = Late(4, 3), torch.rand(2, 4)
        with evaluation_mode(layer):
            layer(inputs)
        layer.is_late = True
        with pytest.warns(UserWarning, match="changed its parameter `weight`, which"), evaluation_mode(layer):
            layer(inputs)
        before = layer.weight.detach().clone()
        with evaluation_mode(layer):
            layer(inputs)
        assert torch.equal(layer.weight, before)

    def test_gradients_between_forward_and_backward_are_the_same(self):
        features, labels = torch.arange(12).reshape(4, 3), torch.arange(4) % 3
        gradients = []
        for is_looked_at in (False, True):
            torch.manual_seed(0)
            model = Model(Renormalised())
            loss = model.training_step((features, labels), 0)
            for _ in range(2 * is_looked_at):
                with evaluation_mode(model):
                    model(features)
            loss.backward()
            gradients.append({name: one.grad for name, one in model.named_parameters()})
        assert same(*gradients)


class Validated(Model):
    """Has a validation loop, after which Lightning sets `training` and tells no module of it."""

    def val_dataloader(self):
        return loader(*blobs(seed=1))

    def validation_step(self, batch, batch_idx):
        self(batch[0])


class Swapped(nn.Module):
    """Evaluates with an average of its own, which `train` and `eval` exchange by place in memory."""

    def __init__(self):
        super().__init__()
        self.net = perceptron()
        self.average = [one.detach().clone() + 0.1 for one in self.net.parameters()]
        self.is_swapped = False

    def train(self, mode=True):
        super().train(mode)
        if mode == self.is_swapped:
            for one, other in zip(self.net.parameters(), self.average, strict=True):
                one.data, other.data = other.data, one.data
            self.is_swapped = not mode
        return self

    def forward(self, x):
        return self.net(x)


class Initialised(nn.Linear):
    """Scales itself by the first batch that it gets."""

    is_ready = False

    def forward(self, x):
        if not self.is_ready:
            self.weight.data /= x.abs().max()
            self.is_ready = True
        return super().forward(x)


class Unmerging(Wrapped):
    """Merged from the start, and taken apart by the first `forward`, as an adapter that is switched off."""

    def __init__(self, *size):
        super().__init__(*size)
        nn.init.normal_(self.up.weight)
        self.base.requires_grad_(True)
        super().train(False)

    def train(self, mode=True):
        return nn.Module.train(self, mode)

    def forward(self, x):
        if self.is_merged:
            self.base.weight.data -= (self.up.weight @ self.down.weight).data
            self.is_merged = False
        return self.base(x)


class Freezing(Model):
    """Freezes its first layer whenever it is told its mode, which Lightning does not do."""

    def train(self, mode=True):
        super().train(mode)
        self.net[0].requires_grad_(False)
        return self


class Pruning(Model):
    """Prunes more and more by the weight that the last `forward` has left in the layer."""

    def on_train_epoch_start(self):
        nn.utils.prune.l1_unstructured(self.net[0], "weight", amount=0.2)


def lazy():
    return nn.Sequential(nn.LazyLinear(16), nn.LazyBatchNorm1d(), nn.ReLU(), nn.Dropout(0.3), nn.LazyLinear(3))


STATES = {
    "layers of LoRA that stay merged after validation": lambda: Validated(perceptron(loralib.Linear, r=2)),
    "an average that is swapped in, validated": lambda: Validated(Swapped()),
    "an average that is swapped in": lambda: Model(Swapped()),
    "a layer that the first batch sets up": lambda: Model(perceptron(Initialised)),
    "a layer that the first batch unmerges": lambda: Model(perceptron(Unmerging)),
    "a layer that `train` freezes": lambda: Freezing(perceptron()),
    "pruning by the last weight": lambda: Pruning(perceptron()),
    "lazy layers": lambda: Model(lazy()),
}


@pytest.mark.parametrize("kind", [BoundaryUncertaintyMonitor, BoundaryUncertaintyStopping])
@pytest.mark.parametrize("state", list(STATES))
def test_state_in_attributes_is_that_of_training(tmp_path, state, kind):
    options = {"restore_best_weights": False} if kind is BoundaryUncertaintyStopping else {}
    plain = trained(tmp_path, STATES[state])
    watched = trained(tmp_path, STATES[state], kind(cache=None, **options))
    assert same(plain.state_dict(), watched.state_dict())


class Measured(Model):
    """Updates metrics in `forward`, one of which keeps a list."""

    def __init__(self, net):
        super().__init__(net)
        self.mean, self.all = MeanMetric(), CatMetric()

    def forward(self, x):
        logits = self.net(x)
        self.mean.update(logits.abs())
        self.all.update(logits[:, 0])
        self.log("mean", self.mean, on_step=False, on_epoch=True)
        return logits

    def on_train_epoch_end(self):
        self.log("n", float(len(self.all.compute())))
        self.all.reset()


def test_metrics_that_forward_updates_are_those_of_training(tmp_path):
    plain = trained(tmp_path, lambda: Measured(perceptron())).trainer.callback_metrics
    watched = trained(tmp_path, lambda: Measured(perceptron()), BoundaryUncertaintyMonitor()).trainer.callback_metrics
    assert plain.keys() == {"mean", "n"}
    assert {name: watched[name] for name in plain} == plain


class ScheduleFree(Model):
    def configure_optimizers(self):
        return schedulefree.AdamWScheduleFree(self.parameters(), lr=0.05)

    def on_train_epoch_start(self):
        self.optimizers().optimizer.train()


class Second(Rule):
    """Keeps the second check."""

    name = "second"
    signals = ("trust_score",)

    def __init__(self):
        self.n_checks = 0

    def score(self, values):
        self.n_checks += 1
        return float(self.n_checks == 2)

    def reset(self):
        self.n_checks = 0

    def state_dict(self):
        return {"n_checks": self.n_checks}

    def load_state_dict(self, state_dict):
        self.n_checks = state_dict["n_checks"]


class TestOptimizersWithModes:
    @averaging
    def test_training_is_the_same_to_the_bit(self, tmp_path, averaging):
        plain, watched, _ = both(tmp_path, lambda: ScheduleFree(perceptron()), averaging=averaging)
        assert same(plain.state_dict(), watched.state_dict())

    def test_the_weights_that_are_kept_are_those_of_evaluation(self, tmp_path):
        evaluated = {}

        class Look(Callback):
            def on_train_epoch_end(self, trainer, pl_module):
                optimizer = trainer.optimizers[0]
                assert optimizer.param_groups[0]["train_mode"]
                optimizer.eval()
                evaluated[trainer.current_epoch] = {n: one.clone() for n, one in pl_module.state_dict().items()}
                optimizer.train()

        stopping = BoundaryUncertaintyStopping(averaging=None, cache=None)
        model = trained(tmp_path, lambda: ScheduleFree(perceptron()), Look(), stopping)
        kept = torch.load(stopping.best_model_path, weights_only=True)["state_dict"]
        expected = evaluated[stopping.best_epoch]
        for name, value in expected.items():
            torch.testing.assert_close(kept[name], value)
        assert same(kept, model.state_dict())

    @pytest.mark.parametrize("options", [{}, {"enable_checkpointing": False}], ids=["on disk", "in memory"])
    def test_a_later_eval_does_not_move_the_restored_weights(self, tmp_path, options):
        stopping = BoundaryUncertaintyStopping(cache=None)
        model = trained(tmp_path, lambda: ScheduleFree(perceptron()), stopping, **options)
        before = {name: one.clone() for name, one in model.state_dict().items()}
        model.trainer.optimizers[0].eval()
        assert same(before, model.state_dict())

    @averaging
    @pytest.mark.parametrize("every", [{}, {"every_n_train_steps": 3}], ids=["epochs", "steps"])
    def test_a_run_that_resumes_from_the_kept_file_trains_on_to_the_bit(self, tmp_path, averaging, every):
        """Also within an epoch, where Lightning skips the hook that puts the optimiser into training mode."""

        def run(name, **options):
            pl.seed_everything(3, verbose=False)
            stopping = BoundaryUncertaintyStopping(
                averaging=averaging, restore_best_weights=False, rule=Second(), cache=None, reference=blobs(), **every
            )
            model = ScheduleFree(perceptron())
            # All batches are alike: Lightning begins an epoch's data again where a run resumes within it.
            data = DataLoader(TensorDataset(*(torch.cat([one] * 4) for one in blobs(30))), batch_size=30)
            trainer(tmp_path / name, stopping, max_epochs=4).fit(model, data, **options)
            return stopping, model

        whole, model = run("whole")
        _, resumed = run("resumed", ckpt_path=whole.best_model_path)
        assert len(whole.history) > 2
        assert whole.best_step == whole.history[1]["step"]
        assert same(model.state_dict(), resumed.state_dict())


class TestWeightsThatChangeAfterTheCheck:
    class Teacher(Model):
        """Follows its own weights in frozen ones, unseen by torch's version counter."""

        def __init__(self, net):
            super().__init__(net)
            self.teacher = copy.deepcopy(net).requires_grad_(False)

        def follow(self):
            for one, other in zip(self.teacher.parameters(), self.net.parameters(), strict=True):
                one.data.lerp_(other.data, 0.5)

    class AtEpochEnd(Teacher):
        def on_train_epoch_end(self):
            self.follow()

    class AtBatchEnd(Teacher):
        def on_train_batch_end(self, *_):
            self.follow()

    @pytest.mark.parametrize("checkpoints", [True, False])
    def test_are_warned_of_once(self, tmp_path, checkpoints):
        with pytest.warns(UserWarning, match=r"`teacher.0.weight` and 3 more changed between a check") as caught:
            trained(
                tmp_path,
                lambda: self.AtEpochEnd(perceptron()),
                BoundaryUncertaintyStopping(cache=None),
                enable_checkpointing=checkpoints,
            )
        assert sum("changed between" in str(one.message) for one in caught) == 1

    @pytest.mark.parametrize("make", [AtBatchEnd, ScheduleFree, lambda net: Model(nn.BatchNorm1d(4))])
    def test_are_not_where_they_change_before_it(self, tmp_path, make):
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*changed between a check")
            stopping = BoundaryUncertaintyStopping(cache=None)
            trained(tmp_path, lambda: make(perceptron()), stopping)
        assert stopping.best_model_path
