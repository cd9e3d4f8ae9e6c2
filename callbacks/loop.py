"""The same decision for a training loop of one's own."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from lightning_utilities.core.rank_zero import rank_zero_warn
from torch import Tensor, nn

from bu_torch._evaluation_mode import device_of, read_logits
from bu_torch._inputs import as_features, as_labels, check_integer
from bu_torch.boundary import Perturbation
from bu_torch.callbacks._budget import count_weights, plan
from bu_torch.callbacks._companions import without_trainer
from bu_torch.callbacks._lightning import MisconfigurationException
from bu_torch.callbacks._training_data import choose_among
from bu_torch.callbacks.monitor import fit_or_load
from bu_torch.callbacks.stopping import BoundaryUncertaintyStopping
from bu_torch.selection import DEFAULT_RULE, RuleName


class BoundaryUncertaintyStopper:
    """Stop a plain PyTorch loop when the decision boundary gets no better, and keep the best epoch's weights.

    Does for a loop of one's own what `BoundaryUncertaintyStopping` does for a trainer: the same measurements, rule,
    patience and record; the best weights are kept in memory.

        stopper = BoundaryUncertaintyStopper(inputs, labels)
        for epoch in range(500):
            train_one_epoch(model)
            if stopper.check(model):
                break
        stopper.restore(model)

    Args:
        inputs: Training inputs, shape (N, ...) as the model takes them, N >= n_neighbors, tensor or array, finite.
        labels: Their classes, shape (N,), integers >= 0, at least two different ones.
        patience: As for `BoundaryUncertaintyStopping`, and so are all arguments that follow but for `folder`.
        min_delta: See `BoundaryUncertaintyStopping`.
        min_delta_mode: See `BoundaryUncertaintyStopping`.
        stopping_threshold: See `BoundaryUncertaintyStopping`.
        check_finite: See `BoundaryUncertaintyStopping`.
        start_from_epoch: See `BoundaryUncertaintyStopping`.
        smoothing: See `BoundaryUncertaintyStopping`.
        rule: See `BoundaryUncertaintyStopping`.
        n_neighbors: See `BoundaryUncertaintyMonitor`.
        n_draws: See `BoundaryUncertaintyMonitor`.
        max_samples: See `BoundaryUncertaintyMonitor`.
        budget: See `BoundaryUncertaintyMonitor`; an epoch is taken to visit each of the N samples once.
        seed: See `BoundaryUncertaintyMonitor`.
        cache: See `BoundaryUncertaintyMonitor`.
        feature_extractor: See `BoundaryUncertaintyMonitor`.
        n_components: See `BoundaryUncertaintyMonitor`.
        perturbation: See `BoundaryUncertaintyMonitor`.
        folder: Where to leave the record of the checks (see `BoundaryUncertaintyMonitor.record_path`); None for none.

    Attributes:
        best_epoch: Number of the kept check, counted as `check` is told; None before the first that counts.
        best_score: The rule's quantity there.
        stopped_epoch: Number of the check that said to stop; None before.
        stopping_reason: Why, in words; "" before.
        history: One dict a check, as for `BoundaryUncertaintyStopping`.
        setup_seconds: Time spent before the first check, in seconds.
        check_seconds: Time spent in checks so far, in seconds.
        record_path: Of the record; "" where there is none.

    Raises:
        ValueError: If an argument is out of range or the samples are not fit for the method.
        TypeError: If the samples are not made of numbers.
    """

    def __init__(
        self,
        inputs: Any,
        labels: Any,
        *,
        patience: int = 20,
        min_delta: float = 0.0,
        min_delta_mode: Literal["abs", "rel"] = "abs",
        stopping_threshold: float | None = None,
        check_finite: bool = True,
        start_from_epoch: int = 0,
        smoothing: float = 0.0,
        rule: RuleName = DEFAULT_RULE,
        n_neighbors: int = 40,
        n_draws: int | None = None,
        max_samples: int | None = None,
        budget: float | None = 0.15,
        seed: int = 0,
        cache: str | Path | None = None,
        feature_extractor: Callable[[Tensor], Any] | None = None,
        n_components: int | None = None,
        perturbation: Perturbation | None = None,
        folder: str | Path | None = None,
    ) -> None:
        try:
            self._callback = BoundaryUncertaintyStopping(
                patience=patience,
                min_delta=min_delta,
                min_delta_mode=min_delta_mode,
                stopping_threshold=stopping_threshold,
                check_finite=check_finite,
                start_from_epoch=start_from_epoch,
                smoothing=smoothing,
                rule=rule,
                n_neighbors=n_neighbors,
                n_draws=n_draws,
                max_samples=max_samples,
                budget=budget,
                seed=seed,
                cache=cache,
                feature_extractor=feature_extractor,
                n_components=n_components,
                perturbation=perturbation,
            )
        except MisconfigurationException as error:
            raise ValueError(str(error)) from error
        self._inputs = as_features(inputs, "inputs", keep_integers=perturbation is not None)
        self._labels = as_labels(labels, len(self._inputs))
        if folder is not None and not isinstance(folder, str | Path):
            raise TypeError(f"`folder` must be a path or None, got {type(folder).__name__}.")
        self._folder = None if folder is None else Path(folder)
        self._start_companions()

    def check(self, model: Callable[[Tensor], Any], epoch: int | None = None) -> bool:
        """Measure the model, keep its weights if they are the best so far, and say whether to stop.

        The first call finds the nearest neighbours. The model is run in eval mode without gradient; its modes and all
        random states are left as they were.

        Args:
            model: Any callable from inputs (n, ...) to logits (n, J), or to an output with `logits`. Weights are kept
                of a `torch.nn.Module` alone.
            epoch: Number of this epoch, larger than the last one's; None counts on from it.

        Returns:
            True where training may end: no epoch was better than the kept one for `patience` checks, or a threshold or
            a value that is not finite ends it. Each later call says so again, until one finds a better epoch.

        Raises:
            ValueError: If the model gives too few outputs, the samples are not fit for the method, or `epoch` is not
                larger than the last.
            TypeError: If the model does not give numbers, or `epoch` is no integer.
        """
        history = self._callback.history
        following = history[-1]["epoch"] + 1 if history else 0
        epoch = following if epoch is None else check_integer("epoch", epoch, 0)
        if epoch < following:
            raise ValueError(f"`epoch` must be larger than that of the last check, {following - 1}, got {epoch}.")
        self._prepare(model)
        started = time.perf_counter()
        self._callback._record({"epoch": epoch, **self._measure(model)})
        score = self._callback.score_of(epoch)
        self._keeper.keep(score, model)
        if score is not None:
            self._stopper.has_stopped = self._stopper.decide(score, epoch)
        self._callback._show(epoch, [])
        self._callback._count(started)
        self._callback.stopping_reason = ""
        if self._stopper.has_stopped:
            self._stopper.stopped_epoch = epoch
            self._callback.stopping_reason = self._callback._own_reason(self._stopper)
        return self._stopper.has_stopped

    def restore(self, model: nn.Module) -> None:
        """Load the kept epoch's weights into the model.

        Raises:
            RuntimeError: If no epoch has been kept, or the kept model was no module.
        """
        if not self._keeper.best_weights:
            raise RuntimeError("There are no weights to restore: no check of a `torch.nn.Module` has counted yet.")
        model.load_state_dict(self._keeper.best_weights)
        self._callback._end(
            self.stopping_reason or "Training ended.", kept_epoch=self.best_epoch, stopped_epoch=self.stopped_epoch
        )

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed loop needs, the kept weights included; plain numbers, strings and tensors."""
        return {
            "checks": self._callback.state_dict(),
            "stopper": self._stopper.state_dict(),
            "keeper": self._keeper.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken.

        With other settings or samples, patience and the best epoch start anew, with a warning.
        """
        self._callback.load_state_dict(state_dict["checks"])
        self._stopper.load_state_dict(state_dict["stopper"])
        self._keeper.load_state_dict(state_dict["keeper"])

    @property
    def best_epoch(self) -> int | None:
        return self._callback.best_epoch

    @property
    def best_score(self) -> float | None:
        return self._callback.best_score

    @property
    def stopped_epoch(self) -> int | None:
        return self._callback.stopped_epoch

    @property
    def stopping_reason(self) -> str:
        return self._callback.stopping_reason

    @property
    def history(self) -> list[dict[str, Any]]:
        return self._callback.history

    @property
    def setup_seconds(self) -> float:
        return self._callback.setup_seconds

    @property
    def check_seconds(self) -> float:
        return self._callback.check_seconds

    @property
    def record_path(self) -> str:
        return self._callback.record_path

    def _start_companions(self) -> None:
        self._stopper, self._keeper = without_trainer(self._callback)
        self._callback._stopper, self._callback._keeper = self._stopper, self._keeper

    def _prepare(self, model: object) -> None:
        callback = self._callback
        if callback._signals is not None:
            return
        started = time.perf_counter()
        if callback._plan is None:
            callback._plan = plan(
                len(self._inputs),
                len(self._inputs),
                count_weights(model) if isinstance(model, nn.Module) else 0,
                budget=callback.budget,
                n_draws=callback.n_draws,
                max_samples=callback.max_samples,
                n_neighbors=callback.n_neighbors,
            )
        made = callback._plan
        data = choose_among(self._inputs, self._labels, lambda n_training: made.n_samples, callback.seed)
        signals = callback._signals_of(made.n_draws)
        fit_or_load(signals, data.inputs, data.labels, callback.cache, is_shown=True, is_saved=True)
        callback._hold(signals.to(device_of(model, signals.perturbed_inputs)), data)
        if callback.history and callback._fingerprint not in (None, signals.fingerprint):
            rank_zero_warn(
                "The samples are not those that the loaded state was taken with: what is measured now cannot be"
                " compared with the checks before, so patience and the best epoch start anew."
            )
            callback._compare_nothing_before()
            self._start_companions()
        callback._fingerprint = signals.fingerprint
        callback._training_began = time.perf_counter()
        callback.setup_seconds = callback._training_began - started
        callback._open_record(self._folder)

    def _measure(self, model: Callable[[Tensor], Any]) -> dict[str, float]:
        signals = self._callback._signals
        assert signals is not None  # noqa: S101  (`_prepare` has made it)
        inputs = signals.perturbed_inputs
        logits = read_logits(model, inputs, check_finite=False)
        return self._callback._measured(logits.to(inputs.device))
