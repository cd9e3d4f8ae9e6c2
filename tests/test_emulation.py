"""The emulated device fails where a GPU would."""

import pytest
import torch
from emulation import DEVICE, came_back, emulated


def test_devices_are_not_mixed_and_what_comes_back_is_counted():
    with emulated():
        there = torch.arange(4.0).to(DEVICE)
        here, one = torch.ones(4), torch.tensor(1.0)
        for mix in (
            lambda: there + here,
            lambda: here[there.long()],
            lambda: there.add_(here),
            lambda: torch.stack([there.sum(), one]),
            lambda: there.index_put_((torch.tensor([0, 1]),), here[:2]),
            lambda: torch.randn(3, device=DEVICE, generator=torch.Generator()),
        ):
            with pytest.raises(RuntimeError, match="same device"):
                mix()
        with pytest.raises(TypeError, match="numpy"):
            there.numpy()
        came_back.clear()
        assert float((there + one).sum()) == 10.0  # a scalar may come from the CPU
        there.cpu()
        there[:2].tolist()
        torch.zeros(3).copy_(there[:3])
        torch.equal(there, there)
        assert came_back == [1, 4, 2, 3, 4]
