"""K-means where the points are: by FAISS and scikit-learn on the CPU, in torch on an accelerator."""

import math
import warnings
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_BLOCK_ELEMENTS = 2**23  # points x centres at once, 64 MB
_MAX_STEPS, _TOLERANCE = 300, 1e-4  # as in scikit-learn's K-means, the latter times the variance of a feature
_UNIT = 2**52  # integers in place of shares: their running sums depend on no order


def k_means(points: Tensor, k: int, seed: int) -> Tensor:
    """Find the centres (k, d) of points (N, d), as scikit-learn does from one start of k-means++."""
    if points.device.type != "cpu":
        tolerance = _TOLERANCE * float(points.double().var(dim=0, correction=0).mean())
        return _lloyd(points, plus_plus(points, k, seed).unsqueeze(0), _MAX_STEPS, tolerance)[0].squeeze(0)
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = KMeans(n_clusters=k, n_init=1, random_state=seed).fit(points.numpy())
    return torch.as_tensor(model.cluster_centers_)


def plus_plus(points: Tensor, k: int, seed: int) -> Tensor:
    """Choose starting centres (k, d) among points (N, d) by k-means++, the same on each device but for rounding."""
    if points.device.type == "cpu":
        from sklearn.cluster import kmeans_plusplus

        return torch.from_numpy(kmeans_plusplus(points.numpy(), k, random_state=seed)[0])
    random = np.random.RandomState(seed)  # drawn from as scikit-learn does
    first = random.choice(len(points), p=np.full(len(points), 1 / len(points)))
    chosen = [points[first : first + 1]]
    squared = _squared_distances(points, chosen[0])  # (N, 1), to the nearest centre
    for _ in range(k - 1):
        drawn = torch.from_numpy(random.uniform(size=2 + int(math.log(k))) * _UNIT).long().to(points.device)
        shares = squared[:, 0] / squared.sum().clamp(min=torch.finfo(squared.dtype).tiny)
        candidates = points[torch.searchsorted((shares * _UNIT).long().cumsum(0), drawn).clamp(max=len(points) - 1)]
        with_each = torch.minimum(squared, _squared_distances(points, candidates))
        best = with_each.sum(dim=0).argmin(keepdim=True)
        chosen.append(candidates[best])
        squared = with_each[:, best]
    return torch.cat(chosen)


def lloyd(points: Tensor, centers: Tensor, n_steps: int) -> tuple[Tensor, float]:
    """Move centres (K, d) to the means of the points (N, d) that are nearest to them, `n_steps` times; both float32.

    Returns the centres, and the sum of squared distances to the nearest of those of the last step but one.
    """
    if points.device.type != "cpu":
        moved, errors = _lloyd(points, centers.unsqueeze(0), n_steps)
        return moved.squeeze(0), float(errors)
    import faiss

    options = {"min_points_per_centroid": 1, "max_points_per_centroid": len(points)}  # fewer would be warned of
    k_means = faiss.Kmeans(points.shape[1], len(centers), niter=n_steps, **options)
    k_means.train(points.numpy(), init_centroids=centers.numpy())
    return torch.from_numpy(k_means.centroids), float(k_means.obj[-1])  # type: ignore[index]


def errors_of_first(points: Tensor, centers: Tensor, numbers: Sequence[int], n_steps: int) -> list[float]:
    """Sums of squared distances that `lloyd` gives from the first k of the centres (K, d), for each number k."""
    if points.device.type == "cpu":
        return [lloyd(points, centers[:k], n_steps)[1] for k in numbers]
    is_used = torch.arange(len(centers)) < torch.tensor(numbers).unsqueeze(1)
    starts = torch.where(is_used.unsqueeze(2).to(centers.device), centers, math.inf)
    return _lloyd(points, starts, n_steps)[1].tolist()


def _lloyd(points: Tensor, centers: Tensor, n_steps: int, tolerance: float = 0.0) -> tuple[Tensor, Tensor]:
    """Lloyd's algorithm for several sets of centres (S, K, d) at once; those at infinity are none.

    Gives the centres after the last step and the errors (S,) before it. It ends early if centres move no farther than
    the tolerance, the sum of their squares. A centre without points goes to a point that is far from its own. Sums are
    float64 and products of matrices: the same in each run.
    """
    n_sets, k, n_features = centers.shape
    numbers = torch.arange(k, device=points.device)
    errors = torch.empty(0)
    for _ in range(n_steps):
        sums = points.new_zeros(n_sets * k, n_features, dtype=torch.float64)
        counts = points.new_zeros(n_sets * k, 1, dtype=torch.float64)
        found = []
        for block in points.split(max(1, _BLOCK_ELEMENTS // max(n_sets * k, n_features))):
            squared, nearest = _squared_distances(block, centers.flatten(0, 1)).view(-1, n_sets, k).min(dim=2)
            is_member = (nearest.unsqueeze(2) == numbers).flatten(1).double()
            sums += is_member.T @ block.double()
            counts += is_member.sum(dim=0).unsqueeze(1)
            found.append(squared)
        squared, counts = torch.cat(found), counts.view(n_sets, k, 1)
        errors = squared.sum(dim=0)
        is_empty = (counts == 0) & centers[..., :1].isfinite()
        far = squared.topk(k, dim=0).indices.T.gather(1, (is_empty.squeeze(2).cumsum(1) - 1).clamp(min=0))
        means = torch.where(counts > 0, (sums.view_as(centers) / counts).to(centers), centers)
        moved = torch.where(is_empty, points[far], means)
        shift, centers = (moved - centers).square().nansum(), moved
        if float(shift) <= tolerance:
            break
    return centers, errors


def _squared_distances(points: Tensor, centers: Tensor) -> Tensor:
    """Squared distances (N, K), float64, without the product of matrices, which loses small ones."""
    return torch.cdist(points, centers, compute_mode="donot_use_mm_for_euclid_dist").double().square_()
