"""Other ways to choose an epoch without validation data: what each measures, and where it stops.

The last layer is a logistic regression on the features before it. With the curvature of its loss on all training
samples, the generalised Gauss-Newton matrix, it has a Gaussian posterior, of which two numbers are read: how well the
network would predict each sample without it, and how likely the labels are. Both take the features as given,
although those have been fitted to the same labels.
The others need the distance of the weights from their start, predictions that change, or gradients of single samples.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

PRECISION = 1.0  # of the prior of the leave-one-out estimate
PRECISIONS = tuple(10.0**power for power in range(-2, 4))  # among which the likeliest is chosen
MOST_WEIGHTS = 600  # whose curvature is taken as a whole
Kept = tuple[int, int]  # the kept epoch, and the last epoch that the rule needed


class LastLayer:
    """The last layer of a network, of samples that it was trained on.

    Weights are numbered by class, the intercept last. Where there are more than `MOST_WEIGHTS`, the curvature between
    weights of different classes is taken as zero.

    Args:
        features: What the layer reads, (n, d).
        logits: What it gives, (n, J).
        labels: Classes, (n,).
    """

    def __init__(self, features: Tensor, logits: Tensor, labels: Tensor) -> None:
        ones = features.new_ones(len(features), 1)
        self.features = torch.cat((features, ones), dim=1).double()
        self.logits, self.labels = logits.double(), labels
        self.shares = self.logits.softmax(dim=1)
        n_classes, n_features = logits.shape[1], self.features.shape[1]
        self.is_whole = n_classes * n_features <= MOST_WEIGHTS
        if self.is_whole:  # as one block: sum over samples of (diag(p) - p p') x (f f')
            read = self._times(self.shares).flatten(1)
            of_classes = [(share * self.features).T @ self.features for share in self.shares.T.unsqueeze(2)]
            self.curvature = (torch.block_diag(*of_classes) - read.T @ read).unsqueeze(0)
        else:  # a block for each class
            weights = (self.shares * (1 - self.shares)).T.unsqueeze(2)
            self.curvature = torch.stack([(weight * self.features).T @ self.features for weight in weights])

    def _times(self, of_classes: Tensor) -> Tensor:
        """Products of (n, J) with the features, (n, J, d + 1)."""
        return of_classes.unsqueeze(2) * self.features.unsqueeze(1)

    def _precision(self, of_prior: float) -> Tensor:
        """The inverse covariance of the posterior, in blocks (blocks, weights, weights)."""
        return self.curvature + of_prior * torch.eye(self.curvature.shape[1], dtype=torch.float64)

    def loo_loss(self, precision: float = PRECISION) -> float:
        """Leave-one-out loss by the memory-perturbation equation (Nickl et al. 2023, arXiv 2310.19273).

        Without its sample, the logits would be f + v (p - y): v is their predictive covariance, p the predicted
        probabilities and y the label. The mean cross-entropy of those.

        Args:
            precision: Of the prior of the weights, around what they are.
        """
        residuals = self.shares - nn.functional.one_hot(self.labels, self.shares.shape[1])
        covariances = torch.cholesky_inverse(torch.linalg.cholesky(self._precision(precision)))
        of_blocks = residuals.tensor_split(len(covariances), dim=1)
        shifts = torch.cat([self._shifts(*block) for block in zip(of_blocks, covariances, strict=True)], dim=1)
        return float(nn.functional.cross_entropy(self.logits + shifts, self.labels))

    def _shifts(self, residuals: Tensor, covariance: Tensor) -> Tensor:
        """Predictive covariance times residuals, of the classes of a block (n, classes)."""
        steps = (self._times(residuals).flatten(1) @ covariance).unflatten(1, (residuals.shape[1], -1))
        return (steps * self.features.unsqueeze(1)).sum(dim=2)

    def log_evidence(self, weights: Tensor) -> float:
        """Log marginal likelihood of the labels by Laplace's approximation (Immer et al. 2021, arXiv 2104.04975).

        The prior of the weights is normal around zero, of the likeliest precision among `PRECISIONS`.

        Args:
            weights: Those of the layer, (J, d + 1), the intercepts last.
        """
        loss = float(nn.functional.cross_entropy(self.logits, self.labels, reduction="sum"))
        norm = float(weights.double().square().sum())

        def log_evidence(precision: float) -> float:
            factor = torch.linalg.cholesky(self._precision(precision))
            half_log_det = float(factor.diagonal(dim1=1, dim2=2).log().sum())
            return -loss - precision / 2 * norm + weights.numel() / 2 * math.log(precision) - half_log_det

        return float(max(map(log_evidence, PRECISIONS)))


def read(module: nn.Module, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Logits of inputs, and what the last linear layer reads for them."""
    features: list[Tensor] = []

    def keep(_: nn.Module, given: tuple[Any, ...]) -> None:
        features.append(given[0])

    n_rows = min(2000, max(1, 2**19 // inputs[0].numel()))  # of large images few, whose maps a cache holds
    handle = last_linear(module).register_forward_pre_hook(keep)
    try:
        logits = torch.cat([module(batch) for batch in inputs.split(n_rows)])
    finally:
        handle.remove()
    return logits, torch.cat(features)


def last_linear(module: nn.Module) -> nn.Linear:
    return [layer for layer in module.modules() if isinstance(layer, nn.Linear)][-1]


def measure(module: nn.Module, logits: Tensor, features: Tensor, labels: Tensor) -> dict[str, float]:
    """What `LastLayer` tells of a network that was read at its training samples."""
    if not bool(logits.isfinite().all()):
        return {"loo_loss": math.nan, "log_evidence": math.nan}
    layer, linear = LastLayer(features, logits, labels), last_linear(module)
    weights = torch.cat((linear.weight, linear.bias.unsqueeze(1)), dim=1)
    return {"loo_loss": layer.loo_loss(), "log_evidence": layer.log_evidence(weights)}


def still(distances: list[float], least: float = 0.01, patience: int = 10) -> Kept:
    """Keep the last of so many epochs in a row in which the weights' distance from their start grew by less.

    The growth of an epoch is (d_t - d_{t-1}) / d_{t-1}. As github.com/yjlee22/earlystop has it for the rounds of
    federated learning, with the values of its example.
    """
    n_still = 0
    for epoch in range(1, len(distances)):
        growth = distances[epoch] - distances[epoch - 1]
        n_still = n_still + 1 if growth < least * distances[epoch - 1] else 0
        if n_still == patience:
            return epoch, epoch
    return len(distances) - 1, len(distances) - 1


def label_wave(changes: list[float], width: int = 3) -> Kept:
    """Label Wave (Yuan et al. 2024): the first minimum of the moving average of changed predictions."""
    averages = [float(np.mean(changes[max(1, t - width + 1) : t + 1])) for t in range(1, len(changes))]
    for t in range(1, len(averages)):
        if averages[t] > averages[t - 1]:
            return t, t + 1
    return len(changes) - 1, len(changes) - 1


def first_positive(values: list[float]) -> Kept:
    epoch = next((epoch for epoch, value in enumerate(values) if value > 0), len(values) - 1)
    return epoch, epoch


def evidence(module: nn.Module, samples: tuple[Tensor, Tensor], batch_size: int = 32, n_batches: int = 16) -> float:
    """The quantity of the EB criterion (Mahsereci et al. 2017), which stops SGD where it turns positive.

    1 - B / D sum_k g_k^2 / s_k over the D weights, with g the mean and s the variance of the gradients of the B samples
    of a batch; mean over batches. Weights whose gradients are all equal (dead units) are left out of the D.
    """

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(functional_call(module, parameters, (x.unsqueeze(0),)), y.unsqueeze(0))

    parameters = {name: value.detach() for name, value in module.named_parameters()}
    gradients = vmap(grad(loss), in_dims=(None, 0, 0))
    values = []
    for x, y in list(zip(*(part.split(batch_size) for part in samples), strict=True))[:n_batches]:
        each = torch.cat([value.flatten(1) for value in gradients(parameters, x, y).values()], dim=1)
        variance = each.var(dim=0)
        ratio = (each.mean(dim=0).square() / variance)[variance > 0]
        values.append(1 - len(y) * float(ratio.mean()))
    return float(np.mean(values))
