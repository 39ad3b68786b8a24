"""What must hold of the values of a CT store."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from unistore.errors import Problem
from unistore.schemas.ct.fields import FOREGROUND, VOLUMES, WINDOWS
from unistore.schemas.rules import Rule, RuleView, broken, first_row
from unistore.system.types import Int64s, UInt8s

_UNLIMITED = np.iinfo(np.int64).max


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
                expected = len(extent) * len(classes) + 1
                bounds = f"one for each of {len(extent):,} volumes and of the classes {classes}, and 1 more"
                message = f"has {len(offsets):,} rows, expected {expected:,}: {bounds}"
                yield broken(f"{group}/offsets", message)
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
                size = "" if limit[0] == _UNLIMITED else f", whose size is {limit.tolist()}"
                found = f"row {begin + row:,} is {coords[row].tolist()}"
                yield broken(path, f"{found}, outside volume {volume:,}{size}")
                return
            if not ordered or begin >= end:
                continue
            if prod(limit.tolist()) > _UNLIMITED:
                size = f"size {limit.tolist()}"
                yield broken(path, f"volume {volume:,} has {size}, more voxels than int64 can count")
                return
            flat = np.ravel_multi_index(tuple(coords.T), tuple(limit.tolist()))
            before = last[1] if last[0] == volume else -1
            is_falling = np.diff(flat, prepend=before) <= 0
            if is_falling.any():
                row = begin + first_row(is_falling)
                message = f"row {row:,} does not come after row {row - 1:,} in C order"
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
                yield broken(path, f"volume {volume:,} has {total - ones:,} set bits outside its extent")
            if counts is not None and ones != counts[volume]:
                message = f"volume {volume:,} has {ones:,} set bits, but its offsets count {counts[volume]:,}"
                yield broken(path, message)


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
                message = f"is False for volume {volume:,}, but the volume has {counts[volume]:,} points"
                yield broken(path, message)


RULES: tuple[Rule, ...] = (points, masks, presence)
