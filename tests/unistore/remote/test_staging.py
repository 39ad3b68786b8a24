"""Sources in a bucket: fetched once, the store that of local files, kills and changes survived."""

from __future__ import annotations

import threading
from collections import Counter
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import unistore
from tests.support.programs import call
from tests.unistore.remote.conftest import Bucket, Proxy
from unistore.errors import ConversionError, InputError
from unistore.store.reader import Store
from unistore.system.progress import COUNTS


@pytest.fixture
def raw(bucket: Bucket, sources: Path) -> str:
    """URL of a prefix with the sources, one of them in a folder."""
    for path in sources.iterdir():
        below = "deep/" if path.name == "1.npz" else ""
        bucket.put(f"raw/{below}{path.name}", path.read_bytes())
    bucket.put("raw/deep/", b"")  # a folder that a web console made
    bucket.put("rawer/4.npz", b"of another prefix")
    return bucket.url("raw")


def copies(store: Path) -> Path:
    return store.with_name(f"{store.name}.unistore-sources")


def test_the_store_is_that_of_local_files(raw: str, proxy: Proxy, sources: Path, tmp_path: Path) -> None:
    local = tmp_path / "local" / "raw"
    (local / "deep").mkdir(parents=True)
    for path in sources.iterdir():
        (local / ("deep" if path.name == "1.npz" else "") / path.name).write_bytes(path.read_bytes())
    expected = unistore.convert(local, tmp_path / "expected.zarr")
    store = tmp_path / "train.zarr"
    assert call("convert", raw, str(store)) == 0
    assert Store(store).attributes["seal"]["digest"] == expected.digest
    fetched = Counter(seen.path for seen in proxy.seen if seen.method == "GET" and seen.path.endswith(".npz"))
    assert set(fetched.values()) == {1}
    assert len(fetched) == 3
    assert not copies(store).exists()


def test_a_web_server_gives_files(sources: Path, tmp_path: Path) -> None:
    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments, directory=str(sources))

        def log_message(self, *arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        report = unistore.convert(f"{url}/0.npz", tmp_path / "train.zarr")
        with pytest.raises(InputError, match="no such object"):
            unistore.convert(f"{url}/9.npz", tmp_path / "other.zarr")
        server.shutdown()
    assert report.samples == 200


def test_a_killed_conversion_fetches_the_rest(
    raw: str, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unistore.conversion.staging._FILES", 1)
    proxy.spoil(403, times=1, method="GET", path="2.npz")
    store = tmp_path / "train.zarr"
    with pytest.raises(InputError, match="access denied"):
        unistore.convert(raw, store)
    proxy.seen.clear()
    assert unistore.convert(raw, store).sources == 3
    assert [proxy.count("GET", name) for name in ("0.npz", "2.npz")] == [0, 1]


def test_a_copy_of_an_older_object_is_fetched_again(
    raw: str, bucket: Bucket, sources: Path, tmp_path: Path
) -> None:
    store = tmp_path / "train.zarr"
    assert call("convert", raw, str(store), "--dry-run") == 0
    assert copies(store).is_dir()
    bucket.put("raw/0.npz", (sources / "2.npz").read_bytes())
    unistore.convert(raw, store)
    dataset = unistore.Dataset(store)
    assert (dataset[0]["data"] == dataset[200]["data"]).all()


def test_an_object_that_changes_meanwhile_is_refused(
    raw: str, bucket: Bucket, proxy: Proxy, sources: Path, tmp_path: Path
) -> None:
    other = (sources / "1.npz").read_bytes()
    proxy.spoil("kill", method="GET", path="2.npz", act=lambda: bucket.put("raw/0.npz", other))
    with pytest.raises(InputError, match=r"1 object changed during the copy: 0.npz"):
        unistore.convert(raw, tmp_path / "train.zarr")
    assert unistore.convert(raw, tmp_path / "train.zarr").sources == 3


def test_too_little_space_for_the_sources_is_an_error_before_fetching(
    raw: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unistore.conversion.staging.shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(InputError, match=r"the sources have .* has only 1.0 kB free"):
        unistore.convert(raw, tmp_path / "train.zarr")


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("a\\b.npz", "backslash"),
        ("x" * 300, "longer than 255 bytes"),
        ("0.npz/inner.npz", "'0.npz' is both an object and a folder"),
    ],
)
def test_hostile_keys_are_refused(raw: str, bucket: Bucket, tmp_path: Path, key: str, message: str) -> None:
    bucket.put(f"raw/{key}", b"")
    with pytest.raises(InputError, match=message):
        unistore.convert(raw, tmp_path / "train.zarr")


def test_missing_sources_and_folders_of_others_are_an_error(raw: str, bucket: Bucket, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such object"):
        unistore.convert(bucket.url("nothing"), tmp_path / "train.zarr")
    (tmp_path / "taken.zarr").mkdir()
    (tmp_path / "taken.zarr" / "file").touch()
    with pytest.raises((InputError, ConversionError), match="exists"):
        unistore.convert(raw, tmp_path / "taken.zarr")
    assert not copies(tmp_path / "taken.zarr").exists()
    (tmp_path / "elsewhere").mkdir()
    copies(tmp_path / "new.zarr").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConversionError, match="unistore did not make this folder"):
        unistore.convert(raw, tmp_path / "new.zarr")


def test_parts_share_the_copies(raw: str, proxy: Proxy, tmp_path: Path) -> None:
    store = tmp_path / "train.zarr"
    assert unistore.convert(raw, store, part="1/2").unfinished_parts == (2,)
    assert [leftover.path for leftover in unistore.clean(store)][1:] == [str(copies(store))]
    before = COUNTS["cache_hits"]
    assert unistore.convert(raw, store, part="2/2").digest
    assert COUNTS["cache_hits"] - before == 3
    assert not copies(store).exists()
    assert proxy.count("GET", "0.npz") == 1
    assert unistore.convert(raw, store, part="1/2").tasks == 0
    assert not copies(store).exists()
