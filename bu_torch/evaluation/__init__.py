"""Evaluation of the kept classifier: error rates, trust in single predictions, confidence intervals."""

from bu_torch.papers.confidence import cud_supremum, generalization_interval
from bu_torch.papers.continuum import (
    adjusted_error_count,
    adjusted_squared_error_count,
    data_error_rate,
    data_squared_error_rate,
    error_count,
    error_rate,
    minimal_error_rate,
    minimal_squared_error_rate,
    squared_error_count,
    squared_error_rate,
)
from bu_torch.papers.continuum import sigma_epsilon_of_neighbors as sigma_epsilon_of_neighbors
from bu_torch.papers.continuum import sigma_epsilon_of_residuals as sigma_epsilon_of_residuals
from bu_torch.papers.trust import select_alpha, suspicious_precision, trustworthy_precision

__all__ = ["cud_supremum", "generalization_interval", "select_alpha", "suspicious_precision", "trustworthy_precision"]
__all__ += ["data_error_rate", "data_squared_error_rate", "minimal_error_rate", "minimal_squared_error_rate"]
__all__ += ["adjusted_error_count", "adjusted_squared_error_count", "error_count", "error_rate"]
__all__ += ["squared_error_count", "squared_error_rate"]
