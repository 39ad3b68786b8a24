"""PLY: against plyfile, which also writes the files (synthetic)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from plyfile import PlyData, PlyElement

import unistore
from unistore.conversion.signatures import convert
from unistore.converters.adapter.formats import calling
from unistore.converters.formats.ply import Ply
from unistore.converters.opened import SourceFile
from unistore.errors import InputError
from unistore.testing import check_format

SPLATS = [("f_dc_0", "f4"), ("scale_0", "f4"), ("rot_3", "f4"), ("opacity", "f4")]
FORM = [*[(axis, "f8") for axis in "xyz"], ("red", "u1"), ("scalar_Intensity", "f4"), ("tag", "i2"), *SPLATS]


def write(path: Path, *, text: bool = False, order: str = "<", faces: bool = False, count: int = 300) -> None:
    random = np.random.default_rng(3)
    vertices = np.zeros(count, FORM)
    for name in vertices.dtype.names or ():
        vertices[name] = random.normal(50, 20, count)
    vertices["x"][:2] = 1 / 3, 1e-7
    elements = [PlyElement.describe(vertices, "vertex")]
    if faces:
        triangles = np.empty(7, [("vertex_indices", "O")])
        triangles["vertex_indices"] = [np.arange(3, dtype="i4") for _ in range(7)]
        elements.append(PlyElement.describe(triangles, "face", len_types={"vertex_indices": "u1"}))
    PlyData(elements, text=text, byte_order=order, comments=["made by a test"]).write(path)


def read(path: Path) -> dict[str, np.ndarray]:
    vertices = PlyData.read(path)["vertex"].data
    return {name: np.asarray(vertices[name]) for name in vertices.dtype.names}


@pytest.mark.parametrize("form", [{}, {"order": ">"}, {"text": True, "order": "="}])
def test_vertices_are_those_of_plyfile(tmp_path: Path, form: dict[str, object]) -> None:
    write(tmp_path / "a.ply", **form)
    check_format(Ply(), tmp_path / "a.ply", read(tmp_path / "a.ply"), {"comments": ["made by a test"]})


@pytest.mark.parametrize("form", [{}, {"text": True, "order": "="}])
def test_faces_are_left_out(tmp_path: Path, form: dict[str, object]) -> None:
    write(tmp_path / "a.ply", faces=True, **form)
    with Ply().open(SourceFile(tmp_path / "a.ply", "a.ply")) as opened:
        assert opened.left_out == {"face": "because only vertices are stored"}
        np.testing.assert_array_equal(opened.arrays["y"][3:9], read(tmp_path / "a.ply")["y"][3:9])


def rewrite_header(path: Path, before: bytes, after: bytes) -> None:
    """Replace bytes of the header only."""
    content = path.read_bytes()
    end = content.index(b"end_header\n") + len(b"end_header\n")
    path.write_bytes(content[:end].replace(before, after) + content[end:])


@pytest.mark.parametrize("ending", [b"\r\n", b"\r", b" \n"])
def test_lines_of_a_header_may_end_in_every_way(ending: bytes, tmp_path: Path) -> None:
    """A carriage return alone is how Turk's description ends them; points may begin with any byte."""
    write(tmp_path / "a.ply")
    content = bytearray((tmp_path / "a.ply").read_bytes())
    content[content.index(b"end_header\n") + len(b"end_header\n")] = ord("\n")
    (tmp_path / "a.ply").write_bytes(content)
    expected = {name: values.copy() for name, values in read(tmp_path / "a.ply").items()}
    rewrite_header(tmp_path / "a.ply", b"\n", ending)
    with Ply().open(SourceFile(tmp_path / "a.ply", "a.ply")) as opened:
        for name, values in expected.items():
            np.testing.assert_array_equal(opened.arrays[name][0 : len(values)], values)


def test_text_with_carriage_returns_alone_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "a.ply", text=True, order="=")
    content = (tmp_path / "a.ply").read_bytes()
    (tmp_path / "a.ply").write_bytes(content.replace(b"\n", b"\r"))
    with (
        pytest.raises(InputError, match=r"carriage return alone.*save it with line feeds"),
        Ply().open(SourceFile(tmp_path / "a.ply", "a.ply")),
    ):
        pass


def test_a_comment_may_name_the_end_of_the_header(tmp_path: Path) -> None:
    write(tmp_path / "a.ply")
    rewrite_header(tmp_path / "a.ply", b"comment made", b"comment end_header was made")
    comments = {"comments": ["end_header was made by a test"]}
    check_format(Ply(), tmp_path / "a.ply", read(tmp_path / "a.ply"), comments)


@pytest.mark.parametrize("stated", [299, 301])
def test_another_number_of_lines_than_the_header_states_is_an_error(tmp_path: Path, stated: int) -> None:
    write(tmp_path / "a.ply", faces=True, text=True, order="=")
    content = (tmp_path / "a.ply").read_bytes()
    (tmp_path / "a.ply").write_bytes(content.replace(b"element vertex 300", b"element vertex %d" % stated))
    with (
        pytest.raises(InputError, match=rf"has 300 lines of points, but its header states {stated}"),
        Ply().open(SourceFile(tmp_path / "a.ply", "a.ply")),
    ):
        pass


@pytest.mark.usefixtures("in_this_process")
def test_labels_of_scannet_are_read_from_their_own_file_of_equal_length(tmp_path: Path) -> None:
    folder = tmp_path / "scans"
    folder.mkdir()
    write(folder / "scene_vh_clean_2.ply", count=4)
    labels = np.array([(7,), (1,), (2,), (40,)], [("label", "u2")])
    shapes = np.zeros(4, [("x", "f4"), ("label", "u2")])
    shapes["label"] = labels["label"]
    beside = folder / "scene_vh_clean_2.labels.ply"
    PlyData([PlyElement.describe(shapes, "vertex")]).write(beside)
    file = SourceFile(folder / "scene_vh_clean_2.ply", "scene_vh_clean_2.ply", (folder,))
    with Ply().open(file) as opened:
        assert [one.path for one in opened.further] == [beside]
        assert opened.arrays["label"][0:4].tolist() == [7, 1, 2, 40]
    convert(folder, tmp_path / "store")
    assert unistore.Dataset(tmp_path / "store")[0]["label"].tolist() == [7, 1, 2, 40]
    PlyData([PlyElement.describe(shapes[:3], "vertex")]).write(beside)
    with (
        pytest.raises(InputError, match=r"labels\.ply: has 3 vertices, but scene_vh_clean_2\.ply has 4"),
        Ply().open(file),
    ):
        pass


WRONG = {
    "its header has no end_header": b"ply\nformat binary_little_endian 1.0\n",
    "has the format 'binary_middle 1.0'": b"ply\nformat binary_middle 1.0\nend_header\n",
    "has no vertices": b"ply\nformat ascii 1.0\nelement edge 0\nend_header\n",
    "lists, which are not supported: near": b"ply\nformat ascii 1.0\nelement vertex 1\n"
    b"property list uchar int near\nend_header\n0\n",
    "line 4 of its header, 'property quad x'": b"ply\nformat ascii 1.0\nelement vertex 1\n"
    b"property quad x\nend_header\n0\n",
    "two vertex properties with the same name": b"ply\nformat ascii 1.0\nelement vertex 1\n"
    b"property float x\nproperty float x\nend_header\n0\n",
    "line 7 is not a point: '1 oops'": b"ply\nformat ascii 1.0\nelement vertex 2\n"
    b"property float x\nproperty float y\nend_header\n1 oops\n2 3\n",
    "has 1 line of points, but its header states 2": b"ply\nformat ascii 1.0\nelement vertex 2\n"
    b"property float x\nend_header\n1\n",
    "its header states 410": b"ply\nformat binary_little_endian 1.0\nelement vertex 82\n"
    b"property float x\nend_header\n1234",
}


@pytest.mark.parametrize("message", WRONG)
def test_each_damage_of_a_file_is_an_error_that_names_it(tmp_path: Path, message: str) -> None:
    path = tmp_path / "a.ply"
    path.write_bytes(WRONG[message])
    file = SourceFile(path, path.name)
    with pytest.raises(InputError) as caught, calling(Ply(), path.name), Ply().open(file) as opened:
        opened.arrays["x"][0:2]
    assert message in str(caught.value)
