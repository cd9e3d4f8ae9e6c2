"""The command line of Lightning."""

import sys

import lightning.pytorch as pl
import pytest
from problems import Classifier, blobs, loader

from bu_torch.callbacks import BoundaryUncertaintyStopping


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
    given = {"patience": 0, "dirpath": tmp_path / "mine", "filename": "{epoch}"}
    given |= {"save_weights_only": "true", "verbose": "true"}
    options = [f"--trainer.callbacks.{name}={value}" for name, value in given.items()]
    cli = LightningCLI(Classifier, Blobs, args=["fit", "--config", str(config), *options])
    (stopping,) = [one for one in cli.trainer.callbacks if isinstance(one, BoundaryUncertaintyStopping)]
    settings = stopping.settings
    assert (settings.patience, settings.n_neighbors, settings.rule, settings.budget) == (0, 20, "trust_score", None)
    assert (stopping.filename, stopping.save_weights_only, stopping.verbose) == ("{epoch}", True, True)
    assert [path.name for path in (tmp_path / "mine").glob("*.ckpt")] == [f"epoch={stopping.best_epoch}.ckpt"]
    assert len(stopping.history) >= 1
    assert (tmp_path / "cache.npz").exists()
    assert "class_path: bu_torch.BoundaryUncertaintyStopping" in (tmp_path / "config.yaml").read_text()
