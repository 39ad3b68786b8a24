"""Volumes larger than what may be held at once: compared and made again some planes at a time."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from unistore import repair, verify
from unistore.conversion import plan as planning
from unistore.conversion.signatures import convert
from unistore.converters.ct import restore as exported

SHAPE = (96, 144, 144)
TILE = (8, 32, 32)
BYTES = 2 * 96 * 144 * 144


@pytest.fixture(params=["C", "F"])
def volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """A case of one volume whose rows and masks are written in parts of one layer of chunks."""
    monkeypatch.setattr(planning, "LARGE", 64 << 10)
    monkeypatch.setattr(planning, "PLANES_BYTES", 1)
    monkeypatch.setattr("unistore.zarr3.writer.MAX_PENDING_BYTES", 64 << 10)
    monkeypatch.setattr(exported, "_SLAB", 256 << 10)
    monkeypatch.setattr("unistore.integrity.compare._BLOCK_BYTES", 256 << 10)
    monkeypatch.setattr("unistore.zarr3.storage.PART_BYTES", 64 << 10)
    monkeypatch.setattr("unistore.schemas.rules.BLOCK", 64 << 10)
    monkeypatch.setattr("unistore.converters.ct.slabs.SLAB", 64 << 10)
    monkeypatch.setattr("unistore.converters.ct.slabs.BAND", 256 << 10)
    image = np.random.default_rng(0).integers(-1000, 1000, SHAPE, "i2")
    (tmp_path / "case/masks").mkdir(parents=True)
    np.save(tmp_path / "case/ct_original.npy", np.asarray(image, order=request.param))
    np.save(tmp_path / "case/masks/liver_binary.npy", (image > 0).astype("u1"))
    return tmp_path / "case"


@contextmanager
def less_than_a_volume() -> Iterator[None]:
    """Refuse more memory than three quarters of the volume."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < BYTES * 3 // 4


@pytest.fixture(autouse=True)
def no_cache_of_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a limit of its own, far above these volumes."""
    monkeypatch.setattr("unistore.zarr3.cache.CHUNKS.limit", 0)


def test_a_volume_is_compared_by_planes(volume: Path, tmp_path: Path, forge: Callable[..., None]) -> None:
    store = tmp_path / "store"
    convert(volume, store, "ct", window=("lung",), sparse="mask", tile=TILE)
    with less_than_a_volume():
        verified = verify(store, against=[volume])
    assert verified.problems == ()
    assert verified.receipt is not None
    assert verified.receipt.values == 2 * np.prod(SHAPE)
    values = np.load(volume / "ct_original.npy")[None]
    values[0, 70, 8, 9] += 1
    values[0, 71, 0, 0] += 1
    forge(store, {"volumes/image": values})
    (problem,) = [each for each in verify(store, against=[volume]).problems if "image" in each.location]
    assert problem.message.startswith("planes 64:72 of row 0: ")
    assert "2 of 165888 values differ" in problem.message


@pytest.mark.nightly
@pytest.mark.parametrize("volume", ["F"], indirect=True)
def test_a_volume_is_made_again_by_planes(
    volume: Path, tmp_path: Path, tree: Callable[[Path], dict[str, bytes]]
) -> None:
    store = tmp_path / "store"
    convert(volume, store, "ct", window=("lung",), sparse="mask", tile=TILE)
    before = tree(store)
    image = "volumes/image/c/0/0/0/0"
    (store / image).write_bytes(before[image][:-1])
    with less_than_a_volume():
        repaired = repair(store, [volume])
    assert repaired.repaired == (image,)
    assert tree(store) == before
    for key in ("zarr.json", "unistore-manifest.jsonl", "masks/liver/mask/c/0/0/0/0"):
        (store / key).write_bytes(b"")
    (store / "zarr.json").write_bytes(before["zarr.json"][:-5] + b"x" + before["zarr.json"][-4:])
    with less_than_a_volume():
        assert repair(store, [volume]).ok
    assert tree(store) == before
