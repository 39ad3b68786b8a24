"""Points as text: against NumPy's own reader; all files are synthetic."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import unistore
from unistore import verify
from unistore.conversion.convert import convert
from unistore.converters.formats.text_points import TextPoints
from unistore.converters.plugin import SourceFile
from unistore.errors import InputError


def read(path: Path, root: Path | None = None) -> dict[str, np.ndarray]:
    with TextPoints().open(SourceFile(path, path.name, (root or path.parent,))) as opened:
        return {name: array[0 : len(array)] for name, array in opened.arrays.items()}


@pytest.mark.parametrize(("separator", "end"), [(" ", "\n"), (",", "\n"), ("\t", "\r\n"), (";", "\n\n")])
def test_lines_of_numbers(tmp_path: Path, separator: str, end: str) -> None:
    written = np.random.default_rng(0).normal(size=(40, 6))
    lines = [separator.join(map(repr, row)) for row in written.tolist()]
    (tmp_path / "a.xyz").write_bytes(end.join(lines).encode())
    assert TextPoints().recognise(SourceFile(tmp_path / "a.xyz", "a.xyz")).certainty == "sure"
    found = read(tmp_path / "a.xyz")
    assert found.keys() == {"points"}
    assert found["points"].tobytes() == written.tobytes()


@pytest.mark.parametrize("head", ["x y z intensity", "# x y z intensity", "//x y z intensity"])
def test_names_in_the_first_line(tmp_path: Path, head: str) -> None:
    (tmp_path / "a.asc").write_text(f"{head}\n1 2 3 4\n5 6 7 8\n")
    found = read(tmp_path / "a.asc")
    assert list(found) == ["x", "y", "z", "intensity"]
    np.testing.assert_array_equal(found["z"], [3, 7])


def test_a_number_of_points_in_the_first_line_is_none_of_them(tmp_path: Path) -> None:
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


def test_a_room_of_s3dis_is_its_objects(tmp_path: Path) -> None:
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


def test_the_byte_that_is_known_to_be_broken_is_told_by_its_line(tmp_path: Path) -> None:
    path = room(tmp_path)
    (path.parent / "Annotations/ceiling_1.txt").write_bytes(b"0 0 3 1 2 3\n22.3 6.5 3.05 185\x10187 182\n")
    with pytest.raises(InputError, match=r"ceiling_1\.txt: line 2 is no point: '22\.3 6\.5 3\.05 185"):
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


def test_a_line_that_is_cut_off_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.xyz").write_text("1 2 3\n4 5 6\n7 8")
    with pytest.raises(InputError, match=r"a\.xyz: line 3 is no point: '7 8' \(correct that line\)"):
        read(tmp_path / "a.xyz")


def test_a_blank_first_line_loses_no_point(tmp_path: Path) -> None:
    (tmp_path / "a.xyz").write_text("\n1 2 3\n\n4 5 6\n7 8 9\n")
    assert read(tmp_path / "a.xyz")["points"].tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
