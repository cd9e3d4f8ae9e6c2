"""Early stopping and checkpoint selection by boundary uncertainty, without validation data."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bu_torch._version import __version__
from bu_torch.anchors import BisectionAnchorUncertainty, GradientAnchorUncertainty
from bu_torch.boundary import BoundaryUncertainty
from bu_torch.checkpoints import Checkpoint, load_checkpoint
from bu_torch.graph import NeighborGraph
from bu_torch.layers import LayerFeatures
from bu_torch.perturbation import perturb
from bu_torch.prototypes import PrototypeClassifier
from bu_torch.ranking import Candidate, Ranking, rank_checkpoints, rank_models
from bu_torch.regression import LabelRegression
from bu_torch.scoring import BoundaryUncertaintyScorer, consensus_index
from bu_torch.selection import SelectionRule
from bu_torch.signals import Signals
from bu_torch.soup import Soup, average_checkpoints, greedy_soup
from bu_torch.space import FeatureSpace
from bu_torch.trust import KNNConfidence, TrustScore
from bu_torch.votes import LabelVotes

if TYPE_CHECKING:
    from bu_torch.callbacks import (
        BoundaryUncertaintyMonitor,
        BoundaryUncertaintyStopper,
        BoundaryUncertaintyStopping,
    )

__all__ = [
    "BisectionAnchorUncertainty",
    "BoundaryUncertainty",
    "BoundaryUncertaintyMonitor",
    "BoundaryUncertaintyScorer",
    "BoundaryUncertaintyStopper",
    "BoundaryUncertaintyStopping",
    "Candidate",
    "Checkpoint",
    "FeatureSpace",
    "GradientAnchorUncertainty",
    "KNNConfidence",
    "LabelRegression",
    "LabelVotes",
    "LayerFeatures",
    "NeighborGraph",
    "PrototypeClassifier",
    "Ranking",
    "SelectionRule",
    "Signals",
    "Soup",
    "TrustScore",
    "__version__",
    "average_checkpoints",
    "consensus_index",
    "greedy_soup",
    "load_checkpoint",
    "perturb",
    "rank_checkpoints",
    "rank_models",
]


def __getattr__(name: str) -> Any:
    """Find the callbacks on first use, so that `import bu_torch` does not import lightning."""
    if name in ("BoundaryUncertaintyMonitor", "BoundaryUncertaintyStopper", "BoundaryUncertaintyStopping"):
        return getattr(import_module("bu_torch.callbacks"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
