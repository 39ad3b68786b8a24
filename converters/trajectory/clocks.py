"""Streams of other rates than that of the steps: which array, or which rate, tells the times of each.

The times of ``force`` are in ``force_timestamps``, or in ``timestamps`` (``timestamp``, ``time``, ``t``) of
the same group, or follow from an attribute ``rate`` (``fps``, ``hz``, ``frequency``) of the array or its
group. What the user says of rates and units comes first. Of some formats every array has its clock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.plugin import Facts
from unistore.converters.trajectory.layouts import LOG_TIME, TIMES, Recording
from unistore.errors import Location, Problem
from unistore.schemas.trajectory.clocks import NANOSECONDS, in_nanoseconds
from unistore.schemas.trajectory.fields import STEPS

_SUFFIXES = ("_timestamps", "_timestamp")
_VALUES = ("value", "values", "data")
"""Names of arrays that are called as their group is, where it has timestamps."""
_RATES = ("rate", "fps", "hz", "frequency")
_UNITS = ("unit", "units")
_SPELLED = {"sec": "s", "second": "s", "seconds": "s", "milliseconds": "ms", "µs": "us", "microseconds": "us"}
_SPELLED |= {"nanoseconds": "ns"}
_GENERAL = frozenset({"obs", "observation", "observations", "images", "rgb_images"})
"""Groups whose names say nothing of a stream."""
_STEP_COLUMNS = ("reward", "terminated", "truncated")
_MOST_NANOSECONDS = 2.0**62
_MOST_DIFFERENCE = 0.1
"""Part of a duration, or of a rate, by which two statements on it may differ."""
_MOST_APART = 0.25
"""Seconds by which streams may begin and end apart."""
_OF_ANOTHER_CLOCK = 60_000_000_000
"""Nanoseconds from all log times of a bag, from which on stamps are of another clock."""
_SET_UNIT = "set its attribute unit to s, ms, us or ns, or give --time-unit"


class Stream(NamedTuple):
    """What tells the times of the rows of a clock.

    Attributes
    ----------
    timestamps
        Path of their array in the episode; empty: the rate tells them.
    unit
        Unit of the timestamps.
    rate
        Rows a second; 0: unknown.
    is_assumed
        Whether nothing says the unit.
    """

    timestamps: str = ""
    unit: str = ""
    rate: float = 0.0
    is_assumed: bool = False


class Stated(NamedTuple):
    """What the user says of clocks.

    Attributes
    ----------
    rates
        Rows a second by the name of a dataset, group or clock.
    unit
        Of all timestamps; empty: what the files say.
    stamps
        See `TrajectoryOptions`.
    """

    rates: Mapping[str, float] = {}
    unit: str = ""
    stamps: str = "header"


@dataclass(slots=True)
class Clocks:
    """The streams of an episode.

    Attributes
    ----------
    of
        Name of the clock of each array that is on another one than the steps.
    streams
        What tells the times, by the name of the clock; those of the steps under `STEPS`, if anything does.
    lengths
        Rows of each clock but `STEPS`.
    """

    of: dict[str, str] = field(default_factory=dict)
    streams: dict[str, Stream] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)


Said = Callable[[str], Facts]
"""Attributes of an array or group of an episode."""


class Timed:
    """Finds the clocks of the arrays of a recording, `columns` by their paths.

    Attributes
    ----------
    steps
        Path of an array with a row for each step: the action or, where the format tells the clocks, a camera
        or any other; empty: none is.
    notes
        Which that is, and where the user and the file say different things.
    """

    def __init__(self, recording: Recording, columns: Mapping[str, str], said: Said, stated: Stated) -> None:
        self._recording = recording
        self._arrays, self._columns, self._said, self._stated = recording.arrays, columns, said, stated
        self._is_told = bool(recording.times)
        times = {path: recording.times.get(path) or self._times_of(path) for path in columns}
        self._times = {path: found for path, found in times.items() if found}
        self.notes: list[str] = []
        self.steps = next((path for path, column in columns.items() if column == "action"), "")
        if self._is_told and not self.steps:
            self.steps = self._any_topic()

    def _any_topic(self) -> str:
        """Path of an array of the topic whose messages are the steps: the first camera, else the first."""
        cameras = [path for path in self._columns if path.endswith("/image")]
        path = min(cameras or self._columns, default="")
        if path:
            topic = path.rpartition("/")[0]
            cure = "--map action=TOPIC/FIELD takes those of another"
            self.notes.append(f"{self._recording.location()}: steps are the messages of {topic}; {cure}")
        return path

    def has_time(self, path: str) -> bool:
        """Whether an array may be a stream of its own: something tells its times."""
        return path in self._times or self._rate_of(path)[1] > 0

    def clocks(self, steps: int) -> Clocks:
        """Find the clocks of arrays other than the `steps` rows of the steps themselves."""
        found = Clocks()
        of_steps = self._times_of_steps(steps)
        for path, column in self._columns.items():
            if column in ("action", *_STEP_COLUMNS) or column.startswith("next_observation/"):
                continue
            times = self._times.get(path, "")
            if times and times != of_steps:
                topic = times.rpartition("/")[0].replace("/", "_")
                name = topic if self._is_told else _name_of(times)
                self._add(found, path, name, self._stream(times, self._rate_of(path)[1]))
            elif not times and self._arrays[path].shape[:1] not in ((), (steps,)):
                owner, rate = self._rate_of(path)
                if rate:
                    self._add(found, path, _name_of(owner), Stream(rate=rate))
        if found.of:
            self._add_steps(found, of_steps)
        return found

    def _add(self, found: Clocks, path: str, name: str, stream: Stream) -> None:
        found.of[path] = name
        found.streams[name] = stream
        found.lengths[name] = self._arrays[path].shape[0]

    def _add_steps(self, found: Clocks, times: str) -> None:
        own = self._rate_of(self.steps)[1] if self.steps else 0.0
        rate = own or self._stated.rates.get(STEPS, 0.0) or _rate_in(self._said(""))
        if times:
            found.streams[STEPS] = self._stream(times, rate)
        elif rate:
            found.streams[STEPS] = Stream(rate=rate)

    def _times_of(self, path: str) -> str:
        """Path of the timestamps of an array; empty: it has none. Timestamps have their own."""
        group = path.rpartition("/")[0]
        beside = [f"{group}/{name}".lstrip("/") for name in TIMES]
        named = [f"{path}{suffix}" for suffix in _SUFFIXES]
        if path in beside or path.endswith(_SUFFIXES):
            named = [path]
        return next((other for other in (*named, *beside) if self._are_times(other, path)), "")

    def _are_times(self, times: str, path: str) -> bool:
        """Whether an array has one number for each row of another."""
        if times not in self._columns:
            return False
        array, rows = self._arrays[times], self._arrays[path].shape[:1]
        return len(rows) == 1 and array.shape == rows and array.dtype.kind in "iuf" and not array.problems()

    def _times_of_steps(self, steps: int) -> str:
        """Path of the timestamps of the steps: those of the action, or of the whole episode."""
        general = [path for path in self._times if self._times[path] == path and not _stream_parts(path)]
        candidates = [self._times.get(self.steps, ""), *general]
        return next((path for path in candidates if path and self._arrays[path].shape == (steps,)), "")

    def _rate_of(self, path: str) -> tuple[str, float]:
        """Rate of an array, with what says it: the array or its group; 0 if neither does."""
        group = path.rpartition("/")[0]
        for name in (path, self._columns[path], _name_of(path), group):
            if name in self._stated.rates:
                is_of_group = name == group and bool(_stream_parts(f"{group}/t"))
                return (f"{group}/t" if is_of_group else path), self._stated.rates[name]
        if self._is_told:
            return path, 0.0
        own = _rate_in(self._said(path))
        if own or not _stream_parts(f"{group}/t"):
            return path, own
        return f"{group}/t", _rate_in(self._said(group))

    def _stream(self, times: str, rate: float) -> Stream:
        """A stream with timestamps."""
        if self._is_told:
            return Stream(times, "ns", rate)
        said = self._said(times)
        unit = next((str(said[name]) for name in _UNITS if name in said), "")
        unit = _SPELLED.get(unit, unit)
        chosen = self._stated.unit
        if unit and chosen and unit != chosen:
            where = self._recording.location(times)
            self.notes.append(f"{where}: taken in {chosen} as --time-unit says, its attribute says {unit}")
        plain = "s" if self._arrays[times].dtype.kind == "f" else "ns"
        return Stream(times, chosen or unit or plain, rate, is_assumed=not (chosen or unit))


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


def _rate_in(facts: Facts) -> float:
    found = [facts[name] for name in _RATES if isinstance(facts.get(name), int | float)]
    return next((float(rate) for rate in found if rate > 0), 0.0)


def _stream_parts(times: str) -> list[str]:
    """Parts of the path of timestamps that say whose they are."""
    *groups, last = times.split("/")
    suffix = next((suffix for suffix in _SUFFIXES if last.endswith(suffix) and last != suffix), "")
    own = [] if last in TIMES else [last.removesuffix(suffix)]
    return [part for part in (*groups, *own) if part not in _GENERAL]


def _name_of(times: str) -> str:
    """Name of a clock: ``force`` of ``obs/force_timestamps`` and of ``force/t``."""
    return "_".join(_stream_parts(times)) or "episode"


# Whether the times can be believed.


class Told(NamedTuple):
    """What checking the clocks of an episode found."""

    problems: list[Problem]
    notes: list[str]


def check_clocks(recording: Recording, clocks: Clocks, steps: int) -> Told:
    """Check that times rise, that all clocks tell one duration, and that each rate is the one stated."""
    told = Told([], [])
    if recording.times:
        _check_topics(recording, clocks, told)
        return told
    if STEPS not in clocks.streams:
        message = (
            f"has streams of other rates ({', '.join(clocks.lengths)}), and nothing tells when its steps were"
        )
        cure = (
            "write timestamps of the action beside it (action_timestamps), or an attribute rate, "
            "or give --rate steps=HZ"
        )
        told.problems.append(Problem.at(recording.location(), message, cure, "clock"))
        return told
    spans = {}
    for name, stream in clocks.streams.items():
        if stream.unit and stream.unit not in NANOSECONDS:
            message = f"has the unit {stream.unit!r}, expected one of {', '.join(NANOSECONDS)}"
            where = recording.location(stream.timestamps)
            cure = "correct the attribute, or give --time-unit"
            told.problems.append(Problem.at(where, message, cure, "clock"))
        elif stream.timestamps:
            spans[name] = _checked(recording, stream, told)
    rows = {STEPS: steps, **clocks.lengths}
    if not told.problems:
        told.problems.extend(_contradictions(recording, clocks, rows, spans))
        told.notes.extend(f"{recording.location()}: {note}" for note in _late(spans))
    return told


def _checked(recording: Recording, stream: Stream, told: Told) -> tuple[int, int]:
    """Read timestamps and check each; returns the first and the last in nanoseconds."""
    location = recording.location(stream.timestamps)
    values: NDArray[np.generic] = recording.arrays[stream.timestamps][:]
    if not len(values):
        return 0, 0
    nanoseconds = np.asarray(values, np.float64) * NANOSECONDS[stream.unit]
    wrong = np.flatnonzero(~(np.abs(nanoseconds) < _MOST_NANOSECONDS))
    if len(wrong):
        message = f"row {wrong[0]} is {values[wrong[0]]}, no time in {stream.unit}"
        cure = f"{_SET_UNIT}, or leave the stream out with --ignore"
        told.problems.append(Problem.at(location, message, cure, "clock"))
        return 0, 0
    times = in_nanoseconds(values, stream.unit)
    told.problems.extend(_falls(times, values, location, "sort the stream by time"))
    told.problems.extend(_other_rate(times, stream, location))
    told.notes.extend(_repeats(times, location))
    likely = _likely_unit(times, stream) if stream.is_assumed else ""
    if likely:
        taken = f"{location}: taken in {stream.unit}, as nothing says the unit"
        told.notes.append(f"{taken}; the values look like {likely}: --time-unit {likely}")
    return int(times[0]), int(times[-1])


def _repeats(times: NDArray[np.int64], location: Location) -> Iterator[str]:
    repeated = int((np.diff(times) == 0).sum())
    if repeated:
        yield f"{location}: {repeated} timestamps repeat; the last row of equal ones is taken"


def _likely_unit(times: NDArray[np.int64], stream: Stream) -> str:
    """Unit in which timestamps (in nanoseconds) are dates, or rates of sensors; empty: the one taken."""
    taken = NANOSECONDS[stream.unit]
    by_date = [unit for unit, length in NANOSECONDS.items() if _is_date(times[0] / taken * length)]
    if by_date:
        return "" if stream.unit in by_date else by_date[0]
    usual = float(np.median(np.diff(times))) if len(times) > 1 else 0.0
    if not usual or _is_usual(usual):
        return ""
    return next((unit for unit, length in NANOSECONDS.items() if _is_usual(usual / taken * length)), "")


def _is_date(nanoseconds: float) -> bool:
    """Whether a time is one between 2001 and 2096."""
    return 1e18 < nanoseconds < 4e18


def _is_usual(nanoseconds: float) -> bool:
    """Whether rows follow each other so, from 100 kHz to one in 100 s."""
    return 1e4 <= nanoseconds <= 1e11


def _falls(
    times: NDArray[np.int64], values: NDArray[np.generic], location: Location, cure: str
) -> Iterator[Problem]:
    falling = np.flatnonzero(np.diff(times) < 0)
    if len(falling):
        row = int(falling[0]) + 1
        message = f"row {row} is {values[row]}, earlier than the row before it ({values[row - 1]})"
        yield Problem.at(location, message, f"{cure}, or leave it out with --ignore", "clock")


def _other_rate(times: NDArray[np.int64], stream: Stream, location: Location) -> Iterator[Problem]:
    """Yield a problem if the usual distance of timestamps is not that of the stated rate."""
    usual = float(np.median(np.diff(times))) if len(times) > 1 else 0.0
    if not stream.rate or not usual:
        return
    rate = 1e9 / usual
    if abs(rate - stream.rate) > _MOST_DIFFERENCE * stream.rate:
        message = f"has {rate:g} rows a second in {stream.unit}, and its attribute says {stream.rate:g}"
        cure = f"{_SET_UNIT}, or correct the rate"
        yield Problem.at(location, message, cure, "clock")


def _contradictions(
    recording: Recording, clocks: Clocks, rows: Mapping[str, int], spans: Mapping[str, tuple[int, int]]
) -> Iterator[Problem]:
    """Yield a problem of each clock that tells another duration than the steps, or another time."""
    of_steps = _duration(clocks.streams[STEPS], rows[STEPS], spans.get(STEPS))
    for name, stream in clocks.streams.items():
        own = _duration(stream, rows[name], spans.get(name))
        least, most = sorted((of_steps, own))
        location = recording.location(stream.timestamps)
        if not stream.timestamps and most - least > _MOST_DIFFERENCE * most + _MOST_APART:
            said = f"{rows[name]} rows at {stream.rate:g} a second"
            message = f"{name}: {said} last {own:g} s, the steps {of_steps:g} s"
            cure = f"correct the rate, as in --rate {name}=HZ, or write timestamps"
            yield Problem.at(location, message, cure, "clock")
        elif name in spans and STEPS in spans and rows[name] and _are_apart(spans[name], spans[STEPS]):
            first, last = (time / 1e9 for time in spans[name])
            message = f"is from {first:g} to {last:g} s in {stream.unit}, at another time than the steps"
            cure = f"{_SET_UNIT}, or write times of one clock"
            yield Problem.at(location, message, cure, "clock")
        elif least * 10 < most and least > 0:
            message = f"lasts {own:g} s in {stream.unit}, the steps {of_steps:g} s"
            cure = _SET_UNIT
            yield Problem.at(location, message, cure, "clock")


def _duration(stream: Stream, rows: int, span: tuple[int, int] | None) -> float:
    """Seconds from the first row to the last."""
    if span is not None:
        return (span[1] - span[0]) / 1e9
    return max(0, rows - 1) / stream.rate


def _are_apart(span: tuple[int, int], other: tuple[int, int]) -> bool:
    return span[1] < other[0] or other[1] < span[0]


def _late(spans: Mapping[str, tuple[int, int]], least: float = 0.0) -> Iterator[str]:
    """Yield a remark on each stream that begins more than `least` seconds after the steps."""
    for name, (first, _) in spans.items():
        late = (first - spans[STEPS][0]) / 1e9 if STEPS in spans else 0.0
        if late > least:
            yield f"{name} begins {late:.3g} s after the steps: until then its rows are not valid"


def _check_topics(recording: Recording, clocks: Clocks, told: Told) -> None:
    """Check the stamps of topics: they rise, and all are of one clock."""
    cure = "--stamps log takes the times at which messages were logged"
    logged = [times[:] for path, times in recording.arrays.items() if path.endswith(f"/{LOG_TIME}")]
    begin = min(int(times[0]) for times in logged) - _OF_ANOTHER_CLOCK
    end = max(int(times[-1]) for times in logged) + _OF_ANOTHER_CLOCK
    spans = {}
    for name, stream in clocks.streams.items():
        location = recording.location(stream.timestamps)
        times = recording.arrays[stream.timestamps][:]
        told.problems.extend(_falls(times, times, location, cure))
        told.notes.extend(_repeats(times, location))
        spans[name] = int(times[0]), int(times[-1])
    if told.problems or STEPS not in spans:
        return
    is_of_steps = _are_apart(spans[STEPS], (begin, end))
    for name, span in spans.items():
        if _are_apart(span, (begin, end)) != is_of_steps:
            first, last = (time / 1e9 for time in span)
            message = f"is from {first:.6f} to {last:.6f} s, at another time than the steps"
            location = recording.location(clocks.streams[name].timestamps)
            problem = Problem.at(location, message, f"{cure}, --ignore leaves the topic out", "clock")
            told.problems.append(problem)
    told.notes.extend(f"{recording.location()}: {note}" for note in _late(spans, _MOST_APART))
