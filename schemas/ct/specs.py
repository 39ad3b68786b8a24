"""What the arrays of a CT store must be (`SPECS`), and what must hold of their values (`RULES`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from math import prod

import numpy as np
from numpy.typing import NDArray

from unistore.errors import Problem
from unistore.schemas.array_specs import SAMPLES, ArrayInfo, ArraySpec, ArraySpecs, Limit
from unistore.schemas.ct.fields import FOREGROUND, LABELS, MASKS, SDF, VOLUMES, WINDOWS
from unistore.schemas.ct.geometry import LENGTHS
from unistore.schemas.rules import Rule, View, broken, first_row

_ROWS = (SAMPLES, 0)
_IMAGE = f"{VOLUMES}/image"


def _spec(path: str, paths: Collection[str]) -> ArraySpec:
    group, _, name = path.rpartition("/")
    if path == _IMAGE:
        return ArraySpec(kinds="biuf", row_shape=(None, None, None), rows=_ROWS)
    if path == f"{VOLUMES}/extent":
        limits = [Limit(_IMAGE, (1, 2, 3))] if _IMAGE in paths else []
        limits += [Limit(mask_path, (1, 2, 3), 8) for mask_path in sorted(paths) if _is_mask(mask_path)]
        limits += [Limit(label_path, (1, 2, 3)) for label_path in sorted(paths) if _is_label(label_path)]
        return ArraySpec(dtypes=("int32",), row_shape=(3,), rows=_ROWS, least=0, limits=tuple(limits))
    if group == VOLUMES and name in LENGTHS:
        return ArraySpec(dtypes=("float64",), row_shape=(LENGTHS[name],), rows=_ROWS)
    if group == VOLUMES or name == "present":
        return ArraySpec(dtypes=("bool",) if name == "present" else (), rows=_ROWS)
    if path.startswith(f"{FOREGROUND}/"):
        return _location_spec(path)
    if path.partition("/")[0] not in (WINDOWS, MASKS, LABELS, SDF):
        return ArraySpec()
    if _is_label(path) or _is_mask(path):
        dtypes, voxels = (("uint8",), 8) if _is_mask(path) else ((), 1)
        like = (Limit(_IMAGE, (1, 2, 3), voxels),) if _IMAGE in paths else ()
        return ArraySpec(dtypes=dtypes, row_shape=(None, None, None), rows=_ROWS, like=like)
    coords = f"{group}/coords"
    points = coords if coords in paths else Limit(f"{group}/mask", (1, 2, 3), 8)
    specs = {
        "coords": ArraySpec(dtypes=("uint16", "int32"), row_shape=(3,)),
        "values": ArraySpec(row_shape=(), rows=(coords, 0)),
        "offsets": ArraySpec(dtypes=("int64",), row_shape=(), rows=(SAMPLES, 1), offsets_of=points),
        "resolution": ArraySpec(row_shape=(), rows=_ROWS),
    }
    return specs.get(name, ArraySpec())


def _location_spec(path: str) -> ArraySpec:
    group, _, name = path.rpartition("/")
    specs = {
        "coords": ArraySpec(dtypes=("uint16", "int32"), row_shape=(3,)),
        "offsets": ArraySpec(dtypes=("int64",), row_shape=(), offsets_of=f"{group}/coords"),
    }
    return specs.get(name, ArraySpec())


def _is_mask(path: str) -> bool:
    return path.endswith("/mask") and path.startswith((f"{WINDOWS}/", f"{MASKS}/", f"{LABELS}/"))


def _is_label(path: str) -> bool:
    return path.endswith("/label") and path.startswith((f"{MASKS}/", f"{LABELS}/"))


_POINTS = {"coords", "values", "offsets"}
_CONTENTS: Mapping[str, list[set[str]]] = {
    WINDOWS: [_POINTS, {"mask", "offsets"}],
    MASKS: [{"mask"}, {"label"}],
    LABELS: [{"mask"}, {"label"}],
    SDF: [_POINTS],
}
"""Arrays that a group has beside ``present`` and ``resolution``: one of these sets."""


def _incomplete_groups(arrays: Mapping[str, ArrayInfo]) -> Iterator[Problem]:
    for group in dict.fromkeys(path.rpartition("/")[0] for path in arrays):
        contents = _CONTENTS.get(group.partition("/")[0])
        present = {name for name in (*_POINTS, "mask", "label") if f"{group}/{name}" in arrays}
        if contents is not None and present not in contents:
            expected = " or ".join(", ".join(sorted(content)) for content in contents)
            names = ", ".join(sorted(present)) or "neither"
            yield Problem(group, f"holds {names}, expected {expected}", kind="missing")


SPECS = ArraySpecs(
    required=(f"{VOLUMES}/extent", f"{VOLUMES}/name/data", f"{VOLUMES}/name/offsets"),
    others=_spec,
    check=_incomplete_groups,
    main_rows=SAMPLES,
    text={VOLUMES: (SAMPLES, 1)},
)


def points(view: View) -> Iterator[Problem]:
    """Points and locations lie in their volume; those of windows are in C order."""
    extent = view.whole(f"{VOLUMES}/extent").astype(np.int64)
    for path in view.under(f"{FOREGROUND}/"):
        if path.endswith("/coords"):
            yield from _locations(view, path, extent)
    for path in [*view.under(f"{WINDOWS}/"), *view.under(f"{SDF}/")]:
        group = path.removesuffix("/coords")
        if group == path:
            continue
        offsets = view.whole(f"{group}/offsets")
        ordered = group.startswith(f"{WINDOWS}/")
        yield from _inside(view, path, offsets, _limits(view, group, extent), ordered=ordered)


def _locations(view: View, path: str, extent: NDArray[np.int64]) -> Iterator[Problem]:
    """Locations are of the classes that their offsets name, and lie in their volume."""
    bounds = path.removesuffix("/coords") + "/offsets"
    offsets = view.whole(bounds)
    classes = view.array(bounds).attributes.get("class_numbers", [])
    if len(offsets) != len(extent) * len(classes) + 1:
        message = (
            f"has {len(offsets)} rows, expected one for each of {len(extent)} volumes and {classes}, and 1"
        )
        yield broken(bounds, message)
    elif classes:
        yield from _inside(view, path, offsets[:: len(classes)], extent, ordered=False)


def _limits(view: View, group: str, extent: NDArray[np.int64]) -> NDArray[np.int64]:
    """Upper bounds of the points of each volume, (V, 3): its extent or, if stored, its resolution."""
    if not view.store.has(f"{group}/resolution"):
        return extent
    cube = np.repeat(view.whole(f"{group}/resolution").astype(np.int64)[:, None], 3, axis=1)
    return np.where(cube > 0, cube, np.iinfo(np.int64).max)


def _inside(
    view: View, path: str, offsets: NDArray[np.int64], limits: NDArray[np.int64], *, ordered: bool
) -> Iterator[Problem]:
    last_volume = -1
    last_flat = -1
    for lo, block in view.blocks(path):
        hi = lo + len(block)
        for volume in range(int(np.searchsorted(offsets, lo, "right")) - 1, len(limits)):
            begin = max(lo, int(offsets[volume]))
            end = min(hi, int(offsets[volume + 1]))
            if begin >= hi:
                break
            if begin == end:
                continue
            coords = block[begin - lo : end - lo]
            columns = tuple(coords.T)
            if any(c.min() < 0 or c.max() >= most for c, most in zip(columns, limits[volume], strict=True)):
                row = first_row(((coords < 0) | (coords >= limits[volume])).any(axis=1))
                message = f"row {begin + row} is {coords[row].tolist()}, outside volume {volume}"
                yield broken(path, f"{message} of {limits[volume].tolist()}")
                return
            if not ordered:
                continue
            shape = tuple(limits[volume].tolist())
            if prod(shape) > np.iinfo(np.int64).max:
                yield broken(path, f"volume {volume} is {list(shape)}, more voxels than int64 counts")
                return
            flat = np.ravel_multi_index(columns, shape)
            again = volume == last_volume and flat[0] <= last_flat
            falling = np.concatenate([[again], flat[1:] <= flat[:-1]])
            if falling.any():
                message = f"row {begin + first_row(falling)} does not follow the one before it in C order"
                yield broken(path, message)
                return
            last_volume = volume
            last_flat = int(flat[-1])


def masks(view: View) -> Iterator[Problem]:
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


def _count(bits: NDArray[np.uint8], width: int) -> int:
    """Number of set bits among the first `width` bits of the last axis."""
    whole, remainder = divmod(width, 8)
    ones = int(np.bitwise_count(bits[:, :, :whole]).sum(dtype=np.int64))
    return ones + int(
        np.bitwise_count(bits[:, :, whole : whole + 1] & ((1 << remainder) - 1)).sum(dtype=np.int64)
    )


def presence(view: View) -> Iterator[Problem]:
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
