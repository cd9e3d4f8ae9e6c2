"""The end of a fit, after all other callbacks: the kept weights are put back, and a line says what was kept."""

import copy
import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn
from torch import nn

from bu_torch.callbacks.companion import Companion, VerdictBearerMixin, place_of_check, within_margin
from bu_torch.callbacks.keeper import KeeperMixin, MemoryKeeperMixin
from bu_torch.callbacks.lightning_trees import FITTING, LightningModule, Trainer, library_of
from bu_torch.callbacks.monitor import describe_exception
from bu_torch.callbacks.weights import OUT_OF_REACH, SHARDED, leave_training
from bu_torch.internal.printing import cleaned
from bu_torch.ranking.checkpoints import why_unreadable
from bu_torch.rule.rules import as_rule
from bu_torch.run.closing import remarks

if TYPE_CHECKING:
    from bu_torch.callbacks.stopping import BoundaryUncertaintyStopping

_MOST_NAMES = 5


class ConcluderMixin(Companion):
    """Puts the kept weights back when training ends, last of all callbacks: others have saved those of training.

    From the end of a fit to the next it takes the state key of the `ModelCheckpoint` that Lightning adds by itself, and
    that one is out of the list: `ckpt_path="best"` would otherwise warn of two checkpoint callbacks.
    """

    def __init__(self, owner: "BoundaryUncertaintyStopping", default_checkpoint: Any) -> None:
        self.owner = owner
        self.default_checkpoint = default_checkpoint
        self._is_standing_in = False
        self._is_concluded = False

    @property
    def state_key(self) -> str:
        return str(self.default_checkpoint.state_key) if self._is_standing_in else super().state_key

    def state_dict(self) -> dict[str, Any]:
        return dict(self.default_checkpoint.state_dict()) if self._is_standing_in else {}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == FITTING:  # the owner, which does so before, may have left the trainer
            self.bring_default_checkpoint_back(trainer, pl_module)

    def bring_default_checkpoint_back(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put back what `_stand_in` has taken out; Lightning walks over the list of before and would not set it up."""
        if self._is_standing_in:
            self._is_standing_in = False
            trainer.callbacks = [*trainer.callbacks, self.default_checkpoint]
            self.default_checkpoint.setup(trainer, pl_module, FITTING)

    def _stand_in(self, trainer: Trainer) -> None:
        others = [one for one in trainer.callbacks if one is not self.default_checkpoint]
        self._is_standing_in = len(others) < len(trainer.callbacks)
        trainer.callbacks = others

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # The module's own hook comes next, which may export it. If files are written asynchronously, they are there
        # only in `on_fit_end`.
        is_written = not isinstance(trainer.strategy.checkpoint_io, self.library.plugins.io.AsyncCheckpointIO)
        if self.owner in trainer.callbacks and is_written:
            self._conclude(trainer)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.owner in trainer.callbacks:
            self._conclude(trainer)
            self._stand_in(trainer)
            # The parent of a spawned process, whose list lacks all companions, takes the best path of the first
            # checkpoint callback here for that of the first one there: the user's.
            if self.default_checkpoint is None and hasattr(trainer.strategy.launcher, "get_extra_results"):
                trainer.callbacks = sorted(trainer.callbacks, key=lambda one: isinstance(one, KeeperMixin))

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self.owner in trainer.callbacks:
            self._conclude(trainer, exception)
            self._stand_in(trainer)

    def _conclude(self, trainer: Trainer, exception: BaseException | None = None) -> None:
        """Restore the kept epoch, and say in a line what was kept and why training ended."""
        if trainer.state.fn != FITTING or trainer.fast_dev_run or self._is_concluded:
            return
        self._is_concluded = True
        owner, tracker = self.owner, self.owner.tracker
        owner.stopping_reason = why_ended(trainer, exception, owner._bearer)
        cost = tracker.account.cost()
        tracker.end(
            owner.stopping_reason,
            kept_epoch=owner.best_epoch,
            kept_step=owner.best_step,
            stopped_epoch=owner.stopped_epoch,
            best_model_path=owner.best_model_path,
        )
        is_graceful = exception is None or isinstance(exception, KeyboardInterrupt)
        if owner._keeper is not None and owner._kept is not None:
            how = restore(trainer, owner._keeper) if is_graceful and owner.restore_best_weights else "not "
            rank_zero_info(f"{_describe_kept(owner, owner._kept, how, has_failed=exception is not None)} {cost}")
            for line in remarks(tracker, owner._kept):
                rank_zero_info(line)
        elif trainer.current_epoch or is_graceful:
            why = tracker.checks.why_none_kept()
            name = "every_n_epochs" if owner.every_n_train_steps is None else "every_n_train_steps"
            if not owner.history and getattr(owner, name) > 1:
                why += f" (`{name}={getattr(owner, name)}`)"
            if owner._fit.waits_for_average:
                why += ": the average of WeightAveraging was not updated before it"
            rank_zero_info(
                f"Boundary uncertainty kept no epoch: {why}. {owner.stopping_reason} The weights are those of training."
            )


def _describe_kept(owner: "BoundaryUncertaintyStopping", kept: dict[str, Any], how: str, *, has_failed: bool) -> str:
    """Say what was kept, and where it is."""
    tracker, name, path = owner.tracker, owner.tracker.checks.score_name, owner.best_model_path
    assert tracker.checks.selection is not None  # noqa: S101  (there is a rule)
    title, unit = tracker.checks.selection.title, as_rule(owner.rule).unit
    where = f", its checkpoint is {cleaned(path)}" if path else ""
    is_last = kept is owner.history[-1] is tracker.checks.highest and owner.stopped_epoch is None and not has_failed
    longer = " That was the last check: longer training may help." if is_last else ""
    score = f"{kept[name]:.4f}{unit and f' {unit}'}{within_margin(owner)}"
    return (
        f"Boundary uncertainty kept {place_of_check(owner, kept)} ({title}: {score}):"
        f" its {'averaged ' if tracker.average is not None else ''}weights are {how}in the model{where}."
        f" {owner.stopping_reason.rstrip('.')}.{longer}"
    )


def why_ended(trainer: Trainer, exception: BaseException | None, bearer: VerdictBearerMixin | None) -> str:
    """Name the reason for which training ended."""
    if exception is not None:
        return describe_exception(exception)
    if bearer is not None and bearer.has_stopped:
        return str(bearer.stopping_reason_message)
    timers = [one for one in trainer.callbacks if isinstance(one, library_of(trainer).callbacks.Timer)]
    if any(left is not None and left <= 0 for left in (one.time_remaining() for one in timers)):
        return "Training ran until `max_time`."
    if (who := _who_stopped(trainer)) is not None:
        name = type(getattr(who, "owner", who)).__name__
        said = f"`{name}` stopped training in epoch {who.stopped_epoch}"
        return f"{said}: {who.stopping_reason_message.removesuffix(' Signaling Trainer to stop.')}"
    if trainer.limit_train_batches == 0:
        return "There was no training batch."
    if trainer.max_epochs not in (None, -1) and trainer.current_epoch >= trainer.max_epochs:
        return f"Training ran until `max_epochs={trainer.max_epochs}`."
    if trainer.max_steps != -1 and trainer.global_step >= trainer.max_steps:
        return f"Training ran until `max_steps={trainer.max_steps}`."
    return "Other code stopped training (`trainer.should_stop`)."


def _who_stopped(trainer: Trainer) -> Any:
    """Early stopping that stopped this training, by Lightning or in another callback of this kind; None if none did."""
    stopped = (one for one in trainer.callbacks if isinstance(one, library_of(trainer).callbacks.EarlyStopping))
    now = trainer.current_epoch - 1  # or later; what stopped an earlier fit keeps its words
    said = (one for one in stopped if one.stopping_reason_message and one.stopped_epoch >= now)
    return next(said, None) if trainer.should_stop else None


def restore(trainer: Trainer, keeper: KeeperMixin | MemoryKeeperMixin) -> str:
    """Put the weights of the kept check back; "", "partly " or "not ", as they are in the module then."""
    module = trainer.lightning_module
    path = cleaned(keeper.best_model_path)
    is_in_memory = isinstance(keeper, MemoryKeeperMixin)
    name = type(trainer.strategy).__name__
    is_read_by_all = name in SHARDED and not is_in_memory  # together, so not after a Ctrl-C
    if name in OUT_OF_REACH or (is_read_by_all and trainer.interrupted):
        rank_zero_warn(f"{name} shards the weights, so those of the kept epoch are not restored: they are in {path}.")
        return "not "
    if not keeper.is_best_there:
        rank_zero_warn(f"The checkpoint of the kept epoch is missing: {path}.")
        return "not "
    leave_training(trainer)
    if keeper.is_best_own and not (is_in_memory or is_read_by_all):
        return _load(trainer, keeper)
    before = {name: copy.deepcopy(value) for name, value in module.state_dict().items()}
    try:
        return _load(trainer, keeper)
    except Exception as error:  # what a damaged or crafted file raises is not documented, and may not end the fit
        module.load_state_dict(before, strict=False)
        refusal, remedy = "The weights of the kept epoch, which the resumed state holds, do not fit", ""
        if is_read_by_all:
            refusal = f"The checkpoint of the kept epoch, {path}, cannot be read"
        elif not is_in_memory:
            refusal = (
                f"The checkpoint of the kept epoch, {path}, was not written by this process and cannot be read as plain"
                " data"
            )
            remedy = (
                " If you trust the file, read it with `torch.load(path, weights_only=False)`, or allow its classes"
                " before the next `fit` with `torch.serialization.add_safe_globals`."
            )
        why = cleaned(why_unreadable(error))
        rank_zero_warn(f"{refusal}: {why}. The weights stay as training left them.{remedy}")
        return "not "


def _load(trainer: Trainer, keeper: KeeperMixin | MemoryKeeperMixin) -> str:
    """Load weights of which some may be left out: those stay as they are in the module, and a line says so."""
    module, path, is_own = trainer.lightning_module, keeper.best_model_path, keeper.is_best_own
    load: Callable[[], Any]
    if isinstance(keeper, MemoryKeeperMixin):
        load = partial(module.load_state_dict, keeper.best.fitted(module), strict=False)
    else:  # a file of this process may hold hyperparameters of any class
        if Path(path).is_dir() and not (is_own or Path(trainer.ckpt_path or os.devnull).is_dir()):
            raise ValueError("the list of shards in a folder may run code, and training did not resume from a folder")
        strategy, optimizers = trainer.strategy, trainer.strategy.optimizers
        strategy.optimizers = []  # strategies that shard weights would load their states, too
        try:
            checkpoint = strategy.load_checkpoint(path, weights_only=not is_own)
        finally:
            strategy.optimizers = optimizers
        module.on_load_checkpoint(checkpoint)
        load = partial(strategy.load_model_state_dict, checkpoint, strict=False)
    missing, unexpected = load_what_is_there(module, load)
    changed = changed_by_training(module, missing)
    wrong = [*changed, *unexpected]
    if wrong and module.strict_loading and not is_own:
        raise ValueError(f"it lacks weights of the module, or holds others: {listed(wrong)}")
    where = f" Its checkpoint is {cleaned(path)}." if path else ""
    if changed:
        rank_zero_warn(
            f"The saved weights of the kept epoch leave out {len(changed)} that training changes:"
            f" {listed(changed)}. Those stay as the last epoch left them; all others are restored.{where}"
        )
    elif missing:
        rank_zero_info(
            f"The saved weights of the kept epoch leave out {len(missing)} that training does not change, which"
            f" stay as they are in the module: {listed(missing)}."
        )
    if unexpected and module.strict_loading:
        rank_zero_warn(f"The module has no place for saved weights of the kept epoch: {listed(unexpected)}.{where}")
    return "partly " if changed else ""


def load_what_is_there(module: nn.Module, load: Callable[[], Any]) -> tuple[list[str], list[str]]:
    """Call `load`, which loads a state into `module`: names that the state lacks, and that the module does not know."""
    found: list[Any] = []
    handle = module.register_load_state_dict_post_hook(lambda _, keys: found.append(keys))
    try:
        load()
    finally:
        handle.remove()
    missing = [name for keys in found for name in keys.missing_keys]
    return missing, [name for keys in found for name in keys.unexpected_keys]


def changed_by_training(module: nn.Module, names: Iterable[str]) -> list[str]:
    """Those of `names` that are no frozen parameters, and no buffers of integers or of a submodule in eval mode.

    A parameter that goes by several names counts if all of them are there.
    """
    missing = set(names)
    parameters = dict(module.named_parameters(remove_duplicate=False))
    loaded = {id(one) for name, one in parameters.items() if name not in missing}
    buffers = dict(module.named_buffers(remove_duplicate=False))

    def may_have_changed(name: str) -> bool:
        if name in parameters:
            return parameters[name].requires_grad and id(parameters[name]) not in loaded
        if name in buffers:
            return buffers[name].is_floating_point() and module.get_submodule(name.rpartition(".")[0]).training
        return True

    return [name for name in names if may_have_changed(name)]


def listed(names: list[str]) -> str:
    """The first names, and how many more there are."""
    shown = ", ".join(names[:_MOST_NAMES])
    return f"{shown} and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else shown
