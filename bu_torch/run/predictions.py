"""Predictions at the last check and at the most accurate one, which the next check is compared with."""

from typing import Any

import torch
from torch import Tensor

from bu_torch.functional.boundary import dtype_of_labels
from bu_torch.rule.rules import STANDARD_ERROR
from bu_torch.run.state import State
from bu_torch.signals.details import Details
from bu_torch.signals.measuring import Measurement, Signals
from bu_torch.signals.recognition import Recognition


class Predictions:
    """Tensors that one check leaves for the next, beside the numbers of the history.

    Attributes:
        recognition: Recall of each class, at the kept check and at the best one for all classes alike.
        n_columns: Number of logits that were measured here; 0 before the first check.
        has_warned: True once predictions worse than chance were warned of.
        measurement: The last check, with its logits, until `drop_logits`; None if it was not measured here.
    """

    def __init__(self) -> None:
        self.recognition = Recognition()
        self.n_columns = 0
        self.has_warned = False
        self.measurement: Measurement | None = None
        self._last = self._best = torch.empty(0, dtype=torch.int64)  # (n_draws * N,)

    def measure(self, signals: Signals, logits: Tensor, *, has_rule: bool) -> dict[str, float]:
        """Signals and `standard_error` of logits; waits for the device once."""
        before, best = (
            known.to(logits.device) if len(known) == len(logits) else None for known in (self._last, self._best)
        )
        self.n_columns = logits.shape[1]
        self.measurement = signals.measure(logits, before, best)
        self._last = self.measurement.predictions
        values = {**self.measurement.values, STANDARD_ERROR: self.measurement.standard_error}
        scalars = torch.stack(list(values.values()))
        measured = (torch.cat((scalars, self.measurement.recalls())) if has_rule else scalars).tolist()
        if has_rule:
            self.recognition.take(measured[len(values) :])
        return dict(zip(values, measured[: len(values)], strict=True))

    def take_for_best(self) -> None:
        """Compare the next checks with the last one, which is the most accurate so far."""
        self._best = self._last

    def details(self) -> Details | None:
        """Details behind the numbers of the last check; None if it was not measured here."""
        return None if self.measurement is None else self.measurement.details()

    def drop_logits(self) -> None:
        """Free the logits of the last check."""
        self.measurement = None

    def forget(self) -> None:
        """Compare the next check with none before."""
        self._last, self._best = self._last[:0], self._best[:0]
        self.recognition = Recognition()

    def state_dict(self) -> dict[str, Any]:
        """Tensors on the CPU."""
        state: dict[str, Any] = {"predictions": narrowed(self._last), "best_predictions": narrowed(self._best)}
        recalls = self.recognition.state_dict()
        return state | {"recalls": recalls} if recalls else state

    def load(self, state: State) -> None:
        """Go on where the state was taken."""
        self._last, self._best = state.predictions, state.best_predictions
        self.recognition = Recognition()
        self.recognition.load_state_dict(state.recalls)


def narrowed(predictions: Tensor) -> Tensor:
    """Predictions on the CPU, as bytes if those hold them."""
    return predictions.cpu().to(dtype_of_labels(1 + int(predictions.max()) if len(predictions) else 0))
