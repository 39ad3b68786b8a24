"""Point clouds written for the test: what each layout means, and every way in which a file is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.support.converter_contract import check_contract, convert_in_memory
from tests.support.family_converters import point_cloud
from unistore.conversion.signatures import convert
from unistore.converters.adapter.converter import Converter
from unistore.converters.files.hdf5 import tree
from unistore.converters.source_scan import scan_sources
from unistore.errors import InputError

RANDOM = np.random.default_rng(3)


def columns(n: int, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    xyz = random.integers(50_000_000, 50_010_000, (3, n)) * 0.01 + 0.0
    return {
        "x": xyz[0],
        "y": xyz[1],
        "z": xyz[2],
        "classification": random.integers(1, 6, n).astype("i4"),
        "intensity": random.integers(0, 2**16, n).astype("u2"),
    }


def write(
    path: Path,
    data: Mapping[str, np.ndarray],
    segments: Mapping[str, np.ndarray] | None = None,
    scale: float | None = 0.01,
) -> Path:
    with h5py.File(path, "w") as file:
        header = file.create_group("header")
        if scale is not None:
            for axis in "xyz":
                header.attrs[f"{axis}_scale"], header.attrs[f"{axis}_offset"] = scale, 0.0
        for name, values in data.items():
            file[f"data/{name}"] = values
        for name, rows in (segments or {}).items():
            file[f"segments/{name}/indices"] = rows
    return path


def problems_of(converter: Converter, *paths: Path) -> str:
    """Problems that the scan reports, or all that deriving reports."""
    with pytest.raises(InputError) as caught:
        scan = scan_sources(converter, paths)
    return str(caught.value) if caught.value.problems else str(scan)


def problems_of_values(path: Path, **options) -> str:
    """Problems that appear when values are read."""
    converter = point_cloud(**options)
    scan = scan_sources(converter, [path])
    with pytest.raises(InputError) as caught:
        converter.derive(scan, 0, lambda *_: None, None)
    return str(caught.value)


def test_points_of_two_segments_are_doubled_and_others_form_a_pseudo_segment(tmp_path: Path) -> None:
    data = columns(10)
    segments = {"segment_0003": np.array([1, 4, 5]), "segment_0001": np.array([4, 9])}
    path = write(tmp_path / "a.h5", data, segments)
    order = np.array([4, 9, 1, 4, 5, 0, 2, 3, 6, 7, 8])
    oracle = {
        "points/source_row": order,
        "points/intensity": data["intensity"][order],
        "segments/number": np.array([1, 3, -1]),
        "segments/offsets": np.array([0, 2, 5, 11]),
        "segments/source": np.zeros(3, np.int32),
    }
    converted = check_contract(point_cloud(voxel_size=(0.5, 20)), [path], oracle)
    arrays = converted.arrays
    assert converted.finalized.samples == 2
    xyz = np.stack([data[axis] for axis in "xyz"], axis=1)[order]
    np.testing.assert_array_equal(arrays["points/xyz"] * 0.01 + 0.0, xyz)
    assert (arrays["voxels/20/point_voxel"][5:] == -1).all()
    assert (arrays["voxels/20/point_voxel"][:5] >= 0).all()
    np.testing.assert_array_equal(arrays["voxels/0.5/offsets"], [0, 2, 5, 5])
    np.testing.assert_array_equal(arrays["segments/origin"][2], xyz[5:].min(axis=0))


def test_coordinates_stay_float64_where_one_bit_would_change(tmp_path: Path) -> None:
    for number, value in enumerate([500_000.005, -0.0, 1e8, np.nextafter(500_000.0, 1e9)]):
        data = columns(6)
        data["y"][3] = value
        path = write(tmp_path / f"{number}.h5", data)
        oracle = {"points/xyz": np.stack([data[axis] for axis in "xyz"], axis=1)}
        converted = check_contract(point_cloud(), [path], oracle)
        assert converted.arrays["points/xyz"].dtype == np.float64
        assert np.signbit(converted.arrays["points/xyz"][3, 1]) == np.signbit(value)
    zero = columns(6)
    zero["y"][3] = 0.0
    converted = check_contract(point_cloud(), [write(tmp_path / "zero.h5", zero)])
    assert converted.arrays["points/xyz"].dtype == np.int32


def test_float32_stays_and_joins_float64(tmp_path: Path) -> None:
    data = {name: values.astype("f4") if name in "xyz" else values for name, values in columns(5).items()}
    one = write(tmp_path / "a.h5", data)
    expected = np.stack([data[axis] for axis in "xyz"], axis=1)
    check_contract(point_cloud(), [one], {"points/xyz": expected})
    two = write(tmp_path / "b.h5", columns(5))
    other = np.stack([columns(5)[axis] for axis in "xyz"], axis=1)
    check_contract(point_cloud(), [two, one], {"points/xyz": np.concatenate([expected, other])})


def batches(path: Path, rows: int, width: int = 3, **more: np.ndarray) -> np.ndarray:
    data = RANDOM.random((rows, 16, width), dtype=np.float32)
    with h5py.File(path, "w") as file:
        file["data"] = data
        for name, values in more.items():
            file[name] = values
    return data


@pytest.mark.parametrize("shape", [(7,), (7, 1)])
def test_labels_of_objects_of_pointnet_are_stored_per_segment(tmp_path: Path, shape: tuple[int, ...]) -> None:
    label = RANDOM.integers(0, 40, shape).astype("u1")
    normal = RANDOM.random((7, 16, 3), dtype=np.float32)
    data = batches(tmp_path / "ply_data_train0.h5", 7, label=label, normal=normal)
    oracle = {
        "points/xyz": data.reshape(-1, 3),
        "points/normal": normal.reshape(-1, 3),
        "points/source_row": np.arange(7 * 16),
        "segments/label": label.reshape(7),
        "segments/offsets": np.arange(8) * 16,
        "segments/number": np.arange(7),
    }
    converted = check_contract(point_cloud(), [tmp_path], oracle)
    assert converted.scan.sources[0].split == "train"


def test_labels_and_features_of_points_of_pointnet_are_stored_per_point(tmp_path: Path) -> None:
    label, pid = RANDOM.integers(0, 13, (4, 16)).astype("u1"), RANDOM.integers(0, 9, (4, 16))
    data = batches(tmp_path / "a.h5", 4, width=9, label=label, pid=pid)
    oracle = {
        "points/xyz": data[:, :, :3].reshape(-1, 3),
        "points/features": data[:, :, 3:].reshape(-1, 6),
        "points/label": label.reshape(-1),
        "points/pid": pid.reshape(-1),
    }
    check_contract(point_cloud(), [tmp_path / "a.h5"], oracle)
    renamed = check_contract(point_cloud(map={"part": "pid", "label": ""}), [tmp_path / "a.h5"])
    assert "points/part" in renamed.arrays
    assert "points/label" not in renamed.arrays


def test_list_files_assign_splits_and_names_of_rooms(tmp_path: Path) -> None:
    for number in (0, 1, 2):
        batches(tmp_path / f"ply_data_all_{number}.h5", 3, label=np.zeros((3, 16), "u1"))
    (tmp_path / "train_files.txt").write_text(
        "/home/me/x/ply_data_all_2.h5\nold/ply_data_all_0.h5\n\nold/gone.h5\n"
    )
    (tmp_path / "test_files.txt").write_text("old\\ply_data_all_1.h5\n")
    (tmp_path / "all_files.txt").write_text("".join(f"x/ply_data_all_{n}.h5\n" for n in (2, 0, 1)))
    (tmp_path / "room_filelist.txt").write_text("".join(f"Area_{n}_office\n" for n in range(9)))
    converted = convert_in_memory(point_cloud(), [tmp_path])
    assert [source.split for source in converted.scan.sources] == ["train", "test", "train"]
    offsets = converted.arrays["segments/name/offsets"]
    text = converted.arrays["segments/name/data"].tobytes().decode()
    rooms = [text[lo:hi] for lo, hi in pairwise(offsets)]
    assert rooms == [f"Area_{n}_office" for n in (3, 4, 5, 6, 7, 8, 0, 1, 2)]
    assert any("gone.h5" in note for note in converted.scan.notes)
    assert tmp_path / "train_files.txt" in converted.scan.sources[0].files

    (tmp_path / "test_files.txt").write_text("ply_data_all_1.h5\nply_data_all_2.h5\n")
    assert "is in the lists of test and of train" in problems_of(point_cloud(), tmp_path)


@pytest.mark.parametrize("line", ["one/a.h5", "a.h5"])
def test_a_line_of_a_list_never_means_another_file_of_the_same_name(tmp_path: Path, line: str) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        batches(tmp_path / folder / "a.h5", 3)
    batches(tmp_path / "b.h5", 3)
    (tmp_path / "train_files.txt").write_text(f"{line}\nb.h5\n")
    converter = point_cloud(exclude=("one/a.h5",))
    if line == "a.h5":
        message = problems_of(converter, tmp_path)
        assert f"the line 'a.h5' may mean {tmp_path}/one/a.h5 or {tmp_path}/two/a.h5" in message
    else:
        scan = scan_sources(converter, [tmp_path])
        assert {source.name: source.split for source in scan.sources} == {"b.h5": "train", "two/a.h5": None}


def test_the_problems_of_all_files_are_reported_together(tmp_path: Path) -> None:
    data = columns(6)
    write(tmp_path / "good.h5", data)
    write(tmp_path / "short.h5", {**data, "intensity": data["intensity"][:5]})
    write(tmp_path / "twice.h5", {**data, "X": data["x"]})
    write(tmp_path / "noz.h5", {name: values for name, values in data.items() if name != "z"})
    write(tmp_path / "text.h5", {**data, "x": np.array([b"1"] * 6)})
    write(tmp_path / "big.h5", {**data, "z": np.arange(6)})
    content = (tmp_path / "good.h5").read_bytes()
    (tmp_path / "cut.h5").write_bytes(content[:-100])
    (tmp_path / "pointer.h5").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid\n")
    with h5py.File(tmp_path / "never.h5", "w") as file:
        for axis in "xyz":
            file.create_dataset(axis, (5,), "f8")
    message = problems_of(point_cloud(), *sorted(tmp_path.iterdir()))
    for expected in (
        "short.h5: columns differ in length",
        "data/intensity       5",
        "twice.h5: data/x: would be stored as 'x', like data/X",
        "noz.h5: data: has no z; columns: classification, intensity, x, y",
        "text.h5: data/x: has dtype |S1, expected a float",
        "big.h5: data/z: has dtype int64, expected a float or an integer of at most 32 bits",
        "cut.h5: the file is truncated",
        "pointer.h5: is a Git LFS pointer",
        "never.h5: x: has the shape (5,), but its values were never written",
    ):
        assert expected in message
    assert "good.h5" not in message


def test_the_problems_of_all_values_are_reported_together(tmp_path: Path) -> None:
    data = columns(6)
    (tmp_path / "in").mkdir()
    write(tmp_path / "in/good.h5", data)
    write(tmp_path / "in/nan.h5", {**data, "y": np.full(6, np.nan)})
    write(tmp_path / "in/unsorted.h5", data, {"segment_0000": np.array([3, 1])})
    with pytest.raises(InputError) as caught:
        convert(tmp_path / "in", tmp_path / "out", "point_cloud")
    assert {problem.source for problem in caught.value.problems} == {"nan.h5", "unsorted.h5"}
    assert "nan.h5: 6 of 6 points have coordinates that are not finite" in str(caught.value)
    assert "unsorted.h5: segments/segment_0000/indices: is not sorted" in str(caught.value)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (np.arange(2.0), "is float64 (2,), expected integers (n,)"),
        (np.arange(9), "has 9 rows, but the file has only 6"),
    ],
)
def test_indices_that_are_not_rows_of_the_file_are_a_problem(
    tmp_path: Path, rows: np.ndarray, expected: str
) -> None:
    segments = {"segment_0000": np.array([3, 4]), "segment_0001": rows}
    path = write(tmp_path / "a.h5", columns(6), segments)
    assert f"segments/segment_0001/indices: {expected}" in problems_of_values(path)


def test_a_segment_without_indices_is_a_problem(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", columns(6), {f"segment_{n:04d}": np.array([n]) for n in range(3)})
    with h5py.File(path, "a") as file:
        del file["segments/segment_0002/indices"]
    assert "segments/segment_0002/indices: is missing" in problems_of_values(path)


def test_no_points_and_too_small_voxels_or_windows_are_errors(tmp_path: Path) -> None:
    assert "contains no points" in problems_of_values(write(tmp_path / "a.h5", columns(0)))
    path = write(tmp_path / "b.h5", columns(6))
    for options, message in (
        (
            {"voxel_size": (1e-9,)},
            r"b\.h5: a segment is .* voxels of 1e-09 wide, .* give a larger --voxel-size",
        ),
        (
            {"segment": "window:1e-9"},
            r"b\.h5: .* more than 2\^31 windows of 1e-09 wide; give a larger window",
        ),
    ):
        with pytest.raises(InputError, match=message):
            convert(path, tmp_path / "b.zarr", "point-cloud", **options)


def in_segments(path: Path, parts: list[dict[str, np.ndarray]]) -> Path:
    with h5py.File(path, "w") as file:
        for number, part in enumerate(parts):
            for name, values in part.items():
                file[f"segments/segment_{number:04d}/{name}"] = values
    return path


def test_columns_of_segments_are_joined_and_unequal_ones_are_a_problem(tmp_path: Path) -> None:
    parts = [columns(n, n) for n in (4, 2, 5)]
    path = in_segments(tmp_path / "a.h5", parts)
    oracle = {f"points/{name}": np.concatenate([part[name] for part in parts]) for name in ("intensity",)}
    check_contract(point_cloud(voxel_size=(10.0,)), [path], oracle)

    lacking = [parts[0], {name: values for name, values in parts[1].items() if name != "intensity"}]
    message = problems_of(point_cloud(), in_segments(tmp_path / "b.h5", lacking))
    assert "segments/segment_0001: has the columns classification, x, y, z, but the first segment" in message
    short = [parts[0], {**parts[1], "intensity": parts[1]["intensity"][:1]}]
    message = problems_of_values(in_segments(tmp_path / "c.h5", short))
    assert "segment_0001/intensity: is uint16 (1,), expected uint16 (2,)" in message
    no_x = [parts[0], {**parts[1], "x": parts[1]["x"][:0]}]
    message = problems_of_values(in_segments(tmp_path / "d.h5", no_x))
    assert "segment_0001/classification: is int32 (2,), expected int32 (0,)" in message


def test_a_link_out_of_the_given_paths_is_a_problem(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    write(outside / "b.h5", columns(4))
    data = columns(4)
    path = write(inside / "a.h5", {name: values for name, values in data.items() if name != "z"})
    with h5py.File(path, "a") as file:
        file["data/z"] = h5py.ExternalLink("../out/b.h5", "/data/z")
    assert "outside the given paths" in problems_of(point_cloud(), inside)
    # As two sources, they would have the column twice.
    assert "--exclude out/b.h5" in problems_of(point_cloud(columns="intersection"), inside, outside)
    converted = check_contract(point_cloud(exclude=("out/b.h5",)), [inside, outside])
    assert outside / "b.h5" in converted.scan.sources[0].files
    np.testing.assert_array_equal(converted.arrays["points/xyz"][:4, 2] * 0.01, data["z"])


def test_columns_with_reserved_names_are_a_problem(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", {**columns(3), "origin": np.arange(3), "__x": np.arange(3)})
    message = problems_of(point_cloud(), path)
    assert "cannot be stored as 'origin'" in message
    assert "cannot be stored as '__x'" in message


def linked(path: Path, target: Path, *groups: str) -> Path:
    """A file whose groups are links to those of another file."""
    with h5py.File(path, "w") as file:
        for group in groups:
            file[group] = h5py.ExternalLink(target.name, f"/{group}")
    return path


def test_a_link_to_points_does_not_replace_a_file_with_segments(tmp_path: Path) -> None:
    """The file of the segments says more than the link: neither is left out in silence."""
    segments = {"segment_0000": np.array([0, 2]), "segment_0001": np.array([1, 3])}
    target = write(tmp_path / "b.h5", columns(4), segments)
    linked(tmp_path / "a.h5", target, "data", "header")
    assert "links to some of the values of b.h5" in problems_of(point_cloud(), tmp_path)
    linked(tmp_path / "a.h5", target, "data", "header", "segments")
    converted = check_contract(point_cloud(), [tmp_path], {"points/source_row": np.array([0, 2, 1, 3])})
    assert len(converted.scan.sources) == 1


def test_a_scan_does_not_list_the_segments_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be millions: they are read one by one, also where files show values of others."""
    segments = {f"segment_{number:04d}": np.array([number]) for number in range(4)}
    target = write(tmp_path / "b.h5", columns(4), segments)
    linked(tmp_path / "a.h5", target, "data", "header", "segments")
    listed: list[str] = []
    descend = tree._Walker.descend

    def noted(walker: tree._Walker, group: h5py.Group, prefix: str) -> None:
        listed.append(prefix)
        descend(walker, group, prefix)

    monkeypatch.setattr(tree._Walker, "descend", noted)
    scan = scan_sources(point_cloud(), [tmp_path])
    assert len(scan.sources) == 1
    assert "data/" in listed
    assert not [prefix for prefix in listed if prefix.startswith("segments")]
