"""Watching a training: boundary uncertainty and trust score at each check, nothing decided."""

from collections.abc import Iterator
from dataclasses import fields
from functools import partial
from typing import Any

from torch import Tensor

from bu_torch.callbacks.trainer import (
    FITTING,
    LightningNetworkReader,
    LightningProcesses,
    check_trainer,
    lightning_average,
    load_raw_weights,
    log_check,
    misconfigured,
    pl,
    record_folder,
    skip_empty_hooks,
    training_loss,
    yields_to_averages,
)
from bu_torch.callbacks.training_data import InputWatch, Reference, Source, check_reference, training_data
from bu_torch.estimators.space_choice import FeatureExtractor
from bu_torch.internal.inputs import check_integer
from bu_torch.internal.replica import has_lazy_layers, preserved_random_state
from bu_torch.perturbation.draws import Perturbation
from bu_torch.run.engine import Engine, Results
from bu_torch.run.history import describe_exception
from bu_torch.run.prepare import TrainingData
from bu_torch.run.settings import Settings
from bu_torch.run.weights import fill_in, optimizers_in_eval_mode
from bu_torch.samples.samples import ClassWeight, InputKey

_SETTINGS = {field.name for field in fields(Settings)}


class BoundaryUncertaintyMonitor(Results, pl.Callback):
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
    - `accuracy_uncertainty_trust`, at most 1: on tables a weighted mean of these three, each as a share of what any
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
            written as soon as it is measured, for `bu-torch report`. "" without checkpoints and logs on this machine's
            disk, in `fast_dev_run`, with `barebones`, and in other processes than the first.

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
        self._init(locals() | {"decides": False})  # all of the above, by their names

    def _init(self, arguments: dict[str, Any]) -> None:
        """Check the arguments that both callbacks have, and set them as attributes."""
        skip_empty_hooks(self)
        every_n_epochs, every_n_train_steps = arguments["every_n_epochs"], arguments["every_n_train_steps"]
        with misconfigured(TypeError, ValueError):
            settings = Settings(**{name: arguments[name] for name in _SETTINGS & arguments.keys()})
            every_n_epochs = check_integer("every_n_epochs", every_n_epochs, 1)
            if every_n_train_steps is not None:
                every_n_train_steps = check_integer("every_n_train_steps", every_n_train_steps, 1)
                if every_n_epochs != 1:
                    raise ValueError(
                        "`every_n_epochs` and `every_n_train_steps` exclude each other: leave `every_n_epochs` at 1 for"
                        f" checks by steps, got {every_n_epochs}."
                    )
            check_reference(arguments["reference"])
        self.__dict__.update(vars(settings))  # for the user; `engine.settings` holds what a fit uses
        self.every_n_epochs, self.every_n_train_steps = every_n_epochs, every_n_train_steps
        self.source = Source(arguments["reference"], arguments["input_key"], arguments["label_key"])
        self._reset(settings)  # so that results can be asked for before a fit

    def _reset(self, settings: Settings) -> None:
        self.engine = Engine(settings)
        self._watch = InputWatch()
        self._logged: dict[str, Tensor] = {}  # values of the last check
        self._is_tried_out = False  # a few samples were read as a check reads them
        self._n_checks_due = 0  # checks by steps that were due up to the last batch

    @property
    def is_by_steps(self) -> bool:
        return self.every_n_train_steps is not None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        check_trainer(trainer, BoundaryUncertaintyMonitor)
        if stage != FITTING:
            self.engine.is_over = True  # a checkpoint that is tested continues no run
            return
        settings = {name: getattr(self, name) for name in _SETTINGS}  # which may have been set since
        if yields_to_averages(trainer, self):
            settings["averaging"] = None
        with misconfigured(TypeError, ValueError):
            self._reset(Settings(**settings))  # states are loaded after `setup`
        self.engine.processes = LightningProcesses(trainer)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        engine, source = self.engine, self.source
        engine.reader = LightningNetworkReader(trainer, engine.settings)
        self._n_checks_due = trainer.global_step // (self.every_n_train_steps or 1)  # not read without steps
        # A `perturbation` of the user's draws the same in each preparation.
        with preserved_random_state(engine.settings.seed), source.named_in_errors():
            engine.prepare(partial(self._read, trainer, pl_module), pl_module.device)
        if (folder := record_folder(trainer)) is not None:
            every = {"every_n_epochs": self.every_n_epochs, "every_n_train_steps": self.every_n_train_steps}
            engine.open_record(folder, {**vars(engine.settings), **source._asdict(), **every})

    def _read(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> TrainingData:
        data = training_data(trainer, pl_module, self.source, self.every_n_train_steps, self.engine)
        self._watch = InputWatch(data.samples if self.source.reference is None else None)
        return data

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any, **__: Any) -> None:
        if self.is_by_steps:
            self._clear_callback_metrics(trainer)
        # Not in `on_train_start`: the module's own comes later and may set it up. Lazy layers need a first batch.
        if not (self._is_tried_out or has_lazy_layers(pl_module)):
            with self.engine.record.timing("setup_seconds"):
                self.engine.try_out(pl_module)
            self._is_tried_out = True
            self._watch.attach(pl_module)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any, **__: Any) -> None:
        self._watch.detach()
        if self.every_n_train_steps is not None:
            # A batch makes no step while gradients accumulate, and several steps with several optimisers.
            before, self._n_checks_due = self._n_checks_due, trainer.global_step // self.every_n_train_steps
            if self._n_checks_due > before:
                self._make_check(trainer, pl_module)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not self.is_by_steps:
            if (trainer.current_epoch + 1) % self.every_n_epochs == 0:
                self._make_check(trainer, pl_module)
            else:
                self._clear_callback_metrics(trainer)
        elif self.history and self.history[-1]["epoch"] == trainer.current_epoch:
            trainer.callback_metrics.update(self._logged | trainer.callback_metrics)

    def _make_check(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> bool:
        """Make a check of the module, or of the average of a `WeightAveraging`, and log it; whether it is the best."""
        average = lightning_average(trainer)
        loss = training_loss(trainer, is_within_epoch=self.is_by_steps)
        with optimizers_in_eval_mode(trainer.optimizers):
            module, place = average.module if average else pl_module, (trainer.current_epoch, trainer.global_step)
            is_best = self.engine.check(module, *place, train_loss=loss)
        # A trial keeps nothing, and an average without weights of the training is no network of it.
        if trainer.fast_dev_run or (average is not None and not int(average.n_averaged)):
            self.engine.forget_checks()
            is_best = False
        with self.engine.record.timing("check_seconds"):
            self._logged = log_check(trainer, self.history[-1], is_by_steps=self.is_by_steps)
        return is_best

    def _clear_callback_metrics(self, trainer: pl.Trainer) -> None:
        """Remove the last check's values, because they do not describe the weights to come."""
        for name in self._logged:
            trainer.callback_metrics.pop(name, None)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        trainer.callback_metrics.update(self._logged | trainer.callback_metrics)  # later epochs may have removed them

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not self.engine.settings.decides:
            self.engine.end("Training ended.")

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        # After an exception Lightning calls no `teardown`.
        self._watch.detach()
        self.engine.perturbed = None  # on a device whose memory may be short; all else is needed to judge
        self.engine.is_over = True
        if not self.engine.settings.decides:
            self.engine.end(describe_exception(exception))

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self.engine.release()
        self._watch.detach()

    def on_load_checkpoint(self, trainer: pl.Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn == FITTING:
            for part, weights in holders_of_weights(checkpoint["callbacks"].get(self.state_key)):
                # Strategies that shard weights have loaded them, and removed them from the checkpoint.
                part["weights"] = fill_in(weights, {**pl_module.state_dict(), **checkpoint.get("state_dict", {})})
            load_raw_weights(pl_module, checkpoint)

    def state_dict(self) -> dict[str, Any]:
        return self.engine.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if not self.engine.is_over:
            self.engine.load_state_dict(state_dict)


def holders_of_weights(state: Any) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The places in a callback's state that hold weights by name: of the kept check, and of the average."""
    for part in (state, state.get("average")) if isinstance(state, dict) else ():
        if isinstance(part, dict) and isinstance(weights := part.get("weights"), dict) and weights:
            yield part, weights
