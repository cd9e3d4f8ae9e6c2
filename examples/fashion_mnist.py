"""A conv net on Fashion-MNIST that stops without validation data.

5000 labelled images, all of them for training, and 10,000 to see afterwards what was kept. The plain call moves each
image toward images near it, and chooses the space in which they are near. `--backbone` takes the features that a frozen
torchvision network gives (Ha et al. 2021, section 4.2.2, foresee that). Last comes the trust score beside confidence
(Jiang et al. 2018, section 5.3), by layers of the network that was kept. Needs the extra `vision`.

    python examples/fashion_mnist.py --root data
    python examples/fashion_mnist.py --root data --backbone resnet18 --weights DEFAULT
"""

import argparse
from pathlib import Path

import lightning as L
import torch
from sklearn.decomposition import PCA
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset
from torchvision import models
from torchvision.datasets import FakeData, FashionMNIST
from torchvision.transforms import ToTensor

from bu_torch import BoundaryUncertaintyStopping, LayerFeatures, TrustScore
from bu_torch.evaluation import suspicious_precision

FOLDER = Path(__file__).parent
N_TRAINING = 5000


class ConvNet(L.LightningModule):
    """28 x 28 pixels to 10 kinds of clothing."""

    def __init__(self, n_classes: int = 10) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(32 * 7 * 7, 64), nn.ReLU(), nn.Linear(64, n_classes),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class ErrorsOnTest(L.Callback):
    """Test error of each epoch, to look at afterwards; nothing decides by it."""

    def __init__(self, loader: DataLoader) -> None:
        self.loader = loader
        self.of_epoch: list[float] = []

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.of_epoch.append(self.of(pl_module))

    @torch.no_grad()
    def of(self, module: nn.Module) -> float:
        module.eval()
        wrong = [(module(x).argmax(dim=1) != y).float().sum() for x, y in self.loader]
        module.train()
        return float(torch.stack(wrong).sum()) / len(self.loader.dataset)  # type: ignore[arg-type]


class Backbone(nn.Module):
    """Features of a torchvision network without its last layer, for grey images of any size."""

    def __init__(self, name: str, weights: str | None) -> None:
        super().__init__()
        self.network = models.get_model(name, weights=weights)
        *_, (last, _) = [(key, part) for key, part in self.network.named_children() if isinstance(part, nn.Module)]
        setattr(self.network, last, nn.Identity())
        self.requires_grad_(requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.network(nn.functional.interpolate(x, size=(64, 64), mode="bilinear").expand(-1, 3, -1, -1))


@torch.no_grad()
def detected(module: nn.Module, training: Dataset, test: Dataset) -> dict[str, float]:
    """Share wrong among the least trusted test images, as many as are wrong, by score and space of distances."""
    (x, y), (at, truth) = (
        (torch.stack([image for image, _ in split]), torch.tensor([label for _, label in split]))  # type: ignore
        for split in (training, test)
    )
    module.eval()
    probabilities = torch.cat([module(batch).softmax(dim=1) for batch in at.split(500)])
    predictions = probabilities.argmax(dim=1)
    spaces = {"inputs": (x.flatten(1), at.flatten(1))}
    for name in ("logits", "penultimate"):
        space = LayerFeatures(module, name)
        spaces[name] = (space.transform(x), space.transform(at))
    components = PCA(20, random_state=0).fit(spaces["penultimate"][0])
    spaces["penultimate, 20 components"] = tuple(map(components.transform, spaces["penultimate"]))
    scores = {"confidence": probabilities.amax(dim=1)}
    scores |= {f"trust, {name}": TrustScore().fit(a, y).score(b, predictions) for name, (a, b) in spaces.items()}
    right = predictions == truth
    percentile = [100 * float(right.double().mean())]
    return {name: float(suspicious_precision(score, right, percentile)) for name, score in scores.items()}


def read(options: argparse.Namespace) -> tuple[Dataset, Dataset]:
    if options.smoke:
        return tuple(FakeData(n, (1, 28, 28), 3, ToTensor(), random_offset=n) for n in (120, 60))  # type: ignore
    training, test = (
        FashionMNIST(options.root, train=train, transform=ToTensor(), download=True) for train in (True, False)
    )
    chosen = torch.randperm(len(training), generator=torch.Generator().manual_seed(options.seed))[:N_TRAINING]
    return Subset(training, chosen.tolist()), test


def main(arguments: list[str] | None = None) -> BoundaryUncertaintyStopping:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=FOLDER / "runs", help="where Fashion-MNIST is, or goes")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backbone", metavar="NAME", help="measure distances by this torchvision network")
    parser.add_argument("--weights", help="of the backbone, DEFAULT for torchvision's; random otherwise")
    parser.add_argument("--smoke", action="store_true", help="made-up images with random labels, two epochs")
    options = parser.parse_args(arguments)
    training, test = read(options)
    errors = ErrorsOnTest(DataLoader(test, batch_size=500))
    torch.manual_seed(options.seed)
    module = ConvNet()
    extractor = Backbone(options.backbone, options.weights) if options.backbone else None
    stopping = BoundaryUncertaintyStopping(feature_extractor=extractor, n_neighbors=20 if options.smoke else 40)
    trainer = L.Trainer(
        max_epochs=2 if options.smoke else options.epochs,
        callbacks=[stopping, errors],
        accelerator="cpu",
        default_root_dir=FOLDER / "runs",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(training, batch_size=64, shuffle=True))
    kept, of_epoch = stopping.best_epoch, errors.of_epoch
    if kept is None:
        raise RuntimeError("No epoch was kept: no check was finite.")
    print(f"kept epoch: {kept}")
    print(f"reason: {stopping.stopping_reason}")
    print(f"test error of what was kept: {errors.of(module):.4f}")
    print(f"test error of the last epoch: {of_epoch[-1]:.4f} (epoch {len(of_epoch) - 1})")
    print(f"test error of the best epoch in hindsight: {min(of_epoch):.4f} (epoch {of_epoch.index(min(of_epoch))})")
    print("share wrong among the least trusted test images, as many as are wrong")
    for name, share in detected(module, training, test).items():
        print(f"{name}: {share:.3f}")
    return stopping


if __name__ == "__main__":
    main()
