"""K-means by FAISS: Lloyd's algorithm from given centres."""

import logging

import numpy as np
import torch

_log = logging.getLogger(__name__)


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
