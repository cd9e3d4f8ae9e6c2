import numpy as np
import pytest
import torch
from oracles import anchors

from bu_torch.functional import cvml_bandwidth, silverman_bandwidth
from bu_torch.papers import bandwidth as module


@pytest.mark.parametrize("bandwidth", ["silverman", "cvml"])
def test_kernel_is_exact_until_the_dtype_ends(bandwidth, dtype, device):
    """Most of a row lies near 0 and sets the width, the others ever farther away."""
    near = torch.linspace(-1, 1, 450, dtype=torch.float64)
    far = torch.linspace(1, 20, 125, dtype=torch.float64)
    gap = torch.cat((near, far)).expand(1, 575).contiguous().to(dtype)
    widths = silverman_bandwidth(gap).unsqueeze(1) if bandwidth == "silverman" else cvml_bandwidth(gap)
    exact = (-0.5 * (gap.double() / widths.double()).square()).exp()
    kernel = module.boundary_kernel(gap.to(device), bandwidth).cpu()
    tiny = torch.finfo(dtype).tiny
    is_large = exact > 10 * tiny
    torch.testing.assert_close(kernel[is_large].double(), exact[is_large], atol=0, rtol=1e-4)
    if bandwidth == "silverman":
        assert 0 < int((kernel == 0).sum()) < 125


class TestCvml:
    @pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
    @pytest.mark.parametrize("members", [2, 3, 10])
    def test_agrees_with_the_thesis_one_value_at_a_time(self, scale, members, dtype, device):
        values = torch.randn(5, members, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(dtype)
        expected = torch.from_numpy(np.array([anchors.cvml_widths(row) for row in values]))
        widths = cvml_bandwidth((values * scale).to(device))
        assert widths.shape == (5, members)
        assert widths.dtype == dtype
        assert widths.device.type == device.type
        torch.testing.assert_close(widths.cpu().double() / scale, expected, atol=1e-5, rtol=1e-4)

    def test_order_and_offset_of_the_values_do_not_matter_and_rows_do_not_see_each_other(self, monkeypatch):
        values = torch.randn(20, 9, dtype=torch.float64)
        widths = cvml_bandwidth(values)
        torch.testing.assert_close(cvml_bandwidth(values.flip(1)).flip(1), widths, atol=1e-12, rtol=1e-9)
        torch.testing.assert_close(cvml_bandwidth(values + 7), widths, atol=1e-9, rtol=1e-6)
        torch.testing.assert_close(cvml_bandwidth(values[3:4]), widths[3:4], atol=1e-12, rtol=1e-12)
        monkeypatch.setitem(module._BLOCK_ELEMENTS, "cpu", 100)
        torch.testing.assert_close(cvml_bandwidth(values), widths, atol=1e-12, rtol=1e-12)
        values[0, 1] = torch.nan
        assert torch.equal(cvml_bandwidth(values).isnan(), values.isnan().any(dim=1, keepdim=True).expand(20, 9))
