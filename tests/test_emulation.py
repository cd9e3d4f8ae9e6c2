"""The emulated device fails where a GPU would."""

import pytest
import torch
from emulation import DEVICE, came_back, emulated


def test_devices_are_not_mixed():
    with emulated():
        there = torch.arange(4.0).to(DEVICE)
        here, one, both = torch.ones(4), torch.tensor(1.0), torch.tensor([0, 1])
        for mix in (
            lambda: there + here,
            lambda: here[there.long()],
            lambda: there.add_(here),
            lambda: torch.stack([there.sum(), one]),
            lambda: there.index_put_((both,), here[:2]),
        ):
            with pytest.raises(RuntimeError, match="same device"):
                mix()
        with pytest.raises(TypeError, match="numpy"):
            there.numpy()
        with pytest.raises(RuntimeError, match="generator of the same device"):
            torch.randn(3, device=DEVICE, generator=torch.Generator())
        assert float((there + one).sum()) == 10.0  # a scalar may come from the CPU


def test_what_comes_back_is_counted():
    with emulated():
        there = torch.arange(4.0).to(DEVICE)
        assert (2 * there).sum().device == DEVICE
        assert came_back == []
        there.cpu()
        there.sum().item()
        there[:2].tolist()
        torch.zeros(3).copy_(there[:3])
        torch.equal(there, there)
        assert came_back == [4, 1, 2, 3, 4]
