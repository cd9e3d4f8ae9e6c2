"""Tracker of one training from check to check; it knows no trainer."""

import copy
import itertools
import math
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bu_torch.internal import printing
from bu_torch.internal.logits import OutputReader
from bu_torch.internal.printing import cleaned
from bu_torch.internal.replica import evaluation_copy
from bu_torch.run.budget import Plan
from bu_torch.run.check_setup import CheckSetup
from bu_torch.run.history import History, describe_worse_than_chance, summary_of
from bu_torch.run.processes import Processes
from bu_torch.run.settings import Settings
from bu_torch.run.state import VERSION, read_state
from bu_torch.run.timing import Record, RunTimer, plain, row
from bu_torch.run.weights import WeightAverage, state_to_keep
from bu_torch.samples.samples import Samples
from bu_torch.signals.metrics import THRESHOLD, as_metric

# Scores can be compared only if these settings are the same.
_COMPARED = ["metric", "start_from_epoch", "n_neighbors", "n_draws", "max_samples", "seed", "class_weight"]


class UnfitLogitsError(ValueError):
    """Logits do not fit the labels."""


class Check(NamedTuple):
    """A check, as its owner reads it."""

    entry: dict[str, Any]
    is_kept: bool  # it is the one to keep from now on
    weights: dict[str, Any]  # `state_dict` of the network that was read, if it is to be kept and no shard


class Tracker:
    """Measures each check of one training, keeps the history and the record, and says what to keep and when to stop.

    A training calls it in this order, with `logits_at` of `bu_torch.internal.logits`. A record also needs `begin`,
    `end_check` and `end`.

        tracker = Tracker(Settings(patience=10))
        samples = bu_torch.samples.samples.whole_samples(inputs, labels)
        tracker.start(lambda: samples, lambda n, n_bytes: plan(tracker.settings, n, n, 100_000, n_bytes))
        for epoch in range(500):
            train_one_epoch(model)
            check = tracker.check(model, lambda network: logits_at(network, tracker.inputs), epoch)
            if check.is_kept:
                save(check.weights)
            if tracker.history.verdict.should_stop:
                break

    If several `processes` train, the first one prepares, reads and measures, and all `add` the same values: all must
    call the same methods. With `decides=False`, nothing is decided.
    """

    def __init__(
        self,
        settings: Settings,
        warn: Callable[[str], None] | None = None,
        tell: Callable[[str], None] = printing.tell,
    ) -> None:
        self.settings = settings
        self.warn: Callable[[str], None] = warn or partial(warnings.warn, stacklevel=2)
        self.tell, self.detail = tell, tell if settings.verbose else printing.untold
        self.outputs = OutputReader("The module", self.warn, self.detail)
        self.processes = Processes()
        self.inputs: Any = None  # perturbed inputs, in the processes that read the network
        self.history = History(settings)  # decides which check is kept, and when to stop
        self.check_setup = CheckSetup(settings, self.warn, tell)  # samples, and what is computed before training
        self.average: WeightAverage | None = None
        if settings.averaging is not None:
            self.average = WeightAverage(settings.averaging)
        self.timer = RunTimer()  # time and record
        self.summary: dict[str, Any] = {}  # what was kept, and whether to trust it, once training has ended
        self.remarks: list[str] = []  # what else is to say of it
        self.doubt = ""  # a reason not to trust it
        self._has_warned = False  # a warning about predictions worse than chance is given once

    @property
    def checks(self) -> list[dict[str, Any]]:
        """One dict a check, in order, as in `BoundaryUncertaintyMonitor`; `step` only if it is known."""
        return self.history.entries

    def start(
        self,
        give_samples: Callable[[], Samples],
        planned: Callable[[int, int], Plan] | None = None,
        *,
        device: torch.device | None = None,
        **options: Any,
    ) -> bool:
        """Prepare the samples of the checks, in the first process for all; False if a run resumes with others.

        Arguments and errors are those of `CheckSetup.prepare`.
        """
        setup, processes, options = self.check_setup, self.processes, {"device": device, **options}
        has_resumed = bool(self.checks)
        prepared = processes.on_first(lambda: setup.prepare(give_samples, planned, has_resumed=has_resumed, **options))
        self.inputs = setup.signals.perturbed if processes.rank == 0 else None
        if processes.are_sharded and processes.count > 1:
            of_first: Any = processes.broadcast(None if processes.rank else copy.copy(self.inputs).to("cpu"))
            self.inputs = of_first.to(device)
        if setup.accept(prepared) or not self.checks:
            return True
        self.history.reset()
        setup.forget_checks()
        return False

    def averages(self, model: object) -> dict[str, Tensor]:
        """Averaged weights by name, which a check reads and keeps in place of the model's; empty without an average."""
        return self.average.values() if self.average is not None and isinstance(model, nn.Module) else {}

    def check(
        self, model: Any, read: Callable[[Any], Tensor], epoch: int, step: int | None = None, *, is_counted: bool = True
    ) -> Check:
        """Measure a copy of a model, with averaged weights if there are any, and `add` the check.

        `read` gives the logits of a network at `inputs`. Weights that are sharded are left to `state_to_keep`.
        """
        if self.average is not None and isinstance(model, nn.Module):
            self.average.update(model, is_again=self.history.is_last(epoch, step))
        values, are_sharded = self.averages(model), self.processes.are_sharded

        def logits() -> Tensor:
            with evaluation_copy(model, values, is_sharded=are_sharded) as network:
                return self.outputs.read(partial(read, network))

        entry = self.add(epoch, self.processes.on_logits(logits, self.measure), step, is_counted=is_counted)
        is_kept = self.history.is_kept_new
        weights = self.state_to_keep(model) if is_kept and not are_sharded else {}
        return Check(entry, is_kept, weights)

    def state_to_keep(self, model: object) -> dict[str, Any]:
        """The `state_dict` of the weights that the last check has read; empty for a model that is no module."""
        state, processes = state_to_keep(model, self.averages(model)), self.processes
        if processes.count > 1 and not processes.are_sharded and isinstance(model, nn.Module):
            names = {name for name, _ in model.named_buffers(remove_duplicate=False)}
            of_first = processes.broadcast({name: state[name].cpu() for name in names if name in state})
            state |= of_first if processes.rank else {}
        return state

    def measure(self, logits: Tensor) -> dict[str, float]:
        """Signals and `standard_error` of the network's logits at the perturbed inputs; waits for the device once."""
        try:
            return self.check_setup.measure(logits)
        except ValueError as error:
            raise UnfitLogitsError(str(error)) from error

    def add(
        self, epoch: int, values: Mapping[str, float], step: int | None = None, *, is_counted: bool = True
    ) -> dict[str, Any]:
        """Add a check, decide, and return the new entry, which replaces one of the same epoch and step.

        With `is_counted=False`, neither it nor any check before it counts for the patience or as best.
        """
        entry = {"epoch": epoch, **({} if step is None else {"step": step}), **values}
        setup = self.check_setup
        if self.history.has_best_value(entry):
            setup.best_contributions = setup.contributions
        self.history.add(entry, is_counted=is_counted)
        if not is_counted:
            setup.forget_checks()
        data = setup.about["data"]
        line = describe_worse_than_chance(self.checks, setup.n_columns, data) if data else ""
        if line and not self._has_warned:
            self._has_warned = True
            self.warn(line)  # last, because filters may turn a warning into an error
        return entry

    def open_record(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Open a record with `settings` in `folder`."""
        timer, history = self.timer, self.history
        named = {**settings, "rule": None, **history.rule_settings()}
        header = {
            "settings": {name: plain(value) for name, value in named.items()},
            "n_not_compared": history.n_not_compared,
            **self.check_setup.about,
            "setup_seconds": timer.setup_seconds,
        }
        timer.record = Record(folder, header, map(row, self.checks))

    def end_check(self, started: float, train_loss: float | None = None) -> None:
        """Count the time of the last check, and write it to the record."""
        measured, self.check_setup.measurement = self.check_setup.measurement, None  # None but in the first process
        details = measured.details() if self.timer.path and measured is not None else None
        self.timer.check_seconds += time.perf_counter() - started
        if details is not None:
            entry, kept, rows = self.checks[-1], self.history.kept or {}, self.check_setup.rows
            line = {
                **row(entry, self.timer.seconds, self.timer.check_seconds, train_loss),
                "kept_epoch": kept.get("epoch"),
                "kept_step": kept.get("step"),
                "n_not_compared": self.history.n_not_compared,  # the header may be older, when all checks counted
                "crossing": details.crossing._asdict(),
                "meeting": details.meeting,
                "doubtful": [[int(rows[one.row]), *one[1:]] for one in details.doubtful],
                "recalls": details.recalls,
            }
            self.timer.record.write(line)

    def end(self, reason: str, **kept: Any) -> None:
        """Judge what was kept, and write the last line of the record."""
        seconds = {name: getattr(self.timer, name) for name in ("saving_seconds", "training_seconds")}
        check = self.history.best
        confidence, self.doubt, self.remarks = None, "", []
        if check is not None and self.check_setup.is_prepared:
            confidence, self.doubt, self.remarks = self.check_setup.judge(check, self.history)
        if self.history.selection is not None:
            judged = summary_of(confidence, as_metric(self.settings.metric))
            score = None if check is None else check[self.history.score_name]
            self.summary = {"reason": reason, "score_name": self.history.score_name, "score": score, **kept, **judged}
            if check is not None and THRESHOLD in check:
                is_known = (
                    self.check_setup.is_prepared and judged["word"] != "blind" and math.isfinite(check[THRESHOLD])
                )
                found = {name: check[name] for name in check if name.endswith(THRESHOLD)}
                self.summary |= found if is_known else found | {THRESHOLD: None}
        line = {"kind": "end", "reason": reason, "n_not_compared": self.history.n_not_compared, **kept, **seconds}
        self.timer.record.write(line | {"remarks": [line for line in (self.doubt, *self.remarks) if line]})

    def log_summary(
        self, reason: str, how: str | None, *, is_by_steps: bool, is_open: bool, path: str = "", why: str = ""
    ) -> None:
        """Say what was kept, why training ended and what that cost, and doubts; with `verbose` all remarks, too.

        Arguments are those of `History.describe_end`; `how` is None if nothing is kept, for the reason `why`.
        """
        if self.processes.rank != 0:
            return
        if how is None:
            why = why or self.history.why_none_kept()
            self.tell(f"bu-torch kept no epoch: {why}. {reason} The weights are those of training.")
            return
        options = {"is_averaged": self.average is not None, "is_by_steps": is_by_steps, "is_open": is_open}
        kept, ended = self.history.describe_end(reason, how, path, **options)
        self.tell(kept)
        self.tell(f"{ended} {self.timer.describe_cost()}")
        if self.doubt:
            self.tell(self.doubt)
        for line in self.remarks:
            self.detail(line)

    def release(self) -> None:
        """Free what `start` computed, and the average, because training has ended."""
        self.check_setup.release()
        self.inputs = None
        self.processes = Processes()
        if self.average is not None:
            self.average.release()

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed training needs, as plain numbers, strings and tensors on the CPU."""
        state = self.history.state_dict() | self.check_setup.state_dict()
        if self.average is not None:
            state["average"] = self.average.state_dict()
        # Tables of numbers, one for each run of checks with the same entries: single numbers are slow to save.
        as_numbers = partial(torch.tensor, dtype=torch.float64, device="cpu")
        state["history"] = [
            {"names": list(names), "values": as_numbers([[*check.values()] for check in checks])}
            for names, checks in itertools.groupby(self.checks, key=tuple)
        ]
        return state | {"version": VERSION, "settings": self._compared_settings()}

    def load_state_dict(self, state_dict: Any) -> None:
        """Continue from a `state_dict`; patience and the best epoch start anew if it is damaged, or settings differ."""
        why = ""
        try:
            state, now = read_state(state_dict), self._compared_settings()
            before = state["settings"] or now
            changed = {name: value for name, value in now.items() if value != before.get(name)}
            if changed:
                was = ", ".join(f"{name}={before.get(name)!r:.100}" for name in changed)
                is_now = ", ".join(f"{name}={value!r:.100}" for name, value in changed.items())
                why = f"The run resumes with {is_now} instead of {was}: earlier scores cannot be compared"
            self.history.load(state, is_compared=not changed)
            if self.average is not None and state["average"] is not None:
                self.average.load_state_dict(state["average"])
            self.check_setup.load(state | {"plan": None} if changed else state)
        except Exception as error:  # a damaged state, or a rule of the user's, may raise anything
            self.history.load({"history": []}, is_compared=False)
            why = f"The state in the checkpoint cannot be read ({cleaned(f'{type(error).__name__}: {error}'[:200])})"
        if why:
            self.check_setup.forget_checks()
            self.warn(f"{why}.{' Patience and the best epoch start anew.' if self.settings.decides else ''}")

    def _compared_settings(self) -> dict[str, int | float | str | None]:
        """Settings that scores depend on, as plain data."""
        named = {name: getattr(self.settings, name) for name in _COMPARED}
        named["metric"] = str(as_metric(self.settings.metric) or "accuracy")
        if isinstance(weights := named["class_weight"], dict | list):
            named["class_weight"] = repr(weights)  # a state holds plain data
        past = None if self.average is None else self.average.past
        return {**self.history.rule_settings(), "averaging": past, **named}


class MeasurementResults:
    """Results of a tracker as attributes of a callback or of a plain loop's stopper."""

    @property
    def tracker(self) -> Tracker:
        raise NotImplementedError

    @property
    def history(self) -> list[dict[str, Any]]:
        return self.tracker.checks

    @property
    def setup_seconds(self) -> float:
        return self.tracker.timer.setup_seconds

    @property
    def check_seconds(self) -> float:
        return self.tracker.timer.check_seconds

    @property
    def record_path(self) -> str:
        return self.tracker.timer.path


class KeptResults(MeasurementResults):
    """Results of measuring, and those of the kept check."""

    @property
    def summary(self) -> dict[str, Any]:
        return self.tracker.summary

    @property
    def score_name(self) -> str:
        return self.tracker.history.score_name

    @property
    def best_epoch(self) -> int | None:
        return (self.tracker.history.best or {}).get("epoch")

    @property
    def best_step(self) -> int | None:
        return (self.tracker.history.best or {}).get("step")

    @property
    def best_score(self) -> float | None:
        return (self.tracker.history.best or {}).get(self.score_name)
