"""The best weights so far, in memory."""

from typing import Any

from torch import Tensor, nn

from bu_torch.internal.shards import gathered, sharded_like


class BestWeights:
    """A copy of the weights at the kept check.

    Attributes:
        epoch: Epoch of that check; None before the first.
        step: Step of that check; None if it is not known.
        weights: A `state_dict` on the CPU, of shards those of this process; empty before the first, and if the model
            was no module.
    """

    def __init__(self) -> None:
        self.epoch: int | None = None
        self.step: int | None = None
        self.weights: dict[str, Any] = {}

    def keep(self, model: object, epoch: int, step: int | None) -> None:
        """Copy the weights of `model`, if it has some, in place of those before."""
        self.epoch, self.step = epoch, step
        state = model.state_dict() if isinstance(model, nn.Module) else {}
        self.weights = {
            name: value.detach().cpu().clone() if isinstance(value, Tensor) else value for name, value in state.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """Epoch, step and weights; shards are put together, so all processes must call this."""
        weights = {name: gathered(value) for name, value in self.weights.items()}
        return {"best_epoch": self.epoch, "best_step": self.step, "best_weights": weights}

    def fitted(self, model: nn.Module) -> dict[str, Any]:
        """The weights as `model.load_state_dict` takes them: in shards where those of the model are."""
        now = model.state_dict()
        return {name: sharded_like(value, now.get(name)) for name, value in self.weights.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        epoch, step = state_dict["best_epoch"], state_dict["best_step"]
        self.epoch = epoch if isinstance(epoch, int) else None
        self.step = step if isinstance(step, int) else None
        self.weights = state_dict["best_weights"]
