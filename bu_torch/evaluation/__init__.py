"""How good is what was kept: error rates, and which predictions to trust."""

from bu_torch.evaluation.confidence import cud_supremum, generalization_interval
from bu_torch.evaluation.network import network_interval

__all__ = [
    "cud_supremum",
    "generalization_interval",
    "network_interval",
]
