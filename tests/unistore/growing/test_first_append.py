"""Readers beside the command that makes a plain store a grown one: none fails, whenever it looks."""

from __future__ import annotations

import os
import pickle
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import unistore
from unistore.zarr3 import durable

ROWS = {"a": 300, "b": 200, "c": 400}
VALUES = {name: np.random.default_rng(rows).random((rows, 3)) for name, rows in ROWS.items()}
WEIGHT = np.arange(sum(ROWS.values()), dtype=np.int32)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the store of three sources that never grew, of many files, and a side table of it."""
    folder = tmp_path_factory.mktemp("plain")
    (folder / "src").mkdir()
    for name, values in VALUES.items():
        columns = {f"y{number}": values[:, 0] + number for number in range(12)}
        np.savez(folder / "src" / f"{name}.npz", x=values, **columns)
    unistore.convert(folder / "src", folder / "s.zarr")
    unistore.attach(folder / "s.zarr", "weight", WEIGHT)
    return folder


def plain_copy(plain: Path, folder: Path) -> Path:
    shutil.copytree(plain, folder)
    return folder / "s.zarr"


def check_all(store: unistore.Dataset, versions: tuple[str, ...] = ("abc", "bc")) -> None:
    """Read all rows of a dataset, and see that they are those of a version."""
    batches = unistore.Loader(store, batch_size=64, num_workers=0)
    rows = [(batch["x"].numpy(), batch["weight"].numpy()) for batch in batches]
    read = np.concatenate([x for x, _ in rows])
    weight = np.concatenate([numbers for _, numbers in rows])
    for sources in versions:
        expected = np.concatenate([VALUES[name] for name in sources])
        if len(expected) == len(read):
            np.testing.assert_array_equal(read, expected)
            np.testing.assert_array_equal(weight, WEIGHT[-len(read) :])
            return
    raise AssertionError(len(read))


def opened(store: Path) -> unistore.Dataset:
    return unistore.Dataset(store, fields=["x", "weight"])


def grow_slowly(store: Path, pause: float) -> None:
    """Make the second version of a store in this process, which rests at each call that readers may see."""

    def slow(function: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: object) -> None:
            function(*arguments)
            time.sleep(pause)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("rename", "sync_folder"):
            patch.setattr(durable, name, slow(getattr(durable, name)))
        unistore.remove(store, "a.npz")


def in_child(action: Callable[[], object]) -> int:
    child = os.fork()
    if child == 0:
        try:
            action()
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", flush=True)
            os._exit(1)
        os._exit(0)
    return child


def count_reads(store: Path, pause: float) -> int:
    """Open and read the store time and again while another process grows it; returns how often."""
    writer = in_child(lambda: grow_slowly(store, pause))
    reads = 0
    status = 0
    while status == 0:
        check_all(opened(store))
        reads += 1
        ended, code = os.waitpid(writer, os.WNOHANG)
        status = ended
    assert code == 0
    check_all(opened(store), ("bc",))
    return reads


def test_every_read_beside_a_first_append_is_whole(tmp_path: Path, plain: Path) -> None:
    store = plain_copy(plain, tmp_path / "1")
    assert count_reads(store, 0.002) >= 5
    assert sorted(path.name for path in store.parent.iterdir()) == ["s.zarr", "src"]
    assert sorted(path.name for path in store.iterdir()) == ["parts", "versions"]


@pytest.mark.nightly
def test_seven_hundred_reads_beside_first_appends_are_whole(tmp_path: Path, plain: Path) -> None:
    rng = np.random.default_rng(1)
    reads = 0
    for trial in range(1000):
        store = plain_copy(plain, tmp_path / str(trial))
        reads += count_reads(store, rng.choice([0, 1e-4, 5e-4, 2e-3]))
        shutil.rmtree(store.parent)
        if reads >= 700 and trial >= 20:
            break
    assert reads >= 700


def test_readers_that_opened_before_go_on(tmp_path: Path, plain: Path) -> None:
    store = plain_copy(plain, tmp_path / "1")
    half_read = opened(store)
    half_read[0]
    unread = opened(store)
    pickled = pickle.dumps(unread)
    lone = unistore.Store(store)
    batches = iter(unistore.Loader(opened(store), batch_size=64, num_workers=2))
    next(batches)
    unistore.remove(store, "a.npz")
    check_all(half_read, ("abc",))
    check_all(unread, ("abc",))
    check_all(pickle.loads(pickled), ("abc",))
    np.testing.assert_array_equal(lone.array("rows/x").read(), np.concatenate([*VALUES.values()]))
    assert sum(len(batch["x"]) for batch in batches) == sum(ROWS.values()) - 64
    del batches
    check_all(opened(store), ("bc",))


def test_a_store_that_another_one_replaced_is_opened_again(tmp_path: Path, plain: Path) -> None:
    store = plain_copy(plain, tmp_path / "1")
    before = unistore.Store(store)
    np.savez(tmp_path / "other.npz", x=np.ones((4, 3)))
    unistore.convert(tmp_path / "other.npz", store, overwrite=True)
    with pytest.raises(unistore.StoreError, match="was replaced or moved since it was opened"):
        before.array("rows/x").read()
    unistore.remove(plain_copy(plain, tmp_path / "2"), "a.npz")
    assert unistore.Store(store).array("rows/x").read().tolist() == np.ones((4, 3)).tolist()


@pytest.mark.parametrize("refusal", [PermissionError, OSError])
def test_files_that_cannot_be_linked_are_copied(
    tmp_path: Path, plain: Path, refusal: type[OSError], monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = [plain_copy(plain, tmp_path / name) for name in ("linked", "copied")]
    unistore.remove(stores[0], "a.npz")
    link = durable.link

    def refuse(path: Path, target: Path) -> None:
        if "versions" not in Path(target).parts:
            raise refusal(95, "Operation not supported")
        link(path, target)

    monkeypatch.setattr(durable, "link", refuse)
    unistore.remove(stores[1], "a.npz")
    files = []
    for store in stores:
        paths = [path for path in (store / "parts").rglob("*") if path.is_file()]
        files.append({path.relative_to(store): path.read_bytes() for path in paths})
    assert files[0] == files[1]
    check_all(opened(stores[1]), ("bc",))


def test_a_column_attached_during_the_first_append_is_kept(tmp_path: Path, plain: Path) -> None:
    """A side table that is attached once all files were linked, and a folder that a version would take."""
    store = plain_copy(plain, tmp_path / "1")
    other = np.arange(sum(ROWS.values()), dtype=np.float32)
    with pytest.MonkeyPatch.context() as patch:
        rename = durable.rename

        def attach_first(path: Path, target: Path) -> None:
            if Path(path).name == "versions":
                patch.undo()
                unistore.attach(store, "late", other)
            rename(path, target)

        patch.setattr(durable, "rename", attach_first)
        unistore.remove(store, "a.npz")
    dataset = unistore.Dataset(store, fields=["late", "weight"])
    assert dataset[0]["late"] == other[ROWS["a"]]
    assert dataset[0]["weight"] == WEIGHT[ROWS["a"]]
    taken = plain_copy(plain, tmp_path / "2")
    (taken / "parts").mkdir()
    with pytest.raises(unistore.InputError, match=r"s\.zarr: has a folder 'parts' with data"):
        unistore.remove(taken, "a.npz")
    assert len(opened(taken)) == sum(ROWS.values())
