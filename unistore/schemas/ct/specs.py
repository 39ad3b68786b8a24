"""What the arrays of a CT store must be (`SPECS`), and what must hold of their values (`RULES`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from math import prod

import numpy as np

from unistore.errors import Problem
from unistore.schemas.array_specs import SAMPLES, ArrayInfo, ArraySpec, ArraySpecs, Limit
from unistore.schemas.ct.fields import FOREGROUND, LABELS, MASKS, SDF, VOLUMES, WINDOWS
from unistore.schemas.ct.geometry import LENGTHS
from unistore.schemas.rules import Rule, RuleView, broken, first_row
from unistore.system.types import Int64s, UInt8s

_ROWS = (SAMPLES, 0)
_IMAGE = f"{VOLUMES}/image"
_UNLIMITED = np.iinfo(np.int64).max


_POINTS = {"coords", "values", "offsets"}
# Arrays that a group has beside `present` and `resolution`: one of these sets.
_CONTENTS: Mapping[str, list[set[str]]] = {
    WINDOWS: [_POINTS, {"mask", "offsets"}],
    MASKS: [{"mask"}, {"label"}],
    LABELS: [{"mask"}, {"label"}],
    SDF: [_POINTS],
}
_COORDS = ArraySpec(dtypes=("uint16", "int32"), row_shape=(3,))


def _voxels(path: str) -> int:
    """Return how many voxels an element of a label or a bit mask has (0: the array is neither)."""
    family, _, name = path.partition("/")
    if name.endswith("/mask") and family in _CONTENTS:
        return 8
    return 1 if name.endswith("/label") and family in (MASKS, LABELS) else 0


def _spec(path: str, paths: Collection[str]) -> ArraySpec:
    group, _, name = path.rpartition("/")
    family = path.partition("/")[0]
    coords = f"{group}/coords"
    voxels = _voxels(path)
    if path == _IMAGE:
        return ArraySpec(kinds="biuf", row_shape=(None, None, None), rows=_ROWS)
    if path == f"{VOLUMES}/extent":
        arrays = {_IMAGE: 1} if _IMAGE in paths else {}
        arrays |= {array: _voxels(array) for array in sorted(paths) if _voxels(array)}
        limits = tuple([Limit(array, (1, 2, 3), count) for array, count in arrays.items()])
        return ArraySpec(dtypes=("int32",), row_shape=(3,), rows=_ROWS, least=0, limits=limits)
    if group == VOLUMES and name in LENGTHS:
        return ArraySpec(dtypes=("float64",), row_shape=(LENGTHS[name],), rows=_ROWS)
    if group == VOLUMES or name == "present":
        return ArraySpec(dtypes=("bool",) if name == "present" else (), rows=_ROWS)
    if voxels:
        like = (Limit(_IMAGE, (1, 2, 3), voxels),) if _IMAGE in paths else ()
        dtypes = ("uint8",) if voxels == 8 else ()
        return ArraySpec(dtypes=dtypes, row_shape=(None, None, None), rows=_ROWS, like=like)
    if family == FOREGROUND and name == "offsets":
        ranges = ArraySpec(dtypes=("int64",), row_shape=(), rows=(SAMPLES, 1), offsets_of=coords)
        return replace(ranges, repeated=True)  # one of each class in each volume
    if name == "coords" and family in (FOREGROUND, *_CONTENTS):
        return _COORDS
    if name == "offsets" and family in _CONTENTS:
        points = coords if coords in paths else Limit(f"{group}/mask", (1, 2, 3), 8)
        return ArraySpec(dtypes=("int64",), row_shape=(), rows=(SAMPLES, 1), offsets_of=points)
    if name == "values" and family in _CONTENTS:
        return ArraySpec(row_shape=(), rows=(coords, 0))
    if name == "resolution" and family in _CONTENTS:
        return ArraySpec(row_shape=(), rows=_ROWS)
    return ArraySpec()


def _incomplete_groups(arrays: Mapping[str, ArrayInfo]) -> Iterator[Problem]:
    for group in dict.fromkeys(path.rpartition("/")[0] for path in arrays):
        contents = _CONTENTS.get(group.partition("/")[0])
        present = {name for name in (*_POINTS, "mask", "label") if f"{group}/{name}" in arrays}
        if contents is not None and present not in contents:
            expected = " or ".join([", ".join(sorted(content)) for content in contents])
            names = ", ".join(sorted(present)) or "neither"
            yield Problem(group, f"holds {names}, expected {expected}", kind="missing")


SPECS = ArraySpecs(
    required=(f"{VOLUMES}/extent", f"{VOLUMES}/name/data", f"{VOLUMES}/name/offsets"),
    others=_spec,
    check=_incomplete_groups,
    text={VOLUMES: (SAMPLES, 1)},
)


def points(view: RuleView) -> Iterator[Problem]:
    """Points and locations lie in their volume. Those of windows are in C order."""
    extent = view.whole(f"{VOLUMES}/extent").astype(np.int64)
    for path in [path for path in view.under("") if path.endswith("/coords")]:
        group = path.removesuffix("/coords")
        family = path.partition("/")[0]
        offsets = view.whole(f"{group}/offsets")
        limits = extent
        if family == FOREGROUND:
            # Offsets are of each class of each volume.
            classes = view.array(f"{group}/offsets").attributes.get("class_numbers", [])
            if len(offsets) != len(extent) * len(classes) + 1:
                message = f"has {len(offsets)} rows, expected one for each of {len(extent)} volumes"
                yield broken(f"{group}/offsets", f"{message} and {classes}, and 1")
                continue
            offsets = offsets[:: len(classes) or 1]
        elif view.store.has(f"{group}/resolution"):
            cube = view.whole(f"{group}/resolution").astype(np.int64)[:, None]
            limits = np.where(cube > 0, cube, _UNLIMITED).repeat(3, axis=1)
        yield from _inside(view, path, offsets, limits, ordered=family == WINDOWS)


def _inside(
    view: RuleView, path: str, offsets: Int64s, limits: Int64s, *, ordered: bool
) -> Iterator[Problem]:
    last = (-1, -1)  # volume and C-order index of the last point
    for lo, block in view.blocks(path):
        for volume in range(int(np.searchsorted(offsets, lo, "right")) - 1, len(limits)):
            begin = max(lo, int(offsets[volume]))
            end = min(lo + len(block), int(offsets[volume + 1]))
            if begin >= lo + len(block):
                break
            coords = block[begin - lo : end - lo]
            limit = limits[volume]
            is_outside = ((coords < 0) | (coords >= limit)).any(axis=1)
            if is_outside.any():
                row = first_row(is_outside)
                message = f"row {begin + row} is {coords[row].tolist()}, outside volume {volume}"
                yield broken(path, f"{message} of {limit.tolist()}")
                return
            if not ordered or begin >= end:
                continue
            if prod(limit.tolist()) > _UNLIMITED:
                yield broken(path, f"volume {volume} is {limit.tolist()}, more voxels than int64 counts")
                return
            flat = np.ravel_multi_index(tuple(coords.T), tuple(limit.tolist()))
            before = last[1] if last[0] == volume else -1
            is_falling = np.diff(flat, prepend=before) <= 0
            if is_falling.any():
                message = f"row {begin + first_row(is_falling)} does not follow the one before it in C order"
                yield broken(path, message)
                return
            last = (volume, int(flat[-1]))


def masks(view: RuleView) -> Iterator[Problem]:
    """Bit masks have no bit outside the volume, and those of windows as many as the offsets count."""
    extent = view.whole(f"{VOLUMES}/extent").tolist()
    for path in [path for path in view.under("") if path.endswith("/mask") and view.shape(path)[1:]]:
        group = path.removesuffix("/mask")
        if view.array(path).attributes.get("packed_axis") != "width":
            continue
        counts = np.diff(view.whole(f"{group}/offsets")) if view.store.has(f"{group}/offsets") else None
        for volume, (depth, height, width) in enumerate(extent):
            ones = total = 0
            for lo, bits in view.planes(path, volume):
                ones += _count(bits[: max(0, depth - lo), :height], width)
                total += _count(bits, 8 * bits.shape[2])
            if ones != total:
                yield broken(path, f"volume {volume} has {total - ones} bits outside its extent")
            if counts is not None and ones != counts[volume]:
                yield broken(path, f"volume {volume} has {ones} voxels, its offsets count {counts[volume]}")


def _count(bits: UInt8s, width: int) -> int:
    """Return the number of set bits among the first `width` bits of the last axis."""
    whole, remainder = divmod(width, 8)
    last = bits[:, :, whole : whole + 1] & ((1 << remainder) - 1)
    return sum(int(np.bitwise_count(part).sum(dtype=np.int64)) for part in (bits[:, :, :whole], last))


def presence(view: RuleView) -> Iterator[Problem]:
    """Volumes without a window or field have no points of it."""
    for path in view.under(""):
        group = path.removesuffix("/present")
        if group != path and view.store.has(f"{group}/offsets"):
            counts = np.diff(view.whole(f"{group}/offsets"))
            wrong = ~view.whole(path) & (counts != 0)
            if wrong.any():
                volume = first_row(wrong)
                yield broken(path, f"volume {volume} is said not to have it, but has {counts[volume]} points")


RULES: tuple[Rule, ...] = (points, masks, presence)
