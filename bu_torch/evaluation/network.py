"""The confidence set of a kept network whose last linear layer is refitted."""

from typing import Any

import torch
from torch import nn

from bu_torch.evaluation.confidence import Interval, Method, generalization_interval
from bu_torch.internal.inputs import check_integer
from bu_torch.space.features import principal_components
from bu_torch.space.layers import LayerFeatures


def network_interval(
    model: nn.Module,
    inputs: Any,
    labels: Any,
    *,
    n_components: int | None = 5,
    method: Method = "cud",
    confidence: float = 0.95,
    n_bootstrap: int = 500,
    seed: int = 0,
) -> Interval:
    """Confidence set for the error rate of a network whose last linear layer is refitted to these samples.

    Beyond Laber and Murphy (2008): `generalization_interval` on what the last linear layer receives, its leading
    principal components beside a column of ones. For small two-class sets that the other layers were not trained on, as
    for a network taken from elsewhere: those layers count as given. On the samples that trained them the set is far too
    low: it covered 0 to 95 % on three tables, 50 samples each, and 95 to 100 % on samples that the network had not
    seen. Its width grows with the number of components.

    Args:
        model: A network that ends in an `nn.Linear`, read as by `LayerFeatures`.
        inputs: Inputs of the network, shape (n, ...), tensor or array of numbers, finite.
        labels: Classes, shape (n,), 0 or 1.
        n_components: Principal components of the features, >= 1, fewer if the samples have no more; None for the
            features themselves.
        method: As in `generalization_interval`, and so are the arguments that follow.
        confidence: Level of the interval, 0 < confidence < 1.
        n_bootstrap: Bootstrap draws, >= 1.
        seed: Seed of the draws, 0 <= seed < 2**64.

    Returns:
        center, lower and upper as floats, not clipped to [0, 1].

    Raises:
        ValueError: If no linear layer is called; as in `generalization_interval`.
        TypeError: If an argument has the wrong type.

    Example:
        >>> x = torch.linspace(-1, 1, 20).unsqueeze(1)
        >>> model = nn.Sequential(nn.Identity(), nn.Linear(1, 2))
        >>> network_interval(model, x, x[:, 0] > 0, n_bootstrap=20).center
        0.0
    """
    features = LayerFeatures(model).transform(inputs).cpu().double()
    if n_components is not None:
        check_integer("n_components", n_components, 1)
        mean, components = principal_components(features, min(n_components, *features.shape), exact=True)
        features = (features - mean) @ components.T
    columns = torch.cat((torch.ones(len(features), 1, dtype=torch.float64), features), dim=1)
    return generalization_interval(
        columns, labels, method=method, confidence=confidence, n_bootstrap=n_bootstrap, seed=seed
    )
