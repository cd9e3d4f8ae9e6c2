"""Resuming: a run that was cut short goes on with its history, its patience and its best epoch.

Run `python examples/recipes/resume.py`.
"""

import tempfile

from lightning.pytorch.callbacks import ModelCheckpoint
from shared_lightning import Classifier, loader, trainer

from bu_torch import BoundaryUncertaintyStopping


def main(epochs: int = 30) -> tuple[BoundaryUncertaintyStopping, BoundaryUncertaintyStopping]:
    with tempfile.TemporaryDirectory() as folder:
        first = BoundaryUncertaintyStopping()
        last = ModelCheckpoint(save_last=True)
        trainer(folder, epochs // 2, logger=False, callbacks=[first, last]).fit(Classifier(), loader())

        second = BoundaryUncertaintyStopping()
        run = trainer(folder, epochs, logger=False, callbacks=[second, ModelCheckpoint(save_last=True)])
        run.fit(Classifier(), loader(), ckpt_path=last.last_model_path)
    print(f"first run: {len(first.history)} checks, best epoch {first.best_epoch}")
    print(f"resumed:   {len(second.history)} checks, best epoch {second.best_epoch}; {second.stopping_reason}")
    return first, second


if __name__ == "__main__":
    main()
