"""The state of a tracker in a checkpoint, which may come from anywhere: checked before any of it is used."""

import itertools
from collections.abc import Mapping
from typing import Any, get_args

import torch
from torch import Tensor

from bu_torch.estimators.space_choice import SpaceName
from bu_torch.run.budget import Plan

# Types of the entries of a state, except predictions and the plan.
_EMPTY_BY_DEFAULT = {"history": list, "n_not_compared": int, "rule": dict, "recalls": dict}
_NONE_BY_DEFAULT = {"asked": list, "samples": str, "settings": dict, "space": str, "prepared": Tensor, "average": dict}
_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
_MOST_NAME = 100  # characters
_MOST_DRAWS = 1000


def read_state(state: Any, most_draws: int) -> dict[str, Any]:
    """Check what `Tracker.state_dict` returned; a ValueError says what is wrong.

    The result has all entries: `history` as a list of checks, predictions as int64, and `plan` as a `Plan` or None.
    """
    _check(isinstance(state, Mapping), "a dict", state)
    read = {name: _read(state, name, kind, kind()) for name, kind in _EMPTY_BY_DEFAULT.items()}
    read |= {name: _read(state, name, kind, None) for name, kind in _NONE_BY_DEFAULT.items()}
    read["history"] = history = [entry for table in read["history"] for entry in _read_checks(table)]
    places = [(entry["epoch"], entry.get("step", -1)) for entry in history]
    _check(all(a < b for a, b in itertools.pairwise(places)), "checks in order of their epochs and steps", places)
    n_not_compared, prepared = read["n_not_compared"], read["prepared"]
    _check(0 <= n_not_compared <= len(history), "`n_not_compared` within the history", n_not_compared)
    _check(read["space"] in (None, *get_args(SpaceName)), "`space` as the name of one", read["space"])
    # The contents of these bytes, a `Preparation`, are checked when the samples are known.
    are_bytes = prepared is None or _is_plain(prepared, torch.uint8, 1)
    _check(are_bytes, "`prepared` as bytes in a plain tensor", getattr(prepared, "shape", None))
    for name in ("predictions", "best_predictions"):
        read[name] = _read_predictions(state.get(name))
    read["plan"] = _read_plan(state.get("plan"), most_draws)
    _check_recalls(read["recalls"])
    return read | {"average": _read_average(read["average"])}


def read_weights(weights: Any) -> dict[str, Tensor]:
    """Check weights by name that a checkpoint holds; a ValueError if they are something else."""
    _check(isinstance(weights, Mapping), "weights by name", weights)
    for name, tensor in weights.items():
        _check(isinstance(name, str) and isinstance(tensor, Tensor), "weights as tensors by name", name)
        is_of_numbers = tensor.is_floating_point() or tensor.is_complex()
        _check(is_of_numbers and _holds_all(tensor), "weights as plain tensors that hold their values", tensor.dtype)
    return dict(weights)


def _read(state: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    value = state.get(name)
    if value is None:
        return default
    _check(isinstance(value, kind) and not isinstance(value, bool), f"`{name}` of type {kind.__name__}", value)
    return value


def packed_checks(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Checks as tables of numbers, one for each run of checks with the same entries; many numbers are slow to save."""
    return [
        {"names": list(names), "values": torch.tensor([[*check.values()] for check in checks], dtype=torch.float64)}
        for names, checks in itertools.groupby(history, key=tuple)
    ]


def _read_checks(table: Any) -> list[dict[str, Any]]:
    """Checks of a table, each with its epoch and step, and numbers by name."""
    _check(isinstance(table, Mapping), "a table of checks", table)
    names, values = table.get("names"), table.get("values")
    are_names = isinstance(names, list) and all(
        isinstance(name, str) and name.isidentifier() and len(name) <= _MOST_NAME for name in names
    )
    _check(are_names and "epoch" in names, "names of numbers", names)
    is_table = _is_plain(values, torch.float64, 2) and values.shape[1] == len(names)
    _check(is_table, "a table of checks", values)
    checks: list[dict[str, Any]] = [dict(zip(names, row, strict=True)) for row in values.tolist()]
    for check in checks:
        for name in {"epoch", "step"} & check.keys():
            _check(check[name].is_integer() and 0 <= check[name] < 2**53, f"a whole `{name}`", check[name])
            check[name] = int(check[name])
    return checks


def _read_predictions(predictions: Any) -> Tensor:
    if predictions is None:
        return torch.empty(0, dtype=torch.int64)
    is_plain = isinstance(predictions, Tensor) and _holds_all(predictions) and predictions.ndim == 1
    _check(is_plain, "`predictions` as a plain tensor of one dimension", predictions)
    are_integers = predictions.dtype in _INTEGERS or not len(predictions)
    _check(are_integers, "`predictions` that hold their integers", predictions.dtype)
    return predictions.long()


def _check_recalls(recalls: dict[str, Any]) -> None:
    for name, recall in recalls.items():
        _check(name in ("kept", "balanced") and isinstance(recall, list) and len(recall) == 3, "`recalls`", recall)
        epoch, step, values = recall
        _check(_is_count(epoch) and (step is None or _is_count(step)), "`recalls` of a check", recall)
        are_shares = _is_plain(values, torch.float64, 2) and len(values) == 2 and values.shape[1] > 0
        are_shares = are_shares and bool(((values >= 0) & (values <= 1 + 1e-6)).all())
        _check(are_shares, "`recalls` as shares", values)


def _read_average(average: dict[str, Any] | None) -> dict[str, Any] | None:
    if average is None:
        return None
    past, n_checks = average.get("past"), _read(average, "n_checks", dict, {})
    _check(isinstance(past, float) and 0 <= past < 1, "an average with a weight of the past", past)
    for name, number in n_checks.items():
        _check(isinstance(name, str) and _is_count(number) and number >= 1, "an average of at least one check", number)
    weights = read_weights(average.get("weights"))
    _check(all(bool(one.isfinite().all()) for one in weights.values()), "an average of finite weights", "others")
    return {"past": past, "n_checks": dict(n_checks), "weights": weights}


def _holds_all(tensor: Tensor) -> bool:
    """True if a tensor is plain, on the CPU, and has a value of its own in memory for each element."""
    is_plain = tensor.layout == torch.strided and not tensor.is_nested and not tensor.requires_grad
    n_bytes = tensor.numel() * tensor.element_size()
    return is_plain and tensor.device.type == "cpu" and tensor.untyped_storage().nbytes() >= n_bytes


def _is_plain(value: Any, dtype: torch.dtype, ndim: int) -> bool:
    return isinstance(value, Tensor) and value.dtype == dtype and value.ndim == ndim and _holds_all(value)


def _read_plan(plan: Any, most_draws: int) -> Plan | None:
    """Plan of a state; None, so that a new one is made, if it has more draws than the settings allow now."""
    if plan is None:
        return None
    is_pair = isinstance(plan, tuple | list) and len(plan) == 2 and all(map(_is_count, plan))
    _check(is_pair and plan[0] >= 1 and 1 <= plan[1] <= _MOST_DRAWS, f"a plan of at most {_MOST_DRAWS} draws", plan)
    return Plan(*plan) if plan[1] <= most_draws else None


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def _check(condition: bool, expected: str, value: Any) -> None:
    if not condition:
        raise ValueError(
            f"The checkpoint holds no state that this package wrote: expected {expected}, got {repr(value)[:100]}."
        )
