"""CT volumes as OME-NGFF 0.5 images: one Zarr v3 group for each, voxels in ``0``, labels in ``labels``.

https://ngff.openmicroscopy.org/0.5/
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from unistore.converters.common.exported import File, converted
from unistore.converters.ct.export import volumes
from unistore.errors import InputError, Problem
from unistore.schemas.ct.fields import LABELS, MASKS, SDF, VOLUMES, WINDOWS
from unistore.schemas.ct.geometry import FRAME, IDENTITY, read_geometry
from unistore.schemas.indices import StoreView

_AXES = ("z", "y", "x")
_UNKNOWN_SPACING = "volumes whose spacing is unknown have a scale of 1 and axes without unit"
_ROTATED = "origins of volumes are left out where the direction is not the identity: they are no translations"
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
    """Return multiscale metadata with one level, the geometry of the store, and notes on what is left out.

    The specification requires a scale; it is 1 where the spacing is unknown.
    """
    geometry = read_geometry(store, volume)
    about: dict[str, Any] = {"frame": FRAME, **asdict(geometry)}
    axes = [{"name": axis, "type": "space"} for axis in _AXES]
    transformations = [{"type": "scale", "scale": geometry.spacing or [1.0] * 3}]
    notes = []
    if geometry.spacing is None:
        notes.append(_UNKNOWN_SPACING)
    else:
        axes = [axis | {"unit": "millimeter"} for axis in axes]
    if geometry.origin is not None and geometry.direction != IDENTITY:
        notes.append(_ROTATED)
    elif geometry.origin is not None and geometry.spacing is not None:
        transformations.append({"type": "translation", "translation": geometry.origin})
    level = {"path": "0", "coordinateTransformations": transformations}
    return {"name": name, "axes": axes, "datasets": [level]}, about, notes
