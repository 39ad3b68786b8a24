"""Stores against their sources: the receipt, and every kind of difference."""

from __future__ import annotations

import importlib
import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

import unistore
from tests.support.store_files import attributes_of, flip, full_disk
from unistore import verify
from unistore.errors import ConversionError, InputError, StoreError

Make = Callable[[str], Any]

VALUES = {
    "rows_hdf5": 2 * 50 * 3 + 3 + 50 + 51 + 51 - 150 + 150,
    "rows_npz": 30 * 5 + 20 * 5,
    "rows_npy": 37 * 4,
    "cloud_indices": 2 * (60 * (3 + 1 + 3) + 15 + 25 + 10 + 8),
    "cloud_batches": 2 * 5 * (16 * 7 + 1),
    "cloud_in_segments": 47 * 4 + 1,
    "ct_sparse": 2 * 50 * 4,
    "spike_real": 23 * 250 * 400 // 8,
    "spike_tiles": 2 * (15 * 12 * 24 // 8 + 2 * 2 * 20 * 30 * 3),
    "robot_d4rl": 20 * (11 + 3 + 1 + 1 + 1 + 6),
    "robot_robomimic": 16 * (7 + 1 + 1 + 2 * 3 + 2 * 6 * 8 * 3) + 3,
}
"""Values of the sources, counted by hand: those of arrays, bytes of streams, attributes of HDF5 files."""
FILES = {
    "rows_hdf5": 2,
    "cloud_real": 2,
    "ct_cases": 9,
    "ct_real": 2,
    "spike_tiles": 12,
    "spike_arrays": 4,
    "robot_act": 2,
}
LIBRARIES = {
    "rows_hdf5": ("h5py",),
    "rows_npz": ("numpy",),
    "cloud_real": ("h5py",),
    "ct_cases": ("numpy",),
    "spike_tiles": ("numpy", "OpenCV"),
    "spike_keep": ("numpy",),
    "robot_act": ("h5py", "OpenCV"),
    "robot_act_keep": ("h5py",),
}
LEFT_OUT = {
    "cloud_real": ("segments/segment_N/unique_labels",),
    "events_of_two_cameras": ("ms_to_idx",),
    "robot_act": ("compress_len",),
    "robot_act_keep": ("compress_len",),
}


def test_a_sound_store_of_every_case_gets_a_receipt_of_all_values(case_name: str, make_case: Make) -> None:
    case, store = make_case(case_name)
    verified = verify(store, against=case.sources)
    assert verified.problems == ()
    assert verified.receipt is not None
    receipt = verified.receipt
    left_out = LEFT_OUT.get(case_name, ())
    assert receipt.libraries == LIBRARIES.get(case_name, receipt.libraries)
    files = f"{receipt.files:,} file{'' if receipt.files == 1 else 's'}"
    read = f"read with {' and '.join(receipt.libraries)}"
    equal = f"ll {receipt.values:,} values of {files} are equal to the store ({read})."
    missing = f" Not in the store: {', '.join(left_out)}."
    assert receipt.line == (f"A{equal}{missing}" if left_out else f"lossless: a{equal}")
    assert receipt.values == VALUES.get(case_name, receipt.values) > 0
    assert receipt.files == FILES.get(case_name, receipt.files) > 0
    assert receipt.left_out == left_out
    root = attributes_of(store)
    files = len([path for path in store.rglob("*") if path.is_file()]) - 3  # root, manifest, times of sources
    assert (verified.files, verified.bytes) == (root["seal"]["files"], root["seal"]["bytes"])
    assert verified.files == files
    assert verified.unchecked == ()
    fields = root["fields"]
    stored = sum(zarr.open_array(store / path, mode="r").size for path in fields)
    stored -= zarr.open_array(store / "sources/bytes", mode="r").size
    assert receipt.stored_values == stored, "every value of the store was compared"


def test_verify_of_a_sample_compares_some_values_and_says_so(make_case: Make) -> None:
    case, store = make_case("cloud_real")
    whole = verify(store, against=case.sources).receipt
    part = verify(store, against=case.sources, sample=0.01).receipt
    assert whole is not None
    assert part is not None
    assert part.files == 1
    assert 0 < part.values < whole.values
    assert part.line.startswith("In a sample of 1 %, all ")
    assert part == verify(store, against=case.sources, sample=0.01).receipt, "the same every time"


def test_a_damaged_store_is_not_compared(copy_case: Callable[[str], Any]) -> None:
    case, store = copy_case("rows_real")
    document = store / "rows" / "zarr.json"
    document.write_bytes(document.read_bytes()[:-1])
    verified = verify(store, against=case.sources)
    assert not verified.ok
    assert verified.receipt is None


def with_sources(case: Any, folder: Path) -> list[Path]:
    """A copy of the sources, to be changed."""
    copies = []
    for source in case.sources:
        copy = shutil.copytree if source.is_dir() else shutil.copy2
        copies.append(Path(copy(source, folder / source.name)))
    return copies


def edit(path: Path, dataset: str, at: Any, value: Any) -> None:
    with h5py.File(path, "r+") as file:
        data = file[dataset]
        values = data[()]
        values[at] = value
        data[...] = values


@pytest.mark.parametrize(
    ("name", "file", "dataset", "at", "value", "where"),
    [
        ("rows_hdf5", "part_1.h5", "data/value", (7, 1), 0.5, "rows/data/value"),
        ("rows_hdf5", "part_0.h5", "data/value", (0, 1), 0.0, "rows/data/value"),
        ("cloud_indices", "tile_1.h5", "data/y", 3, 99_000.5, "points/xyz"),
        ("cloud_indices", "tile_0.h5", "data/rgb", (3, 2), 1, "points/rgb"),
        ("cloud_indices", "tile_0.h5", "segments/segment_0012/indices", 0, 49, "points/source_row"),
        ("robot_flat", "run_1.h5", "actions", (11, 6), 3.5, "steps/action"),
        (
            "robot_flat",
            "run_1.h5",
            "observations/left_image",
            (0, 0, 0, 0),
            7,
            "steps/observation/left_image",
        ),
    ],
)
def test_one_changed_value_of_a_source_is_found(
    name: str, file: str, dataset: str, at: Any, value: Any, where: str, make_case: Make, tmp_path: Path
) -> None:
    case, store = make_case(name)
    (source,) = with_sources(case, tmp_path)
    edit(source / file, dataset, at, value)
    verified = verify(store, against=[source])
    assert verified.receipt is None
    problems = {problem.location: problem for problem in verified.problems}
    assert where in problems
    assert "1 of" in problems[where].message or where in ("points/xyz", "points/source_row")
    assert problems[where].kind == "source"


def damage(path: Path, item: str) -> None:
    """Overwrite the header of a dataset, so that it cannot be opened."""
    with h5py.File(path) as file:
        address = h5py.h5o.get_info(file[item].id).addr
    with path.open("r+b") as stream:
        stream.seek(address)
        stream.write(b"\xff" * 16)


def test_a_changed_voxel_bit_or_pixel_of_a_source_is_found(make_case: Make, tmp_path: Path) -> None:
    import cv2

    case, store = make_case("ct_real")
    copies = with_sources(case, tmp_path)
    volume = next(copies[0].glob("*.npy"))
    voxels = np.load(volume)
    voxels[0, 0, 0] += 1
    np.save(volume, voxels)
    assert {p.location for p in verify(store, against=copies).problems} >= {"volumes/image"}

    case, store = make_case("spike_tiles")
    (source,) = with_sources(case, tmp_path)
    stream = source / "test" / "seq_a" / "spike" / "001.dat"
    flip(stream, 17, 4)
    locations = {p.location for p in verify(store, against=[source]).problems}
    assert locations == {"spikes/bits", "frames/voxel/3", "sources/hash"}
    flip(stream, 17, 4)
    image = source / "train" / "seq_a" / "blur" / "000.png"
    pixels = cv2.imread(str(image))
    pixels[3, 4, 1] ^= 1
    cv2.imwrite(str(image), pixels)
    locations = {p.location for p in verify(store, against=[source]).problems}
    assert {"frames/blur", "sources/hash"} <= locations <= {"frames/blur", "sources/hash", "sources/bytes"}


def test_missing_and_additional_sources_are_named(make_case: Make, tmp_path: Path) -> None:
    case, store = make_case("cloud_real")
    with pytest.raises(InputError, match=r"source thin_b\.h5: in the store, but not given"):
        verify(store, against=case.sources[:1])
    more = Path(shutil.copy2(case.sources[0], tmp_path / "thin_c.h5"))
    with pytest.raises(InputError, match=r"thin_c\.h5: given, but not in the store"):
        verify(store, against=[*case.sources, more])
    (source,) = with_sources(make_case("robot_d4rl")[0], tmp_path)
    with h5py.File(source, "r+") as file:
        file["extra"] = np.zeros(20)
    with pytest.raises(InputError, match="array steps/extra: the store does not have it"):
        verify(make_case("robot_d4rl")[1], against=[source])


def one_value(values: np.ndarray, axis: int) -> np.ndarray:
    changed = values.copy()
    changed.flat[0] += 1
    return changed


FAULTS: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "a value": one_value,
    "order": lambda values, axis: np.roll(np.flip(values, axis), 1, axis),
}
"""What a reading may do to an array whose rows are on an axis."""
READINGS = {
    "rows": ("rows_npz", "adapter.converter.Converter", ("read",), "data", "a.npz: data"),
    "rows, HDF5": ("rows_real", "adapter.converter.Converter", ("read",), "data", "autzen_returns.h5: data"),
    "image": (
        "ct_real",
        "adapter.converter.Converter",
        ("read", "read_planes"),
        "image",
        "totalseg_a_hu.npy",
    ),
    "mask": (
        "ct_cases",
        "adapter.converter.Converter",
        ("read", "read_planes"),
        "liver/mask",
        "liver",
    ),
    "spikes": (
        "spike_tiles",
        "adapter.converter.Converter",
        ("read",),
        "bits",
        "test/seq_a/spike/000.dat",
    ),
    "frames": (
        "spike_tiles",
        "adapter.converter.Converter",
        ("read",),
        "blur",
        "test/seq_a/spike/000.dat: 000.png",
    ),
    "actions": (
        "robot_flat",
        "adapter.converter.Converter",
        ("read",),
        "action",
        "run_0.h5: actions",
    ),
    "cameras": (
        "robot_flat",
        "adapter.converter.Converter",
        ("read",),
        "observation/left_image",
        "run_0.h5: observations/left_image",
    ),
    "coordinates": (
        "cloud_indices",
        "adapter.converter.Converter",
        (),
        "xyz",
        "tile_0.h5: data/x",
    ),
    "columns": (
        "cloud_batches",
        "adapter.converter.Converter",
        (),
        "pid",
        "ply_data_test0.h5: pid",
    ),
}
"""Case, converter, its methods that read rows (none: it emits them), column, and where it shows."""


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(("reading", "fault"), [*zip(READINGS, itertools.cycle(FAULTS), strict=False)])
def test_a_fault_of_a_converter_is_found_by_the_comparison(
    reading: str, fault: str, make_case: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a converter does wrong, when converting and now, what is restored differs from the files."""
    name, converter, methods, column, where = READINGS[reading]
    case, _ = make_case(name)

    def wrong(values: np.ndarray) -> np.ndarray:
        axis = next((axis for axis, length in enumerate(values.shape) if length > 1), 0)
        return FAULTS[fault](values, axis)

    package, kind = f"unistore.converters.{converter}".rsplit(".", 1)
    owner = getattr(importlib.import_module(package), kind)
    for method in methods:
        right = getattr(owner, method)

        def read(self: Any, *given: Any, right: Callable[..., None] = right) -> None:
            right(self, *given)
            if column in given[-1]:
                given[-1][column][...] = wrong(given[-1][column])

        monkeypatch.setattr(owner, method, read)
    if not methods:
        derive = owner.derive

        def emitting(self: Any, scan: Any, source: int, emit: Callable[..., None], folder: Any) -> Any:
            def emit_wrong(table: str, key: str, rows: np.ndarray) -> None:
                emit(table, key, wrong(rows) if key == column else rows)

            return derive(self, scan, source, emit_wrong, folder)

        monkeypatch.setattr(owner, "derive", emitting)
    store = case.convert(tmp_path / "wrong.zarr")
    verified = verify(store, against=case.sources)
    assert any(where in problem.location for problem in verified.problems)
    assert verified.receipt is None


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("what", ["tempfile.mkdtemp", "unistore.conversion.spill.sync_files"])
def test_a_full_folder_for_temporary_files_is_an_error_that_names_tmpdir(
    make_case: Make, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    case, store = make_case("cloud_real")

    monkeypatch.setattr(what, full_disk)
    with pytest.raises(
        ConversionError, match=r"/.*: No space left on device. Fix: free space there, or set TMPDIR"
    ):
        verify(store, against=case.sources)


@pytest.mark.parametrize("codecs", [["fast"], {"rows/data": ["fast"]}, {"rows/data": "lz5"}, "fast", 3])
def test_forged_codecs_are_refused(tmp_path: Path, forge: Callable[..., None], codecs: Any) -> None:
    np.save(tmp_path / "a.npy", np.arange(100.0))
    store = tmp_path / "a.zarr"
    unistore.convert(tmp_path / "a.npy", store)
    options = unistore.Store(store).attributes["options"]
    forge(store, {}, {"options": {**options, "found": {"codecs": codecs}}})
    with pytest.raises(StoreError, match="does not know the options of the store"):
        unistore.verify(store, against=[tmp_path / "a.npy"])
