"""Lines of a file that anyone may have written: read one by one, none longer than it may be."""

from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

_CHUNK_BYTES = 2**20
_HEAD_BYTES = 100


class Place(NamedTuple):
    """Where a line begins, its length in bytes with the line break, and what it begins with."""

    start: int
    length: int
    head: bytes


def read_line(file: BinaryIO, most_bytes: int, where: str) -> bytes:
    """Read the next line of a file, without its line break.

    Args:
        file: What to read from.
        most_bytes: How long the line may be.
        where: The line in words, for the error.

    Returns:
        The line; what follows the last line break was not written to its end, and counts as empty.

    Raises:
        ValueError: If the line is longer.
    """
    line = file.readline(most_bytes + 1)
    if len(line) > most_bytes and not line.endswith(b"\n"):
        raise ValueError(f"{where}: a line of a record has at most {most_bytes} bytes, and this one has more.")
    return line[:-1] if line.endswith(b"\n") else b""


def count_lines(file: BinaryIO, start: int, stop: int) -> int:
    """How many lines of a file end between two places.

    Args:
        file: What to read from.
        start: Of the first byte.
        stop: After the last byte.

    Returns:
        The number of line breaks.
    """
    return sum(chunk.count(b"\n") for chunk in _chunks(file, start, stop))


def skip_lines(file: BinaryIO, start: int, stop: int, n_lines: int) -> None:
    """Move to where a line begins.

    Args:
        file: What to move in.
        start: Where a line begins.
        stop: Where to end at the latest.
        n_lines: How many lines to skip from there.
    """
    for chunk in _chunks(file, start, stop):
        n_breaks = chunk.count(b"\n")
        if n_breaks >= n_lines:
            place = 0
            for _ in range(n_lines):
                place = chunk.index(b"\n", place) + 1
            file.seek(start + place)
            return
        n_lines -= n_breaks
        start += len(chunk)


def is_torn(file: BinaryIO, stop: int) -> bool:
    """Whether the last line of a file was not written to its end.

    Args:
        file: What to look into.
        stop: Where the file ends.

    Returns:
        Whether there is anything after the last line break.
    """
    file.seek(max(stop - 1, 0))
    return stop > 0 and file.read(1) != b"\n"


def last_line(file: BinaryIO, start: int, stop: int, most_bytes: int, where: str) -> int:
    """Find the last line that was written to its end.

    Args:
        file: What to look into.
        start: Where some line begins.
        stop: Where the file ends.
        most_bytes: How long a line may be.
        where: The file in words, for the error.

    Returns:
        Where the line begins.

    Raises:
        ValueError: If a line is longer.
    """
    start = max(start, stop - 2 * most_bytes)
    file.seek(start)
    tail = file.read(stop - start)
    end = tail.rfind(b"\n")
    if end < 0:
        raise ValueError(f"{where}: a line of a record has at most {most_bytes} bytes, and the last one has more.")
    return start + tail.rfind(b"\n", 0, end) + 1


def spread_lines(file: BinaryIO, start: int, stop: int, n_lines: int, most_bytes: int, where: str) -> list[Place]:
    """Find lines that are spread evenly over a part of a file, without reading all of it.

    Args:
        file: What to look into.
        start: Where the first line begins.
        stop: Where the last line ends.
        n_lines: How many lines to look for; fewer are found where they are long.
        most_bytes: How long a line may be.
        where: The file in words, for the error.

    Returns:
        Lines that were written to their end, in order.

    Raises:
        ValueError: If one of them is longer.
    """
    found: list[Place] = []
    for number in range(n_lines):
        place = start + (stop - start) * number // n_lines
        file.seek(place)
        if number:
            read_line(file, most_bytes, f"{where}, after byte {place}")  # the rest of the line that this place is in
        begin = file.tell()
        line = read_line(file, most_bytes, f"{where}, byte {begin}")
        if line and begin < stop and (not found or begin > found[-1].start):
            found.append(Place(begin, len(line) + 1, line[:_HEAD_BYTES]))
    return found


def _chunks(file: BinaryIO, start: int, stop: int) -> Iterator[bytes]:
    file.seek(start)
    while start < stop and (chunk := file.read(min(_CHUNK_BYTES, stop - start))):
        yield chunk
        start += len(chunk)
