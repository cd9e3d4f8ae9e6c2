"""Pure functions on tensors: they import torch alone, keep no state and touch no random numbers.

Formulas that only the papers need are in `bu_torch.papers`, and are found here too when they are asked for.
"""

from importlib import import_module
from typing import Any

from bu_torch.functional.probabilities import label_votes
from bu_torch.functional.score import Attainable as Attainable
from bu_torch.functional.score import (
    accuracy_uncertainty_trust,
    attainable,
    boundary_uncertainty,
    expected_accuracy,
    mean_trust_score,
    trust_score,
)

_OF_PAPERS = dict.fromkeys(("cvml_bandwidth", "silverman_bandwidth"), "bandwidth")
_OF_PAPERS |= dict.fromkeys(("local_uncertainty", "omission", "parzen_uncertainty"), "parzen")

__all__ = ["accuracy_uncertainty_trust", "attainable", "boundary_uncertainty", "expected_accuracy", "label_votes"]
__all__ += ["mean_trust_score", "trust_score", *_OF_PAPERS]


def __getattr__(name: str) -> Any:
    """Import a formula of the papers, and keep it."""
    if name not in _OF_PAPERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"bu_torch.papers.{_OF_PAPERS[name]}"), name)
    globals()[name] = value
    return value
