"""Where a training stops, what is kept and put back, beside which others; the example in the docstring runs."""

import doctest
import math
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, LambdaCallback, ModelCheckpoint, StochasticWeightAveraging
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from problems import Classifier, Gain, Weights, blobs, fit, loader, same, scripted, trainer, weights_of
from torch.utils.data import DataLoader, TensorDataset

import bu_torch
from bu_torch import ParzenUncertainty
from bu_torch.callbacks import BoundaryUncertaintyStopping
from bu_torch.report import read_record

NAN = math.nan


def run(folder, script, *callbacks, max_epochs=10, module=None, ckpt_path=None, trainer_kwargs=None, **kwargs):
    """Train with a script; the stopping callback, the module and the weights by epoch."""
    stopping, module, weights = scripted(script, **kwargs), module or Classifier(), Weights()
    options = {"max_epochs": max_epochs, "ckpt_path": ckpt_path, **(trainer_kwargs or {})}
    stopping.trainer = fit(folder, stopping, weights, *callbacks, module=module, **options)
    return stopping, module, weights.of_epoch


def epochs(stopping):
    return [entry["epoch"] for entry in stopping.history]


def test_a_run_that_resumes_with_other_settings_says_that_it_begins_anew(tmp_path):
    last = ModelCheckpoint(tmp_path / "user", save_last=True)
    run(tmp_path, [0.9, 0.1], last, max_epochs=2)
    options = {"max_epochs": 4, "ckpt_path": last.last_model_path, "class_weight": {0: 2.0}}
    with pytest.warns(UserWarning, match="with class_weight='{0: 2.0}' instead of class_weight=None: .* start anew"):
        stopping, _, _ = run(tmp_path, [0.2, 0.3], **options)
    assert (stopping.best_epoch, stopping.best_score, epochs(stopping)) == (3, 0.3, [0, 1, 2, 3])


def test_accuracy_uncertainty_trust_of_averages_are_the_default(tmp_path, log):
    stopping = BoundaryUncertaintyStopping(n_neighbors=20)
    fit(tmp_path, stopping, data=loader(*blobs(n=140, seed=6)), max_epochs=200)
    values = [entry["accuracy_uncertainty_trust"] for entry in stopping.history]
    assert (stopping.settings.rule, stopping.settings.averaging) == ("accuracy_uncertainty_trust", 0.7)
    assert (stopping.best_epoch, stopping.best_score) == (values.index(max(values)), max(values))
    assert stopping.stopped_epoch == stopping.best_epoch + 20
    assert f"kept epoch {stopping.best_epoch} (accuracy, uncertainty and trust: {stopping.best_score:.4f}):" in log.text
    assert "accuracy, uncertainty and trust did not improve in the last 20 checks" in stopping.stopping_reason
    summary = stopping.summary
    assert summary["kept_epoch"] == stopping.best_epoch
    assert (summary["score"], summary["reason"]) == (stopping.best_score, stopping.stopping_reason)
    assert (summary["word"], summary["n_checks"]) == ("plateau", len(values))
    assert "checks score about as high." in log.text


def test_two_rules_of_one_name_are_refused(tmp_path):
    with pytest.raises(RuntimeError, match="more than one stateful callback"):
        trainer(tmp_path, *(BoundaryUncertaintyStopping(rule=Gain()) for _ in range(2)))


class TestEnds:
    """The kept weights are back however training ends, and the reason is said."""

    script = (0.1, 0.9, 0.3, 0.2)

    def test_a_kept_check_that_is_the_last_is_told(self, tmp_path, log):
        run(tmp_path, self.script[:2], max_epochs=2)
        assert any(
            ". The kept check is the last: train longer. bu-torch took at least" in line for line in log.messages
        )

    def test_no_check(self, tmp_path, log):
        with pytest.warns(UserWarning, match="No check is made in 4 epochs with `every_n_epochs=5`"):
            stopping, module, weights = run(tmp_path, self.script, every_n_epochs=5, max_epochs=4)
        assert (stopping.best_epoch, stopping.best_score, stopping.best_model_path) == (None, None, "")
        assert same(module.state_dict(), weights[3])
        assert "kept no epoch: no check was made (`every_n_epochs=5`). Training ran" in log.text

    @pytest.mark.parametrize("how", ["file", "memory", "late"])
    def test_which_hook_sees_the_kept_weights(self, tmp_path, how):
        """The module's `on_train_end`, which may export it, and all `on_fit_end`; others may save the last before."""
        seen = {}

        class Seeing(Classifier):
            def on_train_end(self):
                seen["module"] = weights_of(self)

        look = LambdaCallback(
            on_train_end=lambda t, m: seen.update(callback=weights_of(m)),
            on_fit_end=lambda t, m: seen.update(fit_end=weights_of(m)),
        )
        last = {"file": [ModelCheckpoint(tmp_path / "user", save_last=True)]}.get(how, [])
        options = {"memory": {"enable_checkpointing": False}, "late": {"plugins": [AsyncCheckpointIO()]}}.get(how, {})
        kwargs = {"max_epochs": 4, "module": Seeing(), "trainer_kwargs": options}
        _, module, weights = run(tmp_path, self.script, look, *last, **kwargs)
        assert same(seen["callback"], weights[3])
        assert same(seen["module"], weights[3 if how == "late" else 1])
        assert same(module.state_dict(), weights[1])
        assert how == "late" or same(seen["fit_end"], weights[1])
        for one in last:
            assert same(torch.load(one.last_model_path, weights_only=True)["state_dict"], weights[3])

    def test_fast_dev_run_neither_stops_nor_saves(self, tmp_path):
        stopping, _, _ = run(tmp_path, [NAN], trainer_kwargs={"fast_dev_run": 3})
        assert len(stopping.history) == 1
        assert (stopping.best_epoch, stopping.stopped_epoch, stopping.best_model_path) == (None, None, "")
        assert not list(tmp_path.rglob("*.ckpt"))
        with pytest.raises(ValueError, match="with `fast_dev_run=True`"):
            stopping.trainer.test(Classifier(), loader(*blobs()), ckpt_path="best")

    def test_fast_dev_run_of_a_small_batch_in_order_is_no_reason_to_refuse(self, tmp_path):
        stopping = BoundaryUncertaintyStopping()
        trainer(tmp_path, stopping, fast_dev_run=1).fit(Classifier(), DataLoader(TensorDataset(*blobs()), 8))
        assert len(stopping.history) == 1


class TestResume:
    """A run cut in two is the run in one piece."""

    def test_without_checkpoints_one_saved_by_hand_carries_the_weights_on(self, tmp_path):
        script, kwargs = (0.1, 0.9, 0.3, 0.2), {"trainer_kwargs": {"enable_checkpointing": False}}
        save = LambdaCallback(on_train_end=lambda t, m: t.save_checkpoint(tmp_path / "hand.ckpt"))
        _, _, weights = run(tmp_path, script, save, max_epochs=3, **kwargs)
        resumed, module, _ = run(tmp_path, script, max_epochs=5, ckpt_path=tmp_path / "hand.ckpt", **kwargs)
        assert resumed.best_epoch == 1
        assert same(module.state_dict(), weights[1])

    def test_what_was_not_compared_stays_so_when_the_run_resumes_again(self, tmp_path):
        script, ends = (0.8, 0.9, 0.1), iter((2, 4, 6))  # which begins again with other settings
        path = tmp_path / "user" / "last.ckpt"

        def go_on(**kwargs):
            last = ModelCheckpoint(tmp_path / "user", save_last=True, enable_version_counter=False)
            return run(tmp_path, script, last, max_epochs=next(ends), **kwargs)[0]

        go_on()
        with pytest.warns(UserWarning, match="resumes with seed=5"):
            assert go_on(ckpt_path=path, seed=5).best_epoch == 3
        again = go_on(ckpt_path=path, seed=5)
        assert again.best_epoch == 3
        assert read_record(again.record_path).n_not_compared == 2


class TestBesideOthers:
    @pytest.mark.parametrize("ours_first", [True, False])
    def test_a_module_that_brings_an_early_stopping(self, tmp_path, ours_first):
        class Bringing(Classifier):
            def configure_callbacks(self):
                return [EarlyStopping(monitor="trust_score", mode="max", patience=30)]

        stopping, module = scripted([0.9, 0.1], patience=2), Bringing()
        others = [LambdaCallback(), ModelCheckpoint(tmp_path / "user")]
        fitted = trainer(tmp_path, *([stopping, *others] if ours_first else [*others, stopping]), max_epochs=10)
        for _ in self.three_fits(fitted, module):
            assert (stopping.best_epoch, stopping.stopped_epoch) == (0, 2)

    def three_fits(self, fitted, module):
        for _ in range(3):
            fitted.should_stop = False
            fitted.fit_loop.epoch_progress.reset()
            yield fitted.fit(module, loader(*blobs()))

    def test_a_module_that_brings_ours_anew_each_fit(self, tmp_path):
        class Bringing(Classifier):
            def configure_callbacks(self):
                self.stopping = scripted([0.9, 0.1], patience=2)
                return [self.stopping]

        module, setups, lengths = Bringing(), [], set()
        look = LambdaCallback(setup=lambda trainer, pl_module, stage: setups.append(stage))
        fitted = trainer(tmp_path, look, max_epochs=10)
        for _ in self.three_fits(fitted, module):
            assert (module.stopping.best_epoch, module.stopping.stopped_epoch) == (0, 2)
            assert fitted.checkpoint_callback.best_model_path == module.stopping.best_model_path
            lengths.add(len(fitted.callbacks))
        assert len(lengths) == 1
        assert setups == ["fit"] * 3

    def test_every_other_callback_is_set_up_once_and_companions_stand_right_behind(self, tmp_path):
        setups = []

        def look(name):
            return LambdaCallback(setup=lambda trainer, pl_module, stage: setups.append(name))

        mine = ModelCheckpoint(tmp_path / "user")
        fitted = trainer(tmp_path, look("a"), scripted([0.9, 0.1]), look("b"), look("c"), mine, max_epochs=1)
        for _ in range(2):
            fitted.fit_loop.epoch_progress.reset()
            fitted.fit(Classifier(), loader(*blobs()))
        assert setups == ["a", "b", "c"] * 2
        names = [type(callback).__name__ for callback in fitted.callbacks]
        assert (names[1:3], names[-1]) == (["BoundaryUncertaintyStopping", "FileKeeper"], "Ending")

    def test_stochastic_weight_averaging_is_warned_of(self, tmp_path):
        with pytest.warns(UserWarning, match="`restore_best_weights=False` leaves the average"):
            run(tmp_path, [0.9, 0.1], StochasticWeightAveraging(swa_lrs=0.1, swa_epoch_start=1), max_epochs=3)

    def test_module_hooks_see_the_restored_checkpoint_and_hyperparameters_may_be_of_any_class(self, tmp_path):
        class Hooked(Classifier):
            def __init__(self, anything=None):
                super().__init__()
                self.save_hyperparameters()

            def on_save_checkpoint(self, checkpoint):
                checkpoint["extra"] = self.current_epoch

            def on_load_checkpoint(self, checkpoint):
                self.extra = checkpoint["extra"]

        stopping, module, _ = run(tmp_path, [0.1, 0.9, 0.2], max_epochs=3, module=Hooked(Path("x")))
        assert stopping.best_epoch == module.extra == 1


def test_as_published_the_largest_uncertainty_of_all_samples_and_of_the_weights_as_they_are_is_kept(tmp_path):
    stopping = BoundaryUncertaintyStopping.as_published(restore_best_weights=False, n_neighbors=20)
    expected, uncertainty = [], ParzenUncertainty(20, pairs_at="sample").fit(*blobs())
    score = LambdaCallback(on_train_epoch_end=lambda _, module: expected.append(float(uncertainty.score(module))))
    fit(tmp_path, stopping, score, max_epochs=4)
    values = [entry["parzen_uncertainty"] for entry in stopping.history]
    assert values == expected
    assert stopping.best_epoch == values.index(max(values))
    assert stopping.settings.patience > 10**9
    assert BoundaryUncertaintyStopping.as_published(n_draws=3).settings.n_draws == 3


@pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers")
def test_the_example_of_the_callback_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (example,) = doctest.DocTestFinder(recurse=False).find(bu_torch.BoundaryUncertaintyStopping)
    assert len(example.examples) > 5
    assert doctest.DocTestRunner().run(example) == (0, len(example.examples))
    assert list(tmp_path.iterdir()) == []
