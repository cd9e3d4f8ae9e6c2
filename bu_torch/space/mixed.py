"""Features of samples that are numbers and categories at once."""

from typing import Self

import torch
from torch import Tensor

from bu_torch.internal.packing import Packing
from bu_torch.space.patches import pooled
from bu_torch.space.tokens import TokenFeatures

_MOST_CATEGORIES = 100  # the most frequent of each place
_MOST_PLACES = 50  # a longer row is a text


class MixedFeatures:
    """Numbers as they are, images among them pooled, and an indicator for each category.

    Each place counts alike, as in Gower (1971): the indicators of a place have a variance of 1 together, as a number
    has. A long row of indices is a text (`TokenFeatures`), which counts as much as all numbers together.
    """

    def __init__(self, packing: Packing) -> None:
        self.packing = packing
        self._texts: TokenFeatures | None = None
        self._categories: list[Tensor] = []

    def __repr__(self) -> str:  # tells fingerprints apart
        return f"MixedFeatures({self.packing})"

    def fit(self, inputs: Tensor) -> Self:
        """Find the categories of packed inputs (N, D)."""
        rows = self._rows(inputs)
        self._texts, self._categories = None, []
        if rows.shape[1] > _MOST_PLACES:
            self._texts = TokenFeatures().fit(rows)
            return self
        for column in rows.T:
            values, counts = column.unique(return_counts=True)
            self._categories.append(values[counts.argsort(descending=True, stable=True)[:_MOST_CATEGORIES]])
        return self

    def transform(self, inputs: Tensor) -> Tensor:
        """Features (n, k) of packed inputs (n, D), of their dtype."""
        return torch.cat(self._parts(inputs), dim=1)

    def common_scale(self, inputs: Tensor, scale: Tensor) -> Tensor:
        """Scale (k,) of each feature, one for all of a place or a text, from the standard deviation of each."""
        numbers, *others = scale.split([part.shape[1] for part in self._parts(inputs[:1])])
        unit = 1.0 if self._texts is None else max(1, len(numbers)) ** 0.5
        return torch.cat((numbers, *(part.norm().expand(len(part)) / unit for part in others)))

    def _parts(self, inputs: Tensor) -> list[Tensor]:
        """Features of all numbers, and then of each place or of the text."""
        shapes = self.packing.shapes_of_numbers
        columns = inputs[:, : self.packing.n_numbers].split([shape.numel() for shape in shapes], dim=1)
        numbers = [inputs[:, :0]]
        for part, shape in zip(columns, shapes, strict=True):
            is_image = len(shape) == 3
            numbers.append(pooled(part.reshape(len(part), *shape)).flatten(1) if is_image else part)
        rows = self._rows(inputs)
        parts = [torch.cat(numbers, dim=1)]
        if self._texts is not None:
            return [*parts, self._texts.transform(rows).to(inputs.dtype)]
        known = zip(rows.T, self._categories, strict=True)
        return parts + [(column.unsqueeze(1) == categories).to(inputs.dtype) for column, categories in known]

    def _rows(self, inputs: Tensor) -> Tensor:
        """Indices, of rows of equal length the first alone: ids, and not their mask."""
        indices = inputs[:, self.packing.n_numbers :].long()
        return indices[:, : indices.shape[1] // self.packing.n_rows_of_indices]
