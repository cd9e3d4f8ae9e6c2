"""Printing of text from elsewhere, such as names of files."""

import logging
import sys
import unicodedata
from typing import Any, TextIO

_JOINERS = "\u200c\u200d"  # belong to words of some scripts, and to emojis


def cleaned(value: Any) -> str:
    """Text of `value` in one line, without control characters, text reversal or surrogates."""
    text = str(value).replace("\n", " ").replace("\t", " ")
    return "".join("\ufffd" if _is_unseen(character) else character for character in text)


def say(text: str, stream: TextIO | None = None) -> None:
    """Print lines of text, cleaned, in the encoding of `stream`, which is standard output by default."""
    stream = sys.stdout if stream is None else stream
    encoding = stream.encoding or "utf-8"
    shown = "\n".join(cleaned(line) for line in text.split("\n"))
    print(shown.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)


def tell(line: str) -> None:
    """Log a line of a training, by the logger "bu_torch" at INFO, which a script sees unless it sets up logging."""
    log = logging.getLogger("bu_torch")
    if not log.hasHandlers():
        log.addHandler(logging.StreamHandler())
        log.setLevel(logging.INFO if log.level == logging.NOTSET else log.level)
    log.info("%s", cleaned(line))


def _is_unseen(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") and character not in _JOINERS
