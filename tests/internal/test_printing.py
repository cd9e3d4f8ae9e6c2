"""Forecasts of a long computation from the pace of its first part."""

import time

import pytest

from bu_torch.internal.printing import Forecast, advance, shown_on, uncounted


class Bar:
    def update(self, n=1):
        pass


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 0.0

    monkeypatch.setattr(time, "perf_counter", lambda: Clock.now)
    return Clock


@pytest.mark.parametrize(("total", "seconds"), [(1000, [20.0]), (400, []), (500, [10.0])])
def test_a_long_computation_is_told_once_by_its_pace(clock, total, seconds):
    found = []
    clock.now = 100.0
    forecast = Forecast({"comparisons": total}, lambda kind, seconds: found.append((kind, seconds)))
    with shown_on(Bar(), forecast):
        for _ in range(8):
            clock.now += 0.5
            advance(25)
            advance()
    advance(25)
    assert found == [("comparisons", pytest.approx(one)) for one in seconds]


def test_passes_count_apart_and_what_is_not_counted_is_no_part_of_the_pace(clock):
    found = []
    forecast = Forecast({"comparisons": 100, "passes": 90}, lambda *one: found.append(one))
    with shown_on(Bar(), forecast):
        with uncounted():
            clock.now = 2.0
            advance(7)
            advance(n_passes=3)
            clock.now = 50.0
        clock.now = 53.0
        advance(20)
    assert found == [("passes", pytest.approx(60.0)), ("comparisons", pytest.approx(15.0))]
