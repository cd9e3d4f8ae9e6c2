"""Checkpoints, read without executing anything in them, and modules with their weights."""

import inspect
import re
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bu_torch.internal.output import printable
from bu_torch.internal.replica import copy_of, preserved_random_state
from bu_torch.run.weights import with_names_of

SUFFIXES = (".ckpt", ".pt", ".pth", ".safetensors")  # endings of checkpoints in a folder
_STATES = ("state_dict", "model_state_dict", "model")  # Lightning's key, PyTorch's tutorials', torchvision's and timm's
_WAY_OUT = "Pass a module instance, or a function without arguments that returns one."


class Checkpoint(NamedTuple):
    """Content of a file of weights, as plain data and tensors on the CPU."""

    path: Path
    state_dict: dict[str, Any]  # weights by name
    epoch: int | None  # None if the file holds none
    step: int | None  # optimiser steps (`global_step`)
    content: dict[str, Any]  # all in the file, by name


def load_checkpoint(path: str | Path, *, weights_only: bool = True) -> Checkpoint:
    """Read a checkpoint of Lightning, a `state_dict` saved by `torch.save`, or a safetensors file.

    Nothing in the file is executed. Classes other than tensors must be allowed with
    `torch.serialization.add_safe_globals`.

    Args:
        path: The file. Weights are found under `state_dict` (Lightning), `model_state_dict` or `model`, or at the top
            level; `.safetensors` needs the package safetensors.
        weights_only: False unpickles everything in the file, which can run any code: use it only for files you trust.

    Returns:
        The checkpoint, its tensors on the CPU.

    Raises:
        FileNotFoundError: If there is no such file.
        ImportError: If safetensors is needed but not installed.
        ValueError: If the file is damaged, or holds other classes or no weights.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no checkpoint `{path}`.")
    content = _read(path, weights_only)
    if isinstance(content, nn.Module):  # `torch.save(module)` wrote it
        content = content.state_dict()
    if not isinstance(content, Mapping):
        raise ValueError(f"`{path}` must hold a checkpoint or a state_dict, got {type(content).__name__}.")
    found = next((content[name] for name in _STATES if isinstance(content.get(name), Mapping)), content)
    names = [name for name, value in found.items() if isinstance(name, str) and isinstance(value, Tensor)]
    extra = [name for name in found if name not in names and not str(name).endswith("_extra_state")]
    if not names or extra:
        got = f"the entry {extra[0]!r}, which is not a tensor" if extra else "no tensor"
        raise ValueError(f"`{path}` must hold weights by name, at the top level or under {_STATES}, got {got}.")
    counts = (content.get(name) for name in ("epoch", "global_step"))
    epoch, step = (count if isinstance(count, int) and not isinstance(count, bool) else None for count in counts)
    return Checkpoint(path, dict(found), epoch, step, dict(content))


def module_with_weights(
    module: nn.Module | Callable[..., nn.Module], checkpoint: Checkpoint, device: torch.device | str | None = None
) -> nn.Module:
    """A module with the weights of a checkpoint: a copy of the one that is passed, which stays as it is.

    A class is built from the hyperparameters in the file; any other callable is called. `device` applies to the result.
    """
    if isinstance(module, nn.Module):
        # The copy shares none of the values that it is given, so that loading writes to no weight of the user's.
        return _fill(copy_of(module, dict(module.named_parameters())), checkpoint)
    if not callable(module):
        raise TypeError(f"`module` must be a torch.nn.Module or a callable, got {type(module).__name__}.")
    with preserved_random_state():
        built = _build(module, checkpoint) if inspect.isclass(module) else module()
        if not isinstance(built, nn.Module):
            raise TypeError(f"`module` must give a torch.nn.Module, got {type(built).__name__}.")
        _call_hook(built, "configure_model", checkpoint)
    filled = _fill(built, checkpoint)
    return filled if device is None else filled.to(device)


def _read(path: Path, weights_only: bool) -> Any:
    kind = "a file of `torch.save`"
    load = partial(torch.load, map_location="cpu", weights_only=weights_only)
    if path.suffix == ".safetensors":
        kind = "a safetensors file"
        try:
            load = import_module("safetensors.torch").load_file
        except ImportError as error:
            raise ImportError(f"`{path}` needs the package safetensors: pip install safetensors.") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of a file before it refuses it
            return load(path)
    except Exception as error:  # a damaged or crafted file may raise any error, even an OSError of torch
        if isinstance(error, OSError) and error.filename is not None:
            raise
        said = printable(error)
        if weights_only and (foreign := re.search(r"GLOBAL (\S+) ", said)):
            raise ValueError(
                f"`{path}` holds an object of {foreign[1][:200]}, which can run any code. If you trust the file, pass"
                " `weights_only=False` (`--no-weights-only`); if the class, `torch.serialization.add_safe_globals`."
            ) from error
        what = f"`{path}` is not {kind}, or is damaged, or holds more than weights"
        raise ValueError(f"{what}: {said[:300]} ({type(error).__name__}).") from error


def _build(build: Callable[..., Any], checkpoint: Checkpoint) -> Any:
    """Build a module with the hyperparameters in the file, passed as Lightning passes them."""
    saved = checkpoint.content.get("hyper_parameters") or {}
    if not isinstance(saved, Mapping) or "_instantiator" in saved:
        # Lightning's command line saves import paths; a crafted file could name any code.
        raise ValueError(f"`{checkpoint.path}` holds no plain hyperparameters to build the module from. {_WAY_OUT}")
    kinds = {name: parameter.kind for name, parameter in inspect.signature(build).parameters.items()}
    takes_all = inspect.Parameter.VAR_KEYWORD in kinds.values()
    name = str(checkpoint.content.get("hparams_name"))
    if saved and kinds.get(name, inspect.Parameter.VAR_KEYWORD) is not inspect.Parameter.VAR_KEYWORD:
        known = {name: dict(saved)}
    else:
        known = {key: value for key, value in saved.items() if takes_all or key in kinds}
    try:
        return build(**known)
    except TypeError as error:
        raise ValueError(
            f"`module` {getattr(build, '__name__', build)} cannot be built from the hyperparameters in"
            f" `{checkpoint.path}` ({', '.join(known) or 'none'}): {error}. {_WAY_OUT}"
        ) from error


def _fill(module: nn.Module, checkpoint: Checkpoint) -> nn.Module:
    content = {**checkpoint.content, "state_dict": checkpoint.state_dict}
    _call_hook(module, "on_load_checkpoint", checkpoint, content)  # the hook may change the weights
    state_dict = with_names_of(module.state_dict(), content["state_dict"])
    try:
        module.load_state_dict(state_dict, strict=getattr(module, "strict_loading", True))
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        said = " ".join(lines[1:] or lines)
        raise ValueError(f"`{checkpoint.path}` does not fit {type(module).__name__}: {said[:300]}") from error
    return module


def _call_hook(module: nn.Module, name: str, checkpoint: Checkpoint, *arguments: Any) -> None:
    """Call a hook that Lightning calls before it loads weights, if Lightning wrote the file."""
    hook: Any = getattr(module, name, None)
    if "pytorch-lightning_version" in checkpoint.content and callable(hook):
        hook(*arguments)
