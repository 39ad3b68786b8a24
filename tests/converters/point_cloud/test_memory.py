"""What deriving allocates at its peak, against the estimate."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from tests.support.family_converters import point_cloud
from unistore.converters.point_cloud import derive, grids
from unistore.converters.source_scan import scan_sources

STEP = 1 << 14
FIXED = 3 << 20
"""Bytes of what does not grow with points, `_FIXED` less the margin for what is not allocated by numpy."""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of points scattered so far that nearly each has a voxel of its own: less and more than a step."""
    folder = tmp_path_factory.mktemp("sources")
    random = np.random.default_rng(0)
    for size, n in (("small", STEP), ("large", 5 * STEP)):
        columns = {
            **{axis: random.integers(0, 1_000_000, n) * 0.01 for axis in "xyz"},
            "label": random.integers(0, 9, n),
            "rgb": random.integers(0, 255, (n, 3), "u1"),
        }
        with (
            h5py.File(folder / f"columns-{size}.h5", "w") as whole,
            h5py.File(folder / f"in_segments-{size}.h5", "w") as inside,
            h5py.File(folder / f"indices-{size}.h5", "w") as indices,
            h5py.File(folder / f"one_segment-{size}.h5", "w") as one,
            h5py.File(folder / f"batches-{size}.h5", "w") as batches,
        ):
            for file in (whole, inside, indices, one):
                header = file.create_group("header")
                for axis in "xyz":
                    header.attrs[f"{axis}_scale"], header.attrs[f"{axis}_offset"] = 0.01, 0.0
            for key, values in columns.items():
                whole[f"data/{key}"] = indices[f"data/{key}"] = one[f"data/{key}"] = values
                inside[f"segments/segment_0000/{key}"] = values[: n - 99]
                inside[f"segments/segment_0001/{key}"] = values[n - 99 :]
            owner = random.integers(0, n // 1000, n)
            for number in range(n // 1000 - 1):
                indices[f"segments/segment_{number:04d}/indices"] = np.flatnonzero(owner == number)
            one["segments/segment_0000/indices"] = np.flatnonzero(owner > 0)
            batches["data"] = random.random((n // 1024, 1024, 6)).astype("f4")
            batches["label"] = random.integers(0, 9, (n // 1024, 1024))
    return folder


WINDOWS: dict[str, dict[str, Any]] = {
    "windows": {"segment": "window:100"},
    "large_windows": {"segment": "window:20000"},
    "halved_windows": {"segment": "window:20000", "max_points": 1000},
}


@pytest.mark.nightly
@pytest.mark.parametrize("in_core", [True, False])
@pytest.mark.parametrize(
    ("layout", "size", "voxels"),
    [
        *((layout, "large", (0.5,)) for layout in ("in_segments", "indices", "one_segment", "batches")),
        *((layout, "large", (0.5,)) for layout in ("columns", *WINDOWS)),
        *((layout, "small", (0.5,)) for layout in ("columns", "windows")),
        *((layout, "large", ()) for layout in ("columns", "halved_windows")),
    ],
)
def test_deriving_never_allocates_more_than_estimated(
    sources: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    layout: str,
    size: str,
    voxels: tuple[float, ...],
    in_core: bool,
) -> None:
    monkeypatch.setattr(grids, "STEP", STEP)
    monkeypatch.setattr(derive, "_FIXED", FIXED)
    converter = point_cloud(voxel_size=voxels, **WINDOWS.get(layout, {}))
    path = sources / f"{'columns' if layout in WINDOWS else layout}-{size}.h5"
    scan = scan_sources(converter, [path])
    (source,) = scan.sources
    tracemalloc.start()
    try:
        converter.derive(scan, 0, lambda *_: None, None if in_core else tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    estimate = source.memory_in_core if in_core else source.memory
    assert estimate / 12 < peak <= estimate


@pytest.mark.parametrize("layout", ["columns", "indices", "halved_windows"])
def test_memory_of_a_derived_source_is_freed(sources: Path, layout: str) -> None:
    path = sources / f"{'columns' if layout in WINDOWS else layout}-large.h5"
    converter = point_cloud(voxel_size=(1e6,), **WINDOWS.get(layout, {}))
    scan = scan_sources(converter, [path])
    converter.derive(scan, 0, lambda *_: None, None)
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        converter.derive(scan, 0, lambda *_: None, None)
        left = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
        gc.enable()
    assert left < 5 * STEP * 3  # less than one column of coordinates
