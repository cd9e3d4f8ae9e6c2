"""Draw the pictures of the documentation: two moons with every tenth label flipped, and `examples/two_gaussians.py`.

python docs/pictures.py     # writes docs/pictures/*.png, in about half a minute
"""

import argparse
import runpy
from pathlib import Path

import matplotlib
import numpy as np
import torch
from sklearn.datasets import make_moons
from sklearn.svm import SVC
from torch import Tensor, nn

from bu_torch import BoundaryUncertainty, BoundaryUncertaintyStopper
from bu_torch.functional import local_uncertainty, silverman_bandwidth

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap

plt.style.use(Path(__file__).with_suffix(".mplstyle"))
FOLDER = Path(__file__).parent / "pictures"
EXAMPLE = Path(__file__).parents[1] / "examples" / "two_gaussians.py"
BLUE, ORANGE, GREY = "#2a6fbb", "#d9731a", "#9a9a9a"
COLORS = np.array([BLUE, ORANGE])
GRID = (-1.9, 2.9, -1.5, 2.0)


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


def draw_kernel(uncertainty: BoundaryUncertainty, inputs: Tensor, labels: Tensor, machine: SVC, path: Path) -> None:
    """What one cluster counts: a kernel around the boundary, then u of the two counts."""
    chosen = int(((inputs - torch.tensor([0.55, 0.25])) ** 2).sum(dim=1).argmin())
    members = uncertainty.neighbors[chosen]
    values = torch.tensor(machine.decision_function(uncertainty.perturbed_inputs[0].double().numpy()))[members]
    width = float(silverman_bandwidth(values.unsqueeze(0)))
    weights = torch.exp(-((values / width) ** 2) / 2)
    counts = [float(weights[labels[members] == k].sum()) for k in (0, 1)]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained", width_ratios=(3, 2))
    reach = 1.1 * float(values.abs().max())
    axis = np.linspace(-reach, reach, 400)
    left.plot(axis, np.exp(-((axis / width) ** 2) / 2), color=GREY)
    for k in (0, 1):
        at = labels[members] == k
        left.vlines(values[at], 0, weights[at], color=COLORS[k], linewidth=1)
        left.scatter(
            values[at], weights[at], s=22, color=COLORS[k], label=f"class {k}: counts add up to {counts[k]:.1f}"
        )
    left.axvline(0, color="black", linewidth=1)
    left.set(xlabel="F, the difference of two logits (0: on the boundary)", ylabel="how much a member counts")
    left.legend(loc="upper left")
    left.set_ylim(0, 1.35)
    share = np.linspace(0, 1, 201)
    right.plot(share, 1 - abs(2 * share - 1), color="black")
    here = counts[0] / sum(counts)
    u = 1 - abs(2 * here - 1)
    right.scatter([here], [u], s=60, color=BLUE, zorder=3)
    right.annotate(f"this cluster:\n{u:.2f}", (here, u), (9, 0), textcoords="offset points", fontsize=9)
    right.set(xlabel="share of one class in what is counted", ylabel="local uncertainty u", xlim=(0, 1), ylim=(0, 1.05))
    figure.savefig(path)


def draw_boundaries(uncertainty: BoundaryUncertainty, inputs: Tensor, labels: Tensor, path: Path) -> dict[float, float]:
    """Three support vector machines, from too smooth to learnt by heart."""
    new_inputs, new_labels = moons(4000, flipped=0, seed=1)
    gammas = (0.03, 2.0, 300.0)
    figure, axes = plt.subplots(1, len(gammas), figsize=(9, 3), layout="constrained")
    moved, found = uncertainty.perturbed_inputs[0], {}
    for ax, gamma in zip(axes, gammas, strict=True):
        machine = SVC(gamma=gamma).fit(inputs, labels)
        found[gamma] = float(
            uncertainty.score(lambda x, machine=machine: machine.decision_function(x.double().numpy()))
        )
        error = 1 - machine.score(new_inputs, new_labels)
        z = torch.tensor(machine.decision_function(moved.double().numpy()))
        local, counts = local_uncertainty(
            torch.stack((torch.zeros_like(z), z), dim=1), labels, uncertainty.neighbors, uncertainty.bayes_pairs
        )
        boundary(ax, machine)
        ax.scatter(*moved.T, s=2 + 2 * counts, c=local, cmap="Greys", vmin=-0.2, vmax=1, edgecolors=GREY, lw=0.3)
        frame(ax, f"{('too smooth', 'about right', 'learnt by heart')[len(found) - 1]}\nU {found[gamma]:.2f}")
        ax.set_xlabel(f"test error {error:.3f}")
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
    for name, color in (("boundary_uncertainty", BLUE), ("expected_accuracy", ORANGE), ("label_agreement", GREY)):
        lower.plot([check[name] for check in stopper.history], color=color, label=name.replace("_", " "))
    for ax in axes:
        if stopped is not None:
            ax.axvline(kept, color="black", linestyle=":", label=f"kept, {kept}" if ax is upper else None)
            ax.axvline(stopped, color=GREY, linestyle=":", label=f"stop, {stopped}" if ax is upper else None)
        ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    lower.set(xlabel="epoch", ylabel="signal")
    figure.savefig(path)
    return stopper


def draw_together(path: Path, n_samples: int) -> None:
    """Left: U and expected accuracy where a boundary moves. Right: where a part of the Bayes boundary is left out."""
    example = runpy.run_path(str(EXAMPLE))
    cuts = example["measured_cuts"](n_samples, n_cuts=17, seed=0)
    found = example["measured_stripes"](n_samples, seed=0)
    inputs, labels = example["stripes"](n_samples, seed=0)
    figure, axes = plt.subplots(2, 2, figsize=(9, 5), sharex="col", layout="constrained", width_ratios=(5, 4))
    (values, slope), places = axes[:, 0], list(cuts)
    for ax, name, color in ((values, "U", BLUE), (values, "EA", ORANGE), (slope, "slope of EA", ORANGE)):
        ax.plot(places, [row[name] for row in cuts.values()], color=color, marker="o", markersize=3)
    for ax in (values, slope):
        ax.axvline(1, color="black", linestyle=":")
    slope.axhline(0, color=GREY, linewidth=0.8)
    values.set(ylim=(0, 1), ylabel="U and EA")
    values.set_title("one boundary, moved across the overlap")
    values.text(1.65, 0.84, "expected accuracy EA", color=ORANGE, fontsize=9)
    values.text(1.7, 0.45, "boundary uncertainty U", color=BLUE, fontsize=9)
    slope.set(xlabel="place of the boundary, $x_0$", ylabel="change of EA per unit of $x_0$")
    slope.text(1.08, 0.16, "Bayes boundary", fontsize=9)
    grid = torch.linspace(-4.2, 4.2, 421)
    for ax, name in zip(axes[:, 1], ("both parts", "one part"), strict=True):
        classifier = example["STRIPES"][name]
        ax.scatter(*inputs[:1500].T, s=4, c=COLORS[labels[:1500]], linewidths=0)  # more would hide each other
        is_one = classifier(torch.stack((grid, torch.zeros_like(grid)), dim=1)) > 0
        for k, side in ((0, ~is_one), (1, is_one)):
            ax.fill_between(grid, -2.6, 2.6, where=side.numpy(), color=COLORS[k], alpha=0.15, linewidth=0, zorder=0)
        for place in (-1, 1):
            is_drawn = name == "both parts" or place == 1
            ax.axvline(place, color="black", linestyle="-" if is_drawn else ":", linewidth=1.6)
        ax.set(xlim=(-4.2, 4.2), ylim=(-2.6, 2.6), ylabel="$x_1$")
        ax.set_title(f"a boundary with {name}: U {found[name]['U']:.2f}, EA {found[name]['EA']:.2f}")
    ax.set_xlabel("$x_0$")
    figure.savefig(path)


def main(arguments: list[str] | None = None) -> dict[float, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--smoke", action="store_true", help="fewer epochs and samples")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    inputs, labels = moons(300, flipped=0.1, seed=0)
    uncertainty = BoundaryUncertainty().fit(inputs, labels)
    machine = SVC(gamma=2.0).fit(inputs, labels)
    draw_moved(uncertainty, inputs, labels, machine, options.folder / "moved.png")
    draw_kernel(uncertainty, inputs, labels, machine, options.folder / "kernel.png")
    values = draw_boundaries(uncertainty, inputs, labels, options.folder / "boundaries.png")
    draw_curves(inputs, labels, options.folder / "curves.png", epochs=25 if options.smoke else 120)
    draw_together(options.folder / "together.png", n_samples=1000 if options.smoke else 4000)
    for path in sorted(options.folder.glob("*.png")):
        print(path)
    plt.close("all")
    return values


if __name__ == "__main__":
    main()
