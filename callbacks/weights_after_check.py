"""Weights that change between a check and the end of its hook, where the file is written that is to hold them."""

import torch
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch import nn
from torch.nn.parameter import is_lazy

from bu_torch.internal.shards import local

_MOST = 3  # kept checks that are watched: what changes weights then does so again


class WeightsAfterCheck:
    """Compares the weights that are kept with those that a check measured, and warns once if they differ."""

    def __init__(self) -> None:
        self._n_watched = 0
        self._measured: dict[str, float] = {}

    def remember(self, module: nn.Module) -> None:
        """Take the weights of a check."""
        self._measured = _sums_of(module) if self._n_watched < _MOST else {}

    def compare(self, module: nn.Module) -> None:
        """Take the weights that are about to be saved for that check."""
        measured, self._measured = self._measured, {}
        if not measured:
            return
        self._n_watched += 1
        now = _sums_of(module)
        names = [name for name, total in measured.items() if now.get(name, total) != total]
        if names:
            self._n_watched = _MOST
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            rank_zero_warn(
                f"`{names[0]}`{more} changed between a check and the end of its epoch or batch, in a hook of the module"
                " or of a callback listed after this one. The kept weights are not the measured ones."
                " Change weights in `on_train_epoch_start`, or list that callback first."
            )


def _sums_of(module: nn.Module) -> dict[str, float]:
    """One number for each parameter and buffer, by name, 0 for NaN; waits for the device once."""
    found = {
        name: local(one)
        for name, one in (*module.named_parameters(), *module.named_buffers())
        if not (is_lazy(one) or one.is_meta) and one.layout == torch.strided and type(local(one)) is torch.Tensor
    }
    sums = [(torch.view_as_real(one) if one.is_complex() else one).sum() for one in found.values()]
    if not sums:
        return {}
    totals = torch.stack([one.to(sums[0].device, torch.float64) for one in sums]).nan_to_num()
    return dict(zip(found, totals.tolist(), strict=True))
