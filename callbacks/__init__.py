"""Lightning callbacks: they hold hooks, and leave numbers to `bu_torch` and decisions to Lightning."""

from bu_torch.callbacks.monitor import BoundaryUncertaintyMonitor
from bu_torch.callbacks.stopping import BoundaryUncertaintyStopping
from bu_torch.run.stopper import BoundaryUncertaintyStopper

__all__ = ["BoundaryUncertaintyMonitor", "BoundaryUncertaintyStopper", "BoundaryUncertaintyStopping"]
