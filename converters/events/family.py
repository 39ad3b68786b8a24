"""Recordings of event cameras: what becomes of their files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from unistore.converters.events.layout import (
    Layout,
    Place,
    find_layout,
    original_arrays,
    read_columns,
    time_blocks,
)
from unistore.converters.events.options import EventsOptions, Unit
from unistore.converters.events.units import from_microseconds, to_microseconds
from unistore.converters.formats.aedat import Aedat4
from unistore.converters.formats.prophesee import Dat, Evt
from unistore.converters.plugin import (
    Array,
    Chosen,
    Claim,
    Column,
    Cut,
    Facts,
    Family,
    Format,
    Group,
    Head,
    InputError,
    Opened,
    Problem,
    Restored,
    Schema,
    SourceFile,
    no,
    sure,
)
from unistore.converters.seam.record import ConverterOf
from unistore.converters.seam.specs import specs_of
from unistore.schemas.events.fields import FAMILY_NAME, MARK_ROWS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_OWN = "recording/"
"""Begins the names of facts that are the family's, not the file's."""
_WIDTH, _HEIGHT, _OFFSET, _COLUMNS, _LOW = (
    f"{_OWN}{name}" for name in ("width", "height", "t_offset", "columns", "low")
)
_SENSOR_CURE = "give it, as in --sensor 640 480 (width, then height)"
_INDEX = "ms_to_idx"
_MAP = "rectify_map.h5"
_MAPPED = "events.h5"
_ECF = 0x8ECF
_ECF_CURE = "export it again: metavision_file_to_dat -i FILE"
# Chosen by the time to decode 50,000 events, which a trial by size would miss: coordinates 31 instead of 40
# microseconds, and smaller; polarities 1 instead of 50, for 0.9 bytes an event.
_BITS = "lz4 bitshuffle 2"
_BLOCK = 1 << 16
"""Polarities that are looked at together to tell -1 and 1 from 0 and 1."""


@dataclass(frozen=True, kw_only=True)
class Events(EventsOptions, Family):
    """Recordings of event cameras; see `EventsOptions`."""

    name: ClassVar[str] = FAMILY_NAME
    summary: ClassVar[str] = "Recordings of event cameras: HDF5, .dat, .raw, .aedat4, .npy, .npz."
    formats: ClassVar[tuple[type[Format] | str, ...]] = ("hdf5", "npy", "npz", Dat, Evt, Aedat4)
    any_format: ClassVar[bool] = True
    schema: ClassVar[Schema] = Schema(
        table="events",
        columns={
            "t": Column(kinds="iuf", unit="us", description="Time", dtype="int64"),
            "x": Column(
                kinds="iu", unit="px", description="Column of the pixel", dtype="uint16", codec=_BITS
            ),
            "y": Column(kinds="iu", unit="px", description="Row of the pixel", dtype="uint16", codec=_BITS),
            "p": Column(
                kinds="biuf", description="1: became brighter, 0: darker", dtype="uint8", codec="none"
            ),
        },
        samples="recordings",
        per_source={
            "width": Column(kinds="i", unit="px", description="Columns of the sensor", source=_WIDTH),
            "height": Column(kinds="i", unit="px", description="Rows of the sensor", source=_HEIGHT),
            "t_offset": Column(kinds="i", unit="us", description="Added to t: the clock", source=_OFFSET),
        },
        tables={
            "marks": {
                "t": Column(
                    kinds="i",
                    unit="us",
                    description=f"Time of every {MARK_ROWS}th event of a recording, and of its last",
                    dtype="int64",
                )
            }
        },
    )

    def match(self, head: Head) -> Claim:
        """Take files with columns of times, places and polarities, and the maps of DSEC beside them."""
        if _is_map(head.file):
            return sure(f"lies beside {_MAPPED}")
        layout = find_layout(head.opened, self.events)
        if layout is None:
            return no(f"holds no t, x, y and p in {self.events or 'events'}")
        return sure(f"holds {', '.join(map(_label, layout.values()))}")

    def group(
        self, files: Sequence[SourceFile]
    ) -> Iterable[SourceFile | Group | tuple[SourceFile, str] | Problem | str]:
        """Take every file but the maps that DSEC has beside its events."""
        for file in files:
            if _is_map(file):
                yield file, "maps pixels, and holds no events"
            else:
                yield file

    def choose(self, head: Head) -> Chosen:
        """Check what is known without the values: the size of the sensor, units, filters."""
        layout = _layout(head.opened, self.events)
        problems = [*self._sensor_problems(head.opened), *self._time_problems(head.opened, layout)]
        problems += _filter_problems(head, layout)
        if problems:
            raise InputError(problems)
        columns = {}
        for name, place in layout.items():
            columns[name] = replace(self.schema.columns[name], source=place.array, field=place.field)
        columns["t"] = replace(columns["t"], dtype=self._time_dtype(head.opened, layout["t"]))
        taken = {place.array for place in layout.values()}
        others = [name for name in head.opened.arrays if name not in taken and name not in head.facts]
        left_out = dict.fromkeys(others, "is no column of the events")
        width, height = self._sensor(head.opened)
        facts = {
            _WIDTH: width,
            _HEIGHT: height,
            _OFFSET: _offset(head.facts),
            _COLUMNS: {name: _described(head.opened, place) for name, place in layout.items()},
            _LOW: _low(head.opened, layout),
        }
        return Chosen(columns, left_out, facts=facts)

    def cut(self, opened: Opened) -> Iterator[Cut]:
        """Take each recording as a whole; readers choose windows."""
        layout = _layout(opened, self.events)
        yield Cut(len(opened.arrays[layout["t"].array]))

    def typical_rows(self, head: Head) -> int:
        """Return the events of a window of 33 ms at a million a second."""
        return 1 << 15

    def derive(self, opened: Opened) -> Iterator[tuple[str, Mapping[str, NDArray[Any]]]]:
        """Check that times do not fall, and mark some of them."""
        layout = _layout(opened, self.events)
        check = _TimeCheck(opened, layout["t"])
        last = np.zeros(0, np.int64)
        for lo, stored in time_blocks(opened, layout):
            times = self._times(opened, layout["t"], stored, lo)
            check.check(times, lo)
            yield "marks", {"t": times[-lo % MARK_ROWS :: MARK_ROWS]}
            last = times[-1:]
        yield "marks", {"t": last}

    def rows(self, opened: Opened, lo: int, hi: int) -> Mapping[str, NDArray[Any]]:
        """Read events, with places inside the sensor and polarities of 0 and 1."""
        layout = _layout(opened, self.events)
        found = read_columns(opened, layout, lo, hi)
        low = _low(opened, layout)
        width, height = self._sensor(opened)
        problems = [
            *_place_problems(opened, layout["x"], found["x"], width, "columns", lo),
            *_place_problems(opened, layout["y"], found["y"], height, "rows", lo),
            *_polarity_problems(opened, layout["p"], found["p"], low, lo),
        ]
        if problems:
            raise InputError(problems)
        return {
            "t": self._times(opened, layout["t"], found["t"], lo),
            "x": found["x"].astype(np.uint16),
            "y": found["y"].astype(np.uint16),
            "p": (found["p"] > 0).astype(np.uint8),
        }

    def restore(self, columns: Mapping[str, Array], facts: Facts) -> Restored:
        """Return the arrays of a file in its unit, its dtypes and its polarities."""
        layout = {}
        arrays = {}
        for name, (array, field, code) in facts[_COLUMNS].items():
            layout[name] = Place(array, field)
            unit = self.unit if name == "t" else None
            low = facts[_LOW] if name == "p" else 0
            arrays[name] = Array(_Original(columns[name], np.dtype(code), unit, low))
        of_file = {name: value for name, value in facts.items() if not name.startswith(_OWN)}
        return Restored(original_arrays(arrays, layout), of_file)

    def draw(self, sample: Mapping[str, NDArray[Any]], axes: Axes) -> None:
        """Draw the first events as an image: red where pixels became brighter, blue where darker."""
        height = int(sample["y"].max(initial=0)) + 1
        width = int(sample["x"].max(initial=0)) + 1
        pixels = sample["y"].astype(np.int64) * width + sample["x"]
        signs = 2.0 * sample["p"] - 1
        image = np.bincount(pixels, signs, height * width).reshape(height, width)
        axes.imshow(image, cmap="coolwarm", vmin=-2, vmax=2)
        duration = int(np.ptp(sample["t"])) if len(sample["t"]) else 0
        axes.set_title(f"{len(sample['t']):,} events in {duration / 1000:g} ms")

    def _sensor(self, opened: Opened) -> tuple[int, int]:
        """Return width and height, of the file if it says them."""
        width, height = opened.facts.get("width"), opened.facts.get("height")
        if isinstance(width, int) and isinstance(height, int):
            return width, height
        assert self.sensor is not None
        return self.sensor

    def _sensor_problems(self, opened: Opened) -> Iterator[Problem]:
        of_file = opened.facts.get("width"), opened.facts.get("height")
        is_known = all(isinstance(extent, int) for extent in of_file)
        if not is_known and self.sensor is None:
            message = "does not say the size of the sensor"
            yield Problem(opened.name, message, _SENSOR_CURE, "missing")
        if is_known and self.sensor is not None and of_file != self.sensor:
            message = f"says that the sensor has {of_file[0]} × {of_file[1]} pixels, --sensor another size"
            yield Problem(opened.name, message, "convert it without --sensor", "option")

    def _time_dtype(self, opened: Opened, place: Place) -> str:
        """Return uint32 for times that a file has as such: half the bytes of int64, and any of them fits."""
        dtype = _dtype(opened, place)
        is_narrow = self.unit in ("auto", "us") and dtype.kind == "u" and dtype.itemsize <= 4
        return "uint32" if is_narrow else "int64"

    def _time_problems(self, opened: Opened, layout: Layout) -> Iterator[Problem]:
        dtype = _dtype(opened, layout["t"])
        if dtype.kind == "f" and self.unit == "auto":
            cure = "say which: --unit s, --unit ms, --unit us or --unit ns"
            message = f"is {dtype}: nothing says whether these are seconds, or microseconds"
            yield Problem(opened.name, message, cure, "unit", dataset=_label(layout["t"]))

    def _times(self, opened: Opened, place: Place, stored: NDArray[Any], lo: int) -> NDArray[np.int64]:
        """Return times in microseconds; those that are none to the last bit are a problem."""
        with np.errstate(invalid="ignore"):
            times = to_microseconds(stored, self.unit)
        differing = from_microseconds(times, self.unit, stored.dtype) != stored
        if differing.any():
            row = int(np.argmax(differing))
            message = f"is {stored[row]}, which is no whole number of microseconds"
            cure = "store whole microseconds, or say the unit of the times with --unit"
            raise InputError(_problem_at(opened.name, place, lo + row, message, cure, "unit"))
        return times


class _TimeCheck:
    """Checks the times of a recording, block by block: they do not fall, and its index agrees."""

    def __init__(self, opened: Opened, place: Place) -> None:
        self._file = opened.name
        self._place = place
        self._last: int | None = None
        self._index = np.zeros(0, np.int64)
        if _INDEX in opened.arrays and len(opened.arrays[_INDEX].shape) == 1:
            self._index = opened.arrays[_INDEX][0 : len(opened.arrays[_INDEX])].astype(np.int64)

    def check(self, times: NDArray[np.int64], lo: int) -> None:
        """Refuse a block that falls or contradicts the index."""
        before = times[0] if self._last is None else self._last
        steps = np.diff(times, prepend=before)
        if (steps < 0).any():
            row = int(np.argmax(steps < 0))
            earlier = times[row - 1] if row else before
            message = f"falls from {earlier} to {times[row]}"
            cure = "sort the events by time, or cut the recording there"
            raise InputError(_problem_at(self._file, self._place, lo + row, message, cure, "order"))
        self._check_index(times, lo)
        self._last = int(times[-1])

    def _check_index(self, times: NDArray[np.int64], lo: int) -> None:
        """Refuse times of which the index of milliseconds tells another unit."""
        numbers = np.flatnonzero((self._index > lo) & (self._index < lo + len(times)))
        rows = self._index[numbers] - lo
        # writers disagree on whether the first millisecond has the number 0 or 1
        is_early = times[rows] < 1000 * (numbers - 1)
        is_late = times[rows - 1] >= 1000 * (numbers + 2)
        if (is_early | is_late).any():
            first = int(np.argmax(is_early | is_late))
            message = f"is {times[rows[first]]}, and {_INDEX} says millisecond {numbers[first]}"
            cure = "say the unit of the times with --unit, or write the index again"
            row = lo + int(rows[first])
            raise InputError(_problem_at(self._file, self._place, row, message, cure, "unit"))


class _Original:
    """A column as a file had it."""

    def __init__(self, column: Array, dtype: np.dtype[Any], unit: Unit | None, low: int) -> None:
        self._column = column
        self._unit = unit
        self._low = low
        self.dtype = dtype
        self.shape = column.shape

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        stored = self._column[rows]
        if self._unit is not None:
            return from_microseconds(stored, self._unit, self.dtype)
        if self._low < 0:
            return np.where(stored > 0, 1, self._low).astype(self.dtype)
        return stored.astype(self.dtype)


def _is_map(file: SourceFile) -> bool:
    """Whether a file is the map of pixels that DSEC has beside its events."""
    is_near = file.near is not None and file.near.has(str(file.path.with_name(_MAPPED)))
    return file.path.name == _MAP and is_near


def _layout(opened: Opened, group: str) -> Layout:
    layout = find_layout(opened, group)
    assert layout is not None
    return layout


def _label(place: Place) -> str:
    return f"{place.array}/{place.field}" if place.field else place.array


def _problem_at(file: str, place: Place, row: int, message: str, cure: str, kind: str) -> Problem:
    return Problem(file, message, cure, kind, dataset=_label(place), row=row)


def _dtype(opened: Opened, place: Place) -> np.dtype[Any]:
    dtype = opened.arrays[place.array].dtype
    return dtype[place.field] if place.field else dtype


def _described(opened: Opened, place: Place) -> list[str]:
    """Return array, field and dtype of a column."""
    return [place.array, place.field, _dtype(opened, place).str]


def _offset(facts: Facts) -> int:
    offset = facts.get("t_offset", 0)
    return int(offset)


def _low(opened: Opened, layout: Layout) -> int:
    """Return what the file has for pixels that became darker: 0, or -1 if the first one has that."""
    place = layout["p"]
    if _dtype(opened, place).kind not in "if":
        return 0
    for lo in range(0, len(opened.arrays[place.array]), _BLOCK):
        polarities = read_columns(opened, {"p": place}, lo, lo + _BLOCK)["p"]
        others = polarities[polarities != 1]
        if len(others):
            return -1 if others[0] < 0 else 0
    return 0


def _place_problems(
    opened: Opened, place: Place, values: NDArray[Any], extent: int, what: str, lo: int
) -> Iterator[Problem]:
    is_outside = (values < 0) | (values >= extent)
    if is_outside.any():
        row = int(np.argmax(is_outside))
        message = f"is {values[row]}, the sensor has {extent} {what}"
        yield _problem_at(opened.name, place, lo + row, message, _SENSOR_CURE, "range")


def _polarity_problems(
    opened: Opened, place: Place, values: NDArray[Any], low: int, lo: int
) -> Iterator[Problem]:
    is_unknown = (values != 1) & (values != low)
    if is_unknown.any():
        row = int(np.argmax(is_unknown))
        message = f"is {values[row]}, expected {low} or 1"
        cure = "write polarities as 0 and 1, or all as -1 and 1"
        yield _problem_at(opened.name, place, lo + row, message, cure, "range")


def _filter_problems(head: Head, layout: Layout) -> Iterator[Problem]:
    """Yield a problem for events in the compression that only Prophesee's own library undoes."""
    if head.format != "hdf5":
        return
    for name in {place.array for place in layout.values()}:
        filters = head.opened.arrays[name].values.id.get_create_plist()
        numbers = [filters.get_filter(position)[0] for position in range(filters.get_nfilters())]
        if _ECF in numbers:
            message = "is compressed by Prophesee's ECF (filter 0x8ECF), which is not read"
            yield Problem(head.file.name, message, _ECF_CURE, "filter", dataset=name)


converter = ConverterOf(Events)
SPECS = specs_of(Events.schema)
