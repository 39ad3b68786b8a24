"""What ``--dry-run`` and ``inspect`` predict, what is refused before reading, against measured peaks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from tests.support.problems import of_kind
from unistore.conversion.convert import make_converter
from unistore.conversion.memory import PROCESS, estimate
from unistore.conversion.signatures import convert
from unistore.converters.source_scan import scan_sources
from unistore.errors import InputError
from unistore.store.reader import Store
from unistore.system.sizes import parse_bytes

ROOT = Path(__file__).resolve().parents[3]
DATA = ROOT / "tests/data"
MEMORY = Path("/dev/shm")
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "point_cloud": ("pointcloud/thin_a.h5", {"voxel_size": (50.0,)}),
    "ct": ("ct", {"window": ("lung",)}),
}


def predictions(tmp_path: Path, *words: str) -> list[dict[str, Any]]:
    """What ``benchmarks/prediction.py`` found; it fails unless 1 ≤ predicted / measured ≤ 3."""
    work = MEMORY if os.access(MEMORY, os.W_OK) else tmp_path
    command = [sys.executable, str(ROOT / "benchmarks/prediction.py"), "--json", "--work", str(work), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


linux = pytest.mark.skipif(not os.access("/proc/self/status", os.R_OK), reason="measures peaks by /proc")


@pytest.mark.nightly
@linux
def test_predictions_hold_against_measured_peaks(tmp_path: Path) -> None:
    """Without a limit, and under the least that is not refused."""
    free, tight = predictions(tmp_path, "--families", "spike", "--megabytes", "24", "--workers", "2")
    assert free["memory"] is None
    assert free["workers"]
    assert free["measured"] <= free["predicted"]
    assert tight["measured"] <= tight["predicted"] <= tight["memory"]


@pytest.mark.nightly
@linux
def test_rows_of_a_byte_take_no_memory_a_row(tmp_path: Path) -> None:
    """268 million rows, which took 2.2 GB of 500 MB when each of them had its source."""
    found = predictions(tmp_path, "--families", "bytes", "--megabytes", "268", "--workers", "0")
    for case in found:
        assert case["measured"] <= 500_000_000
    assert found[1]["memory"] <= 450_000_000


def episodes(path: Path) -> Path:
    """An episode whose next frames follow, and whose next states do not."""
    with h5py.File(path, "w") as file:
        group = file.create_group("data/demo_0")
        group["actions"] = np.zeros((5, 2))
        group["obs/frame"], group["next_obs/frame"] = np.arange(5.0), np.arange(1.0, 6.0)
        group["obs/state"], group["next_obs/state"] = np.arange(5.0), np.arange(5.0) + 7
    return path


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("ct", {"window": ("lung", "bone"), "sparse": "coords"}),
        ("ct", {"window": ("lung", "bone"), "sparse": "mask"}),
        ("ct", {"window": ("lung", "bone")}),
        ("trajectory", {}),
    ],
)
def test_arrays_added_by_finalize_are_within_the_announced_ones(
    tmp_path: Path, family: str, options: dict[str, Any]
) -> None:
    sources = DATA / family if family == "ct" else episodes(tmp_path / "a.hdf5")
    scan = scan_sources(make_converter(family, options), [sources])
    convert(sources, tmp_path / "out", family, **options)
    store = Store(tmp_path / "out")
    most = {field.path: (field, rows) for table, rows in scan.possible for field in table.fields}
    beside = {field.path for table in scan.tables for field in table.fields}
    added = [path for path in store.paths() if path.startswith(("windows/", "episodes/final", "steps/next"))]
    added = [path for path in added if not path.endswith(("/offsets", "/present")) and path not in beside]
    assert added
    for path in added:
        field, rows = most[path]
        array = store.array(path)
        assert 0 < len(array) <= rows
        assert (array.dtype.name, array.shape[1:]) == (field.dtype, field.row_shape)


# Of rows that are spilled, and of tables beside others
@pytest.mark.parametrize("family", ["point_cloud", pytest.param("ct", marks=pytest.mark.nightly)])
def test_too_little_memory_is_an_error_and_the_limit_that_it_names_works(
    tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources, options = FAMILIES[family]

    def never(*_: object) -> None:
        raise AssertionError

    with monkeypatch.context() as patch:
        patch.setattr(type(make_converter(family, options)), "derive", never)
        patch.setattr(type(make_converter(family, options)), "read", never)
        with pytest.raises(InputError) as refused:
            convert(DATA / sources, tmp_path / "out", family, memory=PROCESS + 1, **options)
    assert list(tmp_path.iterdir()) == []
    named = re.search(r"--memory ([0-9]+MB)", str(refused.value))
    assert named is not None, str(refused.value)
    convert(DATA / sources, tmp_path / "out", family, memory=named[1], **options)
    found = estimate(
        make_converter(family, options), scan_sources(make_converter(family, options), [DATA / sources]), 0
    )
    with pytest.raises(InputError, check=of_kind("memory", "--memory")):
        found.peak(PROCESS + found.step - 1, 0)
    assert found.peak(parse_bytes(named[1], "--memory"), 0).bytes <= parse_bytes(named[1], "--memory")
