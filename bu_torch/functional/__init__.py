"""Pure functions on tensors: they import torch alone, keep no state and touch no random numbers."""

from bu_torch.functional.accuracy import accuracy_and_trust, best_accuracy_and_trust, expected_accuracy
from bu_torch.functional.boundary import boundary_uncertainty, local_uncertainty
from bu_torch.functional.omission import omission
from bu_torch.functional.parzen import cvml_bandwidth, silverman_bandwidth
from bu_torch.functional.probabilities import label_votes
from bu_torch.functional.trust import mean_trust_score, trust_score

__all__ = [
    "accuracy_and_trust",
    "best_accuracy_and_trust",
    "boundary_uncertainty",
    "cvml_bandwidth",
    "expected_accuracy",
    "label_votes",
    "local_uncertainty",
    "mean_trust_score",
    "omission",
    "silverman_bandwidth",
    "trust_score",
]
