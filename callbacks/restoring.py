"""The weights of the kept check, put back into the module when training ends."""

import copy
import os
from pathlib import Path
from typing import Any

from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn

from bu_torch.callbacks.keeper import FileKeeper, Keeper, MemoryKeeper
from bu_torch.callbacks.lightning_tree import Trainer
from bu_torch.callbacks.weights import OUT_OF_REACH, SHARDED, leave_training
from bu_torch.internal.printing import cleaned
from bu_torch.ranking.checkpoints import why_unreadable
from bu_torch.run.weights import listed, load

_AS_THEY_ARE = "The weights stay as training left them."


def restore(trainer: Trainer, keeper: Keeper) -> str:
    """Put the weights of the kept check back; "", "partly " or "not ", as they are in the module then.

    Whatever cannot be put back ends in a warning: the training is over, and has succeeded.
    """
    module, name = trainer.lightning_module, type(trainer.strategy).__name__
    path = cleaned(keeper.best_model_path)
    is_read_by_all = name in SHARDED and isinstance(keeper, FileKeeper)  # together, so not after a Ctrl-C
    if name in OUT_OF_REACH or (is_read_by_all and trainer.interrupted):
        rank_zero_warn(f"{name} shards the weights, so those of the kept epoch are not restored: they are in {path}.")
        return "not "
    if isinstance(keeper, FileKeeper) and (why := _why_not_read(keeper)):
        rank_zero_warn(f"{why}: {path}. {_AS_THEY_ARE}")
        return "not "
    leave_training(trainer)
    before = {n: copy.deepcopy(value) for n, value in module.state_dict().items()} if is_read_by_all else {}
    try:
        if isinstance(keeper, MemoryKeeper):
            return _load(trainer, keeper.best.weights, "", is_own=not keeper.has_resumed)
        assert isinstance(keeper, FileKeeper)  # noqa: S101  (there is no third kind)
        return _load_file(trainer, keeper, is_read_by_all=is_read_by_all)
    except Exception as error:  # what a damaged or crafted file raises is not documented, and may not end the fit
        if before:
            module.load_state_dict(before, strict=False)
        refusal, remedy = f"The weights of the kept epoch{f', {path},' if path else ''} cannot be put back", ""
        if isinstance(keeper, FileKeeper) and not keeper.is_own(keeper.best_model_path) and not is_read_by_all:
            refusal = (
                f"The checkpoint of the kept epoch, {path}, was not written by this process and cannot be read as plain"
                " data"
            )
            remedy = (
                " If you trust the file, read it with `torch.load(path, weights_only=False)`, or allow its classes"
                " before the next `fit` with `torch.serialization.add_safe_globals`."
            )
        rank_zero_warn(f"{refusal}: {cleaned(why_unreadable(error))}. {_AS_THEY_ARE}{remedy}")
        return "not "


def _why_not_read(keeper: FileKeeper) -> str:
    """Say why the best file is not read; "" if it is."""
    if not keeper.is_best_readable():
        return "The checkpoint of the kept epoch is missing"
    if keeper.has_been_replaced():
        return "Another run or program has written over the checkpoint of the kept epoch, which is not restored"
    return ""


def _load_file(trainer: Trainer, keeper: FileKeeper, *, is_read_by_all: bool) -> str:
    """Load the weights of a file; that of an earlier process as plain data."""
    path, is_own, strategy = keeper.best_model_path, keeper.is_own(keeper.best_model_path), trainer.strategy
    if Path(path).is_dir() and not (is_own or Path(trainer.ckpt_path or os.devnull).is_dir()):
        raise ValueError("the list of shards in a folder may run code, and training did not resume from a folder")
    optimizers, strategy.optimizers = strategy.optimizers, []  # sharding strategies would load their states, too
    try:
        checkpoint = strategy.load_checkpoint(path, weights_only=not is_own)
    finally:
        strategy.optimizers = optimizers
    if not (is_own or is_read_by_all):
        place = checkpoint.get("epoch"), checkpoint.get("global_step")
        if place != (keeper.best_epoch, keeper.best_step):
            raise ValueError(f"it is of epoch {place[0]} and step {place[1]}, another one than the state says")
    trainer.lightning_module.on_load_checkpoint(checkpoint)
    if is_read_by_all:
        strategy.load_model_state_dict(checkpoint, strict=False)
        return ""
    return _load(trainer, checkpoint["state_dict"], path, is_own=is_own)


def _load(trainer: Trainer, saved: dict[str, Any], path: str, *, is_own: bool) -> str:
    """Load weights of which some may be left out: those stay as they are in the module, and a line says so."""
    module = trainer.lightning_module
    try:
        found = load(module, saved, may_lack=is_own or not module.strict_loading)
    except ValueError as error:
        raise ValueError(f"they do not fit: {error}") from error
    where = f" Its checkpoint is {cleaned(path)}." if path else ""
    if found.missing:
        rank_zero_warn(
            f"The saved weights of the kept epoch leave out {len(found.missing)} that training changes:"
            f" {listed(found.missing)}. Those stay as the last epoch left them; all others are restored.{where}"
        )
    elif found.left_out:
        rank_zero_info(
            f"The saved weights of the kept epoch leave out {len(found.left_out)} that training does not change, which"
            f" stay as they are in the module: {listed(found.left_out)}."
        )
    if found.unknown and module.strict_loading:
        rank_zero_warn(f"The module has no place for saved weights of the kept epoch: {listed(found.unknown)}.{where}")
    return "partly " if found.missing else ""
