"""doctor: facts of the machine and of a store, and a line that runs."""

from __future__ import annotations

import json
import multiprocessing
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unistore
from tests.support.needs_torch import needs_torch
from tests.unistore.conftest import StoreMaker
from unistore import DoctorReport, doctor
from unistore.report.doctor import Machine, advise, inspect_machine, remarks
from unistore.report.trials import best
from unistore.system.machine import available_memory, file_system


def write_store(make_store: Any) -> Path:
    path: Path = make_store("rows", {"rows/data": np.arange(6000).reshape(300, 20)}, count=300)
    root = path / "zarr.json"
    document = json.loads(root.read_text())
    document["attributes"]["unistore"]["seal"]["bytes"] = 12345
    root.write_text(json.dumps(document))
    return path


@pytest.fixture
def store(make_store: Any) -> Path:
    return write_store(make_store)


@pytest.fixture(scope="module")
def checkup(tmp_path_factory: pytest.TempPathFactory, kept_stores: Path) -> DoctorReport:
    return doctor(write_store(StoreMaker(tmp_path_factory.mktemp("doctor"), kept_stores)))


def argument(
    checkup: DoctorReport, name: str, machine: Machine | None = None, blocks: float = 100.0, **store: Any
) -> tuple[Any, str]:
    """Value and reason of an argument under changed facts; a full shuffle reads 100 samples a second."""
    assert checkup.store is not None
    full, in_blocks = checkup.trials
    speed = [replace(full, samples_per_second=100.0), replace(in_blocks, samples_per_second=blocks)]
    changed = replace(checkup.store, **store)
    for advice in advise(machine or checkup.machine, changed, speed):
        if advice.name == name:
            return advice.value, advice.reason
    return None, ""


def test_the_recommended_line_runs(checkup: DoctorReport) -> None:
    loader = eval(checkup.line, {"unistore": unistore})
    with loader:
        assert sum(len(batch["index"]) for batch in loader) == 300


def test_doctor_reports_samples_size_and_measured_speed_of_a_store(
    checkup: DoctorReport, store: Path
) -> None:
    found = checkup.store
    assert found is not None
    assert (found.samples, found.family, found.stored_bytes) == (300, "rows", 12345)
    assert found.samples_a_chunk == unistore.Dataset(store).store.array("rows/data").chunk_shape[0]
    assert found.fits_page_cache
    full, in_blocks = checkup.trials
    assert (full.num_workers, full.shuffle, in_blocks.shuffle) == (0, "full", "blocks")
    assert (checkup.advice[0].name, checkup.advice[0].value) == ("batch_size", 64)
    assert full.sample_bytes == pytest.approx(20 * 8 + 8, rel=0.05)
    assert min(full.samples_per_second, in_blocks.samples_per_second) > 0
    shown = str(checkup)
    for part in (
        "usable cores",
        "12.3 kB",
        "fits page cache",
        "samples a chunk",
        "samples per second",
        "because",
    ):
        assert part in shown


def test_doctor_reports_cores_and_memory_of_the_machine() -> None:
    found = inspect_machine()
    assert 0 < found.usable_cores <= found.all_cores
    assert found.available_memory > 1 << 20
    assert found.starts_workers
    remark = next(
        remarks(replace(found, usable_cores=found.all_cores, shared_memory=None, has_kernel=False), None)
    )
    assert "install a C compiler" in remark


def test_doctor_without_a_store_recommends_a_general_line() -> None:
    found = doctor()
    assert found.store is None
    assert found.line.startswith("unistore.Loader(dataset, batch_size=64, shuffle=True, num_workers=")
    assert [advice.name for advice in found.advice] == ["batch_size", "shuffle", "num_workers"]


def test_shuffle_by_blocks_is_recommended_where_it_is_faster(checkup: DoctorReport) -> None:
    assert argument(checkup, "shuffle")[0] is True
    value, reason = argument(checkup, "shuffle", blocks=250.0)
    assert value == "blocks"
    assert "2.5× as fast" in reason
    assert argument(checkup, "shuffle", blocks=250.0, samples=64)[0] is True
    assert argument(checkup, "shuffle", is_remote=True)[0] == "blocks"
    assert argument(checkup, "shuffle", is_remote=True, samples_a_chunk=0.5)[0] is True
    assert argument(checkup, "shuffle", fits_page_cache=False)[0] == "blocks"


def measured_line(store: Path, sent: Connection) -> None:
    sent.send(doctor(store, measure=True, seconds=0.02).line)


@needs_torch
@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
def test_a_daemonic_process_is_recommended_no_workers(store: Path) -> None:
    received, sent = multiprocessing.Pipe(duplex=False)
    context = multiprocessing.get_context("fork")
    process = context.Process(target=measured_line, args=(store, sent), daemon=True)
    process.start()
    line = received.recv()
    process.join()
    assert "num_workers=0" in line


def test_the_number_of_workers_follows_from_cores_and_samples(checkup: DoctorReport) -> None:
    machine = replace(checkup.machine, usable_cores=10.0)
    assert argument(checkup, "num_workers", machine) == (8, "10 usable cores × 0.8 = 8")
    assert argument(checkup, "num_workers", machine, samples=30)[0] == 2
    assert argument(checkup, "num_workers", replace(machine, usable_cores=1.0))[0] == 0


def test_a_store_without_samples_is_reported_without_trials(make_store: Any) -> None:
    found = doctor(make_store("rows", {"rows/data": np.zeros((0, 3))}, count=0))
    assert found.store is not None
    assert found.trials == []
    assert "the store has no samples" in str(found)


class Told:
    """Progress callbacks that keep what they are told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def begin(self, stage: str, total: int) -> None: ...
    def advance(self, amount: int) -> None: ...

    def tell(self, line: str) -> None:
        self.lines.append(line)


def test_measure_tries_workers_batch_sizes_and_cache_and_recommends_the_fastest(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = replace(inspect_machine(), usable_cores=2.0)
    monkeypatch.setattr("unistore.report.doctor.inspect_machine", lambda: machine)
    told = Told()
    found = doctor(store, samples=unistore.Rows(), measure=True, seconds=0.1, progress=told)
    assert found.line.startswith(
        f"unistore.Loader(unistore.Dataset({json.dumps(str(store))}, unistore.Rows())"
    )
    full, in_blocks, *plain, cached = found.trials
    assert (full.shuffle, in_blocks.shuffle) == ("full", "blocks")
    assert [trial.num_workers for trial in plain[:3]] == [0, 1, 2]
    assert {trial.batch_size for trial in plain} == {16, 64, 256}
    assert {trial.cache for trial in plain} == {None}
    assert cached.cache == "all"
    settings = [f"num_workers={trial.num_workers}, batch_size={trial.batch_size}" for trial in plain]
    settings.append(f'num_workers={cached.num_workers}, batch_size={cached.batch_size}, cache="all"')
    assert [line.rpartition(":")[0] for line in told.lines] == settings
    for trial in found.trials:
        assert trial.first_batch > 0
        assert trial.longest >= trial.mean > 0
        assert trial.samples_per_second == pytest.approx(trial.batch_size / trial.mean, rel=0.6)
        assert trial.memory is None or trial.memory > 1 << 20
    arguments = {advice.name: advice.value for advice in found.advice}
    fastest = best([*plain, cached])
    assert fastest.samples_per_second >= 0.9 * max(trial.samples_per_second for trial in plain)
    assert (fastest.num_workers, fastest.cache) == (arguments["num_workers"], arguments.get("cache"))
    with eval(found.line, {"unistore": unistore}) as loader:
        assert loader.batch_size == fastest.batch_size


def test_measuring_without_a_store_is_an_error(store: Path, make_store: Any) -> None:
    for arguments in ({"measure": True}, {"samples": unistore.Rows()}, {"seconds": 0}):
        with pytest.raises(unistore.InputError):
            doctor(**arguments)
    assert doctor(make_store("rows", {"rows/data": np.zeros((0, 3))}, count=0), measure=True).trials == []


def test_file_systems_by_the_longest_mount_point(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    inside = tmp_path / "a b" / "c"
    escaped = str(tmp_path / "a b").replace(" ", "\\040")
    mounts.write_text(f"/dev/x / ext4 rw 0 0\nserver:/y {escaped} nfs4 rw 0 0\n")
    assert file_system(inside, mounts) == "nfs4"
    assert file_system(tmp_path, mounts) == "ext4"
    assert file_system(tmp_path, tmp_path / "absent") == "?"


def test_available_memory_respects_the_limit_of_a_container(tmp_path: Path) -> None:
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (cgroups / "job").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 800 kB\n")
    assert available_memory(proc, cgroups) == 800 * 1024
    (proc / "self" / "cgroup").write_text("0::/job\n")
    (cgroups / "job" / "memory.max").write_text("300000\n")
    (cgroups / "job" / "memory.current").write_text("100000\n")
    assert available_memory(proc, cgroups) == 200_000


def test_a_remark_names_samples_that_would_be_padded_and_a_fitting_size(
    make_store: Any, make_scans: Any
) -> None:
    small = np.array([[12, 20]] * 3 + [[400, 300]], np.int32)
    frames = {
        "frames/voxel/2": np.ones((4, 2, 400, 300), np.uint8),
        "frames/spike_extent": small,
        "frames/source": np.arange(4, dtype=np.int32),
        "sources/path": list("abcd"),
        "sequences/offsets": np.arange(5),
        "sequences/name": list("abcd"),
    }
    found = doctor(make_store("spike", frames, count=4, table="frames"))
    assert found.store is not None
    assert found.store.samples == 4
    loader = eval(found.line, {"unistore": unistore})
    with loader:
        assert {batch["voxel"].shape[1:] for batch in loader} == {(1, 2, 12, 20)}
    first = found.remarks[0]
    assert first.startswith("unistore.Clips()")
    assert "no samples (length=5 leaves no samples" in first
    assert "the default of a Dataset is unistore.Clips(length=1, crop=(12, 20))" in first
    assert json.loads(json.dumps(found.to_json()))["remarks"][0] == first

    found = doctor(make_scans([(5, 6, 7), (100, 97, 96), (96, 96, 95), (96, 96, 96)]).path)
    assert "unistore.Patches(96): 50 % of its samples would be padded" in str(found)
    assert "unistore.Patches(size=(5, 6, 7)) fits this store" in str(found)
    assert found.store is not None
    assert found.store.samples_as == ""
    assert "padded" not in str(doctor(make_scans([(100, 97, 96)]).path))
