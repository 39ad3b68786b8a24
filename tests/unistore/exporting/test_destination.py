"""Where an export goes: never into what is there, never outside, never half."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.programs import call
from tests.support.store_files import flip
from unistore import export
from unistore.errors import ConversionError, InputError, StoreError
from unistore.exporting.run import FileNames

HOSTILE = [
    "",
    "/etc/passwd",
    "../out.h5",
    "a/../../out.h5",
    "a//b.h5",
    "./a.h5",
    "a/.",
    "a/..",
    "..\\out.h5",
    "C:/out.h5",
    "C:out.h5",
    "a\nb.h5",
    "a\x00b.h5",
    "x" * 300,
]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_that_leads_outside_is_an_error(name: str) -> None:
    with pytest.raises(StoreError, match="cannot be written"):
        FileNames("a.zarr").take(name)


@pytest.mark.parametrize("name", ["a.h5", "train/a.h5", "höhe/…/x", "..a/b..", "stem:0.npy", "a b"])
def test_harmless_names_are_written_unchanged(name: str) -> None:
    assert "/".join(FileNames("a.zarr").take(name)) == name


@pytest.mark.parametrize("second", ["a/b.h5", "a", "a/b.h5/c.h5"])
def test_two_exported_files_of_one_name_are_an_error(second: str) -> None:
    names = FileNames("a.zarr")
    names.take("a/b.h5")
    with pytest.raises(StoreError, match="two files have the name"):
        names.take(second)


@pytest.mark.parametrize("hostile", ["../escaped.npy", "/tmp/escaped.npy", "a/../../escaped.npy"])
def test_a_store_cannot_name_files_outside(make_store: Any, tmp_path: Path, hostile: str) -> None:
    store = make_store(
        "rows",
        {
            "rows/data": np.arange(10),
            "sources/path": ["good.npy", hostile],
            "sources/rows/offsets": np.array([0, 5, 10]),
            "sources/bytes": np.array([10, 10]),
        },
        count=10,
    )
    document = json.loads((store / "zarr.json").read_text())
    document["attributes"]["unistore"]["options"] = {"map": {}}
    (store / "zarr.json").write_text(json.dumps(document))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(StoreError, match="cannot be written"):
        export(store, tmp_path / "out")
    assert sorted(tmp_path.rglob("*")) == before, "something was left behind"


def test_an_existing_destination_is_an_error_and_stays_unchanged(
    make_case: Callable[..., Any], tmp_path: Path
) -> None:
    _, store = make_case("rows_real")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for taken in ("file", "empty", "link"):
        with pytest.raises(InputError, match="exists"):
            export(store, tmp_path / taken)
    assert (tmp_path / "file").read_text() == "mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty", "file", "link"]


def test_an_export_into_the_store_is_an_error(make_case: Callable[..., Any]) -> None:
    _, store = make_case("rows_real")
    with pytest.raises(InputError, match="is inside the store"):
        export(store, store / "out")


def test_a_failure_leaves_nothing(
    make_case: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, store = make_case("spike_tiles")
    written: list[Path] = []

    def failing(file: Any, path: Path) -> None:
        path.write_bytes(b"half")
        written.append(path)
        if len(written) == 3:
            raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("unistore.exporting.run.write", failing)
    with pytest.raises(ConversionError, match=r"No space left on device. Fix: free space there"):
        export(store, tmp_path / "out")
    assert len(written) == 3
    assert list(tmp_path.iterdir()) == []


def test_damage_is_an_error_and_leaves_nothing(make_case: Callable[..., Any], tmp_path: Path) -> None:
    case, _ = make_case("ct_real")
    store = case.convert(tmp_path / "store.zarr")
    shard = store / "volumes" / "image" / "c" / "0" / "0" / "0" / "0"
    flip(shard, 500)
    with pytest.raises(StoreError, match="volumes/image"):
        export(store, tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["store.zarr"]


def test_a_killed_export_leaves_nothing_and_can_be_repeated(
    make_case: Callable[..., Any], tmp_path: Path
) -> None:
    _, store = make_case("spike_tiles")
    code = (
        "import os, sys, unistore.exporting.run as run\n"
        "original = run.write\n"
        "def write(file, path):\n"
        "    original(file, path)\n"
        "    if 'test' in path.parts: os.kill(os.getpid(), 9)\n"
        "run.write = write\n"
        "run.export(sys.argv[1], sys.argv[2])\n"
    )
    arguments = [os.fspath(store), os.fspath(tmp_path / "out")]
    killed = subprocess.run([sys.executable, "-c", code, *arguments])
    assert killed.returncode == -9
    assert not (tmp_path / "out").exists()
    done = export(store, tmp_path / "out")
    assert done.files == 12
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_the_export_command_prints_json_and_refuses_an_existing_folder(
    make_case: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:

    _, store = make_case("rows_real")
    assert call("export", str(store), str(tmp_path / "out"), "--json") == 0
    done = json.loads(capsys.readouterr().out)
    assert done["files"] == 1
    assert done["family"] == "rows"
    assert call("export", str(store), str(tmp_path / "out")) == 2
    assert "exists" in capsys.readouterr().err


def test_files_reach_the_disk_before_the_folder_has_its_name(
    make_case: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "out"
    seen: list[tuple[bool, list[str]]] = []

    def sync() -> None:
        written = sorted(path.name for path in tmp_path.rglob("*.npz") if path.stat().st_size)
        seen.append((target.exists(), written))

    monkeypatch.setattr("os.sync", sync)
    export(make_case("rows_npz")[1], target)
    assert seen == [(False, ["a.npz", "b.npz"])]
    assert sorted(path.name for path in target.iterdir()) == ["a.npz", "b.npz"]
