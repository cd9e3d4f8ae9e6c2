"""Average of the weights that a network had at its checks."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from bu_torch.internal.replica import gathered, largest_of_all, local, reshard, sharded_like

_WARM_UP = 10  # checks
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)
_STATISTICS = ("running_mean", "running_var")  # buffers of normalising layers


class Averaged(NamedTuple):
    """The average of one parameter or buffer, and how many checks have entered."""

    value: Tensor
    n_checks: int


class WeightAverage:
    """The average of the weights that a module had at its checks; the last check counts most.

    At each check the weights w enter the average a, after n checks before, as a <- p a + (1 - p) w, with
    p = min(past, n / (n + 10)). So the average begins at the first check, not at the weights before training, and with
    a short memory, because early weights are soon outdated. (With p = past from the second check on, trainings of 10
    epochs kept worse weights than without any average, and those of 150 no better ones.)

    The average covers trainable parameters and the running statistics of normalising layers (`running_mean`,
    `running_var`). Other buffers stay as the module has them at the check, because the mean of a count or of a queue of
    samples is meaningless. A frozen parameter enters at the first check after it is unfrozen; a buffer that is infinite
    from the start never enters. Averages are matched by name, begin anew if a shape changes, and have the dtype and the
    shards (`DTensor`) of the weight.

    Args:
        past: The largest weight of the past, 0 <= past < 1.
        device: Device that holds the average; None takes that of the weights.
    """

    def __init__(self, past: float, device: torch.device | str | None = None) -> None:
        self.past = past
        self.device = device
        self.is_current = False
        self._averages: dict[str, Averaged] = {}

    def update(self, module: nn.Module, *, is_again: bool = False) -> bool:
        """Add the weights of a check, unless they were added before a resume (`is_again`); waits for the device once.

        Returns False if a parameter has become NaN or infinite: the average stays, and `values` are empty until the
        next check.
        """
        found = {n: one for n, one in weights_of(module).items() if n in self._averages or _enters(n, one)}
        sizes = _sizes(found)
        self.is_current = not any(
            isinstance(found[name], nn.Parameter)
            and (math.isnan(size) or (name in self._averages and not math.isfinite(size)))
            for name, size in sizes.items()
        )
        if not self.is_current:
            return False
        if is_again and self._averages:
            self._averages = {
                name: one._replace(value=self._fitted(one.value, found[name]))
                for name, one in self._averages.items()
                if name in found
            }
            return True
        with torch.inference_mode(False), torch.no_grad():
            self._updated({name: found[name].detach() for name, size in sizes.items() if math.isfinite(size)})
        return True

    def _place(self, weight: Tensor) -> torch.device:
        return weight.device if self.device is None else torch.device(self.device)

    def _fitted(self, average: Tensor, weight: Tensor) -> Tensor:
        return cast("Tensor", sharded_like(average, weight).to(self._place(weight), weight.dtype))

    def _updated(self, weights: Mapping[str, Tensor]) -> None:
        """Add weights to the average, those with the same number of checks in one call."""
        averages: dict[str, Averaged] = {}
        by_age: dict[int, list[str]] = {}
        for name, weight in weights.items():
            before = self._averages.get(name)
            if before is None or before.value.shape != weight.shape:
                averages[name] = Averaged(weight.to(self._place(weight), copy=True), 1)
                continue
            averages[name] = Averaged(self._fitted(before.value, weight), before.n_checks + 1)
            by_age.setdefault(before.n_checks, []).append(name)
        for n_checks, names in by_age.items():
            past = min(self.past, n_checks / (n_checks + _WARM_UP))
            values = [local(averages[name].value) for name in names]
            entering = [local(weights[name]).to(value.device) for name, value in zip(names, values, strict=True)]
            torch._foreach_lerp_(values, entering, 1 - past)
        self._averages = averages

    def values(self, module: nn.Module) -> dict[str, Tensor]:
        """Averages by name that replace the module's weights; empty if the last check was not added."""
        if not self.is_current:
            return {}
        kinds = {name: (one.shape, one.dtype) for name, one in weights_of(module).items()}
        return {n: one.value for n, one in self._averages.items() if kinds.get(n) == (one.value.shape, one.value.dtype)}

    def forget(self) -> None:
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
        weights = state_dict["weights"]
        self._averages = {name: Averaged(weights[name].clone(), n) for name, n in n_checks.items() if name in weights}
        self.is_current = False


def weights_of(module: nn.Module, *, once: bool = True) -> dict[str, Tensor]:
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
    for name, tensor in sorted({**parameters, **buffers}.items(), key=lambda pair: _is_frozen(pair[1])):
        own = local(tensor)
        if _can_be_averaged(own):
            place = (own.device, own.data_ptr() or id(tensor), own.shape, own.stride())
            found.setdefault(place if once else name, (name, tensor))
    return dict(found.values())


def _can_be_averaged(tensor: Tensor) -> bool:
    is_plain = type(tensor) is Tensor and tensor.layout == torch.strided
    is_plain = is_plain and not (tensor.is_meta or tensor.is_inference())
    return tensor.dtype in _DTYPES and is_plain and not _is_expanded(tensor)


def _is_expanded(tensor: Tensor) -> bool:
    """Return True if several elements share one number in memory, so that they cannot be written to."""
    if tensor.is_contiguous():
        return False
    return any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))


def _enters(name: str, weight: Tensor) -> bool:
    is_statistic = name.rpartition(".")[2] in _STATISTICS
    return weight.requires_grad if isinstance(weight, nn.Parameter) else is_statistic


def _is_frozen(tensor: Tensor) -> bool:
    return isinstance(tensor, nn.Parameter) and not tensor.requires_grad


def _sizes(tensors: Mapping[str, Tensor]) -> dict[str, float]:
    """Largest magnitude in each tensor over the shards of all processes, NaN if it holds one; waits for them once."""
    if not tensors:
        return {}
    values = [torch.view_as_real(one) if one.is_complex() else one for one in map(local, tensors.values())]
    ends = [torch.aminmax(one) if one.numel() else (one.new_zeros(()),) * 2 for one in values]  # without a copy
    lows, highs = (torch.stack([one.to(values[0].device) for one in end]) for end in zip(*ends, strict=True))
    sizes = torch.maximum(-lows, highs)
    return dict(zip(tensors, largest_of_all(sizes, list(tensors.values())).tolist(), strict=True))
