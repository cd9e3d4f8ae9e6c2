"""What a run leaves: the record of its checks for `bu_torch.report`, its seconds, and its state in checkpoints."""

import itertools
import json
import platform
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from bu_torch.signals.metrics import ExpectedMetric

FORMAT = 4  # raise it when the meaning of the lines of a record changes
VERSION = 5  # of what `Engine.state_dict` returns
_NAME = "boundary_uncertainty"


class Record:
    """The seconds of one training, and a file of lines in JSON: the settings, each check as it is made, and the end.

    If the file's name is taken, it gets a version. A run that resumes may end an epoch a second time: the later of two
    checks with the same epoch and step counts. If the file can no longer be written, a warning says so and training
    continues without it.
    """

    def __init__(self) -> None:
        self.path: Path | None = None  # None if nothing is written
        self.setup_seconds = self.check_seconds = self.saving_seconds = 0.0
        self._started = time.perf_counter()

    def start(self, started: float) -> None:
        """Count the time since `started` (`time.perf_counter`) as preparation, and that from now on as training."""
        self._started, self.setup_seconds = started, time.perf_counter() - started

    @property
    def seconds(self) -> float:
        """Seconds since the preparation ended."""
        return time.perf_counter() - self._started - self.setup_seconds

    @property
    def training_seconds(self) -> float:
        return self.seconds - self.check_seconds - self.saving_seconds

    @contextmanager
    def timing(self, name: str) -> Iterator[None]:
        """Add the time within to one of the sums."""
        started = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, name, getattr(self, name) + time.perf_counter() - started)

    def open(self, folder: Path, header: Mapping[str, Any], checks: Iterable[Mapping[str, Any]] = ()) -> None:
        """Begin a file in a folder with a header and the checks so far."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for version in itertools.count():
                self.path = folder / (f"{_NAME}-v{version}.jsonl" if version else f"{_NAME}.jsonl")
                with suppress(FileExistsError):
                    self.path.touch(exist_ok=False)  # exclusively, so that no link is followed
                    break
        except OSError as error:
            self._give_up(folder, error)
        versions = {"python": platform.python_version()}
        for name in ("bu-torch", "torch", "lightning", "pytorch-lightning", "faiss-cpu", "scikit-learn", "numpy"):
            with suppress(metadata.PackageNotFoundError):
                versions[name] = metadata.version(name)
        started = datetime.now(UTC).isoformat(timespec="seconds")
        self.write({"kind": "header", "format": FORMAT, "versions": versions, "started": started, **header})
        for check in checks:
            self.write(check)

    def write(self, line: Mapping[str, Any]) -> None:
        """Write a line; numbers that are not finite, which JSON does not have, are null."""
        if self.path is None:
            return
        finite = json.loads(json.dumps(line), parse_constant=lambda name: None)
        text = json.dumps(finite, separators=(",", ":"))
        try:
            with self.path.open("ab") as file:
                file.write(f"{text}\n".encode())
        except OSError as error:
            self._give_up(self.path, error)

    def _give_up(self, path: Path, error: OSError) -> None:
        self.path = None
        warnings.warn(
            f"The record of the checks cannot be written to {path}: {error}. Training continues without it.",
            stacklevel=2,
        )


def as_line(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Line of a check; its times and the training loss, which are unknown after a resume, come later."""
    unknown = dict.fromkeys(("seconds", "check_seconds", "train_loss"))
    return {"kind": "check", "epoch": entry["epoch"], "step": entry.get("step"), **unknown, **entry}


def as_json(value: Any) -> Any:
    """Value of a setting for JSON; the name of its type if JSON cannot hold it."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping | list):  # weights by class
        return repr(value)
    return str(value) if isinstance(value, Path | ExpectedMetric) else type(value).__name__


def read_state(state: Any) -> dict[str, Any]:
    """Entries of what `Engine.state_dict` returned; raises some exception if they are of another version or kind."""
    if (version := state.get("version")) != VERSION:
        raise ValueError(f"it has version {version}, and this package reads version {VERSION}")
    plan = None if state["plan"] is None else tuple(map(int, state["plan"]))
    if plan is not None and not (len(plan) == 2 and plan[0] >= 1 and 1 <= plan[1] <= 1000):  # memory grows with them
        raise ValueError(f"its plan is {plan}")
    kinds = {"predictions": torch.int64, "best_contributions": torch.float64}
    tensors = {name: None if state[name] is None else state[name].to(kind).flatten() for name, kind in kinds.items()}
    return {**state, **tensors, "plan": plan, "weights": dict(state["weights"])}
