"""Find which array, or which rate, tells the times of each stream that has another rate than the steps."""

# The times of `force` are in `force_timestamps`, or in `timestamps` (`timestamp`, `time`, `t`) of the same
# group, or follow from an attribute `rate` (`fps`, `hz`, `frequency`) of the array or its group. What the
# user says of rates and units comes first. Of some formats every array has its clock.

from __future__ import annotations

import glob
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from unistore.converters.trajectory.layouts import LOG_TIME, STAMP, TIMES, EpisodeRecording
from unistore.converters.trajectory.options import TrajectoryOptions
from unistore.errors import AddOptions, Fix, Fixes, GiveOptions, InputError, Problem
from unistore.plugin import Metadata, ProblemCollector, count_of
from unistore.schemas.trajectory.clocks import NANOSECONDS, in_nanoseconds
from unistore.schemas.trajectory.fields import STEPS
from unistore.system.types import AnyArray, Int64s

_SUFFIXES = ("_timestamps", "_timestamp")
# Names of arrays that are called as their group is, where it has timestamps.
_VALUES = ("value", "values", "data")
_RATES = ("rate", "fps", "hz", "frequency")
_UNITS = ("unit", "units")
_SPELLED = {"sec": "s", "second": "s", "seconds": "s", "milliseconds": "ms", "µs": "us", "microseconds": "us"}
_SPELLED |= {"nanoseconds": "ns"}
# Groups whose names say nothing of a stream.
_GENERAL = frozenset({"obs", "observation", "observations", "images", "rgb_images"})
_OF_STEPS = ("action", "reward", "terminated", "truncated")
_MOST_NANOSECONDS = 2.0**62
_MOST_DIFFERENCE = 0.1  # part of a duration by which a rate may contradict it
_MOST_APART = 0.25  # seconds by which streams may begin and end apart
_MOST_ROUNDED = 0.05  # part of floats that may repeat the one before them where others differ by the least
_MOST_REPEATED = 0.5  # of whole numbers: a count of milliseconds may be the same twice
# Nanoseconds beyond the length of a bag, from which on stamps are of another clock.
_OF_ANOTHER_CLOCK = 60_000_000_000
_SET_UNIT = "set its attribute unit to s, ms, us or ns", GiveOptions(("--time-unit",))
_OF_LOG = AddOptions(("--stamps", "log"), "to read the times at which messages were logged")


class Stream(NamedTuple):
    """What tells the times of the rows of a clock."""

    timestamps: str = ""  # path of their array in the episode; empty: the rate tells them
    unit: str = ""  # of the timestamps
    rate: float = 0.0  # rows a second, where no timestamps are
    is_assumed: bool = False  # whether nothing says the unit


@dataclass(slots=True)
class EpisodeClocks:
    """The streams of an episode."""

    # Name of the clock of each array that is on another one than the steps.
    of: dict[str, str] = field(default_factory=dict)
    # What tells the times, by the name of the clock; those of the steps under `STEPS`, if anything does.
    streams: dict[str, Stream] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)  # rows of each clock but `STEPS`


class Timing:
    """Finds the clocks of the arrays of a recording, `columns` by their paths."""

    def __init__(
        self, recording: EpisodeRecording, columns: Mapping[str, str], options: TrajectoryOptions
    ) -> None:
        self._recording = recording
        self._arrays, self._columns, self._options = recording.arrays, columns, options
        self._is_told = bool(recording.times)
        times = {path: recording.times.get(path) or self._times_of(path) for path in columns}
        self._times = {path: own for path, own in times.items() if own in columns}
        self._rate_of_times = {
            own: rate for path, own in self._times.items() if (rate := self._told_rate(path))
        }
        # Path of an array with a row for each step; empty: none is.
        self.steps = next((path for path, column in columns.items() if column == "action"), "")
        self.notes: list[str] = []
        if self._is_told and columns and not self.steps:
            # The topic whose messages are the steps is the first camera, else the first.
            cameras = [path for path in columns if path.endswith("/image")]
            self.steps = min(cameras or columns)
            topic = self.steps.rpartition("/")[0]
            fix = "--map action=TOPIC/FIELD chooses another topic"
            self.notes.append(f"{recording.location()}: steps are the messages of {topic}; {fix}")

    def has_time(self, path: str) -> bool:
        """Return whether an array may be a stream of its own: something tells its times."""
        return path in self._times or self._rate_of(path)[1] > 0

    def clocks(self, steps: int) -> EpisodeClocks:
        """Find the clocks of arrays other than the `steps` rows of the steps themselves."""
        clocks = EpisodeClocks()
        of_steps = self._times_of_steps(steps)
        for path, column in self._columns.items():
            if column in _OF_STEPS or column.startswith("next_observation/"):
                continue
            times = self._times.get(path, "")
            rows = self._arrays[path].shape[:1]
            if times and times != of_steps:
                topic = times.rpartition("/")[0].replace("/", "_")
                name = topic if self._is_told else _name_of(times)
                stream = self._stream(times, name)
            elif not times and rows not in ((), (steps,)):
                owner, rate = self._rate_of(path)
                if not rate:
                    continue
                name = _name_of(owner)
                stream = Stream(rate=rate)
            else:
                continue
            clocks.of[path] = name
            clocks.streams[name] = stream
            clocks.lengths[name] = rows[0]
        if of_steps and (clocks.of or self._is_told):
            clocks.streams[STEPS] = self._stream(of_steps, STEPS)
        elif clocks.of or self._is_told:
            own = self._rate_of(self.steps)[1] if self.steps else 0.0
            rate = own or self._options.rates.get(STEPS, 0.0) or _rate_in(self._recording.metadata())
            if rate:
                clocks.streams[STEPS] = Stream(rate=rate)
        return clocks

    def _times_of(self, path: str) -> str:
        """Return the path of the timestamps of an array. Empty: it has none. Timestamps have their own."""
        group = path.rpartition("/")[0]
        beside = [f"{group}/{name}".lstrip("/") for name in TIMES]
        named = [f"{path}{suffix}" for suffix in _SUFFIXES]
        if path in beside or path.endswith(_SUFFIXES):
            named = [path]
        return next((other for other in (*named, *beside) if self._are_times(other, path)), "")

    def _are_times(self, times: str, path: str) -> bool:
        """Return whether an array has one number for each row of another."""
        if times not in self._columns:
            return False
        array = self._arrays[times]
        is_row_of_numbers = len(array.shape) == 1 and array.dtype.kind in "iuf"
        return is_row_of_numbers and array.shape == self._arrays[path].shape[:1] and not array.problems()

    def _times_of_steps(self, steps: int) -> str:
        """Return the path of the timestamps of the steps: those of the action, or of the whole episode."""
        general = [path for path in self._times if self._times[path] == path and not _stream_parts(path)]
        candidates = [self._times.get(self.steps, ""), *general]
        return next((path for path in candidates if path and self._arrays[path].shape == (steps,)), "")

    def _told_rate(self, path: str) -> float:
        """Return the rate that the user gives for an array, its column, clock or group. 0: none."""
        rates = self._options.rates
        group = path.rpartition("/")[0]
        names = [path, self._columns[path], _name_of(path)]
        if _stream_parts(f"{group}/t"):
            names.append(group)
        return next((rates[name] for name in names if name in rates), 0.0)

    def _rate_of(self, path: str) -> tuple[str, float]:
        """Return the rate of an array and what says it: the array, or all of its group. 0: neither does."""
        group = path.rpartition("/")[0]
        all_of_group = f"{group}/t" if _stream_parts(f"{group}/t") else path
        stated = self._options.rates
        for name in (path, self._columns[path], _name_of(path), group):
            if name in stated:
                return (all_of_group if name == group else path), stated[name]
        rate = 0.0 if self._is_told else _rate_in(self._recording.metadata(path))
        if rate or self._is_told or all_of_group == path:
            return path, rate
        return all_of_group, _rate_in(self._recording.metadata(group))

    def _stream(self, times: str, clock: str) -> Stream:
        rate = self._options.rates.get(clock, self._rate_of_times.get(times, 0.0))
        if rate:
            return Stream(rate=rate)
        if self._is_told:
            return Stream(times, "ns")
        metadata = self._recording.metadata(times)
        unit = next((str(metadata[name]) for name in _UNITS if name in metadata), "")
        unit = self._options.time_unit or _SPELLED.get(unit, unit)
        if unit:
            return Stream(times, unit)
        return Stream(times, "s" if self._arrays[times].dtype.kind == "f" else "ns", is_assumed=True)


def dataset_names(arrays: Collection[str]) -> dict[str, str]:
    """By what name each array is known: ``force/value`` and ``force/t`` are ``force`` and ``force_t``."""
    names = {path: path for path in arrays}
    for path in arrays:
        group, _, name = path.rpartition("/")
        times = next((f"{group}/{time}" for time in TIMES if f"{group}/{time}" in arrays), "")
        if group and times and name in _VALUES and group not in arrays:
            names[path] = group
            names[times] = f"{group}_{times.rpartition('/')[2]}"
    return names


def _rate_in(metadata: Metadata) -> float:
    for name in _RATES:
        rate = metadata.get(name)
        if isinstance(rate, int | float) and rate > 0:
            return float(rate)
    return 0.0


def _stream_parts(times: str) -> list[str]:
    """Return parts of the path of timestamps that say whose they are."""
    *parts, last = times.split("/")
    if last not in TIMES:
        suffix = next((suffix for suffix in _SUFFIXES if last.endswith(suffix) and last != suffix), "")
        parts.append(last.removesuffix(suffix))
    return [part for part in parts if part not in _GENERAL]


def _name_of(times: str) -> str:
    """Return the name of a clock: ``force`` of ``obs/force_timestamps`` and of ``force/t``."""
    return "_".join(_stream_parts(times)) or "episode"


# Whether the times can be believed.


def check_clocks(recording: EpisodeRecording, clocks: EpisodeClocks, steps: int) -> list[str]:
    """Check that times rise, and that all clocks tell one duration, and return remarks on units."""
    if STEPS not in clocks.streams:
        if recording.times:
            return []
        others = ", ".join(clocks.lengths)
        message = f"has streams of other rates ({others}), but no times of its steps"
        fix = (
            "add --rate steps=HZ",
            "write timestamps of the action (action_timestamps) or its attribute rate",
        )
        raise InputError.at(recording.location(), message, fix, "clock")
    collected = ProblemCollector()
    notes: list[str] = []
    times: dict[str, Int64s] = {}
    for name, stream in clocks.streams.items():
        if not stream.timestamps:
            continue
        location = recording.location(stream.timestamps)
        with collected.attempt(location):
            times[name] = _read_times(recording, name, stream)
            likely = _likely_unit(times[name], stream)
            if likely:
                notes.append(
                    f"{location}: read in {stream.unit}, because the file does not state the unit; "
                    f"if they are {likely}, as the values suggest, add --time-unit {likely}"
                )
    if not collected.problems:
        rows = {STEPS: steps, **clocks.lengths}
        collected.problems += _contradictions(recording, clocks.streams, rows, times)
    collected.check()
    of_steps = times.get(STEPS, np.empty(0, np.int64))
    for name, own in times.items():
        location = recording.location(clocks.streams[name].timestamps)
        repeated = np.flatnonzero(np.diff(own) == 0) + 1
        if len(repeated):
            counted = (
                f"{count_of(len(repeated), 'row')} with the time of the row before, from row {repeated[0]} on"
            )
            notes.append(f"{location}: {counted}; windows use the last row of each time")
        late = (own[0] - of_steps[0]) / 1e9 if len(own) and len(of_steps) else 0.0
        if late > _MOST_APART:
            padding = 'windows before that are padded, or skipped with pad="drop"'
            notes.append(f"{location}: begins {late:.2f} s after the steps; {padding}")
    return notes


def _read_times(recording: EpisodeRecording, clock: str, stream: Stream) -> Int64s:
    """Read timestamps in nanoseconds. They must rise."""
    location = recording.location(stream.timestamps)
    if stream.unit not in NANOSECONDS:
        message = f"has the unit {stream.unit!r}, expected one of {', '.join(NANOSECONDS)}"
        raise InputError.at(location, message, (*_in_units(NANOSECONDS), "correct the attribute"), "clock")
    values = recording.arrays[stream.timestamps][:]
    is_time = np.abs(np.asarray(values, np.float64) * NANOSECONDS[stream.unit]) < _MOST_NANOSECONDS
    if not is_time.all():
        row = int(np.argmin(is_time))
        largest = float(np.abs(np.asarray(values, np.float64)).max())
        units = [unit for unit, length in NANOSECONDS.items() if largest * length < _MOST_NANOSECONDS]
        fix: tuple[Fix, ...] = (*_in_units(units), _ignoring(stream), f"add --rate {clock}=HZ")
        message = f"row {row} is {values[row]}, which is not a time in {stream.unit}"
        raise InputError.at(location, message, fix, "clock")
    times = in_nanoseconds(values, stream.unit)
    falling = np.flatnonzero(np.diff(times) < 0)
    if len(falling):
        row = int(falling[0]) + 1
        message = f"row {row} is {values[row]}, earlier than the row before it ({values[row - 1]})"
        first: Fix = _OF_LOG if recording.times else "sort the stream by time"
        fixes = first, _ignoring(stream)
        raise InputError.at(location, message, fixes, "clock")
    if message := _why_still(values, times, stream.unit):
        in_place: Fix = f"add --rate {clock}=HZ, which replaces these times"
        if stream.timestamps.endswith(f"/{STAMP}") and recording.times:
            in_place = _OF_LOG
        raise InputError.at(location, message, (in_place, _ignoring(stream)), "clock")
    return times


def _in_units(units: Iterable[str]) -> list[AddOptions]:
    return [AddOptions(("--time-unit", unit), f"if they are in {unit}") for unit in units]


def _ignoring(stream: Stream) -> AddOptions:
    """Return options that leave out timestamps and their stream, by group or by name."""
    group, _, name = stream.timestamps.rpartition("/")
    start = f"{group}/" if group else ""
    stem = next((name.removesuffix(suffix) for suffix in _SUFFIXES if name.endswith(suffix)), "")
    return AddOptions(("--ignore", f"{glob.escape(start + stem)}*"), "to skip the stream")


def _why_still(values: AnyArray, times: Int64s, unit: str) -> str:
    """Say why rising times do not tell rows apart: there is one, or the dtype rounds them (empty: they do).

    Of equal times windows take the last row, which would be one of the future.
    """
    steps = np.diff(times)
    if not len(steps):
        return ""
    if times[0] == times[-1]:
        return f"has the same time in all {len(times):,} rows: {values[0]} {unit}"
    advances = steps[steps > 0]
    repeated = 1 - len(advances) / len(steps)
    is_float = values.dtype.kind == "f"
    spacing = float(np.spacing(np.abs(values).max())) if is_float else 1.0
    is_rounded = np.median(advances) <= 1.5 * spacing * NANOSECONDS[unit]
    if is_rounded and repeated > (_MOST_ROUNDED if is_float else _MOST_REPEATED):
        rows = f"{len(steps) - len(advances):,} of {len(times):,} rows repeat the time before them"
        return f"is {values.dtype}, which cannot represent times less than {spacing:g} {unit} apart: {rows}"
    return ""


def _likely_unit(times: Int64s, stream: Stream) -> str:
    """Return the unit in which timestamps, in nanoseconds, are dates if another was assumed. Empty: none."""
    if not stream.is_assumed or not len(times):
        return ""
    first = times[0] / NANOSECONDS[stream.unit]
    # From 2001 to 2096.
    by_date = [unit for unit, length in NANOSECONDS.items() if 1e18 < first * length < 4e18]
    return "" if stream.unit in by_date else "".join(by_date[:1])


def _contradictions(
    recording: EpisodeRecording,
    streams: Mapping[str, Stream],
    rows: Mapping[str, int],
    times: Mapping[str, Int64s],
) -> Iterator[Problem]:
    """Yield a problem of each clock that tells another duration than the steps, or another time."""
    is_bag = bool(recording.times)
    margin = 0
    if is_bag:
        logged = [own[:] for path, own in recording.arrays.items() if path.endswith(f"/{LOG_TIME}")]
        margin = max(int(own[-1]) for own in logged) - min(int(own[0]) for own in logged) + _OF_ANOTHER_CLOCK
    spans = {name: (int(own[0]), int(own[-1])) for name, own in times.items() if len(own)}
    durations = {}
    for name, stream in streams.items():
        durations[name] = max(0, rows[name] - 1) / stream.rate if stream.rate else 0.0
        if name in spans:
            durations[name] = (spans[name][1] - spans[name][0]) / 1e9
    of_steps = durations[STEPS]
    for name, own in durations.items():
        stream = streams[name]
        least, most = sorted((of_steps, own))
        message = ""
        fix: Fixes = _SET_UNIT
        if stream.rate:
            if most - least > _MOST_DIFFERENCE * most + _MOST_APART:
                lasting = f"{rows[name]:,} rows at {stream.rate:g} per second"
                message = f"{name}: {lasting} last {own:g} s, but the steps last {of_steps:g} s"
                fix = f"correct the rate with --rate {name}=HZ", "write timestamps"
        elif name in spans and STEPS in spans and _apart(spans[name], spans[STEPS]) > margin:
            first, last = (time / 1e9 for time in spans[name])
            message = (
                f"lasts from {first:.6f} to {last:.6f} s in {stream.unit}, at another time than the steps"
            )
            fix = _OF_LOG if is_bag else (*_SET_UNIT, "write all times with the same clock")
        elif not is_bag and 0 < least * 10 < most:
            message = f"lasts {own:g} s in {stream.unit}, but the steps last {of_steps:g} s"
        if message:
            yield Problem.at(recording.location(stream.timestamps), message, fix, "clock")


def _apart(span: tuple[int, int], other: tuple[int, int]) -> int:
    """Return nanoseconds from the end of one to the beginning of the other. 0 or less: they overlap."""
    return max(span[0] - other[1], other[0] - span[1])
