"""`ReduceLROnPlateau` on boundary uncertainty: the learning rate falls when the boundary gets no better.

Run `python examples/recipes/reduce_lr.py`.
"""

import tempfile
from typing import Any

import torch
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger
from shared_lightning import Classifier, loader, trainer

from bu_torch import BoundaryUncertaintyMonitor


class Scheduled(Classifier):
    """The classifier, with a scheduler that reads what the callback logs."""

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = torch.optim.Adam(self.parameters(), lr=self.lr)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", factor=0.5, patience=3)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "boundary_uncertainty"}}


def main(epochs: int = 40) -> tuple[BoundaryUncertaintyMonitor, Scheduled]:
    monitor, module = BoundaryUncertaintyMonitor(), Scheduled()
    with tempfile.TemporaryDirectory() as folder:
        callbacks = [monitor, LearningRateMonitor("epoch")]
        trainer(folder, epochs, logger=CSVLogger(folder), callbacks=callbacks).fit(module, loader())
    scheduler = module.lr_schedulers()
    largest = max(monitor.history, key=lambda check: check["boundary_uncertainty"])
    print(f"largest U {largest['boundary_uncertainty']:.3f} in epoch {largest['epoch']}")
    print(f"learning rate {module.lr} -> {scheduler.get_last_lr()[0]}; the scheduler's best: {scheduler.best:.3f}")
    return monitor, module


if __name__ == "__main__":
    main()
