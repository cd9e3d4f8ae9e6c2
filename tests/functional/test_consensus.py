import statistics

import pytest
import torch

from bu_torch.functional import standardized_gain, standardized_standing


def test_agrees_with_the_definition(dtype, device):
    signals = torch.randn(30, 3, dtype=torch.float64).to(dtype)
    rows = signals.tolist()
    for kept in (0, 7, 29):
        gains = [(rows[-1][s] - rows[kept][s]) / statistics.pstdev(row[s] for row in rows) for s in range(3)]
        found = standardized_gain(signals.to(device), kept)
        assert found.dtype == dtype
        assert found.device.type == device.type
        assert float(found) == pytest.approx(sum(gains) / 3, abs=1e-5)


def test_units_of_the_signals_do_not_matter():
    signals = torch.randn(20, 3, dtype=torch.float64)
    other = signals * torch.tensor([1e-3, 1.0, 1e5]) + torch.tensor([5.0, -2.0, 0.0])
    torch.testing.assert_close(standardized_gain(other, 4), standardized_gain(signals, 4))


def test_a_signal_that_never_moved_says_nothing():
    signals = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    assert standardized_gain(signals, 0) == 1.0
    assert standardized_gain(signals[:, :1], 0) == 0.0
    assert standardized_gain(signals[:1], 0) == 0.0


def test_rounding_is_no_movement():
    column = torch.full((9,), 0.7, dtype=torch.float64)
    column[4:] = torch.nextafter(column[4:], torch.tensor(1.0, dtype=torch.float64))
    assert standardized_gain(column.unsqueeze(1), 0) == 0.0


def test_nan_stays_nan():
    assert standardized_gain(torch.tensor([[0.0, 1.0], [float("nan"), 2.0]]), 0).isnan()


@pytest.mark.parametrize(
    ("signals", "kept", "message"),
    [
        (torch.zeros(3), 0, r"`signals` must have shape \(T, S\)"),
        (torch.zeros(0, 3), 0, r"`signals` must have shape \(T, S\)"),
        (torch.zeros(3, 2), 3, r"`kept` must be in \[0, 3\), got 3"),
        (torch.zeros(3, 2), -1, r"`kept` must be in \[0, 3\), got -1"),
    ],
)
def test_bad_arguments_are_named(signals, kept, message):
    with pytest.raises(ValueError, match=message):
        standardized_gain(signals, kept)


def test_standings_differ_by_the_gain(dtype, device):
    signals = torch.randn(12, 3, dtype=torch.float64).to(dtype)
    standings = standardized_standing(signals.to(device))
    assert standings.dtype == dtype
    assert standings.device.type == device.type
    assert float(standings.sum()) == pytest.approx(0, abs=1e-5)
    for kept in range(12):
        assert float(standings[-1] - standings[kept]) == pytest.approx(
            float(standardized_gain(signals, kept)), abs=1e-5
        )


def test_standings_say_nothing_of_a_signal_that_never_moved():
    signals = torch.tensor([[0.7, 0.0], [0.7, 1.0], [0.7, 5.0]])
    torch.testing.assert_close(standardized_standing(signals), standardized_standing(signals[:, 1:]) / 2)
    assert standardized_standing(signals[:1]).tolist() == [0.0]
    assert standardized_standing(torch.tensor([[1.0], [float("nan")]])).isnan().all()
    with pytest.raises(ValueError, match="`signals`"):
        standardized_standing(torch.ones(3))
