"""Choosing among classifiers that are there already: checkpoints, modules, scikit-learn estimators."""

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bu_torch.internal.inputs import as_features, as_labels, check_integer
from bu_torch.internal.network import read_logits, warn_of_probabilities
from bu_torch.perturbation.moves import keeps_integers
from bu_torch.ranking.checkpoints import SUFFIXES, holding, load_checkpoint
from bu_torch.ranking.estimators import encode, estimator_logits, is_estimator
from bu_torch.ranking.ranking import Candidate, Ranking
from bu_torch.rule.rules import RANKING_RULE, Rule, RuleName, as_rule
from bu_torch.run.preparation import fit_or_load
from bu_torch.samples.batches import Keys, whole_pair
from bu_torch.samples.reading import read_samples
from bu_torch.samples.samples import IGNORED
from bu_torch.signals.measuring import Signals

Paths = str | Path | Iterable[str | Path]
# Between two checks of one run, not of one classifier.
_OF_A_RUN = "prediction_changes"
MEASURED = tuple(name for name in Signals.NAMES if name != _OF_A_RUN)


def rank_checkpoints(
    paths: Paths,
    module: nn.Module | Callable[..., nn.Module],
    dataset: Any,
    *,
    rule: RuleName | Rule = RANKING_RULE,
    weights_only: bool = True,
    max_samples: int | None = None,
    signals: Signals | None = None,
    cache: str | Path | None = None,
    batch_size: int = 4096,
    device: torch.device | str | None = None,
    input_key: str | int | None = None,
    label_key: str | int | None = None,
) -> Ranking:
    """Rank checkpoints by what the stopping callback measures at each check, on the training samples alone.

    What does not depend on the network is computed once for all of them; each then costs one forward pass. Of equally
    good ones the one of the earliest epoch comes first. The order of `paths` does not matter.

    Args:
        paths: Checkpoints as `load_checkpoint` reads them. A folder stands for the checkpoints right in it (`*.ckpt`,
            `*.pt`, `*.pth`, `*.safetensors`). A file that is named twice counts once, with a warning.
        module: Takes each checkpoint's weights in turn: a module, which has its own back afterwards, to the bit; a
            class, which is built from the hyperparameters in each checkpoint as `load_from_checkpoint` does, without
            arguments where there are none; or a callable of no argument.
        dataset: The training samples: a Dataset or DataLoader of (input, label), read in order and without what its
            sampler leaves out, a LightningDataModule, or a pair (inputs, labels) of tensors or arrays. Samples that
            are dicts or longer tuples, and dicts or longer tuples of arrays, need `input_key` and `label_key`. Labels
            are integers from 0. Random augmentation is read once, at one draw of it: better pass samples without.
        rule: `"expected_accuracy"`, `"accuracy_and_uncertainty"`, `"boundary_uncertainty"`, `"trust_score"`, or a
            `bu_torch.Rule` that does not look at `prediction_changes`: that is a signal of a run, not of one
            classifier.
        weights_only: As for `load_checkpoint`.
        max_samples: Look at a random subset of so many samples, stratified where the labels can be told; None for all.
        signals: Other settings than `Signals()` has; it is fitted here, unless it is already.
        cache: File (npz) that holds what is computed once: taken from there where it exists, written there if not.
        batch_size: Samples in a forward pass, >= 1.
        device: Where a module that is built here runs; one that is given runs where it is.
        input_key: Key of the inputs where a sample is a dict; their place, an integer, where it is a tuple of more than
            two, such as (input, label, weight).
        label_key: Likewise of the labels.

    Returns:
        The ranking; nothing is dropped from it.

    Raises:
        FileNotFoundError: If a file is not there, or a folder holds no checkpoint.
        ValueError: If a file cannot be read (`load_checkpoint`) or does not fit the module, an argument is out of
            range, or the samples are not fit for the method (`Signals.fit`).
        TypeError: If `module` or `dataset` is nothing of the kind.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> labels = torch.arange(200) % 2
        >>> features = torch.randn(200, 2, generator=torch.Generator().manual_seed(0)) + 2 * labels.unsqueeze(1)
        >>> module = nn.Linear(2, 1)
        >>> with TemporaryDirectory() as folder:
        ...     for bias in (-2.0, 2.0):
        ...         weights = {"weight": torch.ones(1, 2), "bias": torch.tensor([bias])}
        ...         torch.save(weights, f"{folder}/{bias}.pt")
        ...     rank_checkpoints(folder, module, (features, labels)).best.path.name
        '-2.0.pt'
    """
    keys = (input_key, label_key)
    return fit_and_rank(
        paths,
        module,
        dataset,
        as_ranking_rule(rule),
        weights_only,
        max_samples,
        signals,
        cache,
        batch_size,
        device,
        keys,
    )[1]


def rank_models(
    models: Mapping[str, Any] | Iterable[Any],
    dataset: Any,
    labels: Any = None,
    *,
    rule: RuleName | Rule = RANKING_RULE,
    max_samples: int | None = None,
    signals: Signals | None = None,
    cache: str | Path | None = None,
    batch_size: int = 4096,
    input_key: str | int | None = None,
    label_key: str | int | None = None,
) -> Ranking:
    """Rank classifiers of any kind that were trained on the same samples, as `rank_checkpoints` does.

    Args:
        models: A list, or a mapping from names: modules, callables (n, ...) -> (n, J), and fitted classifiers of
            scikit-learn. Of these `decision_function` is read where there is one, else the logarithm of
            `predict_proba`; a pipeline is read before its first step.
        dataset: As for `rank_checkpoints`; or the inputs alone, (N, ...), with `labels` beside them. A pandas frame of
            numbers keeps its columns.
        labels: Classes (N,), integers from 0; of any kind, strings too, where all models are scikit-learn's. None
            where `dataset` holds them.
        rule: As for `rank_checkpoints`.
        max_samples: As for `rank_checkpoints`.
        signals: As for `rank_checkpoints`.
        cache: As for `rank_checkpoints`.
        batch_size: As for `rank_checkpoints`.
        input_key: As for `rank_checkpoints`.
        label_key: As for `rank_checkpoints`.

    Returns:
        The ranking; equally good ones keep their order.

    Raises:
        ValueError: If there is no model, one gives logits of the wrong shape, an argument is out of range, or the
            samples are not fit for the method (`Signals.fit`).
        TypeError: If a model can be neither called nor read as a classifier, or `dataset` is nothing of the kind.

    Example:
        >>> from sklearn.neighbors import KNeighborsClassifier
        >>> labels = torch.arange(200) % 2
        >>> features = torch.randn(200, 2, generator=torch.Generator().manual_seed(0)) + 2 * labels.unsqueeze(1)
        >>> models = {f"k = {k}": KNeighborsClassifier(k).fit(features, labels) for k in (1, 15, 199)}
        >>> rank_models(models, features, labels).best.name
        'k = 15'
    """
    ranked_by = as_ranking_rule(rule)
    check_integer("batch_size", batch_size, 1)
    named = _named(models)
    keys = (input_key, label_key)
    if labels is None and (pair := whole_pair(dataset, keys)) is not None:
        dataset, labels = pair
    frame = dataset if hasattr(dataset, "iloc") else None
    classes = None
    if labels is not None and all(is_estimator(model) for model in named.values()):
        classes, labels = encode(labels)
    if labels is not None:
        dataset, keys = (dataset, labels), (None, None)
    signals = fit_signals(signals, dataset, max_samples, cache, keys)
    ranked_by.adapt(len(signals.boundary.labels), signals.boundary.n_neighbors)
    if classes is None:
        classes = np.arange(int(signals.boundary.labels.max()) + 1)
    measured = []
    for name, model in named.items():
        read = estimator_logits(model, classes, frame) if is_estimator(model) else model
        measured.append(Candidate(0, name, math.nan, None, None, measure_model(signals, read, batch_size, name)))
    return _ranked(measured, ranked_by)


def find_checkpoints(paths: Paths) -> list[Path]:
    """Files that `paths` stand for, each once; a folder stands for the checkpoints right in it."""
    given = [Path(paths)] if isinstance(paths, str | Path) else [Path(path) for path in paths]
    if not given:
        raise ValueError("`paths` must hold at least one checkpoint, got none.")
    files: list[Path] = []
    for path in given:
        if not path.is_dir():
            files.append(path)
            continue
        inside = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and file.is_file())
        if not inside:
            raise FileNotFoundError(
                f"There is no checkpoint ({', '.join(SUFFIXES)}) right in the folder `{path}`; folders beneath it are"
                " named one by one."
            )
        files += inside
    once: dict[Path, Path] = {}
    for file in files:
        if not file.is_file():
            raise FileNotFoundError(f"There is no checkpoint `{file}`.")
        if once.setdefault(file.resolve(), file) is not file:
            warnings.warn(f"`{file}` is named twice and counts once.", stacklevel=3)
    return list(once.values())


def fit_and_rank(
    paths: Paths,
    module: nn.Module | Callable[..., nn.Module],
    dataset: Any,
    rule: Rule,
    weights_only: bool,
    max_samples: int | None,
    signals: Signals | None,
    cache: str | Path | None,
    batch_size: int,
    device: torch.device | str | None,
    keys: Keys,
) -> tuple[Signals, Ranking]:
    """`rank_checkpoints`, with the fitted signals that it ranks by."""
    check_integer("batch_size", batch_size, 1)
    files = find_checkpoints(paths)
    signals = fit_signals(signals, dataset, max_samples, cache, keys)
    rule.adapt(len(signals.boundary.labels), signals.boundary.n_neighbors)
    measured = []
    for file in files:
        checkpoint = load_checkpoint(file, weights_only=weights_only)
        with holding(module, checkpoint, device) as held:
            values = measure_model(signals, held, batch_size, str(file))
        measured.append(Candidate(0, str(file), math.nan, checkpoint.epoch, checkpoint.step, values, file))
    return signals, _ranked(sorted(measured, key=_age), rule)


def fit_signals(
    signals: Signals | None, dataset: Any, max_samples: int | None, cache: str | Path | None, keys: Keys
) -> Signals:
    """`signals`, or such of default settings, fitted on the samples of a dataset, or read from the file `cache`."""
    signals = Signals() if signals is None else signals
    if not isinstance(signals, Signals):
        raise TypeError(f"`signals` must be a bu_torch.Signals or None, got {type(signals).__name__}.")
    samples = read_samples(dataset, max_samples, signals.boundary.seed, keys)
    inputs = as_features(samples.inputs, "dataset", keep_integers=keeps_integers(signals.boundary.perturbation))
    labels = as_labels(samples.labels, len(inputs)).to(inputs.device)
    if samples.n_ignored:
        warnings.warn(
            f"{samples.n_ignored} samples have the label {IGNORED}, which torch's losses ignore: they are left out.",
            stacklevel=4,
        )
    if signals.is_fitted:
        if not signals.is_of(inputs, labels, samples.weights):
            raise ValueError("`signals` must be fitted on the samples of `dataset`, or on none, got other samples.")
        return signals
    path = None if cache is None else Path(cache)
    fit_or_load(signals, inputs, labels, path, sample_weight=samples.weights)
    return signals


def as_ranking_rule(rule: RuleName | Rule) -> Rule:
    """A rule that can rank classifiers, by its name or as it is."""
    found = as_rule(rule)
    if _OF_A_RUN in found.signals:
        raise ValueError(f"`rule` must not look at {_OF_A_RUN}, which one classifier has not, got {found.name!r}.")
    return found


def score(values: Mapping[str, float], rule: Rule) -> float:
    """The score of a candidate with these signals; NaN where one that the rule looks at is not finite."""
    looked_at = {name: values[name] for name in rule.signals}
    return float(rule.score(looked_at)) if all(map(math.isfinite, looked_at.values())) else math.nan


def measure_model(signals: Signals, model: Callable[[Tensor], Any], batch_size: int, name: str) -> dict[str, float]:
    """All signals of a model; NaN where its logits are not finite."""
    try:
        logits = read_logits(model, signals.perturbed_inputs, batch_size, check_finite=False)
        warn_of_probabilities(logits, name)
        values, _ = signals.measure(logits.to(signals.perturbed_inputs.device))
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from error
    return {signal: float(values[signal]) for signal in MEASURED}


def _ranked(candidates: list[Candidate], rule: Rule) -> Ranking:
    scores = [score(candidate.signals, rule) for candidate in candidates]
    order = sorted(range(len(scores)), key=lambda i: (not math.isfinite(scores[i]), -scores[i], i))
    ranked = (candidates[i]._replace(rank=rank, score=scores[i]) for rank, i in enumerate(order, 1))
    return Ranking(rule.name, tuple(ranked))


def _age(candidate: Candidate) -> tuple[float, float, str]:
    counts = (math.inf if count is None else count for count in (candidate.epoch, candidate.step))
    return (*counts, candidate.name)  # type: ignore[return-value]


def _named(models: Mapping[str, Any] | Iterable[Any]) -> dict[str, Any]:
    if isinstance(models, nn.Module) or is_estimator(models):
        raise TypeError(f"`models` must be a list or a mapping of models, got one {type(models).__name__}.")
    if not isinstance(models, Mapping):
        kinds = ((model, getattr(model, "__name__", type(model).__name__)) for model in models)
        models = {f"{place}: {kind}": model for place, (model, kind) in enumerate(kinds)}
    if not models:
        raise ValueError("`models` must hold at least one model, got none.")
    for name, model in models.items():
        if not (callable(model) or is_estimator(model)):
            kind = type(model).__name__
            raise TypeError(f"`models` must be callables or classifiers of scikit-learn, got {kind} ({name}).")
    return {str(name): model for name, model in models.items()}
