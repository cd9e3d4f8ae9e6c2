"""Account of a run: the record that it leaves for `bu_torch.report`, and the seconds that it takes."""

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

from bu_torch.signals.metrics import ExpectedMetric

FORMAT = 4  # raise it when the meaning of the lines changes
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

    def begin(self, started: float) -> None:
        """Count the time since `started` (`time.perf_counter`) as preparation, and that from now on as training."""
        self._started, self.setup_seconds = started, time.perf_counter() - started

    @property
    def seconds(self) -> float:
        """Seconds since the preparation ended."""
        return time.perf_counter() - self._started - self.setup_seconds

    def costs(self) -> dict[str, float]:
        training = self.seconds - self.check_seconds - self.saving_seconds
        return {"saving_seconds": self.saving_seconds, "training_seconds": training}

    def describe_cost(self) -> str:
        """Say what this package cost on top of training; a trainer's time on its hooks is not known here."""
        spent = self.setup_seconds + self.check_seconds + self.saving_seconds
        training = self.costs()["training_seconds"]
        return f"Overhead of bu-torch: at least {spent:.1f} s on top of {training:.1f} s of training."

    @contextmanager
    def counting(self, name: str) -> Iterator[None]:
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
            self.path = _new_file(folder)
        except OSError as error:
            self._give_up(folder, error)
        started = datetime.now(UTC).isoformat(timespec="seconds")
        self.write({"kind": "header", "format": FORMAT, "versions": package_versions(), "started": started, **header})
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


def row(entry: Mapping[str, Any], *costs: float | None) -> dict[str, Any]:
    """Line of a check; seconds, those of all checks, and the training loss are unknown for checks before a resume."""
    known = dict(itertools.zip_longest(("seconds", "check_seconds", "train_loss"), costs))
    return {"kind": "check", "epoch": entry["epoch"], "step": entry.get("step"), **known, **entry}


def plain(value: Any) -> Any:
    """Value of a setting for JSON; the name of its type if JSON cannot hold it."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping | list):  # weights by class
        return repr(value)[:100]
    return str(value) if isinstance(value, Path | ExpectedMetric) else type(value).__name__


def package_versions() -> dict[str, str]:
    """Versions of the packages that a result depends on."""
    versions = {"python": platform.python_version()}
    for name in ("bu-torch", "torch", "lightning", "pytorch-lightning", "faiss-cpu", "scikit-learn", "numpy"):
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def _new_file(folder: Path) -> Path:
    """Create a file under a free name, exclusively, so that no link is followed."""
    for version in itertools.count():
        path = folder / (f"{_NAME}-v{version}.jsonl" if version else f"{_NAME}.jsonl")
        with suppress(FileExistsError):
            path.touch(exist_ok=False)
            break
    return path
