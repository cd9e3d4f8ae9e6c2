"""`EMAWeightAveraging`: the average is what is measured, what is saved and what is put back.

Run `python examples/recipes/weight_averaging.py`.
"""

import tempfile

import torch
from lightning.pytorch.callbacks import EMAWeightAveraging
from shared import test_error
from shared_lightning import Classifier, loader, trainer

from bu_torch import BoundaryUncertaintyStopping


def main(epochs: int = 100) -> tuple[BoundaryUncertaintyStopping, Classifier, dict[str, torch.Tensor]]:
    stopping, module = BoundaryUncertaintyStopping(patience=20), Classifier()
    with tempfile.TemporaryDirectory() as folder:
        callbacks = [stopping, EMAWeightAveraging(decay=0.95)]
        trainer(folder, epochs, logger=False, callbacks=callbacks).fit(module, loader())
        saved = torch.load(stopping.best_model_path, weights_only=True)["state_dict"]
    print(stopping.stopping_reason)
    print(f"test error of the kept average: {test_error(module):.3f} (epoch {stopping.best_epoch})")
    return stopping, module, saved


if __name__ == "__main__":
    main()
