"""Weights of a network: their average over the checks, those of the kept check, and loading them again."""

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from bu_torch.internal.replica import (
    gathered,
    is_plain,
    is_sharded,
    local,
    replaced_in_place,
    reshard,
    sharded_like,
)
from bu_torch.run.state import check_plain, integer

_WARM_UP = 10  # checks
_MOST_NAMES = 5
_MODE = "train_mode"  # key in the parameter groups of a Schedule-Free optimiser
_STATISTICS = ("running_mean", "running_var")  # buffers of normalising layers


class Averaged(NamedTuple):
    """The average of one parameter or buffer."""

    value: Tensor
    n_checks: int  # that have entered


class WeightAverage:
    """Average of the weights that a module had at its checks; the last check counts most.

    At each check the weights w enter the average a, after n checks before, as a <- p a + (1 - p) w, with
    p = min(past, n / (n + 10)). So the average begins at the first check, not at the weights before training, and its
    memory is short at first, because early weights are soon outdated. (With p = past from the second check on,
    trainings of 10 epochs kept worse weights than without any average, and those of 150 no better ones.)

    The average covers trainable parameters and the running statistics of normalising layers (`running_mean`,
    `running_var`); other buffers, such as counts, stay as the module has them. A weight enters at the first check at
    which it is trained and finite, and anew if its shape changes, in its own dtype and shards (`DTensor`).

    Args:
        past: The largest weight of the past, 0 <= past < 1.
    """

    def __init__(self, past: float) -> None:
        self.past = past
        self.is_current = False
        self._averages: dict[str, Averaged] = {}

    def update(self, module: nn.Module, *, is_again: bool = False) -> bool:
        """Add the weights of a check, unless they were added before a resume (`is_again`); waits for the device once.

        Returns False if an averaged weight has become NaN or infinite: the average stays, and `values` are empty until
        the next check.
        """
        found = {
            name: weight.detach()
            for name, weight in named_weights(module).items()
            if name in self._averages or weight.requires_grad or name.rpartition(".")[2] in _STATISTICS
        }
        finite = _are_finite(found)
        self.is_current = all(finite[name] for name in found if name in self._averages)
        if not self.is_current:
            return False
        averages: dict[str, Averaged] = {}
        shares: list[float] = []  # of the weights that enter
        with torch.inference_mode(False), torch.no_grad():
            for name in (name for name in found if finite[name]):
                weight, before = found[name], self._averages.get(name)
                if before is None or before.value.shape != weight.shape:
                    before = Averaged(weight.clone(), 0)
                enters, n_checks = not (is_again and before.n_checks), before.n_checks
                value = sharded_like(before.value, weight).to(weight.device, weight.dtype)
                averages[name] = Averaged(value, n_checks + enters)
                shares.append(1 - min(self.past, n_checks / (n_checks + _WARM_UP)) if enters else 0.0)
            values = [local(one.value) for one in averages.values()]
            if values:
                torch._foreach_lerp_(values, [local(found[name]) for name in averages], shares)
        self._averages = averages
        return True

    def values(self) -> dict[str, Tensor]:
        """Averages by name that replace the module's weights; empty if the last check was not added."""
        return {name: one.value for name, one in self._averages.items()} if self.is_current else {}

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
        weights = state_dict["weights"] if state_dict["past"] == self.past else {}
        n_checks = {name: int(n) for name, n in state_dict["n_checks"].items() if name in weights}
        self._averages = {name: Averaged(weights[name].clone(), n) for name, n in n_checks.items()}
        self.is_current = False


def named_weights(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers that can be averaged, by name; tied ones have one name."""
    reshard(module)
    named = ((name, one) for name, one in (*module.named_parameters(), *module.named_buffers()) if not is_lazy(one))
    return {n: v for n, v in named if is_plain(local(v)) and (v.is_floating_point() or v.is_complex())}


def _are_finite(tensors: Mapping[str, Tensor]) -> dict[str, bool]:
    """Whether each tensor is finite in all processes; waits for the device once."""
    sums = [one.sum(dtype=torch.promote_types(one.dtype, torch.float32)) for one in tensors.values()]
    sums = [one.full_tensor() if is_sharded(one) else one for one in sums]
    flags = torch.stack([one.to(sums[0].device) for one in sums]).isfinite().tolist() if sums else []
    return dict(zip(tensors, flags, strict=True))


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


class Loaded(NamedTuple):
    """What did not fit when weights were loaded."""

    missing: list[str]  # weights of the module that were not saved and that training changes
    left_out: list[str]  # other weights that were not saved
    unknown: list[str]  # saved weights for which the module has no name


def load(module: nn.Module, saved: Mapping[str, Any], *, allow_missing: bool) -> Loaded:
    """Load saved weights into a module, by name; `allow_missing`: some may be absent or extra.

    Raises an error if they do not fit; then the module is as it was.
    """
    now = module.state_dict()
    state = {name: sharded_like(value, now.get(name)) for name, value in with_names_of(now, saved).items()}
    before = {
        name: one.detach().to("cpu", copy=True) if isinstance(one, Tensor) else copy.deepcopy(one)
        for name, one in now.items()
    }
    try:
        answer = module.load_state_dict(state, strict=False)  # None from some that are overridden
        absent = getattr(answer, "missing_keys", [name for name in now if name not in state])
        unknown = getattr(answer, "unexpected_keys", [name for name in state if name not in now])
        missing = changed_by_training(module, absent)
        if missing and (unknown or not allow_missing):
            raise ValueError(f"they lack weights of the module: {few_names(missing)}")
        if unknown and not allow_missing:
            raise ValueError(f"the module has no place for {few_names(unknown)}")
        if now and not now.keys() & state.keys():
            raise ValueError("there are none")
    except Exception:
        module.load_state_dict(before, strict=False)
        raise
    return Loaded(missing, [name for name in absent if name not in missing], unknown)


def with_names_of(names: Iterable[str], saved: Mapping[str, Any]) -> dict[str, Any]:
    """Saved weights under these names, if theirs differ by wrappers alone; all others keep their own.

    `torch.compile` puts `_orig_mod` into names; `DataParallel` and its kin put `module` into them.
    """
    own = dict.fromkeys(names)
    places = {_unwrapped(name): name for name in own if name not in saved}
    return {name if name in own else places.get(_unwrapped(name), name): value for name, value in saved.items()}


def _unwrapped(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in ("_orig_mod", "module"))


def changed_by_training(module: nn.Module, names: Iterable[str]) -> list[str]:
    """Those of the names that are trainable parameters, but for tied ones of which another name is not among them."""
    absent, parameters = set(names), dict(module.named_parameters(remove_duplicate=False))
    loaded = {id(one) for name, one in parameters.items() if name not in absent}
    trained = {name for name, one in parameters.items() if one.requires_grad and id(one) not in loaded}
    return [name for name in names if name in trained]


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
