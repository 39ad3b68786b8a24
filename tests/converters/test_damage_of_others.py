"""A damaged file of another family beside sound ones: a problem where the family is detected."""

from __future__ import annotations

import builtins
import errno
import io
import os
import shutil
from pathlib import Path
from typing import Any

import laspy
import numpy as np
import pytest

import unistore
from tests.support.cases import DATA
from tests.support.programs import call
from unistore.converters.detection import survey
from unistore.errors import InputError

IMAGE = np.arange(2048, dtype=np.int16).reshape(8, 16, 16)
# Files whose endings one format has, with first bytes that it never has
WRONG = {
    "las": b"XXXX" + bytes(400),
    "laz": b"zz" * 200,
    "ply": b"zz" * 200,
    "pcd": b"zz" * 200,
    "parquet": b"zz" * 200,
    "mcap": b"zz" * 200,
    "bag": b"zz" * 200,
    "aedat4": b"zz" * 200,
    "zarr.zip": b"zz" * 200,
    "tfrecord-00000-of-00001": b"zz" * 200,
    "npz": b"zz" * 200,
    "h5": b"zz" * 200,
    "xyz": b"\0\1zz" * 100,
    "asc": b"",
}
QUICK = ("las", "npz")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a sound volume."""
    monkeypatch.chdir(tmp_path)
    path = Path("in")
    (path / "case_1").mkdir(parents=True)
    np.save(path / "case_1" / "ct_original.npy", IMAGE)
    return path


def check_volume(store: str = "a.zarr") -> None:
    dataset = unistore.Dataset(store)
    assert len(dataset) == 1
    np.testing.assert_array_equal(np.squeeze(np.asarray(dataset[0]["image"])), IMAGE)


@pytest.mark.parametrize(
    "ending", [end if end in QUICK else pytest.param(end, marks=pytest.mark.nightly) for end in WRONG]
)
def test_a_file_with_a_wrong_beginning_is_a_problem_and_can_be_skipped(
    folder: Path, ending: str, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / f"bad.{ending}").write_bytes(WRONG[ending])
    with pytest.raises(InputError) as error:
        unistore.convert(folder, "a.zarr")
    (problem,) = error.value.problems
    assert problem.source == f"bad.{ending}"
    assert not Path("a.zarr").exists()
    assert call("convert", folder, "a.zarr", "--on-error", "skip") == 3
    assert f"bad.{ending}" in capfd.readouterr().out
    check_volume()
    assert call("convert", folder, "b.zarr", "--exclude", f"bad.{ending}") == 0
    check_volume("b.zarr")


def test_the_exclude_option_printed_for_a_damaged_file_works(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "case_1" / "bad.las").write_bytes(WRONG["las"])
    assert call("convert", folder, "a.zarr") == 2
    said = capfd.readouterr().err
    assert "case_1/bad.las: does not begin with LASF" in said
    assert "--exclude case_1/bad.las to skip it" in said
    assert call("convert", folder, "a.zarr", "--exclude", "case_1/bad.las") == 0
    check_volume()


def test_with_a_named_family_files_of_others_are_left_out(folder: Path) -> None:
    (folder / "bad.las").write_bytes(WRONG["las"])
    report = unistore.convert(folder, "a.zarr", "ct")
    assert [(each["verdict"], each["files"]) for each in report.verdicts] == [("taken", 1), ("left out", 1)]
    check_volume()
    assert unistore.verify("a.zarr", against=folder).ok


def test_sound_files_that_no_family_takes_are_left_out(folder: Path) -> None:
    header = "ply\nformat ascii 1.0\nelement face 1\nproperty list uchar int vertex_index\nend_header\n"
    (folder / "mesh.ply").write_text(f"{header}3 0 1 2\n")
    (folder / "notes.txt").write_bytes("für alle".encode("utf-16"))
    (folder / "table.csv").write_bytes("größe;1".encode("latin-1"))
    (folder / "facts.json").write_text("{}")
    unistore.convert(folder, "a.zarr")
    check_volume()


def test_sound_files_of_two_families_are_an_error_that_names_several_families(folder: Path) -> None:
    cloud = laspy.create()
    cloud.x = cloud.y = cloud.z = np.arange(9.0)
    cloud.write(folder / "good.las")
    with pytest.raises(InputError, match="several families"):
        unistore.convert(folder, "a.zarr")


def failing(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let every read of a file of this name fail."""

    def refuse(path: Any) -> None:
        if isinstance(path, str | os.PathLike) and Path(os.fspath(path)).name == name:
            raise OSError(errno.EIO, os.strerror(errno.EIO), os.fspath(path))

    for module, function in ((io, "open"), (builtins, "open"), (os, "open")):
        original = getattr(module, function)

        def opened(path: Any, *rest: Any, _original: Any = original, **named: Any) -> Any:
            refuse(path)
            return _original(path, *rest, **named)

        monkeypatch.setattr(module, function, opened)


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("name", ["scan", "x.foo", "metadata.yaml", "bad.las", "bad.zarr.zip"])
def test_what_cannot_be_read_is_skipped_with_a_report(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which family it is of is unknown, and the sound files tell one."""
    (folder / name).write_bytes(b"zz" * 200)
    failing(monkeypatch, name)
    if survey([folder]).unreadable:
        with pytest.raises(InputError, match=rf"{name}: cannot be read") as error:
            unistore.convert(folder, "a.zarr")
        assert [problem.source for problem in error.value.problems] == [name]
        report = unistore.convert(folder, "a.zarr", on_error="skip")
        assert [entry["left_out"] for entry in report.skipped] == [name]
    else:  # no family reads files of this ending
        unistore.convert(folder, "a.zarr")
    check_volume()


@pytest.mark.usefixtures("in_this_process")
def test_skip_is_an_error_if_no_file_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(DATA / "pointcloud" / "thin_a.h5", tmp_path / "a.las")
    failing(monkeypatch, "a.las")
    with pytest.raises(InputError, match="cannot be read"):
        unistore.convert(tmp_path, tmp_path / "a.zarr", on_error="skip")
