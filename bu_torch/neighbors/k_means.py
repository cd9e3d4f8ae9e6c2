"""K-means where the points are: by FAISS on the CPU, in torch on an accelerator."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

_BLOCK_ELEMENTS = 2**23  # points x centres at once, 64 MB
_CANDIDATES = 16  # for a new centre


def grown(points: Tensor, numbers: Sequence[int], n_steps: int) -> Iterator[tuple[Tensor, float]]:
    """Centres (k, d) of centred points (N, d), and their error as `lloyd` gives it, for each of ascending numbers k.

    The first start from the mean, all others from the centres before. A new centre is the point that lowers the error
    most, of some that are spread by their part in it (as in greedy k-means++, without its random numbers).
    """

    def squares(others: Tensor) -> Tensor:  # (N, k), by a product of matrices
        return torch.addmm(others.square().sum(dim=1), points, others.T, alpha=-2).add_(norms).clamp_(min=0)

    norms = points.square().sum(dim=1, keepdim=True)
    centers = points.mean(dim=0, keepdim=True)
    places = (torch.arange(_CANDIDATES, device=points.device) + 0.5) / _CANDIDATES
    for k in numbers:
        squared = squares(centers).amin(dim=1, keepdim=True)
        for _ in range(k - len(centers)):
            shares = squared.squeeze(1).cumsum(dim=0)
            candidates = points[torch.searchsorted(shares, places * shares[-1]).clamp(max=len(points) - 1)]
            with_each = torch.minimum(squared, squares(candidates))
            best = with_each.sum(dim=0).argmin(keepdim=True)
            centers, squared = torch.cat((centers, candidates[best])), with_each[:, best]
        centers, error = lloyd(points, centers, n_steps)
        yield centers, error


def lloyd(points: Tensor, centers: Tensor, n_steps: int) -> tuple[Tensor, float]:
    """Move centres (K, d) to the means of the points (N, d) that are nearest to them, `n_steps` times; both float32.

    Returns the centres, and the sum of squared distances to the nearest of those of the last step but one.
    """
    if points.device.type != "cpu":
        moved, error = _lloyd(points, centers, n_steps)
        return moved, float(error)
    import faiss

    options = {"min_points_per_centroid": 1, "max_points_per_centroid": len(points)}  # fewer would be warned of
    k_means = faiss.Kmeans(points.shape[1], len(centers), niter=n_steps, **options)
    k_means.train(points.numpy(), init_centroids=centers.numpy())
    return torch.from_numpy(k_means.centroids), float(k_means.obj[-1])  # type: ignore[index]


def _lloyd(points: Tensor, centers: Tensor, n_steps: int) -> tuple[Tensor, Tensor]:
    """Lloyd's algorithm in torch; gives the centres after the last step and the error before it.

    A centre without points goes to a point that is far from its own. Sums are float64 and products of matrices: the
    same in each run.
    """
    k, n_features = centers.shape
    numbers = torch.arange(k, device=points.device)
    error = torch.empty(0)
    for _ in range(n_steps):
        sums = points.new_zeros(k, n_features, dtype=torch.float64)
        counts = points.new_zeros(k, 1, dtype=torch.float64)
        found = []
        for block in points.split(max(1, _BLOCK_ELEMENTS // max(k, n_features))):
            squared, nearest = _squared_distances(block, centers).min(dim=1)
            is_member = (nearest.unsqueeze(1) == numbers).double()
            sums += is_member.T @ block.double()
            counts += is_member.sum(dim=0).unsqueeze(1)
            found.append(squared)
        squared = torch.cat(found)
        error, is_empty = squared.sum(), counts == 0
        far = points[squared.topk(k).indices[(is_empty.squeeze(1).cumsum(0) - 1).clamp(min=0)]]
        centers = torch.where(is_empty, far, (sums / counts.clamp(min=1)).to(centers))
    return centers, error


def _squared_distances(points: Tensor, centers: Tensor) -> Tensor:
    """Squared distances (N, K), float64, without the product of matrices, which loses small ones."""
    return torch.cdist(points, centers, compute_mode="donot_use_mm_for_euclid_dist").double().square_()
