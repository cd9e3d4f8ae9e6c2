"""Draw the pictures of the documentation, on two moons with every tenth label flipped.

python docs/pictures.py     # writes docs/pictures/*.png, in about half a minute
"""

import argparse
from pathlib import Path

import matplotlib
import numpy as np
import torch
from sklearn.datasets import make_moons
from sklearn.neighbors import KNeighborsRegressor
from sklearn.svm import SVC
from torch import Tensor, nn

from bu_torch import BoundaryUncertainty, BoundaryUncertaintyStopper
from bu_torch.functional import boundary_uncertainty

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.ticker import PercentFormatter

plt.style.use(Path(__file__).with_suffix(".mplstyle"))
FOLDER = Path(__file__).parent / "pictures"
BLUE, ORANGE, GREY = "#2a6fbb", "#d9731a", "#9a9a9a"
COLORS = np.array([BLUE, ORANGE])
GRID = (-1.8, 2.7, -1.4, 1.8)


def moons(n_samples: int, flipped: float, seed: int) -> tuple[Tensor, Tensor]:
    inputs, labels = make_moons(n_samples, noise=0.25, random_state=seed)
    labels = torch.tensor(labels)
    is_flipped = torch.rand(n_samples, generator=torch.Generator().manual_seed(seed)) < flipped
    return torch.tensor(inputs, dtype=torch.float32), torch.where(is_flipped, 1 - labels, labels)


def frame(ax: Axes, title: str) -> None:
    ax.set(xlim=GRID[:2], ylim=GRID[2:], xticks=[], yticks=[], aspect="equal", title=title)
    ax.spines[["top", "right"]].set_visible(True)


def boundary(ax: Axes, machine: SVC, fill: bool = True) -> None:
    x, y = np.meshgrid(np.linspace(*GRID[:2], 300), np.linspace(*GRID[2:], 220))
    z = machine.decision_function(np.column_stack((x.ravel(), y.ravel()))).reshape(x.shape)
    if fill:
        ax.contourf(x, y, z > 0, levels=[-0.5, 0.5, 1.5], cmap=ListedColormap(COLORS.tolist()), alpha=0.13)
    ax.contour(x, y, z, levels=[0], colors="black", linewidths=1.4)


def draw_moved(uncertainty: BoundaryUncertainty, inputs: Tensor, labels: Tensor, machine: SVC, path: Path) -> None:
    """Left: each sample and where it is moved. Right: one cluster of 40."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    moved = uncertainty.perturbed_inputs[0]
    colors = COLORS[labels]
    left.plot(
        *np.stack((inputs.numpy(), moved.numpy()), axis=1).transpose(2, 1, 0), color="black", linewidth=0.6, zorder=1
    )
    left.scatter(*inputs.T, s=9, c=colors, zorder=2)
    left.scatter(*moved.T, s=11, facecolors="white", edgecolors=colors, linewidths=0.8, zorder=3)
    frame(left, "each sample (dot) is moved (ring)\nas far as its nearest neighbour is")
    chosen = int(((inputs - torch.tensor([0.55, 0.25])) ** 2).sum(dim=1).argmin())
    members = uncertainty.neighbors[chosen]
    boundary(right, machine)
    right.scatter(*inputs.T, s=7, c=GREY, alpha=0.6)
    right.scatter(*inputs[members].T, s=20, c=colors[members], edgecolors="black", linewidths=0.4)
    right.scatter(*inputs[chosen], s=120, marker="*", c="black", zorder=3)
    frame(right, "a sample (star), its cluster of 40 (in colour)\nand the boundary of a classifier")
    figure.savefig(path)


def draw_boundaries(inputs: Tensor, labels: Tensor, path: Path) -> dict[float, float]:
    """Three support vector machines over the uncertainty of the labels, and that uncertainty from each one outward."""
    uncertainty = BoundaryUncertainty(n_draws=8).fit(inputs, labels)
    moved, probabilities = uncertainty.perturbed_inputs.flatten(0, 1), uncertainty.probabilities.flatten(0, 1)
    first, second = probabilities.topk(2).values.unbind(dim=1)
    local = (1 - (first - second)).double()
    most = float(boundary_uncertainty(probabilities, probabilities))
    x, y = np.meshgrid(np.linspace(*GRID[:2], 240), np.linspace(*GRID[2:], 176))
    grid = np.column_stack((x.ravel(), y.ravel()))
    nearby = KNeighborsRegressor(25).fit(moved, local)
    shade = np.ma.masked_where(nearby.kneighbors(grid)[0][:, 4] > 0.2, nearby.predict(grid)).reshape(x.shape)
    new_inputs, new_labels = moons(4000, flipped=0, seed=1)
    figure, axes = plt.subplots(2, 3, figsize=(9, 4.6), layout="constrained", height_ratios=(4, 3), sharey="row")
    share = (np.arange(20) + 0.5) / 20
    curve_of = {f"most uncertain first (U {most:.2f})": local.sort(descending=True).values}
    found = {}
    names = {0.03: "too smooth", 2.0: "about right", 300.0: "memorised"}
    for (gamma, name), ax, below in zip(names.items(), *axes, strict=True):
        machine = SVC(gamma=gamma).fit(inputs, labels)
        z = torch.tensor(machine.decision_function(moved.double().numpy()))
        found[gamma] = float(boundary_uncertainty(z, probabilities))
        ax.pcolormesh(x, y, shade, cmap="Greys", vmin=0, vmax=1, linewidth=0, rasterized=True)
        ax.scatter(*inputs.T, s=9, c=COLORS[labels], linewidths=0)
        boundary(ax, machine, fill=False)
        error = 1 - machine.score(new_inputs, new_labels)
        frame(ax, f"{name}\nU {found[gamma]:.2f}, test error {error:.3f}")
        curves = curve_of | {"nearest to this boundary first": local[z.abs().argsort()]}
        for (title, values), color in zip(curves.items(), (GREY, "black"), strict=True):
            below.plot(share, [float(part.mean()) for part in values.tensor_split(20)], color=color, label=title)
        below.fill_between((0, 0.3), (1, 0), color=BLUE, alpha=0.15, linewidth=0, label="how much a sample counts")
        below.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="share of the samples")
        below.xaxis.set_major_formatter(PercentFormatter(1))
    axes[1, 0].set_ylabel("uncertainty of the labels")
    axes[1, 0].legend(loc="upper right", borderaxespad=0)
    axes[0, 0].set_ylabel("dark: the labels are uncertain")
    figure.savefig(path)
    return found


def draw_curves(inputs: Tensor, labels: Tensor, path: Path, epochs: int) -> BoundaryUncertaintyStopper:
    """A network over the epochs: what is measured on training samples, and the test error, which nothing sees."""
    new_inputs, new_labels = moons(4000, flipped=0, seed=1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    stopper = BoundaryUncertaintyStopper(inputs, labels, averaging=None)  # measured is what is drawn
    test, training, stopped = [], [], None
    for epoch in range(epochs):
        for rows in torch.randperm(len(inputs)).split(40):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[rows]), labels[rows]).backward()
            optimizer.step()
        if stopper.check(model) and stopped is None:
            stopped, kept = epoch, stopper.best_epoch
        with torch.no_grad():
            test.append(float((model(new_inputs).argmax(dim=1) != new_labels).float().mean()))
            training.append(float((model(inputs).argmax(dim=1) != labels).float().mean()))
    figure, axes = plt.subplots(3, 1, figsize=(8, 5.6), sharex=True, layout="constrained")
    upper, middle, lower = axes
    upper.plot(test, color="black", label="test error")
    upper.plot(training, color=ORANGE, label="training error")
    upper.set(ylim=(0, None), ylabel="error")
    scores = [check[stopper.score_name] for check in stopper.history]
    middle.plot(scores, color=BLUE, label="the score that decides")
    middle.set(ylim=(np.quantile(scores, 0.05), max(scores) + 0.002), ylabel="score")  # where the largest is seen
    for name, color in (("expected_accuracy", ORANGE), ("boundary_uncertainty", BLUE), ("trust_score", GREY)):
        values = np.array([check[name] for check in stopper.history])
        lower.plot(values / values.max(), color=color, label=name.replace("_", " "))
    for ax in axes:
        if stopped is not None:
            ax.axvline(kept, color="black", linestyle=":", label=f"kept, {kept}" if ax is upper else None)
            ax.axvline(stopped, color=GREY, linestyle=":", label=f"stop, {stopped}" if ax is upper else None)
        ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    lower.set(xlabel="epoch", ylabel="share of its largest", ylim=(0.85, 1.005))
    figure.savefig(path)
    return stopper


def main(arguments: list[str] | None = None) -> dict[float, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--smoke", action="store_true", help="fewer epochs")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    inputs, labels = moons(300, flipped=0.1, seed=0)
    uncertainty = BoundaryUncertainty().fit(inputs, labels)
    machine = SVC(gamma=2.0).fit(inputs, labels)
    draw_moved(uncertainty, inputs, labels, machine, options.folder / "moved.png")
    values = draw_boundaries(inputs, labels, options.folder / "boundaries.png")
    draw_curves(inputs, labels, options.folder / "curves.png", epochs=25 if options.smoke else 120)
    for path in sorted(options.folder.glob("*.png")):
        print(path)
    plt.close("all")
    return values


if __name__ == "__main__":
    main()
