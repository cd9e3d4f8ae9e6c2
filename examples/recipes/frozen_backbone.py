"""Images: distances among the features of a frozen torchvision backbone, which a head is trained on top of.

The callback moves images in pixels and measures distances among the backbone's features. Weights are an argument: pass
`weights="DEFAULT"` for those that torchvision downloads; None, as the tests do, takes random ones.

    pip install torchvision
    python examples/recipes/frozen_backbone.py
"""

import argparse
import tempfile
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchvision.models import get_model

from bu_torch import BoundaryUncertaintyStopping


def stripes(n_images: int = 240, size: int = 32) -> tuple[Tensor, Tensor]:
    """Noisy images of stripes: across, or upright."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(n_images) % 2
    phase = 6.28 * torch.rand(n_images, 1, 1, generator=generator)
    across = torch.sin(torch.arange(size).view(1, -1, 1) / 2 + phase).expand(-1, size, size)
    images = torch.where(labels.view(-1, 1, 1) == 0, across, across.mT)
    return (images + torch.randn(images.shape, generator=generator)).unsqueeze(1).repeat(1, 3, 1, 1), labels


class Head(L.LightningModule):
    """A linear head on a backbone that is not trained."""

    def __init__(self, backbone: nn.Module, n_features: int) -> None:
        super().__init__()
        self.backbone = backbone.eval().requires_grad_(False)
        self.head = nn.Linear(n_features, 2)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.backbone(images))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def on_train_epoch_start(self) -> None:
        self.backbone.eval()  # BatchNorm keeps its statistics

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.head.parameters(), lr=0.01)


def main(weights: Any = None, epochs: int = 8) -> BoundaryUncertaintyStopping:
    torch.manual_seed(0)
    backbone = get_model("resnet18", weights=weights)
    n_features = backbone.fc.in_features
    backbone.fc = nn.Identity()
    module = Head(backbone, n_features)
    stopping = BoundaryUncertaintyStopping(feature_extractor=module.backbone, max_samples=120, n_draws=1)
    data = DataLoader(TensorDataset(*stripes()), batch_size=40, shuffle=True)
    with tempfile.TemporaryDirectory() as folder:
        trainer = L.Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            default_root_dir=folder,
            callbacks=[stopping],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, data)
    for check in stopping.history:
        print(f"epoch {check['epoch']}: U {check['boundary_uncertainty']:.3f}, votes {check['vote_agreement']:.3f}")
    print(f"kept epoch {stopping.best_epoch}")
    return stopping


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", help="of torchvision: DEFAULT downloads them")
    main(parser.parse_args().weights)
