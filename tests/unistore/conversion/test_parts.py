"""Jobs that share a conversion: any order, at once, killed, twice; the store is that of one process."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.problems import of_kind
from tests.support.store_files import tree
from tests.support.waiting import wait_until
from unistore.cli.main import main
from unistore.conversion import build
from unistore.conversion.clean import clean
from unistore.conversion.convert import make_converter
from unistore.conversion.executors.local import STOP, AskJob, Serial
from unistore.conversion.journal import Journal
from unistore.conversion.lock import Lock, LockedError
from unistore.conversion.new_store import NewStore
from unistore.conversion.run import run
from unistore.conversion.settings import Settings
from unistore.conversion.signatures import convert
from unistore.errors import ConversionError, InputError, StoppedError
from unistore.report.sources import describe_unfinished
from unistore.store.reader import Store

BUILD = "out.zarr.unistore-build"
FORK = multiprocessing.get_context("fork")


def digest_of(store: Path) -> str:
    digest: str = Store(store).attributes["seal"]["digest"]
    return digest


def unchanging(path: Path) -> tuple[int, ...]:
    """What stays of a file that is read alone: its time of access does not."""
    state = path.stat()
    return state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns


def test_jobs_in_any_order_give_the_store_of_one_process(
    toys: Path, toy: Any, store: Path, whole: str
) -> None:
    order = (3, 1, 2)
    for number, part in enumerate(order, 1):
        report = run(toy(), [toys], store, Settings(part=f"{part}/3"))
        assert report.unfinished_parts == tuple(sorted(order[number:]))
        assert store.exists() == (number == 3)
    assert report.digest == digest_of(store) == whole
    assert not store.with_name(BUILD).exists()


@pytest.mark.parametrize("late", [{"part": "1/2"}, {"part": "1/2", "overwrite": True}, {"seal": True}])
def test_a_job_after_the_seal_changes_nothing_and_reports_the_store(
    toys: Path, toy: Any, store: Path, whole: str, late: dict[str, Any]
) -> None:
    reports = [run(toy(), [toys], store, Settings(part=part)) for part in ("1/2", "2/2")]
    before = unchanging(store / "zarr.json")
    again = run(toy(), [toys], store, Settings(**late))
    assert replace(again, tasks=reports[1].tasks, resumed=reports[1].resumed) == reports[1]
    assert (again.digest, again.tasks) == (whole, 0)
    assert unchanging(store / "zarr.json") == before
    assert not store.with_name(BUILD).exists()


@pytest.mark.parametrize("late", [{"part": "1/2"}, {"seal": True}, {"seal": True, "overwrite": True}])
@pytest.mark.parametrize("differs", ["option", "codec", "time", "name"])
def test_a_job_of_another_conversion_after_the_seal_is_an_error(
    toys: Path, toy: Any, store: Path, late: dict[str, Any], differs: str
) -> None:
    run(toy(), [toys], store, Settings(part="1/1"))
    if differs == "time":
        os.utime(toys / "train" / "s0.npz", ns=(1, 1))
    if differs == "name":
        (toys / "train" / "s0.npz").rename(toys / "train" / "s9.npz")
    converter = toy(brightness=int(differs == "option"))
    settings = Settings(codec="small" if differs == "codec" else "auto", **late)
    with pytest.raises(InputError, check=of_kind("exists")):
        run(converter, [toys], store, settings)
    assert not store.with_name(BUILD).exists()


@pytest.mark.timeout(60)
def test_jobs_repeated_during_the_seal_wait_and_succeed(
    toys: Path, toy: Any, store: Path, whole: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two jobs of it begin before the seal, and wait for their turn until it is over."""
    run(toy(), [toys], store, Settings(part="1/3"))
    run(toy(), [toys], store, Settings(part="2/3"))
    late: list[BaseProcess] = []
    seal = NewStore.seal

    def seal_late(*arguments: Any) -> Any:
        late.extend(start(toy, toys, store, part) for part in ("1/3", "2/3"))
        wait_until(lambda: len(list(store.with_name(BUILD).glob("lock-[12]-of-3"))) == 2, "they do not begin")
        return seal(*arguments)

    monkeypatch.setattr(NewStore, "seal", seal_late)
    assert run(toy(), [toys], store, Settings(part="3/3")).digest == digest_of(store) == whole
    for job in late:
        job.join()
    assert [job.exitcode for job in late] == [0, 0]
    assert not store.with_name(BUILD).exists()


def test_a_job_whose_lock_the_seal_removed_locks_again_and_succeeds(
    toys: Path, toy: Any, store: Path, whole: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The part that seals removes the folder while another one has just made its lock there."""
    run(toy(), [toys], store, Settings(part="1/2"))
    sealed: list[str] = []
    check_own = build.check_own

    def sealing_first(folder: Path, new_file: Path) -> None:
        monkeypatch.setattr(build, "check_own", check_own)
        sealed.append(run(toy(), [toys], store, Settings(part="2/2")).digest)
        assert not new_file.exists()
        check_own(folder, new_file)

    monkeypatch.setattr(build, "check_own", sealing_first)
    monkeypatch.setattr(build.Build, "parts_at_work", lambda _: [])  # it looked before the lock was made
    assert run(toy(), [toys], store, Settings(part="1/2")).digest == whole
    assert sealed == [whole] == [digest_of(store)]
    assert not store.with_name(BUILD).exists()


def test_jobs_divide_the_shards_evenly_and_derive_each_source_once(
    toys: Path, toy: Any, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[tuple[str, str]] = []
    append = Journal.append

    def noting(journal: Journal, record: dict[str, Any]) -> None:
        steps.append((journal.path.name, record["step"]))
        append(journal, record)

    monkeypatch.setattr(Journal, "append", noting)
    for part in ("1/2", "2/2"):
        report = run(toy(), [toys], store, Settings(part=part))
    written = [name for name, step in steps if step == "shard"]
    assert len(written) == report.tasks
    assert abs(written.count("journal-1-of-2.jsonl") - written.count("journal-2-of-2.jsonl")) <= 1
    assert [step for _, step in steps].count("begin") == 1, "the first says what is converted"
    assert [step for _, step in steps].count("derive") == 4


def start(toy: Any, toys: Path, store: Path, part: str) -> BaseProcess:
    def work() -> None:
        settings = Settings(part=part)
        time.sleep(random.random() / 20)
        run(toy(), [toys], store, settings)

    process = FORK.Process(target=work, name=part)
    process.start()
    return process


@pytest.mark.timeout(120)
def test_killed_jobs_that_are_started_again_give_the_store_of_one_process(
    toys: Path, toy: Any, store: Path, whole: str
) -> None:
    rng = random.Random(0)
    jobs = [start(toy, toys, store, f"{number}/4") for number in range(1, 5)]
    kills = 0
    while jobs:
        time.sleep(rng.random() / 20)
        victim = rng.choice(jobs)
        if kills < 6 and victim.is_alive():
            victim.kill()
            kills += 1
        for job in list(jobs):
            if not job.is_alive():
                job.join()
                jobs.remove(job)
                if job.exitcode and not store.exists():
                    jobs.append(start(toy, toys, store, job.name))
    assert kills == 6
    if not store.exists():  # the last was killed between its last step and the seal
        run(toy(), [toys], store, Settings(seal=True))
    assert digest_of(store) == whole


def test_a_second_process_of_the_same_job_is_an_error(toys: Path, toy: Any, store: Path, whole: str) -> None:
    lock = Lock(store.with_name(BUILD) / "lock-1-of-1")
    with lock, pytest.raises(LockedError):
        run(toy(), [toys], store, Settings(part="1/1"))
    assert run(toy(), [toys], store, Settings(part="1/1")).digest == whole


def test_seal_finishes_a_conversion_that_was_interrupted_before_its_seal(
    toys: Path, toy: Any, store: Path, whole: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="no store to seal"):
        run(toy(), [toys], store, Settings(seal=True))
    run(toy(), [toys], store, Settings(part="1/2"))
    with pytest.raises(ConversionError, match=r"jobs that are not finished: 2. Fix: run them, then --seal"):
        run(toy(), [toys], store, Settings(seal=True))
    with monkeypatch.context() as patch:
        patch.setattr(NewStore, "seal", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(toy(), [toys], store, Settings(part="2/2"))
    assert not store.exists()
    assert run(toy(), [toys], store, Settings(seal=True)).digest == whole


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("first", "then", "message"),
    [
        ({"part": "1/3"}, {}, "was started as 3 jobs"),
        ({"part": "1/3"}, {"restart": True}, "was started as 3 jobs"),
        ({"part": "1/3"}, {"part": "1/4"}, "was started as 3 jobs, not as 4 jobs"),
        ({}, {"part": "1/3"}, "was started without --part, not as 3 jobs"),
        ({"part": "1/3"}, {"part": "2/3", "codec": "none"}, "used other sources or options"),
    ],
)
def test_another_conversion_is_refused(
    toys: Path,
    toy: Any,
    store: Path,
    stopping: Any,
    first: dict[str, Any],
    then: dict[str, Any],
    message: str,
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(toy(), [toys], store, Settings(**first), executor=stopping(1))
    before = sorted(store.with_name(BUILD).rglob("*"))
    with pytest.raises(ConversionError, match=message):
        run(toy(), [toys], store, Settings(**then))
    assert (
        sorted(store.with_name(BUILD).rglob("*.jsonl"))
        == [path for path in before if path.suffix == ".jsonl"]
        or "codec" in then
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"part": "0/3"},
        {"part": "4/3"},
        {"part": "x"},
        {"part": "1/3", "seal": True},
        {"part": "1/3", "restart": True},
        {"seal": True, "on_error": "skip"},
    ],
)
def test_an_invalid_part_or_a_contradicting_setting_is_an_error(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"--(part|seal|restart|on-error skip)"):
        Settings(**settings)


def test_bad_sources_are_told_and_leave_the_work_of_others(toys: Path, toy: Any, store: Path) -> None:
    run(toy(), [toys], store, Settings(part="1/2"))
    unfinished = describe_unfinished(store.with_name(BUILD))
    assert unfinished.sources["count"] == 4
    assert 0 < unfinished.tasks_done < int(unfinished.tasks or 0)
    assert unfinished.command.endswith(" --part i/2")
    (toys / "train" / "s0.npz").write_bytes(b"no archive")
    with pytest.raises(InputError, match="cannot be read"):
        run(toy(), [toys], store, Settings(part="2/2"))
    assert (store.with_name(BUILD) / "journal-1-of-2.jsonl").exists()


def test_a_stop_finishes_the_step_at_work(toys: Path, toy: Any, store: Path, whole: str) -> None:
    class StopAtWriting:
        stage = ""

        def begin(self, stage: str, total: int) -> None:
            self.stage = stage

        def advance(self, amount: int) -> None:
            if self.stage == "writing":
                STOP.set()

        def tell(self, line: str) -> None: ...

    for settings in (Settings(), Settings(part="1/1")):
        with pytest.raises(StoppedError, match="run the same command"):
            run(toy(), [toys], store, settings, progress=StopAtWriting())
        STOP.clear()
        journal = next(store.with_name(BUILD).glob("journal*"))
        assert journal.read_text().count('"step":"shard"') == 1
        assert run(toy(), [toys], store, Settings(part=settings.part)).digest == whole
        store.rename(store.with_name("alone" if settings.part is None else "shared"))


@pytest.mark.parametrize(("number", "workers"), [(signal.SIGTERM, 0), (signal.SIGUSR1, 2)])
def test_a_conversion_stopped_by_a_signal_exits_with_75_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, workers: int
) -> None:
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).normal(size=(2000, 8)))
    append = Journal.append

    def signalling(journal: Journal, record: dict[str, Any]) -> None:
        append(journal, record)
        if record["step"] == "shard":
            os.kill(os.getpid(), number)
            monkeypatch.setattr(Journal, "append", append)

    monkeypatch.setattr(Journal, "append", signalling)
    words = ["convert", "rows", str(tmp_path / "rows.npy"), str(tmp_path / "rows.zarr")]
    words += ["--workers", str(workers)]
    codes = []
    for _ in range(2):
        with pytest.raises(SystemExit) as end:
            main(words)
        codes.append(end.value.code)
    assert codes == [75, 0]
    assert signal.getsignal(number) == signal.SIG_DFL


def scan_in_part(rows: Path, store: Path, part: str) -> int:
    files: list[Any] = []

    class Counting(Serial):
        def run(self, job: Any, items: Any) -> Any:
            for item in items:
                if isinstance(job, AskJob):
                    files.extend(job.items[number] for number in item)
                yield item, job(item)

    settings = Settings(part=part)
    run(make_converter("rows", {}), [rows], store, settings, executor=Counting())
    return len(files)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    folder = tmp_path / "rows"
    folder.mkdir()
    for number in range(3):
        np.save(folder / f"{number}.npy", np.full((4000, 2), number, np.float32))
    return folder


def test_the_first_job_scans_for_all_jobs(rows: Path, store: Path) -> None:
    assert scan_in_part(rows, store, "1/3") == 6, "who takes each file, and what it holds"
    assert scan_in_part(rows, store, "2/3") == 0
    os.utime(rows / "1.npy")
    with pytest.raises(ConversionError, match="used other sources"):
        scan_in_part(rows, store, "3/3")
    np.save(rows / "1.npy", np.zeros((4000, 2), np.float32))
    with pytest.raises(ConversionError, match="used other sources"):
        scan_in_part(rows, store, "3/3")


@pytest.mark.timeout(60)
def test_a_killed_scan_is_repeated_by_the_next_job(rows: Path, store: Path) -> None:
    class Killed(Serial):
        def run(self, job: Any, items: Any) -> Any:
            yield items[0], job(items[0])
            os.kill(os.getpid(), signal.SIGKILL)

    settings = Settings(part="1/2")
    first = FORK.Process(
        target=run, args=(make_converter("rows", {}), [rows], store, settings), kwargs={"executor": Killed()}
    )
    first.start()
    first.join()
    assert first.exitcode == -signal.SIGKILL
    assert not list(store.with_name(BUILD).glob("answers/[!.]*"))
    (leftover,) = clean(store)
    assert not leftover.kept
    assert scan_in_part(rows, store, "2/2") == 6
    assert scan_in_part(rows, store, "1/2") == 0
    alone = run(make_converter("rows", {}), [rows], store.with_name("alone.zarr"))
    assert digest_of(store) == alone.digest


def test_a_repeat_of_a_finished_job_delays_the_seal_and_then_seals(
    toys: Path, toy: Any, store: Path, whole: str
) -> None:
    """Although nothing is left to do for it: it was killed after its last step, and runs again."""
    run(toy(), [toys], store, Settings(part="1/2"))
    build = store.with_name(BUILD)
    again = Lock(build / "lock-1-of-2")
    with again:
        assert run(toy(), [toys], store, Settings(part="2/2")).unfinished_parts == (1,)
        assert not (build / "lock-2-of-2").exists()
        with pytest.raises(ConversionError, match=r"not finished: 1. Fix: run"):
            run(toy(), [toys], store, Settings(seal=True))
    assert run(toy(), [toys], store, Settings(part="1/2")).digest == whole


def record(name: str, *fields: object) -> bytes:
    return json.dumps({"record": name, "fields": fields}).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x05no",
        b'{"array": "AAAA"}',
        b"[" * 100_000,
        record("os:mkdir", "hostile"),
        record("unistore.conversion.lock:os", "hostile"),
        record("unistore.conversion.lock:Lock", "hostile"),
        record("unistore.conversion.parts:JobPart", 1),
    ],
    ids=range(8),
)
def test_stored_scan_answers_of_others_are_ignored(
    rows: Path, store: Path, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    scan_in_part(rows, store, "1/2")
    for path in store.with_name(BUILD).glob("answers/*"):
        path.write_bytes(content)
    assert scan_in_part(rows, store, "2/2") == 6
    assert not (tmp_path / "hostile").exists()
    alone = run(make_converter("rows", {}), [rows], store.with_name("alone.zarr"))
    assert digest_of(store) == alone.digest


def test_the_family_is_detected_once(rows: Path, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    codes = []
    for part in ("1/2", "2/2", "2/2"):
        with pytest.raises(SystemExit) as end:
            main(["convert", str(rows), str(store), "--part", part])
        codes.append(end.value.code)
        if part == "1/2":
            assert len(list(store.with_name(BUILD).glob("answers/*"))) == 2
    assert codes == [0, 0, 0]
    assert "up to date" in capsys.readouterr().out
    assert not store.with_name(BUILD).exists()


@pytest.mark.parametrize("link", [None, ".#0.npz"], ids=["", "with the lock of an editor"])
def test_a_job_that_comes_late_reports_the_store_that_the_others_finished(
    rows: Path, store: Path, link: str | None
) -> None:
    if link is not None:
        (rows / link).symlink_to("somebody@host.1234")  # leads nowhere
    for part in ("1/2", "2/2"):
        finished = convert(rows, store, part=part)
    late = convert(rows, store, part="2/2")
    assert (late.tasks, late.resumed) == (0, 0)
    for name in ("samples", "sources", "source_bytes", "raw_bytes", "stored_bytes", "files", "digest"):
        assert getattr(late, name) == getattr(finished, name), name
    assert late.files == len(tree(store))
