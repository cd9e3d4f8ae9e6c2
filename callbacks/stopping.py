"""Stopping a training, and keeping the right checkpoint, without validation data."""

import secrets
import sys
from pathlib import Path
from typing import Any, Self

from lightning_utilities.core.rank_zero import rank_zero_warn

from bu_torch.callbacks.monitor import BoundaryUncertaintyMonitor, holders_of_weights
from bu_torch.callbacks.trainer import FITTING, FileKeeper, averages_at_the_end, misconfigured, pl, skip_empty_hooks
from bu_torch.callbacks.training_data import Reference
from bu_torch.estimators.space_choice import FeatureExtractor
from bu_torch.internal.inputs import check_flag
from bu_torch.perturbation.draws import Perturbation
from bu_torch.rule.rules import DEFAULT_RULE, Rule, RuleName
from bu_torch.run.history import describe_exception
from bu_torch.run.settings import AVERAGING, Settings
from bu_torch.run.weights import drop_saved, optimizers_in_training
from bu_torch.samples.samples import ClassWeight, InputKey


class BoundaryUncertaintyStopping(BoundaryUncertaintyMonitor):
    """Stop a training when its decision boundary gets no better, and keep the best epoch, without validation data.

    `Trainer(callbacks=[BoundaryUncertaintyStopping()])` is all there is to it. The callback measures what
    `BoundaryUncertaintyMonitor` measures, on a moving average of the weights at the checks (`averaging`). By default
    the score is a weighted mean of expected accuracy, boundary uncertainty and trust at the perturbed samples, each a
    share of what can be reached; on images and texts it is expected accuracy alone (`rule`). With another `metric` it
    is the expected value of that.
    Training stops after `patience` checks without a larger score, and the epoch (with `every_n_train_steps`, the step)
    of the largest is kept. Whether patience, `max_epochs`, `max_time` or Ctrl-C ends training, the module
    then holds the kept average and a checkpoint of it lies on disk, with the weights of training under
    `raw_state_dict`; after any other exception the weights stay as they are and a line says where the checkpoint is.
    They also stay if no check is better than one prediction for all samples.
    Training itself is the same to the bit with and without this callback.

    The callback decides after each check, when an epoch or a batch ends. A private subclass of `ModelCheckpoint` saves:
    it is put behind this callback in `trainer.callbacks` when a fit begins. Its checkpoint is the trainer's first, so
    `ckpt_path="best"` loads it. `Trainer(enable_checkpointing=False)` keeps the best weights in memory.

    Args:
        restore_best_weights: Load the kept epoch's weights into the module when training ends.
        dirpath: Folder of the checkpoint and the record; None for that of `ModelCheckpoint`, within the logger's folder
            or `default_root_dir`.
        filename: Name of the checkpoint, a template as of `ModelCheckpoint`, with the names of `history` and of what
            the module logs: `"{epoch}-{expected_accuracy:.3f}"`. None for `"boundary-{epoch}-{step}"`. Each fit adds a
            token, as in `epoch=3-expected_accuracy=0.912-7f3a2b.ckpt`, so that no two runs write to one file. A
            resumed run does not delete the best file of the run that it resumes.
        save_weights_only: Leave out of the checkpoint the states of optimisers, schedulers and callbacks:
            `fit(ckpt_path=...)` refuses such a file.
        **settings: `bu_torch.run.settings.Settings` explains all but `every_n_epochs`, `every_n_train_steps`,
            `reference`, `input_key` and `label_key`, which `BoundaryUncertaintyMonitor` explains. Its fields are
            attributes, too: what is set there holds from the next fit on.

    Attributes:
        best_epoch: The kept epoch (`trainer.current_epoch`, 0-based, equal to `checkpoint["epoch"]`); None before the
            first finite check that counts.
        best_step: `trainer.global_step` of the kept check, equal to `checkpoint["global_step"]`; None before.
        best_score: The rule's score in the kept epoch; None before.
        best_model_path: Checkpoint of the kept epoch; "" if none was written.
        stopped_epoch: Epoch in which this callback stopped the training; None if it did not.
        stopping_reason: Reason for the end of training, in words; "" while it runs.
        summary: Result as plain data, empty while training runs: what was kept, and whether to trust it; `threshold`
            and the value there if the metric of two classes has one, None if the choice is blind. `word` is `"clear"`,
            `"plateau"`, `"unsure"` or `"blind"` (docs/choosing-checkpoints.md). The numbers behind it are those of
            `bu_torch.run.history.Confidence`, whose values are called `expected_accuracy`, `first_accuracy` and
            `one_class_accuracy`, or the same of the `metric`.
            Word and numbers are None if another rule decides, and after an exception in all processes but the first.
        history: As in `BoundaryUncertaintyMonitor`, and the score of a rule that is not a signal, under its name.
        record_path, setup_seconds, check_seconds: As in `BoundaryUncertaintyMonitor`.

    Raises:
        MisconfigurationException: As in `BoundaryUncertaintyMonitor`.
    """

    def __init__(
        self,
        *,
        patience: int = 20,
        min_delta: float = 0.0,
        start_from_epoch: int = 0,
        rule: RuleName | Rule = DEFAULT_RULE,
        restore_best_weights: bool = True,
        dirpath: str | Path | None = None,
        filename: str | None = None,
        save_weights_only: bool = False,
        verbose: bool = False,
        n_neighbors: int = 40,
        n_draws: int | None = None,
        max_samples: int | None = None,
        seed: int = 0,
        feature_extractor: FeatureExtractor | None = None,
        perturbation: Perturbation | None = None,
        class_weight: ClassWeight | None = None,
        metric: Any = "accuracy",
        averaging: float | None = AVERAGING,
        output_key: str | int | None = None,
        every_n_epochs: int = 1,
        every_n_train_steps: int | None = None,
        reference: Reference | None = None,
        input_key: InputKey = None,
        label_key: str | int | None = None,
    ) -> None:
        self._init(locals())  # sets those that the monitor has, too, and those of `Settings`
        with misconfigured(TypeError, ValueError):
            self.restore_best_weights = check_flag("restore_best_weights", restore_best_weights)
            self.save_weights_only = check_flag("save_weights_only", save_weights_only)
            if not isinstance(dirpath, str | Path | None):
                raise TypeError(f"`dirpath` must be a path or None, got {dirpath!r}.")
            if not isinstance(filename, str | None):
                raise TypeError(f"`filename` must be a str or None, got {filename!r}.")
        self.dirpath, self.filename = dirpath, filename
        self._written: set[str] = set()  # best files of this process, in all fits; keepers add theirs

    @classmethod
    def as_published(cls, **overrides: Any) -> Self:
        """Callback that selects as Ha et al. (2021) do: the largest U by Proposal 2 of the weights as they are.

        It never stops a training: the paper searches all epochs of one. `as_published(patience=20)` stops it. A check
        makes one draw of all training samples, and reads classes i and j of Eq. 27 at the samples themselves, so it
        passes all of them twice. `docs/papers.md` compares the epochs that it keeps with those of the default.
        `overrides` take the place of these arguments.

        Departures are those of `bu_torch.functional.parzen_uncertainty`. Samples move in a random direction; the
        paper's words, "uniform across the features", can be read as `perturbation="uniform"` too (`bu_torch.perturb`).
        They count as often as a sampler draws them, times the weights of their classes in the loss.
        """
        published: dict[str, Any] = {"rule": "parzen_uncertainty", "averaging": None, "n_draws": 1}
        published |= {"max_samples": sys.maxsize, "feature_extractor": "inputs", "perturbation": "random"}
        return cls(**published | {"patience": sys.maxsize} | overrides)

    def _reset(self, settings: Settings) -> None:
        super()._reset(settings)
        self.stopping_reason, self.stopped_epoch = "", None
        self._keeper: FileKeeper | None = None  # None if the trainer writes no files

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if stage != FITTING:
            return
        if self.restore_best_weights and averages_at_the_end(trainer):
            rank_zero_warn(
                "StochasticWeightAveraging puts its average into the model when training ends, and the weights of"
                " the kept epoch then replace it. Pass `restore_best_weights=False` to leave the average."
            )
        self._install(trainer, pl_module)

    def _install(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Put a keeper and a `LastCallback` into `trainer.callbacks`, in place of those of an earlier fit.

        The keeper takes the place of the checkpoint that Lightning adds by default, too, or loggers would upload that.
        The list is replaced, because Lightning is iterating over it. The keeper stands before other checkpoints, so
        that `ckpt_path="best"` is its file, and behind each `EarlyStopping`, whose state of the same epoch it holds.
        """
        others = (callback for callback in trainer.callbacks if not isinstance(callback, FileKeeper | LastCallback))
        callbacks = [callback for callback in others if not _is_default(callback)]
        if trainer.checkpoint_callbacks:
            token = trainer.strategy.broadcast(secrets.token_hex(3))  # no other run in the folder has it
            keeper = FileKeeper(self, token)
            stopping = [n for n, callback in enumerate(callbacks) if isinstance(callback, pl.callbacks.EarlyStopping)]
            saving = [n for n, callback in enumerate(callbacks) if isinstance(callback, pl.callbacks.Checkpoint)]
            behind = max([callbacks.index(self), *stopping]) + 1
            callbacks.insert(min([behind, *saving]), keeper)
            self._keeper = keeper
        # At the end of training, before the module's own hook, which may export the network; or of a fit without any.
        hooks = dict.fromkeys(("on_train_end", "on_fit_end", "on_exception"), self._conclude)
        last = LastCallback(on_save_checkpoint=self._complete, **hooks)
        skip_empty_hooks(last)
        trainer.callbacks = [*callbacks, last]
        if self._keeper is not None:
            self._keeper.setup(trainer, pl_module, FITTING)  # Lightning goes through the list as it was

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        if self._keeper is not None and self.engine.history.kept is None:  # that of a resumed run may not count
            self._keeper.set_best("", None)

    def _make_check(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> bool:
        """Make a check; have its file written if it is the best, and stop training if it says so."""
        is_best, history = super()._make_check(trainer, pl_module), self.engine.history
        if is_best and self._keeper is not None:
            self._keeper.ask_to_write()  # it writes when other callbacks and the module have had this hook
        # Histories are equal, but a process in which a rule of the user's differs would leave the others waiting.
        should_stop = trainer.strategy.reduce_boolean_decision(history.decision.should_stop, all=False)
        n_epochs = trainer.fit_loop.epoch_progress.current.processed  # counts the epoch that is ending
        may_stop = n_epochs >= (trainer.min_epochs or 0) and trainer.global_step >= (trainer.min_steps or 0)
        if should_stop and may_stop:  # or else not set, because nothing resets it, and the score may recover by then
            trainer.should_stop = True
            self.stopped_epoch = trainer.current_epoch
            step = trainer.global_step if self.is_by_steps else None
            self.stopping_reason = history.why_stopped(trainer.current_epoch, step)
        return is_best

    def _complete(self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Put the kept weights into the keeper's file; leave out of any file what it holds twice."""
        if self._keeper is not None and self._keeper.saving is not None:
            self._keeper.put_kept_weights(trainer, checkpoint, self._keeper.saving)
        for part, weights in holders_of_weights(checkpoint.get("callbacks", {}).get(self.state_key)):
            part["weights"] = drop_saved(weights, checkpoint["state_dict"])

    def _conclude(self, trainer: pl.Trainer, _: Any, exception: BaseException | None = None) -> None:
        """Restore the kept epoch, and say what was kept and why training ended; once."""
        engine, kept = self.engine, self.engine.history.kept
        if trainer.state.fn != FITTING or trainer.fast_dev_run or engine.summary:  # which `end` has filled
            return
        if exception is not None:
            self.stopping_reason = describe_exception(exception)
        elif self.stopped_epoch is None:
            of_others = "Other code stopped training (`trainer.should_stop`)."
            self.stopping_reason = of_others if trainer.should_stop else "Training ran to its end."
        is_graceful = exception is None or isinstance(exception, KeyboardInterrupt)
        engine.end(self.stopping_reason, self.stopped_epoch, best_model_path=self.best_model_path)
        if exception is None:  # after one, the other processes may not come here
            engine.summary = engine.processes.broadcast(engine.summary)
        if kept is None and not trainer.current_epoch and not is_graceful:  # nothing to say
            return
        is_restored = False
        if kept is not None and is_graceful and self.restore_best_weights and not engine.is_below_baseline:
            for optimizer in optimizers_in_training(trainer.optimizers):
                optimizer.eval()  # a later one must not move what is put back
            is_restored = engine.put_back(trainer.lightning_module)
        engine.log_summary(is_restored=is_restored)

    @property
    def best_model_path(self) -> str:
        return "" if self._keeper is None else self._keeper.best_model_path


def _is_default(callback: Any) -> bool:
    """Whether this is the checkpoint callback that a trainer adds to a list without one."""
    names = ("state_key", "dirpath", "filename", "save_top_k", "save_last", "save_weights_only")
    default = pl.callbacks.ModelCheckpoint()
    is_plain = type(callback) is type(default)
    return is_plain and all(getattr(callback, name) == getattr(default, name) for name in names)


class LastCallback(pl.callbacks.LambdaCallback):
    """Completes checkpoints and concludes the training for its owner, after all other callbacks.

    So they save the training weights, and what they change in a checkpoint is known.
    """
