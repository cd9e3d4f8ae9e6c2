"""Watching a training: boundary uncertainty and trust score at each check, nothing decided."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

from torch import Tensor

from bu_torch.callbacks.fit import Fit
from bu_torch.callbacks.lightning_trees import (
    FITTING,
    Callback,
    LightningModule,
    Trainer,
    adopt_imported_trees,
    bring_back,
    library_of,
    misconfigured,
    put_aside,
)
from bu_torch.callbacks.samples import Reference, check_reference
from bu_torch.callbacks.weights import RAW_WEIGHTS, go_on_from_raw_weights, stand_behind_averaging
from bu_torch.internal.inputs import check_integer
from bu_torch.run.settings import MeasurementSettings, Settings
from bu_torch.run.tracker import MeasurementResults, Tracker
from bu_torch.samples.batches import InputKey

T = TypeVar("T", bound=type)

_NOTHING_TO_MONITOR = "this callback measures by itself, at the training samples: `rule=` chooses what decides"
INSTEAD = {  # of arguments of Lightning's callbacks that users pass by habit
    "monitor": _NOTHING_TO_MONITOR,
    "mode": f"a larger score is better; {_NOTHING_TO_MONITOR}",
    "save_top_k": "one checkpoint is kept, the best. A `ModelCheckpoint(monitor='expected_accuracy', mode='max',"
    " save_top_k=3)` beside it keeps more",
    "class_weights": "`class_weight=`",
    "log_rank_zero_only": "with `verbose=True` each process logs an improvement",
    "strict": "the score is never missing",
    "divergence_threshold": "scores are bounded; `check_finite=` ends a training whose outputs are not finite",
    "save_last": "a `ModelCheckpoint(save_last=True)` beside it saves the last",
}


def without(names: dict[str, str]) -> Callable[[T], T]:
    """Make a class say what there is instead of some arguments; its signature does not change."""

    def decorate(cls: T) -> T:
        init = cls.__init__  # type: ignore[misc]

        @wraps(init)
        def checked(self: Any, *args: Any, **kwargs: Any) -> None:
            if found := [name for name in names if name in kwargs]:
                raise TypeError(f"{type(self).__name__} has no `{found[0]}`: {names[found[0]]}.")
            init(self, *args, **kwargs)

        cls.__init__ = checked  # type: ignore[misc]
        return cls

    return decorate


_DECIDES_NOTHING = "it decides nothing: an `EarlyStopping(monitor='expected_accuracy', mode='max')` may"


@without(INSTEAD | dict.fromkeys(("monitor", "mode"), _DECIDES_NOTHING))
@dataclass(kw_only=True, eq=False, repr=False)
class BoundaryUncertaintyMonitor(MeasurementResults, MeasurementSettings, Callback):
    """Measure boundary uncertainty and trust score while a classifier trains, without validation data.

    Before training the callback reads the training samples, finds their nearest neighbours and perturbs each of them a
    little. A check, at the end of an epoch or every so many steps, passes the perturbed samples through the module's
    `forward` once (eval mode, no gradient, the trainer's precision) and logs three numbers, larger is better:

    - `boundary_uncertainty`, in [0, 1]: do both classes mix along the decision boundary as they would along the Bayes
      boundary? (Ha et al. 2021; `bu_torch.functional.boundary_uncertainty`)
    - `trust_score`, in [1e-3, 1e3]: does the classifier agree with the other samples nearby? (Jiang et al. 2018, who
      score new points, so the sample that was perturbed is left out; `bu_torch.functional.mean_trust_score`)
    - `expected_accuracy`, in [0, 1]: what accuracy do the training labels predict for these outputs?
      (`bu_torch.Signals.probabilities`; this project's own)

    and five more in [0, 1], which the progress bar leaves out, read from the same predictions at the perturbed samples:

    - `label_agreement`: share of perturbed samples that are predicted as labelled (Ha et al., section 4.5);
    - `vote_agreement`: the same with the votes of the labels nearby in place of the one label (`bu_torch.LabelVotes`);
    - `neighbor_agreement`: trust on a bounded scale (`bu_torch.functional.neighbor_agreement`);
    - `prediction_changes`: share of predictions that differ from the last check's, 1 at the first check;
    - `omission`, smaller is better: share of the Bayes boundary that is left out (`bu_torch.functional.omission`).

    Weights after training are the same to the bit with and without the callback. It decides nothing: an
    `EarlyStopping(monitor="boundary_uncertainty", mode="max")` in the same trainer may. If several of these callbacks
    in one trainer measure with different settings, the names of the second in the list end in `_2`, and so on.

    `forward` must give logits (n, J), or one logit (n, 1) or (n,) for two classes; an output with a `logits` entry or
    attribute is understood too. Samples are read once, random augmentation included, and pass the hooks that transform
    batches (`on_before_batch_transfer`, `transfer_batch_to_device`, `on_after_batch_transfer`). What a sampler draws
    more often counts more (`WeightedRandomSampler`). Inputs that `training_step` changes to other units before the
    network gets them are refused after the first batch.

    Args:
        every_n_epochs: Check at the end of every n-th epoch, >= 1. After the others `trainer.callback_metrics` lacks
            the names above.
        every_n_train_steps: Check after every n-th optimiser step (`trainer.global_step`) instead, >= 1, for trainings
            of few epochs. The budget of a check is then a share of the samples that n steps visit. The names above are
            in `trainer.callback_metrics` until the next batch begins, and again when the epoch ends.
        reference: Samples in place of those in the trainer's loader, for example without random augmentation: a pair of
            inputs (N, ...) as `forward` takes them and labels (N,), all of them unless `max_samples` says otherwise; or
            a Dataset or DataLoader, of which as many are read as of the trainer's.
        input_key: Key of the inputs if a batch is a dict; their place, an integer, if it is a tuple of more than two; a
            list of these if `forward` takes several tensors. None takes those that `forward` has arguments for: all
            but the last of a tuple, or by their names in a dict.
        label_key: Key or place of the labels; None for "labels", "label", "targets", "target" or "y" in a dict.
        **settings: `bu_torch.run.settings.MeasurementSettings` explains them: `n_neighbors`, `n_draws`, `max_samples`,
            `max_bytes`, `budget`, `seed`, `cache`, `feature_extractor`, `perturbation`, `class_weight`, `averaging`
            (here None by default), `averaging_device`, `output_key`.

    Attributes:
        history: One dict a check, in order: `epoch` (`trainer.current_epoch`, 0-based), `step` (`trainer.global_step`),
            the eight numbers above, and `standard_error` of the difference between this expected accuracy and the
            highest before; floats, NaN if a logit was not finite.
        setup_seconds: Time spent before the first epoch, in seconds.
        check_seconds: Time spent in checks so far, in seconds.
        record_path: CSV file beside the checkpoints (or the logs, if there are none) with a row for each check,
            written as soon as it is measured: `epoch`, `step`, `seconds` since training began, `check_seconds`,
            `train_loss` if `training_step` logs it (or `training_loss`, `train/loss`, `loss/train`, `loss`), and what
            `history` has. "" without checkpoints and logs on this machine's disk, in `fast_dev_run`, with `barebones`,
            and in other processes than the first.

    Raises:
        MisconfigurationException: On arguments out of range; at the start of training if samples cannot be found or
            are not fit for the method.
    """

    every_n_epochs: int = 1
    every_n_train_steps: int | None = None
    reference: Reference | None = None
    input_key: InputKey = None
    label_key: str | int | None = None

    keeps_weights = False  # those of the best check

    def __post_init__(self) -> None:
        adopt_imported_trees()
        Callback.__init__(self)
        with misconfigured(TypeError, ValueError):
            self._check_settings()
        self.is_fitting = True
        self._clear()

    def _clear(self) -> None:
        self._fit = Fit(self, self._tracked_settings())

    @property
    def tracker(self) -> Tracker:
        return self._fit.tracker

    @property
    def state_key(self) -> str:
        return self._generate_state_key()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        library_of(trainer)
        self.is_fitting = stage == FITTING
        bring_back(self)  # after a fit that broke off
        if self.is_fitting:
            self._clear()
            put_aside(self, Callback)
            stand_behind_averaging(trainer, BoundaryUncertaintyMonitor)
            self._fit.set_up(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._fit.begin(trainer, pl_module)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._fit.start_epoch():
            put_aside(self, BoundaryUncertaintyMonitor)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._fit.start_batch(trainer, pl_module, batch)

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        self._fit.see_loss(loss)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any) -> None:
        self._fit.end_batch(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._fit.end_epoch(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._fit.board.put_back(trainer)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self.keeps_weights:  # otherwise a companion concludes the fit when all other callbacks have ended
            self.tracker.end("Training ended.")

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._fit.watch.end()
        if not self.keeps_weights:
            self.tracker.end(describe_exception(exception))

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        bring_back(self)
        self._fit.release()

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn == FITTING and RAW_WEIGHTS in checkpoint:
            go_on_from_raw_weights(pl_module, checkpoint)

    def state_dict(self) -> dict[str, Any]:
        return self.tracker.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self.is_fitting:  # a test of a checkpoint does not take back what this run has measured since
            with misconfigured(ValueError):
                self.tracker.load_state_dict(state_dict)

    def _check_settings(self) -> None:
        super()._check_settings()
        self.every_n_epochs = check_integer("every_n_epochs", self.every_n_epochs, 1)
        if self.every_n_train_steps is not None:
            self.every_n_train_steps = check_integer("every_n_train_steps", self.every_n_train_steps, 1)
            if self.every_n_epochs != 1:
                raise ValueError(
                    "`every_n_epochs` and `every_n_train_steps` exclude each other: leave `every_n_epochs` at 1 for"
                    f" checks by steps, got {self.every_n_epochs}."
                )
        check_reference(self.reference)

    def _tracked_settings(self) -> MeasurementSettings:
        return (Settings if self.keeps_weights else MeasurementSettings).of(self)


def describe_exception(exception: BaseException) -> str:
    """Say why training ended early."""
    if isinstance(exception, KeyboardInterrupt):
        return "Training was interrupted (KeyboardInterrupt)."
    return f"Training failed: {type(exception).__name__}{f': {exception}' if str(exception) else '.'}"
