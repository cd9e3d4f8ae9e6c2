"""One run, two loggers of Lightning: CSV, and TensorBoard with a tab of its own.

Run `python examples/recipes/loggers.py`, then `tensorboard --logdir examples/runs/loggers`.
"""

import csv
from pathlib import Path

from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from shared_lightning import Classifier, loader, trainer

from bu_torch import BoundaryUncertaintyStopping

RUNS = Path(__file__).parents[1] / "runs" / "loggers"


def main(folder: Path = RUNS, epochs: int = 30) -> tuple[list[dict[str, str]], Path]:
    loggers = [CSVLogger(folder, name="csv"), TensorBoardLogger(folder, name="tensorboard")]
    stopping = BoundaryUncertaintyStopping()
    trainer(str(folder), epochs, logger=loggers, callbacks=[stopping]).fit(Classifier(), loader())
    with Path(loggers[0].log_dir, "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["boundary_uncertainty"]]
    print(f"columns: {', '.join(sorted(rows[0]))}")
    print(f"{len(rows)} epochs; the record of the checks: {stopping.record_path}")
    return rows, Path(loggers[1].log_dir)


if __name__ == "__main__":
    main()
