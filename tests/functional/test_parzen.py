import pytest
import torch
from oracles import proposal2

from bu_torch.functional import silverman_bandwidth


@pytest.mark.parametrize("scale", [1e-30, 0.05, 1.0, 1e4, 1e30])
@pytest.mark.parametrize("members", [2, 3, 5, 40])
def test_agrees_with_numpy(scale, members, dtype, device):
    values = torch.randn(50, members, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(dtype) * scale
    expected = torch.tensor([proposal2.bandwidth(row) for row in values.tolist()], dtype=torch.float64)
    h = silverman_bandwidth(values.to(device))
    assert h.shape == (50,)
    assert h.dtype == dtype
    assert h.device.type == device.type
    torch.testing.assert_close(h.cpu().double() / scale, expected / scale, atol=1e-5, rtol=1e-5)


def test_power_of_m_is_outside_the_minimum():
    """As Silverman has it; the paper's print would give sigma where sigma is the smaller."""
    values = torch.tensor([[-3.0, -3.0, 3.0, 3.0]])
    sigma = values.std()
    assert sigma < 6 / 1.34
    torch.testing.assert_close(silverman_bandwidth(values), (0.9 * sigma * 4**-0.2).reshape(1))


def test_equal_quartiles_give_no_width():
    assert silverman_bandwidth(torch.tensor([[1.0, 1.0, 1.0, 1.0, 9.0]])).tolist() == [0.0]


def test_rows_do_not_see_each_other():
    values = torch.randn(10, 8)
    torch.testing.assert_close(silverman_bandwidth(values)[3:4], silverman_bandwidth(values[3:4]), atol=0, rtol=0)


def test_nan_stays_nan():
    assert silverman_bandwidth(torch.tensor([[0.0, float("nan"), 1.0]])).isnan().all()


@pytest.mark.parametrize(
    ("values", "error"),
    [(torch.zeros(3), ValueError), (torch.zeros(3, 1), ValueError), (torch.zeros(3, 4, dtype=torch.int64), TypeError)],
)
def test_bad_values_are_named(values, error):
    with pytest.raises(error, match="`values` must"):
        silverman_bandwidth(values)
