"""Ways to damage a source: its bytes, length, structure, name.

Each takes the files of the source, a folder outside the sources, and a random generator. It changes files in
place and returns the changed one (with its new path), or None if it does not apply. A conversion must never
read or write in the folder outside.
"""

from __future__ import annotations

import json
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import h5py
import numpy as np

Mutation = Callable[[Sequence[Path], Path, Random], Path | None]

_HDF5 = (".h5", ".hdf5")


def _edit(change: Callable[[bytearray, Random], bytearray | None]) -> Mutation:
    """A mutation of the bytes of one file."""

    def mutate(paths: Sequence[Path], outside: Path, rng: Random) -> Path | None:
        path = rng.choice(paths)
        data = change(bytearray(path.read_bytes()), rng)
        if data is not None:
            path.write_bytes(data)
        return path

    return mutate


def _flip(data: bytearray, rng: Random, lo: int, hi: int) -> bytearray:
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at = rng.randrange(lo, max(lo + 1, min(hi, len(data))))
        data[at] = rng.choice(
            (0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256), data[at] ^ (1 << rng.randrange(8)))
        )
    return data


def _header(data: bytearray, rng: Random) -> bytearray:
    return _flip(data, rng, 0, 512)


def _metadata(data: bytearray, rng: Random) -> bytearray:
    return _flip(data, rng, 0, 4096)


def _anywhere(data: bytearray, rng: Random) -> bytearray:
    return _flip(data, rng, 0, len(data))


def _tail(data: bytearray, rng: Random) -> bytearray:
    return _flip(data, rng, max(0, len(data) - 512), len(data))


def _block(data: bytearray, rng: Random) -> bytearray:
    size = min(len(data), rng.choice((4, 8, 64, 512)))
    at = rng.randrange(len(data) - size + 1)
    data[at : at + size] = rng.choice((bytes(size), b"\xff" * size, rng.randbytes(size)))
    return data


def _swapped(data: bytearray, rng: Random) -> bytearray:
    size = min(len(data) // 2, 64)
    first, second = (rng.randrange(len(data) - size + 1) for _ in range(2))
    one, two = data[first : first + size], data[second : second + size]
    data[first : first + size], data[second : second + size] = two, one
    return data


def _truncated(data: bytearray, rng: Random) -> bytearray:
    return data[: rng.choice((0, 1, 7, len(data) // 2, len(data) - 1, rng.randrange(len(data))))]


def _extended(data: bytearray, rng: Random) -> bytearray:
    return data + rng.choice((b"\0", bytes(100), rng.randbytes(1000), bytes(data)))


def _values(paths: Sequence[Path], outside: Path, rng: Random) -> Path | None:
    """Other values in the same structure: most of these files stay good."""
    path = rng.choice(paths)
    if path.suffix in _HDF5:
        with h5py.File(path, "r+") as file:
            name = rng.choice(_datasets(file))
            values = file[name][()]
            flat = np.asarray(values).reshape(-1)
            if flat.size and flat.dtype.kind in "iuf":
                for _ in range(rng.choice((1, 3))):
                    flat[rng.randrange(flat.size)] = rng.choice((0, 1, 2, 7, 100))
                file[name][...] = values
    elif path.suffix == ".npy":
        array = np.load(path)
        flat = array.reshape(-1)
        if array.dtype.kind in "iuf":
            for _ in range(3):
                flat[rng.randrange(flat.size)] = rng.choice((0, 1))
        np.save(path, array)
    elif path.suffix == ".npz":
        arrays = {key: np.array(value) for key, value in np.load(path).items()}
        key = rng.choice(list(arrays))
        arrays[key].reshape(-1)[rng.randrange(arrays[key].size)] = rng.choice((0, 1))
        np.savez(path, **arrays)
    else:
        path.write_bytes(_flip(bytearray(path.read_bytes()), rng, 0, 1 << 30))
    return path


def _datasets(file: h5py.File) -> list[str]:
    found: list[str] = []
    file.visititems(lambda name, item: found.append(name) if isinstance(item, h5py.Dataset) else None)
    return found


def _hdf5(paths: Sequence[Path], outside: Path, rng: Random) -> Path | None:
    """Another structure: one dataset of an HDF5 file renamed, retyped, reshaped, moved, linked, ...."""
    path = rng.choice(paths)
    if path.suffix not in _HDF5:
        return None
    with h5py.File(path, "r+") as file:
        name = rng.choice(_datasets(file))
        _HDF5_CHANGES[rng.choice(sorted(_HDF5_CHANGES))](file, name, outside, rng)
    return path


def _replace(file: h5py.File, name: str, **how: Any) -> None:
    del file[name]
    file.create_dataset(name, **how)


def _retyped(file: h5py.File, name: str, outside: Path, rng: Random) -> None:
    values = file[name][()]
    dtype = rng.choice(
        ["f2", "f8", ">f4", ">i8", "u1", "?", "c8", "S5", "i1", "u8", h5py.string_dtype(), "f4"]
    )
    with np.errstate(all="ignore"):
        text = isinstance(dtype, np.dtype)
        converted = np.full(np.shape(values), "text", object) if text else np.asarray(values).astype(dtype)
    _replace(file, name, data=converted, dtype=dtype)


def _reshaped(file: h5py.File, name: str, outside: Path, rng: Random) -> None:
    values = np.asarray(file[name][()])
    other = rng.choice(
        [values[..., None], values[None], values[:-1], values[:0], values[:1], values.reshape(-1)]
    )
    _replace(file, name, data=other)


def _renamed(file: h5py.File, name: str, outside: Path, rng: Random) -> None:
    parent = name.rpartition("/")[0]
    new = rng.choice(
        ["", "X", "..", ".", "a\nb", "\u202eabc", "zarr.json", "__x", "e" * 300, "\\", "é", " ", "0"]
    )
    file.move(name, f"{parent}/{new}x" if parent or new in ("", ".") else f"{new}")


def _bytes_name(file: h5py.File, name: str, outside: Path, rng: Random) -> None:
    parent = file[name].parent
    parent.id.links.create_hard(
        rng.choice([b"\xff\xfe", b"caf\xe9"]), parent.id, name.rpartition("/")[2].encode()
    )
    if rng.random() < 0.5:
        del file[name]


def _grouped(file: h5py.File, name: str, outside: Path, rng: Random) -> None:
    del file[name]
    file.create_group(name)
    if rng.random() < 0.5:
        file[name]["inside"] = np.arange(3)


def _moved(file: h5py.File, name: str, outside: Path, rng: Random) -> None:
    other = rng.choice(_datasets(file))
    if other != name:
        file.move(name, "moved_away")
        file.move(other, name)
        if rng.random() < 0.5:
            file.move("moved_away", other)


def _not_numbers(file: h5py.File, name: str, outside: Path, rng: Random) -> None:
    values = np.asarray(file[name][()])
    if values.dtype.kind == "f" and values.size:
        values.reshape(-1)[rng.randrange(values.size)] = rng.choice((np.nan, np.inf, -np.inf, 1e300, 5e-324))
        file[name][...] = values


def _linked(file: h5py.File, name: str, outside: Path, rng: Random) -> None:
    kept = rng.random() < 0.3
    if not kept:
        del file[name]
    at = f"{name}_link" if kept else name
    folder = name.rpartition("/")[0] or "/"
    file[at] = rng.choice(
        [
            h5py.SoftLink(f"/{name}"),
            h5py.SoftLink(folder),
            h5py.SoftLink("/nowhere"),
            h5py.ExternalLink(str(outside / "secret.h5"), "/secret"),
            h5py.ExternalLink(f"../outside/{'secret.h5'}", "/"),
            h5py.ExternalLink(Path(file.filename).name, f"/{at}"),
            h5py.ExternalLink("/dev/zero", "/x"),
        ]
    )


def _cycle(file: h5py.File, name: str, outside: Path, rng: Random) -> None:
    group = file[name].parent
    group[rng.choice(["again", "segment_0007", "demo_9"])] = rng.choice([group, file["/"]])


def _external(file: h5py.File, name: str, outside: Path, rng: Random) -> None:
    shape = file[name].shape
    target = rng.choice([str(outside / "secret.bin"), "/dev/zero", "../outside/secret.bin", "nowhere.bin"])
    size = int(np.prod(shape)) * 8
    _replace(file, name, shape=shape, dtype="u8", external=[(target, 0, size)])


def _virtual(file: h5py.File, name: str, outside: Path, rng: Random) -> None:
    shape = file[name].shape
    layout = h5py.VirtualLayout(shape, "u8")
    target = rng.choice([str(outside / "secret.h5"), "nowhere.h5"])
    layout[...] = h5py.VirtualSource(target, "secret", shape)
    del file[name]
    file.create_virtual_dataset(name, layout, fillvalue=1)


def _absurd(file: h5py.File, name: str, outside: Path, rng: Random) -> None:
    shape = (rng.choice([1 << 20, 1 << 40, 1 << 60]), *file[name].shape[1:])
    fill = rng.choice([None, 7])
    _replace(file, name, shape=shape, dtype=file[name].dtype, chunks=(8, *shape[1:]), fillvalue=fill)


def _strange(file: h5py.File, name: str, outside: Path, rng: Random) -> None:
    """HDF5 types without a usual NumPy dtype."""
    space = h5py.h5s.create_simple((4,))
    kinds = [
        h5py.h5t.STD_B8LE,
        h5py.h5t.UNIX_D32LE,
        h5py.h5t.STD_REF_OBJ,
        h5py.h5t.create(h5py.h5t.OPAQUE, 7),
    ]
    parent, key = file[name].parent, name.rpartition("/")[2]
    del file[name]
    h5py.h5d.create(parent.id, key.encode(), rng.choice(kinds), space)


def _compound(file: h5py.File, name: str, outside: Path, rng: Random) -> None:
    rows = file[name].shape[0] if file[name].shape else 1
    inner = rng.choice([[("a", "f4"), ("b", "i2")], [("a/b", "f4")], [("", "i1")], [("x", "S3"), ("y", "O")]])
    if inner[-1][1] == "O":
        inner = [inner[0], ("y", h5py.string_dtype())]
    _replace(file, name, shape=(rows,), dtype=np.dtype(inner))


def _attributes(file: h5py.File, name: str, outside: Path, rng: Random) -> None:
    item = rng.choice([file["/"], file[name], file[name].parent])
    key = rng.choice(["x_scale", "num_samples", "new", "env_args", "scale", "offset", "point_count"])
    item.attrs[key] = rng.choice([np.nan, "text", 0, -1, np.arange(9), b"\xff\xfe", 1 << 62, "\ud83d"[:0]])


def _null(file: h5py.File, name: str, outside: Path, rng: Random) -> None:
    _replace(file, name, data=rng.choice([h5py.Empty("f4"), 7, np.float64(1)]))


def _deep(file: h5py.File, name: str, outside: Path, rng: Random) -> None:
    group = file.create_group(rng.choice(["deep", "segments/segment_9", "data/demo_8"]))
    for _ in range(rng.choice([30, 1500])):
        group = group.create_group("g")


def _stray(file: h5py.File, name: str, outside: Path, rng: Random) -> None:
    segments = file.require_group("segments")
    new = rng.choice(
        ["segment_0001x", "segment_-1", "Segment_1", "segment_01", f"segment_{9**40}", "other", "segment_٣"]
    )
    segments.create_group(new)["indices"] = np.arange(3)


_HDF5_CHANGES: Mapping[str, Callable[[h5py.File, str, Path, Random], None]] = {
    change.__name__: change
    for change in (
        _retyped, _reshaped, _renamed, _bytes_name, _grouped, _moved, _not_numbers, _linked, _cycle,
        _external, _virtual, _absurd, _strange, _compound, _attributes, _null, _deep, _stray,
    )
}  # fmt: skip


def _npy(paths: Sequence[Path], outside: Path, rng: Random) -> Path | None:
    """Another header before the same values."""
    arrays = [path for path in paths if path.suffix == ".npy"]
    if not arrays:
        return None
    path = rng.choice(arrays)
    values = np.load(path)
    shape: Any = rng.choice(
        [values.shape, values.shape[::-1], (values.size,), (-1, 4), (1 << 62, 4), (True, 2), "no", (), (0,)]
    )
    descr: Any = rng.choice(
        [
            values.dtype.str,
            ">f8",
            "|O",
            "|V0",
            "<U7",
            "|S0",
            "<M8[s]",
            "<c16",
            [("a", "<f4")],
            "?",
            "<f2",
            "x",
            7,
        ]
    )
    header = {"descr": descr, "fortran_order": rng.choice([True, False, 1]), "shape": shape}
    text = rng.choice(
        [repr(header), "(" * 5000, "{'descr': __import__('os')}", repr(header)[:-3], repr(header)]
    )
    raw = text.encode()
    version = rng.choice([b"\x01\x00", b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x09\x00"])
    length = struct.pack("<H" if version[0] == 1 else "<I", len(raw))
    path.write_bytes(b"\x93NUMPY" + version + length + raw + values.tobytes())
    return path


def _zip(paths: Sequence[Path], outside: Path, rng: Random) -> Path | None:
    """Other members, or another directory of members."""
    archives = [path for path in paths if path.suffix == ".npz"]
    if not archives:
        return None
    path = rng.choice(archives)
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    first = next(iter(members))
    how = rng.randrange(6)
    if how == 0:
        members[rng.choice(["../../outside/new.npy", "/tmp/x.npy", "a\nb.npy", "pickle.pkl", ".npy"])] = (
            members[first]
        )
    elif how == 1:
        members[f"renamed_{first}"] = members.pop(first)
    elif how == 2:
        members[first] = bytes(_flip(bytearray(members[first]), rng, 0, 128))
    elif how == 3:
        members[first] = members[first][: rng.randrange(len(members[first]))]
    packing = rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
    with zipfile.ZipFile(path, "w", packing) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    if how >= 4:  # version needed, flags, method, sizes in the central directory (PKWARE APPNOTE 4.3.12)
        data = bytearray(path.read_bytes())
        at = data.rindex(b"PK\x01\x02") + rng.choice([6, 8, 9, 10, 16, 20, 24, 28, 42])
        data[at] = rng.choice([0, 1, 9, 99, 200, 255])
        path.write_bytes(data)
    return path


def _png(paths: Sequence[Path], outside: Path, rng: Random) -> Path | None:
    """Chunks dropped, doubled, exchanged, or with other content and the right checksum."""
    pictures = [path for path in paths if path.suffix == ".png"]
    if not pictures:
        return None
    path = rng.choice(pictures)
    data, at, chunks = path.read_bytes(), 8, []
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        chunks.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + length]))
        at += length + 12
    number, how = rng.randrange(len(chunks)), rng.randrange(5)
    kind, content = chunks[number]
    if how == 0:
        del chunks[number]
    elif how == 1:
        chunks.insert(number, (kind, content))
    elif how == 2:
        chunks.reverse()
    elif how == 3:
        chunks[0] = (b"IHDR", struct.pack(">IIBBBBB", rng.choice([1, 24, 1 << 30]), 16, 8, 2, 0, 0, 0))
    elif content:
        chunks[number] = (kind, bytes(_flip(bytearray(content), rng, 0, len(content))))
    parts = (
        struct.pack(">I", len(each)) + name + each + struct.pack(">I", zlib.crc32(name + each))
        for name, each in chunks
    )
    path.write_bytes(data[:8] + b"".join(parts))
    return path


def _json(paths: Sequence[Path], outside: Path, rng: Random) -> Path | None:
    documents = [path for path in paths if path.suffix == ".json"]
    if not documents:
        return None
    number = "9" * rng.choice([20, 400, 6000])
    text = rng.choice(
        [
            "[" * 100_000,
            '{"spacing": [NaN, 1, 1]}',
            f'{{"spacing": [{number}, 1, 1]}}',
            '{"spacing": {"x": 1}}',
            "\ufeff{}",
            "null",
            '{"origin": ["a", 1, 1]}',
            json.dumps({"a": {"b": list(range(100))}}),
        ]
    )
    documents[0].write_bytes(rng.choice([text.encode(), text.encode("utf-16"), text.encode() + b"\xff"]))
    return documents[0]


def _name(paths: Sequence[Path], outside: Path, rng: Random) -> Path | None:
    path = paths[0]
    stem = os.fsencode(path.stem)
    new = rng.choice(
        [b"a\nb", b"\x1b[31m" + stem, "\u202e".encode() + stem, b"\xff\xfe" + stem, b"\\" + stem, b" " + stem,
         b"-" + stem, b"=" + stem, stem + b"~2", "é".encode() + stem, b"C:" + stem, b"x" * 240]
    )  # fmt: skip
    end = rng.choice([path.suffix, path.suffix, path.suffix.upper(), ".h5", ".npy", ".npz", ".dat"])
    new_path = path.with_name(os.fsdecode(new) + end)
    return path.rename(new_path)


def _entry(paths: Sequence[Path], outside: Path, rng: Random) -> Path | None:
    """Something else under the file's name."""
    path = rng.choice(paths)
    how = rng.randrange(7)
    if how == 5:
        path.with_name(f"{path.stem}_more{path.suffix}").symlink_to(path.with_name("no such file"))
        return path.with_name(f"{path.stem}_more{path.suffix}")
    path.unlink()
    if how == 0:
        path.symlink_to(outside / f"secret{path.suffix}")
    elif how == 1:
        path.symlink_to(path.name)
    elif how == 2:
        path.with_name("b_loop").symlink_to(path)
        path.symlink_to(path.with_name("b_loop"))
    elif how == 3:
        path.mkdir()
    elif how == 4:
        os.mkfifo(path)
    else:
        path.symlink_to(path.parent, target_is_directory=True)
    return path


MUTATIONS: Mapping[str, Mutation] = {
    "header": _edit(_header),
    "metadata": _edit(_metadata),
    "anywhere": _edit(_anywhere),
    "tail": _edit(_tail),
    "block": _edit(_block),
    "swapped": _edit(_swapped),
    "truncated": _edit(_truncated),
    "extended": _edit(_extended),
    "values": _values,
    "hdf5": _hdf5,
    "hdf5_again": _hdf5,
    "npy": _npy,
    "zip": _zip,
    "png": _png,
    "json": _json,
    "name": _name,
    "entry": _entry,
}
