"""Bars are shown where a person looks; the notebooks' test sees those of notebooks."""

from __future__ import annotations

import io
import json
import re
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import unistore
from tests.support.waiting import wait_until
from unistore.cli.main import main
from unistore.progress import JsonLog, ProgressBar, Stage, duration
from unistore.system.progress import StepBytes, advanced, listening, portion


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def source(tmp_path: Path) -> Path:
    np.savez(tmp_path / "a.npz", data=np.zeros((30, 2)), label=np.arange(30))
    return tmp_path / "a.npz"


def test_a_script_is_silent_unless_asked(source: Path, capfd: pytest.CaptureFixture[str]) -> None:
    store = source.with_name("a.zarr")
    unistore.convert(source, store)
    unistore.verify(store)
    assert capfd.readouterr() == ("", "")
    unistore.convert(source, store, overwrite=True, progress=True)
    out, err = capfd.readouterr()
    assert not out
    assert err == "writing 720 B\n"


@pytest.mark.parametrize("progress", [None, False])
def test_a_terminal_has_bars_unless_they_are_refused(
    source: Path, monkeypatch: pytest.MonkeyPatch, progress: bool | None
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    store = source.with_name("a.zarr")
    unistore.convert(source, store, progress=progress)
    unistore.export(store, source.with_name("out"), progress=progress)
    assert ("0/720 bytes" in terminal.getvalue()) == (progress is None)


def test_a_log_says_how_far_a_long_stage_is(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("unistore.progress.REPORT_SECONDS", 0.02)
    with ProgressBar() as bar:
        bar.begin("writing", 2_000_000)
        bar.advance(500_000)
        told: list[str] = []

        def is_told() -> object:
            told.append(capfd.readouterr().err)
            return re.search(r"writing: 25 % of 2\.0 MB, [\d.]+ [kM]?B/s, \d+ s left\n", "".join(told))

        wait_until(is_told, "nothing was said of the stage")
        bar.advance(1_500_000)
    assert duration(90) == "90 s"
    assert duration(720) == "12 min"
    assert duration(12600) == "3.5 h"


def test_log_json_prints_one_event_a_line(source: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["convert", "rows", str(source), str(source.with_name("a.zarr")), "--log", "json", "--json"])
    out, err = capfd.readouterr()
    assert json.loads(out)["samples"] == 30
    events = [json.loads(line) for line in err.splitlines()]
    assert [(each["event"], each["stage"], each["bytes"]) for each in events] == [
        ("begin", "writing", 0),
        ("step", "writing", 720),
        ("end", "writing", 720),
    ]
    assert {each["store"] for each in events} == {str(source.with_name("a.zarr"))}
    assert events[-1].keys() >= {"retries", "cache_hits", "waited_ms"}
    assert events[-1]["error"] is None


class Clock:
    """Time that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_stage_says_its_share_its_rate_and_the_time_left() -> None:
    clock = Clock()
    stage = Stage("writing", 8_000_000, clock=clock)
    assert stage.line() == "writing: 0 % of 8.0 MB, 0 B/s, nothing finished yet"
    clock.now += 10
    stage.done = 2_000_000
    assert stage.line() == "writing: 25 % of 8.0 MB, 200.0 kB/s, 30 s left"
    clock.now += 590
    assert stage.line() == "writing: 25 % of 8.0 MB, 3.3 kB/s, 30 min left"
    stage.done = 8_000_000
    assert stage.line() == "writing: 8.0 MB, 10 min so far"


def test_a_stage_of_files_counts_them() -> None:
    clock = Clock()
    stage = Stage("scanning", 12_000, counts_bytes=False, clock=clock)
    clock.now += 40
    stage.done = 3_000
    assert stage.line() == "scanning: 25 % of 12,000, 75/s, 2 min left"
    unknown = Stage("sealing", 0, counts_bytes=False, clock=clock)
    clock.now += 30
    assert unknown.line() == "sealing: 30 s so far"


def test_every_stage_is_reported(capfd: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    bar = ProgressBar(clock=clock)
    with bar:
        clock.now += 30
        bar.report()
        bar.begin_items("scanning", 10)
        bar.advance(5)
        clock.now += 30
        bar.report()
        bar.begin("writing", 4_000_000)
        bar.advance(1_000_000)
        clock.now += 30
        bar.report()
        bar.advance(3_000_000)
        clock.now += 30
        bar.report()
        bar.begin_items("sealing", 0)
        clock.now += 30
        bar.report()
    assert capfd.readouterr().err.splitlines() == [
        "starting: 30 s so far",
        "scanning: 50 % of 10, 0.2/s, 30 s left",
        "writing 4.0 MB",
        "writing: 25 % of 4.0 MB, 33.3 kB/s, 90 s left",
        "writing: 4.0 MB, 60 s so far",
        "sealing: 30 s so far",
    ]


def test_a_log_for_machines_has_a_line_of_every_long_stage(capfd: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with JsonLog("a.zarr", clock=clock) as log:
        log.begin_items("scanning", 10)
        log.advance(4)
        clock.now += 30
        log.report()
        log.begin("writing", 1_000)
        for _ in range(10):  # ten parts of a shard in less than a second
            clock.now += 0.15
            log.advance(100)
    events = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    shown = [(each["event"], each["stage"], each.get("bytes", each.get("items"))) for each in events]
    assert shown == [
        ("progress", "scanning", 4),
        ("begin", "writing", 0),
        ("step", "writing", 100),
        ("step", "writing", 800),
        ("step", "writing", 1000),
        ("end", "writing", 1000),
    ]
    assert sum(each.get("step_bytes", 0) for each in events) == 1_000
    assert events[0]["message"] == "scanning: 40 % of 10, 0.1/s, 45 s left"


def test_parts_of_a_step_are_passed_on_some_times_a_second() -> None:
    clock = Clock()
    told: list[int] = []
    done = StepBytes(told.append, every=0.1, clock=clock)
    for _ in range(10):
        clock.now += 0.06
        done(100)
    assert told == [200] * 5
    assert done.told == 1_000


def test_bytes_of_a_portion_are_scaled_to_its_share() -> None:
    told: list[int] = []
    with listening(told.append):
        advanced(50)  # outside of a portion: nobody knows how much there is
        with portion(100, 0.5):
            advanced(80)
            with portion(0):
                advanced(1_000)
            advanced(400)  # more than there is
        with portion(30):
            advanced(10)
        with pytest.raises(ValueError, match="no"), portion(1_000):
            raise ValueError("no")
    assert told == [40, 60, 10, 20]


class Seen:
    """Progress that keeps the amounts of the last stage."""

    def __init__(self) -> None:
        self.done: list[int] = []
        self.total = 0

    def begin(self, _: str, total: int) -> None:
        self.total = total
        self.done = []

    def advance(self, amount: int) -> None:
        self.done.append(amount)

    def tell(self, line: str) -> None:
        raise AssertionError(line)


def test_a_single_shard_moves_the_bar_while_it_is_read_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(nbytes: int) -> None:
        time.sleep(0.11)  # longer than between two messages of a step
        advanced(nbytes)

    monkeypatch.setattr("unistore.converters.adapter.by_schema.advanced", slowly)
    data = np.arange(20 << 20, dtype=np.float32).reshape(-1, 16)
    np.save(tmp_path / "a.npy", data)
    seen = Seen()
    report = unistore.convert(tmp_path / "a.npy", tmp_path / "a.zarr", "rows", codec="none", progress=seen)
    assert report.tasks == 1
    assert sum(seen.done) == seen.total == data.nbytes
    while_read = seen.done[:5]  # blocks of 16 MiB, each half of its bytes; the rest is writing
    assert while_read == [8 << 20] * 5
