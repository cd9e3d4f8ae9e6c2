"""Weights & Biases, offline: `wandb sync` sends the run later, if ever.

Run `python examples/recipes/wandb_offline.py`. It needs `pip install wandb`.
"""

import tempfile

from lightning.pytorch.loggers import WandbLogger
from shared_lightning import Classifier, loader, trainer

from bu_torch import BoundaryUncertaintyStopping


def main(epochs: int = 10) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        logger = WandbLogger(project="moons", save_dir=folder, offline=True)
        stopping = BoundaryUncertaintyStopping()
        trainer(folder, epochs, logger=logger, callbacks=[stopping]).fit(Classifier(), loader())
        shown = {name: value for name, value in dict(logger.experiment.summary).items() if isinstance(value, float)}
        shown = {name: value for name, value in shown.items() if not name.startswith("_")}
        logger.experiment.finish()
    print({name: round(value, 4) for name, value in sorted(shown.items())})
    return shown


if __name__ == "__main__":
    main()
