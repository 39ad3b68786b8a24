from __future__ import annotations

import os
from pathlib import Path

import pytest

from unistore.converters.files.folders import Folders


def lay(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def test_names_in_given_folders_and_of_given_files(tmp_path: Path) -> None:
    lay(tmp_path, "a/x.npy", "a/.hidden", "a/b/y.npy", "other/z.npy", "other/w.npy")
    folders = Folders([tmp_path / "a", tmp_path / "other/z.npy"])
    assert folders.names(tmp_path / "a") == {"x.npy"}
    assert folders.names(tmp_path / "a/b") == {"y.npy"}
    assert folders.names(tmp_path / "other") == {"z.npy"}
    assert folders.names(tmp_path / "none") == set()
    assert folders.has(tmp_path / "a/b/y.npy")
    assert not folders.has(tmp_path / "a/b/x.npy")
    assert not Folders([tmp_path / "a"]).has(tmp_path / "other/z.npy")


def test_a_link_that_leads_out_is_not_there(tmp_path: Path) -> None:
    lay(tmp_path, "secret.npy", "a/x.npy")
    (tmp_path / "a/out.npy").symlink_to(tmp_path / "secret.npy")
    (tmp_path / "a/in.npy").symlink_to(tmp_path / "a/x.npy")
    folders = Folders([tmp_path / "a"])
    assert not folders.has(tmp_path / "a/out.npy")
    assert folders.names(tmp_path / "a") == {"x.npy", "in.npy"}


def test_a_folder_is_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay(tmp_path, *(f"{number}.npy" for number in range(9)))
    listed = []
    searched = []
    scandir = os.scandir

    def is_eight(path: Path) -> bool:
        searched.append(path)
        return path.stem == "8"

    monkeypatch.setattr("os.scandir", lambda folder: listed.append(folder) or scandir(folder))
    folders = Folders([tmp_path])
    for number in range(9):
        assert folders.has(tmp_path / f"{number}.npy")
        assert len(folders.names(tmp_path)) == 9
        assert folders.holds(tmp_path, is_eight)
    assert listed == [tmp_path]
    assert len(searched) <= 9, "searched once"


def test_folders_of_some_files(tmp_path: Path) -> None:
    folders = Folders.of([tmp_path / "a/x.npy", tmp_path / "a/y.npy"])
    assert folders.names(tmp_path / "a") == {"x.npy", "y.npy"}
    assert folders.has(tmp_path / "a/x.npy")
    assert not folders.has(tmp_path / "x.npy")
