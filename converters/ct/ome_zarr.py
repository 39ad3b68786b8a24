"""CT volumes as OME-NGFF 0.5 images: one Zarr v3 group for each, voxels in ``0``, labels in ``labels``.

https://ngff.openmicroscopy.org/0.5/
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from unistore.converters.common.exported import File, converted
from unistore.converters.ct.export import volumes
from unistore.errors import InputError, Problem
from unistore.schemas.ct.fields import LABELS, MASKS, SDF, VOLUMES, WINDOWS
from unistore.schemas.indices import Column
from unistore.schemas.store_view import StoreView

_AXES = ("z", "y", "x")
_UNITS = {"mm": {"unit": "millimeter"}}
_IDENTITY = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]
_UNKNOWN_SPACING = "volumes whose spacing is unknown have a scale of 1 and axes without unit"
_AXIS_ORDER = (
    "spacing and origin are read as depth, height, width; as x, y, z where the first two spacings alone are "
    "the same"
)
_ROTATED = "origins of volumes whose direction is not the identity are left out: they are not translations"
_NO_DISTANCE_FIELDS = "distance fields are left out: images have no sparse values"


def files(store: StoreView) -> Iterator[File]:
    """One image for each volume; its windows, masks and label volumes are the image's labels.

    Raises
    ------
    InputError
        If a volume has no voxels, only points.
    """
    labels: dict[str, str] = {}
    groups = sorted({path.rpartition("/")[0] for path in store.paths()})
    for family in (WINDOWS, MASKS, LABELS):
        for group in groups:
            if group.startswith(f"{family}/"):
                name = group.removeprefix(f"{family}/")
                labels[f"{family}.{name}" if name in labels else name] = group
    left_out = (_NO_DISTANCE_FIELDS,) if any(group.startswith(f"{SDF}/") for group in groups) else ()
    sources = store.text("sources/path")
    infos = store.text(f"{VOLUMES}/info") if store.has(f"{VOLUMES}/info/data") else []
    for volume in volumes(store):
        stored = volume.stored()
        if stored is None or volume.dtype is None:
            message = f"volume {volume.name!r} has no image, so it cannot be exported as one"
            raise InputError(Problem(store.path, message, "leave --to out", "missing"))
        multiscale, about, notes = _multiscale(store, volume.number, volume.name)
        about["source"] = sources[volume.number]
        if infos and infos[volume.number]:
            about["info"] = infos[volume.number]
        values = {"0": converted(stored, volume.dtype.newbyteorder("<"))}
        attributes = {"": {**_ome(multiscales=[multiscale]), "unistore": about}}
        present = {name: group for name, group in labels.items() if volume.has(group)}
        if present:
            attributes["labels"] = _ome(labels=[*present])
        for name, group in present.items():
            values[f"labels/{name}/0"] = volume.stored_label(group)
            label: dict[str, Any] = {"source": {"image": "../../"}}
            if group.startswith(f"{WINDOWS}/"):
                window = store.group(group)
                label["properties"] = [{"label-value": 1, **{key: window[key] for key in ("width", "level")}}]
            attributes[f"labels/{name}"] = _ome(**{"multiscales": [multiscale], "image-label": label})
        yield File(
            name=f"{volume.name}.ome.zarr",
            form="zarr",
            source=volume.number,
            values=values,
            attributes=attributes,
            axes=_AXES,
            notes=(*left_out, *notes),
        )


def _ome(**members: Any) -> dict[str, Any]:
    return {"ome": {"version": "0.5", **members}}


def _multiscale(store: StoreView, volume: int, name: str) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Multiscale metadata with one level, the geometry that the source states, and notes on its reading.

    The specification requires a scale; it is 1 where the spacing is unknown.
    """
    about: dict[str, Any] = {
        each: stated_geometry(store, each, volume) for each in ("spacing", "origin", "direction")
    }
    known = read_geometry(store, volume)
    axes = [{"name": axis, "type": "space"} for axis in _AXES]
    transformations = [{"type": "scale", "scale": known.spacing or [1.0] * 3}]
    notes = [_UNKNOWN_SPACING if known.spacing is None else _AXIS_ORDER]
    if known.spacing is not None:
        about["read_as"] = "xyz" if known.reversed else "zyx"
        unit = store.attributes["fields"][f"{VOLUMES}/spacing"].get("unit")
        axes = [axis | _UNITS.get(unit, {}) for axis in axes]
        if known.origin is not None and about["direction"] in (None, _IDENTITY):
            transformations.append({"type": "translation", "translation": known.origin})
        elif known.origin is not None:
            notes.append(_ROTATED)
    level = {"path": "0", "coordinateTransformations": transformations}
    return {"name": name, "axes": axes, "datasets": [level]}, about, notes


class Geometry(NamedTuple):
    """Spacing and origin of a volume, (depth, height, width), in the unit of the store.

    None where they are unknown. `reversed` tells that the source has them as x, y, z.
    """

    spacing: list[float] | None
    origin: list[float] | None
    reversed: bool


def read_geometry(store: StoreView, volume: int) -> Geometry:
    """Spacing and origin of a volume.

    Sources do not say whether numbers are in the order z, y, x or x, y, z. They are read as z, y, x, unless
    only the first two spacings are equal: a plane usually has square pixels, so the order is x, y, z.
    """
    spacing, origin = (stated_geometry(store, name, volume) for name in ("spacing", "origin"))
    if spacing is not None and min(spacing) <= 0:
        spacing = None
    reversed_ = spacing is not None and spacing[0] == spacing[1] != spacing[2]
    step = -1 if reversed_ else 1
    return Geometry(spacing and spacing[::step], origin and origin[::step], reversed_)


def stated_geometry(store: StoreView, name: str, volume: int) -> list[float] | None:
    """``spacing``, ``origin`` or ``direction`` of a volume in the order of the source; None if unknown."""
    path = f"{VOLUMES}/{name}"
    if not store.has(path):
        return None
    values: list[float] = Column(store, path).take(np.array([volume]))[0].tolist()
    return values if np.isfinite(values).all() else None
