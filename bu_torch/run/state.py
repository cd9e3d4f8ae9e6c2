"""Checks of a tracker's state in a checkpoint, which may come from anywhere, before any of it is used."""

import itertools
from collections.abc import Mapping
from typing import Any, get_args

import torch
from torch import Tensor

from bu_torch.estimators.space_choice import SpaceName
from bu_torch.run.budget import Plan

_KINDS: dict[str, Any] = {
    **dict.fromkeys(("settings", "rule", "recalls", "average"), dict),
    **dict.fromkeys(("history", "asked"), list),
    **dict.fromkeys(("predictions", "best_predictions", "prepared"), Tensor),
    **dict.fromkeys(("samples", "space"), str),
    "n_not_compared": int,
    "plan": (tuple, list),
}
_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
_MOST_NAME = 100  # characters
_MOST_DRAWS = 1000


def read_state(state: Any) -> dict[str, Any]:
    """Check what `Tracker.state_dict` returned; a ValueError says what is wrong.

    The result has all entries: `history` as a list of checks, predictions as int64, and `plan` as a `Plan` or None.
    """
    _check(isinstance(state, Mapping), "a dict", state)
    read = {name: state.get(name) for name in _KINDS}
    for name, kind in _KINDS.items():
        is_typed = isinstance(read[name], kind) and not isinstance(read[name], bool)
        _check(read[name] is None or is_typed, f"`{name}` of another type", read[name])
    read["history"] = history = [check for table in read["history"] or () for check in _read_checks(table)]
    places = [(check["epoch"], check.get("step", -1)) for check in history]
    _check(all(a < b for a, b in itertools.pairwise(places)), "checks in order of their epochs and steps", places)
    read["n_not_compared"] = read["n_not_compared"] or 0
    is_within = 0 <= read["n_not_compared"] <= len(history)
    _check(is_within, "`n_not_compared` within the history", read["n_not_compared"])
    _check(read["space"] in (None, *get_args(SpaceName)), "`space` as the name of one", read["space"])
    # The contents of these bytes, a `Preparation`, are checked when the samples are known.
    are_bytes = read["prepared"] is None or _is_plain(read["prepared"], (torch.uint8,), 1)
    _check(are_bytes, "`prepared` as bytes in a plain tensor", getattr(read["prepared"], "shape", None))
    for name in ("predictions", "best_predictions"):
        value = torch.empty(0, dtype=torch.int64) if read[name] is None else read[name]
        _check(_is_plain(value, _INTEGERS, 1), f"`{name}` as integers in a plain tensor", value.dtype)
        read[name] = value.long()
    if (plan := read["plan"]) is not None:
        is_plan = len(plan) == 2 and all(map(_is_count, plan)) and plan[0] >= 1 and 1 <= plan[1] <= _MOST_DRAWS
        _check(is_plan, f"a plan of at most {_MOST_DRAWS} draws", plan)
        read["plan"] = Plan(*plan)
    read["rule"], read["recalls"] = read["rule"] or {}, read["recalls"] or {}
    for name, recall in read["recalls"].items():
        _check(name in ("kept", "balanced") and _is_recall(recall), "`recalls` as epoch, step and shares", recall)
    if read["average"] is not None:
        read["average"] = _read_average(read["average"])
    return read


def read_weights(weights: Any) -> dict[str, Tensor]:
    """Check weights by name that a checkpoint holds; a ValueError if they are something else."""
    _check(isinstance(weights, Mapping), "weights by name", weights)
    for name, tensor in weights.items():
        _check(isinstance(name, str) and isinstance(tensor, Tensor), "weights as tensors by name", name)
        is_of_numbers = tensor.is_floating_point() or tensor.is_complex()
        _check(is_of_numbers and _holds_all(tensor), "weights as plain tensors that hold their values", tensor.dtype)
    return dict(weights)


def _read_checks(table: Any) -> list[dict[str, Any]]:
    """Checks of a table, each with its epoch and step, and numbers by name."""
    _check(isinstance(table, Mapping), "a table of checks", table)
    names, values = table.get("names"), table.get("values")
    are_names = isinstance(names, list) and all(
        isinstance(name, str) and name.isidentifier() and len(name) <= _MOST_NAME for name in names
    )
    _check(are_names and "epoch" in names, "names of numbers", names)
    is_table = _is_plain(values, (torch.float64,), 2) and values.shape[1] == len(names)
    _check(is_table, "a table of checks", values)
    checks: list[dict[str, Any]] = [dict(zip(names, row, strict=True)) for row in values.tolist()]
    for check in checks:
        for name in {"epoch", "step"} & check.keys():
            _check(check[name].is_integer() and 0 <= check[name] < 2**53, f"a whole `{name}`", check[name])
            check[name] = int(check[name])
    return checks


def _is_recall(recall: Any) -> bool:
    """True for epoch, step or None, and recalls of each class by labels and by label probabilities, (2, C)."""
    if not (isinstance(recall, list) and len(recall) == 3 and _is_plain(recall[2], (torch.float64,), 2)):
        return False
    epoch, step, values = recall
    is_in_range = values.shape[1] > 0 and bool(((values >= 0) & (values <= 1 + 1e-6)).all())
    return _is_count(epoch) and (step is None or _is_count(step)) and len(values) == 2 and is_in_range


def _read_average(average: dict[str, Any]) -> dict[str, Any]:
    past: Any = average.get("past")
    n_checks: Any = average.get("n_checks")
    _check(isinstance(past, float) and 0 <= past < 1, "an average with a weight of the past", past)
    _check(isinstance(n_checks, dict), "an average with counts of checks", n_checks)
    for name, number in n_checks.items():
        _check(isinstance(name, str) and _is_count(number) and number >= 1, "an average of at least one check", number)
    weights = read_weights(average.get("weights"))
    _check(all(bool(one.isfinite().all()) for one in weights.values()), "an average of finite weights", "others")
    return {"past": past, "n_checks": n_checks, "weights": weights}


def _holds_all(tensor: Tensor) -> bool:
    """True if a tensor is plain, on the CPU, and has a value of its own in memory for each element."""
    is_plain = tensor.layout == torch.strided and not tensor.is_nested and not tensor.requires_grad
    n_bytes = tensor.numel() * tensor.element_size()
    return is_plain and tensor.device.type == "cpu" and tensor.untyped_storage().nbytes() >= n_bytes


def _is_plain(value: Any, dtypes: tuple[torch.dtype, ...], ndim: int) -> bool:
    return isinstance(value, Tensor) and value.dtype in dtypes and value.ndim == ndim and _holds_all(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def _check(condition: bool, expected: str, value: Any) -> None:
    if not condition:
        raise ValueError(
            f"The checkpoint holds no state that this package wrote: expected {expected}, got {repr(value)[:100]}."
        )
