"""Stopper of a plain training loop, which decides as the callbacks do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, Unpack

from torch import Tensor, distributed, nn

from bu_torch.internal.inputs import check_integer
from bu_torch.internal.network import device_of
from bu_torch.internal.replica import has_lazy_layers, has_shards
from bu_torch.perturbation.draws import keeps_integers
from bu_torch.run.engine import Engine, Results
from bu_torch.run.history import describe_exception
from bu_torch.run.prepare import TrainingData, plan_check
from bu_torch.run.reader import NetworkReader, TorchProcesses
from bu_torch.run.settings import Settings, SettingsDict
from bu_torch.samples.reading import ASKED_TO_READ, WITHOUT_READING
from bu_torch.samples.samples import Samples, whole_samples

_CHECKS_ALONE = (
    "This process checks alone, of several that train, and others may keep other weights, or wait for it for ever."
    " Pass `process_group=torch.distributed.group.WORLD` in all of them."
)


class BoundaryUncertaintyStopper(Results):
    """Stop a plain PyTorch loop when the decision boundary gets no better, and keep the best epoch's weights.

    It measures and decides for a loop of your own as `BoundaryUncertaintyStopping` does for a trainer, and leaves the
    same record; the best weights are kept in memory. It needs no Lightning.

    Args:
        inputs: Training inputs, shape (N, ...) as the model takes them, N >= n_neighbors, tensor or array, finite; or
            several, in a dict, whose keys are the arguments' names, or in a tuple of tensors.
        labels: Their classes, shape (N,), integers >= 0, at least two different ones. Samples with the label -100,
            which torch's losses ignore, are left out with a warning.
        sample_weight: Relative frequency of each sample in training, shape (N,), positive; None if all are alike.
        folder: Folder for the record of the checks; None for no record.
        process_group: Processes that train together, such as `torch.distributed.group.WORLD`: all of them call `check`
            with the same samples. The first one reads the network, decides for all and logs; in `summary` it
            alone has the word, its numbers and the threshold. All keep the same weights. None if one process checks
            alone.
        **settings: As in `bu_torch.run.settings.Settings`: `patience`, `rule`, `averaging`, ... An epoch is taken to
            visit each of the N samples once.

    Attributes:
        best_epoch, best_step, best_score, history, summary, setup_seconds, check_seconds, record_path: As in
            `BoundaryUncertaintyStopping`, with epochs and steps as given to `check`.
        stopped_epoch: Epoch of the check that said to stop; None before.
        stopping_reason: Reason to stop, in words; "Training ended." if the loop ended by itself, or the exception that
            left a `with`; "" before.

    Raises:
        ValueError: If an argument is out of range or the samples are not fit for the method.
        TypeError: If an argument is of the wrong type, or the samples are not made of numbers.

    Example:
        >>> import torch
        >>> generator = torch.Generator().manual_seed(0)
        >>> labels = torch.arange(100) % 2
        >>> inputs = torch.randn(100, 2, generator=generator) + labels.unsqueeze(1)
        >>> model = torch.nn.Linear(2, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        >>> stopper = BoundaryUncertaintyStopper(inputs, labels, patience=5)
        >>> for epoch in range(100):
        ...     optimizer.zero_grad()
        ...     torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        ...     optimizer.step()
        ...     if stopper.check(model):
        ...         break
        >>> stopper.restore(model)
        >>> stopper.stopped_epoch - stopper.best_epoch
        5
    """

    def __init__(
        self,
        inputs: Any,
        labels: Any,
        *,
        sample_weight: Any = None,
        folder: str | Path | None = None,
        process_group: Any = None,
        **settings: Unpack[SettingsDict],
    ) -> None:
        self.settings = Settings(**settings)
        if isinstance(inputs, Samples):  # an integration has read them from a loader
            self._samples = inputs
        elif self.settings.perturbation == "reading":
            raise ValueError(f"{ASKED_TO_READ}: tensors cannot be read again. {WITHOUT_READING}")
        else:
            keeps = keeps_integers(self.settings.perturbation)
            self._samples = whole_samples(inputs, labels, sample_weight, keep_integers=keeps)
        self.settings.refuse_too_few(len(self._samples.inputs), "`inputs`")
        if folder is not None and not isinstance(folder, str | Path):
            raise TypeError(f"`folder` must be a path or None, got {type(folder).__name__}.")
        self.folder = folder
        self.engine = Engine(self.settings)
        if process_group is not None:
            self.engine.processes = TorchProcesses(process_group)
        self.stopped_epoch: int | None = None
        self.stopping_reason = ""
        self._is_closed = False

    def check(self, model: Callable[[Tensor], Any], epoch: int | None = None, step: int | None = None) -> bool:
        """Measure the model, keep its weights if they are the best so far, and say whether to stop.

        The first call finds the nearest neighbours. The model is run in eval mode without gradient; it and all random
        states are left as they were. An optimiser with `eval` and `train`, as a Schedule-Free one, must be in `eval`.

        Args:
            model: Any callable from inputs (n, ...) to logits (n, J), or to an output with `logits`. Several inputs
                are passed by name from a dict, in order from a tuple. Only a `torch.nn.Module` has weights that are
                averaged and kept.
            epoch: Number of this epoch, larger than the last one's; None counts on from it.
            step: Number of optimiser steps so far, larger than at the last check, for checks within an epoch: `epoch`
                may then repeat the last one, and None does so. None if epochs identify the checks.

        Returns:
            True if training may end, because the score has not improved for `patience` checks, or is not finite. Later
            calls return it again, until one finds a higher score.

        Raises:
            ValueError: If the model fails at first or gives too few outputs, the samples are not fit for the method, or
                `epoch` or `step` is not larger than the last.
            TypeError: If the model no longer gives numbers, or `epoch` or `step` is no integer.
        """
        engine = self.engine
        epoch, step = self._place(epoch, step)
        if self.summary:
            engine.warn(
                "This stopper has ended a training, and continues it: its best epoch and its patience still count. For"
                " another training, make another stopper."
            )
        self._is_closed = False
        if not engine.is_prepared:
            self._prepare(model, is_trained=True)  # mostly by now
        engine.check(model, epoch, step)
        self.stopping_reason = engine.history.why_stopped(epoch, step)
        self.stopped_epoch = epoch if engine.history.decision.should_stop else None
        return engine.history.decision.should_stop

    def prepare(self, model: Callable[[Tensor], Any]) -> None:
        """Do before training what the first `check` would do before it measures.

        The features of a model that is not trained yet may be the space of neighbours.

        Raises:
            ValueError: If the samples are not fit for the method, or the model for them.
        """
        self._prepare(model, is_trained=False)

    def restore(self, model: nn.Module) -> None:
        """Load the kept epoch's weights into the model, or into the network that it wraps or is wrapped in.

        Raises:
            RuntimeError: If no epoch has been kept, the kept model was no module, or the weights do not fit `model`.
        """
        is_restored = False
        try:
            if not self.engine.kept_weights:
                kept, why = self.engine.history.kept, self.engine.history.why_none_kept()
                why = "the kept model is no `torch.nn.Module`" if kept else why
                raise RuntimeError(f"There are no weights to restore: {why}.")
            try:
                self.engine.restore(model)
            except Exception as error:  # a network with a state of its own may raise anything
                raise RuntimeError(
                    f"The kept weights, of epoch {self.best_epoch}, do not fit `model`: {error}. Pass the network that"
                    " was checked, as it was then."
                ) from error
            is_restored = True
        finally:
            self.close(is_restored=is_restored)

    def close(self, *, is_restored: bool = False) -> None:
        """Say what was kept and why training ended, once; `restore`, after which it `is_restored`, does so too."""
        if not self._is_closed:
            self._is_closed = True
            self.judge()
            self.engine.log_summary(is_restored=is_restored)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, exception: BaseException | None, traceback: object) -> None:
        if exception is not None and not self.summary:
            self.stopping_reason = describe_exception(exception)
        self.close()

    def release(self) -> None:
        """Free the samples and what was prepared, because no check will follow; results and kept weights stay."""
        self.engine.release()
        vars(self).pop("_samples", None)

    def judge(self) -> None:
        """Judge what was kept, and record the end, once."""
        if not self.summary:
            self.stopping_reason = self.stopping_reason or "Training ended."
            self.engine.end(self.stopping_reason, self.stopped_epoch)

    def _place(self, epoch: int | None, step: int | None) -> tuple[int, int | None]:
        last = self.history[-1]["epoch"] if self.history else -1
        following = last + 1
        if step is not None:
            step, following = check_integer("step", step, 0), max(last, 0)
            before = max((entry.get("step", -1) for entry in self.history), default=-1)
            if step <= before:
                raise ValueError(f"`step` must be larger than at the last check, {before}, got {step}.")
        epoch = following if epoch is None else check_integer("epoch", epoch, 0)
        if epoch < following:
            than = "larger than" if step is None else "at least"
            raise ValueError(f"`epoch` must be {than} that of the last check, {last}, got {epoch}.")
        return epoch, step

    def state_dict(self) -> dict[str, Any]:
        """State for a resumed loop, with the kept weights, as plain data; with shards, all processes must call this."""
        return self.engine.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a `state_dict`.

        Patience and the best epoch start anew with other settings or samples, or if the state is damaged.
        """
        self.engine.load_state_dict(state_dict)
        self._is_closed = False

    def _prepare(self, model: object, *, is_trained: bool) -> None:
        engine, samples, settings = self.engine, self._samples, self.settings
        has_group = distributed.is_available() and distributed.is_initialized()
        if has_group and engine.processes.count < distributed.get_world_size():
            engine.warn(_CHECKS_ALONE)
        engine.processes.are_sharded = isinstance(model, nn.Module) and has_shards(model)
        module = model if isinstance(model, nn.Module) else None
        # Features of a network that has learnt these labels would leak them, so they are a space only on request.
        if module is not None and (is_trained or engine.processes.are_sharded or has_lazy_layers(module)):
            module = None if settings.feature_extractor is None else module

        def read() -> TrainingData:
            n_operations = NetworkReader(settings, samples.packing).operations_of(model, samples)
            return TrainingData(samples, plan_check(settings, samples, n_operations), module)

        engine.prepare(read, device_of(model, samples.inputs))
        if self.folder is not None and engine.processes.rank == 0:
            engine.open_record(Path(self.folder), vars(settings))
        engine.try_out(model)
