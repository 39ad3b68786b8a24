"""Dask: the same bytes from any number of workers, and what happens when workers, schedulers or users end."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil
import pytest

from unistore.convert import convert, make_converter
from unistore.errors import ConversionError, InputError, Problem, StoreError
from unistore.execute.dask_executor import Dask
from unistore.execute.job import Outcome
from unistore.execute.memory import PROCESS
from unistore.execute.runner import run

DATA = Path(__file__).resolve().parents[2] / "data"
OPTIONS: dict[str, dict[str, Any]] = {
    "rows": {},
    "point_cloud": {"voxel_size": (50.0,)},
    "ct": {"windows": ("lung", "bone"), "sparse": "coords"},
    "spike": {"height": 250, "width": 400, "voxels": (5,)},
    "trajectory": {"ignore": ("states",)},
}
SHARDS = {
    "rows": 8 << 10,
    "point_cloud": 128 << 10,
    "ct": 128 << 10,
    "spike": 64 << 10,
    "trajectory": 16 << 10,
}
"""Bytes of a shard, small enough that each family has several."""


MEMORY = Path("/dev/shm")  # no power is cut here, so nothing need reach a disk


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: every step of a conversion waits for the disk."""
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    with TemporaryDirectory(prefix="unistore-dask-", dir=MEMORY) as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """Real sources of each family; the spike stream is cut into numbered parts, so that there are several."""
    parts = tmp_path_factory.mktemp("parts")
    stream = (DATA / "spike/reds_frames_140_162.dat").read_bytes()
    for number, first in enumerate(range(0, 23, 4)):
        (parts / f"{number:03d}.dat").write_bytes(stream[first * 12_500 :][: 4 * 12_500])
    return {
        "rows": [DATA / "rows"],
        "point_cloud": [DATA / "pointcloud" / name for name in ("thin_a.h5", "thin_b.h5")],
        "ct": [DATA / "ct"],
        "spike": [parts],
        "trajectory": [DATA / "trajectory"],
    }


def tree(store: Path) -> dict[str, bytes]:
    return {f.relative_to(store).as_posix(): f.read_bytes() for f in store.rglob("*") if f.is_file()}


@pytest.fixture(scope="module")
def references(
    tmp_path_factory: pytest.TempPathFactory, sources: dict[str, list[Path]]
) -> dict[str, dict[str, bytes]]:
    """Every file of the serial conversion of each family."""
    place = tmp_path_factory.mktemp("serial")
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        for family, options in OPTIONS.items():
            patch.setattr("unistore.layout.SHARD", SHARDS[family])
            report = run(make_converter(family, options), sources[family], place / family)
            assert 3 <= report.tasks <= 20, f"{family}: {report.tasks} tasks"
            found[family] = tree(place / family)
    return found


@pytest.fixture(scope="module", params=[1, 2, 4])
def workers(request: pytest.FixtureRequest) -> Iterator[Dask]:
    """Worker processes that all families go through."""
    with Dask(request.param) as executor:
        yield executor


@pytest.mark.parametrize("family", OPTIONS)
def test_same_bytes_from_any_number_of_workers(
    tmp_path: Path,
    workers: Dask,
    sources: dict[str, list[Path]],
    references: dict[str, dict[str, bytes]],
    family: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("unistore.layout.SHARD", SHARDS[family])
    converter = make_converter(family, OPTIONS[family])
    run(converter, sources[family], tmp_path / "out", executor=workers)
    assert tree(tmp_path / "out") == references[family]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@dataclass
class Cluster:
    """A scheduler and workers that were started by hand."""

    address: str
    scheduler: subprocess.Popen[bytes]
    workers: list[subprocess.Popen[bytes]]

    def start_worker(self, *options: str) -> subprocess.Popen[bytes]:
        worker = dask("worker", self.address, "--no-dashboard", *options)
        self.workers.append(worker)
        return worker


def dask(command: str, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "dask", command, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    file = tmp_path / "scheduler.json"
    arguments = ("--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file))
    scheduler = dask("scheduler", *arguments)
    deadline = time.monotonic() + 60
    while not file.exists() or not file.read_text().endswith("}"):
        assert time.monotonic() < deadline, "the scheduler did not start"
        time.sleep(0.05)
    started = Cluster(json.loads(file.read_text())["address"], scheduler, [])
    file.unlink()
    yield started
    for process in (*started.workers, scheduler):
        process.kill()
        process.wait()


def test_a_scheduler_and_workers_started_by_hand(
    tmp_path: Path,
    cluster: Cluster,
    sources: dict[str, list[Path]],
    references: dict[str, dict[str, bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of them with four threads: a process does one step at a time all the same."""
    scratch = ("--no-nanny", "--local-directory", str(tmp_path / "scratch"))
    cluster.start_worker("--nthreads", "1", *scratch)
    cluster.start_worker("--nthreads", "4", *scratch)
    for family, options in OPTIONS.items():
        monkeypatch.setattr("unistore.layout.SHARD", SHARDS[family])
        out = tmp_path / family
        convert(sources[family], out, family, scheduler=cluster.address, **options)
        assert tree(out) == references[family]


DEATHS = {"dies": signal.SIGKILL, "crashes": signal.SIGSEGV}


@dataclass(frozen=True)
class Faulty:
    """A job whose steps do what they are told; `marks` is a folder in which they leave their traces."""

    marks: Path
    megabytes: int = 1

    def __call__(self, item: str) -> Outcome:
        what, _, rest = item.partition(" ")
        count = len(list(self.marks.glob(f"{what}-*")))
        (self.marks / f"{what}-{count}-{os.getpid()}-{time.monotonic_ns()}").touch()
        if what == "sleep":
            time.sleep(float(rest))
        if what in DEATHS and count < int(rest):
            os.kill(os.getpid(), DEATHS[what])
        if what == "lasts":
            time.sleep(float(rest))
            (self.marks / f"over-{time.monotonic_ns()}").touch()
        if what == "raises":
            raise ERRORS[int(rest)]
        return Outcome({"pid": os.getpid()})

    def describe(self, item: str) -> str:
        return f"step {item!r} of a.h5"

    def need(self, item: str) -> int:
        return self.megabytes << 20


ERRORS = [
    InputError([Problem("a.h5: data/x", "holds NaN", "mend it", "nan"), Problem("b.h5", "is empty")]),
    InputError("plain words"),
    ConversionError("disk full"),
    StoreError("no store"),
    PermissionError(13, "Permission denied", "/data/a.h5"),
    KeyError("a fault of the converter"),
]


@pytest.mark.parametrize("number", range(len(ERRORS)))
def test_errors_arrive_as_they_were_raised(tmp_path: Path, number: int) -> None:
    with Dask(1) as executor, pytest.raises(type(ERRORS[number])) as caught:
        list(executor.run(Faulty(tmp_path), [f"raises {number}"]))
    error = ERRORS[number]
    assert type(caught.value) is type(error)
    assert str(caught.value) == str(error)
    assert getattr(caught.value, "problems", None) == getattr(error, "problems", None)


def test_a_lost_worker_is_replaced_and_its_step_runs_again(tmp_path: Path) -> None:
    told: list[str] = []
    with Dask(2, tell=told.append) as executor:
        steps = ["dies 2", *(f"other{n}" for n in range(6))]
        done = dict(executor.run(Faulty(tmp_path), steps))
        assert set(done) == set(steps)
        assert len(executor.pids) == 2
    assert len(list(tmp_path.glob("dies-*"))) == 3
    assert len(told) == 2
    line = "a worker process was lost (killed by SIGKILL: out of memory? --memory bounds it); its step"
    assert all(each.startswith(line) for each in told)


@pytest.mark.parametrize(
    ("death", "hint"),
    [
        ("dies", r"killed by SIGKILL: out of memory\? give --memory, or fewer --workers"),
        ("crashes", r"killed by SIGSEGV: a damaged file\? .*--exclude"),
    ],
)
def test_a_step_that_kills_three_workers_is_named(tmp_path: Path, death: str, hint: str) -> None:
    said = rf"step '{death} 9' of a\.h5: its worker died 3 times \({hint}\); what was done is kept"
    with Dask(2) as executor, pytest.raises(ConversionError, match=said):
        list(executor.run(Faulty(tmp_path), [*(f"sleep 0.{n}" for n in range(4)), f"{death} 9"]))
    assert len(list(tmp_path.glob(f"{death}-*"))) == 3


def test_a_shard_is_described_by_table_rows_and_sources(tmp_path: Path, toys: Path, toy: Any) -> None:
    class Deadly(toy):  # type: ignore[misc]
        def read(self, scan: Any, table: str, source: int, lo: int, hi: int, out: Any) -> None:
            if table == "rows" and lo == 0 and source == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            super().read(scan, table, source, lo, hi, out)

    with (
        Dask(1) as executor,
        pytest.raises(ConversionError, match=r"rows \d+:\d+ of table 'rows' \(from .*train/s3\.npz rows 0:"),
    ):
        run(Deadly(), [toys], tmp_path / "out.zarr", executor=executor)
    assert not (tmp_path / "out.zarr.unistore-build/lock").exists()
    report = run(toy(), [toys], tmp_path / "out.zarr", restart=True)
    assert report.tasks > report.resumed


def test_stopping_early_leaves_no_step_at_work(tmp_path: Path) -> None:
    with Dask(2) as executor:
        steps = executor.run(Faulty(tmp_path), ["first", "sleep 30", "sleep 31", "never"])
        next(steps)
        pids = executor.pids
        steps.close()
        assert not any(psutil.pid_exists(pid) for pid in pids)
        assert [item for item, _ in executor.run(Faulty(tmp_path), ["again"])] == ["again"], "it starts anew"


def test_stopping_early_waits_for_what_a_cluster_has_begun(tmp_path: Path, cluster: Cluster) -> None:
    """Nobody may end the workers of others: what they have begun is waited for, nothing else begins."""
    for threads in ("1", "4"):
        scratch = ("--no-nanny", "--local-directory", str(tmp_path / "scratch"))
        cluster.start_worker("--nthreads", threads, *scratch)
    marks = tmp_path / "marks"
    marks.mkdir()
    with Dask(0, cluster.address) as executor:
        steps = executor.run(Faulty(marks), ["first", *(f"lasts 0.{n}" for n in range(3, 9))])
        next(steps)
        wait_until(lambda: any(marks.glob("lasts-*")), "no step began")
        steps.close()
        begun, over = len(list(marks.glob("lasts-*"))), len(list(marks.glob("over-*")))
        assert begun == over
        time.sleep(0.5)
        assert len(list(marks.glob("lasts-*"))) == begun
        assert [item for item, _ in executor.run(Faulty(marks), ["again"])] == ["again"]


@pytest.mark.parametrize("place", ["workers", "cluster"])
def test_many_problems_stop_it_and_nothing_is_written_afterwards(
    tmp_path: Path, toy: Any, make_toys: Callable[..., Path], request: pytest.FixtureRequest, place: str
) -> None:
    sources = make_toys(tmp_path / "sources")
    arrays = dict(np.load(sources / "train/s0.npz"))
    arrays["value"][0] = np.nan
    for number in range(70):
        np.savez(sources / f"train/bad{number:02d}.npz", **arrays)

    class Slow(toy):  # type: ignore[misc]
        def derive(self, scan: Any, source: int, emit: Any) -> Any:
            time.sleep(0.02)
            return super().derive(scan, source, emit)

    address = None
    if place == "cluster":
        running = request.getfixturevalue("cluster")
        running.start_worker("--no-nanny", "--local-directory", str(tmp_path / "scratch"))
        address = running.address
    with Dask(2, address) as executor:
        with pytest.raises(InputError) as caught:
            run(Slow(), [sources], tmp_path / "made" / "out.zarr", executor=executor)
        assert 50 <= len(caught.value.problems) < 70
        time.sleep(0.3)
        assert not (tmp_path / "made").exists()


def test_no_worker_is_started_for_nothing(tmp_path: Path) -> None:
    with Dask(4) as executor:
        assert list(executor.run(Faulty(tmp_path), [])) == []
        list(executor.run(Faulty(tmp_path), ["one"]))
        assert len(executor.pids) == 1


@pytest.mark.parametrize(("room", "expected"), [(4, 4), (2.9, 2), (1.0, 1)])
def test_memory_bounds_the_workers(tmp_path: Path, room: float, expected: int) -> None:
    each = PROCESS + (100 << 20)
    told: list[str] = []
    with Dask(4, memory=int(PROCESS + room * each), tell=told.append) as executor:
        list(executor.run(Faulty(tmp_path, 100), ["a", "b", "c", "d"]))
        assert len(executor.pids) == expected
    assert bool(told) == (expected < 4)


def test_memory_for_one_process_alone(tmp_path: Path) -> None:
    told: list[str] = []
    with Dask(2, memory=PROCESS + (150 << 20), tell=told.append) as executor:
        outcomes = dict(executor.run(Faulty(tmp_path, 100), ["a", "b"]))
    assert {outcome.record["pid"] for outcome in outcomes.values()} == {os.getpid()}
    assert "this process alone" in told[0]


def test_memory_for_not_even_one(tmp_path: Path) -> None:
    with (
        Dask(2, memory=PROCESS + (50 << 20)) as executor,
        pytest.raises(
            InputError, match=r"134\.2 MB for the process \+ 104\.9 MB for step 'a' of a\.h5 = 239"
        ),
    ):
        list(executor.run(Faulty(tmp_path, 100), ["a"]))


def test_no_scheduler_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unistore.execute.dask_executor.TIMEOUT", "0.5s")
    with pytest.raises(ConversionError, match=r"tcp://127\.0\.0\.1:9: no dask scheduler answers"):
        convert(DATA / "rows", tmp_path / "out", "rows", scheduler="tcp://127.0.0.1:9")


def test_a_worker_and_then_the_scheduler_of_a_cluster_are_lost(
    tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("unistore.execute.dask_executor.TIMEOUT", "2s")
    options = ("--nthreads", "1", "--no-nanny", "--local-directory", str(tmp_path / "scratch"))
    first = cluster.start_worker(*options)
    told: list[str] = []
    with Dask(0, cluster.address, tell=told.append) as executor:
        steps = executor.run(Faulty(tmp_path), ["one", *(f"sleep 0.{n}" for n in range(3, 9)), "sleep 60"])
        next(steps)
        first.kill()
        cluster.start_worker(*options)
        done = [next(steps) for _ in range(6)]
        assert len(done) == 6
        assert any(re.search(r"worker tcp://\S+ was lost; its steps run again", line) for line in told)
        cluster.scheduler.kill()
        with pytest.raises(ConversionError, match="the dask scheduler went away; what was done is kept"):
            next(steps)
    assert capfd.readouterr() == ("", ""), "nothing but what is told"


SLOW = """
import sys
import unistore.layout
unistore.layout.SHARD = 256
from unistore.cli.main import main
main(sys.argv[1:])
"""


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    """The command line on its own terminal, so to speak, with many tiny shards."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", SLOW, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def journal_lines(out: Path) -> int:
    journal = out.with_name(f"{out.name}.unistore-build") / "journal.jsonl"
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def test_a_lost_worker_shows_as_our_line_alone(tmp_path: Path) -> None:
    """Nothing of what dask logs reaches the terminal, in whatever state its workers die."""
    process = start("convert", "rows", DATA / "rows", tmp_path / "out", "--workers", "3")
    killed = 0
    for strike in (1, 2):  # a third might end a step for good
        wait_until(lambda strike=strike: journal_lines(tmp_path / "out") > 8 * strike, "nothing was written")
        for child in psutil.Process(process.pid).children()[:strike]:
            child.kill()
            killed += 1
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    stage, *told = errors.splitlines()
    assert re.fullmatch(r"writing \d+\.\d MB", stage)
    assert 1 <= len(told) <= killed
    assert all(line.startswith("a worker process was lost (killed by SIGKILL: out of mem") for line in told)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_ctrl_c_and_kill_leave_no_process_and_are_resumed(tmp_path: Path, sent: signal.Signals) -> None:
    out = tmp_path / "out"
    arguments = ("convert", "rows", DATA / "rows", out)
    whole = start("convert", "rows", DATA / "rows", tmp_path / "whole", "--json")
    digest = json.loads(whole.communicate(timeout=60)[0])["digest"]
    process = start(*arguments, "--workers", "2")
    wait_until(lambda: journal_lines(out) > 10, "nothing was written")
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) == 2
    os.killpg(process.pid, sent)
    _, errors = process.communicate(timeout=60)
    psutil.wait_procs(children, timeout=10)
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)
    if sent == signal.SIGINT:
        assert process.returncode == 130
        assert errors.strip().splitlines()[-1] == "interrupted; the same command continues where it stopped"
        assert "Traceback" not in errors
    done = journal_lines(out)
    assert done > 10
    assert not out.exists()
    again = start(*arguments, "--workers", "2", "--json")
    answer, errors = again.communicate(timeout=60)
    assert again.returncode == 0, errors
    report = json.loads(answer)
    assert report["digest"] == digest
    assert report["resumed"] >= done - 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "whole"]


def test_a_script_without_a_guard(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import unistore\n"
        "print('imported', flush=True)\n"
        f"report = unistore.convert({str(DATA / 'rows')!r}, 'out', workers=2)\n"
        "print(report.digest)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", script.name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("imported") == 1, "the workers do not run the script"
    shutil.rmtree(tmp_path / "out")
