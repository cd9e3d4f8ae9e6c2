"""Modules that a look would change: layers that merge, observe, are pruned, log, renormalise; optimisers with modes."""

import copy
import warnings
from functools import partial

import loralib
import pytest
import torch
from lightning.pytorch.callbacks import Callback, LambdaCallback
from lightning.pytorch.loggers import CSVLogger
from problems import Given, blobs, fit_again, in_order, loader, same, weights_of
from scenarios import Model, ScheduleFree, Wrapped, perceptron
from torch import nn
from torchmetrics import CatMetric, MeanMetric

from bu_torch.callbacks import BoundaryUncertaintyMonitor, BoundaryUncertaintyStopping
from bu_torch.internal import traces
from bu_torch.internal.traces import RestoringError, evaluation_mode
from bu_torch.run.budget import count_operations


def trained(folder, make, *callbacks, **options):
    return fit_again(folder, *callbacks, module=make, data=loader(*blobs()), **{"max_epochs": 4, **options})[0]


def adapters_alone():
    model = Model(perceptron(loralib.Linear, r=2))
    loralib.mark_only_lora_as_trainable(model)
    return model


def test_a_layer_of_lora_that_was_merged_stays_so():
    model = Model(perceptron(Wrapped))
    nn.init.normal_(model.net[2].up.weight)
    model.net[2].eval()
    before = weights_of(model)
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
        with pytest.raises(RestoringError, match="buffer `low` in Observer cannot be restored: RuntimeErr"):
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


class Gate(Model):
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


@pytest.mark.parametrize("feature_extractor", [None, "module"])
@pytest.mark.parametrize("kind", [Gate, partial(Gate, on_step=True), Nested], ids=["epochs", "steps", "nested"])
def test_what_forward_logs_is_that_of_training_alone(tmp_path, kind, feature_extractor):
    def logged(name, *callbacks):
        def keep(trainer, pl_module):
            found.append(dict(trainer.callback_metrics))

        found, logger = [], CSVLogger(tmp_path / name)
        look = LambdaCallback(on_train_epoch_end=keep, on_fit_end=keep)
        model = trained(tmp_path, lambda: kind(perceptron()), *callbacks, look, logger=logger)
        assert "log" not in vars(model)
        assert model.trainer.loggers == [logger]
        return found, len([row for row in logger.experiment.metrics if "direct" in row])

    plain, n_direct = logged("plain")
    watched, n_watched = logged("watched", BoundaryUncertaintyMonitor(feature_extractor=feature_extractor))
    assert n_direct == n_watched
    assert plain[0]
    assert [{name: one[name] for name in plain[0]} for one in watched] == plain


class TestParameters:
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
        with pytest.warns(UserWarning, match="changed the parameter `weight` of the network"), evaluation_mode(layer):
            layer(inputs)
        before = layer.weight.detach().clone()
        with evaluation_mode(layer):
            layer(inputs)
        assert torch.equal(layer.weight, before)


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


def aware_of_quantisation():
    net = perceptron()
    net.qconfig = torch.ao.quantization.get_default_qat_qconfig("fbgemm")  # an observer for each channel
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Model(torch.ao.quantization.prepare_qat(net))


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


def lazy():
    return nn.Sequential(nn.LazyLinear(16), nn.LazyBatchNorm1d(), nn.ReLU(), nn.Dropout(0.3), nn.LazyLinear(3))


STATES = {
    "adapters alone": adapters_alone,
    "observers": aware_of_quantisation,
    "metrics": lambda: Measured(perceptron()),
    "layers of LoRA that stay merged after validation": lambda: Validated(perceptron(loralib.Linear, r=2)),
    "an average that is swapped in, validated": lambda: Validated(Swapped()),
    "an average that is swapped in": lambda: Model(Swapped()),
    "a layer that the first batch sets up": lambda: Model(perceptron(Initialised)),
    "a layer that the first batch unmerges": lambda: Model(perceptron(Unmerging)),
    "a layer that `train` freezes": lambda: Freezing(perceptron()),
    "pruning by the last weight": lambda: Pruning(perceptron()),
    "lazy layers": lambda: Model(lazy()),
}


@pytest.mark.parametrize("averaging", [0.7, None])
@pytest.mark.parametrize("state", list(STATES))
def test_state_in_attributes_is_that_of_training(tmp_path, state, averaging):
    stopping = BoundaryUncertaintyStopping(restore_best_weights=False, averaging=averaging)
    plain, watched = trained(tmp_path, STATES[state]), trained(tmp_path, STATES[state], stopping)
    assert same(plain.state_dict(), watched.state_dict())
    logged = plain.trainer.callback_metrics
    assert {name: watched.trainer.callback_metrics[name] for name in logged} == logged


class TestOptimizersWithModes:
    def test_the_weights_that_are_kept_are_those_of_evaluation(self, tmp_path):
        evaluated = {}

        class Look(Callback):
            def on_train_epoch_end(self, trainer, pl_module):
                trainer.optimizers[0].eval()
                evaluated[trainer.current_epoch] = weights_of(pl_module)
                trainer.optimizers[0].train()

        stopping = BoundaryUncertaintyStopping(averaging=None)
        model = trained(tmp_path, lambda: ScheduleFree(perceptron()), Look(), stopping)
        torch.testing.assert_close(dict(model.state_dict()), evaluated[stopping.best_epoch])

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
        stopping = BoundaryUncertaintyStopping()
        with pytest.warns(UserWarning, match=r"`teacher.0.weight` and 3 more changed between a check") as caught:
            trained(tmp_path, lambda: self.AtEpochEnd(perceptron()), stopping, enable_checkpointing=checkpoints)
        assert sum("changed between" in str(one.message) for one in caught) == 1

    @pytest.mark.parametrize("make", [AtBatchEnd, ScheduleFree, lambda net: Model(nn.BatchNorm1d(4))])
    def test_are_not_where_they_change_before_it(self, tmp_path, make):
        stopping = BoundaryUncertaintyStopping()
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*changed between a check")
            trained(tmp_path, lambda: make(perceptron()), stopping)
        assert stopping.best_model_path
