"""The same command continues; another one is refused, naming what differs."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unistore.conversion.build import SOURCES_PER_RECORD, FolderBuild
from unistore.conversion.keys import CONTENT
from unistore.conversion.run import run
from unistore.conversion.settings import Settings
from unistore.conversion.split_rule import SplitRule
from unistore.errors import ConversionError, InputError, StoreError
from unistore.store.reader import Store

BUILD = "out.zarr.unistore-build"


@pytest.mark.parametrize("after", [0, 9])
def test_the_same_command_continues_an_interrupted_conversion(
    tmp_path: Path, toys: Path, toy: Any, stopping: Any, store: Path, whole: str, after: int
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(toy(), [toys], store, executor=stopping(after))
    assert not store.exists()
    with pytest.raises(StoreError, match="run the same convert command"):
        Store(store)
    report = run(toy(), [toys], store)
    assert report.digest == whole
    assert report.resumed == max(0, after - 4), "four sources are derived first"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.zarr", "sources"]


def test_a_resumed_conversion_repeats_only_the_interrupted_step(
    toys: Path, toy: Any, stopping: Any, store: Path, whole: str
) -> None:
    """A stop costs the one step that it interrupts, never more."""
    done: list[Any] = []

    class Counting(stopping):  # type: ignore[misc]
        def disturbed(self, job: Any, items: Any) -> Iterator[Any]:
            return super().disturbed(lambda item: (done.append(item), job(item))[1], items)

    stops, report = 0, None
    while report is None:
        try:
            report = run(toy(), [toys], store, executor=Counting(3))
        except KeyboardInterrupt:
            stops += 1
    assert stops > 3
    assert len(done) == 4 + report.tasks + stops
    assert report.digest == whole


def test_shards_and_spilled_rows_of_older_code_are_not_kept(
    toys: Path, toy: Any, stopping: Any, store: Path, whole: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound_read, sound_derive = toy.read, toy.derive

    def older_read(self: Any, scan: Any, table: str, *rows: Any) -> None:
        sound_read(self, scan, table, *rows)
        for values in rows[-1].values():
            values[...] = 1

    def older_derive(self: Any, scan: Any, source: int, emit: Any, folder: Path | None) -> Any:
        return sound_derive(self, scan, source, lambda *rows: emit(*rows[:-1], rows[-1] * 0 + 7), folder)

    with monkeypatch.context() as older:
        older.setattr("unistore.conversion.keys.CONTENT", CONTENT - 1)
        older.setattr(toy, "read", older_read)
        older.setattr(toy, "derive", older_derive)
        with pytest.raises(KeyboardInterrupt):
            run(toy(), [toys], store, executor=stopping(15))
    report = run(toy(), [toys], store)
    assert report.resumed == 0
    assert report.digest == whole


def test_changed_options_are_named(toys: Path, toy: Any, stopping: Any, store: Path, whole: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(toy(), [toys], store, executor=stopping(6))
    with pytest.raises(ConversionError, match=r"options\.brightness: 0 before, 2 now") as caught:
        run(toy(brightness=2), [toys], store)
    assert "--restart" in str(caught.value)
    with pytest.raises(ConversionError, match=r"options\.codec: auto before, small now"):
        run(toy(), [toys], store, Settings(codec="small"))
    with pytest.raises(ConversionError, match=r"options\.split"):
        run(toy(), [toys], store, Settings(split=SplitRule(shares={"a": 0.5, "b": 0.5})))
    assert run(toy(), [toys], store).digest == whole, "a refusal costs nothing"


def test_changed_sources_are_named(toys: Path, toy: Any, stopping: Any, store: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(toy(), [toys], store, executor=stopping(6))
    touched = toys / "train/s0.npz"
    arrays = dict(np.load(touched))
    np.savez(touched, **{name: values[:50] for name, values in arrays.items()})
    (toys / "train/s3.npz").unlink()
    shutil.copy2(toys / "train/s1.npz", toys / "train/s9.npz")
    os.utime(toys / "val/s2.npz", ns=(1, 1))
    with pytest.raises(ConversionError) as caught:
        run(toy(), [toys], store)
    message = str(caught.value)
    assert "train/s0.npz" in message
    assert "train/s3.npz" in message
    assert "train/s9.npz" in message
    assert "sources.val/s2.npz" in message, "of the same size"
    assert "train/s1.npz" not in message
    assert re.search(r"sources\.train/s0\.npz: \d+ bytes, .* before, \d+ bytes, .* now", message)
    assert re.search(r"sources\.train/s3\.npz: \d+ bytes, .* before, absent now", message)


def test_each_of_many_sources_is_compared(store: Path) -> None:
    """Sources of several records of the journal."""
    sources = [(f"{number}.npy", number) for number in range(2 * SOURCES_PER_RECORD + 1)]
    with FolderBuild(store) as build:
        build.begin({}, sources, [], 0)
        build.begin({}, sources, [], 0)
        with pytest.raises(ConversionError, match=r"sources\.2000\.npy: 2000 before, absent now"):
            build.begin({}, sources[:-1], [], 0)


def test_restart_starts_over(toys: Path, toy: Any, stopping: Any, store: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(toy(), [toys], store, executor=stopping(9))
    report = run(toy(tables=("rows",)), [toys], store, Settings(restart=True))
    assert report.resumed == 0
    assert not (store / "points").exists(), "nothing of the forgotten conversion is left"
    assert not list(store.parent.glob("*.unistore-build"))


def test_a_folder_without_its_journal_is_not_trusted(
    toys: Path, toy: Any, stopping: Any, store: Path, whole: str
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(toy(), [toys], store, executor=stopping(9))
    (store.parent / BUILD / "journal.jsonl").unlink()
    (store.parent / BUILD / "store/rows/stale").mkdir()
    (store.parent / BUILD / "store/rows/stale/zarr.json").write_text("{}")
    report = run(toy(), [toys], store)
    assert (report.digest, report.resumed) == (whole, 0)
    assert not (store / "rows/stale").exists()


@pytest.mark.parametrize("tables", [("rows",), ("rows", "points", "windows/low")], ids=["read", "derive"])
def test_problems_of_values_are_reported_together_and_leave_no_folder(
    tmp_path: Path, toys: Path, toy: Any, tables: tuple[str, ...]
) -> None:
    """Problems that only reading all values shows; folders made for the destination go with it."""
    for name in ("train/s0.npz", "val/s2.npz"):
        arrays = dict(np.load(toys / name))
        arrays["value"][7] = np.nan
        np.savez(toys / name, **arrays)
    with pytest.raises(InputError) as caught:
        run(toy(tables=tables), [toys], tmp_path / "deep/er/out.zarr")
    assert {problem.location for problem in caught.value.problems} == {"train/s0.npz", "val/s2.npz"}
    assert {problem.kind for problem in caught.value.problems} == {"nan"}
    assert len(set(caught.value.problems)) == len(caught.value.problems), "each is told once"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["sources"]
