"""Stopping a training, and keeping the right checkpoint, without validation data."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn
from torch import Tensor

from bu_torch._printing import cleaned
from bu_torch.boundary import Perturbation
from bu_torch.callbacks._arguments import Reference, choice, flag, integer, number
from bu_torch.callbacks._companions import KeeperMixin, MemoryKeeperMixin, StopperMixin, install
from bu_torch.callbacks._lightning import FITTING, MisconfigurationException, library_of
from bu_torch.callbacks.monitor import BoundaryUncertaintyMonitor, told
from bu_torch.checkpoints import why_unreadable
from bu_torch.selection import DEFAULT_RULE, RuleName, SelectionRule

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

_SHARDED = ("FSDPStrategy", "ModelParallelStrategy", "DeepSpeedStrategy", "XLAFSDPStrategy")


class BoundaryUncertaintyStopping(BoundaryUncertaintyMonitor):
    """Stop a training when its decision boundary gets no better, and keep the best epoch, without validation data.

    `Trainer(callbacks=[BoundaryUncertaintyStopping()])` is all there is to it. The callback measures what
    `BoundaryUncertaintyMonitor` measures; by default the kept epoch is the one with the largest expected accuracy at
    the moved samples (`rule`), and training stops after `patience` checks without a larger one. However training
    ends (patience, `max_epochs`, `max_time`, Ctrl-C) the module then holds the weights of the kept epoch and a
    checkpoint of it lies on disk; after any other exception the weights stay as they are and a line says where the
    checkpoint is.

    Stopping and saving are Lightning's: private subclasses of `EarlyStopping` and `ModelCheckpoint` are put behind
    this callback in `trainer.callbacks` when a fit begins. The checkpoint is the trainer's first, so
    `ckpt_path="best"` means it. With `Trainer(enable_checkpointing=False)` the best weights are kept in memory and
    `best_model_path` is empty.

    Args:
        patience: Stop after so many checks in a row without improvement, >= 1.
        min_delta: An improvement must exceed the best by more than this to reset the patience, >= 0. With
            `rule="consensus"` it is in standard deviations, and a smaller improvement does not replace the kept epoch
            either; with the other rules the kept epoch is the largest value all the same.
        min_delta_mode: `"abs"`, or `"rel"` for a fraction of the magnitude of the best, not with `rule="consensus"`.
        stopping_threshold: Stop as soon as the rule's quantity exceeds this, with `rule="consensus"` as soon as
            `boundary_uncertainty` does; None for never.
        check_finite: Stop when the rule's quantity is NaN or infinite. Such a check never is the best.
        start_from_epoch: Checks in earlier epochs are measured and logged but count neither for the patience nor as
            best, >= 0.
        every_n_epochs: Check in every n-th epoch, >= 1. The patience counts checks.
        restore_best_weights: Load the kept epoch's weights into the module when training ends.
        smoothing: Weight of the past in an exponential moving average of what the rule looks at, 0 <= smoothing < 1, as
            in TensorBoard (corrected for the start); 0 is off. The smoothed value decides and is logged as
            `<quantity>_smoothed` beside the raw one.
        rule: `"expected_accuracy"`, `"boundary_uncertainty"` or `"trust_score"`: the epoch with the largest value is
            kept. What is expected at a moved sample are the class probabilities of `Signals.probabilities`, computed
            once from the training labels: votes of the nearest samples, mixed with a kernel regression on all. The
            expected accuracy is the mean probability of the predicted class.
            `"consensus"` reads four things at the moved samples: agreement with the label (`label_agreement`), with
            the votes of the labels nearby (`vote_agreement`) and with the nearest classes (`neighbor_agreement`), and
            steadiness of the predictions since the last check (minus `prediction_changes`). Each is compared with the
            kept epoch, in units of its standard deviation over all checks so far. Where the mean of these four
            differences exceeds `min_delta`, this epoch replaces the kept one; the number of replacements is what
            `best_score` counts and `patience` waits for.
        n_neighbors: As for `BoundaryUncertaintyMonitor`.
        n_draws: As for `BoundaryUncertaintyMonitor`.
        max_samples: As for `BoundaryUncertaintyMonitor`.
        budget: As for `BoundaryUncertaintyMonitor`.
        reference: As for `BoundaryUncertaintyMonitor`.
        input_key: As for `BoundaryUncertaintyMonitor`.
        label_key: As for `BoundaryUncertaintyMonitor`.
        seed: As for `BoundaryUncertaintyMonitor`.
        cache: As for `BoundaryUncertaintyMonitor`.
        feature_extractor: As for `BoundaryUncertaintyMonitor`.
        n_components: As for `BoundaryUncertaintyMonitor`.
        perturbation: As for `BoundaryUncertaintyMonitor`.

    Attributes:
        best_epoch: The kept epoch (`trainer.current_epoch`, 0-based, equal to `checkpoint["epoch"]`); None before the
            first finite check that counts.
        best_score: The rule's quantity, smoothed if `smoothing` is on, in the kept epoch; None likewise.
        best_model_path: Checkpoint of the kept epoch; "" if none was written.
        stopped_epoch: Epoch in which this callback stopped the training; None if it did not.
        stopping_reason: Why the training ended, in words; "" while it runs.
        history: As for `BoundaryUncertaintyMonitor`, with `replacements` for `rule="consensus"`, and with
            `<quantity>_smoothed` if `smoothing` is on.
        record_path: As for `BoundaryUncertaintyMonitor`.

    Raises:
        MisconfigurationException: On arguments out of range; at the start of training where samples cannot be found or
            are not fit for the method.
    """

    stopping_reason: str
    is_comparable: bool  # whether scores of the checkpoint that this run resumes from are on this run's scale
    _stopper: StopperMixin | None
    _keeper: KeeperMixin | MemoryKeeperMixin | None

    def __init__(
        self,
        *,
        patience: int = 20,
        min_delta: float = 0.0,
        min_delta_mode: Literal["abs", "rel"] = "abs",
        stopping_threshold: float | None = None,
        check_finite: bool = True,
        start_from_epoch: int = 0,
        every_n_epochs: int = 1,
        restore_best_weights: bool = True,
        smoothing: float = 0.0,
        rule: RuleName = DEFAULT_RULE,
        n_neighbors: int = 40,
        n_draws: int | None = None,
        max_samples: int | None = None,
        budget: float | None = 0.15,
        reference: Reference | None = None,
        input_key: str | int | None = None,
        label_key: str | int | None = None,
        seed: int = 0,
        cache: str | Path | None = None,
        feature_extractor: Callable[[Tensor], Any] | None = None,
        n_components: int | None = None,
        perturbation: Perturbation | None = None,
    ) -> None:
        self.patience = integer("patience", patience, 1)
        self.min_delta = number("min_delta", min_delta, 0)
        self.min_delta_mode = choice("min_delta_mode", min_delta_mode, ("abs", "rel"))
        self.stopping_threshold = (
            None if stopping_threshold is None else number("stopping_threshold", stopping_threshold)
        )
        self.check_finite = flag("check_finite", check_finite)
        self.start_from_epoch = integer("start_from_epoch", start_from_epoch, 0)
        self.restore_best_weights = flag("restore_best_weights", restore_best_weights)
        self.smoothing = number("smoothing", smoothing, 0, below=1)
        self.rule = choice("rule", rule, get_args(RuleName))
        if rule == "consensus" and min_delta_mode != "abs":
            raise MisconfigurationException(
                "`min_delta_mode='rel'` applies to the value of one quantity, and `rule='consensus'` compares several:"
                " `min_delta` is in standard deviations there."
            )
        self._selection = SelectionRule(
            rule, min_delta=self.min_delta, smoothing=self.smoothing, start_from_epoch=self.start_from_epoch
        )
        super().__init__(
            n_neighbors=n_neighbors,
            n_draws=n_draws,
            every_n_epochs=every_n_epochs,
            max_samples=max_samples,
            budget=budget,
            reference=reference,
            input_key=input_key,
            label_key=label_key,
            seed=seed,
            cache=cache,
            feature_extractor=feature_extractor,
            n_components=n_components,
            perturbation=perturbation,
        )

    @property
    def state_key(self) -> str:
        return self._generate_state_key(rule=self.rule)

    @property
    def best_epoch(self) -> int | None:
        kept = self._kept()
        return None if kept is None else kept["epoch"]

    @property
    def best_score(self) -> float | None:
        kept = self._kept()
        return None if kept is None else kept[self._selection.score_name]

    @property
    def best_model_path(self) -> str:
        return "" if self._keeper is None else self._keeper.best_model_path

    @property
    def stopped_epoch(self) -> int | None:
        return self._stopper.stopped_epoch if self._stopper is not None and self._stopper.has_stopped else None

    def setup(self, trainer: "Trainer", pl_module: "LightningModule", stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if stage == FITTING:
            if self.restore_best_weights and any(
                isinstance(c, library_of(trainer).stochastic_weight_averaging) for c in trainer.callbacks
            ):
                rank_zero_warn(
                    "StochasticWeightAveraging puts its average into the model when training ends, and the weights of"
                    " the kept epoch are put back over it: `restore_best_weights=False` leaves the average."
                )
            restoring = [c for c in trainer.callbacks if isinstance(c, type(self)) and c.restore_best_weights]
            if len(restoring) > 1 and self is restoring[0]:
                rank_zero_warn(
                    f"{len(restoring)} callbacks put the weights of the epoch they keep back into the module when"
                    " training ends, and the first one's checkpoint is `ckpt_path='best'`: `restore_best_weights=False`"
                    " for all but one."
                )
            self._stopper, self._keeper = install(trainer, self)
            for companion in (self._stopper, self._keeper):
                companion.setup(trainer, pl_module, stage)

    def on_fit_end(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """Nothing yet: `conclude` comes when all other callbacks have ended."""

    def on_exception(self, trainer: "Trainer", pl_module: "LightningModule", exception: BaseException) -> None:
        """Likewise."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "settings": self._settings()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        settings = {"rule": self.rule, **state_dict.get("settings", self._settings())}
        changed = {name: value for name, value in self._settings().items() if value != settings.get(name)}
        self.is_comparable = True
        if changed:
            self._compare_nothing_before()
            was = ", ".join(f"{name}={settings.get(name)!r}" for name in changed)
            now = ", ".join(f"{name}={value!r}" for name, value in changed.items())
            rank_zero_warn(
                f"The run resumes with {now} where it had {was}: its scores cannot be compared with those before, so"
                " patience and the best epoch start anew."
            )

    def _begin_anew(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        super()._begin_anew(trainer, pl_module)
        rank_zero_warn("Patience and the best epoch start anew.")
        self._stopper, self._keeper = install(trainer, self)
        for companion in (self._stopper, self._keeper):
            companion.setup(trainer, pl_module, FITTING)
            companion.on_train_start(trainer, pl_module)

    def _compare_nothing_before(self) -> None:
        super()._compare_nothing_before()
        self.is_comparable = False

    def score_of(self, epoch: int) -> float | None:
        """What decides in `epoch`, if its check was the last and counts; else None."""
        if not self.history or self.history[-1]["epoch"] != epoch:
            return None
        return self._selection.score(self.history[-1])

    def passes_threshold(self, epoch: int) -> bool:
        """Whether the check of `epoch`, if it counts, exceeds `stopping_threshold`."""
        if self.stopping_threshold is None or self.score_of(epoch) is None:
            return False
        return self.history[-1][self._selection.shown_name] > self.stopping_threshold

    def conclude(self, trainer: "Trainer", exception: BaseException | None = None) -> None:
        """Restore the kept epoch, and say in a line what was kept and why training ended."""
        if trainer.state.fn != FITTING or trainer.fast_dev_run:
            return
        self.stopping_reason = self._reason(trainer, exception)
        self._end(
            self.stopping_reason,
            kept_epoch=self.best_epoch,
            stopped_epoch=self.stopped_epoch,
            best_model_path=self.best_model_path,
        )
        kept = self._kept()
        if kept is None:
            if trainer.current_epoch:
                rank_zero_info(f"Boundary uncertainty kept no epoch: {self._why_none()}. {self.stopping_reason}")
            return
        is_graceful = exception is None or isinstance(exception, KeyboardInterrupt)
        is_restored = is_graceful and self.restore_best_weights and self._restore(trainer)
        where = f", its checkpoint is {self.best_model_path}" if self.best_model_path else ""
        shown = self._selection.shown_name
        rank_zero_info(
            f"Boundary uncertainty kept epoch {kept['epoch']} ({shown} {kept[shown]:.4f}):"
            f" its weights are {'' if is_restored else 'not '}in the model"
            f"{where}. {self.stopping_reason} {self._cost()}"
        )

    def _clear(self) -> None:
        super()._clear()
        self.stopping_reason = ""
        self.is_comparable = True
        self._stopper = None
        self._keeper = None

    def _settings(self) -> dict[str, Any]:
        """What a score depends on; the patience and the like may change from run to run."""
        names = (
            "rule",
            "smoothing",
            "start_from_epoch",
            "n_neighbors",
            "n_draws",
            "max_samples",
            "budget",
            "seed",
            "n_components",
        )
        return {name: getattr(self, name) for name in names}

    def _record(self, entry: dict[str, Any]) -> None:
        super()._record(entry)
        self._selection.complete(self._comparable())

    def _names(self) -> list[str]:
        return [*super()._names(), *self._selection.added]

    def _comparable(self) -> list[dict[str, Any]]:
        return self.history[min(self._n_before, len(self.history) - 1) :]  # the last may be an epoch ended again

    def _kept(self) -> dict[str, Any] | None:
        """The entry of `history` that the keeper holds: the first with the best score."""
        if self._keeper is None or self._keeper.best_model_score is None:
            return None
        best = float(self._keeper.best_model_score)
        counted = (entry for entry in self._comparable() if entry["epoch"] >= self.start_from_epoch)
        return next((entry for entry in counted if entry.get(self._selection.score_name) == best), None)

    def _why_none(self) -> str:
        if not self.history:
            return f"no check was made (`every_n_epochs={self.every_n_epochs}`)"
        if all(entry["epoch"] < self.start_from_epoch for entry in self._comparable()):
            return f"all checks were of epochs before `start_from_epoch={self.start_from_epoch}`"
        return "no finite check counted"

    def _restore(self, trainer: "Trainer") -> bool:
        module = trainer.lightning_module
        if type(trainer.strategy).__name__ in _SHARDED:
            rank_zero_warn(
                f"{type(trainer.strategy).__name__} shards the weights, which are not put back into such a module: the"
                f" kept epoch is in {self.best_model_path}."
            )
            return False
        if isinstance(self._keeper, MemoryKeeperMixin):
            module.load_state_dict(self._keeper.best_weights, strict=module.strict_loading)
            return True
        try:
            if self._keeper is not None and self._keeper.is_best_own:
                self._load_best(trainer, weights_only=False)  # it may hold hyperparameters of any class
                return True
            return self._restore_from_others(trainer)
        except FileNotFoundError:
            rank_zero_warn(f"The checkpoint of the kept epoch is gone: {self.best_model_path}.")
            return False

    def _restore_from_others(self, trainer: "Trainer") -> bool:
        """Load a checkpoint that another process wrote: nothing in it may run, and it may not end the fit."""
        module = trainer.lightning_module
        before = {name: copy.deepcopy(value) for name, value in module.state_dict().items()}
        try:
            self._load_best(trainer, weights_only=True)
        except FileNotFoundError:
            raise
        except Exception as error:  # what a damaged or crafted file raises is not documented
            module.load_state_dict(before, strict=False)
            rank_zero_warn(
                f"The weights stay as they are: the checkpoint of the kept epoch, {cleaned(self.best_model_path)}, was"
                f" not written by this process and cannot be read as plain data: {cleaned(why_unreadable(error))}. If"
                " you trust the file, read it by `torch.load(path, weights_only=False)`, or allow its classes before"
                " the next `fit` by `torch.serialization.add_safe_globals`."
            )
            return False
        return True

    def _load_best(self, trainer: "Trainer", *, weights_only: bool) -> None:
        module = trainer.lightning_module
        checkpoint = trainer.strategy.load_checkpoint(self.best_model_path, weights_only=weights_only)
        module.on_load_checkpoint(checkpoint)
        trainer.strategy.load_model_state_dict(checkpoint, strict=module.strict_loading)

    def _reason(self, trainer: "Trainer", exception: BaseException | None) -> str:
        if exception is not None:
            return told(exception)
        if self._stopper is not None and self._stopper.has_stopped:
            return self._own_reason(self._stopper)
        for callback in trainer.callbacks:
            if (
                isinstance(callback, library_of(trainer).timer)
                and (left := callback.time_remaining()) is not None
                and left <= 0
            ):
                return "Training ran until `max_time`."
        if trainer.limit_train_batches == 0:
            return "There was no training batch."
        if trainer.max_epochs not in (None, -1) and trainer.current_epoch >= trainer.max_epochs:
            return f"Training ran until `max_epochs={trainer.max_epochs}`."
        if trainer.max_steps != -1 and trainer.global_step >= trainer.max_steps:
            return f"Training ran until `max_steps={trainer.max_steps}`."
        return "Training was stopped from elsewhere (`trainer.should_stop`)."

    def _own_reason(self, stopper: StopperMixin) -> str:
        start = f"Stopped in epoch {stopper.stopped_epoch}: {self._selection.shown_name}"
        reasons = type(stopper.stopping_reason)
        if stopper.stopping_reason == reasons.NON_FINITE_METRIC:
            return f"{start} is not finite ({self.history[-1][self._selection.shown_name]})."
        if stopper.stopping_reason == reasons.STOPPING_THRESHOLD:
            return f"{start} exceeds the stopping threshold {self.stopping_threshold}."
        checks = f"in the last {stopper.wait_count} checks"
        if self.every_n_epochs > 1:
            checks += f" ({stopper.wait_count * self.every_n_epochs} epochs)"
        if self.rule == "consensus":
            return f"Stopped in epoch {stopper.stopped_epoch}: no epoch was better than the kept one {checks}."
        return f"{start} did not improve {checks}."
