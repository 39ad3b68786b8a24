from __future__ import annotations

from pathlib import Path

from unistore.converters.files.paths import Folders


def lay(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def is_x(path: Path) -> bool:
    return path.name == "x.npy"


def is_hidden(path: Path) -> bool:
    return path.name.startswith(".")


def test_folders_sees_only_files_below_the_given_paths(tmp_path: Path) -> None:
    lay(tmp_path, "a/x.npy", "a/.hidden", "a/b/y.npy", "other/x.npy", "third/x.npy", "third/z.npy")
    folders = Folders([tmp_path / "a", tmp_path / "third/z.npy"])
    assert folders.holds(tmp_path / "a", is_x)
    assert not folders.holds(tmp_path / "a", is_hidden)
    for folder in ("a/b", "other", "third", "none"):
        assert not folders.holds(tmp_path / folder, is_x), folder
    assert folders.holds(tmp_path / "third", lambda path: path.name == "z.npy")
    assert folders.has(str(tmp_path / "a/b/y.npy"))
    assert not folders.has(str(tmp_path / "a/b/x.npy"))
    assert not folders.has(str(tmp_path / "other/x.npy"))


def test_folders_does_not_see_a_link_that_leads_out(tmp_path: Path) -> None:
    lay(tmp_path, "secret.npy", "a/y.npy", "b/y.npy")
    (tmp_path / "a/x.npy").symlink_to(tmp_path / "secret.npy")
    (tmp_path / "b/x.npy").symlink_to(tmp_path / "b/y.npy")
    folders = Folders([tmp_path / "a", tmp_path / "b"])
    assert not folders.has(str(tmp_path / "a/x.npy"))
    assert not folders.holds(tmp_path / "a", is_x)
    assert folders.holds(tmp_path / "b", is_x)


def test_folders_does_not_see_a_link_to_itself(tmp_path: Path) -> None:
    lay(tmp_path, "y.npy")
    (tmp_path / "x.npy").symlink_to("x.npy")
    folders = Folders([tmp_path])
    assert not folders.holds(tmp_path, is_x)
    assert folders.holds(tmp_path, lambda path: path.name == "y.npy")
