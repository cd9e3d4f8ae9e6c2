"""An exponential moving average of a network's weights over its checks, which begins with a short memory."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

_WARM_UP = 10  # checks
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)
_CHUNK = 2**22  # values that are exchanged at a time, so that no second copy of a large weight is needed


class Averaged(NamedTuple):
    """The average of one parameter or buffer.

    Args:
        value: The average; while it is in the module, what training has there.
        n_checks: How many have entered.
    """

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
    which enter from the first check after they are unfrozen, and buffers with values that are not finite, as masks
    have. Averages are matched by name; where the shape, dtype or device of a weight changes, its average begins anew.
    They are kept in the dtype of the weight. `torch.optim.swa_utils.AveragedModel` needs a copy of the whole module,
    matches by position and begins at its first update, so it is not used.

    Args:
        past: The largest weight of the past, 0 <= past < 1.
        device: Where to keep the average; None for where the weights are.
    """

    def __init__(self, past: float, device: torch.device | str | None = None) -> None:
        self.past = past
        self.device = device
        self.is_current = False
        self._averages: dict[str, Averaged] = {}
        self._is_inside = False

    def update(self, module: nn.Module, *, is_again: bool = False) -> bool:
        """Let the weights of a check enter; waits for the device once.

        Args:
            module: The network in training.
            is_again: The same weights have entered already, before a resume.

        Returns:
            False where a parameter is not finite. Such a check leaves the average as it was, and `inside` leaves the
            module as it is until the next one.
        """
        found = _weights(module)
        frozen = [name for name, tensor in found.items() if _is_frozen(tensor) and name not in self._averages]
        for name in frozen:
            del found[name]
        are_finite = _are_finite(found)
        self.is_current = all(is_finite or not isinstance(found[name], nn.Parameter) for name, is_finite in are_finite)
        if not self.is_current or (is_again and self._averages):
            return self.is_current
        before, self._averages = self._averages, {}
        with torch.no_grad():
            for name, is_finite in are_finite:
                if is_finite:
                    self._averages[name] = self._updated(before.get(name), found[name].detach())
        return True

    def _updated(self, before: Averaged | None, weight: Tensor) -> Averaged:
        kept_on = weight.device if self.device is None else torch.device(self.device)
        if before is None or not _are_alike(before.value, weight):
            return Averaged(weight.to(kept_on, copy=True), 1)
        past = min(self.past, before.n_checks / (before.n_checks + _WARM_UP))
        return Averaged(before.value.to(kept_on).lerp_(weight.to(kept_on), 1 - past), before.n_checks + 1)

    @contextmanager
    def inside(self, module: nn.Module) -> Iterator[None]:
        """Have the average in the module's own tensors; on leaving, all bits are as training left them.

        What is read or saved meanwhile is the average, by whatever way through the module. Nothing happens before the
        first update, after one that was refused, and where the average is inside already.
        """
        if not self.is_current or self._is_inside:
            yield
            return
        weights = _weights(module)
        log: list[_Entry] = []
        self._is_inside = True
        try:
            for name, average in self._averages.items():
                if name in weights and _are_alike(average.value, weights[name]):
                    for pair in _pairs(weights[name].data, average.value):
                        _exchange(pair, log)
            yield
        finally:
            self._is_inside = False
            try:
                _exchange_back(log)
            finally:  # whatever is left, after a Ctrl-C in between
                _exchange_back(log)

    @property
    def is_inside(self) -> bool:
        """Whether the module holds the average now."""
        return self._is_inside

    def put_aside(self) -> dict[str, Tensor]:
        """While the average is inside: what training has in its place, by name."""
        return {name: average.value for name, average in self._averages.items()} if self._is_inside else {}

    def state_dict(self) -> dict[str, Any]:
        """Averages by name, copied to the CPU, and how many checks are in each; only these while it is inside."""
        weights = {} if self._is_inside else {n: one.value.cpu().clone() for n, one in self._averages.items()}
        n_checks = {name: one.n_checks for name, one in self._averages.items()}
        return {"past": self.past, "n_checks": n_checks, "weights": weights}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken; with another weight of the past, the average begins anew."""
        n_checks = state_dict["n_checks"] if state_dict["past"] == self.past else {}
        weights = state_dict["weights"]
        self._averages = {name: Averaged(weights[name].clone(), n) for name, n in n_checks.items() if name in weights}
        self.is_current = False


def put_back(module: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Put the weights of training into a module that was loaded with their average.

    Args:
        module: As a checkpoint of the average has left it.
        weights: What `WeightAverage.put_aside` gave when it was saved.

    Returns:
        The average by name, on the CPU.

    Raises:
        ValueError: If the module has no such weights.
    """
    found = _weights(module)
    average = {}
    for name, weight in weights.items():
        if name not in found or not _are_alike(weight, found[name]):
            raise ValueError(f"The checkpoint holds weights of training that the module has no place for: {name}.")
        average[name] = found[name].detach().cpu().clone()
    for name, weight in weights.items():
        found[name].data.copy_(weight)
    return average


Pair = tuple[Tensor, Tensor]
# Two tensors that change places, and what they are to hold again if that is broken off.
_Entry = tuple[Pair, Pair | None]


def _exchange(pair: Pair, log: list[_Entry]) -> None:
    """Exchange the values of two tensors; a Ctrl-C between two lines leaves in `log` what it takes to undo it."""
    first, second = pair
    before = first.clone(), second.clone()
    log.append((pair, before))
    first.copy_(before[1])
    second.copy_(before[0])
    log[-1] = (pair, None)


def _exchange_back(log: list[_Entry]) -> None:
    """Undo all in reverse order, for weights may share their memory."""
    while log:
        pair, before = log[-1]
        if before is None:
            before = pair[1].to(pair[0].device, copy=True), pair[0].to(pair[1].device, copy=True)
            log[-1] = (pair, before)
        for tensor, value in zip(pair, before, strict=True):
            tensor.copy_(value)
        log.pop()


def _pairs(weight: Tensor, average: Tensor) -> Iterable[Pair]:
    """Parts of both, so small that no second copy of a large weight is made."""
    if not (weight.is_contiguous() and average.is_contiguous()):
        return [(weight, average)]
    return zip(weight.view(-1).split(_CHUNK), average.view(-1).split(_CHUNK), strict=True)


def _weights(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, once each, of those kinds that can be averaged."""
    parameters = {name: one for name, one in module.named_parameters() if not is_lazy(one)}
    buffers = {name: one for name, one in module.named_buffers() if not is_lazy(one) and _is_saved(module, name)}
    return {name: tensor for name, tensor in {**parameters, **buffers}.items() if _can_be_averaged(tensor)}


def _is_saved(module: nn.Module, name: str) -> bool:
    """Whether a `state_dict` holds a buffer."""
    owner, _, own_name = name.rpartition(".")
    return own_name not in getattr(module.get_submodule(owner), "_non_persistent_buffers_set", ())


def _can_be_averaged(tensor: Tensor) -> bool:
    is_plain = tensor.layout == torch.strided and not (tensor.is_meta or tensor.is_inference())
    # Where several elements are one number in memory, nothing can be written.
    return (
        tensor.dtype in _DTYPES
        and is_plain
        and not any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))
    )


def _is_frozen(tensor: Tensor) -> bool:
    return isinstance(tensor, nn.Parameter) and not tensor.requires_grad


def _are_alike(average: Tensor, weight: Tensor) -> bool:
    return average.shape == weight.shape and average.dtype == weight.dtype


def _are_finite(tensors: Mapping[str, Tensor]) -> list[tuple[str, bool]]:
    """By name, whether all values are finite."""
    if not tensors:
        return []
    first = next(iter(tensors.values())).device
    ends = torch.stack([_ends(tensor.detach()).to(first, torch.float64) for tensor in tensors.values()])
    return list(zip(tensors, ends.isfinite().all(dim=1).tolist(), strict=True))


def _ends(tensor: Tensor) -> Tensor:
    """The least and the largest value, (2,), NaN where there is one: unlike `isfinite`, this needs no second copy."""
    if not tensor.numel():
        return tensor.new_zeros(2, dtype=torch.float32)
    return torch.stack(torch.aminmax(torch.view_as_real(tensor) if tensor.is_complex() else tensor))
