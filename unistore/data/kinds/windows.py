"""Samples of windows: steps, or times, around each tick of a clock, of streams of any rate (`Windows`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from unistore.data.clock import Rows
from unistore.data.kinds.clocks import Align, Clocks, Mask, Places, Stream, Ticks
from unistore.data.kinds.padding import Pad, check_pad, fill_values, normalize_pad
from unistore.data.kinds.protocol import Picks, require_arrays, select_keys
from unistore.data.kinds.reach import Reach
from unistore.data.kinds.steps import (
    EPISODE_OFFSETS,
    ON_REQUEST,
    EpisodeRows,
    RaggedColumn,
    StepColumn,
    attribute_place,
    channels_first,
    is_ragged,
    step_column,
    step_paths,
)
from unistore.data.packed import Allocate, Batch, Packed, packed_copy
from unistore.errors import InputError, Problem
from unistore.schemas.trajectory.clocks import offsets_path
from unistore.schemas.trajectory.fields import STEPS
from unistore.store.reader import Store
from unistore.system.arguments import Arguments, is_integer, matches_type

Steps: TypeAlias = Sequence[int] | Sequence[float]
Around: TypeAlias = Mapping[str, Steps]
Delta: TypeAlias = Mapping[str, str | tuple[str, Sequence[int]]]
_MILLISECOND = 1_000_000
_SECOND = 1_000_000_000
_ROTATIONS = ("quat", "orientation")
"""Parts of the names of columns whose numbers are no vector that can be interpolated."""
_TICKS_TOGETHER = 1 << 16
"""Ticks whose windows are looked up together where all are."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Samples of a trajectory store: a window around each tick of a clock, inside one episode.

    In short, ``Windows(history=2, horizon=8)``: keys ``observation.<name>`` (history, …) of the steps
    ``t - history + 1`` to ``t``; every other column of the steps, ``action``, ``reward``, …, (horizon, …) of
    the steps ``t`` to ``t + horizon - 1``; ``history_valid`` (history,) and ``horizon_valid`` (horizon,)
    bool, False where the window leaves the episode.

    At length, ``Windows({"left": (-4, -2, 0), "action": range(16)}, clock="left")``: each column of the named
    keys or clocks, (k, …), and ``<name>_valid`` (k,) bool for each name. Whole numbers are steps: rows of the
    key's own table from the one on that stands for the tick. Numbers with a point are seconds from the tick.

    Images are (k, 3, H, W) u1 RGB. Of columns with any number of values in a row, as scans of a lidar, a
    window has those of its k rows one after the other, and ``<key>_counts`` (k,) says how many each row has.
    On request: ``<name>_timestamps`` (k,), as the source has them (of a rate: int64 nanoseconds); ``source``,
    ``episode``, ``episode_name``, ``step`` (the tick inside the episode).

    Parameters
    ----------
    around
        Steps or seconds around a tick, by key or clock.
    history
        Steps of observation, the current one included.
    horizon
        Steps of everything else, the current one included.
    stride
        Ticks between successive windows.
    pad
        Padding of windows that leave their episode. None: such windows are an error. ``"edge"``: the
        episode's first or last step is repeated; ``"zero"`` and ``"valid"``: zeros; a number: that, in every
        field that is read; ``"drop"``: such windows are left out.
    clock
        The clock whose rows are the ticks, or a key of it. By default the steps.
    align
        Which row stands for a time. ``"previous"``: the last one that is not later. ``"nearest"``: the
        nearest; of two as near, the earlier one. Of equal timestamps both take the last row. ``"linear"``:
        values of the rows before and after are interpolated, in float64. One for all, or by name.
    tolerance
        Milliseconds, at most, between a row and the time that it stands for; farther ones are not valid.
    shift
        Milliseconds, by name, that are added to timestamps of a clock that is early.
    delta
        Keys whose values are given relative to another key at the tick: ``{"action": "observation.joint"}``
        subtracts the joints at the tick from every action of the window, as actions of chunks are often
        learned. ``{"action": ("observation.joint", range(6))}``: in these components alone, so that a gripper
        stays absolute. What padding fills in is not changed.
    """

    around: Around | None = None
    history: int | None = field(default=None, kw_only=True)
    horizon: int | None = field(default=None, kw_only=True)
    stride: int = field(default=1, kw_only=True)
    pad: Pad = field(default=None, kw_only=True)
    clock: str = field(default=STEPS, kw_only=True)
    align: Align | Mapping[str, Align] = field(default="previous", kw_only=True)
    tolerance: float | None = field(default=None, kw_only=True)
    shift: Mapping[str, float] | None = field(default=None, kw_only=True)
    delta: Delta | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check = Arguments()
        if self.around is None:
            for name in ("history", "horizon"):
                check.integer(name, getattr(self, name), 1)
            self._check_no_clock(check)
        else:
            self._check_around(check, self.around)
        check.integer("stride", self.stride, 1)
        check_pad(check, self.pad)
        is_delta = isinstance(self.delta, Mapping) and all(map(_is_reference, self.delta.values()))
        expected = "keys by key, or keys with components, as in {'action': ('observation.joint', (0, 1, 2))}"
        check.expect("delta", self.delta, is_delta, expected, none=True)
        check.raise_problems()
        object.__setattr__(self, "pad", normalize_pad(self.pad))

    def _check_no_clock(self, check: Arguments) -> None:
        given = {
            "clock": self.clock != STEPS,
            "align": self.align != "previous",
            "tolerance": self.tolerance is not None,
            "shift": self.shift is not None,
        }
        for name in filter(given.__getitem__, given):
            check.refuse(name, "needs a window for each key", "Windows({'action': range(8)}, …)")

    def _check_around(self, check: Arguments, around: object) -> None:
        if self.history is not None or self.horizon is not None:
            check.refuse("history", "stands beside a window for each key", "give one or the other")
        is_mapping = isinstance(around, Mapping) and bool(around)
        if not check.expect("around", around, is_mapping, "steps or seconds by key"):
            return
        assert isinstance(around, Mapping)
        for name, steps in around.items():
            check.expect(f"around[{name!r}]", steps, _are_steps(steps), "whole numbers (steps) or seconds")
        check.text("clock", self.clock)
        check.number("tolerance", self.tolerance, none=True)
        self._check_by_name(check, "align", self.align, around)
        self._check_by_name(check, "shift", self.shift, around)
        if check.expect("align", self.align, isinstance(self.align, (str, Mapping)), "one, or one by key"):
            for align in self._aligns():
                check.one_of("align", align, get_args(Align))
        self._check_shift(check)

    def _aligns(self) -> Sequence[str]:
        return [self.align] if isinstance(self.align, str) else list(self.align.values())

    def _check_by_name(self, check: Arguments, argument: str, value: object, around: Around) -> None:
        unknown = sorted(set(value) - set(around)) if isinstance(value, Mapping) else []
        if unknown:
            check.refuse(argument, f"names {', '.join(unknown)}", f"the windows are of {', '.join(around)}")

    def _check_shift(self, check: Arguments) -> None:
        if check.expect("shift", self.shift, isinstance(self.shift, Mapping), "a mapping", none=True):
            for number in (self.shift or {}).values():
                check.expect("shift", number, matches_type(number, float), "milliseconds by name")

    def makes(self, key: str) -> bool:
        """Return whether values of a key are computed, and are not those of the store."""
        return self.delta is not None and key in self.delta

    def align_of(self, name: str) -> Align:
        """Return which row stands for a time, of a name in `around`."""
        return self.align if isinstance(self.align, str) else self.align.get(name, "previous")

    def select(self, store: Store, fields: Sequence[str] | None) -> tuple[str, ...]:
        """Keys of samples; see `SampleKind.select`."""
        require_arrays(store, self, EPISODE_OFFSETS)
        parts = parts_of(store, self)
        keys = list(chain.from_iterable(part.columns for part in parts))
        counts = [
            count_key(key)
            for key, path in chain.from_iterable(part.columns.items() for part in parts)
            if is_ragged(path)
        ]
        natural = [*keys, *counts, *(part.mask for part in parts)]
        on_request = [*ON_REQUEST, *(part.timestamps for part in parts)]
        if unknown := sorted(set(self.delta or ()) - set(keys)):
            message = f"{', '.join(unknown)} is in no window"
            raise InputError(Problem("delta", message, f"the windows are of {', '.join(keys)}", "option"))
        return select_keys(natural, fields, on_request, partial(attribute_place, store))

    def bind(self, store: Store, fields: Sequence[str], units: NDArray[np.int64] | None) -> WindowReader:
        """Reader of windows in the episodes `units`."""
        return WindowReader(store, self, fields, units)


def _are_steps(steps: object) -> bool:
    """Whether a value is some whole numbers or seconds."""
    if not isinstance(steps, Sequence | np.ndarray) or isinstance(steps, str) or not len(steps):
        return False
    return all(is_integer(step, None) or matches_type(step, float) for step in steps)


def _is_reference(reference: object) -> bool:
    """Whether a value is a key, or a key and numbers of components."""
    if isinstance(reference, str):
        return True
    if not isinstance(reference, tuple) or len(reference) != 2 or not isinstance(reference[0], str):
        return False
    components = reference[1]
    return isinstance(components, Sequence) and all(is_integer(number, 0) for number in components)


def count_key(key: str) -> str:
    """Key of how many values each row of a ragged key has."""
    return f"{key}_counts"


class Part(NamedTuple):
    """One of the windows around a tick.

    Attributes
    ----------
    name
        In `Windows.around`, or ``history`` or ``horizon``.
    clock
        Its clock.
    columns
        Path of each column by sample key.
    stream
        Finds its rows.
    """

    name: str
    clock: str
    columns: Mapping[str, str]
    stream: Stream

    @property
    def mask(self) -> str:
        """Key of what says which rows are real."""
        return f"{self.name}_valid"

    @property
    def timestamps(self) -> str:
        """Key of the timestamps of the rows."""
        return f"{self.name}_timestamps"


def parts_of(store: Store, kind: Windows) -> list[Part]:
    """Windows around a tick of a store.

    Raises
    ------
    InputError
        If a key, a clock or its times are not there, or values cannot be interpolated; all such problems.
    """
    clocks = Clocks(store)
    if kind.around is None:
        return _of_steps(store, kind, clocks)
    problems: list[Problem] = []
    parts: list[Part] = []
    if clocks.of(kind.clock) is None:
        problems.append(_unknown(store, clocks, "clock", kind.clock))
    for name, steps in kind.around.items():
        own = clocks.of(name)
        if own is None:
            problems.append(_unknown(store, clocks, "around", name))
            continue
        columns = {key: clocks.columns[own][key] for key in clocks.keys(name)}
        own_problems = _problems(store, kind, clocks, Part(name, own, columns, _NO_STREAM), parts)
        problems += own_problems
        if not own_problems and not problems:
            parts.append(Part(name, own, columns, _stream(kind, clocks, name, own, steps)))
    if problems:
        raise InputError(problems)
    return parts


def _of_steps(store: Store, kind: Windows, clocks: Clocks) -> list[Part]:
    """History of observations, and horizon of all other columns."""
    assert kind.history is not None
    assert kind.horizon is not None
    paths = step_paths(store)
    past = {key: path for key, path in paths.items() if key.startswith("observation.")}
    other = {key: path for key, path in paths.items() if key not in past}
    offsets = clocks.offsets(STEPS)
    history = Stream(offsets=offsets, clock=None, steps=np.arange(1 - kind.history, 1))
    horizon = Stream(offsets=offsets, clock=None, steps=np.arange(kind.horizon))
    return [Part("history", STEPS, past, history), Part("horizon", STEPS, other, horizon)]


_NO_STREAM = Stream(offsets=np.empty(0, np.int64), clock=None, steps=np.empty(0, np.int64))


def _stream(kind: Windows, clocks: Clocks, name: str, own: str, steps: Steps) -> Stream:
    """How rows of a key are found."""
    align = kind.align_of(name)
    shift = (kind.shift or {}).get(name, 0)
    in_time = align == "linear" or _are_seconds(steps)
    is_tick = own == clocks.of(kind.clock) and not shift and not in_time
    seconds = np.rint(np.asarray(steps, np.float64) * _SECOND).astype(np.int64)
    return Stream(
        offsets=clocks.offsets(own),
        clock=None if is_tick else clocks.clock(own),
        steps=seconds if in_time else np.asarray(steps, np.int64),
        in_time=in_time,
        align=align,
        tolerance=None if kind.tolerance is None else round(kind.tolerance * _MILLISECOND),
        shift=round(shift * _MILLISECOND),
    )


def _are_seconds(steps: Steps) -> bool:
    return any(not is_integer(step, None) for step in steps)


def _unknown(store: Store, clocks: Clocks, argument: str, name: str) -> Problem:
    keys = ", ".join(chain.from_iterable(clocks.columns.values()))
    message = f"{name!r} is no key and no clock of {store.path}"
    return Problem(argument, message, f"clocks: {', '.join(clocks.columns)}; keys: {keys}", "option")


def _problems(
    store: Store, kind: Windows, clocks: Clocks, part: Part, others: Sequence[Part]
) -> list[Problem]:
    """What keeps the rows of a name from being found."""
    assert kind.around is not None
    where = f"around[{part.name!r}]"
    steps = kind.around[part.name]
    align = kind.align_of(part.name)
    ticks = clocks.of(kind.clock)
    needs_times = (
        part.clock != ticks or align == "linear" or _are_seconds(steps) or part.name in (kind.shift or {})
    )
    problems = []
    double = [key for key in chain.from_iterable(other.columns for other in others) if key in part.columns]
    if double:
        problems.append(Problem(where, f"{', '.join(double)} is in two windows", "leave one out", "option"))
    if needs_times and not (clocks.has_times(part.clock) and clocks.has_times(ticks or "")):
        message = "the store has no times of its steps"
        cure = "give whole numbers (steps); times need streams of several rates in the sources"
        problems.append(Problem(where, message, cure, "option"))
    if align == "linear":
        problems += _not_linear(store, where, part, steps)
    return problems


def _not_linear(store: Store, where: str, part: Part, steps: Steps) -> Iterator[Problem]:
    """Yield what cannot be interpolated."""
    if not _are_seconds(steps) and any(step != 0 for step in steps):
        message = "counts rows, and linear interpolates at times"
        yield Problem(where, message, "give seconds, as in (-0.1, 0.0)", "option")
    for key, path in part.columns.items():
        if is_ragged(path):
            message = f"{key} has any number of values in a row"
            cure = f"align={{{part.name!r}: 'nearest'}}"
            yield Problem(where, message, cure, "option")
            continue
        dtype = step_column(store, path).dtype
        cure = f"align={{{part.name!r}: 'nearest'}}"
        if dtype.kind != "f":
            yield Problem(where, f"{key} is {dtype}, which cannot be interpolated", cure, "option")
        elif any(word in key.lower() for word in _ROTATIONS):
            yield Problem(
                where, f"{key} is a rotation by its name: its numbers are no vector", cure, "option"
            )


class _Delta(NamedTuple):
    """What is subtracted from a key."""

    column: StepColumn
    stream: Stream  # finds the row of a tick
    components: Sequence[int]


def _deltas(
    store: Store, kind: Windows, clocks: Clocks, columns: Mapping[str, StepColumn]
) -> dict[str, _Delta]:
    """Return what is subtracted from each of `columns` that `Windows.delta` names."""
    deltas: dict[str, _Delta] = {}
    for key, reference in (kind.delta or {}).items():
        name, components = (reference, None) if isinstance(reference, str) else reference
        where = f"delta[{key!r}]"
        own = clocks.of(name)
        if own is None or name not in clocks.columns[own]:
            raise InputError(_unknown(store, clocks, where, name))
        if own != clocks.of(kind.clock) and not (clocks.has_times(own) and clocks.has_times(kind.clock)):
            message = f"{name} has another clock than the ticks, and the store has no times of both"
            raise InputError(Problem(where, message, "name a key of the clock of the ticks", "option"))
        if kind.align_of(name) == "linear":
            message = f"{name} is interpolated, and a row of it is subtracted"
            raise InputError(Problem(where, message, f"align={{{name!r}: 'nearest'}}", "option"))
        path_of_key = clocks.columns[clocks.of(key) or STEPS][key]
        if is_ragged(path_of_key) or is_ragged(clocks.columns[own][name]):
            message = f"{key} or {name} has any number of values in a row"
            raise InputError(Problem(where, message, "leave it out", "option"))
        column = step_column(store, clocks.columns[own][name])
        if key in columns:
            numbers = _components(where, (key, columns[key]), (name, column), components)
            deltas[key] = _Delta(column, _stream(kind, clocks, name, own, (0,)), numbers)
    return deltas


def _components(
    where: str,
    key: tuple[str, StepColumn],
    reference: tuple[str, StepColumn],
    components: Sequence[int] | None,
) -> Sequence[int]:
    """Return the components that are subtracted; raises an InputError if both keys do not have them."""
    forms = [f"{name} is {column.dtype} {column.row_shape}" for name, column in (key, reference)]
    are_vectors = all(len(column.row_shape) == 1 for _, column in (key, reference))
    sizes = [column.row_shape[-1] if column.row_shape else 0 for _, column in (key, reference)]
    numbers = range(sizes[0]) if components is None else components
    fits = sizes[0] == sizes[1] if components is None else max(numbers, default=0) < min(sizes)
    if not are_vectors or not fits or key[1].dtype.kind != "f":
        message = f"{' and '.join(forms)}: the first must be floating point, and both have these components"
        cure = "name the components, as in {'action': ('observation.joint', range(6))}"
        raise InputError(Problem(where, message, cure, "option"))
    return list(numbers)


class WindowReader:
    """Reads windows; see `SampleReader`."""

    def __init__(
        self, store: Store, kind: Windows, fields: Sequence[str], units: NDArray[np.int64] | None
    ) -> None:
        self._kind = kind
        self._parts = parts_of(store, kind)
        self._clocks = Clocks(store)
        self._clock = self._clocks.of(kind.clock) or STEPS
        self._episodes = EpisodeRows(store, units, offsets_path(self._clock))
        self._labels = self._episodes.labels(set(fields))
        self._asked = frozenset(fields)
        paths = dict(chain.from_iterable(part.columns.items() for part in self._parts))
        wanted = {key: path for key, path in paths.items() if {key, count_key(key)} & self._asked}
        self._ragged = {key: RaggedColumn(store, path) for key, path in wanted.items() if is_ragged(path)}
        self._columns = {
            key: step_column(store, path) for key, path in wanted.items() if key not in self._ragged
        }
        self._fills = fill_values(kind.pad, {key: column.dtype for key, column in self._columns.items()})
        self._in_time = any(part.stream.in_time for part in self._parts)
        self._deltas = _deltas(store, kind, self._clocks, self._columns)
        streams = [part.stream for part in self._parts]
        streams += [delta.stream for delta in self._deltas.values()]
        self._by_times = any(stream.clock is not None for stream in streams)
        ticks = self._episodes.rows(kind.stride)
        is_whole = self._are_whole(ticks)
        self._beyond = int((~is_whole).sum())
        self._ticks = ticks[is_whole] if kind.pad == "drop" else ticks

    def __len__(self) -> int:
        return len(self._ticks)

    def _are_whole(self, ticks: Rows) -> Mask:
        """Whether windows of ticks are inside of their episodes; what is padded anyway is not looked up."""
        is_whole = np.ones(len(ticks), bool)
        if self._by_times and self._kind.pad not in (None, "drop"):
            return is_whole
        for lo in range(0, len(ticks), _TICKS_TOGETHER):
            some = slice(lo, lo + _TICKS_TOGETHER)
            looked_up = self._looked_up(ticks[some])
            for part in self._parts:
                is_whole[some] &= part.stream.reaches(looked_up)
        return is_whole

    def reach(self) -> Reach:
        """See `CuttingReader.reach`."""
        kind = self._kind
        steps = f"{kind.history} + {kind.horizon} steps, the current one in both"
        steps = steps if kind.around is None else f"{', '.join(kind.around)} around {kind.clock}"
        if kind.pad == "drop":
            if len(self) or not len(self._episodes.used):
                return Reach(samples=len(self))
            longest = np.diff(self._episodes.offsets)[self._episodes.used].max()
            what = f"windows of {steps}, leave every episode: the longest has {longest} steps"
            return Reach(samples=0, problem=what, fitting=replace(kind, pad="edge"))
        if not self._beyond:
            return Reach(samples=len(self))
        what = f"windows of {steps}, leave their episode in {self._beyond} of {len(self)} samples"
        fitting = replace(kind, pad="edge")
        padded = kind.pad is not None
        return Reach(samples=len(self), beyond=self._beyond, padded=padded, problem=what, fitting=fitting)

    def read(self, picks: Picks, allocate: Allocate) -> Batch:
        """Read a batch of windows."""
        ticks = self._looked_up(self._ticks[picks.index])
        batch: Batch = {}
        masks: dict[str, NDArray[Any]] = {}
        for part in self._parts:
            places = part.stream.places(ticks)
            for key in part.columns:
                if key in self._columns:
                    batch[key] = self._values(key, places, ticks, allocate)
                elif key in self._ragged:
                    batch[key], masks[count_key(key)] = self._ragged_values(key, places, allocate)
            masks[part.mask] = places.is_real
            if part.timestamps in self._asked:
                masks[part.timestamps] = self._clocks.timestamps_at(part.clock, places.rows)
        masks |= self._labels.read(ticks.rows)
        batch |= {key: packed_copy(values, allocate) for key, values in masks.items()}
        return {key: packed for key, packed in batch.items() if key in self._asked}

    def _values(self, key: str, places: Places, ticks: Ticks, allocate: Allocate) -> Packed:
        """Values of a key in the rows of windows, (B, k, …)."""
        column = self._columns[key]
        out = allocate((*places.rows.shape, *column.row_shape), column.dtype)
        column.read(places.rows.reshape(-1), out.reshape(-1, *column.row_shape))
        if places.weights is not None:
            _interpolate(column, places.rows, places.weights, out)
        if key in self._deltas:
            _subtract(self._deltas[key], ticks, out)
        if self._kind.pad not in (None, "edge", "drop"):
            out[~places.is_real] = self._fills[key]
        return channels_first(out, column)

    def _ragged_values(
        self, key: str, places: Places, allocate: Allocate
    ) -> tuple[Packed, NDArray[np.int64]]:
        """Values of a key with any number of them in a row, and how many each row of a window has."""
        is_padded = self._kind.pad in (None, "edge", "drop")
        is_wanted = np.ones_like(places.is_real) if is_padded else places.is_real
        return self._ragged[key].read(key, places.rows, is_wanted, allocate)

    def _looked_up(self, rows: Rows) -> Ticks:
        """Episodes and times of ticks."""
        episodes = self._episodes.of(rows)
        if not self._by_times:
            return Ticks(rows, episodes, rows, rows, rows)
        clock = self._clocks.clock(self._clock)
        times = clock.times(rows)
        if not self._in_time:
            return Ticks(rows, episodes, times, times, times)
        first = clock.times(self._episodes.offsets[episodes])
        last = clock.times(self._episodes.offsets[episodes + 1] - 1)
        return Ticks(rows, episodes, times, first, last)


def _subtract(delta: _Delta, ticks: Ticks, out: NDArray[Any]) -> None:
    """Subtract values at the ticks from those of windows, (B, k, A)."""
    places = delta.stream.places(ticks)
    stored = np.empty((*places.rows.shape, *delta.column.row_shape), delta.column.dtype)
    delta.column.read(places.rows.reshape(-1), stored.reshape(-1, *delta.column.row_shape))
    reference = stored.astype(np.float64)
    reference[~places.is_real] = np.nan  # nothing stands for the tick
    difference = out[..., delta.components] - reference[..., delta.components]
    out[..., delta.components] = difference.astype(out.dtype)


def _interpolate(column: StepColumn, rows: Rows, weights: NDArray[np.float64], out: NDArray[Any]) -> None:
    """Move values of `rows` towards those of the rows after them, (B, k, …), in float64."""
    between = weights > 0
    count = int(between.sum())
    after = np.empty((count, *column.row_shape), column.dtype)
    column.read(rows[between] + 1, after)
    part = weights[between].reshape(count, *(1 for _ in column.row_shape))
    before = out[between].astype(np.float64)
    out[between] = (before * (1 - part) + after.astype(np.float64) * part).astype(column.dtype)
