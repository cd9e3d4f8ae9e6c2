"""Weights that a checkpoint leaves out: loading the others, and telling which of those left out training may change."""

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

_MOST_NAMES = 5


def load_what_is_there(module: nn.Module, load: Callable[[], Any]) -> tuple[list[str], list[str]]:
    """Call `load`, which loads a state into `module` with `strict=False`.

    Returns:
        Names that the state lacks, and names that the module does not know.
    """
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
