"""Text that comes from elsewhere, such as names of files, made safe to print."""

import sys
import unicodedata
from typing import Any, TextIO

_JOINERS = "\u200c\u200d"  # belong to words of some scripts, and to emojis


def cleaned(value: Any) -> str:
    """`value` in one line of visible characters: no control characters, none that reverse the text, no surrogates."""
    text = str(value).replace("\n", " ").replace("\t", " ")
    return "".join("\ufffd" if _is_unseen(character) else character for character in text)


def say(text: str, stream: TextIO | None = None) -> None:
    """Print lines of text to `stream`, standard output by default, cleaned and in whatever encoding it has."""
    stream = sys.stdout if stream is None else stream
    encoding = stream.encoding or "utf-8"
    shown = "\n".join(cleaned(line) for line in text.split("\n"))
    print(shown.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)


def _is_unseen(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") and character not in _JOINERS
