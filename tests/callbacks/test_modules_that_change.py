"""Modules that a look would change, and optimisers with modes: a training with the callback is the one without."""

import copy
from functools import cache

import loralib
import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback
from lightning.pytorch.loggers import CSVLogger
from problems import Given, blobs, fit_again, in_order, loader, same, weights_of
from scenarios import Model, ScheduleFree, perceptron
from torch import nn

from bu_torch.callbacks import BoundaryUncertaintyStopper, BoundaryUncertaintyStopping


def trained(folder, make, *callbacks, **options):
    options = {"data": loader(*blobs()), "max_epochs": 4, **options}
    return fit_again(folder, *callbacks, module=make, **options)[0]


def adapters_alone():
    model = Model(perceptron(loralib.Linear, r=2))
    loralib.mark_only_lora_as_trainable(model)
    return model


class Gate(Model):
    """Logs in `forward`, also past Lightning."""

    def __init__(self, net, on_step=False):
        super().__init__(net)
        self.on_step = on_step

    def forward(self, x):
        logits = self.net(x)
        self.log("spread", logits.std(), on_step=self.on_step, on_epoch=True)
        self.log_dict({"size": logits.abs().mean()}, on_step=False, on_epoch=True)
        self.logger.log_metrics({"direct": 1.0}, 0)
        return logits


class Nested(Model):
    """A module of Lightning's within another, both of which log."""

    def __init__(self, net):
        super().__init__(Gate(net))

    def forward(self, x):
        self.log("mean", x.mean(), on_step=False, on_epoch=True)
        return self.net.net(x)


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


class Teacher(Model):
    """Follows its own weights in frozen ones, unseen by torch's version counter, and gives what both say."""

    def __init__(self, net):
        super().__init__(net)
        self.teacher = copy.deepcopy(net).requires_grad_(False)

    def forward(self, x):
        return self.net(x) + self.teacher(x)

    def follow(self, *_):
        for one, other in zip(self.teacher.parameters(), self.net.parameters(), strict=True):
            one.data.lerp_(other.data, 0.5)


class AtEpochEnd(Teacher):
    on_train_epoch_end = Teacher.follow


class AtBatchEnd(Teacher):
    on_train_batch_end = Teacher.follow


def lazy():
    return Model(nn.Sequential(nn.LazyLinear(16), nn.LazyBatchNorm1d(), nn.ReLU(), nn.Dropout(0.3), nn.LazyLinear(3)))


MODULES = {
    "layers of LoRA that stay merged after validation": lambda: Validated(perceptron(loralib.Linear, r=2)),
    "adapters alone": adapters_alone,
    "a layer that `train` freezes": lambda: Freezing(perceptron()),
    "what it logs": lambda: Gate(perceptron()),
    "what it logs in steps": lambda: Gate(perceptron(), on_step=True),
    "what both log": lambda: Nested(perceptron()),
    "an average that is swapped in": lambda: Model(Swapped()),
    "an average that is swapped in, validated": lambda: Validated(Swapped()),
    "a teacher that follows after epochs": lambda: AtEpochEnd(perceptron()),
    "a teacher that follows after steps": lambda: AtBatchEnd(perceptron()),
    "pruning by the last weight": lambda: Pruning(perceptron()),
    "lazy layers": lazy,
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """What a training without the callback leaves; each is made once."""
    return cache(lambda name: outcome(tmp_path_factory.mktemp("plain"), name))


def outcome(folder, name, *callbacks):
    """Weights, buffers, what is logged after each epoch, and how often the logger was called past Lightning."""

    def keep(trainer, pl_module):
        logged.append({name: float(value) for name, value in trainer.callback_metrics.items()})

    logged, logger = [], CSVLogger(folder)
    look = LambdaCallback(on_train_epoch_end=keep, on_fit_end=keep)
    module = trained(folder, MODULES[name], *callbacks, look, logger=logger)
    assert "log" not in vars(module)
    assert module.trainer.loggers == [logger]
    n_direct = len([row for row in logger.experiment.metrics if "direct" in row])
    return weights_of(module) | dict(module.named_buffers()), logged, n_direct


@pytest.mark.parametrize("settings", [{"averaging": 0.7}, {"averaging": None, "feature_extractor": "module"}], ids=str)
@pytest.mark.parametrize("name", list(MODULES))
def test_trained_with_the_callback_it_is_the_same_to_the_bit(tmp_path, plain, name, settings):
    if name == "lazy layers":  # whose features nobody can read before training
        settings = {"averaging": settings["averaging"]}
    stopping = BoundaryUncertaintyStopping(restore_best_weights=False, n_neighbors=20, n_draws=1, **settings)
    weights, logged, n_direct = plain(name)
    found, watched, n_watched = outcome(tmp_path, name, stopping)
    assert len(stopping.history) == 4
    assert same(found, weights)
    assert [{name: one[name] for name in expected} for one, expected in zip(watched, logged, strict=True)] == logged
    assert n_watched == n_direct


@pytest.mark.parametrize("averaging", [0.7, None])
@pytest.mark.parametrize("checkpoints", [True, False])
@pytest.mark.parametrize("make", [AtEpochEnd, AtBatchEnd, Model], ids=lambda kind: kind.__name__)
def test_weights_that_change_after_a_check_are_kept_as_they_were_measured(tmp_path, make, checkpoints, averaging):
    def spoil(trainer, pl_module):
        with torch.no_grad():
            pl_module.net[0].bias += 1

    settings = {"n_neighbors": 20, "n_draws": 1, "class_weight": [1.0] * 3}
    stopping = BoundaryUncertaintyStopping(rule="trust_score", averaging=averaging, **settings)
    options = {"enable_checkpointing": checkpoints, "data": in_order()}
    later = LambdaCallback(on_train_epoch_end=spoil)
    module = trained(tmp_path, lambda: make(perceptron()), stopping, later, **options)
    again = BoundaryUncertaintyStopper(*blobs(), averaging=None, **settings)
    again.check(module)
    assert again.history[0]["trust_score"] == pytest.approx(stopping.best_score, rel=1e-6)


class TestOptimizersWithModes:
    @pytest.mark.parametrize("options", [{}, {"enable_checkpointing": False}], ids=["on disk", "in memory"])
    def test_a_later_eval_does_not_move_the_restored_weights(self, tmp_path, options):
        stopping = BoundaryUncertaintyStopping()
        model = trained(tmp_path, lambda: ScheduleFree(perceptron()), stopping, **options)
        before = weights_of(model)
        model.trainer.optimizers[0].eval()
        assert same(before, model.state_dict())

    @pytest.mark.parametrize("averaging", [0.7, None])
    def test_a_run_that_resumes_within_an_epoch_trains_on_to_the_bit(self, tmp_path, averaging):
        """There Lightning skips the hook that puts the optimiser into training mode."""

        def run(name, **options):
            settings = {"every_n_train_steps": 3, "rule": Given([0.0, 1.0, 0.0]), "reference": blobs()}
            stopping = BoundaryUncertaintyStopping(averaging=averaging, restore_best_weights=False, **settings)
            # All batches are alike: Lightning begins an epoch's data again where a run resumes within it.
            options |= {"data": in_order(*(torch.cat([one] * 4) for one in blobs(30))), "max_epochs": 4}
            model, _ = fit_again(tmp_path / name, stopping, module=lambda: ScheduleFree(perceptron()), **options)
            return stopping, model

        whole, model = run("whole")
        _, resumed = run("resumed", ckpt_path=whole.best_model_path)
        assert len(whole.history) > 2
        assert whole.best_step == whole.history[1]["step"]
        assert same(model.state_dict(), resumed.state_dict())
