"""Lightning callbacks: they hold hooks; `bu_torch` measures and decides, and Lightning stops and saves."""

from bu_torch.callbacks.monitor import BoundaryUncertaintyMonitor
from bu_torch.callbacks.stopping import BoundaryUncertaintyStopping
from bu_torch.run.stopper import BoundaryUncertaintyStopper

__all__ = ["BoundaryUncertaintyMonitor", "BoundaryUncertaintyStopper", "BoundaryUncertaintyStopping"]
