"""The scan on workers: the same sources, the same problems, and no more sent than a step needs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

import unistore
from unistore.conversion.convert import make_converter
from unistore.conversion.executors.local import AskJob, parallel_map
from unistore.conversion.executors.processes import Processes
from unistore.conversion.keys import Inputs, source_keys
from unistore.conversion.spill import DeriveJob
from unistore.converters.files.paths import list_files
from unistore.converters.source_scan import scan_part, scan_sources
from unistore.errors import InputError


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Eighty files of two columns, in folders."""
    for number in range(80):
        path = tmp_path / "sources" / f"lot_{number % 3}" / f"part_{number}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, x=np.full((3, 2), number, "f4"), label=np.arange(3))
    return tmp_path / "sources"


@pytest.fixture
def processes() -> Iterator[Processes]:
    with Processes(2) as executor:
        yield executor


def test_problems_of_a_parallel_scan_equal_those_of_a_serial_one(sources: Path, processes: Processes) -> None:
    for number in (7, 41, 79):
        (sources / f"lot_{number % 3}" / f"part_{number}.npz").write_bytes(b"no archive")
    converter = make_converter("rows", {})
    told = []
    for ask in ({}, {"ask": parallel_map(processes)}):
        with pytest.raises(InputError) as caught:
            scan_sources(converter, [sources], **ask)
        told.append([(each.location, each.message) for each in caught.value.problems])
    assert told[0] == told[1]
    assert len(told[0]) == 3


def test_skipping_with_workers_gives_the_same_store(sources: Path, tmp_path: Path) -> None:
    (sources / "lot_1" / "part_40.npz").write_bytes(b"no archive")
    reports = [
        unistore.convert(sources, tmp_path / f"{workers}.zarr", "rows", workers=workers, on_error="skip")
        for workers in (0, 2)
    ]
    assert reports[0].digest == reports[1].digest
    assert (reports[0].sources, len(reports[1].skipped)) == (79, 1)


def test_a_step_is_sent_its_own_sources(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the others: a scan of millions goes to no worker."""
    monkeypatch.setattr("unistore.system.packed.BLOCK", 4)
    converter = make_converter("rows", {})
    scan = scan_sources(converter, [sources])
    parts = converter.find(list_files([sources]), _nothing()).parts
    job = AskJob(function=partial(scan_part, converter), items=parts)
    sent = cloudpickle.dumps(job.alone(range(8, 10)).alone(range(8, 10)))
    assert len(sent) < 1200 + len(cloudpickle.dumps(list(parts))) / 8
    found = cloudpickle.loads(sent)(range(8, 10))
    assert [scanned.tables["rows"].rows for scanned, _ in found.record["answers"]] == [3, 3]
    inputs = Inputs.of(converter, scan)
    keys = source_keys(inputs)
    derive = DeriveJob(inputs=inputs, keys=keys, spill=sources)
    again = derive.alone((8, 9)).alone((8, 9))
    assert again.need((8, 9)) == derive.need((8, 9))
    assert [again.inputs.scan.sources[at] for at in (8, 9)] == scan.sources[8:10]
    assert (again.inputs.fingerprints[9], again.keys[9]) == (inputs.fingerprints[9], keys[9])
    for other in (0, 70):
        with pytest.raises(IndexError):
            again.inputs.scan.sources[other]


def test_answers_are_in_the_order_of_the_items(processes: Processes) -> None:
    for count in (0, 1, 31, 100, 1000):
        assert list(parallel_map(processes)(abs, range(-count, 0))) == list(range(count, 0, -1))


def _nothing() -> Any:
    from unistore.converters.common.exclusion import Exclusion

    return Exclusion(())
