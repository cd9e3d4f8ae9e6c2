"""MLflow into a local database file.

Run `python examples/recipes/mlflow_local.py`. It needs `pip install mlflow`.
"""

import tempfile

from lightning.pytorch.loggers import MLFlowLogger
from shared_lightning import Classifier, loader, trainer

from bu_torch import BoundaryUncertaintyStopping


def main(epochs: int = 10) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        logger = MLFlowLogger("moons", tracking_uri=f"sqlite:///{folder}/mlflow.db")
        stopping = BoundaryUncertaintyStopping()
        trainer(folder, epochs, logger=logger, callbacks=[stopping]).fit(Classifier(), loader())
        history = logger.experiment.get_metric_history(logger.run_id, "boundary_uncertainty")
    print(f"{len(history)} values of boundary_uncertainty, the last {history[-1].value:.4f}")
    return [metric.value for metric in history]


if __name__ == "__main__":
    main()
