"""Pure functions on tensors: they import torch alone, keep no state and touch no random numbers."""

from bu_torch.functional.anchors import anchor_uncertainty, bisect_segments, class_uncertainty
from bu_torch.functional.boundary import (
    boundary_uncertainty,
    local_uncertainty,
    pair_uncertainty,
    uncertainty_ceiling,
)
from bu_torch.functional.expected_accuracy import expected_accuracy
from bu_torch.functional.omission import omission
from bu_torch.functional.pairs import index_pairs, top_pairs
from bu_torch.functional.parzen import cvml_bandwidth, silverman_bandwidth
from bu_torch.functional.probabilities import as_probabilities, brier_score, mixing_weight
from bu_torch.functional.regression import left_out_predictions, tangent_kernel
from bu_torch.functional.trust import mean_trust_score, nearest_class_ratio, neighbor_agreement, trust_score
from bu_torch.functional.votes import label_votes, vote_agreement

__all__ = [
    "anchor_uncertainty",
    "as_probabilities",
    "bisect_segments",
    "boundary_uncertainty",
    "brier_score",
    "class_uncertainty",
    "cvml_bandwidth",
    "expected_accuracy",
    "index_pairs",
    "label_votes",
    "left_out_predictions",
    "local_uncertainty",
    "mean_trust_score",
    "mixing_weight",
    "nearest_class_ratio",
    "neighbor_agreement",
    "omission",
    "pair_uncertainty",
    "silverman_bandwidth",
    "tangent_kernel",
    "top_pairs",
    "trust_score",
    "uncertainty_ceiling",
    "vote_agreement",
]
