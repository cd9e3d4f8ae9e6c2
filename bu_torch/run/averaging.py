"""Weights beside those of training: their average over the checks, and those of the best check."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from bu_torch.internal.shards import gathered, is_sharded, largest_of_all, local, reshard, sharded_like
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
    p = min(past, n / (n + 10)). So it begins at the first check, not at the weights before training, and with a short
    memory: while a network still learns fast, the checks before are far behind. (With p = past from the second check
    on, trainings of 10 epochs kept worse weights than without any average, and those of 150 no better ones.)

    Averaged are the trainable parameters and the floating-point buffers that a `state_dict` holds, such as the running
    statistics of BatchNorm. All else is as the module has it: whole numbers; frozen parameters, which enter from the
    first check after they are unfrozen; buffers that have held nothing but 0 and 1 at every check, as pruning masks do;
    and what is infinite from the start, as masks of attention are. Averages are matched by name, begin anew where a
    shape changes, and are kept in the dtype of the weight, and of shards (`DTensor`) in the same shards.

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
        """Let the weights of a check enter, unless they have before a resume (`is_again`).

        False if a parameter has become NaN or infinite: the average stays as it was, and `inside` does nothing until
        the next check. This waits for the device once, and once more for possible masks.
        """
        found = {n: one for n, one in _weights(module).items() if n in self._averages or not _is_frozen(one)}
        masks = self._masks(module, found)
        sizes = _sizes({name: one for name, one in found.items() if name not in masks})
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

    def _masks(self, module: nn.Module, found: Mapping[str, Tensor]) -> set[str]:
        """Names of buffers that have held nothing but 0 and 1 so far; not of running statistics, which begin so."""
        norms = [part for part in module.modules() if isinstance(part, _NormBase)]
        statistics = {id(one) for part in norms for one in (part.running_mean, part.running_var)}
        held = {
            name: one
            for name, one in found.items()
            if name not in self._averages
            and not (isinstance(one, nn.Parameter) or is_sharded(one))
            and id(one) not in statistics
        }
        are_masks = [((one == 0) | (one == 1)).all() for one in held.values()]
        found_out = torch.stack([one.to(are_masks[0].device) for one in are_masks]).tolist() if held else []
        return {name for name, is_mask in zip(held, found_out, strict=True) if is_mask}

    def _place(self, weight: Tensor) -> torch.device:
        return weight.device if self.device is None else torch.device(self.device)

    def _fitted(self, average: Tensor, weight: Tensor) -> Tensor:
        return cast("Tensor", sharded_like(average, weight).to(self._place(weight), weight.dtype))

    def _updated(self, weights: Mapping[str, Tensor]) -> None:
        """Let weights enter, those of the same age together."""
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

    @contextmanager
    def inside(self, module: nn.Module) -> Iterator[None]:
        """Have the average in the module's own tensors; on leaving, all bits are as training left them.

        Nothing happens before the first update, after one that was refused, and if the average is inside already.
        (`torch.func.functional_call` would miss modules in TorchScript, references that `forward` keeps, layers of LoRA
        that `eval` merges, and what a module's own `state_dict` computes.)
        """
        if not self.is_current or self.is_inside:
            yield
            return
        try:
            try:
                weights = _weights(module)
                averages = _fitting({name: one.value for name, one in self._averages.items()}, weights)
                self._of_training = {
                    name: weights[name].detach().to(self._place(weights[name]), copy=True) for name in averages
                }
                _overwrite(weights, averages)
                yield
            finally:
                self._take_out(module)
        finally:  # once more, after a Ctrl-C in the line above
            self._take_out(module)

    def _take_out(self, module: nn.Module) -> None:
        """Put the weights of training back, into tensors that are found anew: `forward` may have moved them."""
        if self._of_training:
            weights = _weights(module)
            _overwrite(weights, _fitting(self._of_training, weights))
        self._of_training = {}

    @property
    def is_inside(self) -> bool:
        return bool(self._of_training)

    def put_aside(self) -> dict[str, Tensor]:
        """Weights of training while the average is inside, by name; all processes of shards must call this."""
        return {name: gathered(value) for name, value in self._of_training.items()}

    def forget(self) -> None:
        """Free the average: training has ended."""
        if not self.is_inside:
            self._averages, self.is_current = {}, False

    def state_dict(self) -> dict[str, Any]:
        """Averages by name, whole and on the CPU, and how many checks are in each; only these while it is inside."""
        weights = {} if self.is_inside else {n: gathered(one.value).cpu().clone() for n, one in self._averages.items()}
        n_checks = {name: one.n_checks for name, one in self._averages.items()}
        return {"past": self.past, "n_checks": n_checks, "weights": weights}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken; with another weight of the past, the average begins anew."""
        n_checks = state_dict["n_checks"] if state_dict["past"] == self.past else {}
        weights = state_dict["weights"]
        self._averages = {name: Averaged(weights[name].clone(), n) for name, n in n_checks.items() if name in weights}
        self.is_current = False


class BestWeights:
    """A copy of the weights at the kept check."""

    def __init__(self) -> None:
        self.epoch: int | None = None  # before the first
        self.step: int | None = None  # if it is not known
        # A `state_dict` on the CPU, of shards those of this process; empty if the model was no module.
        self.weights: dict[str, Any] = {}

    def keep(self, model: object, epoch: int, step: int | None) -> None:
        self.epoch, self.step = epoch, step
        state = model.state_dict() if isinstance(model, nn.Module) else {}
        self.weights = {
            name: value.detach().cpu().clone() if isinstance(value, Tensor) else value for name, value in state.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """Epoch, step and weights; shards are put together, so all processes must call this."""
        weights = {name: gathered(value) for name, value in self.weights.items()}
        return {"best_epoch": self.epoch, "best_step": self.step, "best_weights": weights}

    def fitted(self, model: nn.Module) -> dict[str, Any]:
        """The weights as `model.load_state_dict` takes them: in shards where those of the model are."""
        now = model.state_dict()
        return {name: sharded_like(value, now.get(name)) for name, value in self.weights.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        places = (state_dict["best_epoch"], state_dict["best_step"])
        self.epoch, self.step = (place if isinstance(place, int) else None for place in places)
        self.weights = state_dict["best_weights"]


def put_back(module: nn.Module, weights: Mapping[str, Tensor], *, may_lack: bool = False) -> bool:
    """Put the weights of training, as `put_aside` gave them, into a module that was loaded with their average.

    False if the module has no place for some of them, unless it `may_lack` them: then it is left as it is.
    """
    found = _weights(module, once=False)
    fitting = {name: weight for name, weight in weights.items() if name in found or not may_lack}
    if any(name not in found or found[name].shape != weight.shape for name, weight in fitting.items()):
        return False
    _overwrite(found, {name: sharded_like(weight, found[name]) for name, weight in fitting.items()})
    return True


def _overwrite(weights: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    if values:
        torch._foreach_copy_([local(weights[name]) for name in values], [local(value) for value in values.values()])


def _weights(module: nn.Module, *, once: bool = True) -> dict[str, Tensor]:
    """Parameters and buffers of those kinds that can be averaged, by name; of several in one place of memory one."""
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


def _fitting(values: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    kinds = {name: (one.shape, one.dtype) for name, one in weights.items()}
    return {name: one for name, one in values.items() if kinds.get(name) == (one.shape, one.dtype)}


def _can_be_averaged(tensor: Tensor) -> bool:
    is_plain = type(tensor) is Tensor and tensor.layout == torch.strided
    is_plain = is_plain and not (tensor.is_meta or tensor.is_inference())
    return tensor.dtype in _DTYPES and is_plain and not is_expanded(tensor)


def _is_frozen(tensor: Tensor) -> bool:
    return isinstance(tensor, nn.Parameter) and not tensor.requires_grad


def _sizes(tensors: Mapping[str, Tensor]) -> dict[str, float]:
    """The largest magnitude in each tensor, in the shards of all processes, NaN if one holds it; waits once."""
    if not tensors:
        return {}
    values = [torch.view_as_real(one) if one.is_complex() else one for one in map(local, tensors.values())]
    ends = [torch.aminmax(one) if one.numel() else (one.new_zeros(()),) * 2 for one in values]  # without a copy
    lows, highs = (torch.stack([one.to(values[0].device) for one in end]) for end in zip(*ends, strict=True))
    sizes = torch.maximum(-lows, highs)
    return dict(zip(tensors, largest_of_all(sizes, list(tensors.values())).tolist(), strict=True))
