"""Early stopping and checkpoint selection by boundary uncertainty, without validation data.

Public names are found on first use: importing this package loads neither torch nor lightning.
"""

import os
from importlib import import_module

from bu_torch._version import __version__ as __version__

# Nothing but what Python itself has loaded is imported here: under `python -m bu_torch` the current folder is still the
# first on the path, and a `typing.py` that lies there would run.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from bu_torch import callbacks as callbacks
    from bu_torch import evaluation as evaluation
    from bu_torch import functional as functional
    from bu_torch import report as report
    from bu_torch.callbacks import BoundaryUncertaintyMonitor as BoundaryUncertaintyMonitor
    from bu_torch.callbacks import BoundaryUncertaintyStopping as BoundaryUncertaintyStopping
    from bu_torch.estimators.boundary import BoundaryUncertainty as BoundaryUncertainty
    from bu_torch.estimators.boundary import DoubtfulLabels as DoubtfulLabels
    from bu_torch.estimators.boundary import doubtful_labels as doubtful_labels
    from bu_torch.estimators.label_probabilities import LabelProbabilities as LabelProbabilities
    from bu_torch.estimators.label_probabilities import LabelRegression as LabelRegression
    from bu_torch.estimators.label_probabilities import LabelVotes as LabelVotes
    from bu_torch.estimators.trust import TrustScore as TrustScore
    from bu_torch.neighbors.graph import NeighborGraph as NeighborGraph
    from bu_torch.papers.bisection import BisectionAnchorUncertainty as BisectionAnchorUncertainty
    from bu_torch.papers.gradient import GradientAnchorUncertainty as GradientAnchorUncertainty
    from bu_torch.papers.proposal2 import ParzenUncertainty as ParzenUncertainty
    from bu_torch.papers.prototypes import PrototypeClassifier as PrototypeClassifier
    from bu_torch.perturbation.draws import exchange_tokens as exchange_tokens
    from bu_torch.perturbation.draws import perturb as perturb
    from bu_torch.perturbation.draws import perturb_toward_neighbors as perturb_toward_neighbors
    from bu_torch.ranking.checkpoints import Checkpoint as Checkpoint
    from bu_torch.ranking.checkpoints import load_checkpoint as load_checkpoint
    from bu_torch.ranking.rank import Candidate as Candidate
    from bu_torch.ranking.rank import Ranking as Ranking
    from bu_torch.ranking.rank import rank_checkpoints as rank_checkpoints
    from bu_torch.rule.rules import Rule as Rule
    from bu_torch.run.stopper import BoundaryUncertaintyStopper as BoundaryUncertaintyStopper
    from bu_torch.samples.reading import read_samples as read_samples
    from bu_torch.signals.catalogue import Measurement as Measurement
    from bu_torch.signals.measuring import Signals as Signals
    from bu_torch.space.extractors import LayerFeatures as LayerFeatures
    from bu_torch.space.extractors import PatchFeatures as PatchFeatures
    from bu_torch.space.extractors import TokenFeatures as TokenFeatures
    from bu_torch.space.features import FeatureSpace as FeatureSpace

# Modules of all names, once more for the interpreter, which skips the imports above.
_PACKAGES = ("callbacks", "evaluation", "functional", "report")
_MODULES = {
    "papers.bisection": ("BisectionAnchorUncertainty",),
    "papers.gradient": ("GradientAnchorUncertainty",),
    "papers.proposal2": ("ParzenUncertainty",),
    "papers.prototypes": ("PrototypeClassifier",),
    "estimators.boundary": ("BoundaryUncertainty", "DoubtfulLabels", "doubtful_labels"),
    "callbacks": ("BoundaryUncertaintyMonitor", "BoundaryUncertaintyStopping"),
    "ranking.checkpoints": ("Checkpoint", "load_checkpoint"),
    "neighbors.graph": ("NeighborGraph",),
    "estimators.label_probabilities": ("LabelProbabilities", "LabelRegression", "LabelVotes"),
    "rule.rules": ("Rule",),
    "run.stopper": ("BoundaryUncertaintyStopper",),
    "perturbation.draws": ("exchange_tokens", "perturb", "perturb_toward_neighbors"),
    "ranking.rank": ("Candidate", "Ranking", "rank_checkpoints"),
    "signals.catalogue": ("Measurement",),
    "signals.measuring": ("Signals",),
    "samples.reading": ("read_samples",),
    "space.extractors": ("LayerFeatures", "PatchFeatures", "TokenFeatures"),
    "space.features": ("FeatureSpace",),
    "estimators.trust": ("TrustScore",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}
# Results, and parts of what else is shown, are found too, but `from bu_torch import *` leaves them out.
_RESULTS = {"Candidate", "Checkpoint", "DoubtfulLabels", "LabelRegression", "LabelVotes", "Measurement", "Ranking"}
_PARTS = {"FeatureSpace", "exchange_tokens", "perturb_toward_neighbors"}
__all__ = ["__version__", *sorted(_HOMES.keys() - _RESULTS - _PARTS)]

# In a checkout `callbacks/` stands beside this folder, and only an installation puts it here. From the checkout's root
# this folder hides an installed package, so the callbacks are looked for beside it too. A symbolic link would do
# the same, but not every system makes one on checkout, and tools that walk folders would find the callbacks twice.
_HERE = os.path.dirname(__file__)  # noqa: PTH120
_is_checkout = os.path.isfile(f"{_HERE}/../callbacks/__init__.py")  # noqa: PTH113
if _is_checkout and not os.path.isdir(f"{_HERE}/callbacks"):  # noqa: PTH112
    __path__.append(os.path.dirname(_HERE))  # noqa: PTH120


def __getattr__(name: str) -> "Any":
    """Import what `name` stands for, and keep it."""
    if name in _PACKAGES:
        return import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
