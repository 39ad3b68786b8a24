"""One converter a destination: refused while the owner lives, taken over when it is dead."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.executors import Disturbing
from tests.support.waiting import patience, wait_until
from unistore.conversion import lock
from unistore.conversion.executors.local import Serial
from unistore.conversion.journal import Journal
from unistore.conversion.lock import Lock, owner_of
from unistore.conversion.run import run
from unistore.errors import ConversionError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lock"


def write_owner(path: Path, age: float = 0.0, **owner: Any) -> None:
    path.write_text(json.dumps({**json.loads(lock._own_text()), "pid": 1, **owner}))
    then = time.time() - age
    os.utime(path, (then, then))


def test_a_lock_of_a_living_process_is_an_error_and_of_a_dead_one_is_taken_over(path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    holder = context.Process(target=_hold, args=(str(path), ready), daemon=True)
    holder.start()
    ready.wait()
    with pytest.raises(ConversionError, match=f"process {holder.pid} on {socket.gethostname()}"):
        Lock(path).__enter__()
    assert holder.pid is not None
    os.kill(holder.pid, signal.SIGKILL)
    while holder.exitcode is None:
        time.sleep(0.01)
    with Lock(path):
        assert json.loads(path.read_text())["pid"] == os.getpid()
    holder.join()


def _hold(path: str, ready: Any) -> None:
    with Lock(Path(path)):
        ready.set()
        time.sleep(120)


ELSEWHERE = [
    {"host": "another-machine", "machine": "another boot"},
    {"machine": "another boot"},  # of the same name, as containers and machines called localhost are
]


@pytest.mark.parametrize("elsewhere", ELSEWHERE, ids=["another name", "the same name"])
@pytest.mark.parametrize(("age", "refused"), [(5.0, True), (3600.0, False)])
def test_a_lock_of_another_machine_is_free_once_its_heartbeat_is_old(
    path: Path, elsewhere: dict[str, str], age: float, refused: bool
) -> None:
    write_owner(path, age, **elsewhere, pid=77)
    if refused:
        host = elsewhere.get("host", socket.gethostname())
        with pytest.raises(ConversionError, match=f"process 77 on {host}"):
            Lock(path).__enter__()
    else:
        with Lock(path):
            assert json.loads(path.read_text())["pid"] == os.getpid()


def test_a_fast_clock_of_this_machine_does_not_free_a_lock(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is fast must not take an owner on another machine for dead."""
    write_owner(path, 5.0, **ELSEWHERE[0])
    monkeypatch.setattr("time.time", lambda now=time.time: now() + 3600)
    with pytest.raises(ConversionError, match="is working on this conversion"):
        Lock(path).__enter__()


@pytest.mark.parametrize("text", ["", '{"host": "m', "[]", "{}"])
def test_a_torn_lock_is_believed_only_while_it_is_new(
    path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "BEAT", 0.1)
    path.write_text(text)
    os.utime(path, (time.time() + 60,) * 2)
    with pytest.raises(ConversionError, match="just starting"):
        Lock(path).__enter__()
    path.write_text(text)
    os.utime(path)
    with Lock(path):  # waits until it is old
        assert json.loads(path.read_text())["pid"] == os.getpid()


def test_a_held_lock_renews_its_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "BEAT", 0.01)
    with Lock(path):
        os.utime(path, (1, 1))
        wait_until(lambda: path.stat().st_mtime != 1, "no beat")
        assert time.time() - path.stat().st_mtime < patience(10)


def test_without_file_locks_only_the_heartbeat_shows_an_owner(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There the heartbeat alone tells of owners, those of this machine too."""

    def refuse(*_: object, **__: object) -> bool:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", refuse)
    with Lock(path):
        with pytest.raises(ConversionError, match=r"process \d+ on .* is working on this conversion"):
            Lock(path).__enter__()
        assert path.exists()
    write_owner(path, 3600)
    with Lock(path):
        assert json.loads(path.read_text())["pid"] == os.getpid()


def test_threads_that_race_for_a_lock_hold_it_one_by_one(path: Path) -> None:
    """Threads of one process that race for a dead owner's lock: never two inside."""
    write_owner(path, 3600, **ELSEWHERE[0])
    inside, most, done = 0, 0, 0
    guard = threading.Lock()

    def compete() -> None:
        nonlocal inside, most, done
        while True:
            try:
                with Lock(path):
                    with guard:
                        inside += 1
                        most = max(most, inside)
                    time.sleep(0.001)
                    with guard:
                        inside -= 1
                        done += 1
                return
            except ConversionError:
                time.sleep(0.001)

    threads = [threading.Thread(target=compete) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, done) == (1, 8)


def test_release_never_removes_the_next_owners_lock(path: Path) -> None:
    first = Lock(path)
    first.__enter__()
    first.release()
    with Lock(path):
        first.release()
        assert path.exists()


def test_a_second_conversion_is_refused_while_the_first_lives(
    tmp_path: Path, toys: Path, toy: Any, make_toys: Callable[..., Path]
) -> None:
    store = tmp_path / "out.zarr"
    refusals: list[str] = []

    class Meddled(Disturbing):
        def disturbed(self, job: Any, items: Any) -> Iterator[Any]:
            for number, (item, outcome) in enumerate(Serial().run(job, items)):
                if number == 1:
                    with pytest.raises(ConversionError) as caught:
                        run(toy(), [toys], store)
                    refusals.append(str(caught.value))
                yield item, outcome

    report = run(toy(), [toys], store, executor=Meddled())
    assert len(refusals) == 2, "once while deriving, once while writing"
    assert "is working on this conversion" in refusals[0]
    assert report.digest == run(toy(), [toys], tmp_path / "other.zarr").digest


def io_error(*_: Any, **__: Any) -> Any:
    raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("call", ["open", "write", "pread"])
def test_a_lock_that_the_system_cannot_take_is_named(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock"
    if call == "pread":  # of the owner that has it
        path.write_text("{}")
    with monkeypatch.context() as failing:
        failing.setattr(os, call, io_error)
        with pytest.raises(ConversionError, match=r"lock: cannot be written: Input/output error"), Lock(path):
            raise AssertionError
    path.unlink(missing_ok=True)
    with Lock(path):
        assert owner_of(path) == f"process {os.getpid()} on {socket.gethostname()}"


def test_a_lock_that_cannot_be_read_is_an_error_and_not_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock"
    assert owner_of(path) is None
    path.write_text("{}")
    monkeypatch.setattr(os, "pread", io_error)
    with pytest.raises(ConversionError, match="lock: cannot be written: Input/output error"):
        owner_of(path)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("plant", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("elsewhere")])
def test_a_link_or_special_file_in_the_place_of_a_lock_is_an_error(
    plant: Callable[[Path], object], path: Path
) -> None:
    plant(path)
    for use in (Lock(path).__enter__, lambda: owner_of(path)):
        with pytest.raises(ConversionError, match=r"lock: is a link or a special file.*: remove it"):
            use()
    assert os.path.lexists(path)


@pytest.mark.timeout(60)
def test_a_lock_that_was_replaced_by_a_pipe_is_released(path: Path) -> None:
    with Lock(path):
        path.unlink()
        os.mkfifo(path)
    assert path.is_fifo()


@pytest.mark.parametrize(("module", "call"), [(lock, "_opened"), (Path, "unlink")])
def test_a_failed_release_of_a_lock_raises_nothing(
    module: Any, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock"
    with monkeypatch.context() as failing, Lock(path):
        failing.setattr(module, call, io_error)
    assert path.exists()
    with Lock(path):  # the file is of an owner without its lock
        pass
    assert not path.exists()


def test_a_journal_that_fails_is_named_and_keeps_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.append({"step": "begin"})
    with monkeypatch.context() as failing:
        failing.setattr(os, "fsync", io_error)
        with pytest.raises(ConversionError, match=r"journal\.jsonl: cannot be written: Input/output error"):
            journal.append({"step": "shard"})
    with monkeypatch.context() as failing:
        failing.setattr(Path, "open", io_error)
        for read in (lambda: Journal(path), lambda: journal.of("begin")):
            with pytest.raises(ConversionError, match=r"journal\.jsonl: cannot be written: Input"):
                read()
    journal.close()
    again = Journal(path)
    assert again.of("begin") == [{"step": "begin"}]
    assert again.of("shard") == []
    again.close()


def test_a_journal_whose_folder_the_disk_refuses_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unistore.conversion.journal.sync_folder", io_error)
    with pytest.raises(ConversionError, match=r"journal\.jsonl: cannot be written: Input/output error"):
        Journal(tmp_path / "journal.jsonl")
