"""The order in which a conversion reaches the disk: what a crash at any moment may rely on.

SIGKILL cannot prove an fsync, so every fsync and rename is recorded and its place asserted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from unistore.conversion.run import run
from unistore.conversion.settings import Settings
from unistore.store.names import MANIFEST


class Event(NamedTuple):
    """``sync`` of a file or folder (with its size then), ``rename``, or ``journal``: a record synced."""

    what: str
    path: Path
    target: Path | None = None
    size: int = 0
    record: dict[str, Any] = {}  # noqa: RUF012


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the sources and of the store."""
    return tmp_path_factory.mktemp("operations")


@pytest.fixture(scope="module")
def events(place: Path, toy: Any, make_toys: Callable[..., Path]) -> list[Event]:
    """What a conversion to ``out.zarr`` that replaces an older store does, in order."""
    toys = make_toys(place / "sources")
    found: list[Event] = []

    def fsync(descriptor: int, original: Callable[[int], None] = os.fsync) -> None:
        original(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.name == "journal.jsonl":
            record = json.loads(path.read_bytes().splitlines()[-1])
            found.append(Event("journal", path, record=record))
        else:
            found.append(Event("sync", path, size=path.stat().st_size))

    def renaming(original: Callable[..., None]) -> Callable[..., None]:
        def rename(source: Any, target: Any, **options: Any) -> None:
            original(source, target, **options)
            found.append(Event("rename", Path(source), Path(target)))

        return rename

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unistore.conversion.plan.SHARD", 16 << 10)
        run(toy(), [toys], place / "out.zarr")
        patch.setattr("os.fsync", fsync)
        patch.setattr("unistore.zarr3.durable.fsync", fsync)
        patch.setattr("unistore.zarr3.durable.rename", renaming(os.replace))
        patch.setattr("os.rename", renaming(os.rename))
        patch.setattr("os.replace", renaming(os.replace))
        run(toy(brightness=1), [toys], place / "out.zarr", Settings(overwrite=True))
    return found


@pytest.fixture(scope="module")
def build(place: Path) -> Path:
    return place / "out.zarr.unistore-build"


def position(events: list[Event], *wanted: Any, after: int = -1) -> int:
    """Index of the first event after `after` that begins with the wanted fields."""
    for index, event in enumerate(events):
        if index > after and event[: len(wanted)] == wanted:
            return index
    pytest.fail(f"never happened: {wanted} after {after}")


def durable_at(events: list[Event], path: Path, size: int) -> int:
    """Index of the event at which a file is durably there; asserts the order that leads to it."""
    renamed = next(i for i, e in enumerate(events) if e.what == "rename" and e.target == path)
    part = events[renamed].path
    assert part.parent == path.parent
    written = position(events, "sync", part)
    assert events[written].size == size, "the file was whole when it was synced"
    assert written < renamed
    return position(events, "sync", path.parent, after=renamed)


def test_every_shard_is_durable_before_its_record(events: list[Event], build: Path) -> None:
    records = [i for i, event in enumerate(events) if event.record.get("step") == "shard"]
    assert len(records) > 5
    for index in records:
        for file in events[index].record["files"]:
            path = build / "store" / file["key"]
            assert durable_at(events, path, file["bytes"]) < index
            for folder in path.relative_to(build).parents:
                above = (build / folder).parent
                if folder.parts:
                    assert position(events, "sync", above) < index, f"{folder} might be gone after a crash"


def test_one_record_follows_each_task_at_once(events: list[Event], build: Path) -> None:
    """Between a task's record and the next one, files of the next task alone are written."""
    owner = {
        build / "store" / file["key"]: event.record["task"]
        for event in events
        for file in event.record.get("files", [])
    }
    waiting: set[str] = set()
    for event in events:
        if event.what == "rename" and event.target in owner:
            waiting.add(owner[event.target])
        if event.record.get("step") == "shard":
            assert waiting == {event.record["task"]}
            waiting.clear()


def test_spilled_rows_are_durable_before_their_record(events: list[Event], build: Path) -> None:
    for index, event in enumerate(events):
        if event.record.get("step") != "derive":
            continue
        folder = build / "spill/0" / str(event.record["batch"])
        described = position(events, "sync", folder / "rows.json")
        for name in ("0.bin", "1.bin", "facts.bin"):
            assert position(events, "sync", folder / name) < described
        assert described < position(events, "sync", folder, after=described) < index
        assert described < position(events, "sync", folder.parent, after=described) < index


def test_the_plan_is_recorded_before_the_first_shard(events: list[Event]) -> None:
    steps = [event.record["step"] for event in events if event.what == "journal"]
    assert steps[:7] == ["sources", "begin", "derive", "derive", "derive", "derive", "plan"]
    assert set(steps[7:-1]) == {"shard"}
    assert steps[-1] == "sealed"


def test_the_root_is_written_last_of_all_files(events: list[Event], build: Path, place: Path) -> None:
    store = build / "store"
    inside = [e.target for e in events if e.what == "rename" and e.target and store in e.target.parents]
    assert inside[-1] == store / "zarr.json"
    assert inside[-2] == store / "unistore-manifest.jsonl"
    assert len(inside) == len(set(inside)), "no file is written twice"
    root = durable_at(events, store / "zarr.json", (place / "out.zarr/zarr.json").stat().st_size)
    manifest = (place / "out.zarr/unistore-manifest.jsonl").stat().st_size
    assert durable_at(events, store / "unistore-manifest.jsonl", manifest) < position(
        events, "sync", *[next(e.path for e in events if e.target == store / "zarr.json")]
    )
    for path in inside[:-2]:
        assert position(events, "rename", *[e.path for e in events if e.target == path], path) < root


def test_what_the_tasks_did_not_write_is_named_once_all_of_it_is_on_disk(
    events: list[Event], build: Path
) -> None:
    """Index arrays and metadata wait for the disk together, and the manifest for them."""
    done = max(i for i, event in enumerate(events) if event.record.get("step") == "shard")
    root = next(i for i, event in enumerate(events) if event.target == build / "store/zarr.json")
    *named, _, manifest = [i for i in range(done, root) if events[i].what == "rename"]
    assert events[manifest].target == build / "store" / MANIFEST
    assert position(events, "sync", events[manifest].path, after=named[-1]) < manifest
    assert len(named) > 20
    assert named == list(range(named[0], named[-1] + 1))
    for index in named:
        assert done < position(events, "sync", events[index].path, after=done) < named[0]


def test_every_folder_is_synced_before_the_root(events: list[Event], build: Path, place: Path) -> None:
    """Also folders that a killed run made and never synced."""
    root = next(i for i, e in enumerate(events) if e.target == build / "store/zarr.json")
    written = max(i for i, e in enumerate(events[:root]) if "zarr.json" in str(e.target))
    folders = [path for path in (place / "out.zarr").rglob("*") if path.is_dir()]
    assert len(folders) > 20
    for folder in folders:
        inside = build / "store" / folder.relative_to(place / "out.zarr")
        assert position(events, "sync", inside, after=written) < root


def test_the_store_is_moved_into_place_after_the_seal(events: list[Event], build: Path, place: Path) -> None:
    """Sealed → recorded → old store aside → new one in place → both folders synced."""
    destination = place / "out.zarr"
    root = next(i for i, e in enumerate(events) if e.target == build / "store/zarr.json")
    sealed = next(i for i, e in enumerate(events) if e.record.get("step") == "sealed")
    aside = position(events, "rename", destination, build / "old")
    moved = position(events, "rename", build / "store", destination)
    assert root < sealed < aside < moved
    assert moved < position(events, "sync", build, after=moved)
    assert moved < position(events, "sync", place, after=moved)
    assert not [e for e in events[moved + 1 :] if e.what in ("rename", "journal")]
