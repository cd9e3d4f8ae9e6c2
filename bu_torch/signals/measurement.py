"""One check: its values, its predictions, and what is behind them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from bu_torch.signals.catalogue import Reading
from bu_torch.signals.details import Details, describe
from bu_torch.signals.recognition import recalls_of

if TYPE_CHECKING:
    from bu_torch.signals.measuring import Signals


@dataclass(frozen=True)
class Measurement:
    """Result of one call of `Signals.measure`; it unpacks into values and predictions.

    Attributes:
        values: Scalars by the names of `Signals.NAMES`, float64, on the device of the logits.
        predictions: Predicted classes at the perturbed inputs, (n_draws * N,) int64.
        standard_error: Of the difference between the expected accuracy and that of the predictions `best`, float64; 0
            without `best`.
    """

    values: dict[str, Tensor]
    predictions: Tensor
    standard_error: Tensor
    _reading: Reading
    _signals: "Signals"

    def __iter__(self) -> Iterator[Any]:
        return iter((self.values, self.predictions))

    def recalls(self) -> Tensor:
        """Recall of the C classes that have samples, by labels and by label probabilities, (2 * C,) float64."""
        reading, classes = self._reading, self._signals._classes
        of_labels = classes.columns(reading.labels)
        return recalls_of(reading.columns, of_labels, reading.label_probabilities, reading.weights, len(classes))

    def details(self, n_doubtful: int = 50) -> Details:
        """Details behind the values, by pair of classes and by sample; waits for the device.

        Args:
            n_doubtful: Number of the least trusted samples to name, >= 1.
        """
        signals = self._signals
        return describe(
            self._reading,
            label_trust=signals._label_trust,
            nearest_class=signals._nearest_class,
            n_doubtful=n_doubtful,
        )
