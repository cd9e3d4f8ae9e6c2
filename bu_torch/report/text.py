"""Text of a record, made safe for a page: names of classes and of files can hold anything."""

import html
import math
import re
from typing import Any

from bu_torch.internal.output import printable

_PATH = re.compile(r"(?<![\w.:/\\])(?:[A-Za-z]:)?[\\/](?:[^\s\\/'\"]+[\\/])+[^\s\\/'\"]+")


def escaped(value: Any, most: int = 2000) -> str:
    """`value` printable, cut to `most` characters, and escaped for HTML, in attributes too."""
    text = printable(str(value)[: most + 1])  # cut first: cleaning a long text is slow
    return html.escape(text if len(text) <= most else f"{text[: most - 1]}…")


def last_parts(path: Any) -> str:
    """Last three parts of a path: enough to tell runs apart, without the folders of a machine."""
    return "/".join([part for part in re.split(r"[\\/]", str(path)) if part][-3:])


def without_folders(text: str) -> str:
    """`text` with each absolute path cut to its last parts."""
    return _PATH.sub(lambda found: last_parts(found[0]), text)


def shown_number(value: float) -> str:
    """A number in readable form; a dash if it is not finite."""
    if not math.isfinite(value):
        return "–"  # noqa: RUF001
    if 0 < value < 0.0005:
        return "below 0.001"
    if abs(value) >= 1e15:
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.3f}"


def duration(seconds: float) -> str:
    """A time in readable form; a dash if it is unknown."""
    if not math.isfinite(seconds):
        return "–"  # noqa: RUF001
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
