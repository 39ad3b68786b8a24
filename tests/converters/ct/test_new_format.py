"""A format of CT volumes is one class and one entry of `FORMATS`: shown by one made up here.

``.vol``: 32 bytes of header (``VOL1``, D, H, W and a dtype code as little-endian u4, spacing as three f4),
then the planes, big-endian.
"""

from __future__ import annotations

import json
import os
import pickle
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray

import unistore
from tests.detection import detect
from unistore import export, verify
from unistore.conversion.convert import convert
from unistore.converters.ct import names as ct_names
from unistore.converters.ct import slabs as ct_slabs
from unistore.converters.ct.counting import THREADS
from unistore.converters.ct.family import converter as ct_converter
from unistore.converters.plugin import Array, Claim, Format, Opened, SourceFile, sure
from unistore.converters.scanning import scan_sources
from unistore.converters.survey import survey
from unistore.errors import InputError
from unistore.schemas.ct.windows import PRESETS

# The format: this, and its entry in FORMATS, is all that is added.

HEADER = struct.Struct("<4s4I3f")
DTYPES = (np.dtype(">i2"), np.dtype("u1"))


class Planes:
    """Planes of a ``.vol`` file."""

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.path, self.shape, self.dtype = path, shape, dtype

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        lo, hi, step = rows.indices(self.shape[0])
        size = self.shape[1] * self.shape[2]
        offset = HEADER.size + lo * size * self.dtype.itemsize
        values = np.fromfile(self.path, self.dtype, (hi - lo) * size, offset=offset)
        return values.reshape(-1, *self.shape[1:])[::step]


class Vol(Format):
    """A ``.vol`` file."""

    name: ClassVar[str] = "vol"
    suffixes: ClassVar[tuple[str, ...]] = (".vol",)
    memory: ClassVar[int] = 0

    def recognise(self, file: SourceFile) -> Claim:
        """Take every file with the suffix."""
        return sure("")

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[Opened]:
        """Read the header."""
        header = file.head(HEADER.size)
        if len(header) < HEADER.size or header[:4] != b"VOL1":
            raise file.problem("does not begin with VOL1", "is it a .vol file?")
        _, depth, height, width, code, *spacing = HEADER.unpack(header)
        shape, dtype = (depth, height, width), DTYPES[code]
        expected = HEADER.size + depth * height * width * dtype.itemsize
        if expected != file.size:
            message = f"holds {file.size} bytes, its header says {expected}"
            raise file.problem(message, "copy it again", "truncated")
        voxels = Array(Planes(file.path, shape, dtype))
        yield Opened({"voxels": voxels}, {"spacing": spacing}, memory=self.memory)


# The tests.

SPACING = (2.5, 0.75, 0.5)
LUNG = PRESETS["lung"]


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ct_names, "FORMATS", ("npy", Vol))
    monkeypatch.setattr(ct_slabs, "SLAB", 1000)


def write(path: Path, seed: int = 0, shape: tuple[int, int, int] = (7, 9, 21)) -> NDArray[Any]:
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(seed).integers(-1400, 400, shape, "i2")
    return write_values(path, values.astype(">i2"))


def write_values(path: Path, values: NDArray[Any]) -> NDArray[Any]:
    path.parent.mkdir(parents=True, exist_ok=True)
    header = HEADER.pack(b"VOL1", *values.shape, DTYPES.index(values.dtype), *SPACING)
    path.write_bytes(header + values.tobytes())
    return values


def array(store: Path, name: str) -> NDArray[Any]:
    return np.asarray(zarr.open_array(store / name, mode="r")[...])


def names(store: Path) -> list[str]:
    return unistore.Store(store).text("volumes/name")


def test_detected_alone_in_a_folder_and_beside_others(tmp_path: Path) -> None:
    write(tmp_path / "a.vol")
    for given in (tmp_path, tmp_path / "a.vol"):
        found = detect([given])
        assert found is not None
        assert (found.family, found.layout, found.reason) == (
            "ct",
            "files",
            "a.vol is a format of CT volumes",
        )
    np.save(tmp_path / "b.npy", np.zeros((2, 3)))
    found = detect([tmp_path])
    assert found is not None
    assert found.family == "ct"


def test_converted_alone(tmp_path: Path) -> None:
    write(tmp_path / "in/a.vol")
    store = tmp_path / "store"
    convert(tmp_path / "in", store, window=("lung",), sparse="coords")
    original = np.fromfile(tmp_path / "in/a.vol", ">i2", offset=32).reshape(7, 9, 21)
    np.testing.assert_array_equal(array(store, "volumes/image")[0, :7, :9, :21], original)
    points = np.argwhere((original >= LUNG.low) & (original <= LUNG.high))
    assert 0 < len(points) < original.size
    np.testing.assert_array_equal(array(store, "windows/lung/coords"), points)
    np.testing.assert_array_equal(array(store, "windows/lung/values"), original[tuple(points.T)])
    np.testing.assert_array_equal(array(store, "volumes/spacing"), [SPACING])
    opened = unistore.Store(store)
    assert opened.text("volumes/source_dtype") == [">i2"]
    assert opened.text("volumes/name") == ["a"]
    fields = json.loads((store / "zarr.json").read_text())["attributes"]["unistore"]["fields"]
    assert fields["volumes/spacing"]["description"].endswith(
        "as the volume's file states it; NaN where unknown"
    )
    assert "volumes/origin" not in fields


def test_converted_beside_npy(tmp_path: Path) -> None:
    folder, store = tmp_path / "in", tmp_path / "store"
    values = {
        "a.vol": write(folder / "a.vol", 1),
        "b": write(folder / "b.vol", 2, (8, 4, 30)),
        "c": np.random.default_rng(3).integers(-1400, 400, (5, 11, 16), "i4"),
        "a.npy": np.random.default_rng(4).integers(-1400, 400, (3, 4, 5), "i2"),
    }
    np.save(folder / "c.npy", np.asfortranarray(values["c"]))
    np.save(folder / "a.npy", values["a.npy"])
    convert(folder, store, window=("lung",), sparse="mask")
    assert sorted(names(store)) == sorted(values)  # a.npy and a.vol keep what tells them apart
    bits = np.unpackbits(array(store, "windows/lung/mask"), axis=-1, bitorder="little")
    for number, name in enumerate(names(store)):
        expected = values[name]
        box = (number, *(slice(extent) for extent in expected.shape))
        np.testing.assert_array_equal(array(store, "volumes/image")[box], expected)
        np.testing.assert_array_equal(bits[box], (expected >= LUNG.low) & (expected <= LUNG.high))
    spacing = dict(zip(names(store), array(store, "volumes/spacing").tolist(), strict=True))
    assert spacing["b"] == list(SPACING)
    assert np.isnan(spacing["c"]).all()


def test_case_folders_of_the_format(tmp_path: Path) -> None:
    case, store = tmp_path / "in/p1", tmp_path / "store"
    image = write(case / "ct_original_64.vol")
    inside = ((image >= LUNG.low) & (image <= LUNG.high)).astype("u1")
    write_values(case / "windows/lung_w1500_l-600.vol", inside)
    write_values(case / "masks/liver_binary.vol", (image > 100).astype("u1"))
    np.save(case / "masks/p1_binary.npy", image > 0)
    (case / "info.json").write_text('{"spacing": [1, 2, 3]}')
    convert(tmp_path / "in", store, sparse="mask", info_order="zyx")
    for name, expected in (
        ("windows/lung", inside),
        ("masks/binary", image > 0),
        ("masks/liver", image > 100),
    ):
        bits = np.unpackbits(array(store, f"{name}/mask"), axis=-1, bitorder="little")
        np.testing.assert_array_equal(bits[0, :7, :9, :21], expected)
    assert array(store, "volumes/spacing").tolist() == [[1, 2, 3]]  # what a person wrote comes first
    verified = verify(store, against=[tmp_path / "in"])
    assert verified.problems == ()
    assert verified.receipt is not None
    assert verified.receipt.values == 4 * image.size
    inside[0, 0, 0] ^= 1
    write_values(case / "windows/lung_w1500_l-600.vol", inside)
    with pytest.raises(InputError, match=r"lung_w1500_l-600\.vol: differs from window lung"):
        convert(tmp_path / "in", tmp_path / "other", sparse="mask")


def test_labels_in_a_folder_beside_their_volume(tmp_path: Path) -> None:
    """A file for each organ, as TotalSegmentator writes them, is no volume of its own."""
    folder, store = tmp_path / "in", tmp_path / "store"
    images = [write(folder / f"s{number}/ct.vol", number) for number in range(2)]
    for number, image in enumerate(images):
        write_values(folder / f"s{number}/segmentations/liver.vol", (image > 100).astype("u1"))
    convert(folder, store)
    assert names(store) == ["s0/ct", "s1/ct"]
    liver = np.unpackbits(array(store, "labels/liver/mask"), axis=-1, bitorder="little")
    np.testing.assert_array_equal(liver[:, :7, :9, :21], np.stack(images) > 100)


def test_a_label_folder_beside_several_volumes_says_nothing(tmp_path: Path) -> None:
    for name in ("a.vol", "b.vol", "segmentations/liver.vol"):
        write(tmp_path / "in" / name)
    convert(tmp_path / "in", tmp_path / "store")
    assert names(tmp_path / "store") == ["a", "b", "segmentations/liver"]


def test_files_of_one_name_in_a_case_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    image = write(folder / "p1/ct_original.vol")
    np.save(folder / "p1/ct_original.npy", image)
    write(folder / "p2/ct_original.vol")
    write_values(folder / "p2/masks/liver_binary.vol", (image > 0).astype("u1"))
    np.save(folder / "p2/masks/liver_binary.npy", image > 0)
    with pytest.raises(InputError) as error:
        convert(folder, tmp_path / "store")
    found = {problem.location: problem.message for problem in error.value.problems}
    assert found == {
        "p1": "which file is its volume? ct_original.npy, ct_original.vol",
        "p2/masks/liver_binary.vol": (
            "is a second mask 'liver' of this volume, beside p2/masks/liver_binary.npy"
        ),
    }


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-5], "holds 2673 bytes, its header says 2678"),
        (lambda data: data[:20], "does not begin with VOL1"),
        (lambda data: b"XXXX" + data[4:], "does not begin with VOL1"),
        (lambda data: data[:16] + b"\x09" + data[17:], "cannot be read: IndexError"),
    ],
)
def test_damaged_files_are_refused_or_skipped(
    tmp_path: Path, damage: Callable[[bytes], bytes], message: str
) -> None:
    folder, store = tmp_path / "in", tmp_path / "store"
    good = write(folder / "good.vol", 1)
    write(folder / "bad.vol", 2)
    (folder / "bad.vol").write_bytes(damage((folder / "bad.vol").read_bytes()))
    with pytest.raises(InputError) as error:
        convert(folder, store)
    (problem,) = error.value.problems
    assert problem.location == problem.source == "bad.vol"
    assert message in problem.message
    surveyed = survey([folder])
    assert [message in problem.message for problem in surveyed.refused()] == [True]
    assert surveyed.counts() == {"ct": 1}
    report = convert(folder, store, on_error="skip")
    assert [entry["file"] for entry in report.skipped] == ["bad.vol"]
    assert names(store) == ["good"]
    np.testing.assert_array_equal(array(store, "volumes/image")[0], good)


def test_a_fault_of_the_format_names_the_file(tmp_path: Path) -> None:
    write(tmp_path / "p1/ct_original.vol")
    with (tmp_path / "p1/ct_original.vol").open("r+b") as file:
        file.seek(16)
        file.write(b"\x09")
    with pytest.raises(InputError) as error:
        scan_sources(ct_converter(), [tmp_path])
    (problem,) = error.value.problems
    assert (problem.location, problem.source) == ("p1/ct_original.vol", "p1")


def test_memory_of_the_format_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.vol")
    (plain,) = scan_sources(ct_converter(), [tmp_path]).sources
    monkeypatch.setattr(Vol, "memory", 5_000)
    (source,) = scan_sources(ct_converter(), [tmp_path]).sources
    assert source.memory - plain.memory == source.reading - plain.reading == 5_000 * THREADS


def test_cut_while_it_is_converted(tmp_path: Path) -> None:
    write(tmp_path / "a.vol")
    converter = ct_converter(window=("lung",))
    scan = scan_sources(converter, [tmp_path])
    os.truncate(tmp_path / "a.vol", 1000)
    with pytest.raises(InputError, match=r"a\.vol: holds 1000 bytes"):
        converter.derive(scan, 0, lambda *_: None, None)


def test_sources_are_plain_values(tmp_path: Path) -> None:
    values = write(tmp_path / "a.vol")
    converter = ct_converter()
    scan = scan_sources(converter, [tmp_path])
    assert json.dumps(scan.sources[0].detail), "the key of an unfinished conversion"
    again, scan = pickle.loads(pickle.dumps((converter, scan)))
    out = np.zeros((1, 3, 9, 21), "i2")
    again.read_planes(scan, "volumes", 0, 2, 5, {"image": out})
    np.testing.assert_array_equal(out[0], values[2:5])


def test_verified_against_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = write(tmp_path / "in/a.vol")
    store = tmp_path / "store"
    convert(tmp_path / "in", store)
    verified = verify(store, against=[tmp_path / "in"])
    assert verified.problems == ()
    assert verified.receipt is not None
    assert verified.receipt.values == values.size + 1, "and its spacing"
    plain = Planes.__getitem__

    def wrong(self: Planes, rows: slice) -> NDArray[Any]:
        block = plain(self, rows)
        block[0, 0, 0] += 1
        return block

    with monkeypatch.context() as patched:
        patched.setattr(Planes, "__getitem__", wrong)
        convert(tmp_path / "in", tmp_path / "wrong")
    first, *_ = verify(tmp_path / "wrong", against=[tmp_path / "in"]).problems
    assert first.location == "volumes/image"
    assert "1 of 1323 values differ" in first.message


def test_exported_as_npy(tmp_path: Path) -> None:
    values = {name: write(tmp_path / f"in/{name}.vol", n, (4 + n, 5, 6)) for n, name in enumerate("ab")}
    convert(tmp_path / "in", tmp_path / "store")
    export(tmp_path / "store", tmp_path / "out")
    for name, expected in values.items():
        found = np.load(tmp_path / f"out/{name}.npy")
        assert found.dtype == np.dtype(">i2")
        np.testing.assert_array_equal(found, expected)


def test_volumes_and_patches_are_the_files_voxels(tmp_path: Path) -> None:
    for number in range(2):
        write(tmp_path / f"in/{number}.vol", number)
    convert(tmp_path / "in", tmp_path / "store", window=("lung",), sparse="mask")
    files = [
        np.fromfile(tmp_path / f"in/{n}.vol", ">i2", offset=32).reshape(7, 9, 21).astype("i2")
        for n in range(2)
    ]
    dataset = unistore.Dataset(tmp_path / "store", unistore.Volumes())
    assert len(dataset) == 2
    for number, expected in enumerate(files):
        sample = dataset[number]
        assert np.asarray(sample["image"]).tobytes() == expected.tobytes()
        inside = (expected >= LUNG.low) & (expected <= LUNG.high)
        np.testing.assert_array_equal(np.asarray(sample["lung"]), inside)
    patches = unistore.Dataset(
        tmp_path / "store", unistore.Patches((3, 4, 5), per_volume=4), fields=["image", "corner"]
    )
    assert len(patches) == 8
    for number in range(8):
        sample = patches[number]
        d, h, w = np.asarray(sample["corner"]).tolist()
        expected = files[number // 4][d : d + 3, h : h + 4, w : w + 5]
        assert np.asarray(sample["image"]).tobytes() == expected.tobytes()


def test_a_format_that_is_refused_until_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = write(tmp_path / "in/a.hdr")
    with pytest.raises(InputError, match="is half of a NIfTI or Analyze pair"):
        scan_sources(ct_converter(), [tmp_path / "in"])
    monkeypatch.setattr(Vol, "suffixes", (".hdr",))
    monkeypatch.setattr(ct_names, "FORMATS", (Vol,))
    assert (
        ".hdr files outside case folders, one volume each: 1"
        in scan_sources(ct_converter(), [tmp_path]).notes
    )
    convert(tmp_path / "in", tmp_path / "store")
    assert names(tmp_path / "store") == ["a"]
    np.testing.assert_array_equal(array(tmp_path / "store", "volumes/image")[0], values)


def test_only_layouts_know_how_files_are_written() -> None:
    folder = Path(ct_names.__file__).parent
    modules = sorted(folder.glob("*.py"))
    assert len(modules) > 8
    assert [path.name for path in modules if "converters.files.npy" in path.read_text()] == []
