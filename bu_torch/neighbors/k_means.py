"""K-means by FAISS: Lloyd's algorithm from given centres, and parts of many points."""

import logging

import numpy as np
import torch
from torch import Tensor

_log = logging.getLogger(__name__)
_STEPS, _SAMPLES_OF_A_CENTRE = 10, 25  # of which centres of many points are found


def log_device(device: torch.device) -> None:
    """Say in the log that K-means of samples of another device leaves it."""
    if device.type != "cpu":
        _log.info("K-means runs on the CPU, not on %s: neither faiss-cpu nor scikit-learn has a kernel there.", device)


def lloyd(points: np.ndarray, centers: np.ndarray, n_steps: int) -> tuple[np.ndarray, float]:
    """Move centres (K, d) to the means of the points (N, d) that are nearest to them, `n_steps` times; both float32.

    Returns the centres, and the sum of squared distances to the nearest of those of the last step but one.
    """
    import faiss

    k_means = faiss.Kmeans(
        points.shape[1],
        len(centers),
        niter=n_steps,
        min_points_per_centroid=1,  # fewer would be warned of on the console
        max_points_per_centroid=len(points),
    )
    k_means.train(points, init_centroids=centers)
    return k_means.centroids, float(k_means.obj[-1])  # type: ignore[index,return-value]


def partition(points: Tensor, n_centres: int) -> tuple[Tensor, Tensor]:
    """Centres (K, d) that K-means finds of some of the points (N, d), and the nearest one of each point (N,), int64."""
    import faiss

    k_means = faiss.Kmeans(
        points.shape[1],
        n_centres,
        niter=_STEPS,
        seed=0,
        min_points_per_centroid=1,
        max_points_per_centroid=_SAMPLES_OF_A_CENTRE,
    )
    k_means.train(points.numpy())
    return torch.from_numpy(k_means.centroids), torch.from_numpy(k_means.assign(points.numpy())[1])
