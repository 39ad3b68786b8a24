"""Reading from an object store: same values as the local store, few requests, no use after a fork."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import unistore
from unistore.errors import CorruptionError, InputError, StoreError
from unistore.store.reader import Store


def test_every_array_is_that_of_the_local_store(
    local: Path, uploaded: str, sources: Path, truth: Any
) -> None:
    ours, theirs = Store(uploaded), Store(local)
    assert ours.attributes == theirs.attributes
    assert ours.paths() == theirs.paths()
    for path in ours.paths():
        array = ours.array(path)
        whole = array.read_box([0] * len(array.shape), array.shape)
        expected = theirs.array(path)
        assert np.array_equal(whole, expected.read_box([0] * len(array.shape), array.shape))
    assert np.array_equal(ours.array("rows/data").read_rows(range(600)), truth(sources)["data"])
    assert ours.text("sources/path") == theirs.text("sources/path")
    assert ours.group("splits") == theirs.group("splits")


def test_opening_asks_for_the_root_alone(uploaded: str, proxy: Any) -> None:
    Store(uploaded)
    assert [(seen.method, seen.path.rpartition("/")[2]) for seen in proxy.seen] == [("GET", "zarr.json")]


def test_the_ranges_of_a_batch_are_few_requests(uploaded: str, proxy: Any) -> None:
    array = Store(uploaded).array("rows/data")
    chunks = -(-600 // array.chunk_shape[0])
    shards = -(-600 // array.shard_shape[0])  # type: ignore[index]
    assert chunks >= 4 * shards >= 8
    proxy.seen.clear()
    array.read_rows(range(600))
    indexes = [seen for seen in proxy.seen if seen.range and seen.range.startswith("bytes=-")]
    assert len(indexes) == shards, "one request an index, size included"
    assert proxy.count() == 2 * shards + 1, "one more a shard for all its chunks, and whether the root stands"
    proxy.seen.clear()
    array.read_rows(range(600))
    assert proxy.count() == shards, "indexes are kept"


def test_a_missing_shard_is_an_error(uploaded: str, bucket: Any) -> None:
    bucket.delete("deep/store.zarr/rows/data/c/1/0")
    store = Store(uploaded)
    with pytest.raises(CorruptionError, match=r"rows/data/c/1/0 .*missing, although the store is sealed"):
        store.array("rows/data").read_rows(range(600))
    assert store.array("rows/data").read_rows([0]).shape == (1, 24)


def test_a_truncated_shard_is_an_error(uploaded: str, bucket: Any, quick: None) -> None:
    key = "deep/store.zarr/rows/data/c/0/0"
    array = Store(uploaded).array("rows/data")
    array.read_rows([0])
    bucket.put(key, bucket.get(key)[:100])
    with pytest.raises(StoreError, match=r"rows/data/c/0/0.* was replaced"):
        array.read_rows(range(array.shard_shape[0]))  # type: ignore[index]
    with pytest.raises(CorruptionError, match=r"crc32c of the shard index|fewer than its index"):
        Store(uploaded).array("rows/data").read_rows([0])


def test_file_urls_are_folders(local: Path) -> None:
    store = Store(local.as_uri())
    assert store.fork_safe
    assert np.array_equal(
        store.array("rows/label").read_rows([3]), Store(local).array("rows/label").read_rows([3])
    )
    with pytest.raises(StoreError, match="no such store"):
        Store(f"{local.as_uri()}-not")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://", "the bucket is missing"),
        ("ftp://host/x", "scheme 'ftp' is not known. Fix: use one of s3, gs, az"),
        ("s3://bucket/x?versionId=3", "has no query and no fragment"),
        ("s3://me:secret@bucket/x", "a URL must not contain credentials"),
        ("s3://bucket/a/../b", "must not contain"),
        ("file://host/x", "three slashes"),
    ],
)
def test_a_malformed_url_is_an_error_without_its_secrets(url: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        Store(url)
    assert "me:secret" not in str(caught.value)


def test_a_url_given_as_a_path_is_an_error() -> None:
    with pytest.raises(InputError, match="give it as text, not as a Path"):
        Store(Path("s3://bucket/x"))


def test_a_url_without_a_finished_store_is_an_error_of_its_kind(
    bucket: Any, uploaded: str, quick: None, monkeypatch: Any
) -> None:
    with pytest.raises(StoreError, match=rf"{bucket.url('nothing')}: there is no such store"):
        Store(bucket.url("nothing"))
    with pytest.raises(StoreError, match=r"deep: this is not a unistore store \(no zarr.json\)"):
        Store(bucket.url("deep"))
    bucket.put("begun/unistore-build.json", b"{}")
    with pytest.raises(StoreError, match="begun: this conversion is not finished"):
        Store(bucket.url("begun"))
    with pytest.raises(
        StoreError, match=r"bucket 'nobody-has-this'\. Fix: check its name and AWS_ENDPOINT_URL"
    ):
        Store("s3://nobody-has-this/x")


def test_a_wrong_endpoint_is_an_error_after_few_tries(
    quick: None, bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(
        StoreError, match=r"b/x/zarr\.json: there is no connection .*\(tried 3 times"
    ) as caught:
        Store("s3://b/x")
    assert "\n" not in str(caught.value)


def test_plain_http_is_refused_unless_allowed(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    with pytest.raises(StoreError, match="set AWS_ALLOW_HTTP=true"):
        Store("s3://b/x")


@pytest.mark.parametrize("status", [401, 403])
def test_denied_access_names_the_variables(proxy: Any, uploaded: str, status: int) -> None:
    proxy.spoil(status, times=99)
    with pytest.raises(StoreError, match=r"access denied. Fix: check AWS_ACCESS_KEY_ID") as caught:
        Store(uploaded)
    assert "\n" not in str(caught.value)
    assert proxy.count() == 1, "trying again would not help"


def test_a_web_server_serves_stores(
    bucket: Any, uploaded: str, server: str, sources: Path, truth: Any
) -> None:
    for key in bucket.keys("deep"):
        bucket.client.put_object_acl(Bucket=bucket.name, Key=key, ACL="public-read")
    url = f"http://{server}/{bucket.name}/deep/store.zarr"
    found = unistore.Dataset(url).read_batch([5, 599])["data"].values
    assert np.array_equal(found, truth(sources)["data"][[5, 599]])
    with pytest.raises(StoreError, match="no such store"):
        Store(f"{url}/rows/data/c")


@pytest.mark.parametrize("scheme", ["gs", "az"])
def test_google_and_azure_storage_read_the_same_values(
    bucket: Any, proxy: Any, uploaded: str, sources: Path, truth: Any, scheme: str, monkeypatch: Any
) -> None:
    """Objects that everybody may read have the same addresses there; ranges from the end differ."""
    proxy.unquotes = True
    for key in bucket.keys("deep"):
        bucket.client.put_object_acl(Bucket=bucket.name, Key=key, ACL="public-read")
    for name, value in {
        "GOOGLE_BASE_URL": f"http://{proxy.address}",
        "GOOGLE_SKIP_SIGNATURE": "true",
        "GOOGLE_ALLOW_HTTP": "true",
        "AZURE_STORAGE_ENDPOINT": f"http://{proxy.address}",
        "AZURE_STORAGE_ACCOUNT_NAME": "account",
        "AZURE_SKIP_SIGNATURE": "true",
        "AZURE_ALLOW_HTTP": "true",
    }.items():
        monkeypatch.setenv(name, value)
    dataset = unistore.Dataset(f"{scheme}://{bucket.name}/deep/store.zarr")
    found = dataset.read_batch([5, 599, 300])["data"].values
    assert np.array_equal(found, truth(sources)["data"][[5, 599, 300]])


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_reading_in_a_forked_process_is_an_error_at_once(uploaded: str) -> None:
    """Whether the dataset was only opened before, or read from."""
    dataset = unistore.Dataset(uploaded)
    options: dict[str, Any] = {"collate_fn": unistore.collate, "multiprocessing_context": "fork"}
    for _ in range(2):
        with pytest.raises(StoreError, match="cannot be read in a forked process") as error:
            list(DataLoader(dataset, 4, num_workers=1, **options))
        assert "multiprocessing_context='spawn'" in str(error.value)
        dataset.read_batch(range(300))


def test_loaders_give_what_the_local_store_gives(uploaded: str, local: Path) -> None:
    with unistore.Loader(unistore.Dataset(local), 64, shuffle=True, seed=1, num_workers=0) as near:
        expected = [batch["data"].clone() for batch in near]
    with unistore.Loader(unistore.Dataset(uploaded), 64, shuffle=True, seed=1, num_workers=0) as far:
        assert far.start_method == "spawn"
        assert all(map(torch.equal, [batch["data"].clone() for batch in far], expected))
    assert len(expected) > 5


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_counts_what_its_workers_repeat_and_find(
    proxy: Any, uploaded: str, sources: Path, truth: Any, tmp_path: Path, workers: int
) -> None:
    proxy.spoil(503, times=2, path="rows/data/c/")
    dataset = unistore.Dataset(uploaded, fields=["data"], cache_dir=tmp_path / "cache")
    with unistore.Loader(dataset, 300, num_workers=workers) as loader:
        list(loader)
        data = np.concatenate([batch["data"].numpy() for batch in loader])
        stats = loader.stats()
    np.testing.assert_array_equal(data, truth(sources)["data"])
    assert stats["store"] == uploaded
    assert stats["retries"] == 2
    shards = proxy.count("GET", "rows/data/c/") - 2
    assert 1 < shards <= stats["shard_misses"] <= shards + 1  # the manifest
    assert stats["shard_hits"] >= shards  # all of the second epoch


def test_documents_of_arrays_and_groups_come_with_the_root(uploaded: str, proxy: Any) -> None:
    store = Store(uploaded)
    for path in store.paths():
        store.array(path)
    store.group("splits")
    names = [seen.path.rpartition("/")[2] for seen in proxy.seen if seen.method == "GET"]
    assert names.count("zarr.json") == 1
