"""Conversion into a bucket: same bytes as to a folder, the root last, resumable, nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

import unistore
from tests.support.executors import Disturbing, Stopping
from tests.support.problems import of_kind
from tests.support.programs import call
from tests.support.store_files import tree
from tests.support.waiting import wait_until
from tests.unistore.remote.conftest import process_of
from unistore.conversion import keys, lock
from unistore.conversion import plan as layout
from unistore.conversion.executors.local import Serial
from unistore.conversion.run import run
from unistore.conversion.settings import Settings
from unistore.errors import ConversionError, InputError, StoreError
from unistore.store.names import SOURCES
from unistore.store.reader import Store
from unistore.system.progress import COUNTS

MARK = "unistore-build.json"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    return tmp_path / "work"


@pytest.fixture
def rows() -> Any:
    from tests.support.family_converters import rows as converter

    return converter


def test_the_bytes_are_those_of_a_local_store(bucket: Any, sources: Path, local: Path, work: Path) -> None:
    report = unistore.convert(sources, bucket.url("a/train.zarr"), work=work)
    assert report.destination == bucket.url("a/train.zarr")
    assert bucket.objects("a/train.zarr/") == tree(local)
    assert bucket.keys() == [f"a/train.zarr/{key}" for key in sorted([*tree(local), SOURCES])]
    assert report.digest == Store(local).attributes["seal"]["digest"]
    assert Store(bucket.url("a/train.zarr")).sample_count == 600
    assert not work.exists() or not list(work.iterdir()), "nothing is left locally"


def test_a_store_in_a_bucket_has_codecs_that_save_bytes(bucket: Any, tmp_path: Path, work: Path) -> None:
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (20, 800, 800), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", noise=noise, few=rng.integers(0, 4, (20, 256, 256), dtype=np.uint8))
    unistore.convert(tmp_path / "a.npz", tmp_path / "a.zarr", "rows")
    unistore.convert(tmp_path / "a.npz", bucket.url("a.zarr"), "rows", work=work)
    codecs = [
        Store(path).attributes["options"]["found"]["codecs"]
        for path in (tmp_path / "a.zarr", bucket.url("a.zarr"))
    ]
    assert codecs[0] == {"rows/few": "none random", "rows/noise": "none"}
    assert codecs[1] == {"rows/few": "lz4 bitshuffle 1", "rows/noise": "none"}
    assert unistore.verify(bucket.url("a.zarr"), against=tmp_path / "a.npz").ok


def test_a_job_after_the_seal_changes_nothing_in_the_bucket(
    bucket: Any, make_sources: Any, tmp_path: Path, work: Path
) -> None:
    sources = make_sources(tmp_path / "rows")
    url = bucket.url("a.zarr")
    second = int(time.time())  # the server tells the time of the seal in whole seconds
    wait_until(lambda: time.time() > second + 1, "the clock stands still")
    first, last = (unistore.convert(sources, url, work=work, part=part) for part in ("1/2", "2/2"))
    assert first.unfinished_parts == (2,)
    before = bucket.objects("a.zarr/")
    for late in ({"part": "1/2"}, {"seal": True}):
        assert unistore.convert(sources, url, work=work, **late).digest == last.digest
    assert call("convert", str(sources), url, "--work", str(work), "--part", "2/2") == 0
    os.utime(sources / "0.npz")
    with pytest.raises(InputError, check=of_kind("exists")):
        unistore.convert(sources, url, work=work, part="1/2")
    assert bucket.objects("a.zarr/") == before
    assert not list(work.iterdir())


def test_the_root_is_put_last(proxy: Any, bucket: Any, sources: Path, work: Path) -> None:
    unistore.convert(sources, bucket.url("x.zarr"), work=work)
    written = [seen.path.partition("x.zarr/")[2] for seen in proxy.seen if seen.method == "PUT"]
    assert written[0] == MARK, "says first whose this is"
    assert written[-2:] == ["unistore-manifest.jsonl", "zarr.json"]
    assert len(written) == len(set(written)), "nothing twice"
    root = [seen.method == "PUT" and seen.path.endswith("x.zarr/zarr.json") for seen in proxy.seen]
    put = root.index(True)
    after = [seen for seen in proxy.seen[put + 1 :] if seen.method in ("PUT", "DELETE", "POST")]
    assert all(MARK in seen.path or seen.method == "POST" for seen in after), "but for the mark"


def test_no_copy_of_the_store_is_made_locally(
    proxy: Any, bucket: Any, sources: Path, work: Path, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    # the journal has the ends of each source's columns, of less than a block each: shards are small here
    monkeypatch.setattr(keys, "IDENTITY_BLOCK", 64)

    class Watching(Disturbing):
        def disturbed(self, job: Any, items: Any) -> Iterator[Any]:
            for step in Serial().run(job, items):
                files = [path for path in work.rglob("*") if path.is_file() and "parts" not in path.parts]
                sizes.append(sum(path.stat().st_size for path in files))
                yield step

    run(rows(), [sources], bucket.url("x.zarr"), Settings(work=work), executor=Watching())
    # beside the samples of codec="auto", at most 16 MiB a table
    assert 0 < max(sizes) < 8000 < sum(map(len, bucket.objects("x.zarr").values())) / 5


@pytest.mark.parametrize("after", [0, 3])
def test_the_same_command_continues_an_interrupted_conversion(
    proxy: Any, bucket: Any, sources: Path, local: Path, work: Path, rows: Any, after: int
) -> None:
    url = bucket.url("x.zarr")
    with pytest.raises(KeyboardInterrupt):
        run(rows(), [sources], url, Settings(work=work), executor=Stopping(after))
    with pytest.raises(StoreError, match="this conversion is not finished"):
        Store(url)
    bucket.put("x.zarr/rows/data/c/77/0", b"left by somebody")
    proxy.seen.clear()
    report = run(rows(), [sources], url, Settings(work=work))
    assert report.resumed == after
    shards = {seen.path for seen in proxy.seen if seen.method == "PUT" and "/rows/data/c/" in seen.path}
    assert len(shards) == 5 - after, "what is there is not put again"
    assert bucket.objects("x.zarr") == tree(local)
    assert not list(work.iterdir())


def convert_small_shards(sources: str, url: str, work: str, overwrite: str = "") -> None:
    """In a process of its own, where the fixture of small shards does not reach."""
    layout.SHARD, layout.ROW_CHUNK = 16 << 10, 2 << 10
    unistore.convert(sources, url, "rows", work=work, overwrite=bool(overwrite))


def killed(proxy: Any, arguments: list[str], method: str, path: str, skip: int) -> None:
    """Run a conversion and kill it when a request arrives (which is carried out), after `skip` like it."""
    process = process_of(convert_small_shards, *arguments)
    proxy.spoil("kill", method=method, path=path, skip=skip, act=process.kill)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    proxy.settle()


def convert_part_on(host: str, sources: str, url: str, work: str, part: str) -> None:
    """As a machine of another name would, which flock and the boot do not tell from this one."""
    socket.gethostname = lambda: host
    lock._machine = lambda: host  # type: ignore[attr-defined]
    lock.DEAD_AFTER, lock.BEAT = 2.0, 0.2
    layout.SHARD, layout.ROW_CHUNK = 16 << 10, 2 << 10
    unistore.convert(sources, url, "rows", work=work, part=part)


@pytest.mark.timeout(120)
def test_killed_jobs_of_two_machines_are_continued(
    proxy: Any, bucket: Any, sources: Path, local: Path, work: Path
) -> None:
    url = bucket.url("x.zarr")

    def begin(number: int) -> Any:
        words = (f"host-{number % 2}", str(sources), url, str(work), f"{number}/4")
        job = process_of(convert_part_on, *words)
        job.start()
        return job

    jobs = [begin(number) for number in range(1, 5)]
    for victim in jobs[:2]:  # of one machine each, while they write
        wait_until(lambda: proxy.count("PUT", "/rows/") or not victim.is_alive(), "nothing is written")  # noqa: B023
        victim.kill()
    for job in jobs:
        job.join()
    proxy.settle()
    assert jobs[0].exitcode == -signal.SIGKILL
    again = [begin(1), begin(2)]
    for job in again:
        job.join()
    assert [job.exitcode for job in (*jobs[2:], *again)] == [0] * 4
    assert bucket.objects("x.zarr") == tree(local)
    assert not list(work.iterdir())


@pytest.mark.parametrize("step", [("PUT", MARK, 0), ("PUT", "x.zarr/zarr.json", 0)])
def test_a_conversion_killed_anywhere_is_continued(
    proxy: Any, bucket: Any, sources: Path, local: Path, work: Path, step: tuple[str, str, int]
) -> None:
    url = bucket.url("x.zarr")
    killed(proxy, [str(sources), url, str(work)], *step)
    report = unistore.convert(sources, url, work=work)
    assert bucket.objects("x.zarr") == tree(local)
    assert report.digest == Store(local).attributes["seal"]["digest"]
    assert not list(work.iterdir())


@pytest.mark.parametrize(
    ("key", "content"),
    [
        ("x.zarr/thesis.tex", b"precious"),
        ("x.zarr/zarr.json", b'{"zarr_format": 3, "node_type": "group", "attributes": {}}'),
    ],
)
def test_objects_that_are_not_a_store_are_an_error_and_stay_unchanged(
    bucket: Any, sources: Path, work: Path, rows: Any, key: str, content: bytes
) -> None:
    bucket.put(key, content)
    for options in ({}, {"overwrite": True}, {"overwrite": True, "restart": True}):
        with pytest.raises(InputError, match="choose another place"):
            run(rows(), [sources], bucket.url("x.zarr"), Settings(work=work, **options))
    assert bucket.objects() == {key: content}
    assert not work.exists()


def test_objects_with_a_similar_prefix_stay_unchanged(
    bucket: Any, sources: Path, local: Path, work: Path, rows: Any
) -> None:
    bucket.put("x.zarr.txt", b"a")
    bucket.put("x.zarr2/b", b"b")
    run(rows(), [sources], bucket.url("x.zarr"), Settings(work=work))
    run(rows(), [sources], bucket.url("x.zarr"), Settings(work=work, overwrite=True))
    assert bucket.get("x.zarr.txt") == b"a"
    assert bucket.get("x.zarr2/b") == b"b"
    assert len(bucket.keys()) == 2 + len([*tree(local), SOURCES])


@pytest.fixture
def others(tmp_path: Path, make_sources: Callable[..., Path]) -> Path:
    """Other sources, which make a store of fewer shards."""
    return make_sources(tmp_path / "others", files=1, seed=5)


@pytest.fixture
def other(tmp_path: Path, others: Path) -> Path:
    """The local store of the other sources."""
    unistore.convert(others, tmp_path / "other.zarr")
    return tmp_path / "other.zarr"


def test_overwrite_replaces_a_store(
    proxy: Any, bucket: Any, sources: Path, others: Path, other: Path, work: Path, rows: Any
) -> None:
    url = bucket.url("x.zarr")
    run(rows(), [sources], url, Settings(work=work))
    proxy.seen.clear()
    run(rows(), [others], url, Settings(work=work, overwrite=True))
    assert bucket.objects() == {f"x.zarr/{key}": content for key, content in tree(other).items()}
    assert not list(work.iterdir())
    gone = next(i for i, seen in enumerate(proxy.seen) if seen.method in ("POST", "DELETE"))
    copied = [seen for seen in proxy.seen[gone:] if seen.method == "PUT"]
    assert len(copied) >= len(tree(other)) - 1, "the new store was whole before the old one was touched"


@pytest.mark.parametrize("place", ["bucket", "folder"])
def test_open_readers_are_told_of_a_replacement(
    bucket: Any, make_sources: Callable[..., Path], truth: Any, tmp_path: Path, work: Path, place: str
) -> None:
    """Both stores have chunks of the same sizes at the same places."""
    url = bucket.url("x.zarr") if place == "bucket" else str(tmp_path / "x.zarr")
    options = {"codec": "none", "work": work if place == "bucket" else None}
    old, new = (make_sources(tmp_path / name, seed=seed) for name, seed in (("old", 1), ("new", 2)))
    unistore.convert(old, url, **options)
    expected = truth(old)["data"]
    untouched, begun, busy = (Store(url) for _ in range(3))
    begun.array("rows/data").read_rows([0])
    array = busy.array("rows/data")
    to_a_worker = pickle.dumps(busy)
    replacing = Thread(target=partial(unistore.convert, new, url, overwrite=True, **options))
    replacing.start()
    reads = 0
    while replacing.is_alive():  # none gives rows of the new store
        for row in (reads % 600, 599 - reads % 600):
            with contextlib.suppress(StoreError):
                assert np.array_equal(array.read_rows([row])[0], expected[row])
        reads += 1
    replacing.join()
    assert np.array_equal(Store(url).array("rows/data").read(), truth(new)["data"])
    for row in (1, 300, 599):  # chunks in memory, and files that are open, are those of the old store
        with contextlib.suppress(StoreError):
            assert np.array_equal(array.read_rows([row])[0], expected[row])
    for store in (untouched, begun):
        with pytest.raises(StoreError, match="was replaced or moved since it was opened"):
            store.array("rows/data").read_rows([599])
    with pytest.raises(StoreError, match="was replaced or moved since it was opened"):
        pickle.loads(to_a_worker)


def test_overwrite_keeps_the_old_store_until_the_new_one_is_sealed(
    bucket: Any, sources: Path, local: Path, others: Path, other: Path, work: Path, rows: Any
) -> None:
    url = bucket.url("x.zarr")
    run(rows(), [sources], url, Settings(work=work))
    with pytest.raises(KeyboardInterrupt):
        run(rows(), [others], url, Settings(work=work, overwrite=True), executor=Stopping(1))
    assert bucket.objects("x.zarr/") == tree(local)
    with pytest.raises(InputError, match="--overwrite"):
        run(rows(), [others], url, Settings(work=work))
    assert run(rows(), [others], url, Settings(work=work, overwrite=True)).resumed == 1
    assert bucket.objects() == {f"x.zarr/{key}": content for key, content in tree(other).items()}


@pytest.mark.parametrize(
    "step",
    [
        ("PUT", "store.zarr/rows/data/c/0", 0),
        ("PUT", "store.zarr/zarr.json", 0),
        ("POST", "delete", 3),
    ],
)
def test_a_killed_swap_leaves_the_old_store_or_the_new_one(
    proxy: Any,
    bucket: Any,
    uploaded: str,
    local: Path,
    others: Path,
    other: Path,
    work: Path,
    step: tuple[str, str, int],
) -> None:
    killed(proxy, [str(others), uploaded, str(work), "overwrite"], *step)
    found = bucket.objects("deep/store.zarr/")
    if "zarr.json" in found:
        whole = tree(local) if found["zarr.json"] == tree(local)["zarr.json"] else tree(other)
        found.pop(MARK, None)
        assert found == whole, "never a mixture"
    else:
        with pytest.raises(StoreError, match="this conversion is not finished"):
            Store(uploaded)
    unistore.convert(others, uploaded, work=work, overwrite=True)
    assert bucket.objects() == {f"deep/store.zarr/{key}": content for key, content in tree(other).items()}
    assert not list(work.iterdir())


def test_another_machine_is_told_who_converts(
    bucket: Any, sources: Path, local: Path, tmp_path: Path, rows: Any
) -> None:
    url = bucket.url("x.zarr")
    with pytest.raises(KeyboardInterrupt):
        run(rows(), [sources], url, Settings(work=tmp_path / "here"), executor=Stopping(2))
    with pytest.raises(ConversionError, match=r"was started on .* in .*here/x\.zarr.*--restart"):
        run(rows(), [sources], url, Settings(work=tmp_path / "there"))
    report = run(rows(), [sources], url, Settings(work=tmp_path / "there", restart=True))
    assert report.resumed == 0
    assert bucket.objects("x.zarr") == tree(local)
    with pytest.raises(InputError, match="another store was finished here meanwhile"):
        run(rows(), [sources], url, Settings(work=tmp_path / "here"))
    assert bucket.objects("x.zarr") == tree(local)


def test_a_destination_taken_over_meanwhile_is_not_sealed(
    bucket: Any, sources: Path, work: Path, rows: Any
) -> None:
    class TakenOver(Disturbing):
        def disturbed(self, job: Any, items: Any) -> Iterator[Any]:
            yield from Serial().run(job, items)
            bucket.put(f"x.zarr/{MARK}", json.dumps({"token": "other", "host": "h", "folder": "f"}).encode())

    with pytest.raises(ConversionError, match="was started on h in f"):
        run(rows(), [sources], bucket.url("x.zarr"), Settings(work=work), executor=TakenOver())
    with pytest.raises(StoreError, match="this conversion is not finished"):
        Store(bucket.url("x.zarr"))


def test_bad_sources_leave_nothing(bucket: Any, sources: Path, work: Path, rows: Any) -> None:
    class Spoiling(Disturbing):
        def disturbed(self, job: Any, items: Any) -> Iterator[Any]:
            for number, step in enumerate(Serial().run(job, items)):
                yield step
                if number == 1:
                    raise InputError("a source is bad")

    with pytest.raises(InputError, match="a source is bad"):
        run(rows(), [sources], bucket.url("x.zarr"), Settings(work=work), executor=Spoiling())
    assert not bucket.keys()
    assert not work.exists() or not list(work.iterdir())


@pytest.mark.nightly
def test_a_shortened_or_lost_upload_is_repeated(
    proxy: Any,
    bucket: Any,
    sources: Path,
    local: Path,
    work: Path,
    quick: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proxy.spoil("lose", method="PUT", path="rows/data/c/1/0")
    proxy.spoil("drop", method="PUT", path="rows/data/c/2/0", times=2)
    proxy.spoil(503, method="PUT", path="x.zarr/zarr.json", times=3)
    before = COUNTS["retries"]
    unistore.convert(sources, bucket.url("x.zarr"), work=work, workers=1)
    assert COUNTS["retries"] - before == 6, "those of the worker, too"
    assert bucket.objects("x.zarr") == tree(local)
    proxy.spoil("lose", method="PUT", path="rows/data/c/1/0", times=99)
    with pytest.raises(
        ConversionError, match=r"c/1/0: only [\d,]+ of [\d,]+ bytes arrived .*run the same command"
    ):
        unistore.convert(sources, bucket.url("y.zarr"), work=work)


def test_an_upload_that_fails_is_continued(
    proxy: Any, bucket: Any, sources: Path, local: Path, work: Path, quick: None
) -> None:
    proxy.spoil(503, method="PUT", path="rows/data/c/3/0", times=10**6)
    with pytest.raises(ConversionError, match=r"the server answers 503 .* then run the same command"):
        unistore.convert(sources, bucket.url("x.zarr"), work=work)
    proxy.rules.clear()
    assert unistore.convert(sources, bucket.url("x.zarr"), work=work).resumed == 3
    assert bucket.objects("x.zarr") == tree(local)


def test_google_s_dialect_is_written_too(
    proxy: Any, bucket: Any, sources: Path, local: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys are escaped otherwise, requests carry a token; deleting goes one by one."""
    proxy.unquotes = True
    monkeypatch.setenv("GOOGLE_BASE_URL", f"http://{proxy.address}")
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "token")
    monkeypatch.setenv("GOOGLE_ALLOW_HTTP", "true")
    bucket.client.put_bucket_acl(Bucket=bucket.name, ACL="public-read-write")
    unistore.convert(sources, f"gs://{bucket.name}/x.zarr", work=work)
    assert bucket.objects("x.zarr") == tree(local)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://bucket", "write to s3://bucket/name.zarr"),
        ("https://host/x.zarr", "a store cannot be written to"),
    ],
)
def test_a_url_that_cannot_be_written_is_an_error(sources: Path, rows: Any, url: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        run(rows(), [sources], url)


def test_the_build_folder_is_never_among_the_sources(
    bucket: Any, sources: Path, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(sources)
    with pytest.raises(InputError, match="choose another folder with --work"):
        run(rows(), [Path()], bucket.url("x.zarr"))
    assert not bucket.keys()


def test_clean_removes_only_the_conversion_that_is_named(bucket: Any, sources: Path, work: Path) -> None:
    unistore.convert(sources, bucket.url("a/done.zarr"), work=work)
    unistore.convert(sources, bucket.url("a/begun.zarr"), work=work, part="1/2")
    bucket.put("a/begun.zarr-not/x", b"mine")
    (found,) = unistore.clean(bucket.url("a"), remove=True)
    assert found.path.startswith(bucket.url("a/begun.zarr (begun on "))
    assert "to remove it" in found.kept
    keys = bucket.keys("a/begun.zarr/")
    assert found.files == len(keys) > 1
    (found,) = unistore.clean(bucket.url("a/begun.zarr"), remove=True)
    assert found.removed
    assert bucket.keys("a/begun.zarr/") == []
    assert bucket.keys("a/begun.zarr-not/") == ["a/begun.zarr-not/x"]
    assert unistore.verify(bucket.url("a/done.zarr")).ok


def test_objects_of_others_where_the_new_store_is_staged_are_never_touched(
    bucket: Any, sources: Path, others: Path, local: Path, work: Path, rows: Any
) -> None:
    url = bucket.url("x.zarr")
    run(rows(), [sources], url, Settings(work=work))
    bucket.put("x.zarr.unistore-build/notes.txt", b"mine")
    for restart in (False, True):
        settings = Settings(work=work, overwrite=True, restart=restart)
        with pytest.raises(InputError, match=r"x\.zarr\.unistore-build: .*other objects are here"):
            run(rows(), [others], url, settings)
    assert bucket.objects("x.zarr/") == tree(local)
    assert bucket.get("x.zarr.unistore-build/notes.txt") == b"mine"
