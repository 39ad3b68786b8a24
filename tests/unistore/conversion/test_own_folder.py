"""A build folder that somebody has planted or meddled with: nothing is followed out of it, or taken over."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import unistore
from unistore import export, repair
from unistore.errors import ConversionError


@pytest.fixture
def place(tmp_path: Path) -> Path:
    np.save(tmp_path / "good.npy", np.arange(40.0).reshape(10, 4))
    home = tmp_path / "home"
    for name in ("spill/a", "store/b", "old/c", "root/d", "letters"):
        (home / name).mkdir(parents=True)
        (home / name / "precious").write_text("mine")
    (home / "journal.jsonl").write_text("a line without its end")
    return tmp_path


def contents(folder: Path) -> dict[str, bytes | None]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


@pytest.mark.parametrize("restart", [False, True])
def test_a_build_folder_that_is_a_link_is_not_followed(place: Path, restart: bool) -> None:
    (place / "a.zarr.unistore-build").symlink_to(place / "home")
    before = contents(place / "home")
    with pytest.raises(ConversionError, match=r"unistore-build: unistore did not make this folder"):
        unistore.convert(place / "good.npy", place / "a.zarr", "rows", restart=restart)
    assert contents(place / "home") == before
    assert not (place / "a.zarr").exists()


PLANTED: dict[str, Callable[[Path, Path], None]] = {
    "journal": lambda build, home: (build / "journal.jsonl").symlink_to(home / "journal.jsonl"),
    "spill": lambda build, home: (build / "spill").symlink_to(home / "spill"),
    "store": lambda build, home: (build / "store").symlink_to(home / "store"),
    "old": lambda build, home: (build / "old").symlink_to(home / "old"),
    "lock": lambda build, home: (build / "lock").symlink_to(home / "letters/precious"),
    "deep": lambda build, home: deep(build / "store/rows").symlink_to(home / "store"),
    "dangling": lambda build, home: deep(build / "store/rows/data").symlink_to(home / "new"),
    "pipe": lambda build, home: os.mkfifo(build / "journal.jsonl"),
    "pipe as lock": lambda build, home: os.mkfifo(build / "lock"),
}


def deep(path: Path) -> Path:
    path.parent.mkdir(parents=True)
    return path


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("planted", PLANTED)
def test_nothing_in_a_build_folder_leads_out_of_it(place: Path, planted: str, restart: bool) -> None:
    build, home = place / "a.zarr.unistore-build", place / "home"
    build.mkdir()
    PLANTED[planted](build, home)
    before = contents(home)
    with pytest.raises(ConversionError, match="is a link or a special file, which unistore never makes"):
        unistore.convert(place / "good.npy", place / "a.zarr", "rows", restart=restart)
    assert contents(home) == before


@pytest.mark.parametrize("purpose", ["unistore-export", "unistore-repair"])
@pytest.mark.parametrize("how", ["link", "work"])
def test_exports_and_repairs_follow_no_link_either(place: Path, purpose: str, how: str) -> None:
    store, home = place / "a.zarr", place / "home"
    unistore.convert(place / "good.npy", store, "rows")
    (store / "rows/data/c/0/0").write_bytes(b"damaged")
    (home / "work").mkdir()
    (home / "work/precious").write_text("mine")
    beside = place / f"{'back' if purpose == 'unistore-export' else 'a.zarr'}.{purpose}"
    if how == "link":
        beside.symlink_to(home)
    else:
        beside.mkdir()
        (beside / "work").symlink_to(home / "work")
    before = contents(home)
    run: Callable[[], object] = partial(repair, store, [place / "good.npy"])
    if purpose == "unistore-export":
        run = partial(export, store, place / "back")
    with pytest.raises(ConversionError, match=r"did not make this folder|which unistore never makes"):
        run()
    assert contents(home) == before


def test_a_build_folder_of_another_user_is_not_taken_over(place: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give a folder to another user")
    build = place / "a.zarr.unistore-build"
    build.mkdir()
    os.chown(build, 12345, 12345)
    with pytest.raises(ConversionError, match=r"belongs to another user, with uid 12345 instead of 0"):
        unistore.convert(place / "good.npy", place / "a.zarr", "rows")
    assert not (place / "a.zarr").exists()


@pytest.mark.parametrize(
    "lines",
    [
        ["3", "[]", "[" * 10**5],
        ['{"step": "begin"}'],
        ['{"step": "begin", "identity": 3, "paths": 4}'],
        ['{"step": "begin", "identity": {"family": 5, "options": [], "sources": 3}, "paths": [1, 2]}'],
        ['{"step": "shard", "task": [], "files": 3}', '{"step": "derive", "batch": {}}'],
        ['{"step": "plan", "tasks": "many"}', '{"step": "shard", "files": [{"bytes": "x"}]}'],
        ['{"step": "begin", "identity": {"destination": 3}}', '{"step": "shard", "task": {}, "files": [1]}'],
    ],
)
def test_inspect_shows_a_staging_folder_with_a_damaged_journal_as_unfinished(
    place: Path, lines: list[str]
) -> None:
    build = place / "a.zarr.unistore-build"
    build.mkdir()
    (build / "journal.jsonl").write_text("\n".join(lines))
    found = unistore.inspect(build)
    assert found.kind == "unfinished"
    assert "unfinished" in str(found)
