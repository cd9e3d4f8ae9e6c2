import pytest
import torch

from bu_torch.neighbors.graph import nearest_of_groups


def given(dtype=torch.float64, offset=0.0):
    """Groups of other sizes than the blocks, and points of which some are copies of members, or nearly so."""
    generator = torch.Generator().manual_seed(0)
    groups = [offset + torch.randn(size, 5, generator=generator, dtype=torch.float64) for size in (700, 1, 40, 600)]
    copies = torch.cat(groups)[::50]
    near = copies + 1e-6 * torch.randn(copies.shape, generator=generator, dtype=torch.float64)
    others = offset + torch.randn(300, 5, generator=generator, dtype=torch.float64)
    return torch.cat((copies, near, others)).to(dtype), [group.to(dtype) for group in groups]


def by_differences(points, groups):
    return torch.stack([(points.unsqueeze(1) - group).double().norm(dim=2).amin(dim=1) for group in groups], dim=1)


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_distances_are_those_of_all_differences(device, offset):
    points, groups = given(offset=offset)
    found = nearest_of_groups(points.to(device), [group.to(device) for group in groups])
    assert found.dtype == torch.float64
    torch.testing.assert_close(found.cpu(), by_differences(points, groups), rtol=1e-7, atol=0)


def test_single_precision_loses_no_small_distance():
    points, groups = given(torch.float32)
    points[-1] = 1e20  # its square is none of float32
    expected = by_differences(points.double(), [group.double() for group in groups])
    torch.testing.assert_close(nearest_of_groups(points, groups), expected, rtol=1e-7, atol=0)


def test_a_member_far_away_blurs_no_distance():
    points, groups = given()
    groups[1] += 1e9
    torch.testing.assert_close(nearest_of_groups(points, groups), by_differences(points, groups), rtol=1e-7, atol=0)


@pytest.mark.parametrize("unit", [1e-200, 1e200])
def test_squares_neither_overflow_nor_vanish(unit):
    points, groups = given()
    found = nearest_of_groups(points * unit, [group * unit for group in groups])
    torch.testing.assert_close(found / unit, by_differences(points, groups), rtol=1e-7, atol=1e-12)


def test_a_point_does_not_find_the_member_that_is_left_out(device):
    _, groups = given()
    members = torch.cat(groups)
    own = torch.arange(len(members))
    own[::3] = -1
    found = nearest_of_groups(members.to(device), [group.to(device) for group in groups], own.to(device)).cpu()
    first = 0
    for number, group in enumerate(groups):
        distances = (members.unsqueeze(1) - group).norm(dim=2)
        is_out = own.unsqueeze(1) == torch.arange(first, first + len(group))
        expected = distances.masked_fill(is_out, torch.inf).amin(dim=1)
        torch.testing.assert_close(found[:, number], expected, rtol=1e-7, atol=0)
        first += len(group)
    assert int(found[:, 1].isinf().sum()) == int(own[700] == 700)
