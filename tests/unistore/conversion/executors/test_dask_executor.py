"""The same bytes from any executor, and existing dask clusters: lost workers, schedulers, early ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

from tests.support.store_files import tree
from tests.support.waiting import wait_until
from unistore.conversion.convert import make_converter
from unistore.conversion.executors.dask_executor import Dask
from unistore.conversion.executors.local import Job, Outcome
from unistore.conversion.executors.processes import Processes
from unistore.conversion.run import run
from unistore.conversion.signatures import convert
from unistore.errors import ConversionError, InputError
from unistore.system.foreign import SECONDS

DATA = Path(__file__).resolve().parents[3] / "data"
OPTIONS: dict[str, dict[str, Any]] = {
    "rows": {},
    "point_cloud": {"voxel_size": (50.0,)},
    "ct": {"window": ("lung", "bone"), "sparse": "coords"},
    "spike": {"height": 250, "width": 400, "voxel_bins": (5,)},
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
SLOWER = [family for family in OPTIONS if family != "rows"]


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


@pytest.fixture(scope="module")
def serial(
    tmp_path_factory: pytest.TempPathFactory, sources: dict[str, list[Path]]
) -> Callable[[str], dict[str, bytes]]:
    """Every file of the serial conversion of a family."""
    place = tmp_path_factory.mktemp("serial")

    @cache
    def files(family: str) -> dict[str, bytes]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("unistore.conversion.plan.SHARD", SHARDS[family])
            report = run(make_converter(family, OPTIONS[family]), sources[family], place / family)
        assert 3 <= report.tasks <= 20, f"{family}: {report.tasks} tasks"
        return tree(place / family)

    return files


@pytest.fixture(scope="module")
def workers() -> Iterator[Processes]:
    """Worker processes that all families go through."""
    with Processes(3) as executor:
        yield executor


@pytest.mark.parametrize(
    "family", ["rows", *(pytest.param(family, marks=pytest.mark.nightly) for family in SLOWER)]
)
def test_same_bytes_from_any_number_of_workers(
    tmp_path: Path,
    workers: Processes,
    sources: dict[str, list[Path]],
    serial: Callable[[str], dict[str, bytes]],
    family: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("unistore.conversion.plan.SHARD", SHARDS[family])
    converter = make_converter(family, OPTIONS[family])
    run(converter, sources[family], tmp_path / "out", executor=workers)
    assert tree(tmp_path / "out") == serial(family)
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
        env={**os.environ, SECONDS: "2"},  # of one reading of a file
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@contextmanager
def started(folder: Path) -> Iterator[Cluster]:
    """A scheduler without workers."""
    file = folder / "scheduler.json"
    arguments = ("--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file))
    scheduler = dask("scheduler", *arguments)
    wait_until(lambda: file.exists() and file.read_text().endswith("}"), "the scheduler did not start")
    cluster = Cluster(json.loads(file.read_text())["address"], scheduler, [])
    file.unlink()
    try:
        yield cluster
    finally:
        for process in (*cluster.workers, scheduler):
            process.kill()
            process.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A scheduler of the test's own, to be harmed."""
    with started(tmp_path) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def sound_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A scheduler and two workers, one of them with four threads; not to be harmed."""
    folder = tmp_path_factory.mktemp("cluster")
    with started(folder) as cluster:
        for threads in ("1", "4"):
            scratch = ("--no-nanny", "--local-directory", str(folder / "scratch"))
            cluster.start_worker("--nthreads", threads, *scratch)
        with Client(cluster.address) as client:
            client.wait_for_workers(2)  # a short run may be over before it looks again
        yield cluster


@pytest.mark.nightly
def test_a_scheduler_and_workers_started_by_hand_give_the_same_bytes(
    tmp_path: Path,
    sound_cluster: Cluster,
    sources: dict[str, list[Path]],
    serial: Callable[[str], dict[str, bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of them with four threads: a process does one step at a time all the same."""
    for family in ("point_cloud", "trajectory"):
        monkeypatch.setattr("unistore.conversion.plan.SHARD", SHARDS[family])
        out = tmp_path / family
        convert(sources[family], out, family, scheduler=sound_cluster.address, **OPTIONS[family])
        assert tree(out) == serial(family)


@dataclass(frozen=True)
class Lasting(Job[str]):
    """A job whose steps last as long as they are called to, and leave traces in the folder `marks`."""

    marks: Path

    def __call__(self, item: str) -> Outcome:
        what, _, seconds = item.partition(" ")
        (self.marks / f"{what}-{os.getpid()}-{time.monotonic_ns()}").touch()
        if seconds:
            time.sleep(float(seconds))
            (self.marks / f"over-{time.monotonic_ns()}").touch()
        return Outcome()

    def describe(self, item: str) -> str:
        return f"step {item!r} of a.h5"

    def need(self, item: str) -> int:
        return 1 << 20


@pytest.mark.nightly
def test_stopping_early_waits_for_what_a_cluster_has_begun(tmp_path: Path, sound_cluster: Cluster) -> None:
    """Nobody may end the workers of others: what they have begun is waited for, nothing else begins."""
    marks = tmp_path / "marks"
    marks.mkdir()
    told: list[str] = []
    with Dask(sound_cluster.address, tell=told.append) as executor:
        steps = executor.run(Lasting(marks), ["first", *(f"lasts 0.{n}" for n in range(3, 9))])
        next(steps)
        wait_until(lambda: any(marks.glob("lasts-*")), "no step began")
        steps.close()
        begun, over = len(list(marks.glob("lasts-*"))), len(list(marks.glob("over-*")))
        assert begun == over
        time.sleep(0.5)
        assert len(list(marks.glob("lasts-*"))) == begun
        assert [item for item, _ in executor.run(Lasting(marks), ["again"])] == ["again"]
    assert len(told) == 1
    assert told[0].startswith("1 worker with several threads")


@pytest.mark.parametrize("place", ["workers", pytest.param("cluster", marks=pytest.mark.nightly)])
def test_a_conversion_stops_after_many_problems_and_writes_nothing(
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

    chosen: Processes | Dask = Processes(2)
    if place == "cluster":
        chosen = Dask(request.getfixturevalue("sound_cluster").address)
    with chosen as executor:
        with pytest.raises(InputError) as caught:
            run(Slow(), [sources], tmp_path / "made" / "out.zarr", executor=executor)
        assert 50 <= len(caught.value.problems) < 70
        time.sleep(0.3)
        assert not (tmp_path / "made").exists()


@pytest.mark.nightly
def test_the_recipe_of_the_guide_to_clusters_gives_the_same_bytes(
    tmp_path: Path, sources: dict[str, list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first recipe: scan and all on a cluster of this machine, the bytes of one process."""
    page = (Path(__file__).parents[4] / "docs" / "clusters.md").read_text()
    (recipe,) = [
        block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "n_workers=8" in block
    ]
    (tmp_path / "episodes").mkdir()
    for number in range(40):
        np.save(tmp_path / "episodes" / f"part_{number}.npy", np.full((3, 2), number))
    monkeypatch.chdir(tmp_path)
    exec(recipe.replace("n_workers=8", "n_workers=2, processes=False, dashboard_address=':0'"), {})
    convert("episodes", "alone.zarr")
    assert tree(tmp_path / "episodes.zarr") == tree(tmp_path / "alone.zarr")


def test_an_address_without_a_scheduler_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unistore.conversion.executors.dask_executor.TIMEOUT", "0.5s")
    with pytest.raises(ConversionError, match=r"tcp://127\.0\.0\.1:9: no dask scheduler answers"):
        convert(DATA / "rows", tmp_path / "out", "rows", scheduler="tcp://127.0.0.1:9")


@pytest.mark.nightly
def test_a_lost_worker_is_replaced_and_a_lost_scheduler_is_an_error(
    tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("unistore.conversion.executors.dask_executor.TIMEOUT", "2s")
    options = ("--nthreads", "1", "--no-nanny", "--local-directory", str(tmp_path / "scratch"))
    first = cluster.start_worker(*options)
    told: list[str] = []
    with Dask(cluster.address, tell=told.append) as executor:
        steps = executor.run(Lasting(tmp_path), ["one", *(f"lasts 0.{n}" for n in range(3, 9)), "lasts 60"])
        next(steps)
        first.kill()
        cluster.start_worker(*options)
        done = [next(steps) for _ in range(6)]
        assert len(done) == 6
        cluster.scheduler.kill()
        with pytest.raises(ConversionError, match="the dask scheduler stopped"):
            next(steps)
    assert capfd.readouterr() == ("", ""), "nothing but what is told"


class Deadly(Lasting):
    """Steps that say so kill their worker."""

    def __call__(self, item: str) -> Outcome:
        if item == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(item)


@pytest.mark.nightly
def test_a_cluster_without_workers_or_with_dying_ones_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Any step without a worker, and one that kills its worker."""
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES", "0")
    cluster = request.getfixturevalue("cluster")
    told: list[str] = []
    said = r"no worker is connected to the scheduler.* gave up after --wait 1; all finished work is kept"
    with (
        Dask(cluster.address, wait=1, tell=told.append) as executor,
        pytest.raises(ConversionError, match=said),
    ):
        list(executor.run(Lasting(tmp_path), ["a"]))
    (line,) = told
    assert line.startswith("waiting: no worker is connected to the scheduler; start one with 'dask worker")
    cluster.start_worker("--nthreads", "1", "--no-nanny", "--local-directory", str(tmp_path / "scratch"))
    said = (
        r"step 'dies' of a\.h5: its worker died again and again; all finished work is kept\. "
        r"Fix: if memory ran out, add --memory; if a file is damaged, --exclude it; then run the same command"
    )
    with Dask(cluster.address) as executor, pytest.raises(ConversionError, match=said):
        list(executor.run(Deadly(tmp_path), ["dies"]))


@pytest.mark.nightly
def test_damaged_files_are_problems_and_leave_the_workers_of_a_cluster_alive(
    sound_cluster: Cluster, tmp_path: Path
) -> None:
    """HDF5 runs below the cluster's workers, which go on."""
    # not at the top: workers import this module
    from tests.support.damaged_hdf5 import WRONG, write_damaged

    folder = write_damaged(tmp_path)
    with Client(sound_cluster.address, set_as_default=False) as client:
        before = client.run(os.getpid)
        with pytest.raises(InputError) as refused:
            convert(folder, tmp_path / "all.zarr", "rows", scheduler=client)
        assert [(each.location, each.message, each.kind) for each in refused.value.problems] == WRONG
        for name in ("b", "c"):
            (folder / f"{name}.h5").unlink()
        assert convert(folder, tmp_path / "out.zarr", "rows", scheduler=client).samples == 6
        assert client.run(os.getpid) == before
        assert not any(client.run(lambda: "h5py" in sys.modules).values())
