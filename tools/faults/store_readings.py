"""Everything that reads a store, compared with zarr-python."""

from __future__ import annotations

import json
import random
import re
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2  # noqa: F401  imported once, not in every child
import h5py  # noqa: F401
import numpy as np
import zarr

import unistore
import unistore.data.dataset
import unistore.data.kinds.replay
from unistore import export, verify
from unistore.converters.families import exporter_of
from unistore.converters.registry import own_families
from unistore.data.blocks import samples_per_chunk
from unistore.errors import StoreError, UnistoreError
from unistore.report.doctor import measure_speed
from unistore.report.inspection import inspect
from unistore.report.suggestions import natural_suggestion
from unistore.store.reader import Store

for family in own_families():
    exporter_of(family)  # imported once, not in every child

OK = "ok"
SHOWN = 3
"""Random samples that are read of each kind, besides the first and the last."""


def readings(path: Path, out: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Everything that a user can do with a store, by name."""
    yield "inspect", lambda: str(inspect(path))
    yield "arrays", lambda: same_arrays(path)
    for name, kind in kinds(path):
        yield f"Dataset {name}", lambda kind=kind: read_dataset(path, kind)
    yield "measure", lambda: read_as_doctor(path)
    yield "verify", lambda: verify_sound(path)
    yield "export", lambda: export(path, out)


def kinds(path: Path) -> list[tuple[str, Any]]:
    """Kinds of samples for the store's family."""
    try:
        store = Store(path)
    except UnistoreError:
        return [("natural", None)]
    grids = [p.split("/")[1] for p in store.paths() if p.startswith("voxels/") and p.endswith("/coords")]
    voxel = next((float(grid) for grid in grids if grid.replace(".", "").isdigit()), None)
    groups = [p.rpartition("/")[0] for p in store.paths() if p.startswith(("windows/", "sdf/"))]
    windows = sorted({group.removeprefix("windows/") for group in groups})
    found: dict[str, list[Any]] = {
        "point_cloud": [unistore.Segments("absolute", voxel=voxel), unistore.Segments(max_points=5)],
        "ct": [
            *(unistore.Volumes(), unistore.Patches(5, pad="valid"), unistore.Patches(4, False, pad="edge")),
            *(unistore.SparsePoints(window) for window in windows),
            *(unistore.SparsePoints(window, max_points=7) for window in windows),
        ],
        "spike": [
            unistore.Clips(length=1, crop=None),
            unistore.Clips(length=1, crop=8, pad="edge"),
            unistore.Clips(
                length=1,
                crop=5,
                voxel_bins=2,
                pad="valid",
                fields=("voxel", "source", "sequence", "spike_length"),
            ),
        ],
        "trajectory": [
            unistore.Transitions(only_valid=True),
            unistore.Windows(history=2, horizon=3, pad="zero"),
            "replay",
        ],
    }
    return [("natural", None), *((str(kind), kind) for kind in found.get(str(store.family), []))]


def read_dataset(path: Path, kind: Any) -> None:
    """Read some samples; values that `plain_sample` gives, too, must be equal."""
    if kind == "replay":
        with unistore.ReplayBuffer(path, output="dict", prefetch=0) as replay:
            replay.sample(4)
            _ = replay.action_mean
        return
    dataset = unistore.Dataset(path, natural_suggestion(Store(path)).kind if kind is None else kind)
    count = len(dataset)
    rng = random.Random(0)
    wanted = sorted({0, count - 1, *(rng.randrange(count) for _ in range(SHOWN))}) if count else []
    batch = dataset.read_batch(wanted)
    more = "source" in dataset.fields
    if not more and wanted:
        unistore.Dataset(path, dataset.samples, ["source"]).read_batch(wanted)
    if kind is None:
        names = dataset.store.group("splits").get("names")
        if isinstance(names, list) and names:
            len(unistore.Dataset(path, dataset.samples, split=names[0]))
        for place, sample in enumerate(wanted):
            for key, expected in plain_sample(path, dataset.store.family, sample):
                if key in batch:
                    found = np.asarray(batch[key][place])
                    if found.tobytes() != np.ascontiguousarray(expected).tobytes():
                        msg = f"sample {sample}, {key}: not what zarr-python reads"
                        raise AssertionError(msg)


def plain_sample(path: Path, family: str, sample: int) -> Iterator[tuple[str, np.ndarray]]:
    """Some values of a sample, read by zarr-python alone."""

    def array(name: str) -> Any:
        return zarr.open_array(path / name, mode="r")

    if family == "rows":
        for name in (
            each.parent.relative_to(path).as_posix() for each in sorted(path.glob("rows/**/zarr.json"))
        ):
            if (path / name / "c").exists():
                yield name.removeprefix("rows/"), np.asarray(array(name)[sample])
    elif family == "point_cloud":
        numbers = array("segments/number")
        every = json.loads((path / "zarr.json").read_bytes())["attributes"]["unistore"]["samples"]["count"]
        # Where as many segments as samples are counted, all of them are samples, whatever their numbers.
        real = np.arange(every) if every == numbers.shape[0] else np.flatnonzero(numbers[...] != -1)
        segment = int(real[sample])
        lo, hi = np.asarray(array("segments/offsets")[segment : segment + 2]).tolist()
        decimal = "decimal" in array("points/xyz").attrs
        xyz, origin = np.asarray(array("points/xyz")[lo:hi]), np.asarray(array("segments/origin")[segment])
        if xyz.dtype == np.int32:
            source = int(array("segments/source")[segment])
            scale, offset = (np.asarray(array(f"sources/{each}")[source]) for each in ("scale", "offset"))
            xyz = (xyz + offset) / scale if decimal else xyz * scale + offset
        if xyz.dtype == np.float32:  # not moved
            origin = np.zeros_like(origin)
        yield "xyz", (xyz - origin).astype(np.float32)
        yield "origin", origin
    elif family == "ct" and (path / "volumes/image").exists():
        depth, height, width = np.asarray(array("volumes/extent")[sample]).tolist()
        yield "image", np.asarray(array("volumes/image")[sample, :depth, :height, :width])
    elif family == "trajectory":
        yield "action", np.asarray(array("steps/action")[sample])
        yield "terminated", np.asarray(array("steps/terminated")[sample])


def same_arrays(path: Path) -> None:
    """Compare every array with zarr-python, if both can read it."""
    store = Store(path)
    refused = None
    for name in store.paths():
        try:
            found = store.array(name).read()
        except UnistoreError as error:
            refused = error
            continue
        try:
            expected = np.asarray(zarr.open_array(path / name, mode="r")[...])
        except Exception:
            continue  # zarr-python refuses it
        if found.dtype != expected.dtype or found.tobytes() != expected.tobytes():
            msg = f"{name}: not what zarr-python reads"
            raise AssertionError(msg)
    if refused is not None:
        raise refused


def verify_sound(path: Path) -> None:
    """Verify a store; problems are raised as a `StoreError`."""
    problems = verify(path).problems
    if problems:
        raise StoreError("\n".join([str(path), *map(str, problems)]))


def read_as_doctor(path: Path) -> None:
    """What ``doctor`` does, with a very short measurement."""
    dataset = unistore.Dataset(path, natural_suggestion(Store(path)).kind)
    samples_per_chunk(dataset.store, len(dataset))
    _ = dataset.digest, dataset.block_offsets()
    if len(dataset):
        dataset.source_of(len(dataset) - 1)
        measure_speed(dataset, 0.001)


def outcome(path: Path, read: Callable[[], Any]) -> str:
    """``"ok"``, ``"refused: …"``, or ``"FAILED: …"`` with a traceback."""
    try:
        read()
    except UnistoreError as error:
        output = str(error)
        known = path.name in output or "zarr.json" in output or "manifest" in output or "/" in output
        known = known or re.match(r"[^ ]+\.\w+: ", output) is not None  # a file of an export
        return f"refused: {output}" if known else f"FAILED: names no file: {type(error).__name__}: {output}"
    except BaseException:
        return f"FAILED: {traceback.format_exc()}"
    return OK
