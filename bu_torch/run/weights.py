"""Weights of a network: their average over the checks, those of the kept check, and loading them again."""

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from bu_torch.internal.replica import gathered, is_plain, is_sharded, local, reshard, sharded_like

_WARM_UP = 10  # checks
_MOST_NAMES = 200  # characters
_MODE = "train_mode"  # key in the parameter groups of a Schedule-Free optimiser
_STATISTICS = ("running_mean", "running_var")  # buffers of normalising layers


class WeightAverage:
    """Average of the weights that a module had at its checks; the last check counts most.

    At each check the weights w enter the average a, after n checks before, as a <- p a + (1 - p) w, with
    p = min(past, n / (n + 10)). So the average begins at the first check, not at the weights before training, and its
    memory is short at first, because early weights are soon outdated. (With p = past from the second check on,
    trainings of 10 epochs kept worse weights than without any average, and those of 150 no better ones.)

    The average covers trainable parameters and the running statistics of normalising layers (`running_mean`,
    `running_var`); other buffers, such as counts, stay as the module has them. A weight enters, as it is then, at the
    first check at which it is trained and finite, and anew if its shape changes, in its own dtype and shards
    (`DTensor`).

    Args:
        past: The largest weight of the past, 0 <= past < 1; None for no average.
    """

    def __init__(self, past: float | None) -> None:
        self.past = past
        self.n_checks = 0  # that have entered
        # Averages by name that replace the module's weights; empty if the last check was not added.
        self.values: dict[str, Tensor] = {}
        self._averages: dict[str, Tensor] = {}

    def update(self, module: nn.Module) -> None:
        """Add the weights of a check.

        If an averaged weight has become NaN or infinite, the average stays, and `values` are empty until the next
        check.
        """
        if self.past is None:
            return
        weights = {
            name: weight.detach()
            for name, weight in named_weights(module).items()
            if name in self._averages or weight.requires_grad or name.rpartition(".")[2] in _STATISTICS
        }
        # Finite in all processes; waits for the device once.
        sums = [weight.sum(dtype=torch.promote_types(weight.dtype, torch.float32)) for weight in weights.values()]
        sums = [total.full_tensor() if is_sharded(total) else total for total in sums]
        flags = torch.stack([total.to(sums[0].device) for total in sums]).isfinite().tolist() if sums else []
        finite = [name for name, is_finite in zip(weights, flags, strict=True) if is_finite]
        if any(name in self._averages and name not in finite for name in weights):
            self.values = {}
            return
        averages: dict[str, Tensor] = {}
        with torch.inference_mode(False), torch.no_grad():
            for name in finite:
                weight, before = weights[name], self._averages.get(name)
                if before is None or before.shape != weight.shape:
                    before = weight.clone()
                averages[name] = sharded_like(before, weight).to(weight.device, weight.dtype)
            if averages:
                share = 1 - min(self.past, self.n_checks / (self.n_checks + _WARM_UP))
                torch._foreach_lerp_(list(map(local, averages.values())), [local(weights[n]) for n in averages], share)
        self.values = self._averages = averages
        self.n_checks += 1

    def state_dict(self) -> dict[str, Any]:
        """Averages by name, whole and on the CPU, and how many checks are in them."""
        weights = {name: gathered(value).cpu().clone() for name, value in self._averages.items()}
        return {"past": self.past, "n_checks": self.n_checks, "weights": weights}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`; with another weight of the past, the average begins anew."""
        known = state_dict if state_dict.get("past") == self.past else {}
        self.n_checks = int(known.get("n_checks", 0))
        self._averages = {name: value.clone() for name, value in known.get("weights", {}).items()}


def named_weights(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers that can be averaged, by name; tied ones have one name."""
    reshard(module)
    tensors = dict((*module.named_parameters(), *module.named_buffers()))
    loaded = {name: tensor for name, tensor in tensors.items() if not is_lazy(tensor) and is_plain(local(tensor))}
    return {name: tensor for name, tensor in loaded.items() if tensor.is_floating_point() or tensor.is_complex()}


def copied(state: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a `state_dict` on the CPU, with this process's shards."""
    copies = {}
    for name, value in state.items():
        is_dense_or_sparse = isinstance(value, Tensor) and (is_plain(value) or value.layout != torch.strided)
        if is_dense_or_sparse or is_sharded(value):
            copies[name] = value.detach().to("cpu", copy=True)
        else:  # such as a lazy tensor, or one of a class of the user's
            copies[name] = copy.deepcopy(value)
    return copies


def load(module: nn.Module, saved: Mapping[str, Any]) -> None:
    """Load saved weights into a module, by name; raises an error if they do not fit, and leaves the module as it was.

    Frozen parameters and buffers may be absent, as in a module whose `state_dict` leaves them out.
    """
    now = module.state_dict()
    state = {name: sharded_like(value, now.get(name)) for name, value in with_names_of(now, saved).items()}
    before = copied(now)
    try:
        answer = module.load_state_dict(state, strict=False)  # None from some that are overridden
        missing = getattr(answer, "missing_keys", ())
        parameters = dict(module.named_parameters(remove_duplicate=False))
        loaded = {id(parameters[name]) for name in parameters.keys() - set(missing)}  # one name of tied ones is enough
        trained = {name for name, weight in parameters.items() if weight.requires_grad and id(weight) not in loaded}
        if alone := [*filter(trained.__contains__, missing), *(name for name in state if name not in now)]:
            raise ValueError(f"only one of module and saved weights has {shorten(', '.join(alone), _MOST_NAMES)}")
    except Exception:
        module.load_state_dict(before, strict=False)
        raise


def with_names_of(names: Iterable[str], saved: Mapping[str, Any]) -> dict[str, Any]:
    """Saved weights under these names, if theirs differ by wrappers or pruning alone; all others keep their own.

    `torch.compile` puts `_orig_mod` into names; `DataParallel` and its kin put `module` into them. A weight that is
    pruned has two parts, `_orig` and `_mask`, until that is made permanent.
    """
    own, saved = dict.fromkeys(names), dict(saved)
    for name in own.keys() - saved.keys():
        weight, mask = saved.get(f"{name}_orig"), saved.get(f"{name}_mask")
        if isinstance(weight, Tensor) and isinstance(mask, Tensor) and weight.shape == mask.shape:
            saved[name] = saved.pop(f"{name}_orig") * saved.pop(f"{name}_mask")
    places = {_unwrapped(name): name for name in own if name not in saved}
    return {name if name in own else places.get(_unwrapped(name), name): value for name, value in saved.items()}


def _unwrapped(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in ("_orig_mod", "module"))


def drop_saved(values: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    """Weights for a state in a checkpoint: None in place of those that are among the `saved` of the same file."""
    left = dict(values)
    for name, value in values.items():
        other: Any = saved.get(name)
        are_plain = all(isinstance(tensor, Tensor) and is_plain(tensor) for tensor in (value, other))
        with suppress(NotImplementedError):  # of some types of 8 bits
            if are_plain and other.dtype == value.dtype and torch.equal(other.detach().cpu(), value.detach().cpu()):
                left[name] = None
    return left


def fill_in(values: Mapping[str, Any], loaded: Mapping[str, Any]) -> dict[str, Any]:
    """Undo `drop_saved` with the weights that a module has loaded from the file; all processes must call this."""
    missing = {name: gathered(loaded[name]) for name, value in values.items() if value is None and name in loaded}
    return {**values, **copied(missing)}


def optimizers_in_training(optimizers: Iterable[Any]) -> list[Any]:
    """Optimisers that must be put in evaluation mode, because the network holds the weights at which they train.

    A Schedule-Free optimiser (Defazio et al. 2024, arXiv 2405.15682) steps at y, and `eval` puts the average x into the
    parameters. An optimiser with such modes is taken to be in that of training unless it says otherwise.
    """
    training = []
    for optimizer in optimizers:
        has_modes = all(callable(getattr(optimizer, name, None)) for name in ("eval", "train"))
        default = getattr(optimizer, _MODE, True)
        if has_modes and any(group.get(_MODE, default) for group in optimizer.param_groups):
            training.append(optimizer)
    return training


@contextmanager
def optimizers_in_eval_mode(optimizers: Iterable[Any]) -> Iterator[None]:
    """Put the evaluation weights of the optimisers into the network; on leaving, put those of training back.

    `train` restores them only up to rounding, so they are copied before.
    """
    training = optimizers_in_training(optimizers)
    groups = [group for optimizer in training for group in optimizer.param_groups]
    values = [(parameter, parameter.detach().clone()) for group in groups for parameter in group["params"]]
    try:
        for optimizer in training:
            optimizer.eval()
        yield
    finally:
        for optimizer in training:
            optimizer.train()
        for parameter, before in values:
            parameter.data.copy_(before)
