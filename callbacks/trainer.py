"""What is Lightning's: its classes, processes and loggers, and the weights that it trains, averages and saves.

`lightning.pytorch` and `pytorch_lightning` have classes of their own. The namespace that was imported first is used, or
else `lightning.pytorch`.
"""

import copy
import sys
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch import Tensor, nn

from bu_torch.internal.network import Packing
from bu_torch.internal.output import log_nothing, printable
from bu_torch.internal.replica import (
    exchanged,
    gathered,
    has_lazy_layers,
    prepare_copy,
    preserved_random_state,
    replaced_in_place,
)
from bu_torch.rule.rules import STANDARD_ERROR
from bu_torch.run.engine import Engine
from bu_torch.run.reader import NetworkReader, Processes, T
from bu_torch.run.settings import Settings
from bu_torch.run.weights import drop_saved, load, named_weights, with_names_of
from bu_torch.signals.catalogue import SIGNALS
from bu_torch.signals.metrics import THRESHOLD

FITTING = "fit"  # `TrainerFn.FITTING`
_NAMESPACES = [name for name in sys.modules if name in ("lightning.pytorch", "pytorch_lightning")]  # in order of import
NAMESPACE = _NAMESPACES[0] if _NAMESPACES else "lightning.pytorch"

if TYPE_CHECKING:
    import lightning.pytorch as pl
else:
    pl = import_module(NAMESPACE)
MisconfigurationException: Any = import_module(f"{NAMESPACE}.utilities.exceptions").MisconfigurationException
_BATCH_HOOKS = (
    *("on_train_batch_start", "on_train_batch_end", "on_before_zero_grad"),
    *("on_before_backward", "on_after_backward", "on_before_optimizer_step"),
)

_BATCH_ELEMENTS = 2**16  # input values of one batch of a check, so that small inputs go through in few batches
CHANGE_INPUTS = (
    "Move the preparation of inputs from `training_step` into `forward`, or into `on_after_batch_transfer`; or pass"
    " samples as the network takes them: `reference=(inputs, labels)`, several tensors in a dict or a tuple. Of a batch"
    " of several, `input_key=[...]` names those that `forward` takes."
)
WRAPPING = ("FSDPStrategy", "DeepSpeedStrategy")
HIDING = (*WRAPPING, "XLAFSDPStrategy")  # their shards do not show which weights they hold
SHARDED = (*HIDING, "ModelParallelStrategy")  # where no process has the whole network
RAW_WEIGHTS = "raw_state_dict"  # weights of training beside the measured ones in a checkpoint


@contextmanager
def misconfigured(*kinds: type[Exception], before: str = "", after: str = "") -> Iterator[None]:
    """Raise errors of these kinds as Lightning's, with text before and after their message."""
    try:
        yield
    except kinds as error:
        raise MisconfigurationException(f"{before}{error}{after}") from error


def check_trainer(trainer: pl.Trainer, kind: type[pl.Callback]) -> None:
    """Refuse a trainer of the other namespace, and one with two callbacks of this kind."""
    if not isinstance(trainer, pl.Trainer):
        got = f"{type(trainer).__module__}.{type(trainer).__qualname__}"
        raise MisconfigurationException(
            f"This callback works with a `Trainer` of `{NAMESPACE}`, got {got}. Import `lightning.pytorch` or"
            " `pytorch_lightning`, whichever has your trainer, before `bu_torch.callbacks`."
        )
    if sum(isinstance(callback, kind) for callback in trainer.callbacks) > 1:
        raise MisconfigurationException(
            "`callbacks` must hold one callback of bu-torch. The stopping callback logs all that the monitor does. Give"
            " each its own `Trainer`."
        )


def yields_to_averages(trainer: pl.Trainer, callback: pl.Callback) -> bool:
    """Put a callback behind Lightning's averages, which a check must measure as checkpoints hold them.

    Returns whether there are any, or the weights cannot be averaged: then bu-torch makes no average of its own.
    """
    callbacks = list(trainer.callbacks)
    averages = [n for n, other in enumerate(callbacks) if isinstance(other, pl.callbacks.WeightAveraging)]
    if averages and (place := callbacks.index(callback)) < averages[-1]:
        callbacks.insert(averages[-1], callbacks.pop(place))
        trainer.callbacks = callbacks
    return bool(averages) or type(trainer.strategy).__name__ in HIDING or averages_at_the_end(trainer)


def averages_at_the_end(trainer: pl.Trainer) -> bool:
    """Whether Lightning puts an average into the module when training ends."""
    return any(isinstance(other, pl.callbacks.StochasticWeightAveraging) for other in trainer.callbacks)


def load_raw_weights(module: nn.Module, checkpoint: dict[str, Any]) -> None:
    """Let training continue from its own weights, if a checkpoint has them beside their average."""
    if RAW_WEIGHTS in checkpoint:
        try:
            load(module, {**module.state_dict(), **checkpoint.pop(RAW_WEIGHTS)})
        except Exception as error:  # damaged ones may raise anything
            rank_zero_warn(
                "The checkpoint holds training weights beside their average, and they do not fit the module"
                f" ({printable(error)}): training continues from the average."
            )


class LightningProcesses(Processes):
    """Processes of a trainer."""

    def __init__(self, trainer: pl.Trainer) -> None:
        self.count, self.rank, self._strategy = trainer.world_size, trainer.global_rank, trainer.strategy
        strategy = type(trainer.strategy).__name__
        self.are_sharded, self.weights_are_hidden = strategy in SHARDED, strategy in HIDING

    def broadcast(self, value: T) -> T:
        return self._strategy.broadcast(value)


def skip_empty_hooks(callback: pl.Callback, other: str = "") -> None:
    """Have Lightning skip hooks of each batch, all empty ones and one more: it does not call those that are None."""
    for name in _BATCH_HOOKS:
        if name == other or getattr(type(callback), name) is getattr(pl.Callback, name):
            setattr(callback, name, None)


class LightningNetworkReader(NetworkReader):
    """Reads a network in the precision of its trainer, and through the wrapper that gathers sharded weights."""

    name, error = "`forward`", MisconfigurationException
    remedy = f"{CHANGE_INPUTS} {NetworkReader.remedy}"

    def __init__(self, trainer: pl.Trainer, settings: Settings, packing: Packing | None = None) -> None:
        super().__init__(settings, packing)
        self.trainer = trainer
        if getattr(trainer.strategy, "zero_stage_3", False):
            raise MisconfigurationException("bu-torch cannot read weights that DeepSpeed stage 3 splits: use FSDP.")

    def logits_at(self, network: Any, inputs: Any, **_: Any) -> Tensor:
        trainer = self.trainer
        is_wrapped = type(trainer.strategy).__name__ in WRAPPING and network is trainer.lightning_module
        of_training: int = getattr(trainer.train_dataloader, "batch_size", None) or 1
        most_rows = max(1, _BATCH_ELEMENTS // inputs.shape[1:].numel(), of_training)
        with trainer.precision_plugin.forward_context():
            wrapper = trainer.model if is_wrapped else None
            return super().logits_at(network, inputs, wrapper=wrapper, most_rows=most_rows)


def can_be_passed(trainer: pl.Trainer, pl_module: pl.LightningModule) -> bool:
    """Whether the module can be run before training."""
    return type(trainer.strategy).__name__ not in SHARDED and not has_lazy_layers(pl_module)


@prepare_copy.register
def _prepare_copy_of_lightning_module(copied: pl.LightningModule, module: nn.Module) -> None:
    """Let a copy run its own `forward`, and ignore what it logs: this would enter the epoch's mean, or be refused."""
    if getattr(module, "_compiler_ctx", None):  # `forward` is a function that runs the module which was compiled
        vars(copied).pop("forward", None)
    vars(copied)["log"] = log_nothing
    if (trainer := vars(module)["_trainer"]) is not None:
        copied._trainer = silent = copy.copy(trainer)
        silent.loggers = [pl.loggers.logger.DummyLogger() for _ in silent.loggers]


def lightning_average(trainer: pl.Trainer) -> Any:
    """The `AveragedModel` of the first `WeightAveraging` that has one, as checkpoints hold it; None without one."""
    kind = pl.callbacks.WeightAveraging
    averages = (callback._average_model for callback in trainer.callbacks if isinstance(callback, kind))
    return next((average for average in averages if average is not None), None)


LOSSES = ("train_loss", "training_loss", "train/loss", "loss/train", "loss")  # the first that is logged counts
_LEFT_OUT = ("epoch", "step", STANDARD_ERROR)


def log_check(trainer: pl.Trainer, check: dict[str, Any], *, is_by_steps: bool) -> dict[str, Tensor]:
    """Log a check at the step at which Lightning logs the last batch; the values that callbacks can read then.

    `log_dict` would be slow, skip steps within an epoch, and keep values in `callback_metrics` until its end.
    """
    if trainer.barebones:  # it logs nothing, and warns of attempts
        return {}
    step = trainer.fit_loop.epoch_loop._batches_that_stepped - (not is_by_steps)  # counted after the batch's end
    shown = {name: value for name, value in check.items() if name not in _LEFT_OUT}
    for logger in trainer.loggers:
        logger.log_metrics({**shown, "epoch": trainer.current_epoch}, step)
        logger.save()
    values = {name: torch.tensor(value, device="cpu") for name, value in shown.items()}
    trainer.callback_metrics.update(values)
    trainer.logged_metrics.update(values)
    in_bar = {name: value for name, value in shown.items() if name in SIGNALS and SIGNALS[name].is_in_progress_bar}
    trainer.progress_bar_metrics.update(in_bar)
    return values


def record_folder(trainer: pl.Trainer) -> Path | None:
    """Folder of the first checkpoint callback (the keeper), or of logs; None if none is on this machine's disk."""
    if trainer.fast_dev_run or trainer.barebones:
        return None
    folder = getattr(trainer.checkpoint_callback, "dirpath", None)
    if folder is None and trainer.loggers:
        folder = trainer.log_dir  # all processes must ask for it
    return None if folder is None or "://" in str(folder) or not trainer.is_global_zero else Path(folder)


def training_loss(trainer: pl.Trainer, *, is_within_epoch: bool) -> float | None:
    """The training loss that the module has logged; None if there is none.

    It is the epoch's mean if the module logs that (`on_epoch=True`); otherwise, and within an epoch, the last batch's.
    All processes must read it: it may be their mean. (`trainer.callback_metrics` also has older and validation values.)
    """
    results: Any = trainer._results
    logged = dict(results.metrics(on_step=True)["callback"])
    if not is_within_epoch:
        logged |= results.metrics(on_step=False)["callback"]
    return next((float(logged[name]) for name in LOSSES if name in logged), None)


class FileKeeper(pl.callbacks.ModelCheckpoint):
    """Lightning's `ModelCheckpoint` by the score of each check, with one file under a name of its own.

    The engine keeps the weights. The file is for whoever loads it: nothing of bu-torch reads it. After a best check the
    owner asks for it, and it is written when this callback's turn in the same hook comes: Lightning makes a checkpoint,
    into which the owner's `LastCallback` has the kept weights put. `ModelCheckpoint` by itself would read stale values
    between checks, and forget the best score when a resumed run writes to a new folder.
    """

    state_key = "FileKeeper"  # one of its own

    def __init__(self, owner: Any, token: str) -> None:
        engine, filename = owner.engine, owner.filename
        super().__init__(
            monitor=engine.history.score_name,
            mode="max",
            save_on_train_epoch_end=True,
            dirpath=owner.dirpath,
            filename=f"{filename or 'boundary-{epoch}-{step}'}-{token}",
            save_weights_only=owner.save_weights_only,
        )
        skip_empty_hooks(self, "" if owner.is_by_steps else "on_train_batch_end")
        self.engine: Engine = engine
        places = dict.fromkeys(("epoch", "step"), torch.tensor(0))
        example = "'{epoch}-{expected_accuracy:.3f}'"
        before = f"`filename` must be a template as `ModelCheckpoint` takes, such as {example}, got {filename!r}: "
        with misconfigured(AttributeError, IndexError, KeyError, TypeError, ValueError, before=before):
            self.format_checkpoint_name(places | dict.fromkeys(SIGNALS, torch.tensor(0.5).double()))
        self._written: set[str] = owner._written  # best files of this process, in all fits of the callback
        self._must_write = False  # the last check is the best, and not written yet
        self.saving: ExitStack | None = None  # open while a file is written
        self._earlier = ""  # best file before, until the next is written
        self._raw: dict[str, Tensor] = {}  # weights of training, while averaged shards are in their place

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if stage == FITTING and self.engine.is_over:  # of an earlier fit; its owner is no longer in the list
            trainer.callbacks = [callback for callback in trainer.callbacks if callback is not self]
        folder = str(self.dirpath).removeprefix("file://")
        if self.dirpath is not None and "://" not in folder:  # a logger or the user may give a relative one
            self.dirpath: Any = str(Path(folder).absolute())

    def ask_to_write(self) -> None:
        """Have the kept check written when the hook comes; until then the file of the best before is not the best."""
        self._must_write, self._earlier = True, self.best_model_path or self._earlier
        self.set_best("", None)

    def set_best(self, path: str, score: Tensor | None) -> None:
        """Name the best file; "" if there is none."""
        self.best_model_path = self.kth_best_model_path = path
        self.best_model_score = self.kth_value = self.current_score = score
        self.best_k_models = {} if score is None else {path: score}

    def on_train_epoch_end(self, trainer: pl.Trainer, *_: Any, **__: Any) -> None:
        """Write the kept check in place of the best file before, unless that has been done."""
        if self._must_write and (kept := self.engine.history.kept) is not None:
            self._must_write = False
            values = {name: _on_cpu(value) for name, value in kept.items() if name not in ("epoch", "step")}
            path = self._get_metric_interpolated_filepath_name(self._monitor_candidates(trainer) | values, trainer)
            self.set_best(path, values[self.monitor])
            self._write(trainer, path)

    on_train_batch_end = on_train_epoch_end

    def _write(self, trainer: pl.Trainer, path: str) -> None:
        """Write the best file; on one process, a failure is a warning."""
        try:
            with self.engine.record.timing("saving_seconds"):
                self._save(trainer, path)
        except BaseException as error:  # Ctrl-C, or whatever a writer raises
            self.set_best("", None)
            if not isinstance(error, OSError) or trainer.world_size > 1:  # other processes wait within Lightning
                raise
            stays = f" The file of the best check before stays: {printable(self._earlier)}" if self._earlier else ""
            rank_zero_warn(
                f"The checkpoint of epoch {trainer.current_epoch} cannot be written: {error}. Training continues, with"
                f" its weights in memory.{stays}"
            )

    def _save(self, trainer: pl.Trainer, path: str) -> None:
        """Have Lightning write a file, for which averaged shards are in the module; delete the best file before."""
        module, engine = trainer.lightning_module, self.engine
        try:
            # The module's `on_save_checkpoint` may draw random numbers.
            shards = engine.average.values if engine.processes.are_sharded else {}
            with preserved_random_state(), ExitStack() as self.saving, replaced_in_place(module, shards) as own:
                self._raw = {name: gathered(value) for name, value in own.items()}
                trainer.save_checkpoint(path, weights_only=False)  # True would skip `LastCallback`
        finally:
            self.saving, self._raw = None, {}
        self._written.add(path)
        for logger in trainer.loggers if trainer.is_global_zero else ():
            logger.after_save_checkpoint(weakref.proxy(self))
        if self._earlier in self._written and self._should_remove_checkpoint(trainer, self._earlier, path):
            trainer.strategy.remove_checkpoint(self._earlier)
        self._earlier = ""  # that of an earlier run stays

    def put_kept_weights(self, trainer: pl.Trainer, checkpoint: dict[str, Any], until_saved: ExitStack) -> None:
        """Put the kept weights into the own file, and beside them those of training.

        The module has the average until the file is written: its own `on_save_checkpoint`, which comes next, may read
        it. What other callbacks have put into the file stays.
        """
        module, engine, raw = trainer.lightning_module, self.engine, self._raw
        saved, kept = checkpoint["state_dict"], engine.history.kept or {}
        # Lightning's own hooks put in an average of its, and shards.
        if not engine.processes.are_sharded and lightning_average(trainer) is None:
            measured = with_names_of(saved, engine.kept_weights)
            saved.update({name: value for name, value in measured.items() if name in saved})
            others = drop_saved(named_weights(module), saved)
            raw = {name: value.detach() for name, value in others.items() if name in saved and value is not None}
            until_saved.enter_context(exchanged(module, engine.average.values))
        if self.save_weights_only:
            for name in ("callbacks", "optimizer_states", "lr_schedulers", type(trainer.precision_plugin).__qualname__):
                checkpoint.pop(name, None)
        elif raw:
            checkpoint[RAW_WEIGHTS] = raw
        if THRESHOLD in kept:
            checkpoint[THRESHOLD] = kept[THRESHOLD]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Name the best file of a run that resumes, if it is there; nothing else in the state is needed or trusted."""
        history = self.engine.history
        path = str(state_dict.get("best_model_path", ""))
        if history.kept is not None and not self.engine.is_over and self._is_there(path):
            self.set_best(path, _on_cpu(history.kept[history.score_name]))

    def _is_there(self, path: str) -> bool:
        """Whether it is a local file or folder of shards, or a file in the remote store of this run."""
        store, _, _ = str(self.dirpath).rpartition("://")
        if store:
            return path.startswith(f"{store}://") and bool(self._fs.exists(path))
        return Path(path).is_absolute() and (Path(path).is_file() or Path(path).is_dir())


def _on_cpu(value: Any) -> Tensor:
    return torch.tensor(float(value), dtype=torch.float64, device="cpu")
