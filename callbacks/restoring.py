"""The kept weights put back into the module when training ends."""

import copy
import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn
from torch import nn

from bu_torch.callbacks.averages import OUT_OF_REACH, SHARDED
from bu_torch.callbacks.keeper import KeeperMixin, MemoryKeeperMixin
from bu_torch.callbacks.lightning_trees import Trainer
from bu_torch.callbacks.optimizers import leave_training
from bu_torch.internal.printing import cleaned
from bu_torch.ranking.checkpoints import why_unreadable

_MOST_NAMES = 5


def restore(trainer: Trainer, keeper: KeeperMixin | MemoryKeeperMixin | None) -> str:
    """Put the weights of the kept check back; "", "partly " or "not ", as they are in the module then."""
    module = trainer.lightning_module
    path = "" if keeper is None else cleaned(keeper.best_model_path)
    is_in_memory = isinstance(keeper, MemoryKeeperMixin)
    name = type(trainer.strategy).__name__
    is_read_by_all = name in SHARDED and not is_in_memory  # together, so not after a Ctrl-C
    if name in OUT_OF_REACH or (is_read_by_all and trainer.interrupted):
        rank_zero_warn(f"{name} shards the weights, so those of the kept epoch are not restored: they are in {path}.")
        return "not "
    if keeper is None or not keeper.is_best_there:
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
    missing: list[str] = []
    unexpected: list[str] = []

    def take(_: nn.Module, keys: Any) -> None:
        missing.extend(keys.missing_keys)
        unexpected.extend(keys.unexpected_keys)

    handle = module.register_load_state_dict_post_hook(take)
    try:
        load()
    finally:
        handle.remove()
    return missing, unexpected


def changed_by_training(module: nn.Module, names: Iterable[str]) -> list[str]:
    """Those of `names` whose values training may have changed.

    They are all but frozen parameters and buffers of integers or of a submodule in eval mode. A parameter that goes by
    several names counts if all of them are there.
    """
    missing = set(names)
    parameters = dict(module.named_parameters(remove_duplicate=False))
    loaded = {id(parameter) for name, parameter in parameters.items() if name not in missing}
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
