"""Approximate nearest neighbours: an inverted file of FAISS, on a few principal axes if these hold the variance."""

from typing import Any

import torch
from torch import Tensor

_VARIANCE = 0.99
_SAMPLE = 50_000  # points from which principal axes are found
_MOST_FEATURES = 1024  # with more features, principal axes take too long
_LISTS, _FEWEST_IN_A_LIST = 4, 20  # number of lists, times sqrt(B); rows in a list
_STEPS, _SAMPLES_OF_A_CENTRE = 10, 25  # for K-means


class InvertedFile:
    """The rows of a base (B, d), float32 on the CPU, in about 4 sqrt(B) lists around the centres of K-means.

    Coordinates are compared on `axes` (a, d); None for all coordinates.
    """

    def __init__(self, base: Tensor, axes: Tensor | None = None) -> None:
        import faiss

        self._axes = axes
        self.n_lists = max(1, min(round(_LISTS * len(base) ** 0.5), len(base) // _FEWEST_IN_A_LIST))
        points = self._coordinates(base)
        self._centres: Any = faiss.IndexFlatL2(points.shape[1])
        self._index: Any = faiss.IndexIVFFlat(self._centres, points.shape[1], self.n_lists)
        self._index.cp.niter, self._index.cp.seed = _STEPS, 0
        self._index.cp.min_points_per_centroid, self._index.cp.max_points_per_centroid = 1, _SAMPLES_OF_A_CENTRE
        self._index.train(points)
        self._index.add(points)

    def nearest_list(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        """Squared distance of queries (q, d), float32, to the centre of the nearest list (q,), and that list (q,)."""
        squared, lists = self._centres.search(self._coordinates(queries), 1)
        return torch.from_numpy(squared[:, 0]), torch.from_numpy(lists[:, 0])

    def search(self, queries: Tensor, k: int, n_probed: int) -> Tensor:
        """Rows of the base (q, k) nearest to queries (q, d) in the `n_probed` nearest lists; -1 if they hold fewer."""
        self._index.nprobe = n_probed
        return torch.from_numpy(self._index.search(self._coordinates(queries), k)[1])

    def _coordinates(self, points: Tensor) -> Any:
        return (points if self._axes is None else points @ self._axes.T).contiguous().numpy()


def few_axes(points: Tensor) -> Tensor | None:
    """Principal axes (a, d) of points (N, d) that hold 99 % of their variance; None if a > d / 2, d > 1024 or d > N."""
    import faiss

    n_features = points.shape[1]
    if n_features > min(_MOST_FEATURES, len(points)):
        return None
    principal = faiss.PCAMatrix(n_features, n_features)
    principal.train(points[:: max(1, len(points) // _SAMPLE)].numpy())
    shares = torch.from_numpy(faiss.vector_to_array(principal.eigenvalues)).double().clamp_(min=0)
    n_axes = 1 + int(torch.searchsorted(shares.cumsum(0), _VARIANCE * shares.sum()))
    axes = torch.from_numpy(faiss.vector_to_array(principal.A)).view(n_features, n_features)
    return axes[:n_axes] if 2 * n_axes <= n_features else None
