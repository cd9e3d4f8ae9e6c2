"""Hooks of batches that have nothing to do are not called, and come back; those of a subclass always are."""

import pickle

import pytest
from lightning.pytorch.callbacks import LambdaCallback
from problems import fit, scripted

from bu_torch.callbacks import BoundaryUncertaintyStopping
from bu_torch.callbacks.ending import Ending
from bu_torch.callbacks.keeper import Keeper

OF_BATCHES = [f"on_{name}" for name in ("train_batch_start", "before_backward", "after_backward", "train_batch_end")]
OF_BATCHES += ["on_before_zero_grad", "on_before_optimizer_step"]
USED = ["on_train_batch_start", "on_train_batch_end"]


class Counting(BoundaryUncertaintyStopping):
    n_calls = 0

    def on_after_backward(self, *arguments):
        self.n_calls += 1
        super().on_after_backward(*arguments)


def is_called(callbacks):
    return [name for name in OF_BATCHES if any(callable(getattr(one, name)) for one in callbacks)]


@pytest.mark.parametrize("options", [{}, {"enable_checkpointing": False}], ids=str)
@pytest.mark.parametrize(("every_n_train_steps", "later"), [(None, []), (3, USED)])
def test_none_is_called_after_the_first_epoch(tmp_path, options, every_n_train_steps, later):
    def look(trainer, *_):
        seen[trainer.current_epoch] = is_called([one for one in trainer.callbacks if isinstance(one, ours)])

    ours, seen, own = (
        (BoundaryUncertaintyStopping, Keeper, Ending),
        {},
        scripted(every_n_train_steps=every_n_train_steps),
    )
    fit(tmp_path, own, LambdaCallback(on_train_batch_end=look), **options)
    assert seen == {0: USED, 1: later, 2: later}
    assert is_called([own]) == OF_BATCHES


def test_those_of_a_subclass_are_called_and_a_copy_trains_anew(tmp_path):
    copies, own = [], Counting()
    fit(tmp_path, own, LambdaCallback(on_train_epoch_end=lambda *_: copies.append(pickle.dumps(own))))
    again = pickle.loads(copies[1])  # noqa: S301  (our own)
    assert (own.n_calls, again.n_calls, len(again.history)) == (12, 8, 2)
    fit(tmp_path, again)
    assert again.n_calls == 20
    assert [check["epoch"] for check in again.history] == [0, 1, 2]
