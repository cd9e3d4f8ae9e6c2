"""The table of checks that a run leaves beside its checkpoints."""

import csv
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

_NAME = "boundary_uncertainty"


class Record:
    """A CSV file with one row a check, each on disk before training goes on, so that a killed run keeps them all.

    An earlier file is never written over: the name gets a version, as those of Lightning's checkpoints do. A run that
    resumes in the middle of an epoch may end it a second time: of two rows of an epoch the later one counts. A file
    that can no longer be written is given up with a warning; training goes on.

    Args:
        folder: Where to write; made if need be.
        rows: Checks of the run that this one resumes, written first.
    """

    def __init__(self, folder: Path, rows: Iterable[Mapping[str, Any]]) -> None:
        self._columns: list[str] | None = None
        self.path: Path | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.path = _new_file(folder)
        except OSError as error:
            self._give_up(folder, error)
        for row in rows:
            self.append(row)

    def append(self, row: Mapping[str, Any]) -> None:
        """Write one row; the first decides on the columns."""
        if self.path is None:
            return
        is_first = self._columns is None
        self._columns = self._columns or list(row)
        try:
            with self.path.open("a", newline="") as file:
                writer = csv.DictWriter(file, self._columns, extrasaction="ignore")
                if is_first:
                    writer.writeheader()
                writer.writerow(row)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            self._give_up(self.path, error)

    def _give_up(self, path: Path, error: OSError) -> None:
        self.path = None
        rank_zero_warn(f"The record of the checks cannot be written to {path}: {error}. Training goes on without it.")


def folder_of(trainer: Trainer) -> Path | None:
    """Where this run's checkpoints are, or its logs; None where it keeps nothing on this machine's disk."""
    if trainer.fast_dev_run or trainer.barebones:
        return None
    folder = getattr(trainer.checkpoint_callback, "dirpath", None)
    if folder is None and trainer.loggers:
        folder = trainer.log_dir  # which all processes must ask for
    if folder is None or "://" in str(folder) or not trainer.is_global_zero:
        return None
    return Path(folder)


def _new_file(folder: Path) -> Path:
    version = 0
    while True:
        path = folder / (f"{_NAME}-v{version}.csv" if version else f"{_NAME}.csv")
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            version += 1
        else:
            return path
