"""The page of a run that goes on, served to this machine alone."""

import hashlib
import hmac
import ipaddress
import re
import secrets
import sys
import threading
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from os import PathLike
from pathlib import Path
from typing import Any

from bu_torch.report.page import Content, content, message, page
from bu_torch.report.reading import details_path, find_records, read_record

_ADDRESS = "127.0.0.1"
# A browser looks for these names on its own machine, so that no site can make one of them lead here. Any port is safe:
# one that is not this server's was forwarded by the user, and a page at another port, being of another origin, reads
# nothing here.
_OWN_HOSTS = ("127.0.0.1", "localhost", "[::1]")
_HOST = re.compile(r"(?P<name>[a-z0-9]([a-z0-9._-]*[a-z0-9])?|\[(?P<address>[0-9a-f:.]+)\])(:(?P<port>[0-9]{1,5}))?")
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

_FORBIDDEN = (
    "This page answers only requests for localhost and 127.0.0.1.\n"
    "To reach it under another name, start it with `bu-torch watch --allow-host NAME`.\n"
)
_NO_PAGE = "Open the whole address that `bu-torch watch` prints: it ends in a token that changes each time.\n"


def watch(
    folder: str | PathLike[str],
    *,
    port: int = 0,
    allowed_hosts: Sequence[str] = (),
    on_start: Callable[[str], None] | None = None,
) -> None:
    """Serve the page of the newest record in a folder, until interrupted; it refreshes itself while the run goes on.

    The page is at the loopback address, for this machine alone, under a random token as its path, for this user alone.
    It answers requests for `localhost` or the loopback address, so that no page of another site in the same browser
    reads it.

    Args:
        folder: Any folder above a record; there may be none in it yet.
        port: Port to listen on; 0 takes a free one.
        allowed_hosts: Other names under which the page is reached, through a proxy: `host` with any port, or
            `host:port`.
        on_start: Told the address, with the token, once the page can be opened.

    Raises:
        FileNotFoundError: If there is no such folder.
        NotADirectoryError: If it is a file.
        OSError: If the port is taken.
        TypeError: If the allowed hosts are not a sequence of strings.
        ValueError: If the port or an allowed host is none.
    """
    find_records(folder)
    with PageServer(Path(folder), port, allowed_hosts) as server:
        if on_start is not None:
            on_start(server.address)
        server.serve_forever()


class PageServer(ThreadingHTTPServer):
    """Serves one page, at `address`, which ends in a random token; the arguments are those of `watch`."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0, allowed_hosts: Sequence[str] = ()) -> None:
        if not 0 <= port < 2**16:
            raise ValueError(f"`port` must be an integer from 0 to 65535, got {port}.")
        self._hosts = frozenset([*_OWN_HOSTS, *_checked_hosts(allowed_hosts)])
        self._folder = folder
        self._lock = threading.Lock()
        self._seen: object = None
        self._next_look = 0.0
        self._shown = message("No check yet", "")
        super().__init__((_ADDRESS, port), _Handler)
        self.path = f"/{secrets.token_urlsafe()}/"
        self.address = f"http://{_ADDRESS}:{self.server_port}{self.path}"

    def allows(self, host: str) -> bool:
        """True if a request for this host is for this page, not for a site whose name was made to lead here."""
        found = _HOST.fullmatch(host.lower())
        return found is not None and not self._hosts.isdisjoint((found[0], found["name"]))

    def shown(self) -> Content:
        """Content to show now; made anew if a file has changed."""
        with self._lock:
            began = time.monotonic()
            if began >= self._next_look:
                try:
                    self._look()
                except (OSError, ValueError) as error:
                    self._shown = message("The record cannot be read", str(error))
                    self._seen = None
                ended = time.monotonic()
                self._next_look = ended + _PATIENCE * (ended - began)
            return self._shown

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a browser that has gone away."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    def _look(self) -> None:
        """Read the newest record if one of its files has changed."""
        tables = find_records(self._folder)
        files = [path for table in tables[:1] for path in (table, details_path(table)) if path.is_file()]
        seen = tables, [(path.stat().st_mtime_ns, path.stat().st_size) for path in files]
        if seen == self._seen:
            return
        if tables:
            self._shown = content(read_record(tables[0]), tables[1:])
        else:
            text = f"Nothing in {self._folder} or beneath; this page waits for the first check."
            self._shown = message("No record yet", text)
        self._seen = seen


class _Handler(BaseHTTPRequestHandler):
    """Answers for one secret path alone: with the page, or to its own script with what has changed."""

    server: PageServer
    server_version = "bu-torch"
    sys_version = ""
    timeout = 30  # seconds that a connection may stay silent

    def do_GET(self) -> None:
        """Answer with the page, or the part of it that changes."""
        hosts = self.headers.get_all("Host", [])
        path = self.path.partition("?")[0].encode("utf-8", "replace")
        if len(hosts) != 1 or not self.server.allows(hosts[0]):
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", _FORBIDDEN)
            return
        if not hmac.compare_digest(path, self.server.path.encode()):
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", _NO_PAGE)
            return
        shown = self.server.shown()
        if self.headers.get("Accept") != "application/json":
            self._answer(HTTPStatus.OK, "text/html", page(shown, _REFRESH_SECONDS))
            return
        text = shown.json
        tag = f'"{hashlib.sha256(text.encode()).hexdigest()}"'
        if self.headers.get("If-None-Match") == tag:
            self._answer(HTTPStatus.NOT_MODIFIED, "application/json", "", tag)
        else:
            self._answer(HTTPStatus.OK, "application/json", text, tag)

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        """Say nothing of each request."""

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


def _checked_hosts(allowed_hosts: Sequence[str]) -> list[str]:
    """Hosts in lower case, each with its port if it has one."""
    is_sequence = isinstance(allowed_hosts, Sequence) and not isinstance(allowed_hosts, str)
    if not is_sequence or not all(isinstance(host, str) for host in allowed_hosts):
        raise TypeError(f"`allowed_hosts` must be a sequence of strings, got {str(allowed_hosts)[:100]!r}.")
    for host in allowed_hosts:
        if not _is_host(host.lower()):
            raise ValueError(
                "`allowed_hosts` (`--allow-host`) must hold names such as `example.org`, `example.org:8080` or `[::1]`,"
                f" without a scheme, a path or spaces; got {host[:100]!r}."
            )
    return [host.lower() for host in allowed_hosts]


def _is_host(host: str) -> bool:
    found = _HOST.fullmatch(host)
    if found is None or int(found["port"] or 1) not in range(1, 2**16):
        return False
    try:
        ipaddress.IPv6Address(found["address"] or "::")
    except ValueError:
        return False
    return True
