"""Beside what else a Lightning user has: schedulers on our keys, the command line."""

import sys

import lightning.pytorch as pl
import pytest
import torch
from problems import Classifier, blobs, loader, trainer

from bu_torch.callbacks import BoundaryUncertaintyMonitor, BoundaryUncertaintyStopping


def test_a_plateau_scheduler_sees_the_value_of_the_same_epoch(tmp_path):
    seen = []

    class Plateau(torch.optim.lr_scheduler.ReduceLROnPlateau):
        def step(self, metrics, epoch=None):
            seen.append(float(metrics))
            super().step(metrics)

    class Scheduled(Classifier):
        def configure_optimizers(self):
            optimizer = super().configure_optimizers()
            scheduler = Plateau(optimizer, mode="max", patience=0, threshold=10.0, threshold_mode="abs")
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "boundary_uncertainty"}}

    monitor, module = BoundaryUncertaintyMonitor(n_neighbors=20), Scheduled(lr=0.1)
    fit = trainer(tmp_path, monitor, max_epochs=3)
    fit.fit(module, loader(*blobs()))
    assert seen == pytest.approx([entry["boundary_uncertainty"] for entry in monitor.history], rel=1e-6)
    assert fit.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.1 * 0.1**2)  # no epoch beats the first by 10


class Blobs(pl.LightningDataModule):
    def train_dataloader(self):
        return loader(*blobs())


CONFIG = """
trainer:
  max_epochs: 4
  accelerator: cpu
  logger: false
  enable_progress_bar: false
  default_root_dir: {folder}
  callbacks:
    - class_path: bu_torch.BoundaryUncertaintyStopping
      init_args:
        patience: 2
        n_neighbors: 20
        rule: trust_score
        budget: null
        cache: {folder}/cache.npz
"""


def test_the_command_line_builds_it_from_yaml(tmp_path, monkeypatch):
    pytest.importorskip("jsonargparse")
    from lightning.pytorch.cli import LightningCLI

    config = tmp_path / "given.yaml"
    config.write_text(CONFIG.format(folder=tmp_path))
    monkeypatch.setattr(sys, "argv", ["main.py"])
    monkeypatch.chdir(tmp_path)
    cli = LightningCLI(Classifier, Blobs, args=["fit", "--config", str(config), "--trainer.callbacks.patience=3"])
    (stopping,) = [one for one in cli.trainer.callbacks if isinstance(one, BoundaryUncertaintyStopping)]
    assert (stopping.patience, stopping.n_neighbors, stopping.rule, stopping.budget) == (3, 20, "trust_score", None)
    assert len(stopping.history) >= 3
    assert (tmp_path / "cache.npz").exists()
    assert "class_path: bu_torch.BoundaryUncertaintyStopping" in (tmp_path / "config.yaml").read_text()
