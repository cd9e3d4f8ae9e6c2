"""How good is what was kept: error estimates to hold boundary uncertainty against."""

from bu_torch.evaluation.resampling import ErrorEstimate, cross_validation_error, holdout_error

__all__ = ["ErrorEstimate", "cross_validation_error", "holdout_error"]
