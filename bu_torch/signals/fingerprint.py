"""Fingerprint of samples and settings, by which files and resumed runs are compared."""

import hashlib

import torch
from torch import Tensor

from bu_torch.estimators.boundary import BoundaryUncertainty

_FORMAT = 10  # of the file, to be raised when what it holds, or how that is computed, changes
_PROBE = 64


def fingerprint_of_samples(
    boundary: BoundaryUncertainty, inputs: Tensor, labels: Tensor, weights: Tensor | None
) -> str:
    """Digest of samples and of the settings of `boundary`, 64 hexadecimal digits.

    Args:
        boundary: With its settings; it need not be fitted.
        inputs: Samples, (N, ...).
        labels: Their classes, (N,).
        weights: How often each sample counts, (N,); None for alike.
    """
    settings = (boundary.n_neighbors, boundary.n_draws, boundary.seed)
    digest = hashlib.sha256(repr((_FORMAT, *settings, boundary.space.n_components)).encode())
    if isinstance(boundary.feature_extractor, str):
        digest.update(boundary.feature_extractor.encode())
    # An extractor and a perturbation are told by what they make of a few samples.
    kind = boundary.kind_of_perturbation(inputs)
    if kind in ("neighbors", "tokens"):
        digest.update(kind.encode())
    few = inputs[:_PROBE]
    is_probed = callable(boundary.feature_extractor) and not boundary.may_use_module(inputs)
    probe = [boundary.space.extract(few)] if is_probed else []
    if callable(boundary.perturbation):
        generator = torch.Generator().manual_seed(boundary.seed)
        probe.append(boundary.perturbation(few.clone(), torch.ones(len(few), device=few.device), generator))
    for tensor in (inputs, labels, *probe, *([] if weights is None else [weights])):
        digest.update(repr((tuple(tensor.shape), str(tensor.dtype))).encode())
        digest.update(tensor.cpu().contiguous().numpy().data.cast("B"))
    return digest.hexdigest()
