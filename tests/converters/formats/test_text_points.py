"""Points as text: against NumPy's own reader; all files are synthetic."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import unistore
from unistore import verify
from unistore.conversion.signatures import convert
from unistore.converters.formats.text_points import TextPoints
from unistore.converters.opened import SourceFile
from unistore.errors import InputError


def read(path: Path, root: Path | None = None) -> dict[str, np.ndarray]:
    with TextPoints().open(SourceFile(path, path.name, (root or path.parent,))) as opened:
        return {name: array[0 : len(array)] for name, array in opened.arrays.items()}


@pytest.mark.parametrize(("separator", "end"), [(" ", "\n"), (",", "\n"), ("\t", "\r\n"), (";", "\n\n")])
def test_lines_of_numbers_are_read_with_every_separator(tmp_path: Path, separator: str, end: str) -> None:
    written = np.random.default_rng(0).normal(size=(40, 6))
    lines = [separator.join(map(repr, row)) for row in written.tolist()]
    (tmp_path / "a.xyz").write_bytes(end.join(lines).encode())
    assert TextPoints().recognise(SourceFile(tmp_path / "a.xyz", "a.xyz")).certainty == "sure"
    found = read(tmp_path / "a.xyz")
    assert found.keys() == {"points"}
    assert found["points"].tobytes() == written.tobytes()


@pytest.mark.parametrize("head", ["x y z intensity", "# x y z intensity", "//x y z intensity"])
def test_names_in_the_first_line_become_column_names(tmp_path: Path, head: str) -> None:
    (tmp_path / "a.asc").write_text(f"{head}\n1 2 3 4\n5 6 7 8\n")
    found = read(tmp_path / "a.asc")
    assert list(found) == ["x", "y", "z", "intensity"]
    np.testing.assert_array_equal(found["z"], [3, 7])


def test_two_columns_of_one_name_are_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "a.xyz").write_text("x y z r g b r\n1 2 3 4 5 6 7\n")
    with pytest.raises(InputError, match=r"a\.xyz: has two columns called 'r'\. Fix: rename one of them"):
        read(tmp_path / "a.xyz")


def test_a_number_of_points_in_the_first_line_is_not_a_point(tmp_path: Path) -> None:
    (tmp_path / "a.pts").write_text("2\n1 2 3 -120 0 0 9\n5 6 7 8 1 1 1\n")
    assert read(tmp_path / "a.pts")["points"].tolist() == [[1, 2, 3, -120, 0, 0, 9], [5, 6, 7, 8, 1, 1, 1]]


def room(folder: Path) -> Path:
    objects = folder / "Area_5/hallway_6/Annotations"
    objects.mkdir(parents=True)
    (objects / "ceiling_1.txt").write_text("0.1 0.2 3.0 10 20 30\n0.4 0.5 3.0 255 0 1\n")
    (objects / "stairs_1.txt").write_text("1.5 1.5 1.5 1 2 3\n")
    (objects / "chair_2.txt").write_text("2.5 2.5 0.5 4 5 6\n")
    whole = folder / "Area_5/hallway_6/hallway_6.txt"
    whole.write_text("0.1 0.2 3.0 10 20 30\n")
    return whole


def test_a_room_of_s3dis_is_read_from_the_files_of_its_objects(tmp_path: Path) -> None:
    path = room(tmp_path)
    assert TextPoints().recognise(SourceFile(path, path.name)).certainty == "sure"
    found = read(path, tmp_path)
    assert found["label"].tolist() == [0, 0, 8, 12]
    assert found["instance"].tolist() == [0, 0, 1, 2]
    assert found["xyz"].tolist() == [[0.1, 0.2, 3], [0.4, 0.5, 3], [2.5, 2.5, 0.5], [1.5, 1.5, 1.5]]
    assert found["rgb"].tolist() == [[10, 20, 30], [255, 0, 1], [4, 5, 6], [1, 2, 3]]
    with TextPoints().open(SourceFile(path, path.name, (tmp_path,))) as opened:
        assert opened.arrays["xyz"][1:3].tolist() == [[0.4, 0.5, 3], [2.5, 2.5, 0.5]]
        assert len(opened.further) == 3


def test_hidden_files_that_macos_leaves_are_not_objects_of_a_room(tmp_path: Path) -> None:
    path = room(tmp_path)
    (path.parent / "Annotations/._chair_2.txt").write_bytes(b"\0\5\x16\7")
    found = read(path, tmp_path)
    assert found["label"].tolist() == [0, 0, 8, 12]
    assert found["instance"].tolist() == [0, 0, 1, 2]


def test_the_known_broken_byte_of_s3dis_is_an_error_that_names_its_line(tmp_path: Path) -> None:
    path = room(tmp_path)
    (path.parent / "Annotations/ceiling_1.txt").write_bytes(b"0 0 3 1 2 3\n22.3 6.5 3.05 185\x10187 182\n")
    with pytest.raises(InputError, match=r"ceiling_1\.txt: line 2 is not a point: '22\.3 6\.5 3\.05 185"):
        read(path, tmp_path)
    with TextPoints().open(SourceFile(path, path.name, (tmp_path,))) as opened:
        assert opened.arrays["xyz"][2:4].tolist() == [[2.5, 2.5, 0.5], [1.5, 1.5, 1.5]], "of other objects"


@pytest.mark.usefixtures("in_this_process")
def test_rooms_become_samples_and_other_texts_only_if_they_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "s3dis"
    folder.mkdir()
    room(folder)
    (folder / "poses.txt").write_text("1 2 3\n4 5 6\n")
    convert(folder, tmp_path / "store")
    sample = unistore.Dataset(tmp_path / "store")[0]
    assert sample["label"].tolist() == [0, 0, 8, 12]
    assert sample["rgb"].shape == (4, 3)
    assert verify(tmp_path / "store", against=[folder]).receipt is not None
    convert(folder / "poses.txt", tmp_path / "poses", "point_cloud")
    assert unistore.Dataset(tmp_path / "poses")[0]["xyz"].shape == (2, 3)


@pytest.mark.parametrize("number", [2**53 + 1, -(2**53) - 1, 2**64 + 1, 10**400])
def test_whole_numbers_that_float64_would_round_are_an_error(tmp_path: Path, number: int) -> None:
    path = tmp_path / "a.xyz"
    path.write_text(f"x y z id\n1 2 3 4\n\n5 6 7 {number}\n")
    with (
        TextPoints().open(SourceFile(path, "a.xyz")) as opened,
        pytest.raises(InputError, match=rf"line 4 has {str(number)[:60]}, which is rounded"),
    ):
        opened.arrays["id"][:]


def test_large_numbers_that_float64_holds_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.xyz"
    path.write_text(f"x y z id\n1 2 3 {2**60}\n4 5 6 1.5e30\n7 8 9 -{2**53}\n")
    with TextPoints().open(SourceFile(path, "a.xyz")) as opened:
        assert opened.arrays["id"][:].tolist() == [2.0**60, 1.5e30, -(2.0**53)]


def test_a_line_that_is_cut_off_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.xyz").write_text("1 2 3\n4 5 6\n7 8")
    with pytest.raises(InputError, match=r"a\.xyz: line 3 is not a point: '7 8'"):
        read(tmp_path / "a.xyz")


def test_a_blank_first_line_loses_no_point(tmp_path: Path) -> None:
    (tmp_path / "a.xyz").write_text("\n1 2 3\n\n4 5 6\n7 8 9\n")
    assert read(tmp_path / "a.xyz")["points"].tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]


POINTS = np.random.default_rng(0).random((20, 4)).round(6)
LINES = [" ".join(f"{value:.6f}" for value in point) for point in POINTS]
BODY = "\n".join(LINES) + "\n"


def with_first(line: str) -> str:
    return "\n".join([line, *LINES[1:]]) + "\n"


SOUND = {
    "titles": "X Y Z Intensity\n" + BODY,
    "titles in quotes": '"x","y","z","i"\n' + BODY.replace(" ", ","),
    "titles of CloudCompare": "//X Y Z Intensity\n" + BODY,
    "titles and a number of points": "//X Y Z Intensity\n20\n" + BODY,
    "a name and titles": "// scan 1\n//X Y Z Intensity\n" + BODY,
    "comments": "# scanned at noon, 20 points\n# by hand\n\n" + BODY,
    "a number of points": "20\n" + BODY,
    "as Windows writes": "\ufeff20\r\n" + BODY.replace("\n", "\r\n"),
    "a byte order mark": "\ufeff" + BODY,
    "no last line feed": BODY[:-1],
}
DAMAGED = {  # with the beginning of what is said
    "cut short": (with_first("0.5 0.2"), "line 1 is not a point"),
    "cut to three numbers": (with_first("0.5 0.2 0.1"), "line 1 is not a point"),
    "cut to a fraction": (with_first("0.5"), "line 1 is not a point"),
    "cut to a whole number": (with_first("7"), "has 19 lines of points, but its header states 7"),
    "a letter in it": (with_first("0.1x3 0.2 0.3 0.4"), "line 1 is not a point"),
    "no number": (with_first("garbage"), "line 1 is not a point"),
    "signs": (with_first("~~ !! ?? ++"), "line 1 is not a point"),
    "zeros": (with_first("\0" * 35), "line 1 is not a point"),
    "a page of zeros": ("\0" * 4096 + BODY, "contains NUL bytes"),
    "too long": (with_first("1 2 3 4 5"), "line 1 is not a point"),
    "titles of other columns": ("x y z\n" + BODY, "line 1 is not a point"),
    "one point more": ("19\n" + BODY, "has 20 lines of points, but its header states 19"),
    "one point less": ("21\n" + BODY, "has 20 lines of points, but its header states 21"),
    "titles and another number": ("//X Y Z I\n0\n" + BODY, "has 20 lines of points, but its header states 0"),
    "a longer line": (BODY + "1 2 3 4 5\n", "line 21 is not a point"),
    "zeros in a line": (BODY + "1 2\0 3 4\n", "line 21 is not a point"),
    "a carriage return": (BODY + "1 2 3 4\r5 6 7 8\n", "line 21 is not a point"),
}


@pytest.mark.parametrize("suffix", [".xyz", ".pts", ".asc", ".txt"])
@pytest.mark.parametrize("name", SOUND)
def test_header_lines_are_not_read_as_points(tmp_path: Path, name: str, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_text(SOUND[name], encoding="utf-8", newline="")
    assert TextPoints().recognise(SourceFile(path, path.name)).certainty != "no"
    found = read(path)
    has_titles = "titles" in name
    assert [title.lower()[0] for title in found] == (["x", "y", "z", "i"] if has_titles else ["p"])
    np.testing.assert_array_equal(np.column_stack([*found.values()]), POINTS)


def recognised_and_read(path: Path) -> dict[str, np.ndarray]:
    TextPoints().recognise(SourceFile(path, path.name))
    return read(path)


@pytest.mark.parametrize("suffix", [".xyz", ".pts", ".asc", ".txt"])
@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_line_is_no_header(tmp_path: Path, name: str, suffix: str) -> None:
    text, message = DAMAGED[name]
    path = tmp_path / f"a{suffix}"
    path.write_text(text, encoding="utf-8", newline="")
    if suffix == ".txt" and name == "a page of zeros":
        message = "does not begin with points"
    with pytest.raises(InputError) as raised:
        recognised_and_read(path)
    (problem,) = raised.value.problems
    assert problem.message.startswith(message)


def test_a_damaged_first_line_ends_a_conversion(tmp_path: Path) -> None:
    folder = tmp_path / "clouds"
    folder.mkdir()
    (folder / "a.xyz").write_text(BODY)
    (folder / "b.xyz").write_text(with_first("0.5 0.2"))
    with pytest.raises(InputError, match=r"b\.xyz: line 1 is not a point"):
        unistore.convert(folder, tmp_path / "store", workers=0)
    (folder / "b.xyz").write_text(with_first(LINES[0]))
    unistore.convert(folder, tmp_path / "store", workers=0)
    sample = unistore.Dataset(tmp_path / "store", unistore.Segments(coordinates="absolute"))[1]
    np.testing.assert_allclose(sample["xyz"], POINTS[:, :3], rtol=0, atol=1e-12)


@pytest.mark.parametrize("separator", [",", ";"])
@pytest.mark.parametrize("end", ["\n", "\r\n", " \n"])
@pytest.mark.parametrize("head", ["", "x{0}y{0}z{0}i{0}\n", "//x{0}y{0}z{0}i\n40\n", "\ufeff"])
def test_a_separator_after_the_last_number_is_ignored(
    tmp_path: Path, separator: str, end: str, head: str
) -> None:
    written = np.random.default_rng(0).normal(size=(40, 4))
    lines = [separator.join([*map(repr, row), ""]) for row in written.tolist()]
    text = head.format(separator) + end.join([*lines, ""])
    (tmp_path / "a.asc").write_bytes(text.encode())
    found = read(tmp_path / "a.asc")
    columns = np.stack([found[name] for name in "xyzi"], 1) if "x" in head else found["points"]
    assert columns.tobytes() == written.tobytes()


@pytest.mark.parametrize("line", ["1,2,\n", "1,,3,4,\n", "1,2,3,4,5,\n"])
def test_a_line_with_a_missing_number_is_an_error(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.asc").write_text("1,2,3,4,\n5,6,7,8,\n" + line)
    with pytest.raises(InputError, match="line 3 is not a point"):
        read(tmp_path / "a.asc")
