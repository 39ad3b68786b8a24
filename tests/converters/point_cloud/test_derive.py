"""Orders, columns, windows and voxels against brute force, of clouds that are larger than a step, too."""

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

from tests.support.family_converters import point_cloud
from unistore.conversion.run import run
from unistore.converters.point_cloud import grids
from unistore.converters.point_cloud.derive import bounds_of
from unistore.converters.point_cloud.grids import GridWindows, Workspace, voxelise, window_rows
from unistore.errors import InputError
from unistore.store.reader import Store

STEP = 40


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grids, "STEP", STEP)


def workspace(folder: str | Path | None, step: int = STEP) -> Workspace:
    work = Workspace(None if folder is None else Path(folder))
    work.step = step
    return work


def check_voxels(xyz: np.ndarray, lengths: list[int], size: float, work: Workspace) -> None:
    """Compare the grid of some segments with that of `numpy.unique`."""
    bounds = bounds_of(list(xyz.T), np.append(0, np.cumsum(lengths)))
    emitted: dict[str, list[np.ndarray]] = {"coords": [], "counts": [], "point_voxel": []}

    def emit(_: str, column: str, rows: np.ndarray) -> None:
        emitted[column.rpartition("/")[2]].append(rows)

    voxels = voxelise(xyz, np.array(lengths), bounds, size, work, emit)
    expected: dict[str, list[np.ndarray]] = {"coords": [], "counts": [], "point_voxel": []}
    for part in np.split(xyz.astype(np.float64), np.cumsum(lengths)[:-1]):
        cells = np.floor((part - part.min(axis=0, initial=np.inf)) / size).astype(np.int64)
        coords, inverse, counts = np.unique(cells, axis=0, return_inverse=True, return_counts=True)
        for name, values in (("coords", coords), ("counts", counts), ("point_voxel", inverse.reshape(-1))):
            expected[name].append(values)
    np.testing.assert_array_equal(voxels, [len(each) for each in expected["counts"]])
    for name, parts in emitted.items():
        np.testing.assert_array_equal(np.concatenate(parts), np.concatenate(expected[name]))
        assert name == "coords" or max(map(len, parts)) <= work.step


@given(st.lists(st.integers(0, 12), min_size=1, max_size=6).filter(any), st.integers(0, 2**32), st.booleans())
def test_voxels_of_several_segments_equal_brute_force(lengths: list[int], seed: int, single: bool) -> None:
    random = np.random.default_rng(seed)
    xyz = random.integers(0, 5, (sum(lengths), 3)) * 0.3 + 1e5
    check_voxels(xyz.astype("f4") if single else xyz, lengths, 0.5, workspace(None, 1000))


@settings(max_examples=40)
@given(
    st.integers(0, 2**32),
    st.integers(1, 400),
    st.tuples(*[st.sampled_from([1, 3, 40, 100_000, 2**31])] * 3),
    st.booleans(),
    st.booleans(),
)
def test_voxels_of_a_large_segment_equal_brute_force_in_memory_and_on_disk(
    seed: int, n: int, width: tuple[int, ...], in_order: bool, on_disk: bool
) -> None:
    random = np.random.default_rng(seed)
    xyz = random.integers(0, width, (n, 3)) * 0.7 - 3
    xyz = xyz[np.argsort(xyz[:, 0])] if in_order else xyz
    with TemporaryDirectory() as folder:
        check_voxels(xyz, [n], 1.5, workspace(folder if on_disk else None))


def window_parts(xyz: np.ndarray, windows: GridWindows, work: Workspace) -> list[list[int]]:
    return [part.tolist() for part in window_rows(xyz, np.arange(len(xyz)), windows, work)]


@given(
    st.integers(0, 2**32), st.integers(1, 200), st.integers(1, 9), st.one_of(st.none(), st.integers(9, 30))
)
def test_windows_hold_every_point_once(seed: int, n: int, least: int, most: int | None) -> None:
    random = np.random.default_rng(seed)
    xyz = np.stack([random.integers(0, 40, n) * 1.0 - 7, random.integers(0, 25, n) * 0.5 + 3, np.zeros(n)], 1)
    cells = np.floor((xyz[:, :2] - xyz[:, :2].min(axis=0)) / 10).astype(int)
    parts = window_parts(xyz, GridWindows(10.0, least, most), workspace(None))
    assert all(least <= len(part) <= (most or n) and part == sorted(part) for part in parts)
    windows = [set(map(tuple, cells[part].tolist())) for part in parts]
    assert all(len(window) == 1 for window in windows)
    assert [min(window) for window in windows] == sorted(min(window) for window in windows)
    rows = [row for part in parts for row in part]
    assert len(set(rows)) == len(rows)
    if most is None:
        counts = {cell: int((cells == cell).all(axis=1).sum()) for cell in map(tuple, cells.tolist())}
        assert len(rows) == sum(count for count in counts.values() if count >= least)


@settings(max_examples=15)
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
    windows = GridWindows(3.0, 5, most)
    whole = window_parts(xyz, windows, workspace(None, 1000))
    assert window_parts(xyz, windows, workspace(None)) == whole
    with TemporaryDirectory() as folder:
        assert window_parts(xyz, windows, workspace(folder)) == whole


def test_windows_are_halved_at_the_median_of_their_longer_side() -> None:
    y = np.array([5.0, 1, 3, 3, 3, 9, 3])
    xyz = np.stack([np.arange(7) / 100, y, y], axis=1)
    assert window_parts(xyz, GridWindows(100.0, 1, 4), workspace(None)) == [[1, 2, 3], [0, 4, 5, 6]]
    spot = np.zeros((100, 3))
    assert [len(part) for part in window_parts(spot, GridWindows(5.0, 1, 30), workspace(None))] == [25] * 4


def make(path: Path, layout: str, n: int = 1000) -> Path:
    random = np.random.default_rng(1)

    def columns(count: int) -> dict[str, Any]:
        axes = {axis: random.integers(0, 1000, count) * 0.01 for axis in "xyz"}
        rgb = random.integers(0, 255, (count, 3), "u1")
        return {**axes, "label": random.integers(0, 3, count), "rgb": rgb}

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
    "dropped": {"nan": "drop"},
    "batches": {},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_digest_does_not_depend_on_steps_or_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    make(tmp_path / "a.h5", layout)
    if layout in ("columns", "indices"):
        with h5py.File(tmp_path / "a.h5", "r+") as file:
            file["data/x"][-1] += 0.001  # what comes before is quantised all the same
    converter = point_cloud(voxel_size=(0.5, 4.0), **LAYOUTS[layout])
    whole = run(converter, [tmp_path / "a.h5"], tmp_path / "whole")
    kind = Store(tmp_path / "whole").array("points/xyz").dtype.kind
    assert kind == ("f" if layout in ("columns", "indices", "batches") else "i")
    used: list[Path | None] = []
    make_work = Workspace.__init__

    def note(work: Workspace, folder: Path | None) -> None:
        used.append(folder)
        make_work(work, folder)

    monkeypatch.setattr(Workspace, "__init__", note)
    for step, size in [(STEP, 0), (333, 1 << 30)]:
        monkeypatch.setattr(grids, "STEP", step)
        used.clear()
        monkeypatch.setattr("unistore.conversion.memory.STEP_BUDGET", size)
        again = run(converter, [tmp_path / "a.h5"], tmp_path / f"{step}-{size}")
        assert {folder is None for folder in used} == {bool(size)}
        assert again.digest == whole.digest


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("layout", ["indices", "columns", "windows"])
def test_points_that_are_not_finite_are_counted_over_all_steps(tmp_path: Path, layout: str) -> None:
    with h5py.File(make(tmp_path / "a.h5", layout), "r+") as file:
        file["data/x"][77] = 1.5
        file["data/y"][[77, 400, 999]] = np.nan
        file["data/z"][555] = np.inf
    converter = point_cloud(voxel_size=(1.0,), **LAYOUTS[layout])
    with pytest.raises(InputError) as caught:
        run(converter, [tmp_path / "a.h5"], tmp_path / "out")
    (problem,) = caught.value.problems
    assert problem.kind == "nan"
    assert (
        "4 of 1,000 points have coordinates that are not finite; the first is row 77: 1.5, nan, "
        in problem.message
    )


@pytest.mark.usefixtures("small_steps")
def test_a_full_disk_while_sorting_is_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    make(tmp_path / "a.h5", "indices")
    child = (
        "import resource, sys; from pathlib import Path\n"
        "from unistore.converters.point_cloud import grids\n"
        "from tests.support.family_converters import point_cloud\n"
        "from unistore.converters.source_scan import scan_sources\n"
        "grids.STEP = 40\n"
        "converter = point_cloud(); scan = scan_sources(converter, [Path(sys.argv[1])])\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "converter.derive(scan, 0, lambda *more: None, Path(sys.argv[2]))\n"
    )
    (tmp_path / "room").mkdir()
    command = [sys.executable, "-c", child, str(tmp_path / "a.h5"), str(tmp_path / "room")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "ConversionError" in done.stderr
    assert (
        f"{tmp_path / 'room'}: points cannot be sorted here: File too large. Fix: free twice" in done.stderr
    )
    assert list((tmp_path / "room").iterdir()) == []


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize(
    ("at", "row", "expected"),
    [
        (STEP, 400, "contains rows outside of the 400 rows"),
        (0, -7, "contains rows outside of the 400 rows"),
        (STEP, STEP - 1, "contains a row twice"),
        (STEP, 3, "is not sorted"),
    ],
)
def test_wrong_indices_are_a_problem_in_every_step_of_a_large_segment(
    tmp_path: Path, at: int, row: int, expected: str
) -> None:
    path = make(tmp_path / "a.h5", "columns", 400)
    index = np.arange(3 * STEP)
    index[at] = row
    with h5py.File(path, "r+") as file:
        file["segments/segment_0000/indices"] = index
    with pytest.raises(InputError, match=f"segments/segment_0000/indices: {expected}"):
        run(point_cloud(), [path], tmp_path / "out")
