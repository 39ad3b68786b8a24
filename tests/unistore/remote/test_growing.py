"""Stores that grow in buckets: as in a folder, whatever is killed, by one process at a time."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest

import unistore
from tests.support.store_files import tree
from unistore.conversion.lock import LockedError
from unistore.conversion.steps import Conversion
from unistore.growing import compact
from unistore.growing.growth import growing
from unistore.remote.client import ObjectClient
from unistore.store.names import SOURCES

URL = "s3://bucket/p/s.zarr"
GROWTH = f"{URL}.unistore-growth"


class Killed(BaseException):
    """Ends a process: from here on it writes nothing."""


class Objects:
    """The functions of obstore over objects in memory, as if its stores were prefixes."""

    exceptions = obstore.exceptions

    def __init__(self) -> None:
        self.store = obstore.store.MemoryStore()
        self.conditional = "yes"
        self.left: int | None = None  # writes until the process is killed
        self._lock = threading.Lock()

    def write(self) -> None:
        with self._lock:
            if self.left is not None:
                if self.left == 0:
                    raise Killed
                self.left -= 1

    def put(self, prefix: str, key: str, body: Any, *, mode: Any = "overwrite", **options: Any) -> None:
        self.write()
        if mode == "create" and self.conditional == "refused":
            raise obstore.exceptions.NotSupportedError("no conditional put")
        mode = "overwrite" if self.conditional == "ignored" else mode
        obstore.put(self.store, f"{prefix}/{key}", body, mode=mode, **options)

    def copy(self, prefix: str, key: str, to: str) -> None:
        self.write()
        assert not prefix
        obstore.copy(self.store, key, to)

    def delete(self, prefix: str, keys: str | list[str]) -> None:
        for key in [keys] if isinstance(keys, str) else keys:
            self.write()
            obstore.delete(self.store, f"{prefix}/{key}")

    def get(self, prefix: str, key: str, **options: Any) -> Any:
        return obstore.get(self.store, f"{prefix}/{key}", **options)

    def get_range(self, prefix: str, key: str, **options: Any) -> Any:
        return obstore.get_range(self.store, f"{prefix}/{key}", **options)

    def head(self, prefix: str, key: str) -> Any:
        return obstore.head(self.store, f"{prefix}/{key}")

    def list(self, prefix: str, chunk_size: int) -> Iterator[list[Any]]:
        for page in obstore.list(self.store, prefix, chunk_size=chunk_size):
            yield [{**meta, "path": meta["path"].removeprefix(f"{prefix}/")} for meta in page]

    def content(self, prefix: str) -> dict[str, bytes]:
        (*pages,) = self.list(prefix, 1000)
        keys = [meta["path"] for page in pages for meta in page]
        return {key: bytes(self.get(prefix, key).bytes()) for key in keys}

    def reset(self, prefix: str, files: dict[str, bytes]) -> None:
        self.left = None
        self.delete(prefix, [*self.content(prefix)])
        for key, content in files.items():
            self.put(prefix, key, content)


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> Objects:
    """Objects of every bucket, in this process."""
    objects = Objects()
    monkeypatch.setattr(ObjectClient, "_connect", lambda client: (objects, client.location.prefix))
    return objects


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sources in ``old/`` and ``new/``; their stores, ``plain.zarr`` and, grown, those of `ACTIONS`."""
    folder = tmp_path_factory.mktemp("growing")
    for name, where in (("a", "old"), ("b", "old"), ("c", "new")):
        (folder / where).mkdir(exist_ok=True)
        values = np.random.default_rng(list(name.encode())).random((9, 3)).astype("f4")
        np.savez(folder / where / f"{name}.npz", x=values)
        os.utime(folder / where / f"{name}.npz", (1e9, 1e9))
    unistore.convert(folder / "old", folder / "plain.zarr")
    for name in ("append", "remove", "both"):
        shutil.copytree(folder / "plain.zarr", folder / f"{name}.zarr")
    unistore.append(folder / "new", folder / "append.zarr")
    unistore.remove(folder / "remove.zarr", "a.npz")
    unistore.append(folder / "new", folder / "both.zarr")
    unistore.remove(folder / "both.zarr", "a.npz")
    return folder


@pytest.fixture
def store(objects: Objects, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Objects:
    """The plain store at `URL`; the current folder is empty."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    objects.reset("p", uploaded(folder / "plain.zarr"))
    return objects


def values(store: Any) -> dict[str, Any]:
    dataset = unistore.Dataset(store, fields=["x", "source"])
    samples = [dataset[index] for index in range(len(dataset))]
    names = [sample["source"] for sample in samples]
    return {name: [s["x"].tolist() for s in samples if s["source"] == name] for name in names}


def without_times(objects: dict[str, bytes]) -> dict[str, bytes]:
    return {key: content for key, content in objects.items() if not key.endswith(SOURCES)}


def uploaded(store: Path) -> dict[str, bytes]:
    return {f"s.zarr/{key}": content for key, content in tree(store).items()}


def test_a_store_in_a_bucket_grows_like_one_in_a_folder(store: Objects, folder: Path, tmp_path: Path) -> None:
    sealed = ObjectClient(URL).sealed("zarr.json")
    appended = unistore.append(folder / "new", URL, work=tmp_path / "work")
    assert (appended.version, appended.report and appended.report.samples) == (2, 9)
    assert without_times(store.content("p")) == uploaded(folder / "append.zarr")
    first = unistore.Dataset(URL).parts[0].path
    assert ObjectClient(first).sealed("zarr.json") == sealed, "not the time of the copy"
    assert unistore.append(folder / "old", URL).skipped == ("a.npz", "b.npz")
    assert unistore.remove(URL, "a.npz").version == 3
    for _ in range(2):
        assert unistore.versions(URL, tag="paper")[2].tags == ("paper",)
    with pytest.raises(unistore.InputError, match="'paper' belongs to version 3"):
        unistore.versions(URL, tag="paper", version=1)
    with pytest.raises(unistore.InputError, match=r"has no version 'draft'\. Fix: use one of paper"):
        len(unistore.Dataset(URL, version="draft"))
    unistore.compact(URL, tmp_path / "one.zarr", version="paper")
    unistore.compact(folder / "both.zarr", tmp_path / "other.zarr")
    assert tree(tmp_path / "one.zarr") == tree(tmp_path / "other.zarr")
    assert without_times(store.content("p")) == {
        **uploaded(folder / "both.zarr"),
        "s.zarr/tags/paper": b"3\n",
    }
    assert not [*Path().iterdir()]


def test_a_removal_survives_a_server_that_fails_now_and_then(
    bucket: Any, proxy: Any, quick: None, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for key, content in uploaded(folder / "plain.zarr").items():
        bucket.put(key, content)
    for method, path in (("PUT", "versions/2.json"), ("PUT", "zarr/rows/x/c/0/0"), ("POST", "delete")):
        proxy.spoil(503, method=method, path=path, times=2)
    proxy.spoil(500, method="PUT", path="zarr/zarr.json")
    proxy.spoil("drop", method="PUT", path="unistore-growth/", times=2)
    unistore.remove(bucket.url("s.zarr"), "a.npz")
    assert not any(rule["left"] for rule in proxy.rules)
    assert bucket.objects() == uploaded(folder / "remove.zarr")
    assert not [*tmp_path.iterdir()]


ACTIONS: dict[str, Callable[[Path], object]] = {
    "append": lambda folder: unistore.append(folder / "new", URL),
    "remove": lambda _: unistore.remove(URL, "a.npz"),
}


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "stride"), [("append", 12), ("remove", 1)])
def test_growth_killed_at_any_write_leaves_the_old_version_or_the_new_one(
    store: Objects, folder: Path, name: str, stride: int
) -> None:
    plain = store.content("p")
    grown = uploaded(folder / f"{name}.zarr")
    new = values(folder / f"{name}.zarr")
    old = values(folder / "plain.zarr")
    seen = []
    for step in range(0, 400, stride):
        store.reset("p", plain)
        store.left = step
        try:
            ACTIONS[name](folder)
        except Killed:
            store.left = None
        else:
            break
        seen.append(values(URL))
        assert seen[-1] in (old, new)
        if name == "append":
            ACTIONS[name](folder)
        else:  # which first finishes what was begun, and then may find nothing to remove
            with suppress(unistore.InputError):
                ACTIONS[name](folder)
        assert without_times(store.content("p")) == grown
        assert not [*Path().iterdir()]
    assert without_times(store.content("p")) == grown
    assert seen.index(new) > 5, "some were killed before and some after the root was deleted"


def test_a_second_writer_of_a_store_is_an_error(store: Objects, folder: Path, tmp_path: Path) -> None:
    with growing(URL):
        with pytest.raises(LockedError):
            unistore.remove(URL, "a.npz")
        with pytest.raises(unistore.ConversionError, match=r"is writing the next version on .* in .*here"):
            unistore.append(folder / "new", URL, work=tmp_path / "there")
    assert values(URL) == values(folder / "plain.zarr")
    store.put("p/s.zarr", "tags/x", b"of a client that heeds no mark")
    with growing(URL) as growth:
        match = "tags/x: another process wrote it"
        with pytest.raises(unistore.ConversionError, match=match):
            growth.place.create("tags/x", b"1")
    assert values(URL) == values(folder / "plain.zarr")


def test_a_process_that_was_cleaned_away_leaves_what_the_next_one_makes(store: Objects) -> None:
    theirs = {"unistore-build.json": b'{"token": "theirs"}', "new.zarr/rows/x/c/0/0": b"theirs"}
    with growing(URL) as growth:
        store.reset("p/s.zarr.unistore-growth", theirs)
        with pytest.raises(unistore.ConversionError, match="another process is writing the next version"):
            growth.commit(growth.version.parts, growth.version.schemas)
    assert store.content("p/s.zarr.unistore-growth") == theirs


def test_what_a_killed_process_left_is_found_and_cleaned(
    store: Objects, folder: Path, tmp_path: Path
) -> None:
    store.left = 20
    with pytest.raises(Killed):
        ACTIONS["append"](folder)
    store.left = None
    with pytest.raises(unistore.ConversionError, match=f"unistore clean {GROWTH} --remove"):
        unistore.append(folder / "new", URL, work=tmp_path / "there")
    (found,) = unistore.clean("s3://bucket/p", remove=True)
    assert "to remove it" in found.kept
    assert found.files == len(store.content("p/s.zarr.unistore-growth")) > 10
    (found,) = unistore.clean(GROWTH, remove=True)
    assert found.removed
    assert not store.content("p/s.zarr.unistore-growth")
    unistore.append(folder / "new", URL, work=tmp_path / "there")
    assert without_times(store.content("p/s.zarr")) == tree(folder / "append.zarr")
    ObjectClient(URL, writing=True).put("unistore-build.json", [b"{}"])  # left over by its conversion
    (found,) = unistore.clean(URL, remove=True)
    assert (found.files, found.removed) == (1, True)
    assert without_times(store.content("p/s.zarr")) == tree(folder / "append.zarr")


def _without_condition(store: Objects) -> None:
    store.conditional = "refused"


def _with_ignored_condition(store: Objects) -> None:
    store.conditional = "ignored"


def _beside_side_tables(store: Objects) -> None:
    store.put("p/s.zarr.unistore-side", "prediction.json", b"{}")


def _with_a_cut_manifest(store: Objects) -> None:
    manifest = bytes(store.get("p/s.zarr", "unistore-manifest.jsonl").bytes())
    store.put("p/s.zarr", "unistore-manifest.jsonl", manifest[: manifest.index(b"\n") + 1])


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (_without_condition, "has no conditional put .*append to a local copy, and upload it"),
        (_with_ignored_condition, "has no conditional put .*append to a local copy, and upload it"),
        (_beside_side_tables, "added columns cannot be kept .*append to a local copy"),
        (_with_a_cut_manifest, "manifest.jsonl: differs from the manifest that was sealed"),
        (lambda store: store.delete("p/s.zarr", "rows/x/c/0/0"), "rows/x/c/0/0: no such object"),
    ],
)
def test_a_store_that_cannot_grow_is_refused_and_stays(
    store: Objects, prepare: Callable[[Objects], object], message: str
) -> None:
    prepare(store)
    before = store.content("p/s.zarr")
    with pytest.raises(unistore.UnistoreError, match=message):
        unistore.remove(URL, "a.npz")
    after = store.content("p/s.zarr")
    assert {
        key: content for key, content in after.items() if key.split("/")[0] not in ("versions", "parts")
    } == before
    assert not store.content("p/s.zarr.unistore-growth")
    assert not [*Path().iterdir()]


@pytest.mark.parametrize(
    ("told", "is_taken"), [(-600.0, True), (600.0, False), ("soon", False), ("nan", False)]
)
def test_the_seal_has_the_earlier_time_of_two_clocks(store: Objects, told: Any, is_taken: bool) -> None:
    """A source that was changed after the seal must not look older than it."""
    client = ObjectClient(URL, writing=True)
    put = client.described("zarr.json").modified
    stated = put + told if isinstance(told, float) else told
    client.put("zarr.json", [b"{}"], sealed=stated)
    if is_taken:
        assert client.sealed("zarr.json") == stated
    else:
        assert client.sealed("zarr.json") == client.described("zarr.json").modified


def test_a_store_that_is_replaced_while_it_is_compacted_is_told(
    store: Objects, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unistore.convert(folder / "new", tmp_path / "other.zarr")
    execute = compact.execute

    def replacing(conversion: Conversion, split: Any) -> Any:
        store.reset("p", uploaded(tmp_path / "other.zarr"))
        return execute(conversion, split)

    monkeypatch.setattr(compact, "execute", replacing)
    with pytest.raises(unistore.StoreError, match="was replaced or moved since it was opened"):
        unistore.compact(URL, tmp_path / "one.zarr")
