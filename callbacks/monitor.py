"""Watching a training: boundary uncertainty and trust score at each check, nothing decided."""

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from bu_torch.callbacks.fit import FitSession
from bu_torch.callbacks.samples import Reference, Source, check_reference
from bu_torch.callbacks.trainer import (
    FITTING,
    OUT_OF_REACH,
    RAW_WEIGHTS,
    Callback,
    LightningModule,
    MisconfigurationException,
    StochasticWeightAveraging,
    Trainer,
    WeightAveraging,
    check_trainer,
    go_on_from_raw_weights,
    misconfigured,
    set_batch_hooks,
    stand_behind_averaging,
)
from bu_torch.estimators.space_choice import FeatureExtractor
from bu_torch.internal.inputs import check_integer
from bu_torch.perturbation.draws import Perturbation
from bu_torch.run.history import describe_exception
from bu_torch.run.settings import RefusesRemoved, Settings
from bu_torch.run.tracker import MeasurementResults, Tracker
from bu_torch.samples.balance import ClassWeight
from bu_torch.samples.batches import InputKey

_NAMES = {field.name for field in fields(Settings)}


class BoundaryUncertaintyMonitor(MeasurementResults, RefusesRemoved, Callback):
    """Measure boundary uncertainty and trust score while a classifier trains, without validation data.

    Before training the callback reads the training samples, finds their nearest neighbours and perturbs each of them a
    little. A check, at the end of an epoch or every so many steps, passes the perturbed samples through the module's
    `forward` once (eval mode, no gradient, the trainer's precision) and logs four numbers, larger is better, of which
    the progress bar shows the first three:

    - `boundary_uncertainty`, in [0, 1]: are the labels most uncertain where the decision boundary runs? (after Ha et
      al. 2021; `bu_torch.functional.boundary_uncertainty`)
    - `trust_score`, in [1e-3, 1e3]: does the classifier agree with the other samples nearby? (Jiang et al. 2018;
      `bu_torch.functional.mean_trust_score`)
    - `expected_accuracy`, in [0, 1]: what accuracy do the training labels predict for these outputs?
      (`bu_torch.Signals.probabilities`; this project's own)
    - `accuracy_uncertainty_trust`, at most 1: on tables the mean of these three, each as a share of what any
      classifier can reach (`bu_torch.functional.accuracy_uncertainty_trust`; this project's own); on images and texts
      the share of expected accuracy alone

    and three more in [0, 1]: the shares of perturbed samples that are predicted as labelled (`label_agreement`, Ha et
    al., section 4.5), as the labels nearby vote (`vote_agreement`), and otherwise than at the last check
    (`prediction_changes`, 1 at the first).

    With `metric`, the expected value of that metric is logged as `expected_<name>`.

    Weights after training are the same to the bit with and without the callback. It decides nothing: an
    `EarlyStopping(monitor="boundary_uncertainty", mode="max")` in the same trainer may. A trainer takes one callback of
    bu-torch.

    `forward` must give logits (n, J), or one logit (n, 1) or (n,) for two classes; an output with a `logits` entry or
    attribute is understood too. Samples are read before training, again and again if random augmentation changes them,
    and pass the hooks that transform batches (`on_before_batch_transfer`, `transfer_batch_to_device`,
    `on_after_batch_transfer`). What a sampler draws more often counts more (`WeightedRandomSampler`). A warning after
    the first batch says if the network gets inputs of another shape, mean or spread than those that were read, such as
    inputs that `training_step` scales: pass `reference=(inputs, labels)` then.

    Args:
        every_n_epochs: Check at the end of every n-th epoch, >= 1. After other epochs `trainer.callback_metrics` lacks
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
        **settings: All other arguments are fields of `bu_torch.run.settings.Settings`, which explains them.
            `averaging` is None by default.

    Attributes:
        history: One dict a check, in order: `epoch` (`trainer.current_epoch`, 0-based), `step` (`trainer.global_step`),
            the numbers above, and `standard_error` of the difference between this expected accuracy, or metric, and
            the best before; floats, NaN if a logit was not finite.
        setup_seconds: Time spent before the first epoch, in seconds.
        check_seconds: Time spent in checks so far, in seconds.
        record_path: File beside the checkpoints (or the logs, if there are none) with a line of JSON for each check,
            written as soon as it is measured: `epoch`, `step`, `seconds` since training began, `check_seconds`,
            `train_loss` if `training_step` logs it (or `training_loss`, `train/loss`, `loss/train`, `loss`), and what
            `history` has. "" without checkpoints and logs on this machine's disk, in `fast_dev_run`, with `barebones`,
            and in other processes than the first.

    Raises:
        MisconfigurationException: On arguments out of range; at the start of training if samples cannot be found or
            are not fit for the method.
    """

    def __init__(
        self,
        *,
        n_neighbors: int = 40,
        n_draws: int | None = None,
        max_samples: int | None = None,
        seed: int = 0,
        feature_extractor: FeatureExtractor | None = None,
        perturbation: Perturbation | None = None,
        class_weight: ClassWeight | None = None,
        metric: Any = "accuracy",
        averaging: float | None = None,
        output_key: str | int | None = None,
        verbose: bool = False,
        every_n_epochs: int = 1,
        every_n_train_steps: int | None = None,
        reference: Reference | None = None,
        input_key: InputKey = None,
        label_key: str | int | None = None,
    ) -> None:
        self._take_arguments(locals() | {"decides": False})

    def _take_arguments(self, given: dict[str, Any]) -> None:
        """Check the arguments and set them as attributes; those of `Settings` become one object."""
        Callback.__init__(self)
        every_n_epochs, every_n_train_steps = given["every_n_epochs"], given["every_n_train_steps"]
        with misconfigured(TypeError, ValueError):
            self.settings = Settings(**{name: given[name] for name in _NAMES & given.keys()})
            every_n_epochs = check_integer("every_n_epochs", every_n_epochs, 1)
            if every_n_train_steps is not None:
                every_n_train_steps = check_integer("every_n_train_steps", every_n_train_steps, 1)
                if every_n_epochs != 1:
                    raise ValueError(
                        "`every_n_epochs` and `every_n_train_steps` exclude each other: leave `every_n_epochs` at 1 for"
                        f" checks by steps, got {every_n_epochs}."
                    )
            check_reference(given["reference"])
        self.every_n_epochs, self.every_n_train_steps = every_n_epochs, every_n_train_steps
        self.source = Source(given["reference"], given["input_key"], given["label_key"])
        self._fit = FitSession(self.settings, self.source, every_n_epochs, every_n_train_steps)

    @property
    def tracker(self) -> Tracker:
        return self._fit.tracker

    if not TYPE_CHECKING:  # settings are attributes, too

        def __getattr__(self, name: str) -> Any:
            if name in _NAMES:
                return getattr(self.settings, name)
            raise AttributeError(f"`{type(self).__name__}` has no attribute {name!r}.")

        def __setattr__(self, name: str, value: Any) -> None:
            if name not in _NAMES:
                super().__setattr__(name, value)
            elif self.tracker.inputs is not None:
                raise AttributeError(f"`{name}` cannot be set while training runs: set it before `fit`.")
            else:
                with misconfigured(TypeError, ValueError):
                    self.settings = replace(self.settings, **{name: value})

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        check_trainer(trainer)
        if stage == FITTING:
            _refuse_a_second(trainer)
            set_batch_hooks(self, are_called=True)  # a failed fit may have left some skipped
            stand_behind_averaging(trainer, BoundaryUncertaintyMonitor)
            why = _why_not_averaged(trainer) if self.settings.averaging is not None else ""
            settings = replace(self.settings, averaging=None) if why else self.settings
            self._fit = FitSession(settings, self.source, self.every_n_epochs, self.every_n_train_steps)
            if why:
                self.tracker.detail(f"bu-torch averages no weights: {why}.")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._fit.start(trainer, pl_module)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        set_batch_hooks(self, are_called=self._fit.reads_batches)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any) -> None:
        self._fit.start_batch(trainer, pl_module)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any) -> None:
        self._fit.end_batch(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._fit.end_epoch(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._fit.metric_logger.show_again(trainer)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.tracker.end("Training ended.")

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._fit.end_watching()
        self.tracker.end(describe_exception(exception))

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._fit.release()
        set_batch_hooks(self, are_called=True)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn == FITTING and RAW_WEIGHTS in checkpoint:
            go_on_from_raw_weights(pl_module, checkpoint)

    def state_dict(self) -> dict[str, Any]:
        return self.tracker.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if not self._fit.is_over:  # `trainer.test` of a checkpoint must not undo later checks of this run
            self.tracker.load_state_dict(state_dict)


def _refuse_a_second(trainer: Trainer) -> None:
    own = [type(one).__name__ for one in trainer.callbacks if isinstance(one, BoundaryUncertaintyMonitor)]
    if len(own) > 1:
        raise MisconfigurationException(
            f"`callbacks` must hold one callback of bu-torch, got {len(own)}: {', '.join(own)}. To change it: give each"
            " its own `Trainer`. The stopping callback logs all that the monitor does."
        )


def _why_not_averaged(trainer: Trainer) -> str:
    """Another callback averages the weights, or they are sharded; "" if neither is so."""
    theirs = [one for one in trainer.callbacks if isinstance(one, WeightAveraging | StochasticWeightAveraging)]
    strategy = type(trainer.strategy).__name__
    if theirs:
        return f"{type(theirs[0]).__name__} does so"
    return f"{strategy} shards them" if strategy in OUT_OF_REACH else ""
