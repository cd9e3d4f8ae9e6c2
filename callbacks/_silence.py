"""No log entry of a look at the network: `forward` may log, and a look is no step of training."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from bu_torch.callbacks._lightning import library_of

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer


@contextmanager
def silence(trainer: "Trainer", pl_module: "LightningModule") -> Iterator[None]:
    """Ignore `self.log`, `self.log_dict` and `self.logger` of the module and of those within it.

    Otherwise what `forward` logs would enter the epoch's mean, or be refused in the hook that a check runs in.
    """
    library = library_of(trainer)
    with ExitStack() as stack:
        for part in pl_module.modules():
            if isinstance(part, library.lightning_module):
                own = vars(part)
                stack.callback(own.__setitem__ if "log" in own else own.pop, "log", own.get("log"))
                own["log"] = _ignore
        if loggers := trainer.loggers:
            stack.callback(setattr, trainer, "loggers", loggers)
            trainer.loggers = [library.dummy_logger() for _ in loggers]
        yield


def _ignore(*_: Any, **__: Any) -> None:
    pass
