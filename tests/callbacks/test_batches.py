"""What the network gets in training is what is measured: batch hooks, samplers, units, odd outputs and labels."""

import copy
import inspect
import pickle
import re
import warnings

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from problems import Classifier, blobs, loader, trainer
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset, WeightedRandomSampler, default_collate

from bu_torch import BoundaryUncertaintyStopper, Signals
from bu_torch.callbacks import BoundaryUncertaintyMonitor, BoundaryUncertaintyStopping
from bu_torch.callbacks.watch import Witness, difference

X, Y = blobs()
BYTES = (X * 25 + 128).clamp(0, 255).byte()
SCALED = BYTES.float() / 255
FEW = {"n_neighbors": 10, "n_draws": 1}


def fit(folder, module, data, *callbacks, max_epochs=1, seed=3, datamodule=None, **kwargs):
    """A short training that begins with the same weights each time."""
    pl.seed_everything(seed, verbose=False)
    module = module()
    trainer(folder, *callbacks, max_epochs=max_epochs, **kwargs).fit(module, data, datamodule=datamodule)
    return module


def monitored(folder, module, data, *callbacks, max_epochs=1, datamodule=None, settings=None, **kwargs):
    monitor = BoundaryUncertaintyMonitor(**FEW, **(settings or {}))
    return monitor, fit(
        folder, module, data, monitor, *callbacks, max_epochs=max_epochs, datamodule=datamodule, **kwargs
    )


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
    def __init__(self, **kwargs):
        super().__init__()
        self.kwargs = kwargs

    def train_dataloader(self):
        return loader(BYTES, Y, **self.kwargs)

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return batch[0].float() / 255, batch[1]


class TestHooks:
    @pytest.mark.parametrize("module", [Before, After, Transfer])
    @pytest.mark.parametrize("settings", [{}, {"max_samples": 50}], ids=["all", "some"])
    def test_that_scale_are_as_data_that_is_scaled(self, tmp_path, module, settings):
        scaled, _ = monitored(tmp_path, Classifier, loader(SCALED, Y), max_epochs=2, settings=settings)
        hooked, _ = monitored(tmp_path, module, loader(BYTES, Y), max_epochs=2, settings=settings)
        assert_same_history(hooked, scaled)

    def test_of_a_datamodule_too(self, tmp_path):
        scaled, _ = monitored(tmp_path, Classifier, loader(SCALED, Y), max_epochs=2)
        hooked, _ = monitored(tmp_path, Classifier, None, datamodule=DataModule(), max_epochs=2)
        assert_same_history(hooked, scaled)

    def test_of_an_instance_too(self, tmp_path):
        def module():
            made = Classifier()
            made.on_after_batch_transfer = lambda batch, dataloader_idx: (batch[0].float() / 255, batch[1])
            return made

        scaled, _ = monitored(tmp_path, Classifier, loader(SCALED, Y))
        hooked, _ = monitored(tmp_path, module, loader(BYTES, Y))
        assert_same_history(hooked, scaled)

    def test_are_called_once_for_each_batch_that_is_read_and_never_in_a_check(self, tmp_path):
        calls = []

        class Counting(Classifier):
            def on_after_batch_transfer(self, batch, dataloader_idx):
                calls.append(len(batch[0]))
                return batch

        fit(tmp_path, Counting, loader(X, Y), max_epochs=2)
        n_training, calls[:] = len(calls), []
        monitored(tmp_path, Counting, loader(X, Y), max_epochs=2)
        assert len(calls) - n_training == 6
        assert calls[:6] == [30] * 4 + [30, 2]  # before the first step; 32 samples once more, to see if they differ

    def test_leave_no_trace(self, tmp_path):
        """Buffers that a hook changes, and random numbers that it draws."""

        class Noisy(Classifier):
            def __init__(self):
                super().__init__()
                self.register_buffer("seen", torch.zeros(()))
                self.register_buffer("mean", torch.zeros(4))

            def on_after_batch_transfer(self, batch, dataloader_idx):
                self.seen += len(batch[0])
                self.mean = 0.9 * self.mean + 0.1 * batch[0].mean(dim=0)
                return batch[0] + 0.1 * torch.randn_like(batch[0]) - self.mean, batch[1]

        sampler = WeightedRandomSampler(1.0 + torch.arange(120.0), 120)
        data = DataLoader(TensorDataset(X, Y), batch_size=30, sampler=sampler)
        alone = fit(tmp_path, Noisy, data, max_epochs=2)
        monitor, beside = monitored(tmp_path, Noisy, data, max_epochs=2)
        assert len(monitor.history) == 2
        assert float(alone.seen) == 240
        states = alone.state_dict(), beside.state_dict()
        assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
        assert len(monitor.history) == 2

    def test_that_raise_are_named(self, tmp_path):
        class Broken(Classifier):
            def on_after_batch_transfer(self, batch, dataloader_idx):
                raise KeyError("a fault of the user's")

        with pytest.raises(KeyError, match="a fault of the user's"):
            monitored(tmp_path, Broken, loader(X, Y))

    def test_reference_pairs_do_not_pass_them_and_datasets_do(self, tmp_path):
        scaled, _ = monitored(tmp_path, Classifier, loader(SCALED, Y))
        for reference in ((SCALED, Y), TensorDataset(BYTES, Y)):
            found, _ = monitored(tmp_path, After, loader(BYTES, Y), settings={"reference": reference})
            assert_same_history(found, scaled)


# What the network gets.


class Stepped(Classifier):
    """Prepares its inputs in `training_step`."""

    def prepare(self, x, y):
        return (x,)

    def call(self, *args, **kwargs):
        return self(*args, **kwargs)

    def training_step(self, batch, batch_idx):
        x, y = batch
        prepared = self.prepare(x, y)
        logits = self.call(**prepared) if isinstance(prepared, dict) else self.call(*prepared)
        return nn.functional.cross_entropy(logits[: len(y)], y)

    def forward(self, x, y=None, attention_mask=None, rate=None):
        return super().forward(x.float())


def mixed(x, y):
    return (0.7 * x + 0.3 * x.flip(0),)


def pasted(x, y):
    """As CutMix: some features are those of another sample."""
    x = x.clone()
    x[:, :2] = x.flip(0)[:, :2]
    return (x,)


FINE = {
    "as they are": lambda x, y: (x,),
    "noise": lambda x, y: (x + 0.3 * torch.randn_like(x),),
    "mixup": mixed,
    "CutMix": pasted,
    "another order": lambda x, y: (x.flip(0).flip(0),),
    "flipped": lambda x, y: (x.flip(1),),
    "dropout": lambda x, y: (nn.functional.dropout(x, 0.1),),
    "another shape": lambda x, y: (x.view(-1, 2, 2),),
    "two views": lambda x, y: (torch.cat((x, x + 0.1 * torch.randn_like(x))),),
    "labels too": lambda x, y: (x, y),
    "labels by name": lambda x, y: {"y": y, "x": x},
    "a rate": lambda x, y: {"x": x, "rate": torch.tensor(0.5)},
    "float64": lambda x, y: (x.double(),),
    "changed in place": lambda x, y: (x.mul_(1.1),),
}
REFUSED = {
    "divided": (lambda x, y: (x / 255,), "values of mean .* in place of"),
    "standardised": (lambda x, y: ((x - 20) * 3,), "values of mean .* and standard deviation"),
    "divided in place": (lambda x, y: (x.div_(255),), "values of mean"),
    "longer": (lambda x, y: (nn.functional.pad(x, (0, 2)),), r"shape \(30, 6\) in place of \(30, 4\)"),
    "a mask": (
        lambda x, y: {"x": x, "attention_mask": torch.ones(len(x), 4)},
        r"2 tensors \(x, attention_mask\), of which a check has one.*torch.stack\(\(input_ids, attention_mask\)",
    ),
}


class TestWitness:
    @pytest.mark.parametrize("prepare", list(FINE.values()), ids=list(FINE))
    def test_what_keeps_the_units_is_fine(self, tmp_path, prepare):
        class Fine(Stepped):
            def forward(self, x, *args, **kwargs):
                return super().forward(x.reshape(len(x), 4), *args, **kwargs)

            def training_step(self, batch, batch_idx):
                return super().training_step([part.clone() for part in batch], batch_idx)

        Fine.prepare = staticmethod(prepare)
        monitor, module = monitored(tmp_path, Fine, loader(X, Y))
        assert len(monitor.history) == 1
        assert not any(part._forward_pre_hooks for part in module.modules())

    @pytest.mark.parametrize("through", ["the module", "its network"])
    @pytest.mark.parametrize(("prepare", "message"), list(REFUSED.values()), ids=list(REFUSED))
    def test_other_units_are_refused_after_the_first_batch(self, tmp_path, through, prepare, message):
        if through == "its network" and message in (REFUSED["a mask"][1], REFUSED["longer"][1]):
            pytest.skip("a network of four inputs takes no others")

        class Refused(Stepped):
            def forward(self, x, *args, **kwargs):
                return super().forward(x[:, :4], *args, **kwargs)

            def call(self, *args, **kwargs):
                return self(*args, **kwargs) if through == "the module" else self.net(*args)

        Refused.prepare = staticmethod(prepare)
        with pytest.raises(MisconfigurationException, match=message) as raised:
            monitored(tmp_path, Refused, loader(X * 20 + 100, Y))
        assert str(raised.value).startswith("In training the network gets other inputs than batches hold: ")

    def test_a_reference_is_taken_as_it_is(self, tmp_path):
        class Divided(Stepped):
            def prepare(self, x, y):
                return (x / 255,)

        monitor, _ = monitored(tmp_path, Divided, loader(BYTES, Y), settings={"reference": (SCALED, Y)})
        assert len(monitor.history) == 1

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
        probe = LambdaCallback(
            on_train_epoch_end=lambda trainer, module: seen.append(any(p._forward_pre_hooks for p in module.modules()))
        )
        made = []

        def module():
            made.append(Broken())
            return made[0]

        for callback in (BoundaryUncertaintyMonitor(**FEW), BoundaryUncertaintyStopping(**FEW)):
            made.clear()
            if fault in ("while it trains", "in the units"):
                with pytest.raises((KeyError, MisconfigurationException)):
                    fit(tmp_path, module, loader(X * 20 + 100, Y), callback, probe)
            else:
                fit(tmp_path, module, loader(X * 20 + 100, Y), callback, probe)
            assert not any(part._forward_pre_hooks for part in made[0].modules())
        assert not any(seen)

    def test_training_is_the_same_to_the_bit(self, tmp_path):
        class Random(Stepped):
            def prepare(self, x, y):
                return (x + 0.1 * torch.randn_like(x),)

        alone = fit(tmp_path, Random, loader(X, Y), max_epochs=2).state_dict()
        monitor, module = monitored(tmp_path, Random, loader(X, Y), max_epochs=2)
        assert all(torch.equal(alone[name], value) for name, value in module.state_dict().items())
        assert len(monitor.history) == 2

    def test_what_is_compiled_is_not_watched(self):
        assert Witness.can_watch(Classifier())
        scripted, compiled, within, by_itself = Classifier(), Classifier(), Classifier(), Classifier()
        scripted.net = torch.jit.script(scripted.net)
        compiled._compiler_ctx = {"compiler": "dynamo"}  # as Lightning marks it
        within.net = torch.compile(within.net)
        by_itself.net[0].compile()
        for module in (scripted, compiled, within, by_itself):
            assert not Witness.can_watch(module)

    def test_a_call_without_tensors_is_none(self):
        """As DistributedDataParallel calls the module with the arguments of `training_step`."""
        module = nn.Linear(4, 3)
        witness = Witness(module)
        witness.rehearse(lambda: module(X), Y)
        witness.watch()
        for hook in list(module._forward_pre_hooks.values()):
            hook(module, ([X, Y], 0), {})
        module(X / 255)
        witness.leave()
        assert "values of mean" in witness.objection()
        assert not module._forward_pre_hooks

    def test_what_is_not_called_is_not_judged(self):
        module = Classifier()
        witness = Witness(module)
        assert witness.objection() == ""
        witness.rehearse(lambda: module(X), Y)
        assert witness.objection() == ""


G = torch.Generator().manual_seed(0)
A = torch.randn(40, 6, generator=G) * 2 + 3
LABELS = torch.arange(40) % 3
ALIKE = {
    "the same": {0: A},
    "by name": {"x": A},
    "rounded": {0: A.bfloat16()},
    "reshaped": {0: A.view(40, 2, 3)},
    "others of the kind": {0: torch.randn(64, 6, generator=G) * 2 + 3},
    "noisy": {0: A + torch.randn(40, 6, generator=G)},
    "mixed in the batch": {0: (A + A.roll(1, 0)) / 2},
    "averaged over the batch": {0: A.mean(dim=0).expand(40, 6)},
    "a little wider": {0: (A.flip(1) - A.mean()) * 1.5 + A.mean()},
    "with its labels": {0: A, 1: LABELS},
    "labels first": {"labels": LABELS, "x": A},
    "with a number": {0: A, "rate": torch.tensor(0.1)},
    "nothing": {},
    "labels alone": {0: LABELS},
    "not a number": {0: A * torch.nan},
}
UNLIKE = {
    "divided": ({0: A / 255}, "values of mean 0.0.* and standard deviation 0.00.* in place of"),
    "shifted": ({0: A + 3}, "values of mean 6"),
    "standardised": ({0: (A - A.mean()) / A.std()}, "values of mean -?[0-9.e-]+ and standard deviation 1"),
    "stretched": ({0: (A - A.mean()) * 3 + A.mean()}, "values of mean .* and standard deviation"),
    "narrowed": ({0: (A - A.mean()) / 3 + A.mean()}, "values of mean .* and standard deviation"),
    "constant": ({0: torch.zeros(40, 6)}, "values of mean 0 and standard deviation 0"),
    "wider": ({0: torch.cat((A, A), dim=1)}, r"shape \(40, 12\) in place of \(40, 6\)"),
    "two": ({0: A, "mask": torch.ones(40, 6)}, r"2 tensors \(argument 0, mask\), of which a check has one"),
    "other labels": ({0: A, 1: LABELS + 1}, r"2 tensors \(argument 0, argument 1\)"),
}


@pytest.mark.parametrize("got", list(ALIKE.values()), ids=list(ALIKE))
def test_calls_that_are_alike(got):
    assert difference({0: A}, got, LABELS) == ""


@pytest.mark.parametrize(("got", "message"), list(UNLIKE.values()), ids=list(UNLIKE))
def test_calls_that_are_not(got, message):
    assert re.match(message, difference({0: A}, got, LABELS))


def test_numbers_of_tokens_have_no_units():
    assert difference({0: LABELS}, {0: LABELS * 1000}, None) == ""


# Samplers, classes and labels.


class TestBalance:
    @pytest.mark.parametrize("class_weight", [None, "balanced", {0: 3.0}, [1.0, 2.0, 3.0]])
    def test_a_trainer_measures_what_is_drawn(self, tmp_path, class_weight):
        weights = 1.0 + torch.arange(120.0)
        data = DataLoader(TensorDataset(X, Y), batch_size=30, sampler=WeightedRandomSampler(weights, 120))
        monitor, module = monitored(tmp_path, Classifier, data, settings={"class_weight": class_weight})
        signals = Signals(n_neighbors=10, n_draws=1, seed=0, class_weight=class_weight).fit(X, Y, weights)
        module.eval()
        with torch.no_grad():
            values = signals.measure(module(signals.perturbed_inputs)).values
        for name in Signals.NAMES:
            assert monitor.history[0][name] == pytest.approx(float(values[name]), abs=1e-5), name

    @pytest.mark.parametrize(
        ("sampled", "class_weight", "message"),
        [
            (False, None, r"^Class 1 is 4.2% of what training draws, .*`class_weight='balanced'` counts all classes"),
            (False, "balanced", None),
            (False, {0: 0.1}, None),
            (True, None, "^Samples count as often as the sampler draws them.$"),
            (True, "balanced", None),
            (
                True,
                [1.0, 2.0],
                "^Samples count as often as the sampler draws them, times the weights of their class",
            ),
        ],
    )
    def test_a_rare_class_is_worth_a_word(self, tmp_path, caplog, sampled, class_weight, message):
        labels = (torch.arange(120) % 25 == 0).long()
        sampler = WeightedRandomSampler((1 / torch.bincount(labels).double())[labels], 120) if sampled else None
        data = DataLoader(TensorDataset(X + 10 * labels.unsqueeze(1), labels), batch_size=30, sampler=sampler)
        with caplog.at_level("INFO"):
            monitored(tmp_path, lambda: Classifier(n_outputs=2), data, settings={"class_weight": class_weight})
        said = [line for line in caplog.messages if "training draws" in line or "sampler draws" in line]
        if message is None:
            assert said == []
        else:
            (line,) = said
            assert re.search(message, line)

    def test_class_weights_that_do_not_fit_are_refused_before_it_trains(self, tmp_path):
        with pytest.raises(MisconfigurationException, match="cannot use the training data: `class_weight` must list"):
            monitored(tmp_path, Classifier, loader(X, Y), settings={"class_weight": [1.0, 2.0]})

    @pytest.mark.filterwarnings("ignore:.*exists and is not empty")
    def test_a_resume_with_other_class_weights_starts_patience_anew(self, tmp_path):
        first = BoundaryUncertaintyStopping(**FEW)
        fit(tmp_path, Classifier, loader(X, Y), first, max_epochs=3)
        saved = first.best_model_path
        said = {}
        for class_weight in (None, {0: 2.0}):
            callback = BoundaryUncertaintyStopping(**FEW, class_weight=class_weight, restore_best_weights=False)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                pl.seed_everything(3, verbose=False)
                trainer(tmp_path, callback, max_epochs=4).fit(Classifier(), loader(X, Y), ckpt_path=saved)
            texts = [str(warning.message) for warning in caught]
            said[str(class_weight)] = [text for text in texts if "resumes with" in text]
        assert said["None"] == []
        (line,) = said["{0: 2.0}"]
        assert "The run resumes with class_weight='{0: 2.0}' where it had class_weight=None" in line
        assert "patience and the best epoch start anew" in line

    def test_labels_that_losses_ignore_are_left_out_with_a_word(self, tmp_path):
        is_ignored = torch.arange(120) % 5 == 0
        marked = torch.where(is_ignored, -100, Y)
        with pytest.warns(UserWarning, match="24 samples have the label -100, which torch's losses ignore: they are"):
            monitor, module = monitored(tmp_path, Classifier, loader(X, marked))
        signals = Signals(n_neighbors=10, n_draws=1, seed=0).fit(X[~is_ignored], Y[~is_ignored])
        module.eval()
        with torch.no_grad():
            values = signals.measure(module(signals.perturbed_inputs)).values
        assert monitor.history[0]["expected_accuracy"] == pytest.approx(float(values["expected_accuracy"]), abs=1e-5)


# Outputs, and data of another kind.


class Keyed(Classifier):
    wrap = staticmethod(lambda z: z)

    def forward(self, x):
        return self.wrap(super().forward(x))

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])


class Output:
    def __init__(self, z):
        self.scores = z


class TestOutputKey:
    @pytest.mark.parametrize(
        ("wrap", "key"),
        [
            (lambda z: (z.sum(), z), 1),
            (lambda z: [z.sum(), z], -1),
            (lambda z: {"first": z.sum(), "second": z}, "second"),
            (Output, "scores"),
        ],
        ids=["tuple", "list", "dict", "attribute"],
    )
    def test_names_the_logits(self, tmp_path, wrap, key):
        plain, _ = monitored(tmp_path, Keyed, loader(X, Y))
        keyed, _ = monitored(
            tmp_path,
            type("Wrapped", (Keyed,), {"wrap": staticmethod(wrap)}),
            loader(X, Y),
            settings={"output_key": key},
        )
        assert_same_history(keyed, plain)

    @pytest.mark.parametrize(
        ("key", "message"),
        [
            (None, r"got tuple of 2.* `output_key=` names the logits in a tuple or a dict"),
            (7, r"must give an output with `output_key=7`, got tuple of 2"),
            ("scores", r"must give an output with `output_key='scores'`, got tuple of 2"),
        ],
    )
    def test_that_is_not_there_is_named(self, tmp_path, key, message):
        wrapped = type("Wrapped", (Keyed,), {"wrap": staticmethod(lambda z: (z, "words"))})
        with pytest.raises(MisconfigurationException, match=message):
            monitored(tmp_path, wrapped, loader(X, Y), settings={"output_key": key})


class Pairs(Dataset):
    def __init__(self, inputs, labels):
        self.inputs, self.labels = inputs, labels

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, i):
        return self.inputs[i], self.labels[i]


class Tokens(Classifier):
    def __init__(self):
        super().__init__()
        self.embedding = nn.EmbeddingBag(50, 4)

    def forward(self, x):
        return self.net(self.embedding(x))


class Masked(Classifier):
    def forward(self, x, mask):
        return self.net(x * mask)

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self(batch[0], torch.ones_like(batch[0])), batch[1])


class Regression(Classifier):
    def __init__(self):
        super().__init__(n_outputs=1)


def mixed_up(samples):
    x, y = default_collate(samples)
    one_hot = nn.functional.one_hot(y, 3).float()
    return (x + x.flip(0)) / 2, (one_hot + one_hot.flip(0)) / 2


OTHER_KINDS = {
    "labels that collate_fn mixes": (
        Classifier,
        lambda: DataLoader(Pairs(X, Y), batch_size=30, collate_fn=mixed_up),
        r"`labels`.* If `collate_fn` or a hook mixes samples \(mixup, CutMix\), pass those that are not mixed",
    ),
    "token ids": (
        Tokens,
        lambda: loader((X * 5).long().abs() % 50, Y),
        "token ids cannot be moved along a line, so pass `perturbation='tokens'`, or one of your own",
    ),
    "a forward of two tensors": (Masked, lambda: loader(X, Y), r"A `forward` of several tensors \(`input_ids`"),
    "a regression": (Regression, lambda: loader(X, Y), "gives one column, and the labels have classes.*a regression"),
}


@pytest.mark.parametrize(("module", "data", "message"), list(OTHER_KINDS.values()), ids=list(OTHER_KINDS))
def test_data_of_another_kind_is_refused_with_a_way_out(tmp_path, module, data, message):
    with pytest.raises(MisconfigurationException, match=message):
        monitored(tmp_path, module, data())


# Arguments.


class TestHabits:
    @pytest.mark.parametrize("callback", [BoundaryUncertaintyMonitor, BoundaryUncertaintyStopping])
    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("monitor", "has no `monitor`: "),
            ("mode", "has no `mode`: "),
            ("log_rank_zero_only", "has no `log_rank_zero_only`: with `verbose=True` each process"),
            ("save_top_k", "one checkpoint is kept, the best"),
            ("class_weights", "`class_weight=`"),
        ],
    )
    def test_what_there_is_instead_is_said(self, callback, name, message):
        with pytest.raises(TypeError, match=message) as raised:
            callback(**{name: "val_loss"})
        assert str(raised.value).startswith(callback.__name__)

    def test_the_stopper_that_decides_says_rule_and_the_monitor_another_callback(self):
        with pytest.raises(TypeError, match="`rule=` chooses what decides"):
            BoundaryUncertaintyStopping(monitor="val_loss")
        with pytest.raises(
            TypeError, match=r"`EarlyStopping\(monitor='expected_accuracy', mode='max'\)`|EarlyStopping"
        ):
            BoundaryUncertaintyMonitor(monitor="val_loss")

    @pytest.mark.parametrize("callback", [BoundaryUncertaintyMonitor, BoundaryUncertaintyStopping])
    def test_all_else_is_as_it_was(self, callback):
        parameters = inspect.signature(callback).parameters
        assert {"class_weight", "output_key", "n_neighbors"} <= set(parameters)
        assert not {"monitor", "mode", "args", "kwargs"} & set(parameters)
        with pytest.raises(TypeError, match="unexpected keyword argument 'nothing'"):
            callback(nothing=1)
        assert type("Own", (callback,), {})(n_neighbors=7).n_neighbors == 7

    @pytest.mark.parametrize("callback", [BoundaryUncertaintyMonitor, BoundaryUncertaintyStopping])
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"cache": 3}, "`cache` must be a path, 'auto' or None, got 3"),
            ({"output_key": True}, "`output_key` must be a name, a place or None, got True"),
            ({"class_weight": "equal"}, "`class_weight` must be 'balanced'"),
        ],
    )
    def test_bad_ones_are_refused_by_name(self, callback, arguments, message):
        with pytest.raises(MisconfigurationException, match=message):
            callback(**arguments)

    def test_the_command_line_reads_the_signature(self):
        jsonargparse = pytest.importorskip("jsonargparse")
        parser = jsonargparse.ArgumentParser(exit_on_error=False)
        parser.add_class_arguments(BoundaryUncertaintyStopping, "stopping")
        for given, expected in (("balanced", "balanced"), ('{"0": 2.0}', {0: 2.0}), ("[1.0, 2.0]", [1.0, 2.0])):
            parsed = parser.parse_args([f"--stopping.class_weight={given}", "--stopping.output_key=1"])
            instantiate = getattr(parser, "instantiate", parser.instantiate_classes)  # its name in older versions
            made = instantiate(parsed).stopping
            assert (made.class_weight, made.output_key) in ((expected, 1), (expected, "1"))
        for name in ("monitor", "mode"):
            with pytest.raises(jsonargparse.ArgumentError):
                parser.parse_args([f"--stopping.{name}=val_loss"])


def test_a_loop_and_a_trainer_count_alike(tmp_path):
    weights = 1.0 + torch.arange(120.0)
    data = DataLoader(TensorDataset(X, Y), batch_size=30, sampler=WeightedRandomSampler(weights, 120))
    monitor, module = monitored(tmp_path, Classifier, data, settings={"class_weight": "balanced"})
    stopper = BoundaryUncertaintyStopper(X, Y, sample_weight=weights, class_weight="balanced", **FEW)
    stopper.check(module, 0)
    for name in Signals.NAMES:
        assert stopper.history[0][name] == pytest.approx(monitor.history[0][name], abs=1e-5), name


class TestWhatTrainingDoes:
    """What a check cannot see is told."""

    def test_bytes_that_forward_scales_by_their_type_are_refused(self, tmp_path):
        class OfBytes(Classifier):
            def forward(self, x):
                return super().forward(x.float() / 255 - 0.5 if x.dtype == torch.uint8 else x)

        data = loader((X * 30 + 128).clamp(0, 255).to(torch.uint8), Y)
        with pytest.raises(MisconfigurationException, match="let it scale them as it does bytes"):
            monitored(tmp_path, OfBytes, data)

    @pytest.mark.parametrize("n_skipped", [0, 1])
    def test_a_way_past_forward_is_warned_of_or_seen(self, tmp_path, n_skipped):
        class Past(Classifier):
            def training_step(self, batch, batch_idx):
                if batch_idx < n_skipped:
                    return None
                weight, bias = self.net[0].weight, self.net[0].bias
                return nn.functional.linear(batch[0], weight, bias).square().sum()

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
                hidden = self.net.features(batch[0] / 100)
                return hidden.square().sum()

        with pytest.raises(MisconfigurationException, match="values of mean"):
            monitored(tmp_path, Other, loader(X, Y))

    def test_labels_that_training_changes_are_warned_of(self, tmp_path):
        class Mapped(Classifier):
            def training_step(self, batch, batch_idx):
                return super().training_step((batch[0], (batch[1] + 1) % 3), batch_idx)

        with pytest.warns(UserWarning, match="worse than chance with 3 classes"):
            monitored(tmp_path, Mapped, loader(X, Y), max_epochs=6)


class TestNoObjection:
    @pytest.mark.parametrize(
        "got",
        [
            {0: X, 1: nn.functional.one_hot(Y, 3)},
            {0: X, 1: Y.unsqueeze(1)},
            {0: nn.functional.dropout(X, 0.5)},
            {0: X * (torch.rand_like(X) < 0.5)},
            {0: torch.tensor(3.0), 1: X},
        ],
        ids=["one-hot labels", "a column of labels", "dropout", "masked", "a number first"],
    )
    def test_to_what_is_no_other_input(self, got):
        expected = {0: torch.tensor(3.0), 1: X} if 1 in got and got[1] is X else {0: X}
        assert difference(expected, got, Y) == ""

    def test_a_copy_made_while_training_is_watched_has_no_ears(self):
        module = Classifier()
        witness = Witness(module)
        witness.rehearse(lambda: module(X), Y)
        witness.watch()
        twin = copy.deepcopy(module)
        assert pickle.dumps(module)
        witness.leave()
        twin(X)
        assert not witness.got
