"""The engine of every training: prepare once; at each check measure, score, decide; in the end say what was kept."""

import math
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bu_torch.internal.network import OutputConverter, was_one_column
from bu_torch.internal.output import log_line, printable
from bu_torch.internal.replica import evaluation_copy, gathered, replaced_in_place
from bu_torch.rule.rules import STANDARD_ERROR
from bu_torch.run.history import History, describe_worse_than_chance, judge, summary_of
from bu_torch.run.prepare import TrainingData, prepare_signals
from bu_torch.run.reader import NetworkReader, Processes
from bu_torch.run.record import VERSION, Record, as_json, as_line, read_state
from bu_torch.run.settings import Settings
from bu_torch.run.weights import WeightAverage, copied, load
from bu_torch.samples.samples import IGNORED
from bu_torch.signals.catalogue import Measurement
from bu_torch.signals.measuring import Signals

# Scores can be compared only if these settings are the same.
_COMPARED_SETTINGS = ["metric", "averaging", "start_from_epoch", "n_neighbors", "n_draws", "max_samples"]
_COMPARED_SETTINGS += ["seed", "class_weight"]

PREPARATION = ("plan", "fingerprint", "prepared", "space")  # entries of a state, as `prepare_signals` gives them


class Engine:
    """Measures each check of one training, keeps the best and its weights, and says when to stop.

        engine.prepare(lambda: TrainingData(samples, plan), device)
        for epoch in range(500):
            train_one_epoch(model)
            engine.check(model, epoch)
            if engine.history.decision.should_stop:
                break
        engine.end("Training ended.")
        engine.put_back(model)

    If several `processes` train, the first one prepares, reads and measures, and all add the same values to their
    histories: all must call the same methods. With `decides=False`, nothing is kept and nothing stops.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.processes, self.reader = Processes(), NetworkReader(settings)  # an owner may set those of its trainer
        self._output_reader = OutputConverter("The module", self.warn, partial(self.log, if_verbose=True))
        self.history = History(settings)
        self.average = WeightAverage(settings.averaging)
        # `state_dict` of the kept check on the CPU, of shards this process's; empty if it was that of no module.
        self.kept_weights: dict[str, Any] = {}
        self.record = Record()
        self.is_prepared = False  # a plain loop prepares at its first check unless it has done so
        # Of this run, or of the one that it resumes, until `prepare` is called; as plain data.
        self.preparation: dict[str, Any] = dict.fromkeys(PREPARATION)
        self.fitted: Any = None  # `Fitted`, in the first process from `prepare` until `release`
        self.perturbed: Any = None  # perturbed samples, in the processes that read the network
        self.is_over = False  # from `release`, or an exception, on; or there is no training
        self.summary: dict[str, Any] = {}  # what was kept, and whether to trust it, once training has ended
        self._remarks: list[str] = []  # lines on whether to trust it, and on its threshold
        # A check is compared with the last one, by predictions (n_draws * N,), and with the best by expected accuracy,
        # or metric, by contributions (N,), which may be another check than the one with the best score.
        self._predictions: Tensor | None = None
        self._best_contributions: Tensor | None = None
        self.measured: Measurement | None = None  # of the last check, in the first process, until it is in the record
        self._n_columns = 0  # width of the last logits

    def __getstate__(self) -> dict[str, Any]:
        reader = NetworkReader(self.settings, self.reader.packing)
        return {**vars(self), "processes": Processes(), "reader": reader}  # a copy has no trainer

    def warn(self, line: str) -> None:
        """Warn in the first process."""
        if self.processes.rank == 0:
            warnings.warn(line, stacklevel=3)

    def log(self, line: str, *, if_verbose: bool = False) -> None:
        """Log a line in the first process, some only if all lines are asked for."""
        if self.processes.rank == 0 and (self.settings.verbose or not if_verbose):
            log_line(line)

    def prepare(self, read_data: Callable[[], TrainingData], device: torch.device) -> None:
        """Read samples in the first process, and prepare checks on `device`; earlier ones of others do not count."""
        has_checks, processes, started = bool(self.history.entries), self.processes, time.perf_counter()

        def read_and_fit() -> tuple[Any, ...]:
            self.fitted, *shared = prepare_signals(
                read_data(), self.settings, self.preparation, device, has_checks=has_checks, log=self.log
            )
            return tuple(shared)

        self.preparation, self.reader.packing, is_comparable = processes.on_first(read_and_fit)
        self.is_prepared = True
        self.perturbed = None if self.fitted is None else self.fitted.signals.boundary.perturbed
        if processes.are_sharded and processes.count > 1:
            inputs: Any = processes.broadcast(None if processes.rank else self.perturbed.to("cpu"))
            self.perturbed = inputs.to(device)
        if not is_comparable:
            self._start_anew("The run resumes with different training samples, or with another version of bu_torch")
        self.record.start(started)

    def check_columns(self, logits: Tensor) -> None:
        """Raise the reader's error unless a network's logits (n, J) have a column for each class."""
        n_classes = self.fitted.signals.boundary.classes.n_classes
        n_columns = 1 if n_classes > 2 and was_one_column(logits) else logits.shape[1]
        try:
            if n_columns < n_classes:
                raise ValueError(
                    f"it gives logits in {n_columns} columns, but the labels have classes 0, ..., {n_classes - 1}. Let"
                    f" labels count from 0, and those of samples to ignore be {IGNORED}. A regression has no decision"
                    " boundary to measure."
                )
            self.history.metric.check_columns(logits.shape[1])
        except ValueError as error:
            raise self.reader.error(f"{self.reader.name}: {error}") from error

    def try_out(self, model: Any) -> None:
        """Refuse a model before it trains, by its logits at a few inputs; warn if token ids are moved like numbers."""
        logits = partial(self.reader.try_out, model, self.perturbed, is_sharded=self.processes.are_sharded)
        self.processes.read_then_on_first(logits, self.check_columns)
        parts = model.modules() if isinstance(model, nn.Module) else ()
        embeds = any(isinstance(part, nn.Embedding | nn.EmbeddingBag) for part in parts)
        if embeds and self.fitted is not None and self.fitted.moves_integers:  # its `forward` must round them
            self.warn(
                "The samples are integers, and the network has an `nn.Embedding`. If they are token ids, pass"
                " `perturbation='tokens'`: otherwise they are moved like numbers, to ids of unrelated tokens."
            )

    def check(self, model: Any, epoch: int, step: int | None = None, *, train_loss: float | None = None) -> bool:
        """Measure a copy of a model, with averaged weights if there are any; whether this check is the best.

        Its entry is then the last of the history, and in the record; that of the best is kept, with its weights.
        """
        started, self.summary, history = time.perf_counter(), {}, self.history
        if history.is_last(epoch, step) and history.n_not_compared < len(history.entries):
            return False  # a resumed training may end an epoch a second time
        if isinstance(model, nn.Module):
            self.average.update(model)
        are_sharded = self.processes.are_sharded

        def logits() -> Tensor:
            with evaluation_copy(model, self.average.values, is_sharded=are_sharded) as network:
                return self._output_reader.logits(partial(self.reader.logits_at, network, self.perturbed))

        values = self.processes.read_then_on_first(logits, self.measure)
        is_best = self.add(epoch, values, step)
        self.record.check_seconds += time.perf_counter() - started
        if is_best:
            with self.record.timing("saving_seconds"):
                weights = {} if self.processes.weights_are_hidden else self.state_to_keep(model)
                self.kept_weights, history.kept = weights, history.entries[-1]  # Ctrl-C comes before or after both
        self._write(history.entries[-1], train_loss)
        return is_best

    def restore(self, model: nn.Module) -> None:
        """Load the kept weights into a model; raises some exception if they do not fit, and leaves it as it was."""
        load(model, self.kept_weights)

    def put_back(self, model: nn.Module) -> bool:
        """Load the kept weights into a model; return whether that was done.

        A failure is only a warning: the training is over, and has succeeded.
        """
        try:
            if self.processes.weights_are_hidden:
                raise RuntimeError("the trainer's strategy shards them")
            self.restore(model)
        except Exception as error:  # those of a damaged state, or the user's `load_state_dict`, may raise anything
            path = self.summary.get("best_model_path")
            self.warn(
                f"The weights of the kept epoch{f', {printable(path)},' if path else ''} cannot be put back:"
                f" {printable(error)}. The weights stay as training left them."
            )
            return False
        return True

    def state_to_keep(self, model: object) -> dict[str, Any]:
        """Copy on the CPU of a module's `state_dict`, with the average in place of its weights; empty if it is none."""
        if not isinstance(model, nn.Module):
            return {}
        with replaced_in_place(model, self.average.values):
            state, processes = copied(model.state_dict()), self.processes
        if processes.count > 1 and not processes.are_sharded:
            names = {name for name, _ in model.named_buffers(remove_duplicate=False)}
            state |= processes.broadcast({name: state[name] for name in names if name in state})
        return state

    def measure(self, logits: Tensor) -> dict[str, float]:
        """Signals and `standard_error` of logits at the perturbed inputs; waits for the device once.

        `add` and `_write` take what else is measured from `measured`.
        """
        signals: Signals = self.fitted.signals
        n_samples = len(signals.boundary.labels)

        def of_these(values: Tensor | None, n_values: int) -> Tensor | None:
            """Values of an earlier check; None if there are none, or a loaded state holds those of other samples."""
            return None if values is None or len(values) != n_values else values.to(logits.device)

        before = of_these(self._predictions, n_samples * signals.boundary.n_draws)
        best = of_these(self._best_contributions, n_samples)
        self._n_columns = logits.shape[1]
        self.measured = signals.measure(logits, before, best)
        self._predictions = self.measured.predictions
        values = {**self.measured.values, STANDARD_ERROR: self.measured.standard_error}
        return dict(zip(values, torch.stack(list(values.values())).tolist(), strict=True))

    def add(self, epoch: int, values: Mapping[str, float], step: int | None = None) -> bool:
        """Add a check, and decide; whether it is the best."""
        entry = {"epoch": epoch, **({} if step is None else {"step": step}), **values}
        is_best = self.history.add(entry)
        if self.measured is not None and self.history.has_best_value(entry):
            self._best_contributions = self.measured.contributions
        if self.fitted is not None:
            line = describe_worse_than_chance(self.history.entries, self._n_columns, self.fitted.about["data"])
            if line:
                self.warn(line)  # last, because filters may turn a warning into an error
        return is_best

    def forget_checks(self) -> None:
        """Compare the next check with none before: neither for the patience nor as best."""
        self.history.reset()
        self.kept_weights = {}
        self._predictions = self._best_contributions = None

    def _start_anew(self, why: str) -> None:
        self.forget_checks()
        outcome = ": patience and the best epoch start anew" if self.settings.decides else ""
        self.warn(f"{why}, so earlier scores cannot be compared{outcome}.")

    def open_record(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Open a record with `settings` in `folder`."""
        history, class_weight = self.history, self.fitted.signals.boundary.class_weight  # the loss's, if set nowhere
        named = {**settings, "class_weight": class_weight, "rule": None, **history.rule_settings()}
        header = {
            "settings": {name: as_json(value) for name, value in named.items() if name != "decides"},
            "n_not_compared": history.n_not_compared,
            **self.fitted.about,
            "setup_seconds": self.record.setup_seconds,
        }
        self.record.open(folder, header, map(as_line, history.entries))

    def _write(self, entry: dict[str, Any], train_loss: float | None) -> None:
        """Write a check to the record, if there is one."""
        measured, self.measured = self.measured, None
        if measured is None or self.record.path is None:
            return
        with self.record.timing("check_seconds"):
            details = measured.details()
        history, kept, rows = self.history, self.history.kept or {}, self.fitted.rows
        doubtful = details.doubtful if rows is not None else []
        self.record.write(
            {
                **as_line(entry),
                "seconds": self.record.seconds,
                "check_seconds": self.record.check_seconds,
                "train_loss": train_loss,
                "kept_epoch": kept.get("epoch"),
                "kept_step": kept.get("step"),
                "n_not_compared": history.n_not_compared,  # the header may be older, when all checks counted
                "crossing": details.crossing._asdict(),
                "meeting": details.meeting,
                "doubtful": [[int(rows[sample.row]), *sample[1:]] for sample in doubtful],
                "recalls": details.recalls,
            }
        )

    def end(self, reason: str, stopped_epoch: int | None = None, **paths: str) -> None:
        """Judge what was kept, and write the last line of the record."""
        history, kept = self.history, self.history.kept or {}
        confidence, self._remarks = judge(history, self.fitted, self._n_columns)
        line: dict[str, Any] = {"reason": reason}
        if self.settings.decides:
            places = {"kept_epoch": kept.get("epoch"), "kept_step": kept.get("step"), "stopped_epoch": stopped_epoch}
            judged = summary_of(confidence, history.metric, kept, is_known=self.fitted is not None)
            line |= places | paths
            score = {"score_name": history.score_name, "score": kept.get(history.score_name)}
            self.summary = {"reason": reason, **score, **line, **judged}
        line |= {"kind": "end", "n_not_compared": history.n_not_compared, "remarks": self._remarks}
        seconds = {name: getattr(self.record, name) for name in ("saving_seconds", "training_seconds")}
        self.record.write(line | seconds)

    @property
    def is_below_baseline(self) -> bool:
        """Whether no check is as good as the same prediction for all samples; known after `end`."""
        metric, values = self.history.metric, map(self.history.value_of, self.history.counted)
        baseline = self.summary.get(f"one_class_{metric.name}")
        return baseline is not None and max(values, default=-math.inf) < metric.sign * baseline

    def log_summary(self, *, is_restored: bool) -> None:
        """Say what was kept, why training ended, what that cost, and whether to trust it if that is in doubt."""
        if (kept := self.history.kept) is None:
            why = f"{self.history.why_none_kept()}. {self.summary['reason']}"
            self.log(f"bu-torch kept no epoch: {why} The model has the weights of training.")
            return
        lines = self.history.describe_end(kept, self.summary, is_restored=is_restored)
        if self.is_below_baseline:
            lines[0] += " No check is as good as the same prediction for all samples."
        record = self.record  # a trainer's time on the hooks is not known here
        spent = record.setup_seconds + record.check_seconds + record.saving_seconds
        cost = f"Overhead of bu-torch: at least {spent:.1f} s on top of {record.training_seconds:.1f} s of training."
        for line in (*lines, cost):
            self.log(line)
        for place, line in enumerate(self._remarks):  # of which the first is the verdict, a detail if that is clear
            self.log(line, if_verbose=place == 0 and self.summary["word"] == "clear")

    def release(self) -> None:
        """Free what `prepare` computed, and the average, because training has ended; results stay."""
        self.is_over = True
        self.fitted = self.perturbed = self.measured = None
        self.processes, self.reader = Processes(), NetworkReader(self.settings)
        self.average = WeightAverage(self.settings.averaging)

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed training needs, as plain numbers, strings and tensors on the CPU.

        With shards, all processes must call this.
        """
        predictions, best = self._predictions, self._best_contributions
        return {
            **self.history.state_dict(),
            **self.preparation,
            "predictions": None if predictions is None else predictions.cpu().int(),
            "best_contributions": None if best is None else best.cpu(),
            "weights": {name: gathered(value) for name, value in self.kept_weights.items()},
            "average": self.average.state_dict(),
            "version": VERSION,
            "settings": self._compared_settings(),
        }

    def load_state_dict(self, state_dict: Any) -> None:
        """Continue from a `state_dict`; patience and the best epoch start anew if it is damaged, or settings differ."""
        why, self.summary, self.is_prepared = "", {}, False
        try:
            state, now = read_state(state_dict), self._compared_settings()
            before = state["settings"]
            changed = {name: value for name, value in now.items() if value != before.get(name)}
            if changed:
                was = ", ".join(f"{name}={before.get(name)!r:.100}" for name in changed)
                is_now = ", ".join(f"{name}={value!r:.100}" for name, value in changed.items())
                why = f"The run resumes with {is_now} instead of {was}"
            self.history.load(state, is_compared=not changed)
            self.kept_weights = state["weights"]
            self.average.load_state_dict(state["average"])
            self._predictions, self._best_contributions = state["predictions"], state["best_contributions"]
            has_plan = not changed and state["plan"] is not None and state["plan"][0] >= self.settings.n_neighbors
            known = PREPARATION if has_plan else ("prepared", "space")
            self.preparation = dict.fromkeys(PREPARATION) | {name: state[name] for name in known}
        except Exception as error:  # a damaged state, or a rule of the user's, may raise anything
            self.history.load({"history": "[]"}, is_compared=False)
            why = f"The state in the checkpoint cannot be read ({printable(f'{type(error).__name__}: {error}'[:200])})"
        if why:
            self._start_anew(why)

    def _compared_settings(self) -> dict[str, int | float | str | None]:
        """Settings that scores depend on, as plain data."""
        named = {name: as_json(getattr(self.settings, name)) for name in _COMPARED_SETTINGS}
        return {**self.history.rule_settings(), **named}


def _result(read: Callable[[Engine], Any]) -> Any:
    return property(lambda owner: read(owner.engine))


class Results:
    """Results of an engine as attributes of a callback or of a plain loop's stopper; none can be set."""

    engine: Engine

    history: list[dict[str, Any]] = _result(lambda engine: engine.history.entries)
    summary: dict[str, Any] = _result(lambda engine: engine.summary)
    score_name: str = _result(lambda engine: engine.history.score_name)
    best_epoch: int | None = _result(lambda engine: (engine.history.kept or {}).get("epoch"))
    best_step: int | None = _result(lambda engine: (engine.history.kept or {}).get("step"))
    best_score: float | None = _result(lambda engine: (engine.history.kept or {}).get(engine.history.score_name))
    setup_seconds: float = _result(lambda engine: engine.record.setup_seconds)
    check_seconds: float = _result(lambda engine: engine.record.check_seconds)
    record_path: str = _result(lambda engine: str(engine.record.path or ""))
