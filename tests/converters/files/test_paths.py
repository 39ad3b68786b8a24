"""Which files are taken, in which order, under which names."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from unistore.converters.detection import survey
from unistore.converters.files.paths import list_files, natural_key, relative_names, split_of
from unistore.errors import InputError


def expand(paths: list[Path], suffixes: Sequence[str]) -> list[Path]:
    return list(map(Path, list_files(paths).with_suffixes(suffixes)))


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def test_names_are_sorted_by_the_numbers_in_them() -> None:
    names = [
        "demo_10",
        "demo_2",
        "demo_1",
        "demo_02",
        "a/b10",
        "a/b9",
        "10",
        "9",
        "a.h5",
        "a/z",
        "b" + "9" * 5000,
    ]
    assert sorted(names, key=natural_key) == [
        *("9", "10", "a/b9", "a/b10", "a/z", "a.h5", "b" + "9" * 5000),
        *("demo_1", "demo_02", "demo_2", "demo_10"),
    ]


@example(["0/", "00/", "0/0"])
@given(st.lists(st.text(alphabet="a0129/_", max_size=8), unique=True))
def test_the_order_of_names_is_total_and_keeps_folders_together(names: list[str]) -> None:
    assert len({natural_key(name) for name in names}) == len(names)
    in_order = sorted(names, key=natural_key)
    backwards = names[::-1]
    assert in_order == sorted(backwards, key=natural_key)
    folders = [name.split("/")[0] for name in in_order if "/" in name]
    assert len([i for i, f in enumerate(folders) if i == 0 or folders[i - 1] != f]) == len(set(folders))


def test_files_inside_of_stores_and_staging_folders_are_not_sources(tmp_path: Path) -> None:
    names = ("a.npz", "s.zarr/zarr.json", "s.zarr/x.npz", "t.zarr.unistore-build/spill/0/facts.npz")
    touch(*(tmp_path / name for name in names))
    assert relative_names(expand([tmp_path], (".npz",))) == ["a.npz"]


def test_folders_are_searched_and_files_taken_once(tmp_path: Path) -> None:
    touch(
        *(
            tmp_path / name
            for name in ("b/2.h5", "b/10.H5", "a.hdf5", "b/.hidden.h5", ".git/x.h5", "b/note.txt")
        )
    )
    found = expand([tmp_path / "b", tmp_path, tmp_path / "b" / "2.h5"], (".h5", ".hdf5"))
    assert relative_names(found) == ["a.hdf5", "b/2.h5", "b/10.H5"]


def test_links_inside_are_followed_and_those_out_refused(tmp_path: Path) -> None:
    inside = tmp_path / "in"
    touch(inside / "real" / "1.h5", tmp_path / "out" / "2.h5")
    (inside / "again").symlink_to(inside / "real")
    (inside / "loop").symlink_to(inside)
    (inside / "alias.h5").symlink_to(inside / "real" / "1.h5")
    assert relative_names(expand([inside], [".h5"])) == ["1.h5"]
    touch(inside / ".store" / "kept" / "3.h5")
    (inside / "shown").symlink_to(inside / ".store" / "kept")
    assert relative_names(expand([inside], [".h5"])) == [".store/kept/3.h5", "real/1.h5"]
    (inside / "folder_out").symlink_to(tmp_path / "out")
    (inside / "file_out.h5").symlink_to(tmp_path / "out" / "2.h5")
    with pytest.raises(InputError) as caught:
        expand([inside], [".h5"])
    file_out, folder_out = map(str, caught.value.problems)
    assert re.search(r"file_out\.h5: is a link to .*2\.h5, which is outside the given paths", file_out)
    assert re.search(r"folder_out: is a link to .*out, which is outside the given paths", folder_out)
    both = expand([inside, tmp_path / "out"], [".h5"])
    assert relative_names(both) == ["in/.store/kept/3.h5", "in/real/1.h5", "out/2.h5"]


def test_missing_empty_and_broken_paths_are_named_together(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    with pytest.raises(InputError) as caught:
        expand([tmp_path / "empty", tmp_path / "absent", tmp_path / "dangling"], [".h5", ".npy"])
    absent, dangling, empty = caught.value.problems
    assert empty.message == "the folder contains no .h5 or .npy file"
    assert absent.message == "does not exist"
    assert dangling.message == f"is a link to {tmp_path / 'gone'}, which does not exist"


def test_pipes_are_refused_and_never_opened(tmp_path: Path) -> None:
    touch(tmp_path / "in" / "1.h5")
    for pipe in (tmp_path / "in" / "pipe.h5", tmp_path / "alone"):
        os.mkfifo(pipe)
    with pytest.raises(InputError) as caught:
        expand([tmp_path / "in", tmp_path / "alone"], [".h5"])
    for problems in (caught.value.problems, survey([tmp_path]).refused()):
        assert [problem.kind for problem in problems if problem.kind == "special"] == ["special"] * 2
        assert any("pipe.h5: is a pipe, socket or device" in str(problem) for problem in problems)
    assert [path.name for path in expand([tmp_path / "in"], ["1.h5"])] == ["1.h5"]


def test_a_folder_that_cannot_be_listed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path / "1.h5", tmp_path / "closed" / "2.h5")
    listed = os.scandir

    def scandir(path: Path) -> Any:
        if path.name == "closed":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(InputError, match=r"closed: cannot be listed: Permission denied"):
        expand([tmp_path], [".h5"])


def test_a_file_is_taken_whatever_its_name(tmp_path: Path) -> None:
    touch(tmp_path / "data.bin")
    assert list(expand([tmp_path / "data.bin"], [".h5"])) == [tmp_path / "data.bin"]


def test_names_are_relative_to_the_common_folder_of_all_files(tmp_path: Path, monkeypatch) -> None:
    files = [tmp_path / "a" / "x" / "1.h5", tmp_path / "a" / "2.h5"]
    touch(*files)
    assert relative_names(files) == ["x/1.h5", "2.h5"]
    assert relative_names(files[:1]) == ["1.h5"]
    monkeypatch.chdir(tmp_path / "a")
    assert relative_names([Path("x/1.h5"), Path("../a/2.h5")]) == ["x/1.h5", "2.h5"]
    assert relative_names([]) == []


def test_hostile_names_are_printable_and_unique(tmp_path: Path) -> None:
    names = ["a\nb.h5", "a\\x0ab.h5", "\x1b[2J.h5", "..h5", b"\xff.h5".decode("utf-8", "surrogateescape")]
    files = [tmp_path / name for name in names]
    touch(*files)
    shown = relative_names(files)
    assert shown == ["a\\x0ab.h5", "a\\x0ab.h5~2", "\\x1b[2J.h5", "..h5", "\\xff.h5"]
    for name in shown:
        name.encode("utf-8")
    assert len(expand([tmp_path], [".h5"])) == 4, "names that begin with a dot are hidden"


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train/a.h5", "train"),
        ("x/Validation/test.h5", "val"),
        ("ply_data_test0.h5", "test"),
        ("training_objects.h5", "train"),
        ("trainer.h5", None),
        ("scans/a.h5", None),
        ("a.train", None),
    ],
)
def test_split_of_finds_the_split_in_the_name_of_a_file_or_folder(name: str, split: str | None) -> None:
    assert split_of(name) == split
