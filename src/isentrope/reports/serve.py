"""A page served to a browser on this machine.

    GET /         the page
    GET /state    {"version": …, "says": …}, which the page asks for

There is nothing else: no file is served, and the address is that of the loopback interface. A
request whose Host is another name is refused, so that no page of the internet reads this one by
letting its own name lead here.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from time import monotonic
from typing import Any, cast

from isentrope.reports.live import LivePage
from isentrope.system.errors import IsentropeError

LOOPBACK = "127.0.0.1"


class PortTakenError(IsentropeError):
    """The port is not free."""


@contextmanager
def serving(page: LivePage, port: int) -> Iterator[str]:
    """A block in which a page is served by a thread.

    Args:
        page: The page.
        port: Its port; 0 for any that is free.

    Yields:
        The address.

    Raises:
        PortTakenError: If the port cannot be had.
    """
    try:
        server = _PageServer((LOOPBACK, port), page)
    except OSError as error:
        raise PortTakenError(
            f"Port {port} of {LOOPBACK} cannot be used ({error.strerror}): give another --port, or "
            "0 for any that is free."
        ) from error
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{LOOPBACK}:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _PageServer(ThreadingHTTPServer):
    """The server of one page; a browser that leaves early is no error."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], page: LivePage) -> None:
        super().__init__(address, _Handler)
        self.page = page

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a connection that broke."""


class _Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    server_version = "isentrope"
    sys_version = ""
    timeout = 30

    def do_GET(self) -> None:
        """The page, its state, or a refusal."""
        server = cast("_PageServer", self.server)
        names = {f"{name}:{server.server_port}" for name in (LOOPBACK, "localhost")}
        shown = server.page.shown
        if self.headers.get("Host") not in names:
            self._answer(403, "text/plain", b"This host name does not belong to this page.\n")
        elif self.path == "/":
            server.page.seen = monotonic()
            self._answer(200, "text/html", shown.body)
        elif self.path == "/state":
            server.page.seen = monotonic()
            state = json.dumps({"version": shown.version, "says": shown.says})
            self._answer(200, "application/json", state.encode())
        else:
            self._answer(404, "text/plain", b"There is one page, at /.\n")

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Security-Policy", "frame-ancestors 'none'")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing of requests."""
