import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import confidence as oracle
from scipy.special import betainc
from scipy.stats import norm
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import KFold, cross_val_predict

from bu_torch.evaluation import cud_supremum, generalization_interval

METHODS = ("cud", "bootstrap_quantile", "bootstrap_corrected", "kohavi", "yang", "martin", "langford")


def sample(n, p, rng, signal=1.0, is_rounded=False):
    x = rng.normal(size=(n, p))
    x = np.round(x) if is_rounded else x
    y = (signal * x[:, 0] + rng.normal(size=n) > 0).astype(int)
    return x, y, rng.multinomial(n, np.ones(n) / n)


@given(st.integers(0, 2**32), st.integers(2, 7), st.integers(1, 4), st.booleans(), st.sampled_from([0.0, 1.0, 3.0]))
def test_the_supremum_is_that_of_all_patterns_also_where_a_draw_leaves_directions_open(seed, n, p, is_rounded, signal):
    x, y, counts = sample(n, p, np.random.default_rng(seed), signal, is_rounded)
    x[-1] *= n % 2  # a row of zeros
    expected = oracle.supremum_by_patterns(x, 2.0 * y - 1, counts)
    assert cud_supremum(x, y, counts) == pytest.approx(expected, abs=1e-6)


def test_the_set_is_the_training_error_and_the_quantile_of_suprema():
    rng = np.random.default_rng(0)
    x, y, _ = sample(15, 2, rng)
    interval = generalization_interval(x, y, n_bootstrap=200)
    radius = interval.upper - interval.center
    fitted = LinearRegression(fit_intercept=False).fit(x, 2.0 * y - 1)
    assert interval.center == np.mean((fitted.predict(x) >= 0) != y)
    assert interval.center - interval.lower == pytest.approx(radius)
    suprema = np.array([cud_supremum(x, y, rng.multinomial(15, np.ones(15) / 15)) for _ in range(200)])
    assert np.mean(suprema < radius - 1e-6) - 0.03 < 0.95 < np.mean(suprema < radius + 1e-6) + 0.03
    narrow = generalization_interval(x, y, n_bootstrap=200, confidence=0.5)
    assert 0 < narrow.upper - narrow.center < radius


def test_competitors_are_centred_on_the_632_estimate_and_have_normal_or_beta_intervals():
    x, y, _ = sample(24, 3, np.random.default_rng(1))
    cud, *others = (generalization_interval(x, y, method=method, n_bootstrap=100, seed=2) for method in METHODS)
    *_, kohavi, yang, martin, langford = others
    center, lower, upper = kohavi
    assert {interval.center for interval in others} == {center}
    assert center == pytest.approx(oracle.estimate_632(x, 2.0 * y - 1, 400, np.random.default_rng(0)), abs=0.02)
    assert center > cud.center
    for end in (lower, upper):  # an error rate whose count would be that far off
        assert abs(center - end) == pytest.approx(norm.ppf(0.975) * np.sqrt(end * (1 - end) / (0.632 * 24)))
    folds = KFold(10, shuffle=True, random_state=2)
    scores = cross_val_predict(LinearRegression(fit_intercept=False), x, 2.0 * y - 1, cv=folds)
    errors = [np.mean((scores[rows] >= 0) != y[rows]) for _, rows in folds.split(x)]
    radius = norm.ppf(0.975) * np.std(errors, ddof=1) / np.sqrt(10)
    assert yang == pytest.approx((center, center - radius, center + radius))
    # Upper and lower tail of the posterior, and of the binomial distribution, at the ends of the interval.
    wrong, right = 0.632 * 24 * center, 0.632 * 24 * (1 - center)
    assert betainc(1 + wrong, 1 + right, martin[1:]) == pytest.approx([0.025, 0.975])
    assert betainc(wrong, right + 1, langford.lower) == pytest.approx(0.025)  # P(errors >= wrong), lower being the rate
    assert betainc(right, wrong + 1, 1 - langford.upper) == pytest.approx(0.025)  # P(errors <= wrong)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("labels", [[0, 1], [1, 1]])
def test_the_smallest_samples_have_an_interval(method, labels):
    interval = generalization_interval([[1.0], [2.0]], labels, method=method, n_bootstrap=1)
    assert all(type(end) is float for end in interval)
    assert -np.inf < interval.lower <= interval.upper < np.inf
