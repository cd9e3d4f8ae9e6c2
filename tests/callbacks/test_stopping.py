"""Scripted trainings: where each stops, what it keeps and why, as Lightning's own pair does, in one piece or in two."""

import math
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback, LambdaCallback, ModelCheckpoint
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from problems import Classifier, Plain, Weights, blobs, cut, fit, fit_again, loader, same, scripted, trainer, weights_of
from readable import Stream
from scenarios import TwoOptimizers, normed
from torch.utils.data import DataLoader, TensorDataset

from bu_torch import BoundaryUncertaintyStopping, ParzenUncertainty
from bu_torch.report import read_record

NAN = math.nan


class Validated(Plain):
    def validation_step(self, batch, batch_idx):
        self.log("val_loss", torch.nn.functional.cross_entropy(self(batch[0]), batch[1]))

    def val_dataloader(self):
        return loader(*blobs(seed=1))

    def predict_step(self, batch, batch_idx):
        return self(batch[0])


@dataclass(frozen=True)
class Row:
    """Scores of the checks, and what becomes of the training: steps of kept check and end; four are an epoch."""

    script: list[float]
    best: int
    end: int
    reason: str = "given did not improve"
    settings: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    checks: tuple[int, ...] = ()  # their steps, if they are not the ends of the epochs
    module: Any = Plain

    def stopping(self):
        return scripted(self.script, **{"patience": 9, **self.settings})

    def fit(self, folder, *callbacks, **options):
        options = {"module": self.module, "max_epochs": 6, **self.options, **options}
        return fit_again(folder, *callbacks, **options)


TO_THE_END = "Training ran to its end."
AT_ONCE, PATIENT = {"patience": 1}, {"patience": 3}
BY_STEPS = {"every_n_train_steps": 1, "patience": 50}
TWO = {"max_epochs": 2}
ROWS = {
    "patience": Row([0.2] + [0.4] * 4, 8, 20, "in epoch 4: given did not improve in the last 3 checks.", PATIENT),
    "no patience": Row([0.1, 0.5, 0.9, 0.9, 1.0], 12, 16, settings={"patience": 0}),
    "not finite": Row([0.5, 0.6, NAN, 0.9], 8, 12, "not finite"),
    "to the end": Row([0.1, 0.3, 0.2, 0.4, 0.3], 16, 24, TO_THE_END),
    "min_delta": Row([0.5, 0.55, 0.6, 0.62], 12, 12, settings={"patience": 2, "min_delta": 0.2}),
    "min_steps within an epoch": Row([0.9, 0.1], 4, 12, settings=AT_ONCE, options={"min_steps": 10}),
    "min_steps at its end": Row([0.9, 0.1], 4, 12, settings=AT_ONCE, options={"min_steps": 12}),
    "min_epochs": Row([0.9, 0.1], 4, 16, settings=AT_ONCE, options={"min_epochs": 4}),
    "recovers before min_steps": Row([0.5, 0.1, 0.9, 0.1], 12, 16, settings=AT_ONCE, options={"min_steps": 12}),
    "recovers before min_epochs": Row([0.1, NAN, 0.2], 12, 24, TO_THE_END, options={"min_epochs": 4}),
    "every second epoch": Row(
        [0.5, 0.5], 8, 24, "given", AT_ONCE | {"every_n_epochs": 2}, {"min_steps": 20}, (8, 16, 24)
    ),
    "each step": Row([0.1, 0.3, 0.2, 0.9, 0.5], 4, 8, TO_THE_END, BY_STEPS, TWO, tuple(range(1, 9))),
    "steps across epochs": Row(
        [0.1, 0.9], 6, 8, TO_THE_END, {"every_n_train_steps": 3}, TWO, (3, 6)
    ),
    "steps of three batches": Row(
        [0.1, 0.9], 4, 4, TO_THE_END, {"every_n_train_steps": 2}, TWO | {"accumulate_grad_batches": 3}, (2, 4)
    ),
    "steps of two optimisers": Row(
        [0.1, 0.9, 0.5], 6, 8, TO_THE_END, {"every_n_train_steps": 3}, {"max_epochs": 1}, (4, 6),
        module=lambda: TwoOptimizers(normed()),
    ),
    **{
        f"validated, {name}": Row([0.5, 0.9, 0.1], 8, 12, "given", AT_ONCE, when, module=Validated)
        for name, when in (
            ("within epochs", {"val_check_interval": 0.5}),
            ("across epochs", {"val_check_interval": 3, "check_val_every_n_epoch": None}),
        )
    },
    "patience of steps": Row(
        [0.1, 0.5, 0.4], 4, 10, "did not improve", PATIENT | {"every_n_train_steps": 2}, {}, (2, 4, 6, 8, 10)
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:The dirpath has changed", "ignore:Checkpoint directory")
@pytest.mark.parametrize("row", ROWS.values(), ids=list(ROWS))
def test_it_stops_keeps_and_puts_back_as_scripted_also_when_cut_anywhere_and_resumed(tmp_path, row):
    own, look, user = row.stopping(), Weights(), tmp_path / "user"
    each = ModelCheckpoint(user, filename="{step}", save_top_k=-1, save_on_train_epoch_end=True)
    module, made = row.fit(tmp_path / "whole", own, look, each)
    assert (own.best_step, made.global_step) == (row.best, row.end)
    checks = [entry["step"] for entry in own.history]
    assert checks == list(row.checks or range(4, row.end + 1, 4))
    assert own.best_score == own.history[checks.index(row.best)]["given"] == row.script[checks.index(row.best)]
    assert own.best_epoch == own.history[checks.index(row.best)]["epoch"]
    assert row.reason in own.stopping_reason
    is_stopped = row.reason != TO_THE_END
    assert own.stopped_epoch == (made.current_epoch - 1 if is_stopped else None)
    assert (made.should_stop, made.state.finished) == (is_stopped, True)
    assert same(module.state_dict(), look.of_step[row.best])
    saved = torch.load(own.best_model_path, weights_only=True)
    assert (saved["epoch"], saved["global_step"]) == (own.best_epoch, row.best)
    assert same(saved["state_dict"], module.state_dict())
    assert [*tmp_path.rglob("boundary-*.ckpt")] == [Path(own.best_model_path)]
    record = read_record(own.record_path)
    assert record.values("given") == pytest.approx([entry["given"] for entry in own.history], nan_ok=True)
    paths = {*user.iterdir()}
    assert len(paths) == made.current_epoch
    for path in paths - {user / f"step={row.end}.ckpt"}:
        resumed = row.stopping()
        again, _ = row.fit(tmp_path / path.stem, resumed, ckpt_path=path)
        assert len(resumed.history) == len(own.history)
        for one, other in zip(resumed.history, own.history, strict=True):
            assert one == pytest.approx(other, rel=0, abs=0, nan_ok=True)
        for name in ("best_step", "stopped_epoch", "stopping_reason"):
            assert getattr(resumed, name) == getattr(own, name), (name, path.name)
        assert same(again.state_dict(), module.state_dict())
        assert read_record(resumed.record_path).places == record.places


@pytest.mark.parametrize("again", ["last", "best"])
def test_a_run_that_is_over_trains_and_saves_nothing_more(tmp_path, again):
    def times():
        return {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}

    first, second, module, look = scripted(), scripted(), Classifier(), Weights()
    path = cut(tmp_path, first, look, max_epochs=3)
    path, n_epochs = (path, 3) if again == "last" else (first.best_model_path, 2)
    before = times()
    made = fit(tmp_path, second, module=module, ckpt_path=path, max_epochs=n_epochs)
    assert (made.current_epoch, made.global_step, len(second.history)) == (n_epochs, 4 * n_epochs, n_epochs)
    assert times() == before
    assert (second.best_epoch, second.best_model_path) == (1, first.best_model_path)
    assert same(module.state_dict(), look.of_epoch[1])


# The kept weights are back however training ends, and the reason is said.


@pytest.mark.parametrize(
    ("settings", "options", "data"),
    [
        ({"every_n_epochs": 5}, {"max_epochs": 4}, None),
        ({"every_n_train_steps": 50}, {"max_epochs": -1, "max_steps": 7}, None),
        ({"every_n_train_steps": 50}, {"max_epochs": -1, "max_steps": 7}, DataLoader(Stream(), 30)),
    ],
)
def test_no_check(tmp_path, log, settings, options, data):
    own, module, look = scripted(**settings), Classifier(), Weights()
    fit(tmp_path, own, look, module=module, data=data, **options)
    assert (own.best_epoch, own.best_step, own.best_score, own.best_model_path) == (None, None, None, "")
    assert same(module.state_dict(), look.at_end)
    assert "no check was made" in log.text


@pytest.mark.parametrize("how", ["file", "memory", "late"])
def test_which_hook_sees_the_kept_weights(tmp_path, how):
    """The module's `on_train_end`, which may export it, and all `on_fit_end`; others may save the last before."""
    seen, module, look = {}, Classifier(), Weights()
    module.on_train_end = lambda: seen.update(module=weights_of(module))
    watch = LambdaCallback(
        on_train_end=lambda t, m: seen.update(callback=weights_of(m)),
        on_fit_end=lambda t, m: seen.update(fit_end=weights_of(m)),
    )
    last = {"file": [ModelCheckpoint(tmp_path / "user", save_last=True)]}.get(how, [])
    options = {"memory": {"enable_checkpointing": False}, "late": {"plugins": [AsyncCheckpointIO()]}}.get(how, {})
    fit(tmp_path, scripted(), look, watch, *last, module=module, **options)
    assert same(seen["callback"], look.at_end)
    assert same(seen["module"], look.of_epoch[1])
    assert same(seen["fit_end"], look.of_epoch[1])
    for one in last:
        assert same(torch.load(one.last_model_path, weights_only=True)["state_dict"], look.at_end)


def test_fast_dev_run_neither_stops_nor_saves_nor_minds_a_small_batch(tmp_path):
    data = DataLoader(TensorDataset(*blobs()), 8)
    for own in (scripted([NAN]), BoundaryUncertaintyStopping()):
        made = fit(tmp_path, own, data=data, fast_dev_run=1)
        assert (len(own.history), own.stopped_epoch, own.best_epoch, own.best_model_path) == (1, None, None, "")
    assert not list(tmp_path.rglob("*.ckpt"))
    with pytest.raises(ValueError, match="fast_dev_run"):
        made.test(Classifier(), loader(*blobs()), ckpt_path="best")


HOOKS = ("on_train_batch_end", "on_validation_end", "on_train_epoch_end", "on_train_end", "on_fit_end")


@pytest.mark.parametrize("kind", [Validated, Callback])
@pytest.mark.parametrize("hook", HOOKS)
def test_wherever_an_exception_comes_from_the_best_epoch_is_on_disk(tmp_path, monkeypatch, kind, hook):
    def trouble(*args, **kwargs):
        if not made.sanity_checking and made.current_epoch >= 2:
            raise RuntimeError("trouble")

    failing, own, look, module = Callback(), scripted(), Weights(), Validated()
    monkeypatch.setattr(module if kind is Validated else failing, hook, trouble)
    made = trainer(tmp_path, own, look, failing)
    with pytest.raises(RuntimeError, match="trouble"):
        made.fit(module, loader(*blobs()))
    assert own.best_epoch == 1
    checkpoint = torch.load(own.best_model_path, weights_only=True)
    assert checkpoint["epoch"] == 1
    assert same(checkpoint["state_dict"], look.of_epoch[1])
    assert list(tmp_path.rglob("boundary-*.ckpt")) == [Path(own.best_model_path)]
    # The module's `on_train_end` comes after all callbacks': by then the training has ended as it should.
    has_ended = hook == "on_fit_end" or (kind, hook) == (Validated, "on_train_end")
    assert ("RuntimeError: trouble" in own.stopping_reason) != has_ended


@pytest.mark.parametrize("ended", ["", "by itself", "by Ctrl-C"])
def test_tests_and_predictions_change_nothing(tmp_path, ended):
    def interrupt(trainer, pl_module):
        if trainer.current_epoch == 2 and ended == "by Ctrl-C":
            raise KeyboardInterrupt

    own, module, data = scripted(), Validated(), loader(*blobs())
    made = trainer(tmp_path, own, LambdaCallback(on_train_epoch_end=interrupt))
    with pytest.raises(SystemExit) if ended == "by Ctrl-C" else nullcontext():
        made.fit(module, data) if ended else None
    names = ("history", "best_epoch", "best_model_path", "stopping_reason", "summary")

    def state():
        results = [getattr(own, name) for name in names]
        return str(results), made.callbacks, [*tmp_path.rglob("*.*")], made.global_step

    before, weights = state(), weights_of(module)
    for path in ("best", None) if ended else (None,):
        for run in (made.validate, made.test):
            run(module, data, ckpt_path=path, verbose=False)
        made.predict(module, data, ckpt_path=path)
    assert state() == before
    assert same(module.state_dict(), weights)


def test_as_published_the_largest_uncertainty_of_all_samples_and_of_the_weights_as_they_are_is_kept(tmp_path):
    own = BoundaryUncertaintyStopping.as_published(restore_best_weights=False, n_neighbors=20)
    expected, uncertainty = [], ParzenUncertainty(20, pairs_at="sample").fit(*blobs())
    score = LambdaCallback(on_train_epoch_end=lambda _, module: expected.append(float(uncertainty.score(module))))
    fit(tmp_path, own, score, max_epochs=4)
    values = [entry["parzen_uncertainty"] for entry in own.history]
    assert values == expected
    assert own.best_epoch == values.index(max(values))
    assert own.stopped_epoch is None
