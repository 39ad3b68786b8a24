"""A source has one digest, whatever it is converted with and however its store is cut and packed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xxhash

import unistore
from tests.support.event_recordings import HEIGHT, WIDTH, made_up, write_dat, write_dsec
from unistore.conversion.convert import make_converter
from unistore.conversion.keys import IDENTITY_BLOCK, ColumnDigest
from unistore.conversion.run import run
from unistore.conversion.settings import Settings

Write = Callable[[Path, Path], dict[str, Any]]
"""Writes the source ``a…`` into a folder, others that change its form into another, and returns options."""


def digests_of(store: Path | str) -> dict[str, bytes]:
    opened = unistore.Store(store)
    rows = opened.array("sources/hash").read()
    return {name: rows[number].tobytes() for number, name in enumerate(opened.text("sources/path"))}


def digest_of(store: Path | str) -> bytes:
    digests = digests_of(store)
    if len(digests) == 1:
        return next(iter(digests.values()))
    (digest,) = [digest for name, digest in digests.items() if name.startswith("a")]
    return digest


def by_definition(columns: dict[str, np.ndarray]) -> bytes:
    """Sum of the columns' digests, as docs/format.md has it."""
    total = 0
    for path, values in columns.items():
        little = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
        data = little.tobytes()
        blocks = 0
        for number in range(-(-len(data) // 16_384)):
            blocks += xxhash.xxh3_128_intdigest(data[number * 16_384 : (number + 1) * 16_384], seed=number)
        shape = "x".join(map(str, values.shape[1:])) or "-"
        line = f"{path} {little.dtype.str} {shape} {len(values)}\n".encode()
        total += xxhash.xxh3_128_intdigest(line + (blocks % 2**128).to_bytes(16, "big"))
    return (total % 2**128).to_bytes(16, "big")


def values_of(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def rows(folder: Path, others: Path) -> dict[str, Any]:
    """Of big-endian floats, with more and wider columns elsewhere."""
    np.savez(folder / "a.npz", x=values_of(0, 9_000, 3).astype(">f4"), k=np.arange(9_000, dtype=np.int8))
    np.savez(others / "b.npz", x=values_of(1, 70, 5), k=np.arange(70, dtype=np.int16), z=np.arange(70.0))
    np.savez(others / "_.npz", x=values_of(2, 5, 2).astype("f2"), k=np.ones(5, np.float32))
    return {"columns": "union"}


def events(folder: Path, others: Path) -> dict[str, Any]:
    write_dsec(folder / "a.h5", made_up(4_200, 42_000))
    write_dat(others / "b.dat", made_up(300, 20_000, seed=1))
    return {"sensor": (WIDTH, HEIGHT)}


def _cloud(path: Path, xyz: np.ndarray, **columns: np.ndarray) -> None:
    with h5py.File(path, "w") as file:
        for number, axis in enumerate("xyz"):
            file[axis] = xyz[:, number]
        for name, values in columns.items():
            file[name] = values


def cloud(folder: Path, others: Path) -> dict[str, Any]:
    """Decimals alone; floats with coordinates that are none."""
    xyz = np.round(values_of(0, 4_000, 3) * 100, 2)
    _cloud(folder / "a.h5", xyz, intensity=np.arange(4_000, dtype=np.uint16))
    _cloud(
        others / "b.h5", values_of(1, 30, 3), intensity=np.arange(30, dtype=np.int32), rgb=np.ones((30, 3))
    )
    return {"columns": "union"}


def quantised_cloud(folder: Path, others: Path) -> dict[str, Any]:
    """Quantised alone; floats with others."""
    xyz = np.round(values_of(0, 4_000, 3) * 100, 2)
    _cloud(folder / "a.h5", xyz)
    with h5py.File(folder / "a.h5", "a") as file:
        header = file.create_group("header").attrs
        header.update(x_scale=0.01, y_scale=0.01, z_scale=0.01, x_offset=0.0, y_offset=0.0, z_offset=0.0)
    _cloud(others / "b.h5", values_of(1, 30, 3))
    return {}


def ct(folder: Path, others: Path) -> dict[str, Any]:
    """A label of 0 and 1 is bits alone, integers beside one with classes; windows are points or bits."""
    for where, name, extent, dtype, most in (
        (folder, "a", (9, 11, 13), np.int16, 2),
        (others, "b", (12, 17, 21), np.int32, 9),
    ):
        (where / name).mkdir()
        rng = np.random.default_rng(extent[0])
        (where / name / "masks").mkdir()
        np.save(where / name / "ct_original_512.npy", rng.integers(-1500, 1500, extent).astype(dtype))
        np.save(where / name / "label.npy", rng.integers(0, most, extent).astype(np.uint8))
        np.save(where / name / "masks" / "liver_binary.npy", rng.integers(0, 2, extent).astype(bool))
    return {"window": ("lung",)}


def spike(folder: Path, others: Path) -> dict[str, Any]:
    for where, name, extent in ((folder, "a", (40, 12, 22)), (others, "b", (7, 16, 40))):
        for role in ("spike", "spike_vox"):
            (where / name / role).mkdir(parents=True)
        spikes = (np.random.default_rng(extent[0]).random(extent) < 0.4).astype(np.uint8)
        np.savez(where / name / "spike" / "0.npz", spk=spikes)
        voxels = np.add.reduceat(spikes, [0, 2], axis=0).astype(np.float32 if name == "a" else np.float64)
        np.save(where / name / "spike_vox" / "0.npy", voxels)
    return {}


def _demos(path: Path, camera: tuple[int, int, int], dtype: Any, *, is_following: bool, more: bool) -> None:
    with h5py.File(path, "w") as file:
        for number, length in enumerate((70, 40)):
            rng = np.random.default_rng(number)
            demo = file.create_group(f"data/demo_{number}")
            demo["actions"] = rng.integers(-9, 9, (length, 7)).astype(dtype)
            demo["dones"] = (np.arange(length) == length - 1).astype(np.int64)
            position = rng.normal(size=(length + 1, 3)).astype(np.float32)
            demo["obs/pos"] = position[:-1]
            demo["next_obs/pos"] = position[1:] if is_following else position[1:] + 1
            demo["obs/camera"] = rng.integers(0, 255, (length, *camera), dtype=np.uint8)
            if number or more:
                demo["obs/only_some"] = rng.integers(0, 9, length).astype(np.int8 if not more else np.float64)


def robots(folder: Path, others: Path) -> dict[str, Any]:
    """Images that are large elsewhere, next observations that do not follow there, and missing columns."""
    _demos(folder / "a.hdf5", (6, 8, 3), np.int16, is_following=True, more=False)
    _demos(others / "b.hdf5", (40, 50, 3), np.float64, is_following=False, more=True)
    return {"columns": "union"}


FAMILIES: dict[str, tuple[str, Write]] = {
    "rows": ("rows", rows),
    "events": ("events", events),
    "cloud": ("point_cloud", cloud),
    "quantised cloud": ("point_cloud", quantised_cloud),
    "ct": ("ct", ct),
    "spike": ("spike", spike),
    "robots": ("trajectory", robots),
}


class Sources:
    """A source in a folder, alone and with others, and their conversion."""

    def __init__(self, tmp_path: Path, family: str, write: Write) -> None:
        self.folder = tmp_path
        self.family = family
        alone, others = tmp_path / "alone", tmp_path / "others"
        for folder in (alone, others):
            folder.mkdir()
        self.options = write(alone, others)
        self.alone = alone
        self.others = others
        self.all = tmp_path / "all"
        shutil.copytree(others, self.all)
        shutil.copytree(alone, self.all, dirs_exist_ok=True)

    def convert(self, sources: Path, name: str = "", **settings: Any) -> Path:
        store = self.folder / f"{name or sources.name}.zarr"
        run(make_converter(self.family, self.options), [sources], store, Settings(**settings))
        return store


@pytest.fixture(params=FAMILIES)
def sources(request: pytest.FixtureRequest, tmp_path: Path) -> Sources:
    return Sources(tmp_path, *FAMILIES[request.param])


def test_the_digest_of_rows_is_that_of_the_definition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unistore.conversion.plan.SHARD", 64 << 10)
    sources = Sources(tmp_path, "rows", rows)
    digests = digests_of(sources.convert(sources.all))
    assert len(digests) == 3
    for name, digest in digests.items():
        with np.load(sources.all / name) as file:
            assert digest == by_definition({f"rows/{column}": file[column] for column in file}), name


def test_other_sources_and_shard_sizes_do_not_change_a_digest(
    sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = digest_of(sources.convert(sources.alone))
    together = sources.convert(sources.all)
    assert digest_of(together) == alone
    others = digests_of(sources.convert(sources.others)).values()
    assert {alone, *others} == {*digests_of(together).values()}
    assert len({alone, *others}) == 1 + len(others)
    monkeypatch.setattr("unistore.conversion.plan.SHARD", 4 << 10)
    small = sources.convert(sources.all, "small")
    assert len(list(small.rglob("c/1*"))) > 0, "several shards"
    assert digests_of(small) == digests_of(together)


@pytest.mark.nightly
def test_jobs_parts_and_codecs_change_no_digest(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unistore.conversion.plan.SHARD", 4 << 10)
    expected = digests_of(sources.convert(sources.all, workers=1))
    assert digests_of(sources.convert(sources.all, "workers", workers=2, codec="fast")) == expected
    for part in ("2/2", "1/2"):
        store = sources.convert(sources.all, "parts", part=part)
    assert digests_of(store) == expected


def changed(path: Path) -> Iterator[str]:
    """Change one value of each array of a file in turn, and say which."""

    def other(values: np.ndarray) -> np.ndarray:
        values = values.copy()
        values.reshape(-1)[-1:] = 1 - values.reshape(-1)[-1:]
        return values

    before = path.read_bytes()
    if path.suffix == ".npy":
        np.save(path, other(np.load(path)))
        yield path.name
    elif path.suffix == ".npz":
        arrays = dict(np.load(path))
        for name, values in arrays.items():
            np.savez(path, **{**arrays, name: other(values)})
            yield name
    else:
        names: list[str] = []
        with h5py.File(path) as file:
            file.visititems(lambda name, one: names.append(name) if isinstance(one, h5py.Dataset) else None)
        for name in names:
            with h5py.File(path, "a") as file:
                values = file[name]
                if not values.ndim or not values.size:
                    continue
                values[...] = other(values[...])
            yield name
            path.write_bytes(before)
    path.write_bytes(before)


UNSEEN = ("ms_to_idx", "next_obs/pos")
"""Ends of what is no value of a sample, and of what is compared by values alone."""


@pytest.mark.nightly
def test_one_value_changes_the_digest(sources: Sources) -> None:
    before = digest_of(sources.convert(sources.alone))
    same = []
    for path in sorted(sources.alone.rglob("*.*")):
        for name in changed(path):
            try:
                digest = digest_of(sources.convert(sources.alone, "changed", overwrite=True))
            except unistore.errors.InputError:
                continue
            if digest == before and not name.endswith(UNSEEN):
                same.append(name)
    assert same == []


@pytest.mark.parametrize("start", range(0, 3 * IDENTITY_BLOCK, IDENTITY_BLOCK // 2 + 7))
def test_digests_of_pieces_join_to_the_digest_of_the_whole(start: int) -> None:
    data = np.random.default_rng(start).bytes(3 * IDENTITY_BLOCK + 100)
    whole = ColumnDigest("x")
    whole.add(data)
    for step in (1_000, IDENTITY_BLOCK, IDENTITY_BLOCK + 1, 40_000):
        joined = ColumnDigest("x")
        joined.add(data[:start])
        for lo in range(start, len(data), step):
            later = ColumnDigest("x", lo)
            middle = lo + step // 3
            later.add(data[lo:middle])
            later.add(memoryview(data)[middle : lo + step])
            joined.follow(ColumnDigest.from_json(later.to_json()))
        assert joined.finish() == whole.finish(), step
