"""Give CT volumes back as the files of the sources, as NIfTI, or as OME-NGFF 0.5."""

# https://ngff.openmicroscopy.org/0.5/

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from unistore.converters.ct.names import GEOMETRY, POINTS, without_suffix
from unistore.converters.ct.restore import Volume, volumes
from unistore.converters.ct.slabs import MEMBERS
from unistore.converters.formats.nifti import Nifti
from unistore.errors import ConversionError, InputError
from unistore.plugin import (
    Array,
    ExportedArray,
    File,
    Form,
    IndexColumn,
    Metadata,
    RestoredArray,
    SourceFile,
    StoreView,
    array_values,
)
from unistore.schemas.ct.fields import IMAGE, INFO, LABELS, MASKS, SDF, SOURCE_FILES, WINDOWS
from unistore.schemas.ct.geometry import FRAME, IDENTITY
from unistore.system.types import AnyArray, JsonObject

_AXES = ("z", "y", "x")
_UNKNOWN_SPACING = "volumes of unknown spacing have a scale of 1 and axes without a unit"
_ROTATED = "origins are not written for volumes that are rotated, as a translation cannot express them"
_NO_DISTANCE_FIELDS = "distance fields are not written, because images cannot store sparse values"


def files(store: StoreView) -> Iterator[File]:
    """Yield every file of a CT store under its name in the sources, its geometry, and computed windows."""
    texts = store.text(SOURCE_FILES) if store.has(f"{SOURCE_FILES}/data") else None
    for volume in volumes(store):
        names = _older_names(volume) if texts is None else _names(texts[volume.number])
        names |= _computed_names(volume, names)
        geometry = volume.geometry
        if names and geometry and not names.get(IMAGE, "").lower().endswith(Nifti.suffixes):
            text = json.dumps({"frame": FRAME, "order": "zyx", **geometry})
            yield _text_file(volume, _geometry_name(volume, names), text)
        for group, name in names.items():
            file = _named_file(volume, group, name, geometry)
            # several images, such as the channels of a scan, may have one label
            yield replace(file, scope="shared") if group.startswith(f"{LABELS}/") else file


def _named_file(volume: Volume, group: str, name: str, geometry: Metadata) -> File:
    if group == INFO:
        return _text_file(volume, name, volume.info)
    if name.lower().endswith(Nifti.suffixes):
        return _nifti_file(volume, group, name, geometry)
    if name.lower().endswith(POINTS):
        return _file(volume, name, "npz", _points(volume, group))
    npy = name if name.lower().endswith(".npy") else f"{without_suffix(name)}.npy"
    return _file(volume, npy, "npy", {"": _voxels(volume, group)})


def _voxels(volume: Volume, group: str) -> ExportedArray:
    """Voxels. A name of a file of an image that is not stored contradicts the store."""
    if group == IMAGE and not volume.dtype:
        raise volume.contradiction(SOURCE_FILES, f"volume {volume.number} has no image")
    return volume.voxels(group)


def _older_names(volume: Volume) -> dict[str, str]:
    """Names for the image of a store that lacks them: that of a case folder."""
    if not volume.dtype or volume.groups(MASKS, LABELS, SDF):
        message = "an older version of unistore wrote this store, without the names of the files"
        raise InputError.at(volume.store.path, message, "export with --to nifti or --to ome-zarr", "option")
    names = {IMAGE: f"{volume.name}/ct_original.npy"}
    return names | {INFO: f"{volume.name}/info.json"} if volume.info else names


def _names(text: str) -> dict[str, str]:
    """The names of a volume's files by group, checked to be texts."""
    names = json.loads(text)
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        msg = f"{SOURCE_FILES} is {text!r}, but must give the names of files by group"
        raise ValueError(msg)
    return names


def _computed_names(volume: Volume, names: Mapping[str, str]) -> dict[str, str]:
    """Names for windows that came in no file, by group: where conversion finds them with the image."""
    image = names.get(IMAGE)
    if image is None:
        return {}
    before = f"{image.rpartition('/')[0]}/windows/"
    if image.endswith(volume.source):
        before = f"{without_suffix(image)}_"
    computed: dict[str, str] = {}
    for group in volume.groups(WINDOWS):
        if group not in names:
            window = volume.store.group(group)
            width, level = (np.format_float_positional(window[key], trim="-") for key in ("width", "level"))
            computed[group] = f"{before}{group.partition('/')[2]}_w{width}_l{level}.npy"
    return computed


def _geometry_name(volume: Volume, names: Mapping[str, str]) -> str:
    """The name of the file of a volume's geometry, from those of its files and of its source."""
    image = names.get(IMAGE, "")
    if image.endswith(volume.source):
        return f"{without_suffix(image)}.{GEOMETRY}"
    folder = PurePosixPath(next(iter(names.values()))).parent
    if folder.name in (WINDOWS, MASKS, LABELS):
        folder = folder.parent
    return (folder / GEOMETRY).as_posix()


def _file(volume: Volume, name: str, form: Form, values: Mapping[str, ExportedArray]) -> File:
    return File(name=name, form=form, source=volume.number, values=values)


def _text_file(volume: Volume, name: str, text: str) -> File:
    return _file(volume, name, "raw", {"": array_values(np.frombuffer(text.encode(), np.uint8))})


def _points(volume: Volume, group: str) -> dict[str, ExportedArray]:
    """The arrays of a file of points: of a distance field, or of a window."""
    coords, values = volume.points(group)
    if not group.startswith(f"{SDF}/"):
        small = max(volume.extent) <= np.iinfo(np.int16).max
        indices = coords.converted(np.dtype(np.int16 if small else np.int32))
        return dict(zip(MEMBERS["sparse"], (indices, values), strict=True))
    column = ExportedArray(
        (*values.shape, 1), values.dtype, lambda: (block[:, None] for block in values.blocks())
    )
    indices = coords.converted(np.dtype(np.int32))
    arrays = dict(zip(MEMBERS["sdf"], (indices, column), strict=True))
    resolution = IndexColumn(volume.store, f"{group}/resolution").take(np.array([volume.number]))[0]
    if resolution:
        arrays["resolution"] = array_values(np.array([resolution], np.int32))
    return arrays


class _Blocks(Array):
    """Values of a store that a format writes block after block."""

    def blocks(self) -> Iterator[tuple[int, AnyArray]]:
        """All rows some at a time, each time with the number of the first."""
        lo = 0
        for rows in self.values.blocks():
            yield lo, rows
            lo += len(rows)


def _nifti_file(volume: Volume, group: str, name: str, metadata: Metadata) -> File:
    """Return a NIfTI file of voxels. What NIfTI has no dtype for is widened."""
    values = _voxels(volume, group)
    wider = {"bool": "u1", "float16": "f4"}.get(values.dtype.name)
    arrays = {"image": _Blocks(values if wider is None else values.converted(np.dtype(wider)))}
    if group == IMAGE:
        metadata = {**metadata, "header": volume.header}
    write = partial(_write_nifti, name, arrays["image"], metadata)
    return File(name=name, form="format", source=volume.number, values={}, write=write)


def _write_nifti(name: str, voxels: Array, metadata: Metadata, path: Path) -> None:
    """Write a file, and open it again."""
    differ = RestoredArray("image", voxels.values).differ
    Nifti().write(path, {"image": voxels}, metadata)
    with Nifti().open(SourceFile(path, path.name, (path.parent,))) as opened:
        written = opened.arrays["image"]
        for lo, planes in voxels.blocks():
            reason = differ(planes, written[lo : lo + len(planes)], lo)
            if reason is not None:
                fix = "export again, onto another disk"
                msg = f"{name}: the written file differs from the store: {reason}. Fix: {fix}"
                raise ConversionError(msg)


def nifti_files(store: StoreView) -> Iterator[File]:
    """Yield NIfTI files of a store in the layout of TotalSegmentator, whatever the format of the sources.

    Windows are not written, because they are computed from the images again.
    """
    for volume in volumes(store):
        folder = volume.name.removesuffix("/ct")
        volume.stored(IMAGE)
        yield _nifti_file(volume, IMAGE, f"{folder}/ct.nii.gz", volume.geometry)
        for group in volume.groups(LABELS, MASKS):
            label = f"{folder}/segmentations/{group.partition('/')[2]}.nii.gz"
            yield _nifti_file(volume, group, label, volume.geometry)


def ome_files(store: StoreView) -> Iterator[File]:
    """Yield one OME-NGFF image for each volume: voxels in ``0``, windows, masks and labels in ``labels``."""
    for volume in volumes(store):
        stored = volume.stored(IMAGE)
        multiscale, notes = _multiscale(volume)
        geometry = {name: volume.geometry.get(name) for name in ("spacing", "origin", "direction")}
        about: JsonObject = {"frame": FRAME, **geometry, "source": volume.source}
        if volume.info:
            about["info"] = volume.info
        values = {"0": stored.converted(np.dtype(volume.dtype).newbyteorder("<"))}
        attributes = {"": {**_ome(multiscales=[multiscale]), "unistore": about}}
        labels: dict[str, str] = {}
        for group in volume.groups(WINDOWS, MASKS, LABELS):
            family, _, name = group.partition("/")
            labels[f"{family}.{name}" if name in labels else name] = group
        if labels:
            attributes["labels"] = _ome(labels=[*labels])
        for name, group in labels.items():
            values[f"labels/{name}/0"] = volume.stored(group)
            label: JsonObject = {"source": {"image": "../../"}}
            if group.startswith(f"{WINDOWS}/"):
                window = store.group(group)
                label["properties"] = [{"label-value": 1, **{key: window[key] for key in ("width", "level")}}]
            attributes[f"labels/{name}"] = _ome(**{"multiscales": [multiscale], "image-label": label})
        if volume.groups(SDF):
            notes.append(_NO_DISTANCE_FIELDS)
        yield File(
            name=f"{volume.name}.ome.zarr",
            form="zarr",
            source=volume.number,
            values=values,
            attributes=attributes,
            axes=_AXES,
            notes=tuple(notes),
        )


def _ome(**members: Any) -> JsonObject:
    return {"ome": {"version": "0.5", **members}}


def _multiscale(volume: Volume) -> tuple[JsonObject, list[str]]:
    """Multiscale metadata with one level, and notes on what is left out.

    The specification requires a scale: it is 1 where the spacing is unknown.
    """
    geometry = volume.geometry
    axes = [{"name": axis, "type": "space"} for axis in _AXES]
    transformations = [{"type": "scale", "scale": geometry.get("spacing", [1.0] * 3)}]
    notes = []
    if "spacing" in geometry:
        axes = [axis | {"unit": "millimeter"} for axis in axes]
    else:
        notes.append(_UNKNOWN_SPACING)
    if "origin" in geometry and geometry.get("direction") != IDENTITY:
        notes.append(_ROTATED)
    elif "origin" in geometry and "spacing" in geometry:
        transformations.append({"type": "translation", "translation": geometry["origin"]})
    level = {"path": "0", "coordinateTransformations": transformations}
    return {"name": volume.name, "axes": axes, "datasets": [level]}, notes
