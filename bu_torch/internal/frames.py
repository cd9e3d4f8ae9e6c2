"""Frames and columns of pandas as arrays of numbers, by the methods that they have: pandas is not imported."""

from typing import Any

import numpy as np


def is_of_pandas(value: Any) -> bool:
    """True for a frame, a column, or anything else that can tell which of its values are missing."""
    return hasattr(value, "isna") and hasattr(value, "to_numpy")


def as_numbers(value: Any, name: str) -> np.ndarray:
    """Array of a frame (n, d), in a type that holds all columns, or of a column (n,).

    Raises:
        TypeError: If a column holds text, times or other objects; names the column and the remedy.
        ValueError: If values are missing; the same.
    """
    if not hasattr(value, "columns"):
        return _numbers(value, name, getattr(value, "name", None), n_dimensions=1)
    columns = [_numbers(value.iloc[:, place], name, label) for place, label in enumerate(value.columns)]
    return np.column_stack(columns) if columns else np.empty(value.shape)


def _numbers(column: Any, name: str, label: Any, n_dimensions: int = 2) -> np.ndarray:
    where = "" if label is None else f" in column {label!r:.100}"
    missing = np.asarray(column.isna())
    present = column[~missing] if missing.any() else column
    array: np.ndarray = present.to_numpy(getattr(column.dtype, "numpy_dtype", None))  # nullable types name their own
    if array.dtype.kind not in "biufc":
        kind, advice = advice_on(array, n_dimensions)
        raise TypeError(f"`{name}` must hold numbers, got {kind}{where} (dtype {column.dtype}). {advice}")
    if missing.any():
        advice = "Leave these rows out" if n_dimensions == 1 else "Impute them with scikit-learn's `SimpleImputer`"
        raise ValueError(
            f"`{name}` must have no missing values, got {missing.sum()} among {len(missing)}{where}. {advice}."
        )
    return array


def advice_on(values: Any, n_dimensions: int | None = None) -> tuple[str, str]:
    """Name the objects that stand where numbers should, and the way to turn them into numbers; "" if none is known."""
    array = np.asarray(values, dtype=None if isinstance(values, np.ndarray) else object)
    kind = array.dtype.kind
    if kind in "US" or (kind == "O" and any(isinstance(value, str) for value in array.ravel()[:1000])):
        encoder = "`LabelEncoder`" if (n_dimensions or array.ndim) == 1 else "`OneHotEncoder`"
        return "text", f"Encode it with scikit-learn's {encoder}."
    if kind in "mM":
        return "dates or times", "Count their days or seconds from a start."
    is_array = isinstance(values, np.ndarray) and kind == "O"
    return "objects", "If they are numbers, convert them with `astype(float)`." if is_array else ""
