"""K-means by FAISS on the CPU and in torch on an accelerator."""

import torch
from torch import Tensor

_BLOCK_ELEMENTS = 2**23  # points x centres in a block, 64 MB


def lloyd(points: Tensor, centers: Tensor, n_steps: int) -> tuple[Tensor, float]:
    """Move centres (K, d) to the means of the points (N, d) that are nearest to them, `n_steps` times; both float32.

    Returns the centres, and the sum of squared distances to the nearest centre before the last step.
    """
    if points.device.type != "cpu":
        moved, error = _lloyd(points, centers, n_steps)
        return moved, float(error)
    import faiss

    options = {"min_points_per_centroid": 1, "max_points_per_centroid": len(points)}  # FAISS warns of fewer
    k_means = faiss.Kmeans(points.shape[1], len(centers), niter=n_steps, **options)
    k_means.train(points.numpy(), init_centroids=centers.numpy())
    return torch.from_numpy(k_means.centroids), float(k_means.obj[-1])  # type: ignore[index]


def _lloyd(points: Tensor, centers: Tensor, n_steps: int) -> tuple[Tensor, Tensor]:
    """Lloyd's algorithm in torch: the centres after the last step, and the error before it.

    A centre without points moves to a point that is far from its centre. Sums are matrix products in float64, so the
    result is the same in each run.
    """
    k, n_features = centers.shape
    numbers = torch.arange(k, device=points.device)
    error = torch.empty(0)
    for _ in range(n_steps):
        sums = points.new_zeros(k, n_features, dtype=torch.float64)
        counts = points.new_zeros(k, 1, dtype=torch.float64)
        found = []
        for block in points.split(max(1, _BLOCK_ELEMENTS // max(k, n_features))):
            # A matrix product would lose small distances.
            distances = torch.cdist(block, centers, compute_mode="donot_use_mm_for_euclid_dist")
            squared, nearest = distances.double().square_().min(dim=1)
            is_member = (nearest.unsqueeze(1) == numbers).double()
            sums += is_member.T @ block.double()
            counts += is_member.sum(dim=0).unsqueeze(1)
            found.append(squared)
        squared = torch.cat(found)
        error, is_empty = squared.sum(), counts == 0
        far = points[squared.topk(k).indices[(is_empty.squeeze(1).cumsum(0) - 1).clamp(min=0)]]
        centers = torch.where(is_empty, far, (sums / counts.clamp(min=1)).to(centers))
    return centers, error
