"""States in checkpoints, which may come from anywhere: plain data, read entry by entry before any of it is used."""

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any, get_args

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from bu_torch.estimators.space_choice import SpaceName
from bu_torch.internal.printing import cleaned
from bu_torch.run.budget import Plan

_MOST_DRAWS = 1000
_LARGEST = 2**53  # float64, which holds the history, is exact up to this
_NEEDED = {"epoch", "expected_accuracy"}  # each check has them; a rule says what else it lacks
_PLAIN = (type(None), bool, int, float, complex, str, bytes)


def read_state(state: Any) -> dict[str, Any]:
    """Entries of what `Tracker.state_dict` returned, as their owners take them; None or empty if it lacks some.

    Raises a ValueError that names the entry if one of them is something else.
    """
    read = _read(state, _TRACKER)
    n_checks = len(read["history"])
    if read["n_not_compared"] > n_checks:
        raise ValueError(f"`n_not_compared` is {read['n_not_compared']} of {n_checks} checks")
    return read


def read_best(state: Any) -> dict[str, Any]:
    """Entries of what a keeper's `state_dict` returned, in a file or in memory; a ValueError as `read_state` has it."""
    return _read(state, _KEEPER)


def read_weights(weights: Any) -> dict[str, Tensor]:
    """Weights by name that a checkpoint holds; a ValueError if they are something else."""
    _check_plain(weights)
    if not isinstance(weights, Mapping) or not all(
        isinstance(name, str) and isinstance(one, Tensor) and (one.is_floating_point() or one.is_complex())
        for name, one in weights.items()
    ):
        raise ValueError(f"weights must be tensors by name, got {type(weights).__name__}")
    return dict(weights)


def _read(state: Any, readers: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
    if not isinstance(state, Mapping):
        raise ValueError(f"a state must be a dict, got {type(state).__name__}")
    read = {}
    for name, reader in readers.items():
        try:
            read[name] = reader(state.get(name))
        except Exception as error:  # a crafted value may raise anything
            raise ValueError(f"`{name}`: {cleaned(f'{type(error).__name__}: {error}'[:200])}") from error
    return read


def _check_plain(tree: Any) -> None:
    """Raise unless all is plain data, and tensors are plain, on the CPU, and as large in memory as they say."""
    if isinstance(tree, Mapping):
        tree = [*tree.keys(), *tree.values()]
    if isinstance(tree, list | tuple | set | frozenset):
        for one in tree:
            _check_plain(one)
    elif isinstance(tree, Tensor):
        is_plain = tree.layout == torch.strided and not tree.is_nested and not tree.requires_grad
        is_here = is_plain and tree.device.type == "cpu"
        if not is_here or tree.untyped_storage().nbytes() < tree.numel() * tree.element_size():
            raise ValueError(f"a tensor of {tree.numel()} elements does not hold their values")
    elif not isinstance(tree, _PLAIN):
        raise TypeError(f"an object of {type(tree).__name__} is no plain data")


def _integer(value: Any, low: int = 0) -> int:
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int or not low <= value <= _LARGEST:
        raise ValueError(f"an integer of at least {low} must be here, got {value!r:.100}")
    return value


def _maybe(reader: Callable[[Any], Any], make: Callable[[], Any] = lambda: None) -> Callable[[Any], Any]:
    """Reader of an entry that may be absent; `make` then makes it."""
    return lambda value: make() if value is None else reader(value)


def _plain(kind: Any, *, has_tensors: bool = True) -> Callable[[Any], Any]:
    """Reader of plain data of a type; without tensors its comparison has a truth value."""

    def read(value: Any) -> Any:
        _check_plain(value)
        is_odd = not has_tensors and any(isinstance(one, Tensor) for one in pytree.tree_leaves(value))
        if is_odd or not isinstance(value, kind):
            what = getattr(kind, "__name__", kind)
            raise TypeError(f"a {what}{' without tensors' * is_odd} must be here, got {type(value).__name__}")
        return value

    return read


def _vector(dtype: torch.dtype, *narrower: torch.dtype, low: float = -math.inf) -> Callable[[Any], Any]:
    """Reader of finite numbers (n,) of a type, saved in it or in a narrower one, none of them below `low`."""

    def read(value: Any) -> Tensor:
        numbers: Tensor = _plain(Tensor)(value)
        is_of_type = numbers.dtype in (dtype, *narrower) and numbers.ndim == 1
        if not is_of_type or not bool((numbers.isfinite() & (numbers >= low)).all()):
            what = f"finite numbers of {dtype}, none below {low}"
            raise ValueError(f"{what}, must be here, got {numbers.dtype} of shape {tuple(numbers.shape)}")
        return numbers.to(dtype)

    return read


def _read_space(value: Any) -> str:
    if not isinstance(value, str) or value not in get_args(SpaceName):
        raise ValueError(f"there is no such space: {value!r:.100}")
    return value


def _read_plan(value: Any) -> Plan:
    made = Plan(*(_integer(one, 1) for one in _plain(list | tuple)(value)))
    if made.n_draws > _MOST_DRAWS:  # memory grows with it
        raise ValueError(f"there are {made.n_draws} draws")
    return made


def _read_history(value: Any) -> list[dict[str, Any]]:
    """Checks in tables, each with its epoch and step, and numbers by name."""
    checks = []
    for table in _plain(list)(value):
        names, values = list(table["names"]), table["values"]
        if not all(isinstance(name, str) and name.isidentifier() for name in names):
            raise ValueError("a number has no name")
        if lacking := _NEEDED - set(names):
            raise ValueError(f"a check lacks {', '.join(sorted(lacking))}")
        for row in values.tolist():
            check: dict[str, Any] = dict(zip(names, map(float, row), strict=True))
            check |= {name: _integer(check[name]) for name in ("epoch", "step") if name in check}
            checks.append(check)
    places = [(check["epoch"], check.get("step", -1)) for check in checks]
    if any(one >= two for one, two in itertools.pairwise(places)):
        raise ValueError("the epochs of the checks do not ascend")
    return checks


def _read_average(value: Any) -> dict[str, Any]:
    average = _plain(dict)(value)
    n_checks = {name: _integer(n, 1) for name, n in average["n_checks"].items()}
    weights = read_weights(average["weights"])
    if weights and (lacking := n_checks.keys() - weights.keys()):
        raise ValueError(f"the averages of {len(lacking)} weights are missing")
    if any(bool(one.isnan().any()) for one in weights.values()):
        raise ValueError("an averaged weight is NaN")
    return {"past": float(average["past"]), "n_checks": n_checks, "weights": weights}


def _read_kept(value: Any) -> dict[str, Any]:
    """Weights of any kind: a module may add objects of its own to them."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise TypeError(f"weights by name must be here, got {type(value).__name__}")
    _check_plain([one for one in pytree.tree_leaves(dict(value)) if isinstance(one, Tensor)])
    return dict(value)


_TRACKER: dict[str, Callable[[Any], Any]] = {
    "settings": _maybe(_plain(dict, has_tensors=False)),
    "rule": _maybe(_plain(dict), dict),
    "asked": _maybe(_plain(list, has_tensors=False)),
    "samples": _maybe(_plain(str)),
    "prepared": _maybe(_plain(dict)),
    "space": _maybe(_read_space),
    "plan": _maybe(_read_plan),
    "history": _maybe(_read_history, list),
    "n_not_compared": _maybe(_integer, int),
    "predictions": _maybe(_vector(torch.int64, torch.int32, torch.uint8, low=0)),
    "best_contributions": _maybe(_vector(torch.float64)),
    "average": _maybe(_read_average),
}
_KEEPER: dict[str, Callable[[Any], Any]] = {
    "best_epoch": _maybe(_integer),
    "best_step": _maybe(_integer),
    "best_weights": _maybe(_read_kept, dict),
    "best_model_path": _maybe(_plain(str), str),
    "best_model_score": _maybe(float),
    "folders": _maybe(lambda folders: [_plain(str)(one) for one in _plain(list)(folders)], list),
}
