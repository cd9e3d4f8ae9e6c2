"""A tracker's state in a checkpoint, which may come from anywhere: it is read whole before any of it is used."""

from collections.abc import Mapping
from typing import Any, get_args

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from bu_torch.estimators.space_choice import SpaceName
from bu_torch.run.budget import Plan
from bu_torch.signals.details import Recalls, Recognition

_MOST_DRAWS = 1000


def read_state(state: Any) -> dict[str, Any]:
    """Entries of what `Tracker.state_dict` returned, as their owners take them; None or empty if it lacks some.

    Raises:
        ValueError: If it is something else.
    """
    try:
        return _read(state)
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        raise ValueError(f"The checkpoint holds no state that this package wrote: {what}.") from error


def _read(state: Any) -> dict[str, Any]:
    _check_tensors(state)
    read = {name: state.get(name) for name in ("settings", "rule", "asked", "samples", "prepared", "space", "plan")}
    if read["space"] not in (None, *get_args(SpaceName)):
        raise ValueError(f"`space` is {read['space']!r:.100}")
    if not isinstance(read["prepared"], Tensor | None):  # its contents are checked when the samples are known
        raise TypeError(f"`prepared` is a {type(read['prepared']).__name__}")
    read["settings"] = None if read["settings"] is None else dict(read["settings"])
    read["rule"] = dict(read["rule"] or {})
    if read["plan"] is not None:
        read["plan"] = made = Plan(*map(int, read["plan"]))
        if not (made.n_samples >= 1 and 1 <= made.n_draws <= _MOST_DRAWS):  # memory grows with it
            raise ValueError(f"`plan` is {made}")
    read["history"] = [check for table in state.get("history") or () for check in _read_checks(table)]
    read["n_not_compared"] = before = int(state.get("n_not_compared") or 0)
    if not 0 <= before <= len(read["history"]):
        raise ValueError(f"`n_not_compared` is {before} of {len(read['history'])} checks")
    for name in ("predictions", "best_predictions"):
        read[name] = classes = state.get(name, torch.empty(0)).long()
        if classes.ndim != 1 or bool((classes < 0).any()):
            raise ValueError(f"`{name}` of shape {tuple(classes.shape)} are not classes, which are 0 or larger")
    recalls = {name: _read_recalls(*entries) for name, entries in (state.get("recalls") or {}).items()}
    read["recognition"] = Recognition(**recalls)
    if (average := state.get("average")) is not None:
        counts = {name: int(n_checks) for name, n_checks in average["n_checks"].items()}
        if min(counts.values(), default=1) < 1:
            raise ValueError(f"an average of {min(counts.values())} checks")
        weights = read_weights(average["weights"])
        average = {"past": float(average["past"]), "n_checks": counts, "weights": weights}
    return read | {"average": average}


def _read_recalls(epoch: Any, step: Any, shares: Tensor) -> Recalls:
    if shares.ndim != 2 or not shares.numel() or not bool(((shares >= 0) & (shares <= 1 + 1e-6)).all()):
        raise ValueError(f"recalls are {shares!r:.100}")
    return Recalls(int(epoch), None if step is None else int(step), *shares.tolist())


def _read_checks(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Checks of a table, each with its epoch and step, and numbers by name."""
    names = table["names"]
    if not all(map(str.isidentifier, names)):
        raise ValueError(f"names of numbers are {names!r:.100}")
    checks: list[dict[str, Any]] = [dict(zip(names, row, strict=True)) for row in table["values"].tolist()]
    for check in checks:
        check["epoch"] = int(check["epoch"])
        if "step" in check:
            check["step"] = int(check["step"])
    return checks


def read_weights(weights: Any) -> dict[str, Tensor]:
    """Weights by name that a checkpoint holds; a ValueError if they are something else."""
    if not isinstance(weights, Mapping) or not all(
        isinstance(name, str) and isinstance(one, Tensor) and (one.is_floating_point() or one.is_complex())
        for name, one in weights.items()
    ):
        raise ValueError(f"weights must be tensors by name, got {weights!r:.100}")
    _check_tensors(weights)
    return dict(weights)


def _check_tensors(tree: Any) -> None:
    """Raise unless all tensors are plain, on the CPU, and as large in memory as they say."""
    for one in pytree.tree_leaves(tree):
        if isinstance(one, Tensor):
            is_plain = one.layout == torch.strided and not one.is_nested and not one.requires_grad
            is_here = is_plain and one.device.type == "cpu"
            if not is_here or one.untyped_storage().nbytes() < one.numel() * one.element_size():
                raise ValueError(f"a tensor of {one.numel()} elements does not hold their values")
