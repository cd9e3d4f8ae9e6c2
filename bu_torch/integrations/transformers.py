"""Early stopping and the best model for Hugging Face's `Trainer`, without an evaluation set."""

import inspect
import math
import warnings
from pathlib import Path
from typing import Any, Unpack

import torch
from torch.utils.data import DataLoader, IterableDataset

from bu_torch.integrations.loaders import conclude, make_stopper, missing
from bu_torch.internal.inputs import check_integer
from bu_torch.internal.output import printable, whole_file
from bu_torch.run.reader import TorchProcesses
from bu_torch.run.settings import Settings, SettingsDict
from bu_torch.run.weights import optimizers_in_eval_mode, optimizers_in_training
from bu_torch.samples.samples import Keys

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise missing("transformers", "transformers accelerate", error) from error


class BoundaryUncertaintyCallback(TrainerCallback):
    """Stop a `Trainer` when the decision boundary gets no better, and load the best model at the end.

    It reads training samples with the `Trainer`'s own collator, augmented ones again and again. Each checkpoint holds
    its state, so that `train(resume_from_checkpoint=True)` continues it. Its numbers are in the `Trainer`'s
    `log_history`, but not in loggers such as W&B. The last check comes at the end of training, even within an epoch.

    Args:
        load_best_model_at_end: Load the weights of the best check when training ends.
        check_steps: Number of optimiser steps from one check to the next; None for the end of each epoch.
        input_key: Key of the inputs in a batch, or a list of keys; None for all that `forward` has arguments for.
        label_key: Key of the classes.
        folder: Folder for the record of the checks; None for no record.
        **settings: As in `bu_torch.BoundaryUncertaintyStopper`: `patience`, `rule`, ...

    Attributes:
        stopper: The `BoundaryUncertaintyStopper` of the training: `history`, `best_epoch`, `stopping_reason`, ...

    Raises:
        ValueError: If an argument is out of range, or samples or weights cannot be read when training begins.
    """

    def __init__(
        self,
        *,
        load_best_model_at_end: bool = True,
        check_steps: int | None = None,
        input_key: str | list[str] | None = None,
        label_key: str = "labels",
        folder: str | Path | None = None,
        **settings: Unpack[SettingsDict],
    ) -> None:
        self.load_best_model_at_end = load_best_model_at_end
        self.input_key, self.label_key = input_key, label_key
        self.check_steps = None if check_steps is None else check_integer("check_steps", check_steps, 1)
        Settings(**settings)  # raises for wrong arguments
        self.options: dict[str, Any] = {**settings, "folder": folder}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._is_over = False
        model, loader = kwargs["model"], kwargs["train_dataloader"]
        dataset: Any = getattr(loader, "dataset", [])
        if args.fsdp or args.deepspeed or isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
            raise ValueError(
                "`Trainer` must have unsharded weights (no FSDP, no DeepSpeed) and a dataset with a length,"
                " no `IterableDataset`."
            )
        inputs, names = [self.input_key] if isinstance(self.input_key, str) else self.input_key, _NamesAlone(model)
        keys = Keys(inputs, self.label_key, names if names.named else model)
        own = getattr(loader, "base_dataloader", loader)
        if own is not loader and args.world_size > 1:  # its batches are only one process's
            sampler, collate = loader.get_sampler(), loader.collate_fn
            own = DataLoader(dataset, args.eval_batch_size, sampler=sampler, collate_fn=collate)
        self.stopper = make_stopper(model, own, keys, **self.options)
        if args.world_size > 1:
            self.stopper.engine.processes = TorchProcesses()
        if state.global_step:
            self._resume(_file(args, state))
        if not state.global_step or self.stopper.history:  # else the model has learnt labels; the first check prepares
            self.stopper.prepare(model)

    def _resume(self, file: Path) -> None:
        try:
            saved = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # torch does not say what a damaged file raises
            said = printable(error).partition(". ")[0]  # torch goes on with how to run code in it
            why = f"{file} cannot be read ({said[:200]}), so this run cannot resume from it"
            warnings.warn(f"{why}: patience and the best epoch start anew.", stacklevel=3)
        else:
            self.stopper.load_state_dict(saved)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        every = self.check_steps
        if state.epoch.is_integer() if every is None else state.global_step % every == 0:
            self._check(state, control, **kwargs)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # Training may end within an epoch, and an epoch may have fewer steps than expected, or an unknown number.
        if self.check_steps is None or control.should_training_stop:
            self._check(state, control, **kwargs)

    def _check(self, state: Any, control: Any, *, model: Any, optimizer: Any = None, **_: Any) -> None:
        """Check unless this step has been checked already, and tell the `Trainer` whether to stop."""
        history, step = self.stopper.history, state.global_step
        if step > (history[-1].get("step", 0) if history else 0):
            with optimizers_in_eval_mode(_unwrapped(optimizer)):
                should_stop = self.stopper.check(model, math.ceil(state.epoch) - 1, step)
            state.log_history.append({**history[-1], "epoch": state.epoch, "step": step})
            should_stop |= control.should_training_stop
            control.should_training_stop = self.stopper.engine.processes.broadcast(should_stop)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero and (file := _file(args, state)).parent.is_dir():
            with whole_file(file) as part:
                torch.save(self.stopper.state_dict(), part)

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if "train_runtime" in (kwargs.get("logs") or {}):  # the last, before `on_train_end`, in which others upload
            self._finish(**kwargs)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._is_over &= not args.load_best_model_at_end  # the `Trainer` has loaded its own best model since
        self._finish(**kwargs)
        self.stopper.release()

    def _finish(self, *, model: Any, optimizer: Any = None, **_: Any) -> None:
        """Load the best weights, once; later ones may be the user's."""
        if self._is_over:
            return
        self._is_over = True
        for one in optimizers_in_training(_unwrapped(optimizer)):
            one.eval()  # as `Trainer.evaluate` will, which must not move the weights that are loaded
        conclude(self.stopper, model if self.load_best_model_at_end else None)


def _unwrapped(optimizer: Any) -> list[Any]:
    """The optimiser out of accelerate's wrapper, in a list; an empty one if there is none."""
    return [] if optimizer is None else [getattr(optimizer, "optimizer", optimizer)]


class _NamesAlone:
    """Function with the named arguments of a model's `forward`: as for the `Trainer`, a `**kwargs` names no column."""

    def __init__(self, model: Any) -> None:
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        signature = inspect.signature(base.forward)
        kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        self.named = [one for one in signature.parameters.values() if one.kind not in kinds]
        self.__signature__ = signature.replace(parameters=self.named)

    def __call__(self) -> None: ...


def _file(args: Any, state: Any) -> Path:
    return Path(args.output_dir, f"checkpoint-{state.global_step}", "boundary_uncertainty.pt")
