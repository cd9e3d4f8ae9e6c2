"""Lightning skips batch hooks that have nothing to do; those of a subclass are always called."""

import pytest
from lightning.pytorch.callbacks import LambdaCallback
from problems import fit, scripted

from bu_torch.callbacks import BoundaryUncertaintyStopping
from bu_torch.callbacks.keeper import Ending, Keeper

USED = ["on_train_batch_start", "on_train_batch_end"]
OTHERS = ["on_before_backward", "on_after_backward", "on_before_zero_grad", "on_before_optimizer_step"]


class Counting(BoundaryUncertaintyStopping):
    n_calls = 0

    def on_after_backward(self, *arguments):
        self.n_calls += 1
        super().on_after_backward(*arguments)


def called(callbacks, names):
    return [name for name in names if any(callable(getattr(one, name)) for one in callbacks)]


@pytest.mark.parametrize("options", [{}, {"enable_checkpointing": False}], ids=str)
@pytest.mark.parametrize(("every_n_train_steps", "later"), [(None, []), (3, USED)])
def test_none_is_called_after_the_first_epoch(tmp_path, options, every_n_train_steps, later):
    def look(trainer, *_):
        callbacks = [one for one in trainer.callbacks if isinstance(one, (BoundaryUncertaintyStopping, Keeper, Ending))]
        seen[trainer.current_epoch] = called(callbacks, USED)

    seen, own = {}, scripted(every_n_train_steps=every_n_train_steps)
    fit(tmp_path, own, LambdaCallback(on_train_batch_end=look), **options)
    assert seen == {0: USED, 1: later, 2: later}
    assert called([own], USED + OTHERS) == USED + OTHERS


def test_those_of_a_subclass_are_called(tmp_path):
    own = Counting()
    fit(tmp_path, own)
    assert own.n_calls == 12
