"""The page: one file with its figures, its style and all it runs in it, so that nothing is fetched."""

import base64
import functools
import hashlib
import json
import re
from collections.abc import Sequence
from importlib import resources
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from bu_torch.internal.files import whole_file
from bu_torch.report.drawing import THEMES, Figure
from bu_torch.report.figures import figures
from bu_torch.report.record import RunRecord
from bu_torch.report.sections import sections
from bu_torch.report.text import escaped
from bu_torch.report.verdict import RunVerdict, headline


class Content(NamedTuple):
    """Content of a page: all of it but the scripts that draw it."""

    title: str  # of the window, escaped
    main: str  # HTML
    figures: list[Figure]

    @property
    def drawings(self) -> list[dict[str, Any]]:
        """The figures, for the script."""
        return [{"name": one.name, **one.drawing} for one in self.figures]


def render(record: RunRecord, others: Sequence[Path] = ()) -> str:
    """Give the page of a record, HTML that fetches nothing; arguments and errors as in `write_report`."""
    return page(content(record, others))


def write_report(record: RunRecord, path: str | PathLike[str], others: Sequence[Path] = ()) -> Path:
    """Write the page of a record; an older page that is there is replaced as a whole or not at all.

    Args:
        record: Record from `read_record`.
        path: File to write; folders are made if need be.
        others: Other records nearby, to be listed.

    Returns:
        The path.

    Raises:
        OSError: If it cannot be written, or another file is there.
        ValueError: If the record's settings are none that a rule takes.
    """
    return write_page(render(record, others), Path(path))


def write_page(text: str, path: Path) -> Path:
    """Write a page; an older page is replaced as a whole or not at all, another file is not."""
    if path.is_file() and path.stat().st_size:
        with path.open("rb") as file:
            if b'<meta name="generator" content="bu-torch">' not in file.read(2000):
                raise FileExistsError(f"{path} exists, and bu-torch has not written it: name another file (`-o`).")
    with whole_file(path) as part:
        part.write_bytes(text.encode("utf-8"))
    return path


def content(record: RunRecord, others: Sequence[Path] = ()) -> Content:
    """Content of the page of a record."""
    verdict = RunVerdict.of(record)
    shown = figures(record, verdict)
    title = f"{escaped(headline(record, verdict)[0])} – boundary uncertainty"  # noqa: RUF001
    return Content(title, sections(record, verdict, shown, others), shown)


def page(shown: Content) -> str:
    """The whole page in HTML; its policy lets it run no script but the two it has, and fetch nothing."""
    scripts = resource("plotly/plotly-cartesian.min.js"), resource("page.js")
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    hashes = " ".join(f"'sha256-{digest}'" for digest in digests)
    parts = {
        "policy": f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:;"
        " connect-src 'none'; base-uri 'none'; form-action 'none'",
        "title": shown.title,
        "style": resource("page.css"),
        "main": shown.main,
        "themes": _json(THEMES),
        "content": _json(shown.drawings),
        "plotly": scripts[0],
        "script": scripts[1],
    }
    # In one pass, so that nothing that is filled in is looked at again.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], resource("page.html"))


def _json(value: Any) -> str:
    """JSON that can stand within a script element: it has no `<`, and no character beyond ASCII."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@functools.cache
def resource(name: str) -> str:
    """Content of a file beside this one."""
    return resources.files("bu_torch.report").joinpath(name).read_text(encoding="utf-8")
