"""Small HDF5 files read without the library, against h5py."""

from __future__ import annotations

import fcntl
import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from unistore.converters.files.hdf5.file import open_hdf5, read_reversed, read_rows
from unistore.converters.files.hdf5.plain import PlainDataset, PlainGroup, read_plain
from unistore.converters.files.hdf5.structure import FAILURES
from unistore.converters.files.hdf5.tree import walk


def open_plain(path: Path) -> PlainGroup | None:
    with suppress(*FAILURES), path.open("rb") as file:
        return read_plain(file.fileno(), path.stat().st_size, path)
    return None


def objects(root: Any) -> dict[str, Any]:
    """Every object below a group, by its path."""
    found = {"": root}
    for path in [*root] if isinstance(root, PlainGroup) else root:
        item = root[path]
        inner = {} if hasattr(item, "dtype") else objects(item)
        found |= {path: item} | {f"{path}/{name}": each for name, each in inner.items() if name}
    return found


def assert_same(plain: PlainGroup, path: Path) -> None:
    """Names, order, forms, values and attributes are those that h5py has, bit for bit."""
    with h5py.File(path) as file:
        ours, theirs = objects(plain), objects(file)
        assert list(ours) == list(theirs)
        for name, item in theirs.items():
            assert list(ours[name].attrs) == list(item.attrs)
            for key, value in item.attrs.items():
                own = ours[name].attrs[key]
                assert (own.dtype, own.shape, own.tobytes()) == (value.dtype, value.shape, value.tobytes())
            if isinstance(item, h5py.Dataset):
                own, value = ours[name][()], item[()]
                assert (own.dtype, own.shape, own.tobytes()) == (value.dtype, value.shape, value.tobytes())


def written(path: Path) -> Path:
    """A file of every form that is read here."""
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        file.attrs["sim"], file.attrs["scale"] = True, np.array([0.5, -0.0], ">f4")
        for order in "<>":
            for kind in ("i1", "u1", "i2", "u4", "i8", "u8", "f2", "f4", "f8"):
                values = np.frombuffer(rng.bytes(48 * np.dtype(kind).itemsize), f"{order}{kind}")
                file[f"{'big' if order == '>' else 'little'}/{kind}"] = values.reshape(4, 12)
        file["scalar"] = 7
        file["scalar"].attrs["z"], file["scalar"].attrs["a"] = np.float32(2), np.arange(3)
        file.create_group("empty/a")
    return path


def test_is_what_h5py_reads(tmp_path: Path) -> None:
    path = written(tmp_path / "a.h5")
    plain = open_plain(path)
    assert plain is not None
    assert_same(plain, path)
    assert "big/f4" in plain
    assert "big/f4/no" not in plain
    with pytest.raises(KeyError, match="none"):
        plain["none"]
    tree = walk(plain, "a.h5", [tmp_path])
    with h5py.File(path) as file:
        assert list(tree.datasets) == list(walk(file, "a.h5", [tmp_path]).datasets)
        rows = read_rows(tree.datasets["big/f4"], "", 1, 3)
        assert rows.dtype == np.dtype("=f4")
        assert rows.tobytes() == file["big/f4"][1:3].astype("=f4").tobytes()
        np.testing.assert_array_equal(
            read_reversed(tree.datasets["big/i2"], "", 2, 5), file["big/i2"][:, 2:5].T
        )


def _soft(file: h5py.File) -> None:
    file["b"] = h5py.SoftLink("/a")


def _twice(file: h5py.File) -> None:
    file["b"] = file["a"]


def _chunked(file: h5py.File) -> None:
    file.create_dataset("b", data=np.zeros(3), chunks=(2,))


def _never_written(file: h5py.File) -> None:
    file.create_dataset("b", (3,), "f4")


def _large(file: h5py.File) -> None:
    file["b"] = np.zeros(1 << 14)


@pytest.mark.parametrize(
    "change",
    [
        _soft,
        _twice,
        _chunked,
        _never_written,
        _large,
        lambda file: file.attrs.update(text="text"),
        lambda file: file.__setitem__("b", np.array([True])),
        lambda file: file.__setitem__("b", np.array([b"text"])),
        lambda file: file.__setitem__("b", np.dtype("f4")),
        lambda file: file.__setitem__("b", h5py.Empty("f4")),
        lambda file: file["a"].attrs.create("b", h5py.Empty("f4")),
        lambda file: file["a"].attrs.create("b", 1 + 2j),
    ],
)
def test_others_are_for_the_library(tmp_path: Path, change: Callable[[h5py.File], None]) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["a"] = np.arange(3)
    assert open_plain(path) is not None
    with h5py.File(path, "a") as file:
        change(file)
    assert open_plain(path) is None


def test_a_file_that_is_cut_or_being_written_is_for_the_library(tmp_path: Path) -> None:
    path = written(tmp_path / "a.h5")
    with path.open("r+b") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert open_plain(path) is None
    assert open_plain(path) is not None
    whole = path.read_bytes()
    for size in (0, 10, 96, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert open_plain(path) is None
    path.unlink()
    assert open_plain(path) is None


def test_members_that_need_the_library(tmp_path: Path) -> None:
    with open_hdf5(written(tmp_path / "a.h5"), library=["scalar"]) as file:
        assert isinstance(file, h5py.File)
    with open_hdf5(tmp_path / "a.h5", library=["none"]) as file:
        assert isinstance(file["scalar"], PlainDataset)


def test_files_that_are_alike_but_for_values(tmp_path: Path) -> None:
    first, second = tmp_path / "a.h5", tmp_path / "b.h5"
    for path, dtype in ((first, "f4"), (second, "f4"), (first, "i4"), (second, "f4")):
        with h5py.File(path, "w") as file:
            file["x"], file["y"] = np.random.default_rng().permutation(4).astype(dtype), np.arange(3)
        for each in (first, second):
            if each.exists():
                plain = open_plain(each)
                assert plain is not None
                assert_same(plain, each)


def _in_any_form(file: h5py.File, rng: np.random.Generator) -> None:
    """Groups, datasets and attributes of random numbers, now and then something else."""
    groups = [file]
    for name in rng.permutation([*"abcdefgh", "ü", "-1", "1", "."]).tolist()[: rng.integers(10)]:
        parent = groups[rng.integers(len(groups))]
        values = _numbers(rng)
        form, options = rng.random(), dict[str, Any]()
        if name == "." or form < 0.2:
            groups.append(item := parent.create_group(name.replace(".", "group"), track_order=form < 0.02))
        elif form < 0.22:
            parent[name] = [h5py.SoftLink("/a"), parent, "text", h5py.Empty("f4"), values.dtype][
                rng.integers(5)
            ]
            continue
        else:
            if form < 0.24:
                options = [{"fillvalue": 3}, {"maxshape": values.shape}, {"chunks": True}][rng.integers(3)]
            with_values = {} if 0.24 < form < 0.25 else {"data": values}
            options = options if values.ndim else {}
            item = parent.create_dataset(
                name, values.shape, values.dtype, track_times=form < 0.6, **with_values, **options
            )
        for each in "xyz"[: rng.integers(4)]:
            item.attrs[each] = (
                True if rng.random() < 0.2 else "text" if rng.random() < 0.02 else _numbers(rng)
            )


def _numbers(rng: np.random.Generator) -> np.ndarray:
    kinds = ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8")
    dtype = np.dtype(f"{rng.choice(['<', '>'])}{rng.choice(kinds)}")
    shape = rng.integers(rng.random() > 0.02, 4, rng.integers(4))
    return np.frombuffer(rng.bytes(math.prod(shape) * dtype.itemsize), dtype).reshape(shape)


def _damage(data: bytearray, rng: np.random.Generator) -> None:
    """Change a few bytes, or swap two words."""
    used = np.flatnonzero(np.frombuffer(data, np.uint8)).tolist()
    if rng.random() < 0.3:
        a, b = (8 * (int(at) // 8) for at in rng.choice(used, 2))
        data[a : a + 8], data[b : b + 8] = data[b : b + 8], data[a : a + 8]
    else:
        for at in rng.choice(used, rng.integers(1, 3)):
            data[at] = rng.integers(256) if rng.random() < 0.5 else data[at] ^ 1 << rng.integers(8)


def test_random_files_and_damage_are_read_as_h5py_reads_them_or_left_to_it(tmp_path: Path) -> None:
    path, read = tmp_path / "a.h5", [0, 0]
    for seed in range(30):
        rng = np.random.default_rng(seed)
        order = bool(rng.random() < 0.03)
        with h5py.File(
            path, "w", libver="latest" if rng.random() < 0.03 else None, track_order=order
        ) as file:
            _in_any_form(file, rng)
        whole = path.read_bytes()
        for damage in range(8):
            data = bytearray(whole)
            if damage:
                _damage(data, rng)
            path.write_bytes(data)
            if (plain := open_plain(path)) is not None:
                assert_same(plain, path)
                read[damage > 0] += 1
    assert 8 < read[0] < 30
    assert read[1] > 8
