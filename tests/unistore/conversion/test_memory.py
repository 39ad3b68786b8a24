"""``--memory``: sizes, the arithmetic of a refusal, and estimates against what real conversions hold."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest

from unistore import repair, verify
from unistore.conversion import plan as planning
from unistore.conversion.convert import make_converter
from unistore.conversion.memory import (
    PROCESS,
    STEP,
    check_fits,
    check_space,
    most_workers,
)
from unistore.conversion.plan import plan_table
from unistore.conversion.signatures import convert
from unistore.converters.ct import Ct
from unistore.converters.ct import slabs as ct_slabs
from unistore.converters.source_scan import scan_sources
from unistore.errors import InputError
from unistore.schemas.tables import Field, Table
from unistore.system.progress import NO_PROGRESS
from unistore.system.sizes import parse_bytes, size

ROOT = Path(__file__).resolve().parents[3]
MEMORY = Path("/dev/shm")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4GB", 4 * 10**9),
        ("1.5 GiB", 3 << 29),
        ("12k", 12_000),
        ("123", 123),
        (7, 7),
    ],
)
def test_parse_bytes_reads_sizes_with_units(text: str | int, size: int) -> None:
    assert parse_bytes(text, "--memory") == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "0", "4XB", "1e9", "nan"])
def test_a_text_that_is_not_a_size_is_an_error(text: str) -> None:
    with pytest.raises(InputError, match=rf"--memory: is {re.escape(repr(text))}, which is not a size"):
        parse_bytes(text, "--memory")


@pytest.mark.parametrize("limit", [PROCESS, PROCESS + 10, 10**9, 4 * 10**9, 10**12])
@pytest.mark.parametrize("need", [0, 10, 10**8, 10**9])
def test_as_many_workers_are_started_as_the_memory_limit_allows(limit: int, need: int) -> None:
    count = most_workers(limit, 5, need)
    assert 0 <= count <= 5
    assert not count or PROCESS + count * (PROCESS + need) <= limit
    assert count == 5 or PROCESS + (count + 1) * (PROCESS + need) > limit
    assert most_workers(None, 5, need) == 5


def test_the_error_of_a_memory_limit_adds_up_its_parts() -> None:
    check_fits(None, 10**12, "anything")
    check_fits(PROCESS + 500, 500, "just enough")
    with pytest.raises(InputError) as caught:
        check_fits(3 * 10**8, 5 * 10**8, "rows 0:7 of table 'rows' (from a.h5)")
    assert str(caught.value) == (
        f"--memory: is 300.0 MB, but the conversion needs {size(PROCESS + 5 * 10**8)}: {size(PROCESS)} for "
        "the process and 500.0 MB for rows 0:7 of table 'rows' (from a.h5). "
        f"Fix: add --memory {math.ceil((PROCESS + 5 * 10**8) * 1.005 / 1e6)}MB"
    )


def test_the_estimate_counts_a_chunk_of_the_file_that_is_larger_than_a_shard(tmp_path: Path) -> None:
    values = np.zeros((1 << 18, 64), "f4")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("data", data=values, chunks=values.shape, compression="gzip")
        file["label"] = np.zeros(1 << 18)
    scan = scan_sources(make_converter("rows", {}), [tmp_path])
    assert values.nbytes <= scan.sources[0].reading <= 1.1 * values.nbytes


@pytest.mark.parametrize(("order", "shard"), [("C", 16 << 10), ("F", 800_000)], ids=["a row a shard", "two"])
def test_volumes_written_in_parts_are_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str, shard: int
) -> None:
    monkeypatch.setattr("unistore.conversion.plan.SHARD", shard)
    rng = np.random.default_rng(0)
    for number, shape in enumerate([(70, 40, 45), (33, 20, 64), (40, 31, 50)]):
        (tmp_path / f"in/case{number}/masks").mkdir(parents=True)
        volume = np.asarray(rng.integers(-1000, 1000, shape, "i2"), order=order)
        np.save(tmp_path / f"in/case{number}/ct_original.npy", volume)
        mask = np.asarray(volume > 0, np.uint8, order=order)
        np.save(tmp_path / f"in/case{number}/masks/liver_binary.npy", mask)
    monkeypatch.setattr(planning, "LARGE", 1 << 40)
    options = {"window": ("lung", "bone"), "sparse": "mask"}
    options["codec"] = "fast"  # a codec is chosen from other chunks where volumes are read in parts
    whole = convert(tmp_path / "in", tmp_path / "whole", "ct", **options)
    monkeypatch.setattr(planning, "LARGE", 0)
    monkeypatch.setattr(planning, "PLANES_BYTES", 1)
    monkeypatch.setattr(ct_slabs, "SLAB", 4000)
    monkeypatch.setattr(ct_slabs, "BAND", 9000)
    parts: list[int] = []
    read = Ct.read_planes
    monkeypatch.setattr(Ct, "read_planes", lambda *a: [parts.append(a[5]), read(*a)][0])
    in_parts = convert(tmp_path / "in", tmp_path / "parts", "ct", **options)
    assert {0, 32, 64} <= set(parts)
    assert whole.digest == in_parts.digest
    assert (tmp_path / "parts/masks/liver/mask").is_dir()
    shards = list((tmp_path / "parts/volumes/image/c").iterdir())
    assert len(shards) == (3 if shard < 800_000 else 2)
    assert verify(tmp_path / "parts", against=[tmp_path / "in"]).receipt is not None
    (tmp_path / "parts/volumes/image/c/0/0/0/0").unlink()
    assert repair(tmp_path / "parts", [tmp_path / "in"]).ok


@pytest.mark.nightly
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="measures peaks by /proc")
@pytest.mark.parametrize("family", ["point_cloud", "ct"])
def test_estimates_hold_against_real_conversions(tmp_path: Path, family: str) -> None:
    """The short form of ``benchmarks/memory.py``: no step takes more than was estimated, nor far less."""
    found = measured(family, 24, tmp_path)
    assert found["steps"]
    for kind, steps in found["steps"].items():
        measured_bytes, estimated = (max(values) for values in zip(*steps, strict=True))
        assert estimated <= 3 * measured_bytes + 2 * STEP, f"{kind}: far more than {size(measured_bytes)}"
    assert found["bound"] <= PROCESS + 3 * found["peak"]


@pytest.mark.nightly
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="measures peaks by /proc")
def test_steps_of_a_bag_keep_to_their_estimates(tmp_path: Path) -> None:
    found = measured("bag", 24, tmp_path)
    assert found["steps"].keys() == {"steps", "steps/observation", "clocks/joints"}
    for steps in found["steps"].values():
        taken, estimated = map(max, zip(*steps, strict=True))
        assert estimated <= taken + 3 * STEP


def measured(family: str, megabytes: int, tmp_path: Path) -> dict[str, Any]:
    """What `benchmarks/memory.py` measures; it fails where a step takes more than was estimated."""
    work = MEMORY if os.access(MEMORY, os.W_OK) else tmp_path
    words = ["--families", family, "--megabytes", str(megabytes), "--workers", "0", "--json"]
    command = [sys.executable, str(ROOT / "benchmarks/memory.py"), *words, "--work", str(work)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any]
    (found,) = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("free", [38_999, 39_000])
def test_a_disk_that_an_uncompressed_store_may_fill_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    """A thousand rows of 13 bytes, and as many that are written twice, to a spill before."""
    tables = []
    for spilled in (False, True):
        fields = (
            Field(path="t/x", dtype="float32", row_shape=(3,), axes=("row", "axis")),
            Field(path="t/flag", dtype="bool", axes=("row",)),
        )
        tables.append(plan_table(Table(name="t", fields=fields, spilled=spilled), [400, 600]))
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    with warnings.catch_warnings(record=True, action="always") as told:
        check_space(tmp_path / "not" / "there.zarr", tables, NO_PROGRESS)
    assert len(told) == (free < 39_000)
    assert all("an uncompressed store takes 39" in str(warning.message) for warning in told)
