"""Segments that arrays describe, against h5py and NumPy: every form, what is wrong with one, and ids."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.support.family_converters import point_cloud
from unistore import export
from unistore.conversion.signatures import convert
from unistore.converters.families import restorer_of
from unistore.converters.files.comparison import SourceComparison, compare_source
from unistore.converters.source_scan import scan_sources
from unistore.data.dataset import Dataset
from unistore.data.kinds.segments import Segments
from unistore.errors import InputError
from unistore.store.reader import Store

LENGTHS = np.array([30, 20, 50])
ENDS = np.cumsum(LENGTHS)
STARTS = ENDS - LENGTHS
N = int(ENDS[-1])
XYZ = np.random.default_rng(7).uniform(0, 100, (N, 3))


def write(path: Path, group: str = "data", **values: object) -> Path:
    with h5py.File(path, "w") as file:
        for number, axis in enumerate("xyz"):
            file[f"{group}/{axis}"] = XYZ[:, number]
        file[f"{group}/classification"] = np.arange(N, dtype="u1")
        for key, array in values.items():
            file[key.replace("__", "/")] = array
    return path


def stored_segments(source: Path, out: Path, **options: object) -> list[list[int]]:
    """Rows of each segment, by the class of each point."""
    convert([source], out, "point_cloud", **options)
    dataset = Dataset(out, Segments())
    samples = [dataset[index] for index in range(len(dataset))]
    for sample in samples:
        rows = sample["classification"].numpy().astype(int)
        origin = sample["origin"].numpy()
        np.testing.assert_allclose(sample["xyz"].numpy() + origin, XYZ[rows], atol=1e-4)
    return [sample["classification"].tolist() for sample in samples]


IN_ORDER = [list(range(start, end)) for start, end in zip(STARTS, ENDS, strict=True)]
ROWS = np.array([5, 3, 99, 0, 7, 5])

FORMS: dict[str, tuple[Mapping[str, object], list[list[int]]]] = {
    "start and end": ({"segments__start": STARTS, "segments__end": ENDS}, IN_ORDER),
    "start and count": ({"segments__start": STARTS, "segments__count": LENGTHS.astype("u4")}, IN_ORDER),
    "offsets": ({"segments__offsets": np.append(0, ENDS)}, IN_ORDER),
    "offsets without 0": ({"segments__offsets": ENDS}, IN_ORDER),
    "num_points": ({"segments__num_points": LENGTHS.astype(">i2")}, IN_ORDER),
    "pairs of start and end": ({"segments": np.stack([STARTS, ENDS], 1)}, IN_ORDER),
    "pairs of start and count": ({"segments__ranges": np.stack([STARTS, LENGTHS], 1)}, IN_ORDER),
    "overlapping, with gaps": (
        {"segments__Start": [40, 10], "segments__End": [60, 50]},
        [list(range(40, 60)), list(range(10, 50))],
    ),
    "end and count": (
        {"segments__end": [90, 100], "segments__count": [30, 10]},
        [list(range(60, 90)), list(range(90, 100))],
    ),
    "start, end and count": (
        {"segments__start": [40, 10], "segments__end": [60, 50], "segments__count": [20, 40]},
        [list(range(40, 60)), list(range(10, 50))],
    ),
    "lengths that are no counts": (
        {"segments__start": [40, 10], "segments__end": [60, 50], "segments__length": [1.5, 2.5]},
        [list(range(40, 60)), list(range(10, 50))],
    ),
    "indices and offsets": (
        {"segments__indices": ROWS, "segments__offsets": [0, 2, 6]},
        [[5, 3], [99, 0, 7, 5]],
    ),
    "indices and counts": (
        {"segments__indices": ROWS, "segments__num_points": [4, 2]},
        [[5, 3, 99, 0], [7, 5]],
    ),
}


@pytest.mark.parametrize("group", ["data", "cloud/points"])
@pytest.mark.parametrize("form", FORMS)
def test_segments_are_read_in_every_form_of_arrays(tmp_path: Path, form: str, group: str) -> None:
    values, expected = FORMS[form]
    path = write(tmp_path / "a.h5", group, **values)
    assert stored_segments(path, tmp_path / "s.zarr") == expected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"start": STARTS, "end": ENDS[:2]}, "differ in length"),
        ({"start": STARTS, "end": ENDS + 1}, "is 101 for segment 2, which is not between 0 and 100"),
        ({"start": STARTS - 1, "end": ENDS}, "is -1 for segment 0"),
        ({"start": ENDS, "end": STARTS}, "segment 0 has the rows 30:0, but there are 100"),
        ({"start": STARTS, "end": ENDS - 1}, "one row after each segment is in none"),
        ({"start": STARTS.astype("f8"), "end": ENDS}, "is float64"),
        (
            {"start": STARTS, "end": ENDS, "count": ENDS - STARTS + 1},
            "is 31 for segment 0, whose rows are 0:30",
        ),
        ({"num_points": [30, 20]}, "adds up to 50 rows, but there are 100"),
        ({"offsets": np.append(0, ENDS[:-1])}, "ends with 50, but there are 100 rows"),
        ({"offsets": np.zeros(0, "i8")}, "ends with nothing"),
        ({"ranges": [[0, 10], [10, 20], [20, 30]]}, "both fit"),
        ({"ranges": np.zeros((3, 3), "i8")}, "expected integers (S, 2)"),
        ({"indices": [0, 100], "offsets": [0, 2]}, "contains rows outside of the 100 rows"),
        ({"start": np.zeros(65, "i8"), "end": np.full(65, N)}, "the segments have 6,500 points in total"),
    ],
)
def test_malformed_arrays_of_segments_are_an_error_and_leave_no_store(
    tmp_path: Path, values: Mapping[str, object], message: str
) -> None:
    path = write(tmp_path / "a.h5", **{f"segments__{key}": array for key, array in values.items()})
    with pytest.raises(InputError, match=r"segments") as caught:
        convert([path], tmp_path / "s.zarr", "point_cloud")
    assert message in str(caught.value)
    assert not (tmp_path / "s.zarr").exists()


def test_unread_arrays_of_segments_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", segments__start=STARTS, segments__end=ENDS, segments__score=np.zeros(3))
    notes = "\n".join(scan_sources(point_cloud(), [path]).notes)
    assert "segments/score" in notes
    unknown = write(tmp_path / "b.h5", segments__corner=np.zeros((3, 2)))
    notes = "\n".join(scan_sources(point_cloud(), [unknown]).notes)
    assert "segments/corner" in notes
    assert "because segments need start and end" in notes


def test_an_array_of_pairs_per_point_is_not_read_as_segments(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5")
    pairs = np.stack([np.arange(N) // 20, np.arange(N) % 3], axis=1)
    with h5py.File(path, "a") as file:
        file["segments"] = pairs
    assert stored_segments(path, tmp_path / "s.zarr") == [list(range(N))]


def test_a_note_names_ends_that_may_include_their_last_row(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", segments__start=[0, 60], segments__end=[49, N - 1])
    assert "the last end is the number of the last row" in "\n".join(
        scan_sources(point_cloud(), [path]).notes
    )
    sound = write(tmp_path / "b.h5", segments__start=[0, 60], segments__end=[50, N])
    assert "the last end" not in "\n".join(scan_sources(point_cloud(), [sound]).notes)


def test_an_exported_file_has_the_same_segments(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", segments__start=[40, 10], segments__end=[60, 50])
    segments = stored_segments(path, tmp_path / "s.zarr")
    export(tmp_path / "s.zarr", tmp_path / "back")
    [exported] = (tmp_path / "back").rglob("*.h5")
    assert stored_segments(exported, tmp_path / "again.zarr") == segments


def test_a_column_of_ids_divides_a_cloud_into_segments(tmp_path: Path) -> None:
    ids = np.random.default_rng(1).choice([-1, 3, 8, 2000], N)
    path = write(tmp_path / "a.h5", data__tile_id=ids)
    expected = [np.flatnonzero(ids == number).tolist() for number in (3, 8, 2000)]
    assert stored_segments(path, tmp_path / "s.zarr", segment="column:tile_id") == expected
    notes = "\n".join(scan_sources(point_cloud(), [path]).notes)
    assert "--segment column:tile_id divides it" in notes


@pytest.mark.parametrize(
    ("ids", "name", "message"),
    [
        (np.zeros(N, "f4"), "tile_id", "its column 'tile_id' is float32 (N,)"),
        (np.full(N, -2), "tile_id", "contains -2, but ids"),
        (np.full(N, 2**64 - 1, "u8"), "tile_id", "but ids of segments are 0 or above"),
        (np.zeros(N, "i4"), "tile", "has no column 'tile'"),
    ],
)
def test_a_column_that_does_not_contain_ids_is_an_error(
    tmp_path: Path, ids: np.ndarray, name: str, message: str
) -> None:
    path = write(tmp_path / "a.h5", data__tile_id=ids)
    with pytest.raises(InputError) as caught:
        convert([path], tmp_path / "s.zarr", "point_cloud", segment=f"column:{name}")
    assert message in str(caught.value)


@pytest.mark.parametrize("rule", ["column:", "column:/", "column", "tiles:5", "window:-1"])
def test_a_malformed_segment_rule_is_an_error(rule: str) -> None:
    with pytest.raises(InputError, match="or column:NAME"):
        point_cloud(segment=rule)


def of_file(path: Path, store: Path) -> SourceComparison:
    """Compare the first source of a store with a file as h5py reads it."""
    scan = scan_sources(point_cloud(), [path])
    restore = restorer_of(type(point_cloud().plugin), Store(store), scan)
    return compare_source(path.name, path, restore(0))


@pytest.mark.parametrize("form", FORMS)
def test_verify_compares_all_segments_of_the_file(tmp_path: Path, form: str) -> None:
    values, expected = FORMS[form]
    path = write(tmp_path / "a.h5", **values)
    convert([path], tmp_path / "s.zarr", "point_cloud")
    comparison = of_file(path, tmp_path / "s.zarr")
    described = {part.location.dataset: part.values for part in comparison.compared[-2:]}
    assert list(described.values()) == [len(expected), sum(map(len, expected))]
    assert all(name.startswith("segments") for name in described)
    assert [part.difference for part in comparison.compared if part.difference] == []
    unused = ["segments/length"] if form == "lengths that are no counts" else []
    assert list(comparison.left_out) == unused


def test_verify_names_segments_that_differ_from_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", segments__start=[40, 10, 7], segments__end=[60, 50, 7])
    convert([path], tmp_path / "s.zarr", "point_cloud")
    assert not [part for part in of_file(path, tmp_path / "s.zarr").compared if part.difference]
    (tmp_path / "moved").mkdir()
    moved = write(tmp_path / "moved" / "a.h5", segments__start=[40, 11, 7], segments__end=[60, 51, 7])
    differing = [part for part in of_file(moved, tmp_path / "s.zarr").compared if part.difference]
    assert [str(part.location) for part in differing] == [
        "a.h5: segments/start and segments/end (rows of segments)"
    ]
    assert differing[0].difference == "row 20: 10 and 11, 40 of 60 values differ"
