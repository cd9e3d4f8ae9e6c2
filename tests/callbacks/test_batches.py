"""What the network gets in training is what is measured: batch hooks, samplers, units, odd outputs and labels."""

import copy
import pickle
import re
from contextlib import nullcontext
from functools import cache, partial

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from problems import Classifier, blobs, fit_again, loader
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from bu_torch.callbacks import BoundaryUncertaintyMonitor, BoundaryUncertaintyStopping
from bu_torch.callbacks.watch import can_be_watched, difference

X, Y = blobs()
BYTES = (X * 25 + 128).clamp(0, 255).byte()
SCALED = BYTES.float() / 255
FEW = {"n_neighbors": 10, "n_draws": 1}


def fit(folder, module, data, *callbacks, max_epochs=1):
    return fit_again(folder, *callbacks, module=module, data=data, max_epochs=max_epochs)[0]


def monitored(folder, module, data, max_epochs=1, **settings):
    monitor = BoundaryUncertaintyMonitor(**FEW, **settings)
    return monitor, fit(folder, module, data, monitor, max_epochs=max_epochs)


def assert_same_history(first, second):
    assert len(first.history) == len(second.history) > 0
    for one, other in zip(first.history, second.history, strict=True):
        assert one == pytest.approx(other, abs=1e-5)


# Hooks that transform batches.


class Before(Classifier):
    def on_before_batch_transfer(self, batch, dataloader_idx):
        return batch[0].float() / 255, batch[1]


class After(Classifier):
    def on_after_batch_transfer(self, batch, dataloader_idx):
        if not self.trainer.training:
            return batch
        return batch[0].float() / 255, batch[1]


class Transfer(Classifier):
    def transfer_batch_to_device(self, batch, device, dataloader_idx):
        return (batch[0].float() / 255).to(device), batch[1].to(device)


class DataModule(pl.LightningDataModule):
    def train_dataloader(self):
        return loader(BYTES, Y)

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return batch[0].float() / 255, batch[1]


class Instance(Classifier):
    """Has its hook as an attribute."""

    def __init__(self):
        super().__init__()
        self.on_after_batch_transfer = lambda batch, dataloader_idx: (batch[0].float() / 255, batch[1])


class TestHooks:
    @pytest.fixture(scope="class")
    def scaled(self, tmp_path_factory):
        folder = tmp_path_factory.mktemp("scaled")
        return cache(lambda **settings: monitored(folder, Classifier, loader(SCALED, Y), max_epochs=2, **settings)[0])

    @pytest.mark.parametrize("module", [Before, After, Transfer, Instance, "a datamodule"])
    @pytest.mark.parametrize("settings", [{}, {"max_samples": 50}], ids=["all", "some"])
    def test_that_scale_are_as_data_that_is_scaled(self, tmp_path, scaled, module, settings):
        given = (Classifier, DataModule()) if module == "a datamodule" else (module, loader(BYTES, Y))
        hooked, _ = monitored(tmp_path, *given, max_epochs=2, **settings)
        assert_same_history(hooked, scaled(**settings))

    def test_are_called_once_for_each_batch_that_is_read_and_never_in_a_check(self, tmp_path):
        calls = []

        class Counting(Classifier):
            def on_after_batch_transfer(self, batch, dataloader_idx):
                calls.append(len(batch[0]))
                return batch

        fit(tmp_path, Counting, loader(X, Y), max_epochs=2)
        n_training, calls[:] = len(calls), []
        monitored(tmp_path, Counting, loader(X, Y), max_epochs=2)
        assert len(calls) - n_training == 5
        assert calls[:5] == [30] * 4 + [30]  # before the first step; 30 samples once more, to see if they differ

    def test_reference_pairs_do_not_pass_them_and_datasets_do(self, tmp_path):
        scaled, _ = monitored(tmp_path, Classifier, loader(SCALED, Y))
        for reference in ((SCALED, Y), TensorDataset(BYTES, Y)):
            found, _ = monitored(tmp_path, After, loader(BYTES, Y), reference=reference)
            assert_same_history(found, scaled)


# What the network gets.


class Stepped(Classifier):
    """Prepares its inputs in `training_step`, for itself or for its network."""

    def __init__(self, prepare=lambda x, y: (x,), through="the module"):
        super().__init__()
        self.prepare, self.through = prepare, through

    def training_step(self, batch, batch_idx):
        prepared, called = self.prepare(*batch), self if self.through == "the module" else self.net
        logits = called(**prepared) if isinstance(prepared, dict) else called(*prepared)
        return nn.functional.cross_entropy(logits[: len(batch[1])], batch[1])

    def forward(self, x, y=None, attention_mask=None, rate=None):
        return super().forward(x.float().flatten(1)[:, :4])


FINE = {
    "noise": lambda x, y: (x + 0.3 * torch.randn_like(x),),
    "mixup": lambda x, y: (0.7 * x + 0.3 * x.flip(0),),
    "CutMix": lambda x, y: (torch.cat((x.flip(0)[:, :2], x[:, 2:]), dim=1),),
    "another shape": lambda x, y: (x.view(-1, 2, 2),),
    "two views": lambda x, y: (torch.cat((x, x + 0.1 * torch.randn_like(x))),),
    "labels too": lambda x, y: (x, y),
    "labels by name": lambda x, y: {"y": y, "x": x},
    "a rate": lambda x, y: {"x": x, "rate": torch.tensor(0.5)},
    "float64": lambda x, y: (x.double(),),
    "changed in place": lambda x, y: (x.mul_(1.1),),
    "others of the kind": lambda x, y: (x.std() * torch.randn_like(x) + x.mean(),),
    "half dropped": lambda x, y: (nn.functional.dropout(x, 0.5),),
    "masked": lambda x, y: (x * (torch.rand_like(x) < 0.5),),
    "not a number": lambda x, y: (x * torch.nan,),
    "one-hot labels": lambda x, y: (x, nn.functional.one_hot(y, 3)),
    "a column of labels": lambda x, y: (x, y.unsqueeze(1)),
}
REFUSED = {
    "divided": (lambda x, y: (x / 255,), "values of mean .* instead of"),
    "standardised": (lambda x, y: ((x - 20) * 3,), "values of mean .* and standard deviation"),
    "divided in place": (lambda x, y: (x.div_(255),), "values of mean"),
    "shifted": (lambda x, y: (x + 300,), "values of mean [34]"),
    "stretched": (lambda x, y: ((x - x.mean()) * 3 + x.mean(),), "values of mean .* and standard deviation"),
    "narrowed": (lambda x, y: ((x - x.mean()) / 3 + x.mean(),), "values of mean .* and standard deviation"),
    "constant": (lambda x, y: (torch.zeros_like(x),), "values of mean 0 and standard deviation 0"),
    "other labels": (lambda x, y: (x, y + 1), r"2 tensors \(argument 0, argument 1\)"),
    "longer": (lambda x, y: (nn.functional.pad(x, (0, 2)),), r"shape \(30, 6\) instead of \(30, 4\)"),
    "a mask": (
        lambda x, y: {"x": x, "attention_mask": torch.ones(len(x), 4)},
        r"2 tensors \(x, attention_mask\), but a check passes 1 tensor \(argument 0\).*Name the tensors of a batch",
    ),
}


def has_ears(module):
    return any(part._forward_pre_hooks for part in module.modules())


class TestWitness:
    @pytest.mark.parametrize("prepare", list(FINE.values()), ids=list(FINE))
    def test_what_keeps_the_units_is_fine(self, tmp_path, prepare):
        fine = partial(Stepped, lambda x, y: prepare(x.clone(), y.clone()))
        monitor, module = monitored(tmp_path, fine, loader(X + 6, Y))  # far from 0, which masks leave
        assert len(monitor.history) == 1
        assert not has_ears(module)

    @pytest.mark.parametrize(
        ("wrong", "through"),
        [*((wrong, "the module") for wrong in REFUSED), ("divided", "its network"), ("standardised", "its network")],
    )
    def test_other_units_are_refused_after_the_first_batch(self, tmp_path, wrong, through):
        prepare, message = REFUSED[wrong]
        start = "^In training, the network gets inputs that differ from those of the batches: "
        with pytest.raises(MisconfigurationException, match=f"{start}.*{message}"):
            monitored(tmp_path, partial(Stepped, prepare, through), loader(X * 20 + 100, Y))

    @pytest.mark.parametrize("fault", ["while it trains", "in the units", "in the first batch's labels", "skipped"])
    def test_no_hook_stays_and_no_random_number_is_drawn(self, tmp_path, fault):
        class Broken(Stepped):
            def training_step(self, batch, batch_idx):
                if fault == "while it trains":
                    self(batch[0])
                    raise KeyError("a fault of the user's")
                if fault == "in the first batch's labels":
                    batch.pop()  # what is left cannot be taken apart
                    return self(batch[0]).square().mean()
                return super().training_step((batch[0] / 255 if fault == "in the units" else batch[0], batch[1]), 0)

            def on_train_batch_start(self, batch, batch_idx):
                return -1 if fault == "skipped" and self.global_step == 0 else None

        seen = []
        probe = LambdaCallback(on_train_epoch_end=lambda trainer, module: seen.append(has_ears(module)))
        for kind in (BoundaryUncertaintyMonitor, BoundaryUncertaintyStopping):
            module, fails = Broken(), fault in ("while it trains", "in the units")
            with pytest.raises((KeyError, MisconfigurationException)) if fails else nullcontext():
                fit(tmp_path, module, loader(X * 20 + 100, Y), kind(**FEW), probe)
            assert not has_ears(module)
        assert not any(seen)

    def test_what_is_compiled_is_not_watched(self):
        assert can_be_watched(Classifier())
        scripted, compiled, within, by_itself = (Classifier() for _ in range(4))
        scripted.net = torch.jit.script(scripted.net)
        compiled._compiler_ctx = {"compiler": "dynamo"}  # as Lightning marks it
        within.net = torch.compile(within.net)
        by_itself.net[0].compile()
        for module in (scripted, compiled, within, by_itself):
            assert not can_be_watched(module)

    def test_a_module_can_be_copied_and_pickled_while_it_is_watched(self, tmp_path):
        class Copied(Classifier):
            def training_step(self, batch, batch_idx):
                if batch_idx == 0:
                    seen.append(has_ears(self))
                    twin = copy.deepcopy(self.net)
                    twin(batch[0] / 255)  # is none of the training's calls
                    assert pickle.dumps(self.net)
                return super().training_step(batch, batch_idx)

        seen = []
        monitor, _ = monitored(tmp_path, Copied, loader(X * 20 + 100, Y))
        assert seen == [True]
        assert len(monitor.history) == 1


def test_numbers_of_tokens_have_no_units():
    assert difference({0: Y}, {0: Y * 1000}, None) == ""


def test_places_may_come_from_a_command_line(tmp_path):
    places = ({"input_key": "0", "label_key": "1"}, {})
    assert_same_history(*(monitored(tmp_path, Classifier, loader(X, Y), **keys)[0] for keys in places))


# Samplers, classes and labels.


@pytest.mark.parametrize(
    ("sampled", "class_weight", "message"),
    [
        (False, None, "^Class 1 makes up 4.2% of what training draws, .*'balanced_accuracy'"),
        (False, "balanced", None),
        (False, {0: 0.1}, None),
        (True, None, "^Samples count as often as the sampler draws them.$"),
        (True, "balanced", None),
        (True, [1.0, 2.0], "^Samples count as often as the sampler draws them, times the weights of their class"),
    ],
)
def test_a_rare_class_is_worth_a_word(tmp_path, caplog, sampled, class_weight, message):
    labels = (torch.arange(120) % 25 == 0).long()
    sampler = WeightedRandomSampler((1 / torch.bincount(labels).double())[labels], 120) if sampled else None
    data = DataLoader(TensorDataset(X + 10 * labels.unsqueeze(1), labels), batch_size=30, sampler=sampler)
    with caplog.at_level("INFO"):
        monitored(tmp_path, lambda: Classifier(n_outputs=2), data, class_weight=class_weight)
    said = [line for line in caplog.messages if "training draws" in line or "sampler draws" in line]
    assert len(said) == (message is not None)
    assert all(re.search(message, line) for line in said)


class TestWhatTrainingDoes:
    """What a check cannot see is told."""

    def test_bytes_that_forward_scales_by_their_type_are_refused(self, tmp_path):
        class OfBytes(Classifier):
            def forward(self, x):
                return super().forward(x.float() / 255 - 0.5 if x.dtype == torch.uint8 else x)

        with pytest.raises(MisconfigurationException, match="let it scale them as it scales bytes"):
            monitored(tmp_path, OfBytes, loader(BYTES, Y))

    @pytest.mark.parametrize("prepares", ["loader", "callback"])
    def test_batches_that_are_prepared_where_samples_are_not_read_are_said(self, tmp_path, prepares):
        class Scaled(DataLoader):
            def __iter__(self):
                return ((inputs / 100, labels) for inputs, labels in super().__iter__())

        scale = LambdaCallback(on_train_batch_start=lambda trainer, module, batch, batch_idx: batch[0].div_(100))
        kind, before = (Scaled, []) if prepares == "loader" else (DataLoader, [scale])
        data = kind(TensorDataset(100 * X + 50, Y), 30)
        with pytest.warns(UserWarning, match="on_after_batch_transfer"):
            fit(tmp_path, Classifier, data, *before, BoundaryUncertaintyStopping(**FEW))

    @pytest.mark.parametrize("n_skipped", [0, 1])
    def test_a_way_past_forward_is_warned_of_or_seen(self, tmp_path, n_skipped):
        class Past(Classifier):
            def training_step(self, batch, batch_idx):
                if batch_idx < n_skipped:
                    return None
                return nn.functional.linear(batch[0], self.net[0].weight, self.net[0].bias).square().sum()

        class Late(Classifier):
            def training_step(self, batch, batch_idx):
                return None if batch_idx < 2 else super().training_step((batch[0] / 100, batch[1]), batch_idx)

        with pytest.warns(UserWarning, match="Training has not called `Past`"):
            monitored(tmp_path, Past, loader(X, Y))
        with pytest.raises(MisconfigurationException, match="values of mean"):
            monitored(tmp_path, Late, loader(X, Y))

    def test_the_first_layer_is_seen_where_the_network_is_called_by_another_name(self, tmp_path):
        class Backbone(nn.Sequential):
            def features(self, x):
                return self[0](x)

        class Other(Classifier):
            def __init__(self):
                super().__init__()
                self.net = Backbone(*self.net)

            def training_step(self, batch, batch_idx):
                return self.net.features(batch[0] / 100).square().sum()

        with pytest.raises(MisconfigurationException, match="values of mean"):
            monitored(tmp_path, Other, loader(X, Y))
