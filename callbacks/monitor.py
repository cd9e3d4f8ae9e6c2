"""Watching a training: boundary uncertainty and trust score at each check, nothing decided."""

import dataclasses
import inspect
import math
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_warn
from torch import Tensor
from tqdm.auto import tqdm

from bu_torch._evaluation_mode import (
    dtype_of,
    evaluation_mode,
    joined,
    logits_of,
    preserved_random_state,
    warn_of_probabilities,
)
from bu_torch._inputs import as_features, as_labels, scikit_learn_seed
from bu_torch._progress import shown_on
from bu_torch.boundary import Perturbation
from bu_torch.callbacks._arguments import Reference, integer, is_pair, number, samples
from bu_torch.callbacks._budget import Plan, count_weights, plan
from bu_torch.callbacks._dashboards import lay_out, show, writers
from bu_torch.callbacks._lightning import FITTING, Callback, MisconfigurationException, adopt_imported_trees, library_of
from bu_torch.callbacks._processes import buffers_of_the_first, gather, in_each, in_first, share
from bu_torch.callbacks._record import Record, folder_of, plain, versions
from bu_torch.callbacks._training_data import TrainingData, choose_among, read_training_data
from bu_torch.signals import Signals

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

_BATCH_ELEMENTS = 2**16  # input values of one forward batch, so that small inputs go through in few batches
_SHOWN = ("boundary_uncertainty", "trust_score", "expected_accuracy")  # in the progress bar
_TRIAL_SAMPLES = 512  # read in a `fast_dev_run`
_WRAPPING = ("FSDPStrategy", "DeepSpeedStrategy")
_BAR_DELAY = 3  # seconds of preparation before a progress bar is shown


class BoundaryUncertaintyMonitor(Callback):
    """Measure boundary uncertainty and trust score while a classifier trains, without validation data.

    At the start of training the callback reads the training samples, finds their nearest neighbours and moves each of
    them a little. At each check, at the end of a training epoch, it passes the moved samples through the module's
    `forward` once (eval mode, no gradient, the trainer's precision) and logs three numbers under fixed names:

    - `boundary_uncertainty`, in [0, 1], larger is better: do both classes mix along the decision boundary as they would
      along the Bayes boundary? (Ha et al. 2021; `bu_torch.functional.boundary_uncertainty`)
    - `trust_score`, in [1e-3, 1e3], larger is better: does the classifier agree with the neighbours? (Jiang et al.
      2018; `bu_torch.functional.mean_trust_score`)
    - `expected_accuracy`, in [0, 1], larger is better: how likely are the predicted classes, by what the training
      labels say of each moved sample? (`bu_torch.Signals.probabilities`; this project's own)

    and, to the logger alone, five more, all read from the same predictions at the moved samples:

    - `label_agreement`, in [0, 1]: share of moved samples that are predicted as labelled (1 minus the error rate on
      perturbed samples of Ha et al., section 4.5);
    - `vote_agreement`, in [0, 1]: the same with the votes of the labels nearby in place of the one label
      (`bu_torch.LabelVotes`);
    - `neighbor_agreement`, in [0, 1]: trust on a bounded scale, the sample that was moved left out
      (`bu_torch.functional.neighbor_agreement`);
    - `prediction_changes`, in [0, 1]: share of predictions that differ from the last check's, 1 at the first check;
    - `omission`, in [0, 1], smaller is better: how much of the Bayes boundary does the boundary leave out, which a high
      `boundary_uncertainty` does not tell? (`bu_torch.functional.omission`)

    Weights after training are the same to the bit with and without the callback. It decides nothing: an
    `EarlyStopping(monitor="boundary_uncertainty", mode="max")` in the same trainer may.

    `forward` must give logits (n, J), or one logit (n, 1) or (n,) for two classes; an output with a `logits` entry or
    attribute is understood too. Hooks that transform batches on the device are not applied to the moved samples, and a
    dataset that augments at random is read once.

    Args:
        n_neighbors: Size M of a cluster of neighbours, the sample itself included, >= 2. Training data with fewer
            samples is refused.
        n_draws: Independent perturbations of each sample, >= 1; all numbers are means over them. More draws cost as
            many more forward passes a check and make the numbers steadier. None chooses up to 12 within the budget:
            the smaller the data, the more.
        every_n_epochs: Check in every n-th epoch, >= 1.
        max_samples: Look at no more than so many training samples, a subset drawn with `seed`, stratified where labels
            can be told without reading the samples; at least `n_neighbors`. None chooses within the budget. (Of an
            `IterableDataset` the first `max_samples` are read, or 10,000.)
        budget: Price of a check in forward passes, which several processes share: at most this fraction of the training
            samples that an epoch visits, > 0. It bounds what `n_draws` and `max_samples` choose by themselves. A sample
            costs two to three forward passes, so that 0.15 is below a tenth of a training epoch. Small data has a
            floor: 6000 passes, fewer for networks of more than 33,000 weights (2e8 passes times weights), but no fewer
            than 1000. None for no bound. Counted, not timed: runs repeat.
        reference: The samples to use instead of those found in the trainer's loader, without random augmentation say:
            a pair of inputs (N, ...) as `forward` takes them and labels (N,), all of them unless `max_samples` says
            otherwise; or a Dataset or DataLoader, of which as many are read as of the trainer's.
        input_key: Key of the inputs where a batch is a dict; their place, an integer, where it is a tuple of more than
            two.
        label_key: Likewise of the labels.
        seed: Seed of all random choices, >= 0. Global random numbers are left as they are.
        cache: File (npz) that holds what is computed before the first epoch: taken from there where it exists, written
            there otherwise. One that was made of other samples or settings is refused, so that samples augmented at
            random cannot be kept. Not used in a `fast_dev_run`.
        feature_extractor: Callable from inputs (n, ...) to features (n, k), a frozen module say: neighbours and
            distances between samples are those of its features, while samples are moved in input space. None takes the
            inputs themselves, standardised.
        n_components: Measure distances among so many principal components only, >= 1, which is faster where inputs have
            hundreds of values; None for all.
        perturbation: Callable of inputs (n, ...), the distance of each to its nearest neighbour (n,) and a
            `torch.Generator`, that gives moved inputs, for what cannot be moved along a straight line (token ids, say):
            see `BoundaryUncertainty`. None moves inputs in a random direction by that distance.

    Attributes:
        history: One dict a check, in order: `epoch` (`trainer.current_epoch`, 0-based), `boundary_uncertainty`,
            `trust_score`, `expected_accuracy`, `label_agreement`, `vote_agreement`, `neighbor_agreement`,
            `prediction_changes`, `omission`; floats, NaN where a logit was not finite.
        setup_seconds: Time spent before the first epoch, in seconds.
        check_seconds: Time spent in checks so far, in seconds.
        record_path: CSV file beside the checkpoints (or the logs, where there are none) with a row for each check,
            written as soon as it is measured: `epoch`, `step` (`trainer.global_step`), `seconds` since training began,
            `check_seconds`, and what `history` has. "" where nothing is written: neither checkpoints nor logs on this
            machine's disk, `fast_dev_run`, `barebones`, or another process than the first.

    Raises:
        MisconfigurationException: On arguments out of range; at the start of training where samples cannot be found or
            are not fit for the method.
    """

    history: list[dict[str, Any]]
    setup_seconds: float
    check_seconds: float
    _signals: Signals | None  # in the first process
    _predictions: Tensor  # at the last check, (n_draws * N,)
    _plan: Plan | None
    _inputs: Tensor | None  # where this process reads the network
    _n_rows: int  # where all of them do
    _fingerprint: str | None  # of the samples
    _table: Record | None
    _about: dict[str, Any]  # the samples looked at, in words and numbers
    _rows: Tensor  # where they are in the dataset
    _n_before: int  # checks in `history`, of runs that this one resumes, that cannot be compared with its own
    _training_began: float

    def __init__(
        self,
        *,
        n_neighbors: int = 40,
        n_draws: int | None = None,
        every_n_epochs: int = 1,
        max_samples: int | None = None,
        budget: float | None = 0.15,
        reference: Reference | None = None,
        input_key: str | int | None = None,
        label_key: str | int | None = None,
        seed: int = 0,
        cache: str | Path | None = None,
        feature_extractor: Callable[[Tensor], Any] | None = None,
        n_components: int | None = None,
        perturbation: Perturbation | None = None,
    ) -> None:
        adopt_imported_trees()
        super().__init__()
        self.n_neighbors = integer("n_neighbors", n_neighbors, 2)
        self.n_draws = None if n_draws is None else integer("n_draws", n_draws, 1)
        self.every_n_epochs = integer("every_n_epochs", every_n_epochs, 1)
        self.max_samples = None if max_samples is None else integer("max_samples", max_samples, self.n_neighbors)
        self.budget = None if budget is None else number("budget", budget)
        if self.budget is not None and self.budget <= 0:
            raise MisconfigurationException(f"`budget` must be > 0, or None for no bound, got {budget!r}.")
        self.reference = samples("reference", reference)
        self.input_key = input_key
        self.label_key = label_key
        self.seed = integer("seed", seed, 0)
        self.cache = None if cache is None else Path(cache)
        self.feature_extractor = feature_extractor
        self.n_components = n_components
        self.perturbation = perturbation
        try:
            self.n_components = self._signals_of(n_draws=1).boundary.space.n_components
        except (TypeError, ValueError) as error:
            raise MisconfigurationException(str(error)) from error
        self._clear()

    @property
    def state_key(self) -> str:
        return self._generate_state_key()

    def setup(self, trainer: "Trainer", pl_module: "LightningModule", stage: str) -> None:
        library_of(trainer)
        if stage == FITTING:
            self._clear()

    def on_train_start(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        started = time.perf_counter()
        with preserved_random_state():
            self._prepare(trainer, pl_module)
        self._warn_of_checks_too_late(trainer)
        self._warn_of_a_missed_check(trainer)
        self._training_began = time.perf_counter()
        self.setup_seconds = self._training_began - started
        self._open_record(folder_of(trainer))
        for writer in writers(trainer):
            lay_out(writer)

    def on_train_batch_start(
        self, trainer: "Trainer", pl_module: "LightningModule", batch: Any, batch_idx: int
    ) -> None:
        # Not in `on_train_start`: the module's own comes after it, and may make the module ready.
        if not self._is_tried:
            self._try(trainer, pl_module)

    def on_train_epoch_end(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        if (trainer.current_epoch + 1) % self.every_n_epochs == 0:
            started = time.perf_counter()
            self._record({"epoch": trainer.current_epoch, **self._measure(trainer, pl_module)})
            # Lightning logs this epoch's scalars at the step before.
            self._show(trainer.current_epoch, writers(trainer), trainer.fit_loop.epoch_loop._batches_that_stepped - 1)
            self._count(started, trainer.global_step)
            if not trainer.barebones:  # which logs nothing, and warns where one tries
                values = {name: value for name, value in self.history[-1].items() if name != "epoch"}
                is_shared = trainer.world_size > 1  # all have the same, but Lightning warns unless it is told so
                shown = {name: values.pop(name) for name in _SHOWN}
                pl_module.log_dict(shown, prog_bar=True, sync_dist=is_shared)
                pl_module.log_dict(values, sync_dist=is_shared)

    def on_fit_end(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        self._end("Training ended.")

    def on_exception(self, trainer: "Trainer", pl_module: "LightningModule", exception: BaseException) -> None:
        self._end(told(exception))

    @property
    def record_path(self) -> str:
        return "" if self._table is None or self._table.path is None else str(self._table.path)

    def teardown(self, trainer: "Trainer", pl_module: "LightningModule", stage: str) -> None:
        self._signals = None
        self._inputs = None

    def state_dict(self) -> dict[str, Any]:
        made = None if self._plan is None else dataclasses.astuple(self._plan)
        return {
            "history": self.history,
            "predictions": self._predictions.cpu().to(torch.int32),
            "plan": made,
            "asked": self._asked(),
            "samples": self._fingerprint,
            "n_not_compared": self._n_before,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.history = [dict(entry) for entry in state_dict["history"]]
        self._n_before = state_dict.get("n_not_compared", 0)
        self._predictions = state_dict.get("predictions", torch.empty(0)).long()
        if state_dict.get("plan") is not None and state_dict["asked"] == self._asked():
            self._plan = Plan(*state_dict["plan"])
            self._fingerprint = state_dict.get("samples")

    def _clear(self) -> None:
        self.history = []
        self.setup_seconds = 0.0
        self.check_seconds = 0.0
        self._signals = None
        self._predictions = torch.empty(0, dtype=torch.int64)
        self._plan = None
        self._inputs = None
        self._is_tried = False
        self._n_rows = 0
        self._fingerprint = None
        self._table = None
        self._about = {}
        self._n_before = 0
        self._rows = torch.empty(0, dtype=torch.int64)
        self._training_began = time.perf_counter()

    def _open_record(self, folder: Path | None) -> None:
        if folder is not None:
            rows = [self._row(entry) for entry in self.history]
            self._table = Record(folder, self._header(), rows, self._names())

    def _row(self, entry: dict[str, Any], step: int | None = None, seconds: float | None = None) -> dict[str, Any]:
        """A check as the table has it; what it cost is not known of checks before a resume."""
        cost = None if seconds is None else self.check_seconds
        return {"epoch": entry["epoch"], "step": step, "seconds": seconds, "check_seconds": cost, **entry}

    def _names(self) -> list[str]:
        """What a check adds to `history` beside its epoch."""
        return list(Signals.NAMES)

    def _header(self) -> dict[str, Any]:
        """What the record of this run begins with."""
        # Of a user's subclass, too, whose own arguments need not be attributes.
        given = {name: None for cls in type(self).__mro__ for name in inspect.signature(cls).parameters}
        settings = {name: plain(value) for name in given if (value := vars(self).get(name, self)) is not self}
        settings.pop("reference", None)
        return {
            "settings": {"rule": None, **settings},
            "n_not_compared": self._n_before,
            "versions": versions(),
            **self._about,
            "setup_seconds": self.setup_seconds,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
        }

    def _count(self, started: float, step: int | None = None) -> None:
        """Count what the last check has cost, and give it its row."""
        now = time.perf_counter()
        self.check_seconds += now - started
        if self._table is not None:
            self._table.append(self._row(self.history[-1], step, now - self._training_began))

    def _show(self, epoch: int, shown_by: list[Any], step: int = 0) -> None:
        """Put what the check saw behind its numbers into the record, and on TensorBoard by these writers."""
        is_recorded = self._table is not None and self._table.path is not None
        if self._signals is None or not (shown_by or is_recorded):
            return
        details = self._signals.details()
        for writer in shown_by:
            show(writer, details, step)
        if self._table is not None:
            self._table.tell(
                {
                    "kind": "check",
                    "epoch": epoch,
                    "ceiling": details.ceiling,
                    "pairs": details.pairs,
                    "n_pairs_left_out": details.n_pairs_left_out,
                    "histograms": {
                        name: getattr(details, name)._asdict()
                        for name in ("near_boundary", "local_uncertainty", "log_trust")
                    },
                    "doubtful": [[int(self._rows[one.row]), *one[1:]] for one in details.doubtful],
                }
            )

    def _end(self, reason: str, **kept: Any) -> None:
        """The last line of the record."""
        if self._table is not None:
            self._table.tell({"kind": "end", "reason": reason, **kept})

    def _cost(self) -> str:
        """What the checks of this fit have cost, in words."""
        seconds = max(time.perf_counter() - self._training_began, 1e-9)
        return (
            f"Checks took {self.check_seconds:.1f} s of {seconds:.1f} s ({self.check_seconds / seconds:.0%}),"
            f" their preparation {self.setup_seconds:.1f} s."
        )

    def _asked(self) -> list[float | None]:
        """Settings that decide what is looked at."""
        return [self.budget, self.n_draws, self.max_samples, self.n_neighbors, self.seed, self.n_components]

    def _prepare(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """Read the samples and compute all that does not depend on the network; in the first process, for all."""
        if trainer.reload_dataloaders_every_n_epochs and self.reference is None:
            rank_zero_warn("Boundary uncertainty uses the training data as loaded first; reloads do not reach it.")

        def work() -> tuple[Tensor, Plan | None, str]:
            # A dataset that augments at random is read at the same draw each time.
            random.seed(self.seed)
            np.random.seed(scikit_learn_seed(self.seed))  # noqa: NPY002  (which datasets use, and which is put back)
            torch.manual_seed(self.seed)
            try:
                data, n_draws = self._read(trainer, pl_module)
                shape = " x ".join(str(size) for size in data.inputs.shape)
                rank_zero_info(
                    f"Boundary uncertainty finds the neighbours of the training samples ({shape}). A check is"
                    f" {n_draws * len(data.inputs)} forward passes ({n_draws} a sample)."
                )
                signals = self._fit(self._signals_of(n_draws), data.inputs, data.labels, trainer)
            except (TypeError, ValueError) as error:
                source = "`reference`" if self.reference is not None else "the training data"
                raise MisconfigurationException(f"Boundary uncertainty cannot use {source}: {error}") from error
            self._hold(signals, data)
            inputs = signals.perturbed_inputs
            return inputs if trainer.world_size == 1 else inputs.cpu(), self._plan, signals.fingerprint

        inputs, self._plan, fingerprint = in_first(trainer, work)
        self._n_rows = len(inputs)
        if self._signals is not None:
            self._signals.to(pl_module.device)
        if trainer.world_size > 1:
            self._inputs = share(inputs, trainer.global_rank, trainer.world_size).to(pl_module.device)
        elif self._signals is not None:
            self._inputs = self._signals.perturbed_inputs
        if self.history and self._fingerprint not in (None, fingerprint):
            self._begin_anew(trainer, pl_module)
        self._fingerprint = fingerprint

    def _begin_anew(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """Compare nothing that is measured now with what the checkpoint holds, and say so."""
        self._compare_nothing_before()
        rank_zero_warn(
            "The run resumes with other training samples than it began with, or with another version of bu_torch: what"
            " is measured now cannot be compared with the checks before."
        )

    def _compare_nothing_before(self) -> None:
        self._predictions = self._predictions[:0]
        self._n_before = len(self.history)

    def _signals_of(self, n_draws: int) -> Signals:
        return Signals(
            self.n_neighbors,
            n_draws,
            self.seed,
            feature_extractor=self.feature_extractor,
            n_components=self.n_components,
            perturbation=self.perturbation,
        )

    def _hold(self, signals: Signals, data: TrainingData) -> None:
        """Keep what was prepared, and what is told of it."""
        self._signals = signals
        self._rows = data.rows
        self._about = {
            "data": {
                "n_samples": len(data.inputs),
                "n_draws": self._plan.n_draws if self._plan is not None else None,
                "n_training": data.n_training,
                "n_classes": int(data.labels.max()) + 1,
                "shape": list(data.inputs.shape[1:]),
            },
            "classes": data.classes,
        }

    def _fit(self, signals: Signals, inputs: Tensor, labels: Tensor, trainer: "Trainer") -> Signals:
        return fit_or_load(
            signals,
            inputs,
            labels,
            None if trainer.fast_dev_run else self.cache,
            is_shown=trainer.progress_bar_callback is not None and trainer.is_global_zero,
            is_saved=trainer.is_global_zero,
        )

    def _read(self, trainer: "Trainer", pl_module: "LightningModule") -> tuple[TrainingData, int]:
        """The samples to look at, and the number of draws."""
        trial = max(_TRIAL_SAMPLES, self.n_neighbors) if trainer.fast_dev_run else None

        def how_many(n_training: int) -> int:
            made = self._planned(trainer, pl_module, n_training).n_samples
            return made if trial is None else min(made, trial)

        if is_pair(self.reference):
            inputs = as_features(self.reference[0], "inputs", keep_integers=self.perturbation is not None)
            labels = as_labels(self.reference[1], len(inputs))
            data = choose_among(inputs, labels, how_many, self.seed)
        else:
            data = read_training_data(
                trainer,
                how_many=how_many,
                most=self.max_samples if trial is None else min(self.max_samples or trial, trial),
                keys=(self.input_key, self.label_key),
                seed=self.seed,
                reference=self.reference,
            )
        return data, self._planned(trainer, pl_module, len(data.inputs)).n_draws

    def _planned(self, trainer: "Trainer", pl_module: "LightningModule", n_training: int) -> Plan:
        """The plan, made at the first call unless a resumed run has one."""
        if self._plan is None:
            most = n_training if self.max_samples is None and is_pair(self.reference) else self.max_samples
            batch_size = getattr(trainer.train_dataloader, "batch_size", None) or math.inf
            self._plan = plan(
                n_training,
                int(min(n_training, trainer.num_training_batches * batch_size * trainer.world_size)),
                count_weights(pl_module),
                budget=self.budget,
                n_draws=self.n_draws,
                max_samples=most,
                n_neighbors=self.n_neighbors,
            )
        return self._plan

    def _try(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """Read one batch as a check will, so that a module that cannot be read is refused before it has trained."""
        batch = self._batches(trainer, self._perturbed())[0]
        module = scored_module(trainer, pl_module)
        logits = in_each(trainer, lambda: self._read_logits(trainer, pl_module, module, batch))

        def check() -> None:
            n_classes = self._about["data"]["n_classes"]
            if logits.shape[1] < n_classes:
                raise MisconfigurationException(
                    f"The module's `forward` gives {logits.shape[1]} columns of logits, fewer than the labels have"
                    f" classes 0, ..., {n_classes - 1}. Labels count from 0: subtract 1 where they begin with 1."
                )

        in_first(trainer, check)
        self._is_tried = True

    def _measure(self, trainer: "Trainer", pl_module: "LightningModule") -> dict[str, float]:
        """One check: a forward pass over the perturbed inputs, shared out among the processes, and what it says."""
        inputs = self._perturbed()
        module = scored_module(trainer, pl_module)
        with buffers_of_the_first(trainer, module):
            logits = gather(trainer, lambda: self._read_logits(trainer, pl_module, module, inputs), self._n_rows)

        def work() -> dict[str, float]:
            try:
                return self._measured(logits)
            except ValueError as error:
                raise MisconfigurationException(f"The module's `forward` does not fit the labels: {error}") from error

        return in_first(trainer, work)

    def _perturbed(self) -> Tensor:
        if self._inputs is None:
            raise RuntimeError("The training samples are read in `on_train_start`, which has not run.")
        return self._inputs

    def _batches(self, trainer: "Trainer", inputs: Tensor) -> tuple[Tensor, ...]:
        return inputs.split(max(1, _BATCH_ELEMENTS // inputs[0].numel(), _training_batch_size(trainer)))

    def _measured(self, logits: Tensor) -> dict[str, float]:
        """What logits at all perturbed inputs say."""
        assert self._signals is not None  # noqa: S101  (the first process has it)
        before = self._predictions.to(logits.device) if len(self._predictions) == len(logits) else None
        if self.check_seconds == 0:
            warn_of_probabilities(logits, "The module", rank_zero_warn)
        values, self._predictions = self._signals.measure(logits, before)
        numbers = torch.stack(list(values.values())).tolist()  # the check's only wait for the device
        return dict(zip(values, numbers, strict=True))

    def _record(self, entry: dict[str, Any]) -> None:
        if self.history and self.history[-1]["epoch"] == entry["epoch"]:
            self.history.pop()  # an epoch that a resumed run ends a second time
        self.history.append(entry)

    def _read_logits(
        self, trainer: "Trainer", pl_module: "LightningModule", module: torch.nn.Module, inputs: Tensor
    ) -> Tensor:
        """Logits (n, J) of the module that is scored, at `inputs` (n, ...), in batches."""
        dtype = dtype_of(module, inputs)
        batches = self._batches(trainer, inputs)
        precision = trainer.precision_plugin
        # Weights that are sharded are put together by what these strategies have wrapped around the module.
        is_wrapped = type(trainer.strategy).__name__ in _WRAPPING and module is pl_module
        forward: Any = trainer.model if is_wrapped else module
        try:
            with evaluation_mode(module), precision.forward_context():
                outputs = [forward(precision.convert_input(batch.to(dtype))) for batch in batches]
            parts = [logits_of(output, len(batch), "`forward`") for output, batch in zip(outputs, batches, strict=True)]
            return joined(parts, "`forward`")
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            raise MisconfigurationException(
                f"Boundary uncertainty passes inputs of shape {tuple(batches[0].shape)} and dtype {dtype} to"
                f" `{type(pl_module).__name__}.forward` and needs logits: {type(error).__name__}: {error}"
            ) from error

    def _warn_of_checks_too_late(self, trainer: "Trainer") -> None:
        """Checks are made at the end of epochs, which some trainings have none or too few of."""
        if trainer.num_training_batches == math.inf and trainer.max_steps != -1:
            rank_zero_warn(
                "The length of the training data is not known, and boundary uncertainty is measured at the end of an"
                f" epoch: where they do not end before `max_steps={trainer.max_steps}`, that is once, after training."
                " `Trainer(limit_train_batches=...)` sets the length of an epoch."
            )
        epochs = trainer.max_epochs
        if epochs is not None and 0 < epochs < self.every_n_epochs and not trainer.fast_dev_run:
            rank_zero_warn(f"No check is made in {epochs} epochs with `every_n_epochs={self.every_n_epochs}`.")

    def _warn_of_a_missed_check(self, trainer: "Trainer") -> None:
        """A checkpoint saved on the last batch of an epoch resumes behind that epoch's end and its check."""
        due = trainer.current_epoch // self.every_n_epochs * self.every_n_epochs - 1
        if self.history and self.history[-1]["epoch"] < due:
            rank_zero_warn(
                f"The run resumes after epoch {due} without the check of that epoch: the checkpoint was saved before"
                " it, and Lightning does not end the epoch again. That epoch cannot be kept."
            )


def fit_or_load(
    signals: Signals, inputs: Tensor, labels: Tensor, cache: Path | None, *, is_shown: bool, is_saved: bool
) -> Signals:
    """Fit, with a progress bar where that takes long, or take what an earlier run saved."""
    if cache is not None and cache.exists():
        rank_zero_info(f"Boundary uncertainty takes them from {cache}.")
        return signals.load(cache, inputs, labels)
    with (
        tqdm(
            desc="Boundary uncertainty prepares",
            total=signals.n_comparisons(len(inputs)),
            delay=_BAR_DELAY,
            disable=not is_shown,
            leave=False,
            bar_format="{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}",
        ) as bar,
        shown_on(bar),
    ):
        signals.fit(inputs, labels)
    if cache is not None and is_saved:
        try:
            signals.save(cache)
        except OSError as error:
            rank_zero_warn(f"The cache {cache} cannot be written: {error}. Training goes on without it.")
    return signals


def scored_module(trainer: "Trainer", pl_module: "LightningModule") -> torch.nn.Module:
    """The weights that a checkpoint of this moment would hold: the average, where `WeightAveraging` keeps one."""
    weight_averaging = library_of(trainer).weight_averaging
    for callback in trainer.callbacks:
        if isinstance(callback, weight_averaging) and callback._average_model is not None:
            return callback._average_model.module
    return pl_module


def _training_batch_size(trainer: "Trainer") -> int:
    return getattr(trainer.train_dataloader, "batch_size", None) or 1


def told(exception: BaseException) -> str:
    """Why training ended early, in words."""
    if isinstance(exception, KeyboardInterrupt):
        return "Training was interrupted (KeyboardInterrupt)."
    return f"Training failed: {type(exception).__name__}: {exception}"
