"""A reader in another language, written from docs/format.md, against zarr-python: every golden store."""

from __future__ import annotations

import json
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tests.support.golden_stores import GROWN, SOURCES, STORES

pytestmark = pytest.mark.nightly
READER = Path(__file__).parents[2] / "examples" / "readers" / "unistore.mjs"
NODE = shutil.which("node")
# Arrays of a sample: with the offsets that give its rows, or None where it has one row
SAMPLES = {
    "rows": {"rows/data": None, "rows/label": None},
    "point_cloud_scaled": {
        "points/xyz": "segments/offsets",
        "points/gps_time": "segments/offsets",
        "voxels/200/coords": "voxels/200/offsets",
    },
    "ct": {"volumes/image": None, "volumes/extent": None},
    "spike_steps": {"spikes/bits": "frames/offsets", "frames/voxel/3": None},
    "events": {"events/t": "recordings/offsets"},
    "trajectory": {"steps/action": "episodes/offsets", "episodes/name/data": "episodes/name/offsets"},
}


def run(store: Path) -> subprocess.CompletedProcess[str]:
    if NODE is None:
        pytest.skip("node is not installed")
    return subprocess.run([NODE, READER, store], capture_output=True, text=True, check=False)


def parts_read(store: Path) -> Any:
    done = run(store)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def arrays_of(store: Path) -> dict[str, np.ndarray[Any, Any]]:
    paths = {document.parent for document in store.rglob("zarr.json")}
    nodes = {path.relative_to(store).as_posix(): zarr.open(path, mode="r") for path in paths}
    return {path: node[...] for path, node in nodes.items() if isinstance(node, zarr.Array)}


def digest(values: np.ndarray[Any, Any]) -> str:
    return sha256(np.ascontiguousarray(values, values.dtype.newbyteorder("<")).tobytes()).hexdigest()


@pytest.mark.parametrize("name", SOURCES)
def test_the_reader_reads_every_array_of_golden_stores(name: str) -> None:
    (part,) = parts_read(STORES / f"{name}.zarr")
    expected = {path: digest(values) for path, values in arrays_of(STORES / f"{name}.zarr").items()}
    assert len(expected) > 5
    assert part["arrays"] == expected
    assert part["removed"] == []


def test_the_reader_reads_every_part_of_a_versioned_store() -> None:
    store = STORES / f"{GROWN}.zarr"
    parts = parts_read(store)
    document = json.loads((store / "versions" / "3.json").read_text())["parts"]
    assert [part["removed"] for part in parts] == [[1], []]
    for part, name in zip(parts, document["digest"], strict=True):
        values = arrays_of(store / "parts" / f"{name}.zarr")
        assert part["arrays"] == {path: digest(array) for path, array in values.items()}


@pytest.mark.parametrize("name", SAMPLES)
def test_the_first_and_the_last_sample_are_read(name: str) -> None:
    (part,) = parts_read(STORES / f"{name}.zarr")
    arrays = arrays_of(STORES / f"{name}.zarr")
    last = len(arrays["splits/code"]) - 1
    assert part["samples"].keys() == {"0", str(last)}
    for sample in (0, last):
        for path, by in SAMPLES[name].items():
            lo, hi = (sample, sample + 1) if by is None else arrays[by][sample : sample + 2].tolist()
            found = part["samples"][str(sample)][path]
            assert found == {"rows": [lo, hi], "sha256": digest(arrays[path][lo:hi])}, path


@pytest.mark.parametrize("damage", ["flipped", "truncated", "missing"])
def test_a_damaged_shard_is_an_error_of_the_reader(damage: str, tmp_path: Path) -> None:
    store = shutil.copytree(STORES / "rows.zarr", tmp_path / "rows.zarr")
    shard = store / "rows" / "data" / "c" / "0" / "0"
    data = shard.read_bytes()
    if damage == "missing":
        shard.unlink()
    else:
        shard.write_bytes(bytes([data[0], data[1] ^ 1]) + data[2:] if damage == "flipped" else data[:-7])
    done = run(store)
    assert done.returncode != 0
    assert "rows/data/c/0/0" in done.stderr
