"""Point clouds larger than memory: orders, columns and voxels sorted on disk equal those sorted in memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unistore.conversion.convert import convert
from unistore.conversion.memory import PROCESS, SOURCE, derive_memory, step_budget
from unistore.conversion.run import run
from unistore.converters.files.hdf5 import file as hdf5
from unistore.converters.point_cloud import datasets
from unistore.converters.point_cloud import derive as point_cloud_derive
from unistore.converters.point_cloud import sorting as point_cloud_sorting
from unistore.converters.point_cloud.derive import partition_of
from unistore.converters.point_cloud.family import converter as point_cloud
from unistore.converters.point_cloud.grids import Windows, voxelise, window_rows
from unistore.converters.point_cloud.layouts import pointsuite_indices as point_cloud_indices
from unistore.converters.point_cloud.sorting import Buckets, PlacedTable, Workspace, part_of, sorted_groups
from unistore.converters.scanning import scan_sources
from unistore.errors import ConversionError, InputError
from unistore.store.reader import Store

MODULES = (point_cloud_indices, point_cloud_derive, point_cloud_sorting)
STEP = 40


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in MODULES:
        monkeypatch.setattr(module, "STEP", STEP)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("on_disk", [True, False])
@pytest.mark.parametrize("count", [0, 1, STEP, 7 * STEP + 3])
def test_rows_keep_their_order_in_a_bucket(tmp_path: Path, on_disk: bool, count: int) -> None:
    random = np.random.default_rng(0)
    numbers = random.integers(0, 6, count)
    table = {"row": random.permutation(count), "xyz": random.random((count, 3))}
    work = Workspace(tmp_path if on_disk else None)
    buckets = Buckets(np.bincount(numbers, minlength=6), table, work)
    for lo, hi in work.steps(0, count):
        buckets.put(numbers[lo:hi], part_of(table, lo, hi).items())
    for number, bucket in enumerate(buckets):
        for name, column in table.items():
            np.testing.assert_array_equal(bucket[name], column[numbers == number])
    assert number == 5
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("on_disk", [True, False])
@pytest.mark.parametrize("count", [1, STEP, 7 * STEP + 3])
def test_rows_are_read_where_they_were_put(tmp_path: Path, on_disk: bool, count: int) -> None:
    random = np.random.default_rng(0)
    places, values = random.permutation(count), random.random((count, 3)).astype("f4")
    work = Workspace(tmp_path if on_disk else None)
    bounds = np.append(np.arange(0, count, STEP - 3), count)
    like = {"values": values[:0], "places": places[:0]}
    table = PlacedTable(bounds, like, work)
    for lo, hi in work.steps(0, count):
        table.put(places[lo:hi], [("values", values[lo:hi]), ("places", places[lo:hi])])
    np.testing.assert_array_equal(np.concatenate(list(table.column("places"))), np.arange(count))
    parts = list(table.column("values"))
    assert [len(part) for part in parts] == np.diff(bounds).tolist()
    expected = np.empty_like(values)
    expected[places] = values
    np.testing.assert_array_equal(np.concatenate(parts), expected)


@given(
    st.integers(0, 2**32),
    st.integers(1, 400),
    st.lists(st.sampled_from([1, 3, 40, 100_000, 2**31]), min_size=1, max_size=4),
    st.booleans(),
)
def test_groups_are_sorted_as_numpy_sorts_tuples(
    seed: int, n: int, extents: list[int], on_disk: bool
) -> None:
    random = np.random.default_rng(seed)
    keys = [random.integers(0, extent, n).astype("i4") for extent in extents]
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        patch.setattr(point_cloud_sorting, "STEP", STEP)
        rows: list[int] = []
        starts: list[int] = []
        names = [f"key_{number}" for number in range(len(keys))]
        table = dict(zip(names, keys, strict=True)) | {"row": np.arange(n)}
        for group in sorted_groups(table, names, Workspace(Path(folder) if on_disk else None)):
            part = group.column("row").tolist()
            assert len(part) <= STEP or len(group.starts) == 1
            np.testing.assert_array_equal(
                group.table["row"][group.first()], group.column("row")[group.starts]
            )
            starts += (group.starts + len(rows)).tolist()
            rows += part
    np.testing.assert_array_equal(rows, np.lexsort(keys[::-1]))
    tuples = np.stack(keys, axis=1)[rows]
    differs = np.append(True, (tuples[1:] != tuples[:-1]).any(axis=1))
    np.testing.assert_array_equal(starts, np.flatnonzero(differs))


@pytest.mark.parametrize("on_disk", [True, False])
@pytest.mark.usefixtures("small_blocks")
def test_segments_in_any_order_and_rows_in_none_or_several(tmp_path: Path, on_disk: bool) -> None:
    random = np.random.default_rng(0)
    for rows, pieces in [(1, 1), (39, 2), (40, 3), (200, 7), (333, 90), (200, 0)]:
        wanted = [np.flatnonzero(random.random(rows) < random.random()) for _ in range(pieces)]
        wanted += [np.arange(rows)[::-1], np.empty(0, np.int64)] if pieces == 7 else []
        joined = np.concatenate([np.empty(0, np.int64), *wanted])
        unlisted = np.setdiff1d(np.arange(rows), joined)
        work = Workspace(tmp_path if on_disk else None)
        partition = partition_of([np.array_split(each, 3) for each in wanted], None, rows, work)
        assert partition.rows is not None
        np.testing.assert_array_equal(partition.rows, np.append(joined, unlisted))
        lengths, numbers = [len(each) for each in wanted], list(range(len(wanted)))
        if len(unlisted):
            lengths, numbers = [*lengths, len(unlisted)], [*numbers, -1]
        np.testing.assert_array_equal(partition.lengths, lengths)
        np.testing.assert_array_equal(partition.numbers, numbers)
        assert list(tmp_path.iterdir()) == []


@settings(max_examples=40)
@given(
    st.integers(0, 2**32),
    st.integers(1, 400),
    st.tuples(*[st.sampled_from([1, 3, 40, 100_000])] * 3),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_voxels_of_a_large_segment(
    seed: int, n: int, width: tuple[int, ...], in_order: bool, outlier: bool, on_disk: bool
) -> None:
    random = np.random.default_rng(seed)
    xyz = random.integers(0, width, (n, 3)) * 0.7 - 3
    xyz = xyz[np.argsort(xyz[:, 0])] if in_order else xyz
    xyz[0] += 1e8 if outlier else 0  # so that all others are in one range of x
    bounds = np.array([xyz.min(axis=0), xyz.max(axis=0)])
    cells = np.floor((xyz - bounds[0]) / 1.5).astype(np.int64)
    coords, inverse, counts = np.unique(cells, axis=0, return_inverse=True, return_counts=True)
    largest = []
    sort = point_cloud_sorting.sort_tuples
    note = lambda keys: [largest.append(len(keys[0])), sort(keys)][1]  # noqa: E731
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        patch.setattr(point_cloud_sorting, "STEP", STEP)
        patch.setattr(point_cloud_sorting, "sort_tuples", note)
        voxels: list[tuple[np.ndarray, np.ndarray]] = []
        work = Workspace(Path(folder) if on_disk else None)
        lengths, point_voxel = voxelise(
            xyz, np.array([n]), bounds[None], 1.5, work, lambda *part: voxels.append(part)
        )
        assert max(largest, default=0) <= STEP
        np.testing.assert_array_equal(np.concatenate([each for each, _ in voxels]), coords)
        np.testing.assert_array_equal(np.concatenate([each for _, each in voxels]), counts)
        np.testing.assert_array_equal(lengths, [len(coords)])
        np.testing.assert_array_equal(np.concatenate(list(point_voxel)), inverse.reshape(-1))


def make(path: Path, layout: str, n: int = 1000) -> Path:
    random = np.random.default_rng(1)

    def columns(count: int) -> dict[str, Any]:
        axes = {axis: random.integers(0, 1000, count) * 0.01 for axis in "xyz"}
        return {
            **axes,
            "label": random.integers(0, 3, count),
            "rgb": random.integers(0, 255, (count, 3), "u1"),
        }

    with h5py.File(path, "w") as file:
        if layout == "batches":
            file["data"] = random.random((n // 50, 50, 6)).astype("f4")
            file["label"] = random.integers(0, 3, (n // 50, 50))
            return path
        header = file.create_group("header")
        for axis in "xyz":
            header.attrs[f"{axis}_scale"], header.attrs[f"{axis}_offset"] = 0.01, 0.0
        for number, count in enumerate([n // 2, 3, 0, n // 4] if layout == "in_segments" else [n]):
            where = f"segments/segment_{number:04d}" if layout == "in_segments" else "data"
            for key, values in columns(count).items():
                file[f"{where}/{key}"] = values
        for number in range(9 if layout == "indices" else 0):
            file[f"segments/segment_{number:04d}/indices"] = np.flatnonzero(random.random(n) < 0.03 * number)
    return path


LAYOUTS: dict[str, dict[str, Any]] = {
    "indices": {},
    "in_segments": {},
    "columns": {},
    "windows": {"segment": "window:3", "min_points": 35, "max_points": 90},
    "large_windows": {"segment": "window:8", "min_points": 60, "max_points": 200},
    "whole_windows": {"segment": "window:6"},
    "batches": {},
}


@pytest.mark.parametrize(
    ("layout", "exact"), [*((layout, True) for layout in LAYOUTS), ("indices", False), ("columns", False)]
)
def test_no_byte_depends_on_blocks_or_on_what_may_be_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, exact: bool
) -> None:
    make(tmp_path / "a.h5", layout)
    if not exact:
        with h5py.File(tmp_path / "a.h5", "r+") as file:
            file["data/x"][-1] += 0.001  # what comes before is quantised all the same
    converter = point_cloud(voxel_size=(0.5, 4.0), **LAYOUTS[layout])
    whole = run(converter, [tmp_path / "a.h5"], tmp_path / "whole")
    kind = Store(tmp_path / "whole").array("points/xyz").dtype.kind
    assert kind == ("i" if exact and layout != "batches" else "f")
    used: list[Path | None] = []
    make_work = Workspace.__init__

    def note(work: Workspace, folder: Path | None) -> None:
        used.append(folder)
        make_work(work, folder)

    monkeypatch.setattr(Workspace, "__init__", note)
    for block, size in [(STEP, 0), (STEP, 1 << 30), (333, 0)]:
        for module in MODULES:
            monkeypatch.setattr(module, "STEP", block)
        used.clear()
        monkeypatch.setattr("unistore.conversion.memory.STEP_BUDGET", size)
        again = run(converter, [tmp_path / "a.h5"], tmp_path / f"{block}-{size}")
        assert {folder is None for folder in used} == {bool(size)}
        assert again.digest == whole.digest


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_block_is_never_spilled(tmp_path: Path, layout: str) -> None:
    converter = point_cloud(voxel_size=(0.5,), **LAYOUTS[layout])
    scan = scan_sources(converter, [make(tmp_path / "a.h5", layout)])
    emitted: list[int] = []
    facts = converter.derive(
        scan, 0, lambda *given: emitted.append(len(given[-1])), tmp_path / "a folder that is not there"
    )
    assert facts
    assert sum(emitted) >= 1000


@pytest.mark.usefixtures("small_blocks")
def test_more_blocks_are_spilled(tmp_path: Path) -> None:
    scan = scan_sources(point_cloud(), [make(tmp_path / "a.h5", "indices")])
    with pytest.raises(ConversionError, match="a folder that is not there"):
        point_cloud().derive(scan, 0, lambda *_: None, tmp_path / "a folder that is not there")


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("layout", ["indices", "columns", "windows"])
def test_coordinates_that_are_not_finite_are_counted_over_all_blocks(tmp_path: Path, layout: str) -> None:
    with h5py.File(make(tmp_path / "a.h5", layout), "r+") as file:
        file["data/y"][[77, 400, 999]] = np.nan
        file["data/z"][555] = np.inf
    options = {"segment": "window:3"} if layout == "windows" else {}
    with pytest.raises(InputError) as caught:
        run(point_cloud(voxel_size=(1.0,), **options), [tmp_path / "a.h5"], tmp_path / "out")
    text = str(caught.value)
    assert "data/y: 3 of 1000 coordinates are not finite, first at row 77: nan" in text
    assert "data/z: 1 of 1000 coordinates are not finite, first at row 555: inf" in text


@pytest.mark.parametrize("layout", ["indices", "in_segments", "columns", "batches"])
def test_a_larger_file_takes_no_more_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    monkeypatch.setattr(point_cloud_derive, "STEP", 500)
    files = [make(tmp_path / f"{n}.h5", layout, n) for n in (1000, 9000)]
    small, large = (scan_sources(point_cloud(), [file]).sources[0].memory for file in files)
    assert small == large


@pytest.mark.usefixtures("small_blocks")
def test_large_chunks_are_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "a.h5", "indices")
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        for key in list(file["data"]):
            values = file["data"][key][()]
            del file["data"][key]
            chunks = (700, *values.shape[1:])
            file["data"].create_dataset(key, data=values, chunks=chunks, compression="gzip")
    monkeypatch.setattr(hdf5, "_CHUNK_CACHE", 100)
    monkeypatch.setattr(datasets, "_LARGE", 100)
    reads: list[str] = []
    read_rows = hdf5.read_rows

    def count(dataset: h5py.Dataset, *more: Any) -> Any:
        reads.append(dataset.name)
        return read_rows(dataset, *more)

    monkeypatch.setattr("unistore.conversion.memory.STEP_BUDGET", 0)
    plain = run(point_cloud(), [tmp_path / "a.h5"], tmp_path / "plain")
    monkeypatch.setattr(hdf5, "read_rows", count)
    counted = run(point_cloud(), [tmp_path / "a.h5"], tmp_path / "counted")
    assert counted.digest == plain.digest
    assert 2 <= reads.count("/data/x") <= 3
    assert scan_sources(point_cloud(), [tmp_path / "a.h5"]).sources[0].memory > 2 * 3 * 700 * 8


@pytest.mark.usefixtures("small_blocks")
def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    make(tmp_path / "a.h5", "indices")
    child = (
        "import resource, sys; from pathlib import Path\n"
        "from unistore.converters.point_cloud import sorting\n"
        "from unistore.converters.point_cloud.family import converter as point_cloud\n"
        "from unistore.converters.scanning import scan_sources\n"
        "sorting.STEP = 40\n"
        "converter = point_cloud(); scan = scan_sources(converter, [Path(sys.argv[1])])\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "converter.derive(scan, 0, lambda *more: None, Path(sys.argv[2]))\n"
    )
    (tmp_path / "room").mkdir()
    command = [sys.executable, "-c", child, str(tmp_path / "a.h5"), str(tmp_path / "room")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "ConversionError" in done.stderr
    assert f"{tmp_path / 'room'}: points cannot be sorted there (File too large); free space" in done.stderr
    assert list((tmp_path / "room").iterdir()) == []


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("at", "row", "expected"),
    [
        (STEP, 400, "points outside the rows 0:400"),
        (0, -7, "points outside the rows 0:400"),
        (STEP, STEP - 1, "holds a row twice"),
        (STEP, 3, "is not sorted"),
    ],
)
def test_wrong_indices_of_several_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, row: int, expected: str
) -> None:
    path = make(tmp_path / "a.h5", "columns", 400)
    index = np.arange(3 * STEP)
    index[at] = row
    with h5py.File(path, "r+") as file:
        file["segments/segment_0000/indices"] = index
    for size in (0, 1 << 30):
        monkeypatch.setattr("unistore.conversion.memory.STEP_BUDGET", size)
        with pytest.raises(InputError) as caught:
            run(point_cloud(), [path], tmp_path / "out")
        assert f"segments/segment_0000/indices: {expected}" in str(caught.value)


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 2**32),
    st.sampled_from(["f4", "f8"]),
    st.one_of(st.none(), st.integers(1, 90)),
    st.booleans(),
)
def test_large_windows_are_halved_as_small_ones(seed: int, dtype: str, most: int | None, spots: bool) -> None:
    random = np.random.default_rng(seed)
    values = np.array([-0.0, 0.0, 1.5, -2.25]) if spots else random.normal(0, 1, 500)
    xyz = random.choice(values, (300, 3)).astype(dtype)

    def parts(folder: Path | None = None) -> tuple[list[int], list[int]]:
        found = list(window_rows(xyz, Windows(3.0, 5, most), Workspace(folder)))
        return [len(rows) for rows in found], np.concatenate([[], *found]).tolist()

    whole = parts()
    with pytest.MonkeyPatch.context() as patch:
        for module in MODULES:
            patch.setattr(module, "STEP", STEP)
        sizes: list[int] = []
        sort = point_cloud_sorting.sort_tuples
        note = lambda keys: [sizes.append(len(keys[0])), sort(keys)][1]  # noqa: E731
        patch.setattr(point_cloud_sorting, "sort_tuples", note)
        assert parts() == whole
        with TemporaryDirectory() as folder:
            assert parts(Path(folder)) == whole
    assert max(sizes, default=0) <= STEP


@pytest.mark.usefixtures("in_this_process")
def test_what_may_be_held_decides_where_points_are_sorted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(tmp_path / "a.h5", "indices")
    for module in MODULES:
        monkeypatch.setattr(module, "STEP", STEP)
    monkeypatch.setattr(point_cloud_derive, "_FIXED", 32 << 20)  # so that deriving takes more than a shard
    scan = scan_sources(point_cloud(voxel_size=(1.0,)), [path])
    (source,) = scan.sources
    enough = PROCESS + SOURCE + source.memory_in_core
    assert 0 < source.memory < source.memory_in_core
    folders: list[Path | None] = []
    make_work = Workspace.__init__
    monkeypatch.setattr(
        Workspace,
        "__init__",
        lambda work, folder: [folders.append(folder), make_work(work, folder)][1],
    )
    digests = set()
    for limit in (enough, enough - 1, None):
        folders.clear()
        digests.add(
            convert(path, tmp_path / str(limit), "point_cloud", memory=limit, voxel_size=(1.0,)).digest
        )
        held = limit != enough - 1
        assert (folders[0] is None) == held
        taken = source.memory_in_core if held else source.memory
        assert derive_memory(scan, step_budget(limit, 0)).tolist() == [SOURCE + taken]
    assert len(digests) == 1
