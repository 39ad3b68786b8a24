"""From all volumes to sources and tables: what the volumes must agree on, and what they may lack."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from unistore.converters.common.columns import promote
from unistore.converters.ct.headers import Volume
from unistore.converters.ct.layouts.npz import BLOCK
from unistore.converters.ct.slabs import band_bytes, slab_bytes
from unistore.converters.ct.survey import most_shares
from unistore.converters.ct.voxels import bit_shape, list_bytes
from unistore.converters.files.paths import natural_key
from unistore.converters.protocol import Source
from unistore.errors import InputError, Problem
from unistore.schemas.ct import fields as schema
from unistore.schemas.ct.windows import Window
from unistore.schemas.tables import Field, Table

__all__ = ["Agreement", "agree", "make_source", "make_tables", "points_table", "possible_tables"]

_BUFFERS = 2 << 20
"""Bytes held besides the voxels while files are read: counts, headers, what the allocator keeps."""
_SPLITS = ("train", "training", "val", "valid", "validation", "test", "testing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """What holds for all volumes of one store.

    Attributes
    ----------
    image
        Native dtype name that holds every image exactly; None where no volume has one.
    shape
        Largest extent on each axis.
    windows
        Windows of the store: those asked for, then those that files brought.
    values
        dtype name of the values of each window's points, and of each ``sdf/<name>``.
    """

    image: str | None
    shape: tuple[int, int, int]
    windows: tuple[Window, ...]
    values: Mapping[str, str]


def agree(volumes: Sequence[Volume], asked: Sequence[Window], sparse: str, names: Sequence[str]) -> Agreement:
    """Bring all volumes to one form.

    Parameters
    ----------
    volumes
        Their headers.
    asked
        Windows of the options.
    sparse
        ``"auto"``, ``"coords"`` or ``"mask"``.
    names
        How messages name each volume.

    Raises
    ------
    InputError
        With everything that they do not agree on.
    """
    problems = [*_check_images(volumes, names), *_check_names(volumes, asked, names)]
    found = {name: window for volume in volumes for name, window in volume.named.items()}
    windows = {
        window.name: window for window in (*asked, *(found[n] for n in sorted(found, key=natural_key)))
    }
    dtypes = list(dict.fromkeys(volume.image.dtype for volume in volumes if volume.image))
    listed = [f"{dtype} ({_first(volumes, names, dtype)})" for dtype in dtypes]
    image = _promoted(dtypes, listed, "volumes", problems) if dtypes else None
    values: dict[str, str] = {}
    for name in windows:
        points = [v.sparse[name] for v in volumes if name in v.sparse and name not in v.windows]
        kinds = [np.dtype(np.uint8) for v in volumes if name in v.windows]
        kinds += [np.dtype(each.dtype) for each in points]
        if dtypes:
            values[name] = image or ""
            continue
        problems += _check_window(name, found, sparse if points else "auto")
        values[name] = _promoted(kinds, map(str, kinds), f"window {name!r}", problems) or ""
    sdf = _sorted(name for volume in volumes for name in volume.sdf)
    for name in sdf:
        kinds = [np.dtype(volume.sdf[name].dtype) for volume in volumes if name in volume.sdf]
        values[f"{schema.SDF}/{name}"] = _promoted(kinds, map(str, kinds), f"sdf {name!r}", problems) or ""
    if problems:
        raise InputError(problems)
    extents = [volume.extent for volume in volumes if volume.extent is not None]
    shape = np.array(extents or [(0, 0, 0)]).max(axis=0).tolist()
    return Agreement(
        image=image,
        shape=(shape[0], shape[1], shape[2]),
        windows=tuple(windows.values()),
        values=values,
    )


def _promoted(
    dtypes: Sequence[np.dtype[Any]], listed: Iterable[str], what: str, problems: list[Problem]
) -> str | None:
    """Name of the smallest dtype that holds every value of all `dtypes`; a Problem if there is none."""
    dtype = promote(dtypes)
    if dtype is not None:
        return dtype.name
    message = f"no dtype holds the values of all of them exactly: {', '.join(dict.fromkeys(listed))}"
    problems.append(Problem(what, message, "convert them apart, or save them in one dtype", "dtype"))
    return None


def _first(volumes: Sequence[Volume], names: Sequence[str], dtype: np.dtype[Any]) -> str:
    return next(n for v, n in zip(volumes, names, strict=True) if v.image and v.image.dtype == dtype)


def _check_images(volumes: Sequence[Volume], names: Sequence[str]) -> list[Problem]:
    without = [name for volume, name in zip(volumes, names, strict=True) if volume.image is None]
    if not without or len(without) == len(volumes):
        return []
    message = f"has no volume of intensities, unlike {len(volumes) - len(without)} others"
    cure = "add ct_original.npy, leave it out, or convert windows alone apart"
    return [Problem(name, message, cure, "missing", name) for name in without]


def _check_names(volumes: Sequence[Volume], asked: Sequence[Window], names: Sequence[str]) -> list[Problem]:
    """A window's name must mean one width and level everywhere."""
    meant: dict[str, tuple[Window, str]] = {window.name: (window, "--window") for window in asked}
    problems = []
    for volume, where in zip(volumes, names, strict=True):
        for name, window in volume.named.items():
            first, place = meant.setdefault(name, (window, where))
            if not first.same_range(window):
                message = f"window {window} of its files differs from {first} of {place}"
                cure = f"--window {window}, or rename one of them"
                problems.append(Problem(where, message, cure, "window"))
    return problems


def _check_window(name: str, found: Mapping[str, Window], sparse: str) -> list[Problem]:
    """Whether a window can be had although there are no intensities to compute it from."""
    where = f"window {name!r}"
    if name not in found:
        message = "is in no file, and there are no intensities to compute it from"
        return [Problem(where, message, "add ct_original.npy, or do not ask for it", "missing")]
    if sparse == "mask":
        message = "comes from .npz points with values of their own, which a mask would lose"
        return [Problem(where, message, "--sparse auto or coords", "option")]
    return []


def make_source(volume: Volume, name: str, roots: Sequence[Path], agreement: Agreement) -> Source:
    """Source of one volume, with all that reading it needs to know again.

    ``detail`` holds places in ``files`` instead of paths: ``image``, ``windows`` (name → file), ``sparse``,
    ``masks`` and ``sdf`` likewise; ``extent``; ``dtype`` of the image as in its file; ``geometry``, and
    what states it (``described``); ``info``.
    """
    files: list[Path] = []

    def at(path: Path) -> int:
        files.append(path)
        return len(files) - 1

    wanted = {window.name for window in agreement.windows}
    image = volume.image
    sparse = {} if image else {n: p for n, p in volume.sparse.items() if n not in volume.windows}
    detail: dict[str, Any] = {
        "image": at(image.path) if image else None,
        "dtype": image.dtype.str if image else None,
        "extent": list(volume.extent) if volume.extent else None,
        "windows": {n: at(window.path) for n, window in volume.windows.items() if n in wanted},
        "sparse": {n: at(points.path) for n, points in sparse.items()},
        "masks": {n: at(mask.path) for n, mask in volume.masks.items()},
        "sdf": {n: at(points.path) for n, points in volume.sdf.items()},
        "resolution": {n: points.resolution for n, points in (*sparse.items(), *volume.sdf.items())},
        "geometry": volume.geometry,
        "described": volume.described,
        "info": volume.info,
    }
    if volume.files.info is not None:
        at(volume.files.info)
    rows = {schema.VOLUMES: 1, schema.MASKS: 1}
    rows |= {f"{schema.SDF}/{n}": points.count for n, points in volume.sdf.items()}
    held, lists = _held(volume)
    listed = 40 * max((points.count for points in sparse.values()), default=0)  # these may have to be sorted
    listed += 64 * max((min(points.count, BLOCK) for points in volume.sdf.values()), default=0)
    return Source(
        path=volume.files.path,
        name=name,
        files=tuple(files),
        rows=rows,
        split=_split_of(volume.files.path, roots),
        detail=detail,
        memory=held + listed,
        reading=held + lists + listed,
    )


def _held(volume: Volume) -> tuple[int, int]:
    """Bytes held while a volume is read: slabs of its files, or bands where an order differs; its points."""
    dense = [*volume.windows.values(), *volume.masks.values(), *([volume.image] if volume.image else [])]
    slab = max(map(slab_bytes, dense), default=0)
    bands = any(each.fortran_order for each in dense)
    band = max(map(band_bytes, dense)) if bands else 0
    shares = most_shares(dense)
    held = _BUFFERS + shares * (len(volume.windows) + 4) * slab + 2 * band
    held += shares * sum(each.memory for each in dense)
    return held, max(map(list_bytes, dense), default=0)


def _split_of(path: Path, roots: Sequence[Path]) -> str | None:
    """Name of the innermost folder called train, val, test or the like, inside what was given."""
    for root in (root.resolve() for root in roots):
        if root.is_dir() and path.is_relative_to(root):
            for part in reversed((root.name, *path.relative_to(root).parts[:-1])):
                if part.lower() in _SPLITS:
                    return part
    return None


def make_tables(
    volumes: Sequence[Volume], agreement: Agreement, tile: tuple[int, int, int]
) -> tuple[Table, ...]:
    """Tables whose rows are known from headers: volumes, masks, distance fields."""
    fields: tuple[Field, ...] = (schema.extent_field(),)
    if agreement.image is not None:
        fields = (schema.image_field(agreement.image, agreement.shape, tile),)
    tables = [Table(name=schema.VOLUMES, fields=fields)]
    masks = _sorted(name for volume in volumes for name in volume.masks)
    if masks:
        columns = [
            schema.mask_field(
                f"{schema.MASKS}/{name}", agreement.shape, tile, f"mask {name!r} of the sources, as bits"
            )
            for name in masks
        ]
        tables.append(Table(name=schema.MASKS, fields=tuple(columns)))
    for name in _sorted(name for volume in volumes for name in volume.sdf):
        group = f"{schema.SDF}/{name}"
        present = [volume.sdf[name] for volume in volumes if name in volume.sdf]
        run = int(np.median([points.count for points in present]))
        longest = max(*agreement.shape, *(points.resolution for points in present))
        known = all(volume.extent or volume.sdf[name].resolution for volume in volumes if name in volume.sdf)
        description = "signed distance at each point, as in the source"
        edge = longest if known else 1 << 31
        tables.append(points_table(group, edge, agreement.values[group], run, description))
    return tuple(tables)


def points_table(group: str, edge: int, dtype: str, run: int, description: str) -> Table:
    """Table of points in a box of at most `edge` voxels an axis, with a value each."""
    return Table(
        name=group,
        fields=(schema.coords_field(group, edge, run), schema.values_field(group, dtype, run, description)),
    )


def possible_tables(
    volumes: Sequence[Volume], agreement: Agreement, tile: tuple[int, int, int], sparse: str
) -> tuple[tuple[Table, int], ...]:
    """Tables of the windows, which are points or masks once they are counted, with their most rows."""
    names = [window.name for window in agreement.windows]
    found: list[tuple[Table, int]] = []
    for name in names:
        listed = sum(volume.sparse[name].count for volume in volumes if name in volume.sparse)
        points = sum(prod(volume.extent) for volume in volumes if volume.extent is not None)
        group = f"{schema.WINDOWS}/{name}"
        table = points_table(group, max(agreement.shape), agreement.values[name], 1, "")
        if sparse == "auto" and not listed:  # masks are smaller where there are more
            bits = sum(prod(bit_shape(volume.extent)) for volume in volumes if volume.extent is not None)
            points = bits // sum(field.row_bytes for field in table.fields)
        if sparse != "mask" or listed:
            found.append((table, points + listed))
    if names and sparse != "coords":
        masks = [schema.mask_field(f"{schema.WINDOWS}/{name}", agreement.shape, tile, "") for name in names]
        found.append((Table(name=schema.WINDOWS, fields=tuple(masks)), len(volumes)))
    return tuple(found)


def _sorted(names: Iterable[str]) -> list[str]:
    return sorted(set(names), key=natural_key)
