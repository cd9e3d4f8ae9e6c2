"""Weights of the kept check, and how weights that were saved go back into a network."""

import copy
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bu_torch.internal.replica import copy_of, gathered, has_shards, overwrite, replaced_in_place, sharded_like
from bu_torch.run.averaging import weights_of

_MOST_NAMES = 5


class BestWeights:
    """A copy of the weights at the kept check."""

    def __init__(self) -> None:
        self.epoch: int | None = None
        self.step: int | None = None
        # A `state_dict` on the CPU, with this process's shards; empty if the model was no module.
        self.weights: dict[str, Any] = {}

    def keep(self, state: Mapping[str, Any], epoch: int, step: int | None) -> None:
        """Keep a copy of a `state_dict`."""
        self.epoch, self.step = epoch, step
        self.weights = {
            name: value.detach().cpu().clone() if isinstance(value, Tensor) else value for name, value in state.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """Epoch, step and weights; shards are put together, so all processes must call this."""
        weights = {name: gathered(value) for name, value in self.weights.items()}
        return {"best_epoch": self.epoch, "best_step": self.step, "best_weights": weights}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        places = (state_dict["best_epoch"], state_dict["best_step"])
        self.epoch, self.step = (place if isinstance(place, int) else None for place in places)
        self.weights = state_dict["best_weights"]


class Fitted(NamedTuple):
    """Saved weights as a module takes them, and what does not fit."""

    state: dict[str, Any]  # keys are the module's names; sharded like its own weights
    missing: list[str]  # weights of the module that were not saved and that training changes
    left_out: list[str]  # other weights that were not saved
    unknown: list[str]  # saved weights for which the module has no name
    misshapen: list[str]  # saved weights of another shape than the module's

    def objection(self, *, may_lack: bool) -> str:
        """Say why the module cannot take the weights, which `may_lack` some, or hold others besides; "" if it can."""
        if self.misshapen:
            return f"weights have another shape in the module: {listed(self.misshapen)}"
        if self.missing and (self.unknown or not may_lack):
            return f"they lack weights of the module: {listed(self.missing)}"
        if self.unknown and not may_lack:
            return f"the module has no place for {listed(self.unknown)}"
        return "there are none" if not self.state and (self.missing or self.left_out) else ""


def fitted(module: nn.Module, saved: Mapping[str, Any]) -> Fitted:
    """Match saved weights to those of a module by name, with or without the prefixes of wrappers.

    `torch.compile` puts `_orig_mod.` into names; `DataParallel` and its kin put `module.` before them.
    """
    now = dict(module.state_dict())
    plain = {_plain(name): name for name in now}
    state, unknown, misshapen = {}, [], []
    for name, value in saved.items():
        place = name if name in now else plain.get(_plain(name))
        if place is None:
            unknown.append(name)
        elif getattr(now[place], "shape", None) != getattr(value, "shape", None):
            misshapen.append(name)
        else:
            state[place] = sharded_like(value, now[place])
    absent = [name for name in now if name not in state]
    missing = changed_by_training(module, absent)
    return Fitted(state, missing, [name for name in absent if name not in missing], unknown, misshapen)


def load(module: nn.Module, saved: Mapping[str, Any], *, may_lack: bool) -> Fitted:
    """Load saved weights into a module, which may have more; what it then lacks is told, and what it has no place for.

    Raises:
        ValueError: If the weights do not fit; then the module is as it was.
    """
    kept, now, told = fitted(module, saved), module.state_dict(), list[str]()
    if objection := kept.objection(may_lack=may_lack):
        raise ValueError(objection)
    before = {
        name: one.detach().cpu().clone() if isinstance(one := now[name], Tensor) else copy.deepcopy(one)
        for name in kept.state
    }
    watched = nn.Module() if isinstance(module, torch.jit.ScriptModule) else module  # takes no such hook
    handle = watched.register_load_state_dict_post_hook(lambda _, keys: told.extend(keys.missing_keys))
    try:
        module.load_state_dict(kept.state, strict=False)
        # A `state_dict` of the module's own may hide weights, which `load_state_dict` looks for.
        absent = [*kept.missing, *kept.left_out, *(name for name in told if name not in now)]
        missing = changed_by_training(module, absent)
        kept = kept._replace(missing=missing, left_out=[name for name in absent if name not in missing])
        if objection := kept.objection(may_lack=may_lack):
            raise ValueError(objection)
    except Exception:
        module.load_state_dict(before, strict=False)
        raise
    finally:
        handle.remove()
    return kept


def _plain(name: str) -> str:
    return name.replace("_orig_mod.", "").removeprefix("module.")


def changed_by_training(module: nn.Module, names: Iterable[str]) -> list[str]:
    """Names that training may have changed: no frozen parameter, no integer buffer, no buffer of a part in eval mode.

    A tied parameter counts only if all its names are among `names`.
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
    """Names in words: the first few, and how many more there are."""
    shown = ", ".join(names[:_MOST_NAMES])
    return f"{shown} and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else shown


def state_to_keep(model: object, values: Mapping[str, Tensor]) -> dict[str, Any]:
    """`state_dict` of a module with `values` in place of its own, by name; empty if `model` is no module.

    It is computed on a fresh copy, because a module may derive its state from weights, and the copy that a check has
    read may have merged weights or moved buffers.
    """
    if not isinstance(model, nn.Module):
        return {}
    if not has_shards(model):
        return dict(copy_of(model, values).state_dict())
    with replaced_in_place(model, values):
        return {n: one.clone() if isinstance(one, Tensor) else one for n, one in model.state_dict().items()}


def put_back(module: nn.Module, weights: Mapping[str, Tensor], *, may_lack: bool = False) -> bool:
    """Put the weights of training, by name, into a module that was loaded with their average.

    Returns False and changes nothing if the module has no place for some of them, unless it `may_lack` them.
    """
    found = weights_of(module, once=False)
    fitting = {name: weight for name, weight in weights.items() if name in found or not may_lack}
    if any(name not in found or found[name].shape != weight.shape for name, weight in fitting.items()):
        return False
    overwrite(found, {name: sharded_like(weight, found[name]) for name, weight in fitting.items()})
    return True
