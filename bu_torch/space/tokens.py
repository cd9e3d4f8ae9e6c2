"""Features of texts without any training: counts of their tokens, reduced to a few axes."""

from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

from bu_torch.internal.inputs import as_features, check_fitted, check_integer, check_seed, scikit_learn_seed

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

_LEAST_TEXTS = 2  # a token of a single text relates it to no other


class TokenFeatures:
    """Latent semantic features of token ids: weighted counts on a few axes (Deerwester et al. 1990).

    A text is a row of its token counts, log(1 + count), each times log(N / texts that hold the token), scaled to length
    1. The axes are the first right singular vectors of the rows of the training texts. The order of tokens does not
    count, and padding is a token like any other. Tokens in all texts, in only one, or not seen in `fit` are left out.

    Args:
        n_components: Number of axes, >= 1; if there are no more tokens than axes, each token has its own axis.
        seed: Seed of the randomised decomposition, 0 <= seed < 2**64.
    """

    _known: Tensor  # ids, ascending, (V,) int64
    _weights: Tensor  # (V,) float64
    _axes: Tensor  # (V, k) float64

    def __init__(self, n_components: int = 100, seed: int = 0) -> None:
        self.n_components = check_integer("n_components", n_components, 1)
        self.seed = check_seed(seed)

    def fit(self, tokens: Any) -> Self:
        """Find weights and axes of tokens (N, L) or (N, ...); raises TypeError unless they are integers."""
        flat = _as_tokens(tokens).flatten(1).cpu().long()
        self._known = flat.unique()
        n_texts = torch.from_numpy(self._counts(flat).getnnz(axis=0))
        is_known = (n_texts >= _LEAST_TEXTS) & (n_texts < len(flat))
        self._known = self._known[is_known]
        self._weights = (len(flat) / n_texts[is_known].double()).log()
        n_axes = min(self.n_components, len(flat))
        self._axes = torch.eye(len(self._known), dtype=torch.float64, device="cpu")
        if len(self._known) > n_axes:
            from sklearn.decomposition import TruncatedSVD

            found = TruncatedSVD(n_axes, random_state=scikit_learn_seed(self.seed)).fit(self._weighted(flat))
            self._axes = torch.from_numpy(found.components_.T.copy()).double()
        return self

    def transform(self, tokens: Any) -> Tensor:
        """Features (n, k) of texts (n, ...), float32, on their device; zeros for a text without a known token."""
        check_fitted(self, "_axes")
        tokens = _as_tokens(tokens)
        flat = tokens.flatten(1).cpu().long()
        if not len(self._known):
            return torch.zeros(len(flat), 1, device=tokens.device)
        return torch.from_numpy(self._weighted(flat) @ self._axes.numpy()).float().to(tokens.device)

    def _counts(self, flat: Tensor) -> "csr_matrix":
        """Counts of known tokens, (n, V)."""
        from scipy.sparse import csr_matrix

        places = torch.searchsorted(self._known, flat).clamp(max=len(self._known) - 1)
        is_known = self._known[places] == flat
        rows, columns = is_known.nonzero()[:, 0].numpy(), places[is_known].numpy()
        return csr_matrix((np.ones(len(rows)), (rows, columns)), (len(flat), len(self._known)))  # adds up duplicates

    def _weighted(self, flat: Tensor) -> "csr_matrix":
        """Weighted counts of known tokens, rows of length 1, (n, V)."""
        from sklearn.preprocessing import normalize

        return normalize(self._counts(flat).log1p().multiply(self._weights.numpy()).tocsr())


def _as_tokens(tokens: Any) -> Tensor:
    tokens = as_features(tokens, "tokens", keep_integers=True)
    check_tokens(tokens)
    return tokens


def check_tokens(tokens: Tensor, name: str = "tokens") -> None:
    """Raise unless these are integers."""
    if tokens.is_floating_point() or tokens.is_complex():
        raise TypeError(f"`{name}` must be token ids, integers as `nn.Embedding` takes them, got {tokens.dtype}.")
