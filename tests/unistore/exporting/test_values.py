"""Exported files beside the originals, read by h5py, numpy and OpenCV; converted, they are the same store."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import pytest
import zarr

import unistore
from tests.support.store_files import attributes_of, tree
from unistore import export
from unistore.converters.common.exported import File, row_blocks
from unistore.errors import ConversionError, StoreError
from unistore.plugin import Family
from unistore.schemas.indices import StoreView

Make = Callable[[str], Any]
Exported = Callable[[str], tuple[Path, Path]]

HDF5 = {
    "rows_hdf5": set(),
    "rows_structured": set(),
    "rows_real": set(),
    "cloud_real": set(),
    "cloud_indices": set(),
    "cloud_batches": set(),
    "robot_real": set(),
    "robot_robomimic": set(),
    "robot_flat": set(),
    "robot_d4rl": set(),
    "robot_act_keep": {"compress_len"},
    "robot_variable": set(),
}
"""Cases whose export has the layout of the sources, and what it leaves out."""


@pytest.fixture(scope="module")
def exported(make_case: Make, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """``exported(name)``: folder of the originals and folder of the export, made once."""

    @cache
    def make(name: str) -> tuple[Path, Path]:
        case, store = make_case(name)
        folder = tmp_path_factory.mktemp(name) / "export"
        done = export(store, folder)
        files = [path for path in folder.rglob("*") if path.is_file()]
        assert done.files == len(files) > 0
        assert done.bytes == sum(path.stat().st_size for path in files)
        first = case.sources[0]
        return (first if first.is_dir() else first.parent), folder

    return make


def datasets(path: Path) -> dict[str, Any]:
    """Every dataset of a file."""
    found: dict[str, Any] = {}
    with h5py.File(path, "r") as file:
        file.visititems(
            lambda name, item: found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None
        )
    return found


def assert_same(name: str, one: np.ndarray, two: np.ndarray) -> None:
    """Equal bits; padding may have another width."""
    if one.dtype == object:
        assert [np.asarray(row).tobytes() for row in one] == [np.asarray(row).tobytes() for row in two], name
        return
    if one.ndim == 2 and one.dtype == np.uint8 and one.shape != two.shape:
        assert not one[:, two.shape[1] :].any(), name
        one = one[:, : two.shape[1]]
    assert one.dtype == two.dtype, name
    assert one.tobytes() == two.tobytes(), name


@pytest.mark.parametrize("name", HDF5)
def test_exported_hdf5_datasets_equal_the_originals(name: str, exported: Exported) -> None:
    before, after = exported(name)
    files = sorted(path for path in after.rglob("*") if path.is_file())
    assert files
    for path in files:
        original, found = datasets(before / path.relative_to(after)), datasets(path)
        # A summary of labels is no column: it is not stored, and none is invented.
        summaries = {path for path in original if path.endswith("/unique_labels")}
        assert set(original) - set(found) == HDF5[name] | summaries
        assert found.keys() <= original.keys()
        for dataset, values in original.items():
            if dataset in found:
                one, two = np.asarray(values), np.asarray(found[dataset])
                if one.shape == (*two.shape, 1):
                    one = one[..., 0]
                assert_same(dataset, one, two)


@pytest.mark.parametrize("name", ["rows_npz", "rows_npy", "rows_side_by_side", "ct_cases", "ct_sparse"])
def test_exported_numpy_files_equal_the_originals(name: str, exported: Exported) -> None:
    before, after = exported(name)
    compared = 0
    for path in (path for path in before.rglob("*.np?") if path.is_file()):
        relative = path.relative_to(before)
        one, two = np.load(path), np.load(after / relative)
        pairs = [(one[key], two[key]) for key in one.files] if path.suffix == ".npz" else [(one, two)]
        if name == "ct_sparse":  # points come in C order
            order = np.lexsort(one["indices"].T[::-1])
            pairs = [(one[key][order], two[key]) for key in one.files]
        for original, found in pairs:
            if "masks" not in relative.parts:
                assert original.dtype == found.dtype or original.shape in ((), (1,))
            np.testing.assert_array_equal(original.reshape(found.shape), found)
            compared += 1
    assert compared >= 2


def test_exported_ct_cases_have_their_info_and_windows(exported: Exported) -> None:
    before, after = exported("ct_cases")
    for number in range(2):
        case = ["train/case_0", "test/case_1"][number]
        assert (after / case / "info.json").read_bytes() == (before / case / "info.json").read_bytes()
        image = np.load(after / case / "ct_original_512.npy")
        lung = np.load(after / case / "windows" / "lung_w1500_l-600.npy")
        assert lung.dtype == np.uint8
        np.testing.assert_array_equal(lung, (image >= -1350) & (image <= 150))


@pytest.mark.parametrize(
    ("part", "instead", "reason"),
    [
        ('"totalseg_a', '"../alseg_a', "alseg_a_hu.npy. of a file cannot be written"),
        ('"volumes/image"', '"volumes/imag3"', "volumes/imag3"),
    ],
)
def test_names_of_ct_files_are_not_trusted(
    copy_case: Make, forge: Any, tmp_path: Path, part: str, instead: str, reason: str
) -> None:
    _, store = copy_case("ct_real")
    text = "".join(unistore.Store(store).text("sources/files"))
    forge(store, {"sources/files/data": np.frombuffer(text.replace(part, instead).encode(), np.uint8)})
    with pytest.raises(StoreError, match=reason):
        export(store, tmp_path / "export")
    assert [path.name for path in tmp_path.iterdir()] == [store.name]


@pytest.mark.parametrize("name", ["spike_real", "spike_tiles", "spike_keep", "spike_bytes", "spike_arrays"])
def test_exported_spike_files_equal_the_originals(name: str, make_case: Make, exported: Exported) -> None:
    case, _ = make_case(name)
    before, after = exported(name)
    originals = case.sources if case.sources[0].is_file() else [p for p in before.rglob("*") if p.is_file()]
    for path in originals:
        found = after / path.relative_to(before)
        if path.suffix == ".png" and name != "spike_keep":
            np.testing.assert_array_equal(cv2.imread(str(path)), cv2.imread(str(found)))
        elif path.suffix == ".npz":
            np.testing.assert_array_equal(np.load(path)["spk"], np.load(found)["spk"])
        elif path.suffix == ".npy":
            np.testing.assert_array_equal(np.load(path), np.load(found))
        else:
            assert path.read_bytes() == found.read_bytes()
    assert len(originals) == len([p for p in after.rglob("*") if p.is_file()])


OF_THE_FILES = (
    "sources/bytes",
    "sources/path",
    "sources/files",
    "sources/layout",
    "sources/hash",
    "sources/header",
)
"""Arrays that describe the source files themselves."""


def content(store: Path) -> dict[str, np.ndarray]:
    """Every array, read by zarr-python."""
    root = attributes_of(store)
    names = [name for name in root["fields"] if not name.startswith(OF_THE_FILES)]
    return {name: np.asarray(zarr.open_array(store / name, mode="r")[...]) for name in names}


@pytest.mark.nightly
def test_the_export_converts_to_equal_content(
    case_name: str, make_case: Make, exported: Exported, tmp_path: Path
) -> None:
    case, store = make_case(case_name)
    again = content(case.convert(tmp_path / "again.zarr", [exported(case_name)[1]]))
    before = content(store)
    assert set(again) == set(before)
    for name, values in before.items():
        assert again[name].dtype == values.dtype, name
        assert again[name].shape == values.shape, name
        assert again[name].tobytes() == values.tobytes(), name


def test_two_exports_are_the_same_bytes(
    family_case: str, make_case: Make, exported: Exported, tmp_path: Path
) -> None:
    _, store = make_case(family_case)
    export(store, tmp_path / "again")
    assert tree(tmp_path / "again") == tree(exported(family_case)[1])


def streams(fails: bool = False) -> Callable[[Family, StoreView], Iterator[File]]:
    def files(_: Family, store: StoreView) -> Iterator[File]:
        array = store.array("rows/data")

        def write(path: Path) -> None:
            with gzip.open(path, "wb") as out:
                for block in row_blocks(array, 0, len(array)):
                    out.write(block.tobytes())
                    if fails:
                        raise OSError(28, "No space left on device")

        yield File(name="deep/a.gz", form="format", source=0, values={}, write=write)

    return files


def test_a_stream_is_written_whatever_its_size(
    make_case: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, store = make_case("rows_npz")
    monkeypatch.setattr("unistore.converters.rows.export.files", streams())
    done = export(store, tmp_path / "out")
    written = tmp_path / "out/deep/a.gz"
    parts = [np.load(case.sources[0] / f"{name}.npz")["data"] for name in "ab"]
    assert gzip.decompress(written.read_bytes()) == np.concatenate(parts).tobytes()
    assert (done.files, done.bytes) == (1, written.stat().st_size)


def test_a_stream_that_fails_leaves_nothing(
    make_case: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, store = make_case("rows_npz")
    monkeypatch.setattr("unistore.converters.rows.export.files", streams(fails=True))
    with pytest.raises(ConversionError, match="No space left on device"):
        export(store, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
