"""Early stopping with and without a hold-out set, and no stopping, on noisy digits: test errors on clean labels.

python examples/hold_out.py
"""

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bu_torch import BoundaryUncertaintyStopping

SEED = 0
Batch = tuple[Tensor, Tensor]


class Digits(L.LightningModule):
    """Three layers."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch: Batch, batch_idx: int) -> None:  # for the hold-out set alone
        self.log("val_loss", nn.functional.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def fit(callbacks: list[L.Callback], train: Batch, held_out: Batch | None = None) -> Digits:
    L.seed_everything(SEED, verbose=False)
    model = Digits()
    trainer = L.Trainer(max_epochs=100, accelerator="cpu", callbacks=callbacks, logger=False, enable_progress_bar=False)
    loader = DataLoader(TensorDataset(*train), batch_size=32, shuffle=True)
    trainer.fit(model, loader, held_out and DataLoader(TensorDataset(*held_out), batch_size=32))
    return model


torch.set_num_threads(1)  # enough for a small network
L.seed_everything(SEED, verbose=False)
x, y = (torch.tensor(array) for array in load_digits(return_X_y=True))
x, test_x, y, test_y = train_test_split(x.float() / 16, y, train_size=600, random_state=SEED)
y = torch.where(torch.rand(600) < 0.2, torch.randint(10, (600,)), y)  # label noise
kept = fit([BoundaryUncertaintyStopping()], (x, y))
checkpoint = ModelCheckpoint(monitor="val_loss")
hold_out = fit([EarlyStopping("val_loss", patience=20), checkpoint], (x[:450], y[:450]), (x[450:], y[450:]))
hold_out.load_state_dict(torch.load(checkpoint.best_model_path, weights_only=True)["state_dict"])
for name, model in {"the callback": kept, "a hold-out set": hold_out, "the last epoch": fit([], (x, y))}.items():
    error = (model(test_x).argmax(dim=1) != test_y).float().mean().item()
    print(f"test error of {name}: {error:.3f}")
