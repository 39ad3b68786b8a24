"""Replay buffers of diffusion policy, as zarr-python writes them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numcodecs import LZ4, Blosc, GZip, Pickle, Zlib, Zstd
from zarr.storage import LocalStore, ZipStore

import unistore
from unistore.converters.formats.replay_zarr import ReplayZarr
from unistore.converters.opened import SourceFile
from unistore.errors import InputError
from unistore.testing import check_format

ENDS = [5, 6, 14]


def values() -> dict[str, np.ndarray[Any, Any]]:
    random = np.random.default_rng(7)
    return {
        "action": random.normal(size=(14, 2)).astype("f4"),
        "state": random.normal(size=(14, 5)),
        "img": random.integers(0, 255, (14, 8, 10, 3)).astype("u1"),
        "n_contacts": random.normal(size=(14, 1)).astype("f4"),
    }


def write(store: Any, **changes: Any) -> None:
    root = zarr.open_group(store, mode="w", zarr_format=2)
    arrays = {f"data/{name}": array for name, array in values().items()}
    arrays["meta/episode_ends"] = np.array(ENDS)
    for path, array in (arrays | changes).items():
        chunks = (4, *array.shape[1:])
        root.create_array(path, data=array, chunks=chunks, compressors=Blosc("zstd"))


@pytest.fixture(params=["replay.zarr", "replay.zarr.zip"])
def buffer(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "source" / str(request.param)
    path.parent.mkdir()
    if path.suffix == ".zip":
        with ZipStore(path, mode="w") as store:
            write(store)
    else:
        write(LocalStore(path))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(LocalStore(tmp_path / "source/replay.zarr"))
    return tmp_path / "source/replay.zarr"


def test_the_arrays_of_a_store_equal_those_of_the_replay_buffer(buffer: Path, tmp_path: Path) -> None:
    unistore.convert(buffer.parent, tmp_path / "a.zarr", workers=0)
    unistore.convert(buffer, tmp_path / "b.zarr", workers=0)
    for store in (tmp_path / "a.zarr", tmp_path / "b.zarr"):
        root = zarr.open_group(store, mode="r")
        expected = values()
        np.testing.assert_array_equal(root["steps/action"][:], expected["action"])
        np.testing.assert_array_equal(root["steps/observation/state"][:], expected["state"])
        np.testing.assert_array_equal(root["steps/observation/img"][:], expected["img"])
        np.testing.assert_array_equal(root["episodes/offsets"][:], [0, *ENDS])
    assert unistore.verify(tmp_path / "a.zarr", against=buffer.parent).receipt is not None
    assert unistore.export(tmp_path / "a.zarr", tmp_path / "out").files == 1


def test_the_format_keeps_its_promises(tmp_path: Path) -> None:
    path = tmp_path / "replay.zarr.zip"
    with ZipStore(path, mode="w") as store:
        write(store)
    expected = {}
    for episode, (start, end) in enumerate(pairwise([0, *ENDS])):
        expected |= {f"data/episode_{episode}/{name}": rows[start:end] for name, rows in values().items()}
    check_format(ReplayZarr(), path, expected)


def problems_of(folder: Path, tmp_path: Path) -> str:
    with pytest.raises(InputError) as refused:
        unistore.convert(folder.parent, tmp_path / "store.zarr", family="trajectory", workers=0)
    return str(refused.value)


def change(folder: Path, array: str, **described: Any) -> None:
    path = folder / array / ".zarray"
    path.write_text(json.dumps({**json.loads(path.read_text()), **described}))


def with_ends(*ends: float) -> Callable[[Path], object]:
    return lambda folder: write(LocalStore(folder), **{"meta/episode_ends": np.array(ends)})


def of_another_size(codec: Any) -> Callable[[Path], object]:
    def rewrite(folder: Path) -> None:
        change(folder, "data/state", compressor=codec.get_config())
        for part in range(4):
            chunk = np.zeros(20 if part != 2 else 19, "f8")
            (folder / f"data/state/{part}.0").write_bytes(codec.encode(chunk))

    return rewrite


def cut(folder: Path) -> None:
    chunk = folder / "data/state/2.0"
    chunk.write_bytes(chunk.read_bytes()[:-20])


def with_pickles(folder: Path) -> None:
    change(folder, "data/state", filters=[{"id": "pickle", "protocol": 5}])


def linked(folder: Path) -> None:
    outside = shutil.move(folder / "data/state/1.0", folder.parents[1] / "outside")
    (folder / "data/state/1.0").symlink_to(outside)


def of_others(folder: Path) -> None:
    shutil.rmtree(folder / "meta")


WRONG = [
    (with_pickles, "data/state: is encoded with blosc, pickle"),
    (with_ends(5.0, 14.0), r"is float64 of shape \(2,\), but a list of integers, one for each episode"),
    *((with_ends(*ends), "does not increase") for ends in ((5, 5, 14), (6, 5, 14), (0, 6, 14))),
    *(
        (with_ends(5, 6, end), rf"has the shape \(14, .*the last episode ends at step {end}")
        for end in (13, 15)
    ),
    (cut, "data/state/2.0 is damaged"),
    *((of_another_size(codec), "data/state/2.0 is damaged") for codec in (Zstd(), LZ4(), Blosc(), Zlib())),
    (linked, "outside the given paths"),
    (of_others, ""),
]


@pytest.mark.parametrize(("damage", "message"), WRONG)
def test_each_damage_of_a_replay_buffer_is_an_error(
    damage: Callable[[Path], object], message: str, folder: Path, tmp_path: Path
) -> None:
    damage(folder)
    assert re.search(message, problems_of(folder, tmp_path))


def test_a_missing_chunk_has_the_fill_value_and_a_note_or_is_a_problem(folder: Path, tmp_path: Path) -> None:
    (folder / "data/state/1.0").unlink()
    report = unistore.convert(folder.parent, tmp_path / "store.zarr", workers=0)
    assert "data/state: 1 chunks have no file, so their values are 0.0" in str(report.notes)
    state = zarr.open_group(tmp_path / "store.zarr", mode="r")["steps/observation/state"][:]
    np.testing.assert_array_equal(state, zarr.open_group(folder, mode="r")["data/state"][:])
    change(folder, "data/state", fill_value=None)
    assert "data/state has no file for 1 chunk" in problems_of(folder, tmp_path / "again")


@pytest.mark.parametrize("codec", [None, Zlib(), GZip(), Zstd(), LZ4(), Blosc("lz4", shuffle=2), Pickle()])
def test_every_codec_is_read_and_pickle_is_an_error(codec: Any, tmp_path: Path) -> None:
    folder = tmp_path / "replay.zarr"
    root = zarr.open_group(folder, mode="w", zarr_format=2)
    random = np.random.default_rng(1)
    action = random.normal(size=(14, 7)).astype(">f4")
    root.create_array("data/action", data=action, chunks=(5, 3), compressors=codec, order="F")
    root.create_array("meta/episode_ends", data=np.array([14]), chunks=(1,), compressors=codec)
    file = SourceFile(folder / "meta/episode_ends/.zarray", "replay", (tmp_path,))
    if isinstance(codec, Pickle):
        with pytest.raises(InputError, match="pickle"), ReplayZarr().open(file):
            pass
        return
    with ReplayZarr().open(file) as opened:
        np.testing.assert_array_equal(opened.arrays["data/episode_0/action"][3:13], action[3:13])


def test_a_truncated_zip_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "replay.zarr.zip"
    with ZipStore(path, mode="w") as store:
        write(store)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match="is a damaged or truncated zip"):
        ReplayZarr().recognise(SourceFile(path, path.name))
