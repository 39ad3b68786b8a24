"""`view`: a page about a store with any sample, for a browser on this machine."""

from __future__ import annotations

import contextlib
import hmac
import os
import re
import secrets
import select
import socket
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import BoundedSemaphore
from typing import Any

from unistore.converters.views import ViewLimits
from unistore.errors import UnistoreError, printable
from unistore.html import sample_view
from unistore.remote.url import redact_urls
from unistore.report.inspection import inspect
from unistore.report.page import pack, pack_error, render_page
from unistore.report.sealed import StoreReport, with_attached
from unistore.store.versions import open_stores
from unistore.system.arguments import wrong_argument
from unistore.system.types import PathLike

FULL = ViewLimits(shown=256 << 20, read=1 << 30, edge=1024, points=1_000_000, side=4096, frames=1000)
_HOST = "127.0.0.1"
_SAMPLE = re.compile(r"samples/(0|[1-9][0-9]{0,17})", re.ASCII)
_TIMEOUT = 30  # seconds that a browser may take to send a request, or to receive an answer
READERS = 2  # samples that are read and sent at once
CONNECTIONS = 64  # browsers that are served or wait; further ones are told to come again
_LOOK = 0.05  # seconds between two looks at whether a browser that waits is still there
_BUSY = b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"


class ViewServer(ThreadingHTTPServer):
    """Serves the page and the samples of a store, only to those who know the address.

    Memory is limited: few samples at a time, including answers that are being sent, and threads of few
    connections.

    Parameters
    ----------
    path : path or URL
        The store.
    port : int, default 0
        Port of 127.0.0.1. 0: a free one.
    version : int or str, optional
        Version of a versioned store. None: the newest.
    """

    daemon_threads = True
    request_queue_size = CONNECTIONS

    def __init__(self, path: PathLike, port: int = 0, version: int | str | None = None) -> None:
        self.turns = BoundedSemaphore(READERS)
        self._connections = BoundedSemaphore(CONNECTIONS)
        opened = open_stores(os.fspath(path), version)
        number = version if opened.version is None else opened.version.number
        inspection = inspect(path, version=number)
        report = inspection.report
        if isinstance(report, StoreReport):
            opened = opened._replace(stores=(with_attached(opened.stores[0], report),))
        self.opened = opened
        self.count = sum(opened.counts)
        self.page = render_page(opened.path, report, inspection.blocks, live=True).encode()
        self.token = secrets.token_urlsafe(24)
        try:
            super().__init__((_HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            message = f"{port} cannot be used: {error}"
            raise wrong_argument("port", message, "remove --port, which chooses a free one") from error

    @property
    def address(self) -> str:
        """Address of the page, with its secret."""
        return f"http://{_HOST}:{self.server_port}/{self.token}/"

    def sample(self, number: int) -> bytes:
        """Return a sample as bytes, or the reason why it cannot be shown."""
        try:
            return pack(sample_view(*self.opened.row_of(number), FULL))
        except (UnistoreError, OSError) as error:
            return pack_error(str(error))
        except MemoryError:
            return pack_error("the sample does not fit into memory")

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread, unless there are too many."""
        if not self._connections.acquire(blocking=False):
            with contextlib.suppress(OSError):
                request.sendall(_BUSY)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread can be started
            self._connections.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print what failed. A browser that has left is not an error."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: ViewServer
    timeout = _TIMEOUT
    server_version = "unistore"
    sys_version = ""

    def do_GET(self) -> None:
        place = self._place()
        if place is None:
            self._answer(HTTPStatus.NOT_FOUND, b"", "text/plain")
        elif not place:
            self._answer(HTTPStatus.OK, self.server.page, "text/html; charset=utf-8")
        elif (match := _SAMPLE.fullmatch(place)) and int(match[1]) < self.server.count:
            self._answer_sample(int(match[1]))
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"", "text/plain")

    def _answer_sample(self, number: int) -> None:
        turns = self.server.turns
        while not turns.acquire(timeout=_LOOK):
            if self._has_left():
                return
        try:
            packed = self.server.sample(number)
            self._answer(HTTPStatus.OK, packed, "application/octet-stream")
        finally:
            turns.release()

    def _has_left(self) -> bool:
        """Return whether the browser has closed the connection, as it does with a request it gives up."""
        poll = select.poll()
        poll.register(self.connection, select.POLLIN)
        if not poll.poll(0):
            return False
        try:
            return not self.connection.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    def _place(self) -> str | None:
        """Return what is asked for behind the token, or None if host or token are not ours."""
        port = self.server.server_port
        # A page of another site whose name was made to lead here does not know the host
        if self.headers.get_all("Host") not in ([f"{_HOST}:{port}"], [f"localhost:{port}"]):
            return None
        token, separator, place = self.path.removeprefix("/").partition("/")
        is_ours = hmac.compare_digest(token.encode(), self.server.token.encode())
        return place if is_ours and separator else None

    def _answer(self, status: HTTPStatus, content: bytes, form: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", form)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def view(
    path: PathLike, *, port: int = 0, open_browser: bool = True, version: int | str | None = None
) -> None:
    """Serve a page about a store on this machine, with any sample in full resolution.

    The call returns when you interrupt it.

    Parameters
    ----------
    path : path or URL
        A store.
    port : int, default 0
        Port of 127.0.0.1. 0: a free one.
    open_browser : bool, default True
        Whether to start a browser. The address is also printed.
    version : int or str, optional
        Number or name of the version of a versioned store. None: the newest.

    Raises
    ------
    InputError
        If the port cannot be used, or there is no such version.
    StoreError
        If the path is not a sealed store.

    Examples
    --------
    >>> unistore.view("train.zarr")  # doctest: +SKIP
    """
    with ViewServer(path, port, version) as server:
        try:
            shown = printable(redact_urls(server.opened.path))
            print(
                f"{server.address}\nshows {shown} to everyone with this address; Ctrl-C stops it", flush=True
            )
            if open_browser:
                import webbrowser

                webbrowser.open(server.address)
            server.serve_forever()
        except KeyboardInterrupt:
            print(flush=True)
