"""Confidence sets for the error rate of a linear classifier, from its training samples alone."""

import math
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from bu_torch.functional.checks import check_choice
from bu_torch.internal.inputs import (
    as_flat_features,
    as_labels,
    check_integer,
    check_number,
    check_seed,
)
from bu_torch.papers.cells import CellSearch

Method = Literal["cud", "bootstrap_quantile", "bootstrap_corrected", "kohavi", "yang", "martin", "langford"]

_UNIQUE = 0.632  # share of the samples in a bootstrap draw, 1 - 1 / e
_INNER_DRAWS = 50  # draws for the .632 estimate of one bootstrap draw
_FOLDS = 10
_MOST_TESTED = 1e15
_TIE = 1e-12  # a score of 0, up to rounding, means class 1


class Interval(NamedTuple):
    """Confidence set for an error rate, not clipped to [0, 1]: its point estimate and its ends."""

    center: float
    lower: float
    upper: float


def generalization_interval(
    features: Any,
    labels: Any,
    *,
    method: Method = "cud",
    confidence: float = 0.95,
    n_bootstrap: int = 500,
    n_tested: float | None = None,
    seed: int = 0,
) -> Interval:
    """Confidence set for the error rate of the least-squares linear classifier of these samples.

    Laber and Murphy (2008). The classifier is the sign of x beta, with beta of least squared loss against -1 and 1. No
    intercept is added; for one, pass a column of ones. `"cud"` is their constrained uniform deviation bound: the
    training error plus and minus the quantile of `cud_supremum` over bootstrap draws. The other methods are centred on
    the .632 estimate (Efron, 1983), and the paper shows that each fails on some data:

    - `"bootstrap_quantile"`: quantiles of the .632 estimates of bootstrap draws, each from 50 draws.
    - `"bootstrap_corrected"`: the same, reflected at the estimate.
    - `"kohavi"`: the normal approximation to the error count, solved for the error rate (Kohavi, 1995).
    - `"yang"`: normal, with the standard error of the errors in ten folds of cross-validation.
    - `"martin"`: the posterior under a Beta(1, 1) prior.
    - `"langford"`: binomial inversion (Clopper and Pearson), with a number of errors that is not rounded.

    `"kohavi"`, `"martin"` and `"langford"` treat the estimate as the result of a test set of `n_tested` samples. The
    paper gives the effective sample size n* = 0.632 n in footnote 3 and n - n* in its text on Beta posteriors; the
    appendix that defines the methods is lost (`examples/confidence_tables.py --widths`). Kohavi's interval is that of
    his paper, which fits the printed widths better than the symmetric one in the text. If a draw does not determine
    beta, the fit with the smallest scores is taken, so no method depends on the basis of the features.

    Args:
        features: Columns the classifier is linear in, shape (n, p), n >= 2, tensor or array of numbers, finite.
        labels: Classes, shape (n,), 0 or 1; one of them may be absent.
        method: One of those above.
        confidence: Level of the interval, 0 < confidence < 1.
        n_bootstrap: Bootstrap draws, >= 1.
        n_tested: Size of that test set, > 0 and at most 1e15, need not be whole; None for n* = 0.632 n.
        seed: Seed of the draws, 0 <= seed < 2**64; the global random state is not touched.

    Returns:
        center, lower and upper as floats, not clipped to [0, 1], so that widths can be compared.

    Raises:
        TypeError, ValueError: If an argument has the wrong dtype, shape or values.

    Note: `"cud"` is exact, and exponential at worst; 50 samples with 500 draws take seconds to minutes on one core.

    Example:
        >>> x = torch.linspace(-1, 1, 20)
        >>> interval = generalization_interval(torch.stack((torch.ones(20), x), dim=1), x > 0, n_bootstrap=40)
        >>> interval.center, interval.lower == -interval.upper, 0 < interval.upper < 0.3
        (0.0, True, True)
    """
    check_choice("method", method, sorted(get_args(Method)))
    if not 0 < check_number("confidence", confidence) < 1:
        raise ValueError(f"`confidence` must satisfy 0 < confidence < 1, got {confidence}.")
    check_integer("n_bootstrap", n_bootstrap, 1)
    if n_tested is not None and not 0 < check_number("n_tested", n_tested) <= _MOST_TESTED:
        raise ValueError(f"`n_tested` must be > 0 and at most {_MOST_TESTED:.0e}, got {n_tested}.")
    design, targets = _as_sample(features, labels)
    seed = check_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    draws = _draws(len(targets), n_bootstrap, generator)
    if method == "cud":
        radius = _quantile([_supremum(design, targets, draw) for draw in draws], confidence)
        return _symmetric(_training_error(design, targets), radius)
    center = _estimate_632(design, targets, draws)
    if method == "yang":
        return _symmetric(center, _radius_of_folds(design, targets, confidence, seed))
    if not method.startswith("bootstrap"):
        n = _UNIQUE * len(targets) if n_tested is None else float(n_tested)
        return _as_if_tested(method, center, n, confidence)
    estimates, tail = [], (1 - confidence) / 2
    for draw in _draws(len(targets), n_bootstrap, generator):
        rows = torch.arange(len(targets), device=draw.device).repeat_interleave(draw)
        estimates.append(_estimate_632(design[rows], targets[rows], _draws(len(targets), _INNER_DRAWS, generator)))
    lower, upper = (_quantile(estimates, level) for level in (tail, 1 - tail))
    if method == "bootstrap_corrected":
        lower, upper = 2 * center - upper, 2 * center - lower
    return Interval(center, lower, upper)


def cud_supremum(features: Any, labels: Any, counts: Any) -> float:
    """The supremum of one bootstrap draw in the constrained uniform deviation bound, exactly.

    Laber and Murphy (2008), section 3.1 step 2 and section 4: the maximum over linear classifiers beta of
    |sum (c_i - 1) err_i(beta)| / n times g(n (L(D_b, beta_hat) - L(D_b, beta))), where g(x) = max(0, min(x + 1, 1)),
    beta_hat is the fit to the samples themselves, and L(D_b, .) is the mean squared loss of the draw. (Their section 5
    prints a sum, which would change a_n = n by a factor n.) Classifiers with a sample on their boundary are excluded;
    samples whose features are all 0 are predicted as class 1. Branch and bound as in the paper's section 4, with
    tighter bounds; exact to about 1e-8.

    Arguments and errors are those of `generalization_interval`, with `counts`, the number of times that the draw holds
    each sample, shape (n,), integers >= 0 with sum n. Returns Q, in [0, 1].

    Example:
        >>> x = torch.tensor([[-2.0], [-1.0], [1.0], [2.0]])
        >>> cud_supremum(x, torch.tensor([0, 1, 0, 1]), torch.tensor([1, 0, 1, 2]))
        0.25
    """
    design, targets = _as_sample(features, labels)
    counts = as_labels(counts, len(targets), "counts")
    if int(counts.sum()) != len(targets):
        raise ValueError(f"`counts` must sum to the number of samples, {len(targets)}, got {int(counts.sum())}.")
    return _supremum(design, targets, counts.cpu())


def _as_sample(features: Any, labels: Any) -> tuple[Tensor, Tensor]:
    """Orthonormal columns that span the features (n, r), and targets -1 or 1 (n,); float64 on the CPU."""
    features = as_flat_features(features).cpu().double()
    if len(features) < 2:
        raise ValueError("`features` must hold at least 2 samples, got 1.")
    labels = as_labels(labels, len(features)).cpu()
    if int(labels.max()) > 1:
        raise ValueError(f"`labels` must hold the classes 0 and 1, got {int(labels.max())}.")
    largest = features.abs().amax(dim=0)
    features = features[:, largest > 0] / largest[largest > 0]
    basis, singular, _ = torch.linalg.svd(features / torch.linalg.vector_norm(features, dim=0), full_matrices=False)
    basis = basis[:, singular > max(features.shape) * torch.finfo(torch.float64).eps * singular[:1]].contiguous()
    basis[(features == 0).all(dim=1)] = 0  # exactly, without rounding errors
    return basis, 2.0 * labels.double() - 1


def _draws(n_samples: int, n_draws: int, generator: torch.Generator) -> Tensor:
    """Multiplicities of bootstrap draws, (n_draws, n) int64."""
    drawn = torch.randint(n_samples, (n_draws, n_samples), generator=generator, device=generator.device)
    return torch.zeros_like(drawn).scatter_add_(1, drawn, torch.ones_like(drawn))


def _wrong(design: Tensor, targets: Tensor, counts: Tensor) -> Tensor:
    """Errors of the fits to draws, (n_draws, n) bool; among equally good fits, of the one with the smallest scores."""
    root = counts.double().sqrt().unsqueeze(-1)
    fits = torch.linalg.lstsq(root * design, root * targets.unsqueeze(-1), driver="gelsd").solution
    return ((design @ fits).squeeze(-1) >= -_TIE) != (targets > 0)


def _training_error(design: Tensor, targets: Tensor) -> float:
    return float(_wrong(design, targets, torch.ones_like(targets).unsqueeze(0)).double().mean())


def _estimate_632(design: Tensor, targets: Tensor, counts: Tensor) -> float:
    """Efron's .632 estimate: 0.368 times the training error plus 0.632 times the error on samples left out of draws."""
    is_out = counts == 0
    training = _training_error(design, targets)
    if not is_out.any():
        return training
    left_out = float((_wrong(design, targets, counts) & is_out).sum() / is_out.sum())
    return (1 - _UNIQUE) * training + _UNIQUE * left_out


def _supremum(design: Tensor, targets: Tensor, counts: Tensor) -> float:
    search = CellSearch(design.numpy(), targets.numpy(), counts.double().numpy())
    return float(search.run()) / len(counts)


def _quantile(values: list[float], level: float) -> float:
    """Sample quantile: the smallest value that at least a share `level` of the values do not exceed."""
    place = math.ceil(round(level * len(values), 9))
    return sorted(values)[max(place, 1) - 1]


def _symmetric(center: float, radius: float) -> Interval:
    return Interval(center, center - radius, center + radius)


def _radius_of_folds(design: Tensor, targets: Tensor, confidence: float, seed: int) -> float:
    from scipy.stats import norm
    from sklearn.model_selection import KFold

    n_folds = min(_FOLDS, len(targets))
    tested = torch.zeros(n_folds, len(targets), dtype=torch.bool, device="cpu")
    folds = KFold(n_folds, shuffle=True, random_state=seed % 2**32)  # scikit-learn takes 32 bits
    for is_tested, (_, rows) in zip(tested, folds.split(targets), strict=True):
        is_tested[torch.from_numpy(rows)] = True
    errors = (_wrong(design, targets, ~tested) & tested).sum(dim=1) / tested.sum(dim=1)
    return float(norm.ppf((1 + confidence) / 2)) * (float(errors.double().std()) / math.sqrt(n_folds))


def _as_if_tested(method: Method, center: float, n_tested: float, confidence: float) -> Interval:
    """Interval of an error rate that a test set of this size gave."""
    from scipy.stats import beta, norm

    if method == "kohavi":  # the error rates p with |center - p| <= z sqrt(p (1 - p) / n)
        z = float(norm.ppf((1 + confidence) / 2))
        middle = center + z**2 / (2 * n_tested)
        radius = z * math.sqrt(center * (1 - center) / n_tested + z**2 / (4 * n_tested**2))
        shrink = 1 + z**2 / n_tested
        return Interval(center, (middle - radius) / shrink, (middle + radius) / shrink)
    n_wrong, n_right = center * n_tested, (1 - center) * n_tested
    below, above = (n_wrong, n_right + 1), (n_wrong + 1, n_right)  # parameters of two beta distributions
    if method == "martin":
        below = above = n_wrong + 1, n_right + 1
    tail = (1 - confidence) / 2  # a parameter of 0 gives 0 or 1
    lower = float(beta.ppf(tail, *below)) if below[0] > 0 else 0.0
    upper = float(beta.ppf(1 - tail, *above)) if above[1] > 0 else 1.0
    return Interval(center, lower, upper)
