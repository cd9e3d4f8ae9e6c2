"""An exponential moving average of a network's weights over its checks, which begins with a short memory."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from bu_torch.internal.traces import is_expanded

_WARM_UP = 10  # checks
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)


class Averaged(NamedTuple):
    """The average of one parameter or buffer, and how many checks have entered."""

    value: Tensor
    n_checks: int


class WeightAverage:
    """The average of the weights that a module had at its checks; the last check counts most.

    At each check the weights w enter the average a, after n checks before, as a <- p a + (1 - p) w, with
    p = min(past, n / (n + 10)). So the average begins at the first check, not at the weights before training, and with
    a short memory: while a network still learns fast, the checks before are far behind. (With p = past from the second
    check on, trainings of 10 epochs kept worse weights than without any average, and those of 150 no better ones.)

    What is averaged are the trainable parameters and the buffers of floating-point numbers that a `state_dict` holds,
    the running statistics of BatchNorm among them. All else is as the module has it: whole numbers, frozen parameters,
    which enter from the first check after they are unfrozen, buffers that have held nothing but 0 and 1 at every check,
    as masks that prune weights do, and what is infinite from the start, as masks of attention are.
    Averages are matched by name; where the shape of a weight changes, its average begins anew. They are kept in the
    dtype of the weight. `torch.optim.swa_utils.AveragedModel` needs a copy of the whole module, matches by position and
    begins at its first update, so it is not used.

    Args:
        past: The largest weight of the past, 0 <= past < 1.
        device: Device that holds the average; None takes that of the weights.
    """

    def __init__(self, past: float, device: torch.device | str | None = None) -> None:
        self.past = past
        self.device = device
        self.is_current = False
        self._averages: dict[str, Averaged] = {}
        self._of_training: dict[str, Tensor] = {}  # copies, while the average is in their place

    def update(self, module: nn.Module, *, is_again: bool = False) -> bool:
        """Let the weights of a check enter, unless they have before a resume (`is_again`); waits for the device once.

        False if a parameter has become NaN or infinite. Such a check leaves the average as it was, and `inside` leaves
        the module as it is until the next one.
        """
        found = _weights(module)
        found = {name: one for name, one in found.items() if name in self._averages or not _is_frozen(one)}
        ends = _ends(found)
        for name in self._masks(module, found, ends):
            del found[name], ends[name]
        self.is_current = not any(
            isinstance(found[name], nn.Parameter)
            and (math.isnan(one.low) or (name in self._averages and not one.is_finite))
            for name, one in ends.items()
        )
        if not self.is_current:
            return False
        if is_again and self._averages:
            self._averages = {
                name: one._replace(value=one.value.to(self._place(found[name]), found[name].dtype))
                for name, one in self._averages.items()
                if name in found
            }
            return True
        with torch.inference_mode(False), torch.no_grad():
            self._averages = {
                name: self._updated(self._averages.get(name), found[name].detach())
                for name, one in ends.items()
                if one.is_finite
            }
        return True

    def _masks(self, module: nn.Module, found: Mapping[str, Tensor], ends: Mapping[str, "_Ends"]) -> set[str]:
        """Names of buffers that have held nothing but 0 and 1 so far: what lies in between would be no mask.

        Running statistics, which begin at 0 and 1, are none.
        """
        norms = [part for part in module.modules() if isinstance(part, _NormBase)]
        statistics = {id(one) for part in norms for one in (part.running_mean, part.running_var)}
        held = {
            name: found[name]
            for name, one in ends.items()
            if {one.low, one.high} <= {0.0, 1.0}
            and name not in self._averages
            and not isinstance(found[name], nn.Parameter)
            and id(found[name]) not in statistics
        }
        are_masks = _each([((values == 0) | (values == 1)).all() for values in held.values()])
        return {name for name, is_mask in zip(held, are_masks, strict=True) if is_mask}

    def _place(self, weight: Tensor) -> torch.device:
        return weight.device if self.device is None else torch.device(self.device)

    def _updated(self, before: Averaged | None, weight: Tensor) -> Averaged:
        kept_on = self._place(weight)
        if before is None or before.value.shape != weight.shape:
            return Averaged(weight.to(kept_on, copy=True), 1)
        past = min(self.past, before.n_checks / (before.n_checks + _WARM_UP))
        value = before.value.to(kept_on, weight.dtype)
        return Averaged(value.lerp_(weight.to(kept_on), 1 - past), before.n_checks + 1)

    @contextmanager
    def inside(self, module: nn.Module) -> Iterator[None]:
        """Have the average in the module's own tensors; on leaving, all bits are as training left them.

        What is read or saved meanwhile is the average, by whatever way through the module. Nothing happens before the
        first update, after one that was refused, and if the average is inside already. (`torch.func.functional_call`
        would miss modules in TorchScript, references that `forward` keeps, layers of LoRA that `eval` merges, and what
        a module's own `state_dict` computes.)
        """
        if not self.is_current or self.is_inside:
            yield
            return
        try:
            try:
                weights = _weights(module)
                for name, average in self._averages.items():
                    weight = weights.get(name)
                    if weight is not None and _are_alike(weight, average.value):
                        self._of_training[name] = weight.detach().to(self._place(weight), copy=True)
                        weight.data.copy_(average.value)
                yield
            finally:
                self._take_out(module)
        finally:  # once more, after a Ctrl-C in the line above
            self._take_out(module)

    def _take_out(self, module: nn.Module) -> None:
        """Put the weights of training back, into tensors that are found anew: `forward` may have moved them."""
        weights = _weights(module) if self._of_training else {}
        for name, value in reversed(self._of_training.items()):  # for weights may share their memory
            if name in weights and _are_alike(weights[name], value):
                weights[name].data.copy_(value)
        self._of_training = {}

    @property
    def is_inside(self) -> bool:
        """True if the module holds the average now."""
        return bool(self._of_training)

    def put_aside(self) -> dict[str, Tensor]:
        """While the average is inside: what training has in its place, by name."""
        return dict(self._of_training)

    def forget(self) -> None:
        """Free the average: training has ended."""
        if not self.is_inside:
            self._averages, self.is_current = {}, False

    def state_dict(self) -> dict[str, Any]:
        """Averages by name, copied to the CPU, and how many checks are in each; only these while it is inside."""
        weights = {} if self.is_inside else {n: one.value.cpu().clone() for n, one in self._averages.items()}
        n_checks = {name: one.n_checks for name, one in self._averages.items()}
        return {"past": self.past, "n_checks": n_checks, "weights": weights}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken; with another weight of the past, the average begins anew."""
        n_checks = state_dict["n_checks"] if state_dict["past"] == self.past else {}
        weights = state_dict["weights"]
        self._averages = {name: Averaged(weights[name].clone(), n) for name, n in n_checks.items() if name in weights}
        self.is_current = False


def put_back(module: nn.Module, weights: Mapping[str, Tensor], *, may_lack: bool = False) -> bool:
    """Put the weights of training, as `put_aside` gave them, into a module that was loaded with their average.

    False if the module has no place for some of them, unless it `may_lack` them: then it is left as it is.
    """
    found = _weights(module, once=False)
    fitting = {name: weight for name, weight in weights.items() if name in found or not may_lack}
    if any(name not in found or found[name].shape != weight.shape for name, weight in fitting.items()):
        return False
    for name, weight in reversed(fitting.items()):  # for weights may share their memory
        found[name].data.copy_(weight)
    return True


def _weights(module: nn.Module, *, once: bool = True) -> dict[str, Tensor]:
    """Parameters and buffers of those kinds that can be averaged, by name; of several in one place of memory one."""
    owners = dict(module.named_modules(remove_duplicate=False))
    parameters = {name: one for name, one in module.named_parameters(remove_duplicate=False) if not is_lazy(one)}
    buffers = {
        name: one
        for name, one in module.named_buffers(remove_duplicate=False)
        if not is_lazy(one) and _is_saved(owners, name)
    }
    found: dict[Any, tuple[str, Tensor]] = {}
    for name, tensor in sorted({**parameters, **buffers}.items(), key=lambda pair: _is_frozen(pair[1])):
        if _can_be_averaged(tensor):
            place = (tensor.device, tensor.data_ptr() or name, tensor.shape, tensor.stride())
            found.setdefault(place if once else name, (name, tensor))
    return dict(found.values())


def _is_saved(owners: Mapping[str, nn.Module], name: str) -> bool:
    """True if a `state_dict` holds a buffer."""
    owner, _, own_name = name.rpartition(".")
    return own_name not in getattr(owners[owner], "_non_persistent_buffers_set", ())


def _are_alike(first: Tensor, second: Tensor) -> bool:
    return first.shape == second.shape and first.dtype == second.dtype


def _can_be_averaged(tensor: Tensor) -> bool:
    is_plain = type(tensor.data) is Tensor and tensor.layout == torch.strided
    is_plain = is_plain and not (tensor.is_meta or tensor.is_inference())
    return tensor.dtype in _DTYPES and is_plain and not is_expanded(tensor)


def _is_frozen(tensor: Tensor) -> bool:
    return isinstance(tensor, nn.Parameter) and not tensor.requires_grad


class _Ends(NamedTuple):
    """The least value of a tensor, NaN if it holds one, and the largest."""

    low: float
    high: float

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)


def _ends(tensors: Mapping[str, Tensor]) -> dict[str, _Ends]:
    """The ends of each tensor, by name; waits for the device once."""
    ends = _each([_least_and_largest(tensor.detach()).double() for tensor in tensors.values()])
    return {name: _Ends(*pair) for name, pair in zip(tensors, ends, strict=True)}


def _each(results: list[Tensor]) -> list[Any]:
    """Python's numbers of tensors of one shape; waits for the device of the first of them once."""
    return torch.stack([one.to(results[0].device) for one in results]).tolist() if results else []


def _least_and_largest(tensor: Tensor) -> Tensor:
    """(2,), NaN where there is one: unlike `isfinite`, this needs no second copy."""
    if not tensor.numel():
        return tensor.new_zeros(2, dtype=torch.float32)
    return torch.stack(torch.aminmax(torch.view_as_real(tensor) if tensor.is_complex() else tensor))
