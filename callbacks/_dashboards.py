"""What TensorBoard can show beyond scalars."""

from typing import TYPE_CHECKING, Any

from bu_torch.monitoring.catalogue import SIGNALS
from bu_torch.monitoring.details import Details, Histogram
from bu_torch.monitoring.record import HISTOGRAMS

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

_SHARES = [f"^{signal.name}$" for signal in SIGNALS.values() if signal.panel == "shares"]
_OTHERS = [f"^{signal.name}$" for signal in SIGNALS.values() if signal.panel != "shares"]
_LAYOUT = {
    "boundary uncertainty": {
        "U, trust score and training loss": ["Multiline", [*_OTHERS, "^(?!val).*loss"]],
        "expected accuracy and agreement": ["Multiline", _SHARES],
    }
}


def writers(trainer: "Trainer") -> list[Any]:
    """The `SummaryWriter` of each TensorBoard logger, in the process that writes."""
    if trainer.fast_dev_run or not trainer.is_global_zero:
        return []
    return [
        logger.experiment
        for logger in trainer.loggers
        if any(cls.__name__ == "TensorBoardLogger" for cls in type(logger).__mro__)
    ]


def lay_out(writer: Any) -> None:
    """Put U, trust and training loss in one panel of the tab "Custom Scalars"."""
    writer.add_custom_scalars(_LAYOUT)


def show(writer: Any, details: Details, step: int) -> None:
    """Histograms and the table of pairs of a check."""
    for name in HISTOGRAMS:
        _add_histogram(writer, f"boundary/{name}", getattr(details, name), step)
    rows = [f"| {p.first} - {p.second} | {p.uncertainty:.3f} | {p.share:.3f} | {p.weight:.1f} |" for p in details.pairs]
    if details.n_pairs_left_out:
        rows.append(f"| and {details.n_pairs_left_out} more | | | |")
    head = ["| classes | U | share of samples | samples near the boundary |", "|---|---|---|---|"]
    writer.add_text("boundary/pairs", "\n".join(head + rows), step)


def _add_histogram(writer: Any, name: str, histogram: Histogram, step: int) -> None:
    middles = [(low + high) / 2 for low, high in zip(histogram.edges, histogram.edges[1:], strict=False)]
    writer.add_histogram_raw(
        name,
        min=histogram.edges[0],
        max=histogram.edges[-1],
        num=sum(histogram.counts),
        sum=sum(count * middle for count, middle in zip(histogram.counts, middles, strict=True)),
        sum_squares=sum(count * middle**2 for count, middle in zip(histogram.counts, middles, strict=True)),
        bucket_limits=histogram.edges[1:],
        bucket_counts=histogram.counts,
        global_step=step,
    )
