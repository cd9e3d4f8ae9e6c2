"""Seconds that a training spends beside training itself, and the record that it leaves."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from bu_torch.run.record import Record, row


class Account:
    """The seconds of one training so far, and its record, if there is one."""

    def __init__(self) -> None:
        self.setup_seconds = 0.0
        self.check_seconds = 0.0
        self.saving_seconds = 0.0
        self.has_resumed = False  # checks were made before this run began
        self._began = time.perf_counter()
        self._seconds_elsewhere = 0.0
        self.record: Record | None = None

    def begin(self, started: float, *, has_resumed: bool) -> None:
        """Count the time of training from now on."""
        self._began = time.perf_counter()
        self.has_resumed = has_resumed
        self._seconds_elsewhere = 0.0
        self.setup_seconds = self._began - started

    @property
    def path(self) -> str:
        """Table of checks on disk; "" if there is none."""
        return "" if self.record is None or self.record.path is None else str(self.record.path)

    @property
    def training_seconds(self) -> float:
        """Time since `begin` without checks, saving, and what others took."""
        beside = self._seconds_elsewhere + self.check_seconds + self.saving_seconds
        return time.perf_counter() - self._began - beside

    def leave_out(self, seconds: float) -> None:
        """Count seconds that have just passed neither as training nor as checks: others took them."""
        self._seconds_elsewhere += seconds

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Count the time within as that of saving."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.saving_seconds += time.perf_counter() - started

    def note(self, line: Mapping[str, Any]) -> None:
        """Write one line beside the table, if there is a record."""
        if self.record is not None:
            self.record.tell(line)

    def end_check(self, started: float, check: Mapping[str, Any], train_loss: float | None) -> None:
        """Count the time of a check, and add its row to the table."""
        now = time.perf_counter()
        self.check_seconds += now - started
        if self.record is not None:
            seconds = now - self._began - self._seconds_elsewhere
            self.record.append(row(check, seconds, self.check_seconds, train_loss))
