"""What the volumes of a store have in common, their contradictions, and the tables that headers tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unistore.converters.common.columns import promote
from unistore.converters.ct.locations import MOST_CLASSES, locations_bytes
from unistore.converters.ct.names import is_plain
from unistore.converters.ct.options import CtOptions
from unistore.converters.ct.points import BLOCK, MEMBERS
from unistore.converters.ct.scan import ScannedVolume
from unistore.converters.ct.voxels import bit_shape, list_bytes
from unistore.converters.files.paths import natural_key, split_of
from unistore.converters.protocol import Parts, Scan, Source, Sources
from unistore.errors import InputError, Problem, printable
from unistore.schemas.ct import fields as schema
from unistore.schemas.ct.windows import Window
from unistore.schemas.tables import Field, Table

_BUFFERS = 2 << 20  # bytes in memory besides the voxels while files are read: counts, headers, allocator
CLASSES = (schema.MASKS, schema.LABELS)

Volumes = Sequence[ScannedVolume]


class Agreement(NamedTuple):
    """What all volumes of one store have in common. Dtypes are native names that hold every value exactly."""

    image: str  # empty if no volume has an image
    shape: tuple[int, int, int]  # largest extent on each axis
    windows: Mapping[str, Window]  # those of the options, then those of files
    values: Mapping[str, str]  # dtype of the values of each window's points, and of each ``sdf/<name>``
    scaled: Mapping[str, str]  # the same of windows that files have as floats, if these are scaled to 0…1
    classes: Mapping[str, str]  # dtype of ``labels/<name>`` and ``masks/<name>``; floats may be 0 and 1
    class_names: Mapping[str, str]  # what the label map, or dataset.json, calls the values of labels


def gather(parts: Parts, volumes: Volumes, options: CtOptions) -> Scan:
    """Make the scan of all volumes, or raise an `InputError` with every contradiction between them."""
    names = list(parts.names)
    agreement = _agree(volumes, names, options)
    if options.labels is not None:
        labels = chain.from_iterable(volume.detail.named(schema.LABELS).values() for volume in volumes)
        options.labels.check_used([Path(label.path) for label in labels])
    windows = [
        {"name": window.name, "width": float(window.width), "level": float(window.level)}
        for window in agreement.windows.values()
    ]
    decisions: dict[str, Any] = {"windows": windows, "values": agreement.values}
    start = f"{schema.LABELS}/"
    of_labels = {
        name.removeprefix(start): kind for name, kind in agreement.classes.items() if name.startswith(start)
    }
    further = {"scaled": agreement.scaled, "classes": agreement.class_names, "labels": of_labels}
    decisions |= {key: decision for key, decision in further.items() if decision}
    most = options.foreground_locations
    is_series = any(volume.detail.series for volume in volumes)
    named = list(zip(volumes, names, strict=True))
    return Scan(
        family=schema.FAMILY_NAME,
        sources=Sources(_source(volume, name, most) for volume, name in named),
        tables=tuple(_tables(volumes, agreement, options.tile)),
        sample_table=schema.VOLUMES,
        main_table=schema.VOLUMES,
        options={**options.recorded(), "found": decisions},
        notes=tuple(_notes(volumes, agreement, options.sparse)),
        possible=tuple(_possible_tables(volumes, agreement, options)),
        needs_facts=True,
        units=[volume.detail.patient or name for volume, name in named] if is_series else (),
        numbered=is_series,
        unnamed=is_series and not options.keep_names,
        shared={"agreement": agreement},
    )


def _agree(volumes: Volumes, names: Sequence[str], options: CtOptions) -> Agreement:
    problems = [
        *_check_images(volumes, names),
        *_check_windows(volumes, names, options.windows),
        *_check_classes(volumes, names),
    ]
    brought = dict(chain.from_iterable(volume.windows.items() for volume in volumes))
    windows = {window.name: window for window in options.windows}
    windows |= {name: brought[name] for name in _sorted(brought) if name not in windows}

    def dtypes_of(role: str) -> dict[str, str]:
        """Return the first volume that has an array of each dtype."""
        dtypes: dict[str, str] = {}
        for volume, name in zip(volumes, names, strict=True):
            array = volume.detail.array(role)
            if array is not None:
                dtypes.setdefault(array.dtype, name)
        return dtypes

    def promoted(dtypes: Mapping[str, str], what: str) -> str:
        """Return the smallest dtype that holds every value of all `dtypes`, or a problem if there is none."""
        dtype = promote(list(map(np.dtype, dtypes)))
        if dtype is None:
            shown_dtypes = ", ".join([f"{np.dtype(dtype)} ({name})" for dtype, name in dtypes.items()])
            message = f"no dtype holds the values of all of them exactly: {shown_dtypes}"
            problems.append(Problem(what, message, "convert them apart, or save them in one dtype", "dtype"))
        return "" if dtype is None else dtype.name

    images = dtypes_of("image")
    image = promoted(images, "volumes") if images else ""
    values: dict[str, str] = {}
    scaled: dict[str, str] = {}
    for name in windows:
        files = dtypes_of(f"windows/{name}")
        points = dtypes_of(f"sparse/{name}")
        if image:
            values[name] = image
            continue
        problems += _check_alone(name, brought, has_values=bool(points), sparse=options.sparse)
        if files:
            points["|u1"] = next(iter(files.values()))
        values[name] = promoted(points, f"window {name!r}")
        floats = {dtype: volume for dtype, volume in files.items() if np.dtype(dtype).kind == "f"}
        if floats:
            scaled[name] = promoted(points | floats, f"window {name!r}")
    for role in _roles(volumes, (schema.SDF,)):
        values[role] = promoted(dtypes_of(role), role)
    classes = {}
    for role in _roles(volumes, CLASSES):
        dtypes = dtypes_of(role).items()
        whole = {"|b1" if np.dtype(dtype).kind == "f" else dtype: name for dtype, name in dtypes}
        classes[role] = promoted(whole, role)
    if problems:
        raise InputError(problems)
    extents = [volume.detail.extent for volume in volumes if volume.detail.extent]
    depth, height, width = np.array(extents or [(0, 0, 0)]).max(axis=0).tolist()
    class_names = dict(chain.from_iterable(volume.classes.items() for volume in volumes))
    class_names = dict(sorted(class_names.items(), key=lambda item: int(item[0])))
    return Agreement(image, (depth, height, width), windows, values, scaled, classes, class_names)


def _check_images(volumes: Volumes, names: Sequence[str]) -> Iterator[Problem]:
    without = [name for volume, name in zip(volumes, names, strict=True) if volume.image is None]
    if len(without) < len(volumes):
        message = f"has no volume of intensities, unlike {len(volumes) - len(without)} others"
        cure = "add ct_original.npy, leave it out, or convert windows alone apart"
        yield from [Problem(name, message, cure, "missing", name) for name in without]


def _check_windows(volumes: Volumes, names: Sequence[str], windows: Sequence[Window]) -> Iterator[Problem]:
    """Yield a problem for each window of another width or level than the first of its name."""
    first_use = {window.name: (window, "--window") for window in windows}
    for volume, where in zip(volumes, names, strict=True):
        for name, window in volume.windows.items():
            first, origin = first_use.setdefault(name, (window, where))
            if (first.width, first.level) != (window.width, window.level):
                message = f"window {window} of its files differs from {first} of {origin}"
                yield Problem(where, message, f"--window {window}, or rename one of them", "window")


def _check_classes(volumes: Volumes, names: Sequence[str]) -> Iterator[Problem]:
    """Yield a problem for datasets that number other things alike."""
    first: dict[str, tuple[str, str]] = {}
    refused: set[str] = set()
    for volume, where in zip(volumes, names, strict=True):
        for value, name in volume.classes.items():
            first_name, owner = first.setdefault(value, (name, where))
            if first_name != name and volume.dataset and volume.dataset not in refused:
                refused.add(volume.dataset)
                message = f"calls {value} of its labels {name!r}, which is {first_name!r} of {owner}"
                cure = "give both one numbering by --label-map, or convert these datasets apart"
                yield Problem(volume.dataset, message, cure, "label")


def _check_alone(
    name: str, brought: Mapping[str, Window], *, has_values: bool, sparse: str
) -> Iterator[Problem]:
    """Yield a problem of a window that cannot be stored where there are no intensities."""
    where = f"window {name!r}"
    if name not in brought:
        message = "is in no file, and there are no intensities to compute it from"
        yield Problem(where, message, "add ct_original.npy, or leave out --window", "missing")
    elif has_values and sparse == "mask":
        yield lost_values(name)


def lost_values(window: str) -> Problem:
    """Return the problem of points with values that would be stored as a mask."""
    message = "has values of its own, which a mask would lose"
    return Problem(f"window {window!r}", message, "--sparse auto or coords", "option")


def _sorted(names: Iterable[str]) -> list[str]:
    return sorted(set(names), key=natural_key)


def _roles(volumes: Volumes, kinds: Sequence[str]) -> list[str]:
    """Return the roles of some kinds that any volume has, by kind and in natural order."""
    arrays = chain.from_iterable(volume.detail.arrays for volume in volumes)
    roles = {array.role for array in arrays}
    return list(
        chain.from_iterable(_sorted(role for role in roles if role.startswith(f"{kind}/")) for kind in kinds)
    )


def _notes(volumes: Volumes, agreement: Agreement, sparse: str) -> Iterator[str]:
    """Yield remarks of one line each: how files were interpreted, and what volumes lack."""
    if agreement.windows:
        form = "points or bits, whichever is smaller" if sparse == "auto" else sparse
        yield f"windows {', '.join(map(str, agreement.windows.values()))}: stored as {form}"
    for role in _roles(volumes, (schema.WINDOWS, *CLASSES, schema.SDF)):
        having = [volume for volume in volumes if volume.detail.array(role) is not None]
        label = having[0].detail.array(role)
        if label is not None and role.startswith(schema.LABELS) and agreement.image:
            paired = f"{printable(Path(label.path).name)} with {printable(having[0].path.name)}"
            hint = "; as plain arrays: convert rows" if is_plain(having[0].path) else ""
            yield f"{role}: {len(having)} volumes, paired by names: {paired}{hint}"
        if len(having) < len(volumes) and not (agreement.image and role.startswith(schema.WINDOWS)):
            yield f"{role}: {len(volumes) - len(having)} of {len(volumes)} volumes have none"
    remarks = Counter(chain.from_iterable(volume.notes for volume in volumes))
    yield from [f"{count} files: {remark}" for remark, count in remarks.items()]


def _source(volume: ScannedVolume, name: str, locations: int | None) -> Source:
    """Return the source of one volume. `locations` are those of each class at most."""
    arrays = volume.detail.arrays
    dense = [array for array in arrays if array.role.partition("/")[0] not in MEMBERS]
    slab = max([array.slab_bytes for array in dense], default=0)
    held = _BUFFERS + (len(volume.windows) + 4) * slab + sum(array.memory for array in dense)
    if any(array.fortran_order for array in dense):
        held += 2 * max(array.band_bytes for array in dense)
    points = {array.role: array.shape[0] for array in arrays if array not in dense}
    fields = {role: count for role, count in points.items() if role.startswith(schema.SDF)}
    sparse = [count for role, count in points.items() if role not in fields]
    held += 40 * max(sparse, default=0)  # these may have to be sorted
    held += 64 * min(max(fields.values(), default=0), BLOCK)
    if locations is not None and volume.detail.extent is not None:
        held += locations_bytes(prod(volume.detail.extent), locations)
    return Source(
        path=volume.path,
        name=name,
        files=tuple(map(Path, volume.files)),
        rows={schema.VOLUMES: 1, schema.MASKS: 1, **fields},
        split=split_of(name),
        detail=volume.detail,
        memory=held,
        reading=held + max(map(list_bytes, dense), default=0),
    )


def _tables(volumes: Volumes, agreement: Agreement, tile: tuple[int, int, int]) -> Iterator[Table]:
    """Yield tables with rows known from headers: volumes, masks (unless they hold classes), fields."""
    main: Field = schema.EXTENT
    if agreement.image:
        main = schema.image_field(agreement.image, agreement.shape, tile)
    yield Table(name=schema.VOLUMES, fields=(main,))
    masks = [schema.mask_field(role, agreement.shape, tile) for role in _roles(volumes, (schema.MASKS,))]
    if masks:
        yield Table(name=schema.MASKS, fields=tuple(masks))
    for role in _roles(volumes, (schema.SDF,)):
        arrays = [volume.detail.array(role) for volume in volumes]
        having = [array for array in arrays if array is not None]
        run = int(np.median([array.shape[0] for array in having]))
        edges = [
            array.resolution or max(volume.detail.extent or (1 << 31,))
            for volume, array in zip(volumes, arrays, strict=True)
            if array is not None
        ]
        edge = max(*agreement.shape, *edges)
        description = "signed distance at each point, as in the source"
        yield schema.points_table(role, edge, agreement.values[role], run, description)


def _possible_tables(
    volumes: Volumes, agreement: Agreement, options: CtOptions
) -> Iterator[tuple[Table, int]]:
    """Yield tables of windows, labels and locations among which `finalize` chooses, with their most rows."""
    extents = [volume.detail.extent for volume in volumes if volume.detail.extent]
    edge = max(agreement.shape)
    voxels = sum(map(prod, extents))
    bits = sum(map(prod, map(bit_shape, extents)))
    labels = [
        schema.label_field(role, dtype, agreement.shape, options.tile)
        for role, dtype in agreement.classes.items()
        if role.startswith(schema.LABELS)
    ]
    if labels:
        yield Table(name=schema.LABELS, fields=tuple(labels)), len(volumes)
    masks = []
    for name in agreement.windows:
        group = f"{schema.WINDOWS}/{name}"
        sparse = [volume.detail.array(f"sparse/{name}") for volume in volumes]
        count = sum(array.shape[0] for array in sparse if array is not None)
        dtype = agreement.scaled.get(name, agreement.values[name])
        table = schema.points_table(group, edge, dtype, 1, "")
        if options.sparse != "mask" or count:
            most = bits // sum(field.row_bytes for field in table.fields)  # more would be stored as bits
            has_bits = options.sparse == "auto" and not count and name not in agreement.scaled
            yield table, most if has_bits else voxels + count
        masks.append(schema.mask_field(group, agreement.shape, options.tile))
    if masks and options.sparse != "coords":
        yield Table(name=schema.WINDOWS, fields=tuple(masks)), len(volumes)
    if options.foreground_locations is not None:
        most = min(voxels, options.foreground_locations * MOST_CLASSES * len(volumes))
        for group in [*(f"{schema.WINDOWS}/{name}" for name in agreement.windows), *agreement.classes]:
            yield schema.location_table(group, edge), most
