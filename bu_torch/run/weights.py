"""Weights of a network: their average over the checks, those of the kept check, and loading them again."""

import copy
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from bu_torch.internal.replica import (
    gathered,
    is_sharded,
    largest_of_all,
    local,
    overwrite,
    replaced_in_place,
    reshard,
    sharded_like,
)
from bu_torch.run.state import check_plain, integer

_WARM_UP = 10  # checks
_MOST_NAMES = 5
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)
_MODE = "train_mode"  # key in the parameter groups of a Schedule-Free optimiser
_STATISTICS = ("running_mean", "running_var")  # buffers of normalising layers


class Averaged(NamedTuple):
    """The average of one parameter or buffer, and how many checks have entered."""

    value: Tensor
    n_checks: int


class WeightAverage:
    """Average of the weights that a module had at its checks; the last check counts most.

    At each check the weights w enter the average a, after n checks before, as a <- p a + (1 - p) w, with
    p = min(past, n / (n + 10)). So the average begins at the first check, not at the weights before training, and its
    memory is short at first, because early weights are soon outdated. (With p = past from the second check on,
    trainings of 10 epochs kept worse weights than without any average, and those of 150 no better ones.)

    The average covers trainable parameters and the running statistics of normalising layers (`running_mean`,
    `running_var`). Other buffers stay as the module has them at the check, because the mean of a count or of a queue of
    samples is meaningless. A frozen parameter enters at the first check after it is unfrozen; a buffer that is infinite
    from the start never enters. Averages are matched by name, begin anew if a shape changes, and have the dtype and the
    shards (`DTensor`) of the weight.

    Args:
        past: The largest weight of the past, 0 <= past < 1.
    """

    def __init__(self, past: float) -> None:
        self.past = past
        self.is_current = False
        self.renewed: list[str] = []  # weights whose average began anew at the last update, because its shape differed
        self._averages: dict[str, Averaged] = {}

    def update(self, module: nn.Module, *, is_again: bool = False) -> bool:
        """Add the weights of a check, unless they were added before a resume (`is_again`); waits for the device once.

        Returns False if a parameter has become NaN or infinite: the average stays, and `values` are empty until the
        next check.
        """
        found = {}
        for name, weight in named_weights(module).items():
            is_trained = isinstance(weight, nn.Parameter) and weight.requires_grad
            is_statistic = not isinstance(weight, nn.Parameter) and name.rpartition(".")[2] in _STATISTICS
            if name in self._averages or is_trained or is_statistic:
                found[name] = weight
        sizes = _sizes(found)
        self.is_current = not any(
            isinstance(found[name], nn.Parameter)
            and (math.isnan(size) or (name in self._averages and not math.isfinite(size)))
            for name, size in sizes.items()
        )
        if not self.is_current:
            return False
        self.renewed = []
        averages: dict[str, Averaged] = {}
        by_age: dict[int, list[str]] = {}
        with torch.inference_mode(False), torch.no_grad():
            for name in (name for name, size in sizes.items() if math.isfinite(size)):
                weight, before = found[name].detach(), self._averages.get(name)
                if before is None or before.value.shape != weight.shape:
                    averages[name] = Averaged(weight.clone(), 1)
                    self.renewed += [] if before is None else [name]
                    continue
                value = cast("Tensor", sharded_like(before.value, weight).to(weight.device, weight.dtype))
                averages[name] = Averaged(value, before.n_checks + (not is_again))
                by_age.setdefault(before.n_checks, []).append(name)
            for n_checks, names in by_age.items() if not is_again else ():
                past = min(self.past, n_checks / (n_checks + _WARM_UP))
                values = [local(averages[name].value) for name in names]
                entering = [local(found[name].detach()) for name in names]
                torch._foreach_lerp_(values, entering, 1 - past)
        self._averages = averages
        return True

    def values(self, module: nn.Module) -> dict[str, Tensor]:
        """Averages by name that replace the module's weights; empty if the last check was not added."""
        if not self.is_current:
            return {}
        kinds = {name: (one.shape, one.dtype) for name, one in named_weights(module).items()}
        return {n: one.value for n, one in self._averages.items() if kinds.get(n) == (one.value.shape, one.value.dtype)}

    def release(self) -> None:
        """Free the average, because training has ended."""
        self._averages, self.is_current = {}, False

    def state_dict(self) -> dict[str, Any]:
        """Averages by name, whole and on the CPU, and how many checks are in each."""
        return {
            "past": self.past,
            "n_checks": {name: one.n_checks for name, one in self._averages.items()},
            "weights": {name: gathered(one.value).cpu().clone() for name, one in self._averages.items()},
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`; with another weight of the past, the average begins anew."""
        n_checks = state_dict["n_checks"] if state_dict["past"] == self.past else {}
        weights = {name: one.clone() for name, one in state_dict["weights"].items() if bool(one.isfinite().all())}
        self._averages = {
            name: Averaged(weights[name], max(int(n), 1)) for name, n in n_checks.items() if name in weights
        }
        self.is_current = False


def named_weights(module: nn.Module, *, once: bool = True) -> dict[str, Tensor]:
    """Parameters and buffers that can be averaged, by name; with `once`, tied tensors count once."""
    reshard(module)
    parameters = {name: one for name, one in module.named_parameters(remove_duplicate=False) if not is_lazy(one)}
    buffers = {
        f"{place}.{name}" if place else name: one
        for place, part in module.named_modules(remove_duplicate=False)
        for name, one in part.named_buffers(recurse=False, remove_duplicate=False)
        if not is_lazy(one) and name not in getattr(part, "_non_persistent_buffers_set", ())
    }
    found: dict[Any, tuple[str, Tensor]] = {}
    named = {**parameters, **buffers}
    is_frozen = {name: isinstance(one, nn.Parameter) and not one.requires_grad for name, one in named.items()}
    for name, tensor in sorted(named.items(), key=lambda pair: is_frozen[pair[0]]):
        own = local(tensor)
        if _can_be_averaged(own):
            place = (own.device, own.data_ptr() or id(tensor), own.shape, own.stride())
            found.setdefault(place if once else name, (name, tensor))
    return dict(found.values())


def _can_be_averaged(tensor: Tensor) -> bool:
    """True if a tensor is plain, in memory, and made of numbers, none of which several elements share."""
    if tensor.dtype not in _DTYPES or type(tensor) is not Tensor or tensor.layout != torch.strided:
        return False
    is_shared = not tensor.is_contiguous() and any(
        stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
    )
    return not (tensor.is_meta or tensor.is_inference() or is_shared)


def _sizes(tensors: Mapping[str, Tensor]) -> dict[str, float]:
    """Largest magnitude in each tensor over the shards of all processes, NaN if it holds one; waits for them once."""
    if not tensors:
        return {}
    values = [torch.view_as_real(one) if one.is_complex() else one for one in map(local, tensors.values())]
    ends = [torch.aminmax(one) if one.numel() else (one.new_zeros(()),) * 2 for one in values]  # without a copy
    lows, highs = (torch.stack([one.to(values[0].device) for one in end]) for end in zip(*ends, strict=True))
    sizes = torch.maximum(-lows, highs)
    return dict(zip(tensors, largest_of_all(sizes, list(tensors.values())).tolist(), strict=True))


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

    def load_state_dict(self, state_dict: Any) -> None:
        """Continue from a `state_dict`; some exception, and no change, if it is none."""
        epoch, step, weights = (state_dict[name] for name in ("best_epoch", "best_step", "best_weights"))
        check_plain([one for one in weights.values() if isinstance(one, Tensor)])
        self.epoch, self.step, self.weights = integer(epoch), integer(step), dict(weights)


class MatchedWeights(NamedTuple):
    """Saved weights as a module takes them, and what does not fit."""

    state: dict[str, Any]  # keys are the module's names; sharded like its own weights
    missing: list[str]  # weights of the module that were not saved and that training changes
    left_out: list[str]  # other weights that were not saved
    unknown: list[str]  # saved weights for which the module has no name
    misshapen: list[str]  # saved weights of another shape than the module's

    def objection(self, *, allow_missing: bool) -> str:
        """Reason why the module cannot take the weights; "" if it can. `allow_missing`: some may be absent or extra."""
        if self.misshapen:
            return f"weights have another shape or kind in the module, or are NaN: {few_names(self.misshapen)}"
        if self.missing and (self.unknown or not allow_missing):
            return f"they lack weights of the module: {few_names(self.missing)}"
        if self.unknown and not allow_missing:
            return f"the module has no place for {few_names(self.unknown)}"
        return "there are none" if not self.state and (self.missing or self.left_out) else ""


def match_weights(module: nn.Module, saved: Mapping[str, Any]) -> MatchedWeights:
    """Match saved weights to those of a module by name."""
    now = dict(module.state_dict())
    state, unknown, misshapen = {}, [], []
    for name, value in with_names_of(now, saved).items():
        if name not in now:
            unknown.append(name)
        elif not _are_alike(now[name], value):
            misshapen.append(name)
        else:
            state[name] = sharded_like(value, now[name])
    absent = [name for name in now if name not in state]
    missing = changed_by_training(module, absent)
    return MatchedWeights(state, missing, [name for name in absent if name not in missing], unknown, misshapen)


def _are_alike(own: Any, saved: Any) -> bool:
    """True if a saved tensor has the shape and kind of numbers of the module's own, and no NaN unless that has some."""
    if getattr(own, "shape", None) != getattr(saved, "shape", None):
        return False
    if not (isinstance(own, Tensor) and isinstance(saved, Tensor)) or is_sharded(own) or is_sharded(saved):
        return True
    kinds = [
        (one.is_floating_point(), one.is_complex(), one.dtype == torch.bool, one.element_size() == 1)
        for one in (own, saved)
    ]
    has_numbers = saved.dtype in _DTYPES and own.dtype in _DTYPES
    has_nan = has_numbers and bool(saved.isnan().any()) and not bool(own.isnan().any())
    return kinds[0] == kinds[1] and not has_nan


def load(module: nn.Module, saved: Mapping[str, Any], *, allow_missing: bool) -> MatchedWeights:
    """Load saved weights into a module; the result tells which were missing and which had no place.

    Raises a ValueError if they do not fit; then the module is as it was.
    """
    kept, now, expected = match_weights(module, saved), module.state_dict(), list[str]()
    if objection := kept.objection(allow_missing=allow_missing):
        raise ValueError(objection)
    before = {
        name: one.detach().cpu().clone() if isinstance(one := now[name], Tensor) else copy.deepcopy(one)
        for name in kept.state
    }
    # An overridden `state_dict` may omit weights that `load_state_dict` expects; overridden, that may return None.
    watched = nn.Module() if isinstance(module, torch.jit.ScriptModule) else module  # a script takes no such hook
    handle = watched.register_load_state_dict_post_hook(lambda _, keys: expected.extend(keys.missing_keys))
    try:
        module.load_state_dict(kept.state, strict=False)
        absent = [*kept.missing, *kept.left_out, *(name for name in expected if name not in now)]
        missing = changed_by_training(module, absent)
        kept = kept._replace(missing=missing, left_out=[name for name in absent if name not in missing])
        if objection := kept.objection(allow_missing=allow_missing):
            raise ValueError(objection)
    except Exception:
        module.load_state_dict(before, strict=False)
        raise
    finally:
        handle.remove()
    return kept


def with_names_of(names: Iterable[str], saved: Mapping[str, Any]) -> dict[str, Any]:
    """Saved weights under these names, if theirs differ by wrappers alone; all others keep their own.

    `torch.compile` puts `_orig_mod` into names; `DataParallel` and its kin put `module` into them.
    """
    places: dict[str, list[str]] = {}
    for name in names:
        places.setdefault(_unwrapped(name), []).append(name)
    found: dict[str, Any] = {}
    for name, value in saved.items():
        alike = places.get(_unwrapped(name), [])
        is_unique = len(alike) == 1 and alike[0] not in saved and alike[0] not in found
        found[alike[0] if is_unique else name] = value
    return found


def _unwrapped(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in ("_orig_mod", "module"))


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


def few_names(names: list[str]) -> str:
    """Names in words: the first few, and how many more there are."""
    shown = ", ".join(names[:_MOST_NAMES])
    return f"{shown} and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else shown


def state_to_keep(model: object, values: Mapping[str, Tensor]) -> dict[str, Any]:
    """`state_dict` of a module with `values` in place of its own, by name; empty if `model` is no module."""
    if not isinstance(model, nn.Module):
        return {}
    with replaced_in_place(model, values):
        return {n: one.clone() if isinstance(one, Tensor) else one for n, one in model.state_dict().items()}


def put_training_weights(module: nn.Module, weights: Mapping[str, Tensor], *, allow_missing: bool = False) -> None:
    """Put the weights of training, by name, back into a module that holds their average.

    Raises a ValueError and changes nothing if the module has no place for some of them, unless it `allow_missing` them.
    """
    found = named_weights(module, once=False)
    fitting = {name: weight for name, weight in weights.items() if name in found or not allow_missing}
    if unfit := [name for name, one in fitting.items() if name not in found or found[name].shape != one.shape]:
        raise ValueError(f"the module has no place for {few_names(unfit)}")
    overwrite(found, {name: sharded_like(weight, found[name]) for name, weight in fitting.items()})


def optimizers_in_training(optimizers: Iterable[Any]) -> list[Any]:
    """Optimisers that must be put in evaluation mode, because the network holds the weights at which they train.

    A Schedule-Free optimiser (Defazio et al. 2024, arXiv 2405.15682) steps at y, and `eval` puts the average x into the
    parameters. An optimiser with such modes is taken to be in that of training unless it says otherwise.
    """
    found = []
    for optimizer in optimizers:
        if all(callable(getattr(optimizer, name, None)) for name in ("eval", "train")):
            modes = [group[_MODE] for group in optimizer.param_groups if _MODE in group]
            if any(modes) if modes else getattr(optimizer, _MODE, True):
                found.append(optimizer)
    return found


@contextmanager
def optimizers_in_eval_mode(optimizers: Iterable[Any]) -> Iterator[None]:
    """Put the evaluation weights of the optimisers into the network; on leaving, put those of training back.

    `train` restores them only up to rounding, so they are copied before.
    """
    training = optimizers_in_training(optimizers)
    groups = [group for one in training for group in one.param_groups]
    values = [(one, one.detach().clone()) for group in groups for one in group["params"]]
    try:
        for optimizer in training:
            optimizer.eval()
        yield
    finally:
        for optimizer in training:
            optimizer.train()
        for parameter, before in values:
            parameter.data.copy_(before)
