"""Pure functions on tensors: they import torch alone, keep no state and touch no random numbers."""

from bu_torch.functional.anchors import anchor_uncertainty, bisect_segments, class_uncertainty
from bu_torch.functional.boundary import (
    boundary_uncertainty,
    index_pairs,
    local_uncertainty,
    pair_uncertainty,
    top_pairs,
    uncertainty_ceiling,
)
from bu_torch.functional.consensus import standardized_gain, standardized_standing
from bu_torch.functional.omission import omission
from bu_torch.functional.parzen import cvml_bandwidth, silverman_bandwidth
from bu_torch.functional.regression import as_probabilities, left_out_predictions, mixing_weight, tangent_kernel
from bu_torch.functional.trust import mean_trust_score, nearest_class_ratio, neighbor_agreement, trust_score
from bu_torch.functional.votes import brier_score, label_votes, vote_agreement

__all__ = [
    "anchor_uncertainty",
    "as_probabilities",
    "bisect_segments",
    "boundary_uncertainty",
    "brier_score",
    "class_uncertainty",
    "cvml_bandwidth",
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
    "standardized_gain",
    "standardized_standing",
    "tangent_kernel",
    "top_pairs",
    "trust_score",
    "uncertainty_ceiling",
    "vote_agreement",
]
