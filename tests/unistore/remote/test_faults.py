"""Requests that fail: tried again while that may help, then one line that says what to do."""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unistore
from unistore.errors import CorruptionError, StoreError
from unistore.remote.client import ObjectClient
from unistore.remote.faults import classify_error
from unistore.store.reader import Store
from unistore.system.progress import COUNTS

WHAT = ["drop", "cut", "short", 500, 503, 429]


@pytest.mark.parametrize("what", WHAT)
def test_a_request_that_fails_is_repeated_until_it_succeeds(
    proxy: Any, uploaded: str, sources: Any, truth: Any, quick: None, what: Any
) -> None:
    array = Store(uploaded).array("rows/data")
    before = COUNTS["retries"]
    proxy.spoil(what, times=4, path="rows/data/c/")
    assert np.array_equal(array.read_rows(range(600)), truth(sources)["data"])
    assert COUNTS["retries"] - before == 4
    assert not proxy.rules[0]["left"]


def test_a_server_that_does_not_answer_is_asked_again(
    proxy: Any, uploaded: str, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unistore.remote.connection.READ_TIMEOUT", "300ms")
    array = Store(uploaded).array("rows/data")
    before = COUNTS["retries"]
    proxy.spoil("stall", path="rows/data/c/", delay=1)
    assert array.read_rows([0]).shape == (1, 24)
    assert COUNTS["retries"] - before == 1


@pytest.mark.parametrize(
    ("what", "message", "error"),
    [
        ("drop", "the connection broke", StoreError),
        ("cut", "the connection broke during a response", StoreError),
        ("short", r"ends at byte [\d,]+, but [\d,]+ bytes", CorruptionError),
        (503, "the server answers 503", StoreError),
    ],
)
def test_a_fault_that_stays_is_an_error_that_names_object_and_chunk(
    proxy: Any, uploaded: str, quick: None, clock: Any, what: Any, message: str, error: type[Exception]
) -> None:
    store = Store(uploaded)
    array = store.array("rows/data")
    array.read_rows([0])
    proxy.spoil(what, times=10**6)
    with pytest.raises(error, match=message) as caught:
        array.read_rows([array.chunk_shape[0]])
    assert 0.2 < clock.monotonic() < 0.6
    text = str(caught.value)
    assert "\n" not in text
    assert f"{uploaded}/rows/data/c/0/0" in text, "names the object"
    assert "(tried " in text
    assert "chunk (1, 0)" in text, "and the chunk"


def test_opening_a_store_is_tried_again_and_then_an_error(proxy: Any, uploaded: str, quick: None) -> None:
    proxy.spoil(500, times=2)
    assert Store(uploaded).sample_count == 600
    proxy.spoil(500, times=10**6)
    with pytest.raises(StoreError, match=r"zarr\.json: the server answers 500 \(tried [4-9] times"):
        Store(uploaded)


def test_a_busy_server_is_waited_for_from_the_first_request(
    proxy: Any, uploaded: str, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unistore.remote.connection._responsive_buckets", set())
    proxy.spoil(503, times=8)
    assert Store(uploaded).sample_count == 600
    assert len(clock.pauses) >= 8


def test_a_throttled_bucket_opens_for_all(proxy: Any, uploaded: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unistore.remote.connection._responsive_buckets", set())
    monkeypatch.setattr("unistore.remote.connection.FIRST_DELAY", 0.01)
    proxy.spoil(503, times=10**6, share=0.5)
    with ThreadPoolExecutor(8) as pool:
        opened = list(pool.map(lambda _: unistore.Dataset(uploaded), range(24)))
    assert {len(dataset) for dataset in opened} == {600}
    assert proxy.count() > 24 * 1.25, "some were tried again"


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_a_missing_key_is_named(uploaded: str, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv(name)
    with pytest.raises(StoreError, match=f"Fix: set {name} too"):
        Store(uploaded)


def test_pauses_between_retries_grow_and_end_within_a_minute(clock: Any, proxy: Any, uploaded: str) -> None:
    client = ObjectClient(uploaded)
    assert client.size("zarr.json")
    proxy.spoil(503, times=10**6)
    with pytest.raises(StoreError, match="503"):
        client.size("zarr.json")
    assert 40 < sum(clock.pauses) < 62
    assert all(0.05 <= pause <= 8 for pause in clock.pauses)
    assert max(clock.pauses) > 20 * clock.pauses[0]


def test_a_missing_object_is_not_requested_again(proxy: Any, uploaded: str) -> None:
    client = ObjectClient(uploaded)
    before = COUNTS["retries"]
    assert client.size("nothing") is None
    assert client.get("nothing") is None
    assert client.get_end("nothing", 4) is None
    assert COUNTS["retries"] == before
    with pytest.raises(StoreError, match=r"store\.zarr/nothing: no such object"):
        client.get_range("nothing", 0, 3)
    assert client.get_range("zarr.json", 3, 0) == b""


def test_a_range_beyond_the_end_is_an_error(uploaded: str, quick: None) -> None:
    client = ObjectClient(uploaded)
    size = client.size("zarr.json")
    assert size
    with pytest.raises(CorruptionError, match=r"zarr\.json: ends before the requested range|ends at byte"):
        client.get_range("zarr.json", size + 5, 10)
    with pytest.raises(CorruptionError, match=rf"ends at byte {size:,}, but 10 bytes"):
        client.get_range("zarr.json", size - 5, 10)
    assert client.get_end("zarr.json", 10**6) == (size, client.get("zarr.json"))


@pytest.mark.parametrize(
    ("text", "message", "fix", "transient"),
    [
        (
            "Error performing PUT http://169.254.169.254/latest/api/token",
            "no credentials",
            "AWS_ACCESS_KEY_ID",
            False,
        ),
        ("x\nDebug source: inner: BareRedirect", "another region", "AWS_REGION", False),
        ("x\nDebug source: NotPartial", "does not support HTTP ranges", "", False),
        (
            "Account must be specified\nMissingAccount",
            "there is no name of a storage account",
            "AZURE_STORAGE_ACCOUNT_NAME",
            False,
        ),
        ("x\nkind: Connect", "no connection", "network", True),
        ("x\nkind: Timeout", "the server did not answer in time", "network", True),
        ("x\nstatus: 502", "answers 502", "", True),
        ("x status code: 400 <Code>InvalidArgument</Code>", "answers 400 (InvalidArgument)", "", False),
        (
            "x status: 404 <Code>ContainerNotFound</Code>",
            "there is no bucket 'bucket'",
            "check its name",
            False,
        ),
        ("Generic S3 error: something new", "something new", "AWS_ENDPOINT_URL", False),
    ],
)
def test_an_error_of_obstore_becomes_one_line_with_a_fix(
    text: str, message: str, fix: str, transient: bool
) -> None:
    fault = classify_error(RuntimeError(text), "s3", "bucket")
    assert message in fault.message
    assert fix in fault.fix
    assert fault.transient is transient
    assert "\n" not in fault.message + fault.fix


def test_a_server_without_ranges_is_told_when_a_store_is_opened(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(12.0).reshape(4, 3))
    unistore.convert(tmp_path / "a.npy", tmp_path / "a.zarr")
    command = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        try:
            assert server.stdout
            (port,) = re.findall(r"port (\d+)", server.stdout.readline())
            with pytest.raises(StoreError) as error:
                unistore.Dataset(f"http://127.0.0.1:{port}/a.zarr")
        finally:
            server.terminate()
    assert "zarr.json: this server does not support HTTP ranges. Fix: use a server that does" in str(
        error.value
    )
