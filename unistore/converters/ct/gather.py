"""What the volumes of a store have in common, the tables that headers tell, and index arrays from counts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.columns import promote, promotion_note
from unistore.converters.ct.names import is_plain, without_suffix
from unistore.converters.ct.options import CtOptions
from unistore.converters.ct.scan import Detail, ScannedVolume
from unistore.converters.ct.slabs import BLOCK
from unistore.converters.ct.voxels import MOST_CLASSES, bit_shape, list_bytes
from unistore.converters.files.paths import natural_key, relative_names, split_of
from unistore.converters.protocol import Facts, Finalized, Parts, Scan, Source, Sources
from unistore.errors import AddOptions, InputError, Problem, printable
from unistore.schemas.ct import fields as schema
from unistore.schemas.ct.geometry import LENGTHS, geometry_attribute, geometry_field
from unistore.schemas.ct.windows import OWN_VALUES, VALUE_SENTENCES, ValueSource, Window
from unistore.schemas.tables import SOURCE_FILES, Field, Table, offsets_of, text_arrays
from unistore.system.hints import AnyArray, Int64s, JsonObject

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
    decisions: JsonObject = {"windows": windows, "values": agreement.values}
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
        # The first volume that has an array of each dtype
        dtypes: dict[str, str] = {}
        for volume, name in zip(volumes, names, strict=True):
            array = volume.detail.array(role)
            if array is not None:
                dtypes.setdefault(array.dtype, name)
        return dtypes

    def promoted(dtypes: Mapping[str, str], what: str) -> str:
        # The smallest dtype that holds every value of all `dtypes`, or a problem if there is none
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
        fix = "add ct_original.npy, leave it out, or convert windows alone apart"
        yield from [Problem(name, message, fix, "missing", name) for name in without]


def _check_windows(volumes: Volumes, names: Sequence[str], windows: Sequence[Window]) -> Iterator[Problem]:
    # Yield a problem for each window of another width or level than the first of its name
    first_use = {window.name: (window, "--window") for window in windows}
    for volume, where in zip(volumes, names, strict=True):
        for name, window in volume.windows.items():
            first, origin = first_use.setdefault(name, (window, where))
            if first != window:
                message = f"window {window} of its files differs from {first} of {origin}"
                yield Problem(where, message, f"--window {window}, or rename one of them", "window")


def _check_classes(volumes: Volumes, names: Sequence[str]) -> Iterator[Problem]:
    # Yield a problem for datasets that number other things alike
    first: dict[str, tuple[str, str]] = {}
    refused: set[str] = set()
    for volume, where in zip(volumes, names, strict=True):
        for value, name in volume.classes.items():
            first_name, owner = first.setdefault(value, (name, where))
            if first_name != name and volume.dataset and volume.dataset not in refused:
                refused.add(volume.dataset)
                message = f"calls {value} of its labels {name!r}, which is {first_name!r} of {owner}"
                fix = "give both one numbering by --label-map, or convert these datasets apart"
                yield Problem(volume.dataset, message, fix, "label")


def _check_alone(
    name: str, brought: Mapping[str, Window], *, has_values: bool, sparse: str
) -> Iterator[Problem]:
    # Yield a problem of a window that cannot be stored where there are no intensities
    where = f"window {name!r}"
    if name not in brought:
        message = "is in no file, and there are no intensities to compute it from"
        yield Problem(where, message, "add ct_original.npy, or leave out --window", "missing")
    elif has_values and sparse == "mask":
        yield lost_values(name)


def lost_values(window: str) -> Problem:
    """Return the problem of points with values that would be stored as a mask."""
    message = "has values of its own, which a mask would lose"
    return Problem(
        f"window {window!r}",
        message,
        (AddOptions(("--sparse", "auto")), AddOptions(("--sparse", "coords"))),
        "option",
    )


def _sorted(names: Iterable[str]) -> list[str]:
    return sorted(set(names), key=natural_key)


def _roles(volumes: Volumes, kinds: Sequence[str]) -> list[str]:
    # The roles of some kinds that any volume has, by kind and in natural order
    arrays = list(chain.from_iterable(volume.detail.arrays for volume in volumes))
    roles: list[str] = []
    for kind in kinds:
        roles += _sorted(array.role for array in arrays if array.form == kind)
    return roles


def _promotion_notes(volumes: Volumes, agreement: Agreement) -> Iterator[str]:
    # Images, and labels and distances, whose files have several dtypes
    stored = {"image": agreement.image, **agreement.values, **agreement.classes}
    for role in ("image", *_roles(volumes, (schema.LABELS, schema.SDF))):
        arrays = [volume.detail.array(role) for volume in volumes]
        origins: dict[str, list[str]] = {}
        for array in filter(None, arrays):
            origins.setdefault(array.kind.name, []).append(array.name)
        if note := promotion_note(role, stored[role], origins):
            yield note


def _notes(volumes: Volumes, agreement: Agreement, sparse: str) -> Iterator[str]:
    # Remarks of one line each: how files were interpreted, and what volumes lack
    yield from _promotion_notes(volumes, agreement)
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
    # The source of one volume. `locations` are those of each class at most
    arrays = volume.detail.arrays
    dense = [array for array in arrays if not array.is_points]
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
        kept = 2 * locations * MOST_CLASSES
        held += 64 * min(prod(volume.detail.extent), kept) + (1 << 24)
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
    # Tables with rows known from headers: volumes, masks (unless they hold classes), fields
    main: Field = schema.EXTENT
    if agreement.image:
        main = schema.image_field(agreement.image, agreement.shape, tile)
    yield Table(name=schema.VOLUMES, fields=(main,))
    masks = [schema.mask_field(role, agreement.shape, tile) for role in _roles(volumes, (schema.MASKS,))]
    if masks:
        yield Table(name=schema.MASKS, fields=tuple(masks))
    for role in _roles(volumes, (schema.SDF,)):
        counts = []
        edges = [*agreement.shape]
        for volume in volumes:
            array = volume.detail.array(role)
            if array is not None:
                counts.append(array.shape[0])
                edges.append(array.resolution or max(volume.detail.extent or (1 << 31,)))
        description = "signed distance at each point, as in the source"
        run = int(np.median(counts))
        yield schema.points_table(role, max(edges), agreement.values[role], run, description)


def _possible_tables(
    volumes: Volumes, agreement: Agreement, options: CtOptions
) -> Iterator[tuple[Table, int]]:
    # Tables of windows, labels and locations among which `finalize` chooses, with their most rows
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


# Index arrays and tables once voxels are counted: windows as points or bits, offsets, extents, geometry.

_CLASSES = "classes/"
_NO_CLASS = np.empty(0, np.uint16)


class Finalizing:
    """Collects the arrays, tables and attributes of a store, everything that depends on counts."""

    def __init__(self, scan: Scan, facts: Sequence[Facts]) -> None:
        self._scan = scan
        self._facts = facts
        self._agreement: Agreement = scan.shared["agreement"]
        self._details: list[Detail] = list(scan.sources.details)
        self._roles = [{array.role: array for array in detail.arrays} for detail in self._details]
        self._extents = np.array([fact["extent"] for fact in facts], np.int32).reshape(-1, 3)
        self._shape = tuple(self._extents.max(axis=0).tolist())
        self._tile = tuple(scan.options["tile"])
        self._arrays: list[tuple[Field, AnyArray]] = []
        self._direct: list[Table] = []
        self._spilled: list[Table] = []
        self._rows: dict[str, tuple[int, ...]] = {}
        self._groups: dict[str, Mapping[str, Any]] = {}
        self._notes: list[str] = []

    def run(self) -> Finalized:
        """Collect everything."""
        count = len(self._details)
        self._add_volumes()
        windows = [self._add_window(name, window) for name, window in self._agreement.windows.items()]
        self._add_rows(schema.WINDOWS, [field for field in windows if field is not None])
        for family in (schema.LABELS, schema.MASKS):
            roles = [role for role in self._agreement.classes if role.startswith(f"{family}/")]
            self._add_rows(family, [self._class_field(family, role) for role in roles])
        for table in self._scan.tables:
            if table.name.startswith(f"{schema.SDF}/"):
                self._add_distances(table.name)
        self._add_locations()
        return Finalized(
            arrays=self._arrays,
            direct=tuple(self._direct),
            spilled=tuple(self._spilled),
            rows=self._rows,
            samples=count,
            sample_source=np.arange(count, dtype=np.int64),
            groups=self._groups,
            notes=tuple(self._notes),
        )

    def _add_rows(self, table: str, fields: Sequence[Field]) -> None:
        # Add a table with one row a volume
        if fields:
            self._direct.append(Table(name=table, fields=tuple(fields)))
            self._rows[table] = (1,) * len(self._details)

    def _add_window(self, name: str, window: Window) -> Field | None:
        # Add a window, and return its column if it is stored as bits
        group = f"{schema.WINDOWS}/{name}"
        counts = np.array([fact[f"points/{name}"] for fact in self._facts], np.int64)
        scaled = any(f"scaled/{name}" in fact for fact in self._facts)
        source = self._value_source(name, scaled=scaled)
        dtype = self._agreement.values[name]
        encoding: str = self._scan.options["sparse"]
        usage = f'as the volumes say; Volumes(window="{name}", scale=True) gives them'
        if source in OWN_VALUES:
            if encoding == "mask":
                raise InputError(lost_values(name))
            dtype = self._agreement.scaled.get(name, dtype)
            encoding = "coords"
            usage = "the voxels above 0 are its points, with these values"
        points = window_points(group, counts, self._extents, dtype, source)
        if encoding == "auto":
            encoding = smaller_encoding(int(counts.sum()), points, self._extents)
        self._arrays.append((schema.offsets_field(group), offsets_of(counts)))
        self._add_present(group, {"image", group, f"sparse/{name}"})
        self._groups[group] = window_attributes(window, encoding, source)
        if scaled:
            self._notes.append(f"{group}: floats scaled to 0…1: {usage}")
        if encoding == "mask":
            return schema.mask_field(group, self._shape, self._tile)
        self._direct.append(points)
        self._rows[group] = tuple(counts.tolist())
        return None

    def _value_source(self, name: str, *, scaled: bool) -> ValueSource:
        if self._agreement.image:
            return "volume"
        if any(f"sparse/{name}" in roles for roles in self._roles):
            return "sparse"
        return "scaled" if scaled else "mask"

    def _class_field(self, family: str, group: str) -> Field:
        # The column of a mask or label: bits if all voxels are 0 or 1, else integers
        about: JsonObject = {"source_dtype": _by_dtype(self._dtypes(group))}
        is_named = group == f"{schema.LABELS}/label" or "label_map" in self._scan.options
        if family == schema.LABELS and is_named and self._agreement.class_names:
            about["classes"] = self._agreement.class_names
        self._add_present(group, {group})
        if any(int(fact.get(f"others/{group}", 0)) for fact in self._facts):
            dtype = self._agreement.classes[group]
            if family == schema.MASKS:
                self._notes.append(f"{group}: holds more than 0 and 1, so classes, stored as {dtype}")
            return schema.label_field(group, dtype, self._shape, self._tile, about)
        field = schema.mask_field(group, self._shape, self._tile)
        return field if family == schema.MASKS else replace(field, attributes={**field.attributes, **about})

    def _dtypes(self, role: str) -> list[str]:
        # The dtype of an array in each source, empty where there is none
        return [roles[role].dtype if role in roles else "" for roles in self._roles]

    def _add_distances(self, group: str) -> None:
        # Add what belongs to the points of a distance field
        arrays = [roles.get(group) for roles in self._roles]
        counts = np.array([array.shape[0] if array else 0 for array in arrays], np.int64)
        resolution = np.array([array.resolution if array else 0 for array in arrays], np.int32)
        self._arrays += [
            (schema.offsets_field(group), offsets_of(counts)),
            (schema.resolution_field(group), resolution),
        ]
        self._add_present(group, {group})

    def _add_present(self, group: str, roles: set[str]) -> None:
        # Add an array ``present`` of a group, unless all volumes have one of its roles
        present = [not roles.isdisjoint(known) for known in self._roles]
        if not all(present):
            self._arrays.append((schema.present_field(group), np.array(present, np.bool_)))

    def _add_locations(self) -> None:
        for name in sorted({name for name in chain.from_iterable(self._facts) if name.startswith(_CLASSES)}):
            group = name.removeprefix(_CLASSES)
            numbers = [fact.get(name, _NO_CLASS) for fact in self._facts]
            classes = np.unique(np.concatenate(numbers))
            if max(map(len, numbers)) > MOST_CLASSES:
                note = (
                    f"{group}: more than {MOST_CLASSES} classes in a volume, so instances: no locations of it"
                )
                self._notes.append(note)
            elif len(classes):
                lengths = np.zeros((len(numbers), len(classes)), np.int64)
                for row, present, fact in zip(lengths, numbers, self._facts, strict=True):
                    row[np.searchsorted(classes, present)] = fact.get(f"locations/{group}", 0)
                field = schema.location_offsets_field(group, classes.tolist())
                self._arrays.append((field, offsets_of(lengths.ravel())))
                self._spilled.append(schema.location_table(group, int(self._extents.max(initial=0))))

    def _add_volumes(self) -> None:
        # Add what is said of each volume
        details = self._details
        if self._agreement.image:
            self._arrays.append((schema.EXTENT, self._extents))
        self._add_text("name", self._volume_names(), "name of each volume")
        dtypes = self._dtypes("image")
        self._add_text("source_dtype", dtypes, "dtype of each source, as numpy writes it")
        nan = np.array([int(fact["nan"]) for fact in self._facts], np.int64)
        if any(np.dtype(dtype).kind == "f" for dtype in dtypes if dtype):
            self._arrays.append((schema.NAN_FIELD, nan))
        attributes: JsonObject = {}
        stated = [name for name in LENGTHS if any(name in detail.geometry for detail in details)]
        if stated:
            attributes["geometry"] = geometry_attribute(stated)
        for name in stated:
            stated_by = {detail.stated_by[name] for detail in details if name in detail.geometry}
            unknown = [float("nan")] * LENGTHS[name]
            values = np.array([detail.geometry.get(name, unknown) for detail in details], np.float64)
            self._arrays.append((geometry_field(name, sorted(stated_by)), values))
        for name, description in schema.TEXTS.items():
            self._add_text(name, [getattr(detail, name) for detail in details], description)
        description = "file of each group of a volume, as JSON"
        self._arrays += text_arrays(SOURCE_FILES, self._file_names(), axis="source", description=description)
        if nan.any():
            attributes["nan_voxels"] = int(nan.sum())
            where = f"{nan.sum():,} voxels in {np.count_nonzero(nan)} volumes"
            self._notes.append(f"{where} are NaN: kept as they are, in no window")
        if attributes:
            self._groups[schema.VOLUMES] = attributes

    def _add_text(self, name: str, strings: Sequence[str], description: str) -> None:
        if any(strings):
            path = f"{schema.VOLUMES}/{name}"
            self._arrays += text_arrays(path, strings, axis="volume", description=description)

    def _volume_names(self) -> list[str]:
        # The names of the volumes, without suffixes unless two files would have the same name
        named = [(name, without_suffix(name)) for name in self._scan.sources.names]
        files = Counter(bare for name, bare in named if bare != name)
        return [name if files[bare] > 1 else bare for name, bare in named]

    def _file_names(self) -> list[str]:
        # For each source the names of its files by group, relative to their folder, as JSON
        paths: dict[Path, None] = {}
        for source in self._scan.sources:
            paths |= dict.fromkeys((source.path, *source.files))
        names = dict(zip(map(str, paths), relative_names(list(paths)), strict=True))
        texts = []
        for source, detail in zip(self._scan.sources, self._details, strict=True):
            by_group = {_group_of(array.role): names[array.path] for array in detail.arrays}
            if detail.info_path:
                by_group[schema.INFO] = names[detail.info_path]
            if self._scan.unnamed and detail.series:
                by_group = {schema.IMAGE: source.name}
            texts.append(json.dumps(by_group, ensure_ascii=False))
        return texts


def window_points(
    group: str, counts: Int64s, extents: NDArray[np.int32], dtype: str, source: ValueSource
) -> Table:
    """Return the table of the points of a window, of which each volume has so many."""
    run = int(np.median(counts[counts > 0])) if counts.any() else 1
    description = f"value of each point: {VALUE_SENTENCES[source]}"
    return schema.points_table(group, int(extents.max(initial=0)), dtype, run, description)


def smaller_encoding(count: int, points: Table, extents: NDArray[np.int32]) -> str:
    """Return ``"coords"`` or ``"mask"``, whichever has fewer bytes before compression."""
    point_bytes = count * sum(field.row_bytes for field in points.fields)
    mask_bytes = sum(prod(bit_shape(extent)) for extent in extents.tolist())
    return "coords" if point_bytes < mask_bytes else "mask"


def window_attributes(window: Window, encoding: str, source: ValueSource) -> JsonObject:
    """Return the attributes of the group of a window."""
    return {
        "width": window.width,
        "level": window.level,
        "low": window.low,
        "high": window.high,
        "rule": "low <= value <= high",
        "encoding": encoding,
        "values": VALUE_SENTENCES[source],
        "value_source": source,
    }


def _group_of(role: str) -> str:
    # The group that an array is stored in
    kind, _, name = role.partition("/")
    if kind == "image":
        return schema.IMAGE
    return f"{schema.WINDOWS}/{name}" if kind == "sparse" else role


def _by_dtype(dtypes: Sequence[str]) -> str | dict[str, list[int]]:
    # The dtype if all sources have the same one, else indices of sources by dtype
    kinds = list(filter(None, dict.fromkeys(dtypes)))
    if len(kinds) == 1:
        return kinds[0]
    return {kind: [number for number, dtype in enumerate(dtypes) if dtype == kind] for kind in kinds}
