"""The page of a run that goes on, served to this machine alone."""

import hashlib
import sys
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar

from bu_torch.report.page import Content, content, message, page
from bu_torch.report.reading import details_path, find_records, read_record

_ADDRESS = "127.0.0.1"
_REFRESH_SECONDS = 2.0
_PATIENCE = 10  # a record is left alone so many times as long as reading it took: the training wants the processor too
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def watch(folder: str | PathLike[str], *, port: int = 0, on_start: Callable[[str], None] | None = None) -> None:
    """Serve the page of the newest record in a folder, until interrupted; it refreshes itself while the run goes on.

    The page is at the loopback address, so that no other machine reads it (other users of this one can), and only for
    requests that name that address, so that no page of another site in the same browser does.

    Args:
        folder: Any folder above a record; there may be none in it yet.
        port: Where to listen; 0 takes one that is free.
        on_start: Told the address once the page can be opened.

    Raises:
        FileNotFoundError: If there is no such folder.
        ImportError: If plotly is not installed.
        NotADirectoryError: If it is a file.
        OSError: If the port is taken.
        ValueError: If the port is none.
    """
    find_records(folder)
    with PageServer(Path(folder), port) as server:
        if on_start is not None:
            on_start(server.address)
        server.serve_forever()


class PageServer(ThreadingHTTPServer):
    """Serves one page, at one address.

    Args:
        folder: Any folder above a record.
        port: Where to listen; 0 takes one that is free.

    Attributes:
        address: Of the page.

    Raises:
        OSError: If the port is taken.
        ValueError: If the port is none.
    """

    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0) -> None:
        if not 0 <= port < 2**16:
            raise ValueError(f"`port` must be an integer from 0 to 65535, got {port}.")
        self._folder = folder
        self._lock = threading.Lock()
        self._seen: object = None
        self._next_look = 0.0
        self._shown = message("No check yet", "")
        super().__init__((_ADDRESS, port), _Handler)
        self.address = f"http://{_ADDRESS}:{self.server_port}/"

    def shown(self) -> Content:
        """What there is to show now; made anew where a file has changed."""
        with self._lock:
            try:
                began = time.monotonic()
                if began >= self._next_look:
                    seen = self._look()
                    if seen != self._seen:
                        self._shown = self._read()
                        self._seen = seen
                    ended = time.monotonic()
                    self._next_look = ended + _PATIENCE * (ended - began)
            except (OSError, ValueError) as error:
                self._seen = None
                self._next_look = 0.0
                return message("The record cannot be read", str(error))
            return self._shown

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a browser that has gone away."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    def _look(self) -> object:
        """What the page follows from, so that nothing is read that was read before."""
        tables = find_records(self._folder)
        files = [path for path in (*tables[:1], *map(details_path, tables[:1])) if path.is_file()]
        return tables, [(path, path.stat().st_mtime_ns, path.stat().st_size) for path in files]

    def _read(self) -> Content:
        tables = find_records(self._folder)
        if not tables:
            return message(
                "No record yet", f"Nothing in {self._folder} or beneath; this page waits for the first check."
            )
        return content(read_record(tables[0]), tables[1:])


class _Handler(BaseHTTPRequestHandler):
    """Answers for `/` alone: with the page, or to its own script with what has changed."""

    server: PageServer
    server_version = "bu-torch"
    sys_version = ""
    timeout = 30  # seconds that a connection may stay silent
    _hosts: ClassVar[tuple[str, ...]] = (_ADDRESS, "localhost")

    def do_GET(self) -> None:
        """Answer with the page, or the part of it that changes."""
        if not self._is_for_us():
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", "This page is served to its own address alone.\n")
            return
        if self.path.partition("?")[0] != "/":
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", "There is one page here: /\n")
            return
        shown = self.server.shown()
        if self.headers.get("Accept") != "application/json":
            self._answer(HTTPStatus.OK, "text/html", page(shown, _REFRESH_SECONDS))
            return
        text = shown.as_json()
        tag = f'"{hashlib.sha256(text.encode()).hexdigest()}"'
        if self.headers.get("If-None-Match") == tag:
            self._answer(HTTPStatus.NOT_MODIFIED, "application/json", "", tag)
        else:
            self._answer(HTTPStatus.OK, "application/json", text, tag)

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        """Say nothing of each request."""

    def _is_for_us(self) -> bool:
        """Whether the request names this address: that of a site whose name was made to lead here does not."""
        return self.headers.get("Host") in [f"{host}:{self.server.server_port}" for host in self._hosts]

    def _answer(self, status: HTTPStatus, kind: str, text: str, tag: str = "") -> None:
        body = text.encode("utf-8")
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        if tag:
            self.send_header("ETag", tag)
        self.end_headers()
        if self.command != "HEAD" and status != HTTPStatus.NOT_MODIFIED:
            self.wfile.write(body)
