"""``unistore view``: one store, read-only, for who knows the address; and its end."""

from __future__ import annotations

import base64
import http.client
import json
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unistore
from tests.support.waiting import wait_until
from unistore.errors import InputError
from unistore.html import sample_view
from unistore.report.page import pack, pack_error
from unistore.report.serve import CONNECTIONS, FULL, READERS, ViewServer
from unistore.store.versions import open_stores


@pytest.fixture
def store(make_store: Any) -> Path:
    path: Path = make_store("rows", {"rows/x": np.arange(40.0).reshape(10, 4)}, count=10)
    return path


class CountingServer(ViewServer):
    """Knows how many threads serve a connection of it; other servers of the process have theirs."""

    served = 0
    lock = threading.Lock()

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        with self.lock:
            self.served += 1
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self.lock:
                self.served -= 1


@pytest.fixture
def server(store: Path) -> Iterator[CountingServer]:
    with CountingServer(store) as started:
        thread = threading.Thread(target=started.serve_forever, args=(0.05,))
        thread.start()
        yield started
        started.shutdown()
        thread.join()


def answer(
    server: ViewServer, place: str, *, method: str = "GET", host: str | None = None
) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.putrequest(method, place, skip_host=True)
    connection.putheader("Host", host or f"127.0.0.1:{server.server_port}")
    connection.endheaders()
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response.status, content, dict(response.getheaders())


def test_the_server_delivers_the_page_and_every_sample(server: ViewServer) -> None:
    status, page, headers = answer(server, f"/{server.token}/")
    assert status == 200
    assert b"connect-src 'self'" in page
    assert b'"live": true' in page
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff"
    status, packed, _ = answer(server, f"/{server.token}/samples/7")
    assert status == 200
    assert packed == pack(sample_view(server.opened.stores[0], 7, FULL))


def test_samples_of_a_version_are_those_of_the_grown_store() -> None:
    # version 3 leaves out a source of the first part
    grown = Path(__file__).parents[2] / "data" / "golden" / "grown.zarr"
    expected = unistore.Dataset(grown, version=3).read_batch(range(8))["x"]
    with ViewServer(grown, version=3) as server:
        assert b'"live": true' in server.page
        assert b'"count": 8' in server.page
        for sample in range(8):
            store, row = server.opened.row_of(sample)
            np.testing.assert_array_equal(store.array("rows/x").read(row, row + 1)[0], expected[sample])
            assert server.sample(sample) == pack(sample_view(store, row, FULL))
    with pytest.raises(InputError, match="has no version 9"):
        ViewServer(grown, version=9)


def test_a_page_about_a_version_shows_its_samples() -> None:
    grown = Path(__file__).parents[2] / "data" / "golden" / "grown.zarr"
    (text,) = re.findall('id="samples">(.*?)</script>', unistore.inspect(grown, version=3).to_html())
    shown = json.loads(text)
    assert (shown["live"], shown["count"]) == (False, 8)
    opened = open_stores(str(grown), 3)
    for sample in shown["samples"]:
        packed = zlib.decompress(base64.b64decode(sample["data"]))
        assert packed == pack(sample_view(*opened.row_of(sample["number"]), FULL))


@pytest.mark.parametrize(
    "place",
    [
        *("/", "/samples/1", "/TOKEN", "/TOKENx/", "/x/TOKEN/", "/TOKEN/zarr.json", "/TOKEN/../zarr.json"),
        *("/TOKEN/samples/10", "/TOKEN/samples/-1", "/TOKEN/samples/01", "/TOKEN/samples/1/../../zarr.json"),
        *("/TOKEN/samples/1?x", "/TOKEN/samples/%31", "/TOKEN/samples/" + "9" * 400),
    ],
)
def test_every_other_address_is_not_found(server: ViewServer, place: str) -> None:
    status, content, _ = answer(server, place.replace("TOKEN", server.token))
    assert (status, content) == (404, b"")


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1", "evil.example:PORT", "127.0.0.1:PORT.evil.example"]
)
def test_other_names_of_this_machine_are_refused(server: ViewServer, host: str) -> None:
    status, _, _ = answer(server, f"/{server.token}/", host=host.replace("PORT", str(server.server_port)))
    assert status == 404


def test_methods_that_write_are_not_supported(server: ViewServer) -> None:
    for method in ("POST", "PUT", "DELETE"):
        assert answer(server, f"/{server.token}/", method=method)[0] == 501


def test_only_this_machine_is_served_and_tokens_differ(server: ViewServer, store: Path) -> None:
    assert server.server_address[0] == "127.0.0.1"
    with ViewServer(store) as other:
        assert other.token != server.token
        assert len(other.token) >= 32
    with pytest.raises(InputError, match=r"port: \d+ cannot be used"):
        ViewServer(store, server.server_port)


@pytest.mark.timeout(60)
def test_the_command_ends_when_it_is_interrupted(store: Path) -> None:
    command = [sys.executable, "-m", "unistore", "view", str(store), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        assert started.stderr is not None
        assert started.stdout.readline().startswith("http://127.0.0.1:")
        assert store.name in started.stdout.readline()
        started.send_signal(signal.SIGINT)
        assert started.wait(30) == 0
        assert started.stderr.read() == ""


def ask(server: ViewServer, place: str) -> socket.socket:
    """Send a request, and do not wait for its answer."""
    host = f"127.0.0.1:{server.server_port}"
    connection = socket.create_connection(("127.0.0.1", server.server_port), timeout=60)
    connection.sendall(f"GET /{server.token}/{place} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    return connection


def received(connection: socket.socket) -> bytes:
    """The whole answer of a server that closes the connection."""
    with connection, connection.makefile("rb") as file:
        return file.read()


def test_a_browser_that_leaves_is_no_error(
    server: CountingServer, capsys: pytest.CaptureFixture[str]
) -> None:
    for place in ["", "samples/3"] * 15:
        connection = ask(server, place)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
        connection.close()
    assert answer(server, f"/{server.token}/")[0] == 200
    wait_until(lambda: not server.served, "a connection is still served")
    assert capsys.readouterr().err == ""


def test_an_unexpected_error_of_the_server_is_printed(
    server: ViewServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "page", None)
    assert received(ask(server, "")) == b""
    assert "TypeError" in capsys.readouterr().err


def test_few_samples_are_read_at_once(server: ViewServer, monkeypatch: pytest.MonkeyPatch) -> None:
    read = server.sample
    at_work: list[int] = []
    most = [0]
    met = threading.Barrier(READERS)

    def sample(number: int) -> bytes:
        at_work.append(number)
        most[0] = max(most[0], len(at_work))
        met.wait(60)  # as many as may are here together
        packed = read(number)
        at_work.remove(number)
        return packed

    monkeypatch.setattr(server, "sample", sample)
    expected = [pack(sample_view(server.opened.stores[0], number, FULL)) for number in range(10)]
    with ThreadPoolExecutor(10) as pool:
        answers = pool.map(lambda number: answer(server, f"/{server.token}/samples/{number}"), range(10))
        assert [packed for _, packed, _ in answers] == expected
    assert most[0] == READERS


def test_samples_that_nobody_waits_for_are_not_read(
    server: CountingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = server.sample
    numbers: list[int] = []
    monkeypatch.setattr(server, "sample", lambda number: numbers.append(number) or read(number))
    for _ in range(READERS):
        server.turns.acquire()
    clicks = [ask(server, f"samples/{number}") for number in range(10)]
    wait_until(lambda: server.served == 10, "not all connections are served")
    for connection in clicks[:9]:
        connection.close()
    wait_until(lambda: server.served == 1, "who has left is still waited for")
    for _ in range(READERS):
        server.turns.release()
    assert received(clicks[9]).endswith(pack(sample_view(server.opened.stores[0], 9, FULL)))
    assert numbers == [9]


def test_further_connections_are_told_to_come_again(server: CountingServer) -> None:
    for _ in range(READERS):
        server.turns.acquire()
    waiting = [ask(server, "samples/1") for _ in range(CONNECTIONS)]
    wait_until(lambda: server.served == CONNECTIONS, "not all connections are served")
    assert received(ask(server, "samples/2")).startswith(b"HTTP/1.0 503 ")
    for _ in range(READERS):
        server.turns.release()
    packed = pack(sample_view(server.opened.stores[0], 1, FULL))
    assert all(received(connection).endswith(packed) for connection in waiting)
    wait_until(lambda: not server.served, "a connection is still served")
    assert answer(server, f"/{server.token}/samples/2")[0] == 200


def test_a_sample_without_memory_is_told_on_the_page(
    server: ViewServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("unistore.report.serve.sample_view", read)
    assert answer(server, f"/{server.token}/samples/1")[:2] == (
        200,
        pack_error("the sample does not fit into memory"),
    )


def test_the_page_gives_up_what_it_no_longer_wants(server: ViewServer) -> None:
    script = server.page.decode()
    assert script.count("request.abort();") == 1
    assert 'fetch("samples/" + number, { signal: signal })' in script
