"""Lightning's own callbacks on our key: the monitor measures, `EarlyStopping` and `ModelCheckpoint` decide.

Run `python examples/recipes/own_callbacks.py`.
"""

import tempfile
from pathlib import Path

from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from shared_lightning import Classifier, loader, trainer

from bu_torch import BoundaryUncertaintyMonitor


def main(epochs: int = 60) -> tuple[BoundaryUncertaintyMonitor, EarlyStopping, ModelCheckpoint]:
    monitor = BoundaryUncertaintyMonitor()
    stopping = EarlyStopping(monitor="boundary_uncertainty", mode="max", patience=10)
    checkpoint = ModelCheckpoint(
        monitor="boundary_uncertainty", mode="max", save_top_k=3, filename="{epoch}-{boundary_uncertainty:.3f}"
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer(folder, epochs, logger=False, callbacks=[monitor, stopping, checkpoint]).fit(Classifier(), loader())
        kept = sorted(Path(path).name for path in checkpoint.best_k_models)
    print(f"stopped in epoch {stopping.stopped_epoch} after {len(monitor.history)} checks")
    print("kept: " + ", ".join(kept))
    return monitor, stopping, checkpoint


if __name__ == "__main__":
    main()
