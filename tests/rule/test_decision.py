"""The decision agrees with Lightning's `EarlyStopping`, check by check."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch.callbacks import EarlyStopping

from bu_torch.rule.rules import Reason, Verdict, decide

NAN, INF = math.nan, math.inf


def stepwise(scores, **settings):
    verdicts = [Verdict()]
    for score in scores:
        verdicts.append(decide(verdicts[-1], score, **settings))
    return verdicts[1:]


def by_lightning(scores, **settings):
    stopping = EarlyStopping("score", mode="max", **settings)
    for score in scores:
        should_stop, _ = stopping._evaluate_stopping_criteria(torch.tensor(score, dtype=torch.float64))
        yield bool(should_stop), stopping.wait_count, float(stopping.best_score)


scores = st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.25, 0.3, 1.0, -1.0, NAN, INF, -INF]), max_size=12)


@given(
    scores=scores,
    patience=st.integers(1, 4),
    min_delta=st.sampled_from([0.0, 0.05, 0.1]),
    threshold=st.sampled_from([None, 0.25]),
    check_finite=st.booleans(),
)
def test_each_verdict_is_lightning_s(scores, patience, min_delta, threshold, check_finite):
    settings = {"patience": patience, "min_delta": min_delta, "stopping_threshold": threshold}
    own = stepwise(scores, **settings, check_finite=check_finite)
    theirs = by_lightning(scores, **settings, check_finite=check_finite)
    assert [(one.should_stop, one.wait, one.best) for one in own] == list(theirs)


@pytest.mark.parametrize(
    ("scores", "settings", "stops_at", "reason"),
    [
        ([0.1, 0.2, 0.2, 0.2], {"patience": 2}, 3, Reason.PATIENCE_EXHAUSTED),
        ([0.1, 0.2, 0.3, 0.4], {"patience": 2}, None, None),
        ([0.1, 0.15, 0.19, 0.25], {"patience": 2, "min_delta": 0.1}, 2, Reason.PATIENCE_EXHAUSTED),
        ([0.1, NAN], {"patience": 5}, 1, Reason.NON_FINITE_METRIC),
        ([0.1, NAN, 0.05], {"patience": 2, "check_finite": False}, 2, Reason.PATIENCE_EXHAUSTED),
        ([0.1, 0.6, 0.7], {"patience": 5, "stopping_threshold": 0.5}, 1, Reason.STOPPING_THRESHOLD),
        ([0.5, 0.5], {"patience": 5, "stopping_threshold": 0.5}, None, None),
    ],
)
def test_when_and_why_it_stops(scores, settings, stops_at, reason):
    verdicts = stepwise(scores, **settings)
    stops = [(place, verdict.reason) for place, verdict in enumerate(verdicts) if verdict.should_stop]
    assert (stops[0] if stops else (None, None)) == (stops_at, reason)


def test_training_that_goes_on_is_told_to_stop_until_it_improves():
    verdicts = stepwise([0.5, 0.4, 0.4, 0.4, 0.6], patience=2)
    assert [verdict.should_stop for verdict in verdicts] == [False, False, True, True, False]
