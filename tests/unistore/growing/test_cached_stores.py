"""``unistore cache list``, ``remove`` and ``pin``: what they show, what they remove, and what they refuse."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unistore
from tests.support.programs import call
from unistore.conversion.lock import Lock

KILLED = """
import os, sys, unistore
from unistore.conversion.build import FolderBuild
FolderBuild.move_into_place = lambda self: os._exit(9)
unistore.Dataset(sys.argv[1])
"""
CAPTURE = pytest.CaptureFixture[str]


@pytest.fixture
def two(tmp_path: Path, cache: Path, capfd: CAPTURE) -> tuple[Path, Path]:
    """Stores of two folders, of 3 and of 50,000 samples, opened 40 and 10 days ago."""
    stores = (made(tmp_path / "small", 3), made(tmp_path / "large", 50_000))
    opened_ago(stores[0], 40)
    opened_ago(stores[1], 10)
    capfd.readouterr()
    return stores


def made(folder: Path, rows: int) -> Path:
    folder.mkdir()
    random = np.random.default_rng(0).random((rows, 2))
    np.savez(folder / "a.npz", x=random)
    return Path(unistore.Dataset(folder).path)


def opened_ago(store: Path, days: float) -> None:
    record = Path(f"{store}.unistore-cached.json")
    time = record.stat().st_mtime - days * 86_400
    os.utime(record, (time, time))


def listed(capfd: CAPTURE) -> dict[str, Mapping[str, Any]]:
    capfd.readouterr()
    assert call("cache", "list", "--json") == 0
    return {store["name"]: store for store in json.loads(capfd.readouterr().out)["stores"]}


def everything(cache: Path) -> set[str]:
    return {str(path.relative_to(cache)) for path in cache.rglob("*")}


def test_list_shows_each_store_the_last_opened_first(
    two: tuple[Path, Path], tmp_path: Path, capfd: CAPTURE
) -> None:
    small, large = two
    assert call("cache", "list") == 0
    lines = capfd.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[0::2]] == [large.name, small.name, str(large.parent)]
    assert lines[1::2] == [f"    {tmp_path / 'large'}", f"    {tmp_path / 'small'}"]
    assert f"{large.name}: 50,000 rows, " in lines[0]
    stores = listed(capfd)
    for store, samples in ((small, 3), (large, 50_000)):
        files = [path for path in store.parent.rglob("*") if path.is_file() and store.name in str(path)]
        shown = stores[store.name]
        assert shown["path"] == str(store)
        assert (shown["samples"], shown["state"], shown["pinned"], shown["in_use"]) == (
            samples,
            "finished",
            False,
            "",
        )
        assert shown["bytes"] == sum(path.stat().st_size for path in files)


def test_opening_a_store_again_updates_its_time(
    two: tuple[Path, Path], tmp_path: Path, capfd: CAPTURE
) -> None:
    before = listed(capfd)
    unistore.Dataset(tmp_path / "small", convert={"workers": 0})
    after = listed(capfd)
    assert [*before] == [two[1].name, two[0].name]
    assert [*after] == [two[0].name, two[1].name]
    assert after[two[0].name]["opened"] > before[two[0].name]["opened"]
    assert after[two[1].name] == before[two[1].name]


def test_options_of_a_conversion_are_listed(tmp_path: Path, cache: Path, capfd: CAPTURE) -> None:
    made(tmp_path / "a", 3)
    options = {"codec": "fast", "workers": 0}
    name = Path(unistore.Dataset(tmp_path / "a", convert=options).path).name
    stores = listed(capfd)
    assert len(stores) == 2
    assert stores[name]["convert"] == {"codec": "fast"}


def test_an_empty_cache_is_listed_as_one_line(cache: Path, capfd: CAPTURE) -> None:
    assert call("cache", "list") == 0
    assert capfd.readouterr().out == f"{cache}: no stores\n"
    cache.mkdir(parents=True)
    assert call("cache", "list", "--json") == 0
    assert json.loads(capfd.readouterr().out) == {"folder": str(cache), "stores": []}
    assert call("cache", "remove", "--limit", "1GB") == 0


def test_a_cache_that_cannot_be_written_is_opened_and_listed(
    two: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: CAPTURE
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    before = listed(capfd)
    Path(f"{two[1]}.unistore-cached.json").unlink()
    with monkeypatch.context() as read_only:
        read_only.setattr(os, "utime", refuse)
        read_only.setattr("unistore.growing.cached_stores.write_file", refuse)
        assert len(unistore.Dataset(tmp_path / "small")) == 3
        assert len(unistore.Dataset(tmp_path / "large")) == 50_000
    after = listed(capfd)
    assert after[two[0].name] == before[two[0].name]
    assert (after[two[1].name]["sources"], after[two[1].name]["samples"]) == ([], 50_000)


@pytest.mark.parametrize("record", ["", "[", "[1]", '{"sources": 1, "convert": {}}', "{}", "\0"])
def test_a_damaged_record_is_no_error(two: tuple[Path, Path], record: str, capfd: CAPTURE) -> None:
    Path(f"{two[0]}.unistore-cached.json").write_text(record)
    assert listed(capfd)[two[0].name]["sources"] == []
    assert call("cache", "list") == 0
    assert "sources are not recorded" in capfd.readouterr().out


def test_a_damaged_store_is_listed_and_removed(two: tuple[Path, Path], capfd: CAPTURE) -> None:
    (two[0] / "zarr.json").write_text("{")
    assert (listed(capfd)[two[0].name]["state"], listed(capfd)[two[0].name]["samples"]) == ("damaged", None)
    assert call("cache", "remove", two[0].name) == 0
    assert [*listed(capfd)] == [two[1].name]


def test_remove_takes_all_of_one_store(
    two: tuple[Path, Path], cache: Path, tmp_path: Path, capfd: CAPTURE
) -> None:
    small, large = two
    np.save(tmp_path / "y.npy", np.arange(3.0))
    unistore.attach(small, "y", tmp_path / "y.npy")
    (cache / "notes.txt").write_text("not of unistore")
    alike = {f"{small.name}-mine", f"{small.name}.mine", f"my-{small.name}.unistore-build"}
    for name in alike:
        (cache / name).write_text("not of unistore")
    kept = alike | {name for name in everything(cache) if not name.startswith("small-")}
    assert call("cache", "remove", small.name, "--json") == 0
    printed = json.loads(capfd.readouterr().out)
    assert [store["name"] for store in printed["removed"]] == [small.name]
    assert [store["name"] for store in printed["left"]] == [large.name]
    assert everything(cache) == kept
    assert (tmp_path / "small" / "a.npz").exists()
    assert len(unistore.Dataset(tmp_path / "small")) == 3
    assert small.is_dir()


def test_a_pinned_store_stays_until_it_is_unpinned(
    two: tuple[Path, Path], cache: Path, capfd: CAPTURE
) -> None:
    small, large = two
    assert call("cache", "pin", small.name, small.name) == 0
    assert capfd.readouterr().out == f"{small.name}: pinned\n"
    before = everything(cache)
    assert call("cache", "remove", large.name, small.name) == 2
    assert f"unistore cache pin {small.name} --unpin" in capfd.readouterr().err
    assert everything(cache) == before
    assert call("cache", "remove", "--older-than", 0) == 0
    assert [(name, store["pinned"]) for name, store in listed(capfd).items()] == [(small.name, True)]
    assert call("cache", "pin", small.name, "--unpin", "--json") == 0
    assert json.loads(capfd.readouterr().out) == {"unpinned": [small.name]}
    assert call("cache", "remove", small.name) == 0
    assert everything(cache) == set()


@pytest.mark.parametrize("command", ["remove", "pin"])
def test_names_that_are_not_in_the_cache_are_refused(
    two: tuple[Path, Path], cache: Path, tmp_path: Path, command: str, capfd: CAPTURE
) -> None:
    small = two[0]
    outside = tmp_path / small.name
    shutil.copytree(small, outside)
    plain = cache / "mine.zarr"
    shutil.copytree(small, plain)
    before = everything(tmp_path)
    names = ("..", ".", "", "/", outside, small, f"../{small.name}", f"../stores/{small.name}", "mine.zarr")
    names += (f"{small.name}/", f"{small.name}/x", f"{small.name}\n", small.name[:-5], f"{small.name}\0", "*")
    for name in names:
        assert call("cache", command, "--", small.name, name) == 2, name
        assert f"is not the name of a store in {cache}" in capfd.readouterr().err
    assert everything(tmp_path) == before


def test_links_in_the_cache_are_not_followed(
    two: tuple[Path, Path], cache: Path, tmp_path: Path, capfd: CAPTURE
) -> None:
    small, large = two
    outside = tmp_path / "outside"
    shutil.copytree(small, outside)
    (outside / "mine.txt").write_text("mine")
    link = cache / small.name.replace("small", "link")
    link.symlink_to(outside)
    Path(f"{small}.unistore-growth").symlink_to(outside)
    (small / "link").symlink_to(outside)
    Path(f"{large}.unistore-pinned").symlink_to(tmp_path / "made")
    before = everything(outside)
    assert link.name not in listed(capfd)
    assert call("cache", "remove", link.name) == 2
    assert call("cache", "pin", large.name) == 1
    assert not (tmp_path / "made").exists()
    assert call("cache", "remove", small.name) == 0
    assert not small.exists()
    assert everything(outside) == before


@pytest.mark.parametrize("place", ["request", "staging"])
def test_a_store_in_use_is_not_removed(
    two: tuple[Path, Path], cache: Path, capfd: CAPTURE, place: str
) -> None:
    small, large = two
    request = cache / f"{small.name.removesuffix('-1.zarr')}.lock"
    lock = request if place == "request" else Path(f"{small}.unistore-build") / "lock"
    with Lock(lock):
        before = everything(cache)
        shown = listed(capfd)
        assert shown[small.name]["in_use"].startswith(f"process {os.getpid()} on ")
        assert shown[large.name]["in_use"] == ""
        assert call("cache", "remove", small.name, large.name) == 2
        assert "is using it" in capfd.readouterr().err
        assert everything(cache) == before
        assert call("cache", "remove", "--older-than", 30, "--limit", 1) == 0
        assert [*listed(capfd)] == [small.name]
    assert call("cache", "remove", small.name) == 0


def test_a_lock_of_a_dead_process_keeps_nothing(two: tuple[Path, Path], cache: Path, capfd: CAPTURE) -> None:
    lock = cache / f"{two[0].name.removesuffix('-1.zarr')}.lock"
    child = f"from pathlib import Path; from unistore.conversion.lock import Lock; import os; \
Lock(Path({str(lock)!r})).__enter__(); os._exit(9)"
    assert subprocess.run([sys.executable, "-c", child], check=False).returncode == 9
    assert lock.exists()
    assert call("cache", "remove", two[0].name) == 0
    assert not lock.exists()
    assert [*listed(capfd)] == [two[1].name]


def test_an_unfinished_conversion_is_marked_and_removed(tmp_path: Path, cache: Path, capfd: CAPTURE) -> None:
    (tmp_path / "runs").mkdir()
    np.savez(tmp_path / "runs" / "a.npz", x=np.ones((5, 2)))
    killed = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "runs"], check=False)
    assert killed.returncode == 9
    ((name, store),) = listed(capfd).items()
    assert (store["state"], store["samples"]) == ("unfinished", None)
    assert store["sources"] == [str(tmp_path / "runs")]
    assert store["bytes"] > 0
    assert call("cache", "list") == 0
    assert ", unfinished\n" in capfd.readouterr().out
    assert call("cache", "remove", name) == 0
    assert everything(cache) == set()
    assert len(unistore.Dataset(tmp_path / "runs")) == 5


def test_sources_that_are_refused_leave_nothing(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "a.npz").write_bytes(b"PK\x03\x04")
    with pytest.raises(unistore.InputError):
        unistore.Dataset(tmp_path / "a.npz")
    assert everything(cache) == set()


def test_a_removal_that_failed_is_ended_by_the_next(
    two: tuple[Path, Path], tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capfd: CAPTURE
) -> None:
    def refuse(path: Path) -> None:
        raise OSError(5, "Input/output error", os.fspath(path))

    with monkeypatch.context() as failing:
        failing.setattr("unistore.growing.cached_stores.shutil.rmtree", refuse)
        assert call("cache", "remove", two[0].name) == 1
    assert "cannot be removed: Input/output error" in capfd.readouterr().err
    assert not two[0].exists()
    assert listed(capfd)[two[0].name]["state"] == "unfinished"
    assert len(unistore.Dataset(tmp_path / "small")) == 3
    assert call("cache", "remove", two[0].name) == 0
    assert not [name for name in everything(cache) if name.startswith("small-")]


def test_stores_that_were_not_opened_for_days_are_removed(two: tuple[Path, Path], capfd: CAPTURE) -> None:
    assert call("cache", "remove", "--older-than", 41) == 0
    assert len(listed(capfd)) == 2
    assert call("cache", "remove", "--older-than", 39.5) == 0
    assert [*listed(capfd)] == [two[1].name]


def test_the_least_recently_opened_go_until_the_rest_fits(
    two: tuple[Path, Path], tmp_path: Path, capfd: CAPTURE
) -> None:
    newest = made(tmp_path / "newest", 3)
    stores = listed(capfd)
    total = sum(store["bytes"] for store in stores.values())
    assert call("cache", "remove", "--limit", total) == 0
    assert len(listed(capfd)) == 3
    call("cache", "pin", two[0].name)
    assert call("cache", "remove", "--limit", total - 1) == 0
    assert "above" not in capfd.readouterr().out
    assert [*listed(capfd)] == [newest.name, two[0].name]


def test_remove_reports_a_limit_that_pinned_stores_exceed(two: tuple[Path, Path], capfd: CAPTURE) -> None:
    call("cache", "pin", *(store.name for store in two))
    total = sum(store["bytes"] for store in listed(capfd).values())
    assert call("cache", "remove", "--limit", total - 1000) == 0
    last = capfd.readouterr().out.splitlines()[-1]
    assert last == "1.0 kB above --limit: the stores that are left are pinned, or a process uses them"
    assert call("cache", "remove", "--limit", total - 1000, "--json") == 0
    found = json.loads(capfd.readouterr().out)
    assert (found["above_limit"], found["removed"], len(found["left"])) == (1000, [], 2)


@pytest.mark.parametrize(
    "words",
    [[], ["small", "--limit", "1GB"], ["--limit", "much"], ["--older-than", -1], ["--older-than", "x"]],
)
def test_remove_needs_names_or_a_rule(two: tuple[Path, Path], cache: Path, words: list[object]) -> None:
    before = everything(cache)
    assert call("cache", "remove", *words) == 2
    assert everything(cache) == before


def test_samples_of_all_versions_are_counted_and_removed_together(
    two: tuple[Path, Path], tmp_path: Path, capfd: CAPTURE
) -> None:
    np.savez(tmp_path / "small" / "b.npz", x=np.ones((4, 2)))
    assert unistore.Dataset(tmp_path / "small").version == 2
    assert listed(capfd)[two[0].name]["samples"] == 7
    assert call("cache", "remove", two[0].name) == 0
    assert [*listed(capfd)] == [two[1].name]


def test_a_cache_that_is_no_folder_is_told(cache: Path, capfd: CAPTURE) -> None:
    cache.parent.mkdir()
    cache.write_bytes(b"")
    assert call("cache", "list") == 2
    told = capfd.readouterr().err
    assert f"{cache}: cannot be listed: Not a directory" in told
    assert "set UNISTORE_CACHE to the folder of the cache" in told
