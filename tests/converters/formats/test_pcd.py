"""PCD: files that NumPy writes after the format's page (synthetic); LZF is what HDF5's filter makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unistore
from tests.support.lzf import lzf
from unistore import verify
from unistore.conversion.signatures import convert
from unistore.converters.adapter.formats import calling
from unistore.converters.formats.pcd import Pcd
from unistore.converters.opened import SourceFile
from unistore.errors import InputError
from unistore.testing import check_format

FORM = np.dtype(
    [(axis, "<f4") for axis in "xyz"] + [("rgb", "<f4"), ("_", "u1", 4), ("ring", "<u2"), ("fpfh", "<f8", 3)]
)
HEADER = """# .PCD v0.7 - Point Cloud Data file format
VERSION 0.7
FIELDS x y z rgb _ ring fpfh
SIZE 4 4 4 4 1 2 8
TYPE F F F F U U F
COUNT 1 1 1 1 4 1 3
WIDTH {width}
HEIGHT 2
VIEWPOINT 0 0 0 1 0 0 0
POINTS {points}
DATA {data}
"""


def cloud(count: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Records, and the colours that are packed in them."""
    random = np.random.default_rng(2)
    points = np.zeros(count, FORM)
    points["x"] = np.arange(count) // 7
    points["y"][5] = np.nan
    points["ring"] = np.arange(count) % 32
    points["fpfh"] = random.integers(0, 5, (count, 3))
    colours = random.integers(0, 127, (count, 3)).astype("u1")  # of more, some are NaN as floats
    packed = np.zeros((count, 4), "u1")
    packed[:, :3] = colours[:, ::-1]
    points["rgb"] = packed.view("<f4")[:, 0]
    return points, colours


def body(points: np.ndarray, data: str, folder: Path) -> bytes:
    if data == "binary":
        return points.tobytes()
    if data == "ascii":
        columns = [points[name].reshape(len(points), -1) for name in FORM.names or ()]
        words = np.concatenate([column.astype(str) for column in columns], axis=1)
        return "".join([" ".join(row) + "\n" for row in words.tolist()]).encode()
    columns = b"".join(points[name].tobytes() for name in FORM.names or ())
    packed = lzf(columns, folder)
    assert len(packed) < len(columns)
    return np.array([len(packed), len(columns)], "<u4").tobytes() + packed


def write(path: Path, data: str, points: np.ndarray, said: int | None = None) -> None:
    count = len(points) if said is None else said
    header = HEADER.format(width=count // 2, points=count, data=data)
    path.write_bytes(header.encode() + body(points, data, path.parent))


@pytest.mark.parametrize("data", ["ascii", "binary", "binary_compressed"])
def test_fields_are_read_in_every_form(tmp_path: Path, data: str) -> None:
    points, colours = cloud()
    write(tmp_path / "a.pcd", data, points)
    oracle = {name: points[name] for name in ("x", "y", "z", "ring", "fpfh")}
    metadata = {"width": ["100"], "height": ["2"], "viewpoint": ["0", "0", "0", "1", "0", "0", "0"]}
    check_format(Pcd(), tmp_path / "a.pcd", {**oracle, "rgb": colours}, metadata)


@pytest.mark.parametrize(
    ("field", "kind", "value", "read"), [("rgba", "U", 0x80010203, [[1, 2, 3, 0x80]]), ("_x", "F", 4, [4])]
)
def test_rgba_is_read_as_four_bytes_and_a_field_named_like_padding_is_kept(
    tmp_path: Path, field: str, kind: str, value: int, read: list[Any]
) -> None:
    text = f"VERSION .7\nFIELDS x y z {field}\nSIZE 4 4 4 4\nTYPE F F F {kind}\nCOUNT 1 1 1 1\n"
    (tmp_path / "a.pcd").write_text(f"{text}WIDTH 1\nHEIGHT 1\nPOINTS 1\nDATA ascii\n1 2 3 {value}\n")
    with Pcd().open(SourceFile(tmp_path / "a.pcd", "a.pcd")) as opened:
        assert opened.arrays[field][:].tolist() == read


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("FIELDS", "COLUMNS"),
        ("VERSION 0.7", "# " + "a" * 2000 + "\nVERSION 0.7"),
        ("# .PCD v0.7 - Point Cloud Data file format\n", ""),
    ],
)
def test_headers_of_other_forms_are_recognised(before: str, after: str, tmp_path: Path) -> None:
    """Version 0.5 calls the fields COLUMNS; comments may be long, or missing."""
    points, colours = cloud()
    header = HEADER.format(width=len(points) // 2, points=len(points), data="binary").replace(before, after)
    (tmp_path / "a.pcd").write_bytes(header.encode() + points.tobytes())
    file = SourceFile(tmp_path / "a.pcd", "a.pcd")
    assert Pcd().recognise(file).certainty == "sure"
    with Pcd().open(file) as opened:
        np.testing.assert_array_equal(opened.arrays["ring"][0:200], points["ring"])
        np.testing.assert_array_equal(opened.arrays["rgb"][0:200], colours)


def test_a_field_with_a_count_of_0_has_no_values(tmp_path: Path) -> None:
    """Some lidars write it for padding, as in pcl 4623."""
    xyz = np.arange(12, dtype="<f4").reshape(4, 3)
    header = "FIELDS x y z _ rgb\nSIZE 4 4 4 1 4\nTYPE F F F U F\nCOUNT 1 1 1 0 0\nPOINTS 4\nDATA binary\n"
    (tmp_path / "a.pcd").write_bytes(header.encode() + xyz.tobytes())
    check_format(Pcd(), tmp_path / "a.pcd", {axis: xyz[:, column] for column, axis in enumerate("xyz")})


def test_each_damage_of_a_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "a.pcd"
    points, _ = cloud(20)

    def message(content: bytes) -> str:
        path.write_bytes(content)
        file = SourceFile(path, path.name)
        with pytest.raises(InputError) as caught, calling(Pcd(), path.name), Pcd().open(file) as opened:
            opened.arrays["x"][0:2]
        return str(caught.value)

    write(path, "binary", points, 30)
    assert "its header states" in message(path.read_bytes())
    write(path, "binary_compressed", points, 30)
    assert "bytes of points, but its header states" in message(path.read_bytes())
    write(path, "binary_compressed", points)
    whole = path.read_bytes()
    assert "its header states" in message(whole[:-3])
    start = whole.index(b"compressed\n") + 19
    assert "cannot be decompressed as LZF" in message(whole[:start] + b"\xff" * (len(whole) - start))
    assert "lines of its header contradict each other" in message(whole.replace(b"TYPE F", b"TYPE Q"))
    assert "its header has no DATA line" in message(whole[:90])
    assert "has the DATA 'binary_odd'" in message(whole.replace(b"binary_compressed", b"binary_odd"))
    write(path, "ascii", points)
    text = path.read_bytes().splitlines(keepends=True)
    assert "line 30 is not a point: 'x y'" in message(b"".join([*text[:29], b"x y\n", *text[30:]]))


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("segment", [None, "window:9"])
def test_points_that_are_not_finite_are_refused_or_in_no_segment(tmp_path: Path, segment: str | None) -> None:
    folder = tmp_path / "scans"
    folder.mkdir()
    points, _ = cloud()
    write(folder / "a.pcd", "binary", points)
    with pytest.raises(InputError, match=r"1 of 200 points .* not finite; the first is row 5: .*--nan drop"):
        convert(folder, tmp_path / "store", segment=segment)
    convert(folder, tmp_path / "store", segment=segment, nan="drop", voxel_size=(2.0,))
    dataset = unistore.Dataset(tmp_path / "store", unistore.Segments(), fields=["xyz", "source_row"])
    rows = np.concatenate([np.asarray(sample["source_row"]) for sample in dataset])
    assert sorted(rows.tolist()) == [row for row in range(200) if row != 5]
    assert all(np.isfinite(np.asarray(sample["xyz"])).all() for sample in dataset)
    receipt = verify(tmp_path / "store", against=[folder]).receipt
    assert receipt is not None
    assert receipt.left_out == (), "the point is in the store"


def test_types_may_be_in_small_letters(tmp_path: Path) -> None:
    points, _ = cloud(200)
    write(tmp_path / "a.pcd", "binary", points)
    content = (tmp_path / "a.pcd").read_bytes()
    (tmp_path / "a.pcd").write_bytes(content.replace(b"TYPE F F F F U U F", b"TYPE f f f f u u f"))
    with Pcd().open(SourceFile(tmp_path / "a.pcd", "a.pcd")) as opened:
        np.testing.assert_array_equal(opened.arrays["fpfh"][0:200], points["fpfh"])
        np.testing.assert_array_equal(opened.arrays["x"][0:200], points["x"])


@pytest.mark.parametrize("stated", [199, 201, 200])
def test_another_number_of_lines_than_the_header_states_is_an_error(tmp_path: Path, stated: int) -> None:
    points, _ = cloud(200)
    write(tmp_path / "a.pcd", "ascii", points, stated)
    content = (tmp_path / "a.pcd").read_text().replace("HEIGHT 2", "HEIGHT 1")
    (tmp_path / "a.pcd").write_text(content.replace(f"WIDTH {stated // 2}", f"WIDTH {stated}"))
    file = SourceFile(tmp_path / "a.pcd", "a.pcd")
    if stated == 200:
        with Pcd().open(file) as opened:
            np.testing.assert_array_equal(opened.arrays["ring"][0:200], points["ring"])
        return
    message = rf"has 200 lines of points, but its header states {stated}"
    with pytest.raises(InputError, match=message) as raised, Pcd().open(file):
        pass
    assert raised.value.problems[0].kind == ("truncated" if stated > 200 else "damaged")


def test_a_width_and_height_that_contradict_the_points_are_an_error(tmp_path: Path) -> None:
    points, _ = cloud(200)
    write(tmp_path / "a.pcd", "binary", points)
    content = (tmp_path / "a.pcd").read_bytes()
    (tmp_path / "a.pcd").write_bytes(content.replace(b"POINTS 200", b"POINTS 100"))
    with (
        pytest.raises(InputError, match=r"states POINTS 100, but WIDTH 100 and HEIGHT 2"),
        Pcd().open(SourceFile(tmp_path / "a.pcd", "a.pcd")),
    ):
        pass
