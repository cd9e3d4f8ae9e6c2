"""Fine-tuning for a few epochs: checks are made within them, and the best step is kept.

A small network learns the digits 0 to 4, and is fine-tuned on 200 images of the digits 5 to 9. A fifth of their labels
are drawn anew. All of it five times.

    python examples/recipes/fine_tuning.py
"""

import tempfile
from typing import Any

import lightning as L
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bu_torch import BoundaryUncertaintyStopping


class Classifier(L.LightningModule):
    """A backbone and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten()
        )
        self.head = nn.Sequential(nn.Linear(32 * 64, 64), nn.ReLU(), nn.Linear(64, 5))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.backbone(images))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def fit(model: L.LightningModule, images: Tensor, labels: Tensor, *callbacks: L.Callback, **options: Any) -> None:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = L.Trainer(accelerator="cpu", callbacks=list(callbacks), **quiet, **options)
    trainer.fit(model, DataLoader(TensorDataset(images, labels), batch_size=20, shuffle=True))


def run(seed: int, epochs: int) -> dict[str, float]:
    """Test errors of one fine-tuning."""
    L.seed_everything(seed, verbose=False)
    digits = load_digits()
    images, labels = torch.tensor(digits.images[:, None] / 16).float(), torch.tensor(digits.target)
    model = Classifier()
    fit(model, images[labels < 5], labels[labels < 5], max_epochs=3, enable_checkpointing=False)  # "pretrained"

    images, labels = images[labels >= 5], labels[labels >= 5] - 5
    train, test = (images[:200], labels[:200].clone()), (images[200:], labels[200:])
    is_redrawn = torch.rand(200) < 0.2
    train[1][is_redrawn] = torch.randint(5, (int(is_redrawn.sum()),))
    model.head[-1] = nn.Linear(64, 5)
    stopping = BoundaryUncertaintyStopping(every_n_train_steps=5, restore_best_weights=False)
    errors = {}
    with tempfile.TemporaryDirectory() as folder:
        fit(model, *train, stopping, max_epochs=epochs, default_root_dir=folder)
        kept = torch.load(stopping.best_model_path, weights_only=True)["state_dict"]
    for name, weights in {"last": model.state_dict(), "kept": kept}.items():
        model.load_state_dict(weights)
        with torch.no_grad():
            errors[name] = (model(test[0]).argmax(dim=1) != test[1]).float().mean().item()
    print(f"kept step {stopping.best_step} of {stopping.history[-1]['step']}, in epoch {stopping.best_epoch}")
    return errors


def main(epochs: int = 5, runs: int = 5) -> dict[str, float]:
    errors = [run(seed, epochs) for seed in range(runs)]
    means = {name: sum(one[name] for one in errors) / runs for name in ("last", "kept")}
    print(f"mean test error of the last step {means['last']:.3f}, of the kept step {means['kept']:.3f}")
    return means


if __name__ == "__main__":
    main()
