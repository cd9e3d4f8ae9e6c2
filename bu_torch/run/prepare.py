"""What a check needs that does not depend on the network: how many samples, which, and the signals fitted to them.

The number of samples depends on the price of a forward pass, which is counted and not timed, so that runs repeat.
"""

import math
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from bu_torch.estimators.space_choice import SpaceName, may_use_module
from bu_torch.internal.inputs import as_features, as_labels
from bu_torch.internal.network import PackedNetwork, Packing
from bu_torch.perturbation.draws import MixedMove, Readings, keeps_integers, kind_of
from bu_torch.run.settings import Settings
from bu_torch.samples.reading import with_readings
from bu_torch.samples.samples import LEFT_OUT, ClassWeight, Samples, subsample
from bu_torch.signals.catalogue import SIGNALS
from bu_torch.signals.measuring import Signals, class_shares, describe_doubt, fit_or_on_cpu
from bu_torch.signals.metrics import ACCURACY, as_metric
from bu_torch.space.extractors import MixedFeatures

MAX_DRAWS = 4  # more do not help (docs/limits.md)
AUTO_SHARE = 0.15  # share of an epoch's samples; the floor below may exceed it
MAX_BYTES = 2**30  # of samples that are held, unless `max_samples` is given
_LEAST_FLOOR, _MOST_FLOOR = 500, 6000  # forward passes that small data needs: large networks, small ones
_FLOOR_OPERATIONS = 6e8
_OPERATIONS_BESIDE = 40_000  # evaluating the logits of a pass takes as long on one core


class Plan(NamedTuple):
    """Number of samples that a check uses, and of perturbations of each."""

    n_samples: int
    n_draws: int


def plan_check(
    settings: Settings,
    samples: Samples,
    n_operations: int,
    n_visited: int | None = None,
) -> Plan:
    """Bound the forward passes of one check by a share of the samples that an epoch visits.

    Another sample says more than another draw of the same one, so only small data, where single predictions make the
    signals jump, gets several draws. Some `samples` were read, of `n_training`, of which an epoch visits `n_visited`,
    all if None; each takes `n_operations` in a forward pass, 0 if unknown.
    """
    n_training, n_bytes, least = samples.n_training, samples.inputs[:1].nbytes, settings.n_neighbors
    max_samples, n_draws = settings.max_samples, settings.n_draws
    # Passes of each sample beside those of its draws.
    n_unmoved = int(any(SIGNALS[name].reads_unmoved for name in settings.also))
    n_samples = n_training if max_samples is None else min(n_training, max_samples)
    n_held = sys.maxsize if max_samples else MAX_BYTES // n_bytes
    n_samples = min(n_samples, max(n_held, least))
    affordable = _FLOOR_OPERATIONS / (n_operations + _OPERATIONS_BESIDE)
    n_visited = n_training if n_visited is None else n_visited
    passes = math.floor(max(AUTO_SHARE * n_visited, min(_MOST_FLOOR, max(_LEAST_FLOOR, affordable))))
    if n_draws is None:
        n_draws = min(MAX_DRAWS, max(1, passes // n_samples - n_unmoved))
    if max_samples is None:
        n_samples = min(n_samples, max(passes // (n_draws + n_unmoved), least))
    return Plan(min(n_samples, max(n_held // (1 + n_draws * (samples.reread is not None)), least)), n_draws)


class Fitted(NamedTuple):
    """What only the first process has, which has prepared."""

    signals: Signals
    rows: Tensor | None  # places of the samples in the dataset, (N,); None if they are not known
    about: Mapping[str, Any]  # numbers of samples and classes, their names, skills: for the record and the verdict
    moves_integers: bool  # samples are integers, such as token ids may be, and are moved like numbers


class TrainingData(NamedTuple):
    """Samples to choose from, the plan of a check, and what the network says before training."""

    samples: Samples
    plan: Plan
    untrained_network: nn.Module | None = None  # its features may be the space, by default not of tables
    class_weight: ClassWeight | None = None  # applies if the settings have none


def prepare_signals(
    data: TrainingData,
    settings: Settings,
    resumed: Mapping[str, Any],
    device: torch.device,
    *,
    has_checks: bool,
    log: Callable[..., None],
) -> tuple[Fitted, dict[str, Any], Packing | None, bool]:
    """Choose samples as a plan says, fit the signals to them for checks on `device`, and say how they are measured.

    `resumed` holds the entries below of a resumed run, or None for each; its plan counts, and its space, if it
    `has_checks`. Errors are those of `Signals`.

    Returns what the first process needs, and for all: the entries of a state, the layout of several tensors a sample,
    and whether earlier checks were made at the same samples. A resumed run cannot repeat the choice of a space for
    which the network was a candidate, because that has changed. So a state then holds the name of the space, or the
    whole preparation if the space is the network's features.
    """
    samples, plan, network, class_weight = data
    plan = Plan(*resumed["plan"]) if resumed["plan"] else plan
    samples = subsample(samples, plan.n_samples, settings.seed)
    if samples.n_ignored:
        warnings.warn(LEFT_OUT.format(samples.n_ignored), stacklevel=2)
    samples, readings = with_readings(samples, plan.n_draws, settings.perturbation)
    adapted, space = _settings_for(settings, samples, readings), resumed["space"]
    make_signals = partial(adapted.make_signals, plan.n_draws, class_weight=class_weight, known_space=space)
    if network is not None and samples.packing is not None:
        network = PackedNetwork(network, samples.packing)
    signals = make_signals(network)
    uses_module = may_use_module(signals.boundary.feature_extractor, signals.boundary.module, samples.inputs)
    saved, is_restored = resumed["prepared"] if has_checks and uses_module else None, False
    if saved is not None:
        with suppress(Exception):  # damaged, which may raise anything, or for other samples: the caller warns
            signals.restore(saved, samples.inputs, samples.labels, samples.weights)
            is_restored = True
    if not is_restored:
        if has_checks and uses_module and signals.boundary.feature_extractor is None and space is None:
            # A network that has learnt the labels would leak them into the choice.
            signals, uses_module = make_signals(None), False
        inputs = samples.inputs
        has_own_code = callable(settings.feature_extractor) or callable(settings.perturbation)
        if samples.packing is None and inputs.ndim == 4 and not has_own_code and device.type != "mps":  # no float64
            inputs = inputs.to(device)  # which is faster for images
        fit_or_on_cpu(signals, inputs, samples.labels, samples.weights)
        name: Any = signals.boundary.space_name_
        space = name if uses_module and name in get_args(SpaceName) else None
    log(_describe_preparation(signals, samples), if_verbose=True)
    for line in filter(None, (signals.metric.prices, describe_doubt(signals))):
        log(line)
    prepared = signals.state() if uses_module and space is None else None
    state = {"plan": tuple(plan), "fingerprint": signals.fingerprint, "prepared": prepared, "space": space}
    is_same = resumed["fingerprint"] in (None, signals.fingerprint) and is_restored == (saved is not None)
    is_comparable = is_same or not has_checks
    is_moved = not (samples.inputs.is_floating_point() or keeps_integers(adapted.perturbation))
    fitted = Fitted(signals.to(device), samples.rows, _about(signals, samples), is_moved and samples.packing is None)
    return fitted, state, samples.packing, is_comparable


def _settings_for(settings: Settings, samples: Samples, readings: Tensor | None) -> Settings:
    """Settings adapted to samples: further readings perturb them; the user's callables get tensors as training does."""
    perturbation, extractor, packing = settings.perturbation, settings.feature_extractor, samples.packing
    if readings is not None:
        flat = as_features(readings.flatten(0, 1), "further readings", keep_integers=True)
        perturbation = Readings(flat.unflatten(0, readings.shape[:2]))
    if packing is None:
        return replace(settings, perturbation=perturbation)
    if callable(perturbation):
        perturbation = partial(_perturbed, perturbation, packing)
    elif packing.index_names and perturbation in ("random", "neighbors"):
        raise ValueError(
            f"`perturbation={perturbation!r}` moves numbers along a line, but {', '.join(packing.index_names)} hold"
            " integers: pass None, or a callable (inputs, nearest_distance, generator) that takes these tensors as the"
            " network does."
        )
    elif perturbation == "tokens" and packing.form != "rows":
        raise ValueError(
            f"`perturbation='tokens'` exchanges tokens in rows of integers (n, L), got {packing}. Let `input_key=[...]`"
            " name the rows alone: token ids and their mask."
        )
    elif perturbation is None and packing.form == "rows":
        perturbation = "tokens"
    elif perturbation is None and packing.form == "mixed":
        perturbation = MixedMove(packing) if packing.index_names else "neighbors"
    if callable(extractor):
        extractor = PackedNetwork(extractor, packing)
    elif extractor is None and packing.form == "mixed":
        extractor = MixedFeatures(packing)
    return replace(settings, perturbation=perturbation, feature_extractor=extractor)


def _perturbed(perturbation: Callable[..., Any], packing: Packing, inputs: Tensor, *args: Any) -> Tensor:
    """Perturbed samples of a user's function that takes and returns several tensors."""
    tree = packing.unpack(inputs)
    perturbed = perturbation(tree, *args)
    expected, shapes = ([tensor.shape for tensor in pytree.tree_leaves(samples)] for samples in (tree, perturbed))
    if shapes != expected:
        raise ValueError(f"`perturbation` must give tensors of the shapes of the inputs, {expected}, got {shapes}.")
    return packing.pack(perturbed)


def _about(signals: Signals, samples: Samples) -> dict[str, Any]:
    present, shares = class_shares(signals.boundary.labels, samples.weights)
    skills = {name: round(skill, 4) for name, skill in signals.boundary.skills_.items()}
    data = {
        "n_samples": len(samples.inputs),
        "n_draws": signals.boundary.n_draws,
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


def _describe_preparation(signals: Signals, samples: Samples) -> str:
    """Which samples are perturbed, and how, and in which space neighbours are found."""
    boundary = signals.boundary
    drawn = "further reading" if isinstance(boundary.perturbation, Readings) else "draw"
    each = f"{boundary.n_draws} {drawn}{'s' if boundary.n_draws > 1 else ''} each"
    line = f"bu-torch measures at {len(samples.inputs)} of {samples.n_training} training samples, {each}."
    if samples.packing is not None:
        line += f" Inputs: {samples.packing}."
    if boundary.skills_:
        skills = ", ".join(f"{name} {skill:.2f}" for name, skill in boundary.skills_.items())
        line += (
            f" Neighbours are found in the space {boundary.space_name_!r}, where they predict left-out labels best"
            f" (skill: {skills}; 0 chance, 1 perfect). Pass `feature_extractor=...` to change this."
        )
    return line


def class_weights_of(
    module: nn.Module, labels: Tensor, settings: Settings, log: Callable[[str], None]
) -> list[float] | None:
    """The weight of each class in the losses of a module, None if they cannot tell; a line of the log says so.

    None with weights of the settings' own, or another metric than accuracy, in which each sample counts once.
    """
    if settings.class_weight is not None or as_metric(settings.metric) != ACCURACY:
        return None
    n_classes = 1 + int(as_labels(labels, len(labels)).max())
    losses = (nn.CrossEntropyLoss, nn.NLLLoss, nn.BCEWithLogitsLoss)
    weights = [_weights_in(part, n_classes) for part in module.modules() if isinstance(part, losses)]
    if not any(weights):
        return None
    first = weights[0]
    are_clear = all(weight == first for weight in weights) and len(first) >= n_classes
    if not (are_clear and all(0 < weight < math.inf for weight in first)):
        log(
            "bu-torch counts all classes alike, because the losses of the module do not have one positive weight for"
            " each class, the same in all. Pass `class_weight=...` to weigh them in the score, too."
        )
        return None
    shown = ", ".join(f"{weight:.4g}" for weight in first[:10]) + ", ..." * (len(first) > 10)
    log(
        f"bu-torch weighs the classes by {shown}, as the loss of the module does. Pass"
        f" `class_weight=[1.0] * {len(first)}` to count all samples alike."
    )
    return first


def _weights_in(loss: Any, n_classes: int) -> list[float]:
    """Weight of each class in a loss; empty if all classes weigh the same."""
    is_binary = isinstance(loss, nn.BCEWithLogitsLoss)
    tensor = loss.pos_weight if is_binary else loss.weight
    weights: list[float] = [] if tensor is None else tensor.flatten().tolist()
    if is_binary and weights:
        weights = [1.0, *weights] if len(weights) == 1 and n_classes == 2 else [math.nan, *weights]
    return weights if len(set(weights)) > 1 else []
