"""Beside callbacks that a user has too: what each sees, in which order, and whose names are whose."""

import pytest
import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.callbacks import (
    EarlyStopping,
    EMAWeightAveraging,
    LambdaCallback,
    ModelCheckpoint,
    StochasticWeightAveraging,
)
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from problems import Classifier, Given, Plain, blobs, cut, fit, fit_again, loader, same, scripted, trainer

from bu_torch import BoundaryUncertaintyMonitor, BoundaryUncertaintyStopper, BoundaryUncertaintyStopping
from bu_torch.callbacks import fit as fit_module
from bu_torch.report import read_record
from bu_torch.run import timing as record_module
from bu_torch.run import tracker as tracker_module


class TestEarlyStoppingOfTheUsers:
    def users(self, **kwargs):
        return EarlyStopping(monitor="trust_score", mode="max", **{"patience": 9, **kwargs})

    @pytest.mark.parametrize("place", ["before", "after", "behind the checkpoints"])
    def test_it_is_the_trainer_s_early_stopping_callback(self, tmp_path, place):
        own, users = scripted(), [self.users(), EarlyStopping(monitor="expected_accuracy", mode="max")]
        made = trainer(tmp_path, *([*users, own] if place == "before" else [own]), ModelCheckpoint(tmp_path / "user"))
        assert made.early_stopping_callback is (users[0] if place == "before" else None)
        made.callbacks += {"before": [], "behind the checkpoints": users}.get(place, [])
        if place == "after":
            made.callbacks[1:1] = users
        made.fit(Classifier(), loader(*blobs()))
        assert made.early_stopping_callbacks == users
        assert made.checkpoint_callback.best_model_path == own.best_model_path
        assert type(made.callbacks[-1]).__name__ == "Ending"

    def test_our_file_holds_its_state_of_the_same_epoch(self, tmp_path):
        own = scripted([0.9, 0.1, 0.95])
        fit(tmp_path, own, EarlyStopping(monitor="prediction_changes", mode="max", strict=False), self.users())
        states = torch.load(own.best_model_path, weights_only=True)["callbacks"]
        (users,) = [state for key, state in states.items() if "EarlyStopping" in key and "trust_score" in key]
        assert users["best_score"] == pytest.approx(max(entry["trust_score"] for entry in own.history))


class TestLeastSteps:
    """`min_steps` and `min_epochs` end where Lightning's own `EarlyStopping` ends; an epoch has 4 steps."""

    @pytest.mark.parametrize(("steps", "epochs"), [(None, None), (9, None), (10, None), (12, None), (14, 2), (None, 4)])
    def test_it_stops_at_the_step_where_lightning_does(self, tmp_path, steps, epochs):
        own, options = scripted([0.9, 0.1], patience=1), {"max_epochs": 8, "min_steps": steps, "min_epochs": epochs}
        lightnings = EarlyStopping(monitor="given", mode="max", patience=1)
        theirs = fit(tmp_path / "theirs", scripted([0.9, 0.1], patience=99), lightnings, **options)
        made = fit(tmp_path, own, **options)
        assert (made.global_step, own.stopped_epoch) == (theirs.global_step, lightnings.stopped_epoch)
        assert own.stopping_reason.startswith(f"Stopped in epoch {own.stopped_epoch}: given did not")

    @pytest.mark.parametrize(
        ("script", "every", "steps", "expected"),
        [
            pytest.param([0.5, 0.1, 0.9, 0.1], 1, 12, (16, 3, 2), id="not at a score that has recovered by then"),
            pytest.param([0.5, 0.5, 0.5, 0.1], 2, 20, (20, 4, 1), id="there too where no check is made"),
        ],
    )
    def test_it_stops(self, tmp_path, script, every, steps, expected):
        own = scripted(script, patience=1, every_n_epochs=every)
        made = fit(tmp_path, own, max_epochs=20, min_steps=steps)
        assert (made.global_step, own.stopped_epoch, own.best_epoch) == expected

    def test_a_run_that_resumes_stops_at_the_same_step(self, tmp_path):
        last, resumed = ModelCheckpoint(tmp_path / "user", save_last=True), scripted([0.9, 0.1], patience=1)
        fit(tmp_path, scripted([0.9, 0.1], patience=1), last, max_epochs=2, min_steps=10)
        made = fit(tmp_path, resumed, max_epochs=8, min_steps=10, ckpt_path=last.last_model_path)
        assert (made.global_step, resumed.stopped_epoch) == (10, 2)


class Clock:
    """Time that passes only where the test says so."""

    now = 0.0

    def perf_counter(self):
        return self.now


def test_neither_the_preparation_nor_the_trial_of_the_network_counts_as_training(tmp_path, monkeypatch, log):
    clock = Clock()
    for module in (fit_module, record_module, tracker_module):
        monkeypatch.setattr(module, "time", clock)

    class Slow(Classifier):
        def training_step(self, batch, batch_idx):
            clock.now += 2.5
            return super().training_step(batch, batch_idx)

        def forward(self, x):
            clock.now += 0 if self.training else 5.0
            return super().forward(x)

    def extract(inputs):
        clock.now += 100.0
        return inputs

    own = scripted(feature_extractor=extract)
    fit(tmp_path, own, module=Slow(), max_epochs=2)
    assert own.setup_seconds >= 105.0
    assert " on top of 20.0 s of training" in log.text
    assert read_record(own.record_path).values("seconds")[-1] == own.check_seconds + 20.0


def real(**kwargs):
    return BoundaryUncertaintyStopping(n_neighbors=20, n_draws=1, **kwargs)


# Options of an average, and how many epochs end before its first update.
AVERAGES = {
    "each step": ({}, 0),
    "steps from the tenth": ({"update_starting_at_step": 10}, 2),
    "epochs": ({"update_every_n_steps": 0, "update_starting_at_epoch": 0}, 0),
    "epochs from the third": ({"update_every_n_steps": 0, "update_starting_at_epoch": 2}, 2),
}


class TestWeightAveraging:
    def averaging(self, which):
        return EMAWeightAveraging(decay=0.5, **AVERAGES[which][0])

    @pytest.mark.parametrize(("which", "checkpoints"), list(zip(AVERAGES, (True, False, False, True), strict=True)))
    def test_the_order_in_the_list_does_not_matter_and_what_was_measured_is_kept(self, tmp_path, which, checkpoints):
        found = []
        for is_first in (True, False):
            own, averaging, of_epoch = real(), self.averaging(which), {}

            def look(trainer, pl_module, averaging=averaging, of_epoch=of_epoch):
                average = averaging._average_model.module.state_dict()
                of_epoch[trainer.current_epoch] = {name: value.clone() for name, value in average.items()}

            order = [own, averaging] if is_first else [averaging, own]
            after = LambdaCallback(on_train_epoch_end=look)
            module, _ = fit_again(tmp_path / str(is_first), *order, after, enable_checkpointing=checkpoints)
            assert same(module.state_dict(), of_epoch[own.best_epoch])
            found.append((own.history, own.best_epoch, module.state_dict()))
        (history, best, weights), (other_history, other_best, other_weights) = found
        assert (history, best) == (other_history, other_best)
        assert same(weights, other_weights)

    @pytest.mark.parametrize("which", list(AVERAGES))
    def test_nothing_counts_before_the_first_update(self, tmp_path, which, log):
        _, first = AVERAGES[which]
        falling = [1 - 0.1 * epoch for epoch in range(9)]  # the network before training is the best of all
        own = real(rule=Given(falling), patience=2, averaging=None)
        fit_again(tmp_path, self.averaging(which), own, max_epochs=9)
        assert (own.best_epoch, own.stopped_epoch) == (first, first + 2)
        record = read_record(own.record_path)
        assert record.n_not_compared == first
        assert record.kept == first
        assert ("before its first update do not count" in log.text) == (first > 0)

    def test_an_average_that_is_never_updated_keeps_nothing(self, tmp_path, log):
        own, averaging = real(), EMAWeightAveraging(update_starting_at_step=10_000)
        fit_again(tmp_path, averaging, own, max_epochs=2)
        assert (own.best_epoch, own.best_model_path, len(own.history)) == (None, "", 2)
        assert "kept no epoch: no check counted: the average of WeightAveraging was not updated" in log.text

    def test_the_last_average_of_stochastic_weight_averaging_is_not_measured(self, tmp_path):
        """It is put into the module when training ends; until then the module itself is measured and kept."""
        found = []
        for is_first in (True, False):
            own, averaging = real(restore_best_weights=False), StochasticWeightAveraging(swa_lrs=0.1, swa_epoch_start=2)
            fit_again(tmp_path / str(is_first), *([own, averaging] if is_first else [averaging, own]))
            module = Plain()
            module.load_state_dict(torch.load(own.best_model_path, weights_only=True)["state_dict"])
            again = BoundaryUncertaintyStopper(*blobs(), n_neighbors=20, n_draws=1, averaging=None)
            again.check(module)
            expected = own.history[own.best_epoch]["expected_accuracy"]
            assert again.history[0]["expected_accuracy"] == pytest.approx(expected, abs=1e-6)
            found.append(own.history)
        assert found[0] == found[1]


class TestChecksInSomeEpochs:
    """Lightning keeps a logged value until the next; who monitors ours must not count it twice."""

    @pytest.mark.parametrize(("grows", "n_checks"), [(True, 8), (False, 4)])
    def test_patience_of_a_users_early_stopping_counts_checks(self, tmp_path, grows, n_checks):
        own = scripted([check / 100 if grows else 0.5 for check in range(8)], every_n_epochs=2)
        users = EarlyStopping(monitor="given", mode="max", patience=3, strict=False)
        made = fit(tmp_path, own, users, max_epochs=16)
        assert (made.current_epoch, len(own.history)) == (2 * n_checks, n_checks)
        assert users.wait_count == (0 if grows else 3)

    def test_a_fit_that_ends_between_checks_still_has_the_last_values(self, tmp_path):
        made = fit(tmp_path, scripted([0.2, 0.4], every_n_epochs=2), max_epochs=5)
        assert float(made.callback_metrics["given"]) == pytest.approx(0.4)

    @pytest.mark.parametrize(("every", "expected"), [(1, [0.1, 0.2, 0.3, 0.4]), (2, [0.2, 0.4])])
    def test_a_plateau_scheduler_of_that_frequency_sees_each_check_once(self, tmp_path, every, expected):
        seen = []

        class Plateau(torch.optim.lr_scheduler.ReduceLROnPlateau):
            def step(self, metrics, epoch=None):
                seen.append(float(metrics))
                super().step(metrics)

        class Scheduled(Classifier):
            def configure_optimizers(self):
                optimizer = super().configure_optimizers()
                scheduler = Plateau(optimizer, mode="max", patience=0, threshold=10.0)
                how = {"scheduler": scheduler, "monitor": "given", "frequency": every}
                return {"optimizer": optimizer, "lr_scheduler": how}

        monitor = scripted(expected, every_n_epochs=every)
        made = fit(tmp_path, monitor, module=Scheduled(), max_epochs=4)
        assert seen == pytest.approx(expected)
        assert made.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.05 * 0.1 ** (len(expected) - 1))


@pytest.mark.parametrize(
    ("place", "expected"), [("before", [None, 0.1, 0.9]), ("after", [0.1, 0.9, 0.5]), ("module", [0.1, 0.9, 0.5])]
)
def test_who_comes_after_sees_the_value_of_this_epoch_as_the_docs_say(tmp_path, place, expected):
    seen = []

    def look(trainer, pl_module):
        value = trainer.callback_metrics.get("given")
        seen.append(None if value is None else round(float(value), 3))

    class Looking(Classifier):
        def on_train_epoch_end(self):
            if place == "module":
                look(self.trainer, self)

    own, users = scripted(), LambdaCallback(on_train_epoch_end=look)
    fit(tmp_path, *{"before": [users, own], "after": [own, users], "module": [own]}[place], module=Looking())
    assert seen == expected


@pytest.mark.parametrize("second", [BoundaryUncertaintyMonitor, BoundaryUncertaintyStopping])
def test_a_second_callback_in_one_trainer_is_refused(tmp_path, second):
    # Lightning itself refuses two of one type.
    with pytest.raises(
        (MisconfigurationException, RuntimeError), match=r"must hold one callback|more than one stateful"
    ):
        fit(tmp_path, BoundaryUncertaintyStopping(), second())


def test_one_may_be_held_by_a_callback_of_the_user_s(tmp_path):
    class Holding(LambdaCallback):
        def __init__(self, own):
            super().__init__(on_train_start=own.on_train_start, on_train_epoch_end=own.on_train_epoch_end)
            self.setup = own.setup

    own = BoundaryUncertaintyMonitor(n_neighbors=20, n_draws=1)
    seen = fit(tmp_path, Holding(own), max_epochs=1).callback_metrics
    assert float(seen["trust_score"]) == pytest.approx(own.history[0]["trust_score"], rel=1e-6)


@pytest.mark.filterwarnings("ignore:(The run|Patience)")
def test_a_run_that_resumes_with_another_setting_finds_its_state(tmp_path):
    path, again = cut(tmp_path, scripted((0.9, 0.1))), scripted((0.9, 0.1), perturbation="neighbors")
    fit(tmp_path, again, max_epochs=3, ckpt_path=path)
    assert [check["epoch"] for check in again.history] == [0, 1, 2]


class TestFiles:
    """Beside the checkpoint that Lightning adds where the user has made none."""

    def test_a_second_fit_is_as_good_as_the_first_though_that_failed(self, tmp_path):
        class Failing(Classifier):
            def on_train_epoch_start(self):
                if self.trainer.current_epoch == 1:
                    raise ValueError("boom")

        own = scripted()
        made = trainer(tmp_path, own, max_epochs=2)
        with pytest.raises(ValueError, match="boom"):
            made.fit(Failing(), loader(*blobs()))
        made.fit_loop.max_epochs = 4
        for n_epochs in (4, 5):
            made.fit(Classifier(), loader(*blobs()))
            made.fit_loop.max_epochs += 1
            assert [entry["epoch"] for entry in own.history] == ([1, 2, 3] if n_epochs == 4 else [4])
            assert own.history[0]["given"] == 0.1  # the rule has no memory
            assert torch.load(own.best_model_path, weights_only=True)["epoch"] == own.best_epoch

    @pytest.mark.parametrize(("users", "n_written"), [([], 6), ([{"save_top_k": 0}], 3), ([{"every_n_epochs": 3}], 4)])
    def test_how_many_files_are_written(self, tmp_path, users, n_written):
        """Three epochs that each improve; `docs/lightning.md` says why Lightning's own goes on."""
        written = []

        class Counting(TorchCheckpointIO):
            def save_checkpoint(self, checkpoint, path, storage_options=None):
                written.append(path)
                super().save_checkpoint(checkpoint, path, storage_options)

        fit(tmp_path, scripted((0.1, 0.2, 0.3)), *(ModelCheckpoint(**one) for one in users), plugins=[Counting()])
        assert len(written) == n_written
