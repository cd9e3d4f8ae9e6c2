"""What a look at a module changes in it without being counted by autograd."""

import pytest
import torch
from torch import nn

from bu_torch.internal.traces import evaluation_mode


class Observer(nn.Module):
    """Writes to what it holds as fused observers of quantisation do on a GPU: no version changes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("largest", torch.zeros(3))

    def forward(self, x):
        version = self.largest._version
        self.largest.data.copy_(x.amax(dim=0))
        assert self.largest._version == version
        return x


def test_values_that_change_uncounted_are_put_back_on_each_device(device):
    module = Observer().to(device)
    version = module.largest._version
    with evaluation_mode(module):
        module(torch.ones(5, 3, device=device))
    assert torch.equal(module.largest.cpu(), torch.zeros(3))
    if device.type != "cpu":  # to write back what may not have changed is no change for autograd
        assert module.largest._version == version


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_observers_of_quantisation_on_a_gpu():
    net = nn.Sequential(nn.Linear(4, 3))
    net.qconfig = torch.ao.quantization.get_default_qat_qconfig("fbgemm")
    module = torch.ao.quantization.prepare_qat(net).cuda()
    module(torch.randn(8, 4, device="cuda"))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with evaluation_mode(module):
        module(100 * torch.randn(8, 4, device="cuda"))
    torch.testing.assert_close(module.state_dict(), before, rtol=0, atol=0)
