"""What the arrays of a CT store must be: volumes, their extents, windows, masks, labels, distance fields."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from unistore.errors import Problem
from unistore.schemas.array_spec import SAMPLES, ArraySpec, Limit
from unistore.schemas.array_specs import ArraySpecs
from unistore.schemas.arrays import ArrayInfo
from unistore.schemas.ct.fields import LABELS, MASKS, SDF, VOLUMES, WINDOWS

_ROWS = (SAMPLES, 0)
_IMAGE = f"{VOLUMES}/image"


def _spec(path: str, paths: Collection[str]) -> ArraySpec:
    group, _, name = path.rpartition("/")
    if path == _IMAGE:
        return ArraySpec(row_shape=(None, None, None), rows=_ROWS)
    if path == f"{VOLUMES}/extent":
        limits = [Limit(_IMAGE, (1, 2, 3))] if _IMAGE in paths else []
        limits += [Limit(each, (1, 2, 3), 8) for each in sorted(paths) if _is_mask(each)]
        limits += [Limit(each, (1, 2, 3)) for each in sorted(paths) if _is_label(each)]
        return ArraySpec(dtypes=("int32",), row_shape=(3,), rows=_ROWS, least=0, limits=tuple(limits))
    if group == VOLUMES or name == "present":
        return ArraySpec(dtypes=("bool",) if name == "present" else (), rows=_ROWS)
    if path.partition("/")[0] not in (WINDOWS, MASKS, LABELS, SDF):
        return ArraySpec()
    if _is_label(path):
        return ArraySpec(row_shape=(None, None, None), rows=_ROWS)
    if _is_mask(path):
        return ArraySpec(dtypes=("uint8",), row_shape=(None, None, None), rows=_ROWS)
    coords = f"{group}/coords"
    points = coords if coords in paths else Limit(f"{group}/mask", (1, 2, 3), 8)
    known = {
        "coords": ArraySpec(dtypes=("uint16", "int32"), row_shape=(3,)),
        "values": ArraySpec(row_shape=(), rows=(coords, 0)),
        "offsets": ArraySpec(dtypes=("int64",), row_shape=(), rows=(SAMPLES, 1), offsets_of=points),
        "resolution": ArraySpec(row_shape=(), rows=_ROWS),
    }
    return known.get(name, ArraySpec())


def _is_mask(path: str) -> bool:
    return path.endswith("/mask") and path.startswith((f"{WINDOWS}/", f"{MASKS}/", f"{LABELS}/"))


def _is_label(path: str) -> bool:
    return path.endswith("/label") and path.startswith((f"{MASKS}/", f"{LABELS}/"))


SPECS = ArraySpecs(
    required=(f"{VOLUMES}/extent", f"{VOLUMES}/name/data", f"{VOLUMES}/name/offsets"),
    others=_spec,
    main_rows=SAMPLES,
    text={VOLUMES: (SAMPLES, 1)},
)

_POINTS = {"coords", "values", "offsets"}
_CONTENTS: Mapping[str, list[set[str]]] = {
    WINDOWS: [_POINTS, {"mask", "offsets"}],
    MASKS: [{"mask"}, {"label"}],
    LABELS: [{"mask"}, {"label"}],
    SDF: [_POINTS],
}
"""Arrays that a group has beside ``present`` and ``resolution``: one of these sets."""


def validate(arrays: Mapping[str, ArrayInfo], _attributes: Mapping[str, Any]) -> list[Problem]:
    """Images are numbers; windows, masks, labels and fields are complete; masks and labels fit the image."""
    problems: list[Problem] = []
    image = arrays.get(_IMAGE)
    if image is not None and image.kind not in "biuf":
        problems.append(Problem(_IMAGE, f"is {image.dtype}, expected numbers", kind="dtype"))
    known = set().union(*(content for contents in _CONTENTS.values() for content in contents))
    for group in dict.fromkeys(path.rpartition("/")[0] for path in arrays):
        contents = _CONTENTS.get(group.partition("/")[0])
        if contents is None:
            continue
        found = {name for name in known if f"{group}/{name}" in arrays}
        if found not in contents:
            expected = " or ".join(", ".join(sorted(content)) for content in contents)
            listed = ", ".join(sorted(found)) or "neither"
            problems.append(Problem(group, f"holds {listed}, expected {expected}", kind="missing"))
    for path, info in arrays.items():
        if image is not None and (_is_mask(path) or _is_label(path)):
            *outer, width = image.shape
            shape = (*outer, -(-width // 8) if _is_mask(path) else width)
            if info.shape != shape:
                message = f"has shape {info.shape}, expected {shape}"
                problems.append(Problem(path, message, kind="shape"))
    return problems
