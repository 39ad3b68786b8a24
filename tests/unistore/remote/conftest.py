"""An S3 server of its own process, a proxy that counts and spoils requests, and toy sources."""

from __future__ import annotations

import contextlib
import http.client
import inspect
import itertools
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote

import numpy as np
import pytest

from tests.support.store_files import tree
from tests.support.waiting import wait_until
from unistore.store.names import SOURCES

SERVER = """
import logging, sys, threading
logging.getLogger("werkzeug").disabled = True
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=True)
print(server.server_port, flush=True)
threading.Thread(target=lambda: (sys.stdin.read(), server.shutdown()), daemon=True).start()
server.serve_forever()
"""
"""Serves until its input ends: with the process that started it, however that goes."""

_numbers = itertools.count()


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """Address of moto's S3 server."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin
    assert process.stdout
    try:
        yield f"127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.stdin.close()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


@dataclass
class Bucket:
    """A bucket as boto3 sees it: the oracle for what was written, and a hand that meddles with it."""

    name: str
    client: Any

    def url(self, prefix: str) -> str:
        return f"s3://{self.name}/{prefix}"

    def objects(self, prefix: str = "") -> dict[str, bytes]:
        """Content of every object below a prefix by key relative to it, but for the times of sources."""
        keys = [key for key in self.keys(prefix) if not key.endswith(SOURCES)]
        return {key.removeprefix(prefix).lstrip("/"): self.get(key) for key in keys}

    def keys(self, prefix: str = "") -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix)
        return [item["Key"] for page in pages for item in page.get("Contents", [])]

    def get(self, key: str) -> bytes:
        content: bytes = self.client.get_object(Bucket=self.name, Key=key)["Body"].read()
        return content

    def put(self, key: str, content: bytes) -> None:
        self.client.put_object(Bucket=self.name, Key=key, Body=content)

    def delete(self, key: str) -> None:
        self.client.delete_object(Bucket=self.name, Key=key)


@pytest.fixture(scope="session")
def boto(server: str) -> Iterator[Any]:
    """The oracle's client."""
    import boto3

    client = boto3.client(
        "s3",
        region_name="us-east-1",
        endpoint_url=f"http://{server}",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
    )
    yield client
    client.close()


@pytest.fixture
def bucket(server: str, boto: Any, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """A new bucket; the environment gives access to it."""
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{server}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    return new_bucket(boto)


def new_bucket(boto: Any) -> Bucket:
    name = f"bucket-{next(_numbers)}"
    boto.create_bucket(Bucket=name)
    return Bucket(name, boto)


@dataclass(frozen=True)
class Seen:
    """One request."""

    method: str
    path: str
    range: str | None


@dataclass
class Proxy:
    """Forwards requests, notes them, and spoils those that a rule picks.

    ``proxy.spoil("drop", times=2, method="GET", path="c/0")``; what happens: ``drop`` (the connection ends
    without an answer), ``cut`` (half a body), ``short`` (half a body, declared as all), ``stall`` (no answer
    for `delay` seconds), ``lose`` (half of what was sent arrives), ``kill`` (calls `act`, then forwards), or
    an HTTP status.
    """

    address: str
    seen: list[Seen] = field(default_factory=list)
    rules: list[dict[str, Any]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    unquotes: bool = False
    under_way: int = 0

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Count a request as under way."""
        with self.lock:
            self.under_way += 1
        try:
            yield
        finally:
            with self.lock:
                self.under_way -= 1

    def settle(self) -> None:
        """Wait until the server has answered every request, also those of killed processes."""
        wait_until(lambda: not self.under_way, "requests stay unanswered")

    def spoil(
        self,
        what: str | int,
        *,
        times: int = 1,
        method: str = "",
        path: str = "",
        delay: float = 0.0,
        act: Callable[[], None] | None = None,
        skip: int = 0,
        share: float = 1,
    ) -> None:
        rule = {"what": what, "left": times, "method": method, "path": path, "delay": delay, "share": share}
        self.rules.append(rule | {"act": act, "skip": skip})

    def pick(self, seen: Seen) -> dict[str, Any] | None:
        with self.lock:
            self.seen.append(seen)
            for rule in self.rules:
                if seen.method.startswith(rule["method"]) and rule["path"] in seen.path and rule["left"]:
                    if random.random() >= rule["share"]:
                        continue
                    if rule["skip"]:
                        rule["skip"] -= 1
                        continue
                    rule["left"] -= 1
                    return rule
        return None

    def count(self, method: str = "", path: str = "") -> int:
        with self.lock:
            return sum(seen.method.startswith(method) and path in seen.path for seen in self.seen)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or a body waits 40 ms for the acknowledgement of its head
    proxy: ClassVar[Proxy]
    upstream: ClassVar[str]

    def forward(self) -> None:
        with self.proxy.counted():
            self.forward_request()

    def forward_request(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        rule = self.proxy.pick(Seen(self.command, self.path, self.headers.get("Range"))) or {"what": ""}
        what = rule["what"]
        if what == "stall":
            time.sleep(rule["delay"])
        if rule.get("act"):
            rule["act"]()
        if what in ("drop", "stall"):
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
            return
        if isinstance(what, int):
            self.answer(what, [], b"")
            return
        if what == "lose":
            body = body[: len(body) // 2]
            self.headers.replace_header("Content-Length", str(len(body)))
        upstream = http.client.HTTPConnection(self.upstream)
        try:
            path = unquote(self.path) if self.proxy.unquotes else self.path
            upstream.request(self.command, path, body, dict(self.headers.items()))
            reply = upstream.getresponse()
            content = reply.read()
        finally:
            upstream.close()
        if what == "short":
            content = content[: len(content) // 2]
        self.answer(reply.status, reply.getheaders(), content, cut=what == "cut")

    def answer(self, status: int, headers: list[tuple[str, str]], content: bytes, cut: bool = False) -> None:
        self.send_response_only(status)
        head = self.command == "HEAD"
        for name, value in headers:
            if name.lower() not in ("connection", "transfer-encoding", "content-length") or (
                head and name.lower() == "content-length"
            ):
                self.send_header(name, value)
        if not head:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if cut else content)
        if cut:
            self.close_connection = True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self.forward
        raise AttributeError(name)

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def proxy(bucket: Bucket, server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy between obstore and the server."""
    handler = type("Handler", (_Handler,), {"upstream": server})
    front = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    front.daemon_threads = True
    found = Proxy(f"127.0.0.1:{front.server_port}")
    handler.proxy = found  # type: ignore[attr-defined]
    thread = threading.Thread(target=front.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{found.address}")
    yield found
    front.shutdown()
    front.server_close()
    thread.join()


class Clock:
    """Stands still but for pauses, which take no time: how busy the machine is plays no part."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return sum(self.pauses)

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock that pauses between attempts go by."""
    clock = Clock()
    monkeypatch.setattr("unistore.remote.connection.time", clock)
    return clock


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    """Little patience."""
    monkeypatch.setattr("unistore.remote.connection.RETRY_TIMEOUT", 0.6)
    monkeypatch.setattr("unistore.remote.connection.FIRST_DELAY", 0.02)


@pytest.fixture(scope="module", autouse=True)
def small_shards() -> Iterator[None]:
    """Let a few hundred rows make several shards of several chunks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unistore.conversion.plan.SHARD", 16 << 10)
        patch.setattr("unistore.conversion.plan.ROW_CHUNK", 2 << 10)
        yield


def make_rows(folder: Path, *, files: int = 3, rows: int = 200, seed: int = 0) -> Path:
    """Write ``.npz`` files with ``data`` (rows, 24) f4 that does not compress, and ``label`` (rows,) i8."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        data = rng.integers(0, 2**31, (rows, 24), dtype=np.int32)
        np.savez(folder / f"{number}.npz", data=data, label=rng.integers(0, 9, rows))
    return folder


def rows_truth(folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Every array of the sources, joined, by numpy alone."""
    loaded = [dict(np.load(file)) for file in sorted(folder.glob("*.npz"))]
    return {name: np.concatenate([arrays[name] for arrays in loaded]) for name in ("data", "label")}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of three files of 200 rows; not to be changed."""
    return make_rows(tmp_path_factory.mktemp("rows") / "sources")


@pytest.fixture(scope="session")
def make_sources() -> Callable[..., Path]:
    return make_rows


@pytest.fixture(scope="session")
def truth() -> Callable[[Path], dict[str, np.ndarray[Any, Any]]]:
    return rows_truth


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory, sources: Path, small_shards: None) -> Path:
    """The sources as a local store, with the codecs of one in a bucket; not to be changed."""
    import unistore
    from unistore.conversion.build import FolderBuild

    store = tmp_path_factory.mktemp("local") / "local.zarr"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FolderBuild, "in_bucket", True)
        unistore.convert(sources, store)
    return store


def in_environment(environment: dict[str, str], function: Callable[..., None], *arguments: str) -> None:
    """Call a function in a process of a server of processes, which was started with another environment."""
    os.environ.clear()
    os.environ.update(environment)
    function(*arguments)


def process_of(function: Callable[..., None], *arguments: str) -> Any:
    """Return a process that calls a function in the environment of this one."""
    given = (dict(os.environ), function, *arguments)
    return get_context("forkserver").Process(target=in_environment, args=given)


def upload(bucket: Bucket, store: Path) -> str:
    """Put the files of a store one by one with boto3, and return its URL."""
    for key, content in tree(store).items():
        bucket.put(f"deep/store.zarr/{key}", content)
    return bucket.url("deep/store.zarr")


@pytest.fixture(scope="module")
def shared_copy(boto: Any, local: Path) -> str:
    return upload(new_bucket(boto), local)


@pytest.fixture
def uploaded(request: pytest.FixtureRequest, bucket: Bucket, local: Path, shared_copy: str) -> str:
    """URL of the local store's files: of this test alone if it takes the bucket, which it may change."""
    if "bucket" in inspect.signature(request.function).parameters:
        return upload(bucket, local)
    return shared_copy
