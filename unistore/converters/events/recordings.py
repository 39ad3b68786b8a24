"""What becomes of the files of recordings: their columns, checked, in microseconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from unistore.converters.events.options import (
    BOXES,
    COLUMNS,
    HEIGHT,
    LOW,
    OFFSET,
    OWN,
    SCHEMA,
    WIDTH,
    EventsOptions,
    Unit,
)
from unistore.converters.formats.event_text import ORDERS, fits
from unistore.converters.formats.frame_times import FRAMES
from unistore.converters.formats.lazy import LazyRows
from unistore.errors import AddOptions, Fix, Fixes
from unistore.plugin import (
    Array,
    Chosen,
    Claim,
    Column,
    Cut,
    FileSummary,
    Group,
    Grouping,
    InputError,
    Metadata,
    OpenFile,
    Problem,
    Restored,
    SourceFile,
    no,
    sure,
)
from unistore.schemas.events.fields import MARK_ROWS
from unistore.system.types import AnyArray, Dtype, Int64s

# Names that files give to each column.
_ALIASES: Mapping[str, tuple[str, ...]] = {
    "t": ("t", "ts", "time", "timestamp", "timestamps"),
    "x": ("x", "xs"),
    "y": ("y", "ys"),
    "p": ("p", "ps", "pol", "polarity", "polarities", "on"),
}
# Groups or arrays of records that are looked at: of DSEC, Prophesee and `.npy`, and the file itself.
_PLACES = ("events", "CD/events", "data", "")
_SENSOR_FIX = "give width and height, for example --sensor 640 480"
_POLARITY_FIX = "write all polarities as 0 and 1, or all as -1 and 1"
_MOST_PIXELS = 1 << 16  # of a side, whose numbers 16 bits hold
_INDEX = "ms_to_idx"
_MAP = "rectify_map.h5"
_MAPPED = "events.h5"
_TIMES_NAME = "timestamps.txt"
_BOXES_NAME = "tracks.npy"
# Recordings that frames and boxes belong to, from their own folder or one of the two above.
_RECORDINGS = ("events/left/events.h5", "events.h5")
_BOX_FIELDS = {"t", "x", "y", "w", "h"}
_ECF = 0x8ECF
_ECF_FIX = "export it again: metavision_file_to_dat -i FILE"
_BLOCK = 1 << 16  # polarities that are looked at together to tell -1 and 1 from 0 and 1
# Microseconds are whole numbers of a unit, times and divided by these.
_MICROSECONDS = {"auto": (1, 1), "us": (1, 1), "ms": (1_000, 1), "s": (1_000_000, 1), "ns": (1, 1_000)}


class EventPlace(NamedTuple):
    """Where a column is: an array, a field of its records or its column if it has some, the dtype as text."""

    array: str
    field: str
    dtype: str

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"{self.array}/{self.field}" if self.field else self.array

    def of(self, rows: AnyArray) -> AnyArray:
        """Return the column of rows of the array."""
        if not self.field:
            return rows
        return rows[self.field] if rows.dtype.names else rows[:, int(self.field)]


Layout = Mapping[str, EventPlace]  # place of each column


def claim(file: SourceFile) -> Claim | None:
    """Open only those frames and boxes that lie beside a recording."""
    is_beside = file.path.name in (_TIMES_NAME, _BOXES_NAME)
    return no(f"has no {_MAPPED} next to it") if is_beside and _recording_of(file) is None else None


def match(options: EventsOptions, head: FileSummary) -> Claim:
    """Take files with columns of times, places and polarities, and the maps of DSEC beside them."""
    if _is_map(head.file) or head.file.path.name in (_TIMES_NAME, _BOXES_NAME):
        return sure(f"has {_MAPPED} next to it")
    layout = find_layout(head.opened, options)
    if not layout:
        return no(f"does not contain t, x, y and p in {options.events or 'events'}")
    return sure(f"contains {', '.join([place.label for place in layout.values()])}")


def group(files: Sequence[SourceFile]) -> Grouping:
    """Take every recording, with the frames and boxes that DSEC has beside it. Leave out its maps."""
    beside: dict[Path | None, list[SourceFile]] = {}
    recordings = []
    grouping = Grouping()
    for file in files:
        if _is_map(file):
            grouping.left_out.append((file, "maps pixels and contains no events"))
        elif file.path.suffix.lower() == ".bin" and not _may_be_events(file):
            grouping.left_out.append((file, "does not consist of events of five bytes"))
        elif file.path.name in (_TIMES_NAME, _BOXES_NAME):
            beside.setdefault(_recording_of(file), []).append(file)
        else:
            recordings.append(file)
    for file in recordings:
        further = beside.pop(file.path, [])
        grouping.sources.append(Group(file.name, (file, *further)) if further else file)
    for file in chain.from_iterable(beside.values()):
        grouping.left_out.append((file, "has no recording of events next to it"))
    return grouping


def choose(options: EventsOptions, head: FileSummary) -> Chosen:
    """Check what is known without the values: the size of the sensor, units, filters."""
    opened = head.opened
    layout = find_layout(opened, options)
    problems = list(_filter_problems(head, layout))
    sensor = _sensor(options, opened)
    if sensor is None:
        message = "does not state the size of the sensor"
        problems.append(Problem(opened.name, message, _SENSOR_FIX, "missing"))
    elif options.sensor is not None and options.sensor != sensor:
        given = " × ".join(map(str, options.sensor))
        message = f"states a sensor of {sensor[0]} × {sensor[1]} pixels, but --sensor gives {given}"
        problems.append(Problem(opened.name, message, "convert it without --sensor", "option"))
    elif max(sensor) > _MOST_PIXELS:
        message = (
            f"has a sensor of {sensor[0]:,} × {sensor[1]:,} pixels, but at most {_MOST_PIXELS:,} per side fit"
        )
        problems.append(Problem(opened.name, message, _SENSOR_FIX, "range"))
    time_dtype = np.dtype(layout["t"].dtype)
    if time_dtype.kind == "f" and options.unit == "auto":
        units = tuple([AddOptions(("--unit", unit)) for unit in ("s", "us", "ms", "ns")])
        message = f"is {time_dtype}, and the file does not state whether times are seconds or microseconds"
        problems.append(Problem(opened.name, message, units, "unit", dataset=layout["t"].label))
    if problems or sensor is None:
        raise InputError(problems)
    columns = {}
    for name, place in layout.items():
        column = SCHEMA.columns[name]
        # Columns of one array share a dtype, and records may have whole numbers as floats
        kinds = "biuf" if place.field else column.kinds
        columns[name] = replace(column, source=place.array, field=place.field, kinds=kinds)
    # Half the bytes of int64, and any time fits that a file has so
    is_narrow = options.unit in ("auto", "us") and time_dtype.kind == "u" and time_dtype.itemsize <= 4
    columns["t"] = replace(columns["t"], dtype="uint32" if is_narrow else "int64")
    tables = _tables_beside(opened)
    array_names = {place.array for place in layout.values()}
    for table in tables.values():
        array_names |= {column.source for column in table.values()}
    unused = [name for name in opened.arrays if name not in array_names and name not in head.metadata]
    metadata = {
        WIDTH: sensor[0],
        HEIGHT: sensor[1],
        OFFSET: int(head.metadata.get("t_offset", 0)),
        COLUMNS: {name: list(place) for name, place in layout.items()},
        LOW: _low(opened, layout["p"]),
    }
    if "boxes" in tables:
        source = tables["boxes"]["t"].source
        metadata[BOXES] = [source, opened.arrays[source].dtype.descr]
    left_out = dict.fromkeys(unused, "because it is not a column of the events")
    return Chosen(columns, left_out, metadata=metadata, tables=tables)


def cut(options: EventsOptions, opened: OpenFile) -> Iterator[Cut]:
    """Take each recording as a whole. Readers choose windows."""
    yield Cut(len(opened.arrays[find_layout(opened, options)["t"].array]))


def derive(options: EventsOptions, opened: OpenFile) -> Iterator[tuple[str, Mapping[str, AnyArray]]]:
    """Check that times do not fall and agree with the file's index, and mark some of them."""
    place = find_layout(opened, options)["t"]
    index = np.zeros(0, np.int64)
    if _INDEX in opened.arrays and len(opened.arrays[_INDEX].shape) == 1:
        index = opened.arrays[_INDEX][:].astype(np.int64)
    last = np.zeros(0, np.int64)
    for lo, rows in opened.arrays[place.array].blocks():
        times = _times(options, opened, place, place.of(rows), lo)
        joined = np.concatenate((last, times))
        falls = np.flatnonzero(joined[1:] < joined[:-1])
        if len(falls):
            earlier, later = joined[falls[0] : falls[0] + 2]
            row = lo + int(falls[0]) + 1 - len(last)
            message = f"the time falls from {earlier} to {later}"
            fix = "sort the events by time", "split the recording there"
            raise InputError(_problem_at(opened, place, row, message, fix, "order"))
        _check_index(opened, place, index, times, lo, options.unit)
        yield "marks", {"t": times[-lo % MARK_ROWS :: MARK_ROWS]}
        last = times[-1:]
    yield "marks", {"t": last}


def rows(options: EventsOptions, opened: OpenFile, lo: int, hi: int) -> Mapping[str, AnyArray]:
    """Read events, with places inside the sensor and polarities of 0 and 1."""
    layout = find_layout(opened, options)
    # Each array is read once: some have all columns as fields of records
    names = {place.array for place in layout.values()}
    stored = {name: opened.arrays[name][lo:hi] for name in names}
    t, x, y, p = (layout[name].of(stored[layout[name].array]) for name in "txyp")
    low = _low(opened, layout["p"])
    width, height = _sensor(options, opened) or (0, 0)
    problems = []
    for name, values, is_wrong, expected, fix in (
        ("x", x, (x < 0) | (x >= width) | (x % 1 != 0), f"the sensor has {width} columns", _SENSOR_FIX),
        ("y", y, (y < 0) | (y >= height) | (y % 1 != 0), f"the sensor has {height} rows", _SENSOR_FIX),
        ("p", p, (p != 1) & (p != low), f"polarities here are {low} and 1", _POLARITY_FIX),
    ):
        if is_wrong.any():
            row = int(np.argmax(is_wrong))
            message = f"is {values[row]}, but {expected}"
            problems.append(_problem_at(opened, layout[name], lo + row, message, fix, "range"))
    if problems:
        raise InputError(problems)
    return {
        "t": _times(options, opened, layout["t"], t, lo),
        "x": x.astype(np.uint16),
        "y": y.astype(np.uint16),
        "p": (p > 0).astype(np.uint8),
    }


def restore(options: EventsOptions, columns: Mapping[str, Array], metadata: Metadata) -> Restored:
    """Return the arrays of a file in its unit, its dtypes and its polarities."""
    arrays = {}
    records: dict[str, dict[str, Array]] = {}
    tables: dict[str, dict[str, Array]] = {}
    for name, described in metadata[COLUMNS].items():
        place = EventPlace(*described)
        array = _original(options, name, columns[name], np.dtype(place.dtype), metadata[LOW])
        if place.field.isdigit():
            tables.setdefault(place.array, {})[place.field] = array
        elif place.field:
            records.setdefault(place.array, {})[place.field] = array
        else:
            arrays[place.array] = array
    if BOXES in metadata:
        source, descr = metadata[BOXES]
        records[source] = {name: columns[f"boxes/{name}"] for name, _ in descr}
    arrays |= {name: _records_of(fields) for name, fields in records.items()}
    arrays |= {name: _table_of(columns_of) for name, columns_of in tables.items()}
    arrays |= {name: array for name, array in columns.items() if name.startswith(f"{FRAMES}/")}
    of_file = {name: value for name, value in metadata.items() if not name.startswith(OWN)}
    return Restored(arrays, of_file)


def _original(options: EventsOptions, name: str, column: Array, dtype: Dtype, low: int) -> Array:
    """Return a column as a file had it."""

    def read(lo: int, hi: int) -> AnyArray:
        stored = column[lo:hi]
        if name == "t":
            return from_microseconds(stored, options.unit, dtype)
        if name == "p" and low < 0:
            stored = np.where(stored > 0, 1, low)
        return stored.astype(dtype)

    return Array(LazyRows(column.shape, dtype, read))


def _sensor(options: EventsOptions, opened: OpenFile) -> tuple[int, int] | None:
    """Return width and height, of the file if it says them."""
    width = opened.metadata.get("width")
    height = opened.metadata.get("height")
    if isinstance(width, int) and isinstance(height, int):
        return width, height
    return options.sensor


def _times(options: EventsOptions, opened: OpenFile, place: EventPlace, stored: AnyArray, lo: int) -> Int64s:
    """Return times in microseconds. Those that are none to the last bit are a problem."""
    with np.errstate(invalid="ignore"):
        times = to_microseconds(stored, options.unit)
    if stored.dtype.kind == "u" and (times < 0).any():
        row = int(np.argmax(times < 0))
        message = f"is {stored[row]}, which is more microseconds than int64 holds"
        fix = "store times from the beginning of the recording", "correct --unit"
        raise InputError(_problem_at(opened, place, lo + row, message, fix, "range"))
    differing = from_microseconds(times, options.unit, stored.dtype) != stored
    if differing.any():
        row = int(np.argmax(differing))
        message = f"is {stored[row]}, which is not a whole number of microseconds"
        fix = "store whole microseconds", "correct --unit"
        raise InputError(_problem_at(opened, place, lo + row, message, fix, "unit"))
    return times


def find_layout(opened: OpenFile, options: EventsOptions) -> Layout:
    """Return where the columns are, in one group or array if it is named, empty if they are nowhere."""
    for place in (options.events,) if options.events else _PLACES:
        if layout := _table_at(opened, place, options):
            return layout
        above, _, name = place.rpartition("/")
        is_array = bool(name) and opened.members(above).get(name) == "array"
        names: Sequence[str] = ()
        # Also of arrays that cannot be read, whose problems are told once the file is taken
        if is_array and place in opened.all_arrays:
            names = opened.all_arrays[place].dtype.names or ()
        else:
            names = [key for key, kind in opened.members(place).items() if kind == "array"]
        present = {
            column: [name for name in names if name in aliases] for column, aliases in _ALIASES.items()
        }
        if any(len(of_column) != 1 for of_column in present.values()):
            continue
        layout = {}
        for column, (name,) in present.items():
            array = place if is_array else "/".join(filter(None, (place, name)))
            field = name if is_array else ""
            dtype = opened.all_arrays[array].dtype
            layout[column] = EventPlace(array, field, (dtype[field] if field else dtype).str)
        return layout
    return {}


def _table_at(opened: OpenFile, place: str, options: EventsOptions) -> Layout:
    """Return the columns of an array (N, 4) of events. Empty: the file has no such array."""
    # A cloud may have four columns, too: only such an array that is called events, or named by the user
    is_events = bool(options.events) or place.endswith("events") or "event" in Path(opened.name).name.lower()
    above, _, name = place.rpartition("/")
    if not is_events or not name or opened.members(above).get(name) != "array":
        return {}
    array = opened.arrays[place]
    if len(array.shape) != 2 or array.shape[1] != 4 or array.dtype.kind not in "iuf" or not len(array):
        return {}
    beginning = array[0 : min(len(array), _BLOCK)]
    orders = [one for one in ORDERS if fits(beginning, one)] if options.order == "auto" else [options.order]
    if len(orders) != 1:
        message = f"has four columns, and no order of t, x, y and p fits: tried {', '.join(ORDERS)}"
        if orders:
            message = f"has four columns, and several orders of t, x, y and p fit: {' and '.join(orders)}"
        fixes = tuple([AddOptions(("--order", one)) for one in orders or ORDERS])
        raise InputError(Problem(opened.name, message, fixes, "order", dataset=place))
    return {column: EventPlace(place, str(orders[0].index(column)), array.dtype.str) for column in "txyp"}


def _table_of(columns: Mapping[str, Array]) -> Array:
    """Return columns, by their numbers, as one array (N, columns)."""
    first = next(iter(columns.values()))
    form = (len(first), len(columns))

    def read(lo: int, hi: int) -> AnyArray:
        rows = np.empty((hi - lo, len(columns)), first.dtype)
        for number, array in columns.items():
            rows[:, int(number)] = array[lo:hi]
        return rows

    return Array(LazyRows(form, first.dtype, read))


def _records_of(fields: Mapping[str, Array]) -> Array:
    """Return records of columns."""
    dtype = np.dtype([(name, array.dtype) for name, array in fields.items()])

    def read(lo: int, hi: int) -> AnyArray:
        records = np.empty(hi - lo, dtype)
        for name, array in fields.items():
            records[name] = array[lo:hi]
        return records

    return Array(LazyRows(next(iter(fields.values())).shape, dtype, read))


def to_microseconds(times: AnyArray, unit: Unit) -> Int64s:
    """Return times as whole microseconds, the nearest ones."""
    factor, divisor = _MICROSECONDS[unit]
    if times.dtype.kind == "f":
        return np.rint(times.astype(np.float64) * factor / divisor).astype(np.int64)
    return (times // divisor).astype(np.int64) * factor


def from_microseconds(times: Int64s, unit: Unit, dtype: Dtype) -> AnyArray:
    """Return times in a file's unit and dtype."""
    factor, divisor = _MICROSECONDS[unit]
    units = times / factor if dtype.kind == "f" else times // factor
    return (units * divisor).astype(dtype)


def _check_index(
    opened: OpenFile, place: EventPlace, index: Int64s, times: Int64s, lo: int, unit: str
) -> None:
    """Refuse times of which the index of milliseconds tells another unit."""
    numbers = np.flatnonzero((index > lo) & (index < lo + len(times)))
    rows = index[numbers] - lo
    # writers disagree on whether the first millisecond has the number 0 or 1
    is_early = times[rows] < 1000 * (numbers - 1)
    is_late = times[rows - 1] >= 1000 * (numbers + 2)
    is_wrong = is_early | is_late
    if is_wrong.any():
        first = int(np.argmax(is_wrong))
        message = f"is {times[rows[first]]} us, but {_INDEX} places it in millisecond {numbers[first]}"
        fix = _units_by_index(times[rows[first]], numbers[first], unit)
        raise InputError(_problem_at(opened, place, lo + int(rows[first]), message, fix, "unit"))


def _units_by_index(time: int, millisecond: int, unit: str) -> tuple[Fix, ...]:
    """Return the unit in which a time in microseconds, as `unit` gives it, is of a millisecond."""
    units = ("s", "ms", "us", "ns")
    ratio = time / (1000 * max(1, millisecond))
    finer = units.index("us" if unit == "auto" else unit) + round(np.log10(max(ratio, 1e-12)) / 3)
    again = "write the index again"
    if units[min(max(finer, 0), 3)] == unit or not 0 <= finer < len(units):
        return (again,)
    return AddOptions(("--unit", units[finer])), again


def _tables_beside(opened: OpenFile) -> Mapping[str, Mapping[str, Column]]:
    """Return the tables of frames and boxes of a recording, which have times on the clock of t + t_offset."""
    tables: dict[str, dict[str, Column]] = {}
    image = opened.arrays.get(f"{FRAMES}/image")
    if image is not None and f"{FRAMES}/t" in opened.arrays:
        axes = ("y", "x", "channel")[: len(image.shape) - 1]
        description = "Time of the frame, on the clock of t + t_offset"
        tables[FRAMES] = {
            "t": Column(kinds="iu", unit="us", description=description, source=f"{FRAMES}/t"),
            "image": Column(kinds="u", axes=axes, description="Frame", source=f"{FRAMES}/image"),
        }
    for name, array in opened.arrays.items():
        fields = array.dtype.names or ()
        if set(fields) >= _BOX_FIELDS:
            times = array[:]["t"].astype(np.int64)
            falls = np.flatnonzero(np.diff(times) < 0)
            if len(falls):
                row = int(falls[0]) + 1
                message = f"the time of a box falls from {times[row - 1]} to {times[row]}"
                fix = f"sort {_BOXES_NAME} by t", "skip it with --exclude"
                raise InputError(Problem(opened.name, message, fix, "order", dataset=name, row=row))
            description = "Of a box; t is on the clock of t + t_offset"
            tables["boxes"] = {
                field: Column(description=description, source=name, field=field) for field in fields
            }
    return tables


def _recording_of(file: SourceFile) -> Path | None:
    """Return the recording of DSEC that frames or boxes lie beside."""
    for folder in file.path.parents[:3]:
        for name in _RECORDINGS:
            if file.near is not None and file.near.has(str(folder / name)):
                return folder / name
    return None


def _may_be_events(file: SourceFile) -> bool:
    """Return whether a file without a header holds events, or the user named it."""
    from unistore.converters.formats.atis import AtisBin

    try:
        return file.is_given or AtisBin().recognise(file).certainty != "no"
    except OSError:  # whoever opens it names it
        return True


def _is_map(file: SourceFile) -> bool:
    """Return whether a file is the map of pixels that DSEC has beside its events."""
    is_near = file.near is not None and file.near.has(str(file.path.with_name(_MAPPED)))
    return file.path.name == _MAP and is_near


def _problem_at(
    opened: OpenFile, place: EventPlace, row: int, message: str, fix: Fixes, kind: str
) -> Problem:
    return Problem(opened.name, message, fix, kind, dataset=place.label, row=row)


def _low(opened: OpenFile, place: EventPlace) -> int:
    """Return what the file has for pixels that became darker: 0, or -1 if the first one has that."""
    if np.dtype(place.dtype).kind not in "if":
        return 0
    array = opened.arrays[place.array]
    for lo in range(0, len(array), _BLOCK):
        polarities = place.of(array[lo : lo + _BLOCK])
        darker = polarities[polarities != 1]
        if len(darker):
            return -1 if darker[0] < 0 else 0
    return 0


def _filter_problems(head: FileSummary, layout: Layout) -> Iterator[Problem]:
    """Yield a problem for events in the compression that only Prophesee's own library undoes."""
    if head.format != "hdf5":
        return
    for name in {place.array for place in layout.values()}:
        filters = head.opened.arrays[name].values.id.get_create_plist()
        numbers = [filters.get_filter(position)[0] for position in range(filters.get_nfilters())]
        if _ECF in numbers:
            message = "is compressed with Prophesee's ECF (filter 0x8ECF), which is not supported"
            yield Problem(head.file.name, message, _ECF_FIX, "filter", dataset=name)
