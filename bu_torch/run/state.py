"""States in checkpoints, which may come from anywhere: plain data of one version."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from bu_torch.run.plan import Plan

VERSION = 1  # of what `Engine.state_dict` returns
_TENSORS = (("predictions", torch.int64), ("best_contributions", torch.float64))
_PLAIN = (type(None), bool, int, float, complex, str, bytes)


def check_plain(tree: Any) -> None:
    """Raise unless all is plain data, and tensors are plain, on the CPU, and as large in memory as they say."""
    if isinstance(tree, Mapping):
        tree = [*tree.keys(), *tree.values()]
    if isinstance(tree, list | tuple | set | frozenset):
        for value in tree:
            check_plain(value)
    elif isinstance(tree, Tensor):
        is_plain = tree.layout == torch.strided and tree.device.type == "cpu" and not tree.requires_grad
        if not is_plain or tree.untyped_storage().nbytes() < tree.numel() * tree.element_size():
            raise ValueError(f"a tensor of {tree.numel()} elements does not hold their values")
    elif not isinstance(tree, _PLAIN):
        raise TypeError(f"an object of {type(tree).__name__} is no plain data")


def as_tables(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Checks as tables of numbers, one for each run of checks with the same names: single numbers are slow to save."""
    tables = ((names, [[*check.values()] for check in checks]) for names, checks in groupby(entries, key=tuple))
    as_numbers = partial(torch.tensor, dtype=torch.float64, device="cpu")
    return [{"names": list(names), "values": as_numbers(rows)} for names, rows in tables]


def as_small(classes: Tensor) -> Tensor:
    """Classes on the CPU, in the smallest type that holds them all."""
    return classes.cpu().to(torch.uint8 if int(classes.max()) <= torch.iinfo(torch.uint8).max else torch.int32)


def read_state(state: Any) -> dict[str, Any]:
    """Entries of what `Engine.state_dict` returned, as their owners take them.

    Raises some exception if they are of another version or kind.
    """
    check_plain(state)
    if (version := state.get("version")) != VERSION:
        raise ValueError(f"it has version {version}, and this package reads version {VERSION}")
    history = []
    for table in state["history"]:
        for row in table["values"].tolist():
            check: dict[str, Any] = dict(zip(table["names"], map(float, row), strict=True))
            places = {name: int(check[name]) for name in ("epoch", "step") if name in check}
            history.append(check | places | {"expected_accuracy": check["expected_accuracy"], "epoch": places["epoch"]})
    plan = None if state["plan"] is None else Plan(*map(int, state["plan"]))
    if plan is not None and not (plan.n_samples >= 1 and 1 <= plan.n_draws <= 1000):  # memory grows with them
        raise ValueError(f"its plan is {plan}")
    tensors = {name: None if state[name] is None else state[name].to(dtype).flatten() for name, dtype in _TENSORS}
    n_not_compared = min(max(int(state["n_not_compared"]), 0), len(history))
    if (kept := state.get("kept")) is not None and kept not in range(n_not_compared, len(history)):
        raise ValueError(f"it keeps check {kept} of {len(history)}")
    return {**state, **tensors, "history": history, "plan": plan, "n_not_compared": n_not_compared}
