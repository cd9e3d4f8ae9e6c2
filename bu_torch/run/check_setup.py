"""Samples that checks use, their number, and the signals fitted to them."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from bu_torch.estimators.boundary import MOST_ENTRIES
from bu_torch.estimators.space_choice import SpaceName
from bu_torch.internal.inputs import as_labels
from bu_torch.internal.logits import packed_model
from bu_torch.internal.packing import Packing
from bu_torch.internal.printing import Forecast, cleaned, shown_on
from bu_torch.perturbation.draws import kind_of
from bu_torch.rule.rules import DEFAULT_RULE
from bu_torch.run.budget import Plan, describe_byte_limit, describe_ignored, plan
from bu_torch.run.perturbing import settings_for, with_readings
from bu_torch.run.settings import MeasurementSettings
from bu_torch.samples.balance import class_shares, rare_class, stratified_rows
from bu_torch.samples.samples import Samples, fewer_of
from bu_torch.signals.measuring import Signals
from bu_torch.signals.preparation import n_comparisons

_BAR_DELAY = 3  # seconds of preparation before a progress bar is shown
_MOST_CLASSES_A_SAMPLE = 1 / 3
_SPACES = {
    "inputs": "the inputs",
    "patches": "features of patches",
    "tokens": "counts of tokens",
    "mixed": "numbers and categories",
    "metric": "distances that are learnt from the labels",
    "module": "the network's own features",
}


class CheckSetup:
    """Plan of the checks, the fitted `Signals`, and the part of both that a resumed run needs.

    `Preparation` is the part of the signals that is kept in files and states.
    """

    def __init__(self, settings: MeasurementSettings) -> None:
        self.settings = settings
        self.plan: Plan | None = None
        self.fingerprint: str | None = None  # identifies the samples of earlier checks
        self.is_restored = True  # False if the preparation in a resumed state is damaged or does not fit the samples
        self.found_in: Path | None = None  # file that `prepare` has read
        self.kept_in: Path | None = None  # file that `prepare` has written
        self.packing: Packing | None = None  # layout of several tensors a sample in one
        self.takes_readings = False  # perturbed samples are further readings
        self.about: dict[str, Any] = {"data": {}, "classes": None}  # samples and classes in words, for the record
        self.rows = torch.empty(0, dtype=torch.int64)  # places of the samples in the dataset, (N,)
        self._signals: Signals | None = None  # only in the process that has prepared
        # Settings that determine the samples and perturbations: with others, a resumed run plans anew.
        self._asked = [settings.budget, settings.n_draws, settings.max_samples, settings.n_neighbors, settings.seed]
        # A resumed run cannot repeat the choice of a space, because the network has changed. So a state holds the whole
        # preparation if the space is the network's features, and otherwise the name of the space.
        self._saved: Tensor | None = None  # bytes of `Preparation.packed`
        self._space: SpaceName | None = None
        self.loss_weights: list[float] | None = None  # weights of classes in the loss, if the settings have none

    def choose(
        self, samples: Samples, planned: Callable[[int, int], Plan] | None, when: str, tell: Callable[[str], None]
    ) -> Samples:
        """Plan, unless a resumed run has a plan, and take as many of the samples; arguments as in `Tracker.start`."""
        if self.plan is None:
            n_training, n_bytes = samples.n_training, samples.inputs[:1].nbytes
            planned = planned or (lambda n, n_bytes: plan(self.settings, n, n, 0, n_bytes))
            wanted, self.plan = planned(n_training, 0), planned(n_training, n_bytes)
            if line := describe_byte_limit(wanted, self.plan, self.settings.max_bytes):
                tell(line)
        samples = fewer_of(samples, self.plan.n_samples, self.settings.seed)
        chosen = f"{len(samples.inputs)} samples"
        if samples.is_stratified is not None:
            kind = "stratified random" if samples.is_stratified else "random"
            chosen = f"a {kind} {len(samples.inputs)} of {samples.n_training} training samples"
        tell(f"bu-torch measures at {chosen}, {self.plan.draws} each{when}.")
        return samples

    def prepare(
        self,
        samples: Samples,
        warn: Callable[[str], None],
        *,
        has_resumed: bool,
        device: torch.device | None = None,
        module: nn.Module | None = None,
        has_progress_bar: bool = False,
        tell: Callable[[str], None] | None = None,
    ) -> str:
        """Fit the signals, or load them; return the fingerprint of samples and settings, for `Tracker.start`.

        Checks are made on `device`, or that of the samples. The space may be the features of `module` before training,
        and stays if earlier checks were made (`has_resumed`). `tell` gets a forecast. Errors are those of `Signals`.
        """
        if line := describe_ignored(samples.n_ignored):
            warn(line)
        samples, n_draws = self._within_memory(samples, warn)
        cache = self.settings.cache
        samples = with_readings(samples, n_draws, self.settings, warn)
        self.packing, self.takes_readings = samples.packing, samples.readings is not None
        n_samples, labels = len(samples.inputs), as_labels(samples.labels, len(samples.inputs))
        n_present, is_known = len(torch.unique(labels)), len(self.loss_weights or ()) == int(labels.max()) + 1
        self.loss_weights = self.loss_weights if is_known else None  # a resumed state may be of other classes
        if n_present > _MOST_CLASSES_A_SAMPLE * n_samples:
            more = "" if n_samples == samples.n_training else " Use more of them (`max_samples`)."
            warn(
                f"The {n_samples} samples in use have {n_present} different labels, so neighbours say little about a"
                f" label.{more} If the labels are numbers to predict, the task is a regression, which has no decision"
                " boundary: this is for classifiers."
            )
        make_signals = partial(
            settings_for(self.settings, samples).make_signals,
            n_draws,
            class_weight=self.loss_weights,
            known_space=self._space,
        )
        signals = make_signals(None if module is None else packed_model(module, samples.packing))
        if not (has_resumed and self._restores(signals, samples)):
            if signals.boundary.may_use_module(samples.inputs):
                has_learnt = has_resumed and self._space is None
                if signals.boundary.feature_extractor is None and (cache is not None or has_learnt):
                    # A file must follow from the samples alone, and a network that has learnt the labels would leak
                    # them into the choice of a space.
                    signals = make_signals(None)
                elif signals.boundary.feature_extractor is not None and cache is not None:
                    warn(f"Features of a network differ from run to run: they are not kept in the cache {cache}.")
                    cache = None
            inputs = samples.inputs.to(self._faster_device(samples, device))
            self.found_in, self.kept_in = fit_or_load(
                signals, inputs, samples.labels, cache, samples.weights, has_progress_bar, tell
            )
            self._saved = self._space = None
            if signals.boundary.may_use_module(samples.inputs):
                match signals.boundary.space_name_:
                    case "inputs" | "patches" | "tokens" | "metric" as name:
                        self._space = name
                    case _:
                        self._saved = signals.preparation.packed()
        self._signals, self.rows = signals.to(device or samples.inputs.device), samples.rows
        self.about = self._describe(signals, samples, n_draws)
        return signals.fingerprint

    def _faster_device(self, samples: Samples, device: torch.device | None) -> torch.device:
        """Device on which preparation is faster: that of the checks for images, else that of the samples."""
        is_image = samples.packing is None and samples.inputs.ndim == 4
        has_own_code = callable(self.settings.feature_extractor) or callable(self.settings.perturbation)
        if device is None or device.type == "mps" or has_own_code or not is_image:  # MPS has no float64
            return samples.inputs.device
        return device

    def _restores(self, signals: Signals, samples: Samples) -> bool:
        """Load the preparation of a run that resumes, if the network of its start was the space."""
        if self._saved is None or not signals.boundary.may_use_module(samples.inputs):
            return False
        try:
            signals.load(self._saved, samples.inputs, samples.labels, samples.weights)
        except ValueError:  # damaged or for other samples: the caller warns
            self.is_restored = False
        return self.is_restored

    def _describe(self, signals: Signals, samples: Samples, n_draws: int) -> dict[str, Any]:
        present, shares = class_shares(signals.boundary.labels, samples.weights)
        skills = {name: round(skill, 4) for name, skill in signals.boundary.skills_.items()}
        data = {
            "n_samples": len(samples.inputs),
            "n_draws": n_draws,
            "n_training": samples.n_training,
            "n_classes": int(samples.labels.max()) + 1,
            "n_present": len(present),
            "smallest_class_share": round(float(shares.min()), 4),  # weighted as training draws samples
            "largest_class_share": round(float(shares.max()), 4),
            "sampling": "uniform" if samples.weights is None else "weighted",
            "shape": list(samples.inputs.shape[1:]),
            "space": signals.boundary.space_name_,
            **({"space_skills": skills} if "metric" in skills else {}),
            "perturbation": kind_of(signals.boundary.perturbation, samples.inputs),
        }
        left_out = {"votes": round(signals.vote_skill, 4), "regression": round(signals.regression_skill, 4)}
        return {"data": data, "classes": samples.classes, "skills": left_out}

    def _within_memory(self, samples: Samples, warn: Callable[[str], None]) -> tuple[Samples, int]:
        """Take fewer samples or draws than planned if memory demands it: some arrays have a column for each class."""
        made = self.plan or plan(self.settings, len(samples.inputs), len(samples.inputs), 0)
        labels = as_labels(samples.labels, len(samples.inputs))
        n_samples, n_rows = len(labels), MOST_ENTRIES // len(torch.unique(labels))
        if made.n_draws * n_samples <= n_rows:
            return samples, made.n_draws
        n_draws = made.n_draws if self.settings.n_draws is not None else max(1, n_rows // n_samples)
        if self.settings.max_samples is None and n_draws * n_samples > n_rows >= self.settings.n_neighbors:
            n_samples = n_rows // n_draws
            samples = samples.at(stratified_rows(len(labels), n_samples, self.settings.seed, labels))
        self.plan = Plan(n_samples, n_draws)
        warn(
            f"Many classes need much memory: a check uses {n_samples} samples, each perturbed {n_draws} times, instead"
            f" of the planned {made.n_samples} and {made.n_draws}."
        )
        return samples, n_draws

    @property
    def is_prepared(self) -> bool:
        return self._signals is not None

    @property
    def signals(self) -> Signals:
        """Signals that were prepared; a RuntimeError before."""
        if self._signals is None:
            raise RuntimeError("This Tracker has no samples yet: call `prepare` first.")
        return self._signals

    def lines(self) -> list[str]:
        """Lines for the log: how samples are perturbed, which cache, which space, and how classes count."""
        cache = ""
        if self.found_in is not None:
            cache = f"bu-torch loaded the preparation of an earlier run: {cleaned(str(self.found_in))}."
        elif self.kept_in is not None:
            cache = (
                "bu-torch kept neighbours, distances, class probabilities and labels of"
                f" {self.about['data']['n_samples']} samples for later runs: {cleaned(str(self.kept_in))}."
            )
        cache = cache and f"{cache} To change it: `cache=None`."
        lines = [self._readings_line(), cache, self._space_line(), self._balance_line(), self._metric_line()]
        is_default = getattr(self.settings, "rule", "") == DEFAULT_RULE and self.signals.metric is None
        if is_default and not self.signals.are_rows:
            own = " and, by a small weight, agreement with the labels" if self.takes_readings else " alone"
            lines.append(f"On images and texts the score is expected accuracy{own}, a share of the highest possible.")
        return [line for line in lines if line]

    def _metric_line(self) -> str:
        """Log line on prices, or on a metric that tells networks apart badly or is of the commoner class; else ""."""
        metric, boundary = self.signals.metric, self.signals.boundary
        share = float((boundary.labels == 1).double().mean())
        if metric is not None and metric.is_of_one and boundary.classes.n_classes == 2 and share > 0.5:
            whose = f"The {metric.title} is that of class 1, {share:.0%} of the labels."
            return f"{whose} Swap the labels if you mean class 0."
        if metric is None or not (doubt := metric.doubt(self.about["data"]["n_present"])):
            return "" if metric is None else metric.prices
        return f"W{doubt[1:]}, so the expected {metric.title} tells networks apart badly. Let accuracy decide."

    def _readings_line(self) -> str:
        """Log line on further readings; "" if samples are moved."""
        if not self.takes_readings:
            return ""
        times = 1 + self.signals.boundary.n_draws
        return (
            "A sample differs each time it is read (random augmentation), so bu-torch reads each sample"
            f" {times} times: the first is its place among its neighbours, and further ones are perturbed samples. To"
            " change it: `perturbation=` names a way to move it, and `reference=` other samples."
        )

    def _space_line(self) -> str:
        """Log line on the space that was chosen, and why; "" if there was no choice."""
        boundary = self.signals.boundary
        space, trial, skills = boundary.space_name_, boundary.trial_, boundary.skills_
        if space == "metric" and boundary.feature_extractor is None:
            skills = skills or {"metric": boundary.vote_skill}  # a loaded preparation has this one
        if not skills and trial is not None and space in _SPACES:
            before, after = trial.vote_skills
            return (
                f"Neighbours are found in {_SPACES[space]}: by distances learnt from the labels, the nearest do not"
                f" predict left-out labels clearly better (skill {after:.2f} in place of {before:.2f})."
            )
        named = {"metric": "learnt distances"}
        listed = ", ".join(f"{named.get(name, name)} {skill:.2f}" for name, skill in skills.items())
        base = next((name for name in skills if name != "metric"), "inputs")
        change = f" To change it: `feature_extractor={base!r}`." if space == "metric" else ""
        where = f"{'by' if space == 'metric' else 'in'} {_SPACES.get(space)}"
        why = f"Neighbours are found {where}: left-out labels are predicted best there (skill by {listed})."
        return why + change if skills else ""

    def _balance_line(self) -> str:
        """Log line on the weights of classes, if a sampler weights samples or a class is rare; else ""."""
        signals, boundary = self.signals, self.signals.boundary
        is_weighted = self.about["data"]["sampling"] == "weighted"
        if signals.metric is not None:
            counts_once = f"In the {signals.metric.title} each sample counts once, however training weighs it."
            return counts_once if is_weighted or self.settings.class_weight is not None else ""
        is_sampled = boundary.class_weight != "balanced" and is_weighted
        drawn = "Samples count as often as the sampler draws them." if is_sampled else ""
        if boundary.class_weight is not None:
            return f"{drawn[:-1]}, times the weights of their classes." if drawn else ""
        if (rare := rare_class(boundary.labels, boundary.weights)) is None:
            return drawn
        label, share = rare
        return (
            f"{drawn}{drawn and ' '}Class {label} makes up {share:.1%} of what training draws, and counts that much in"
            " expected accuracy. To change it: another `metric`, such as 'balanced_accuracy'."
        )

    def release(self) -> None:
        """Free what was computed, because training has ended."""
        self._signals = None

    def state_dict(self) -> dict[str, Any]:
        return {
            "plan": None if self.plan is None else tuple(self.plan),
            "asked": self._asked,
            "samples": self.fingerprint,
            "prepared": self._saved,
            "space": self._space,
            "loss_weights": self.loss_weights,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from a checked state; with other settings, samples are planned anew."""
        self._saved, self._space = state["prepared"], state["space"]
        self.loss_weights, plan = state["loss_weights"], state["plan"]
        if state["asked"] == self._asked and plan is not None and plan.n_samples >= self.settings.n_neighbors:
            self.plan, self.fingerprint = plan, state["samples"]


def fit_or_load(
    signals: Signals,
    inputs: Tensor,
    labels: Tensor,
    cache: str | Path | None,
    sample_weight: Tensor | None = None,
    has_progress_bar: bool = False,
    tell: Callable[[str], None] | None = None,
) -> tuple[Path | None, Path | None]:
    """Load what an earlier run has kept for the same samples and settings, or fit and keep the result.

    Samples are those of `Signals.fit`, whose errors are raised. `cache` is a file (npz), which is refused if it is
    damaged or for other samples or settings (ValueError); or a folder, in which samples and settings give the file its
    name. If it cannot be written, a warning says so. `tell` takes a line with the expected time of a long fit. Returns
    the file that was read, and the file that was written, or None.
    """
    inputs = signals.boundary.as_inputs(inputs)
    with _bar(signals, inputs, has_progress_bar, tell):
        try:
            return _by_file(signals, (inputs, labels, sample_weight), cache)
        except torch.OutOfMemoryError:  # training may still fit on the device
            return _by_file(signals, (inputs.cpu(), labels, sample_weight), cache)


def _by_file(signals: Signals, samples: tuple[Any, ...], cache: str | Path | None) -> tuple[Path | None, Path | None]:
    if cache is None:
        signals.fit(*samples)
        return None, None
    # A name without a suffix is a folder to be made.
    cache = Path(cache)
    if cache.is_dir() or not (cache.suffix or cache.exists()):
        cache = cache / f"{signals.fingerprint_of(*samples)}.npz"
    try:
        signals.load(cache, *samples)
        return cache, None
    except (FileNotFoundError, NotADirectoryError):
        signals.fit(*samples)
    except OSError as error:
        line = f"The cache {cache} cannot be read: {error.strerror}. Its contents are computed anew."
        warnings.warn(f"{line} To turn the cache off: `cache=None`.", stacklevel=3)
        signals.fit(*samples)
        return None, None
    try:
        signals.save(cache)
        return None, cache
    except OSError as error:
        warnings.warn(f"The cache {cache} cannot be written: {error}. It is not kept.", stacklevel=3)
        return None, None


@contextmanager
def _bar(signals: Signals, inputs: Tensor, is_shown: bool, tell: Callable[[str], None] | None) -> Iterator[None]:
    """Show a progress bar for the work of `signals` within, after a few seconds, and tell its expected time."""

    def tell_forecast(kind: str, seconds: float) -> None:
        line = {
            "comparisons": f"compares samples for about {seconds:.0f} s first. To change it: `max_samples`.",
            "passes": f"passes samples through the network for up to {seconds:.0f} s first, to find near ones by its"
            " features. To change it: `feature_extractor`, or `max_samples`.",
        }[kind]
        if tell is not None:
            tell(f"bu-torch {line}")

    totals = {"comparisons": n_comparisons(len(inputs), signals.boundary.n_draws)}
    if signals.boundary.may_use_module(inputs):
        totals["passes"] = (1 + signals.boundary.n_draws) * len(inputs)
    with (
        tqdm(
            desc="bu-torch prepares",
            total=totals["comparisons"],
            delay=_BAR_DELAY,
            disable=not is_shown,
            leave=False,
            bar_format="{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}",
        ) as bar,
        shown_on(bar, Forecast(totals, tell_forecast)),
    ):
        yield
