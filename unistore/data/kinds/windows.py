"""The `Windows` sample kind: a sample is the steps, or times, around each tick of a clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import ClassVar, NamedTuple, TypeAlias

import numpy as np

from unistore.data.kinds.clocks import Align, Clocks, Mask, Places, RowFinder, Ticks
from unistore.data.kinds.columns import count_key, is_ragged, is_uneven
from unistore.data.kinds.episodes import EpisodeKind
from unistore.data.kinds.padding import Pad, checked_pad, fill_values
from unistore.data.kinds.protocol import (
    Reach,
    SampleIndices,
    SampleReader,
    require_arrays,
    select_keys,
)
from unistore.data.kinds.steps import (
    EPISODE_OFFSETS,
    EpisodeRows,
    StepColumn,
    StepColumns,
    keys_on_request,
    step_column,
    validity_keys,
)
from unistore.data.packed import Allocate, Batch, Packed, packed_copies
from unistore.errors import InputError, Problem
from unistore.schemas.indices import whole
from unistore.schemas.trajectory.clocks import offsets_path
from unistore.schemas.trajectory.fields import EXTENT, STEPS
from unistore.store.reader import Store
from unistore.system.arguments import Arguments, is_integer, matches_type, wrong_argument
from unistore.system.types import AnyArray, Float64s, Int64s, JsonObject

Steps: TypeAlias = Sequence[int] | Sequence[float]
Around: TypeAlias = Mapping[str, Steps]
Delta: TypeAlias = Mapping[str, str | tuple[str, Sequence[int]]]
# Options of windows by key, and what they are without
_OF_AROUND: JsonObject = {"clock": STEPS, "align": "previous", "tolerance": None, "shift": None}
_MILLISECOND = 1_000_000
_SECOND = 1_000_000_000
# Parts of the names of columns whose numbers are no vector that can be interpolated
_ROTATIONS = ("quat", "orientation", "rotation")
_TICKS_TOGETHER = 1 << 16  # Ticks whose windows are looked up together where all are


class WindowReader(SampleReader):
    """Reads batches of `Windows`."""

    def __init__(self, store: Store, kind: Windows, fields: Sequence[str], units: Int64s) -> None:
        self._kind = kind
        self._fields = fields
        self._parts = parts_of(store, kind)
        self._clocks = Clocks(store)
        self._clock = self._clocks.of(kind.clock) or STEPS
        self._episodes = EpisodeRows(store, fields, units, offsets_path(self._clock))
        self._columns = StepColumns(store, _columns(self._parts), fields)
        dense = self._columns.dense
        self._fills = fill_values(kind.pad, {key: column.dtype for key, column in dense.items()})
        self._deltas = {
            key: _delta(store, kind, self._clocks, key, dense.get(key))
            for key in kind.delta or {}
            if key in dense or key in self._columns.uneven
        }
        streams = [part.stream for part in self._parts]
        self._in_time = any(stream.in_time for stream in streams)
        streams += [delta.stream for delta in self._deltas.values()]
        self._by_times = any(stream.clock is not None for stream in streams)
        self._ticks = self._episodes.rows(kind.stride)
        is_whole = self._are_whole()
        self._beyond = int((~is_whole).sum())
        if kind.pad == "drop":
            self._ticks = self._ticks[is_whole]

    def __len__(self) -> int:
        return len(self._ticks)

    def axis_names(self, key: str) -> Sequence[str]:
        return self._columns.axis_names(key)

    def _are_whole(self) -> Mask:
        # What is padded anyway is not looked up
        is_whole = np.ones(len(self._ticks), bool)
        if self._by_times and self._kind.pad not in (None, "drop"):
            return is_whole
        for lo in range(0, len(is_whole), _TICKS_TOGETHER):
            block = slice(lo, lo + _TICKS_TOGETHER)
            ticks = self._look_up(self._ticks[block])
            for part in self._parts:
                is_whole[block] &= part.stream.reaches(ticks)
        return is_whole

    def reach(self) -> Reach:
        kind = self._kind
        samples = len(self)
        steps = f"{kind.history} + {kind.horizon} steps, both with the current one,"
        if kind.around is not None:
            steps = f"{', '.join(kind.around)} around {kind.clock}"
        padding = replace(kind, pad="edge")
        if kind.pad == "drop" and not samples and len(self._episodes.used):
            longest = np.diff(self._episodes.offsets)[self._episodes.used].max()
            problem = f"windows of {steps} leave no samples: the longest episode has {longest:,} steps"
            return Reach(0, problem=problem, fitting=padding)
        if kind.pad == "drop" or not self._beyond:
            return Reach(samples)
        problem = f"windows of {steps} reach beyond the episode in {self._beyond:,} of {samples:,} samples"
        return Reach(samples, self._beyond, kind.pad is not None, problem, padding)

    def read(self, picks: SampleIndices, allocate: Allocate) -> Batch:
        ticks = self._look_up(self._ticks[picks.index])
        batch = self._episodes.labels(ticks.episodes, ticks.rows, allocate)
        numbers: dict[str, AnyArray] = {}
        for part in self._parts:
            places = part.stream.places(ticks)
            numbers[part.mask] = places.is_real
            if part.timestamps in self._fields:
                numbers[part.timestamps] = self._clocks.timestamps_at(part.clock, places.rows)
            is_wanted = places.is_real if self._is_filled else None
            for key in part.columns:
                if key in self._columns.dense:
                    batch[key] = self._values(key, places, ticks, allocate)
                elif key in self._columns.uneven:
                    uneven = self._columns.uneven[key]
                    batch[key], counts = uneven.read(key, places.rows, allocate, is_wanted)
                    if counts is not None:
                        numbers[count_key(key)] = counts
        batch |= packed_copies(numbers, self._fields, allocate)
        return {key: batch[key] for key in self._fields}

    @property
    def _is_filled(self) -> bool:
        # Something else than the nearest row stands where windows leave their episode
        return self._kind.pad not in (None, "edge", "drop")

    def _values(self, key: str, places: Places, ticks: Ticks, allocate: Allocate) -> Packed:
        column = self._columns.dense[key]
        out = column.values(places.rows, allocate)
        if places.weights is not None:
            _interpolate(column, places.rows, places.weights, out)
        if key in self._deltas:
            self._deltas[key].subtract(ticks, out)
        if self._is_filled:
            out[~places.is_real] = self._fills[key]
        return Packed(column.as_samples(out))

    def _look_up(self, rows: Int64s) -> Ticks:
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


@dataclass(frozen=True, slots=True)
class Windows(EpisodeKind):
    """Samples of a trajectory store: a window around each tick of a clock, inside one episode.

    There are two forms. The short one, ``Windows(history=2, horizon=8)``, gives observations a history
    and everything else a horizon. The long one, ``Windows({"left": (-4, -2, 0), "action": range(16)},
    clock="left")``, gives each key or clock its own window. Whole numbers are steps: rows of the key's
    own table, counted from the row of the tick. Numbers with a decimal point are seconds from the tick.

    Keys of a sample in the short form, at step t:

    - ``observation.<name>`` (history, …): steps ``t - history + 1`` to ``t``.
    - every other column of the steps, such as ``action`` or ``reward``, (horizon, …): steps ``t`` to
      ``t + horizon - 1``.
    - ``history_valid`` (history,) and ``horizon_valid`` (horizon,), bool: False for steps outside the
      episode.

    Keys of a sample in the long form:

    - every column of the named keys and clocks, (k, …), with one row for each of the k numbers.
    - ``<name>_valid`` (k,), bool, for each name.

    In both forms, images are (k, 3, H, W), uint8 RGB. A column with any number of values in a row, such
    as scans of a lidar, has the values of its k rows, one row after another, and ``<key>_counts`` (k,)
    states their numbers. ``<key>_present`` and ``<key>_mask`` are as in `Transitions`.

    Optional keys, read with ``fields=[…]``: ``<name>_timestamps`` (k,), as in the source, or int64
    nanoseconds for a clock with a rate; ``source``, ``episode`` (number), ``episode_name``, ``step``
    (number of the tick in its episode), and values of the episode, such as ``episode.task``.

    Parameters
    ----------
    around : dict of str to sequence of int or float, optional
        Steps or seconds around a tick, by key or clock. None: the short form.
    history : int, optional
        Number of steps of observations, with the current one. Only for the short form, which needs it.
    horizon : int, optional
        Number of steps of everything else, with the current one. Only for the short form, which needs it.
    stride : int, default 1
        Number of ticks between the starts of two windows.
    pad : {"edge", "zero", "valid", "drop"} or number, optional
        Value of rows outside the episode. ``"edge"``: the first or last row of the episode is repeated.
        ``"zero"`` and ``"valid"``: zeros. A number: that value, in every key. ``"drop"``: such windows
        are not samples. None: such a window is an error.
    clock : str, default "steps"
        Clock whose rows are the ticks, or a key of that clock.
    align : {"previous", "nearest", "linear"}, or dict of them by name, default "previous"
        Row that is used for a time. ``"previous"``: the last one that is not later. ``"nearest"``: the
        nearest one, or the earlier of two that are equally near. Of equal timestamps, both use the last
        row. ``"linear"``: values are interpolated between the rows before and after, in float64.
    tolerance : float, optional
        Largest distance between a row and its time, in milliseconds. Rows farther away are not valid.
        None: any distance.
    shift : dict of str to float, optional
        Milliseconds to add to the timestamps of a clock, by name, for a clock that is early. None: no shift.
    delta : dict of str to str or (str, sequence of int), optional
        Keys whose values become differences from another key at the tick: ``{"action":
        "observation.joint"}`` subtracts the joints at the tick from every action of the window.
        ``{"action": ("observation.joint", range(6))}`` does this for six components only, so that a
        gripper stays absolute. Padding is not changed. None: no differences.

    Raises
    ------
    InputError
        If an argument is invalid, or both forms are mixed. Opening a Dataset raises it if the store has
        no such key or clock, or no times for seconds and several clocks.

    Examples
    --------
    Two observations and eight actions, as for a diffusion policy:

    >>> kind = unistore.Windows(history=2, horizon=8, pad="edge")  # doctest: +SKIP
    >>> dataset = unistore.Dataset("demos.zarr", kind)  # doctest: +SKIP

    Sixteen actions relative to the joints at the tick of a camera:

    >>> kind = unistore.Windows(  # doctest: +SKIP
    ...     {"observation.left": (-4, -2, 0), "action": range(16)},
    ...     clock="observation.left",
    ...     delta={"action": "observation.joint"},
    ... )
    """

    reader: ClassVar = WindowReader

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
            check.integer("history", self.history, 1)
            check.integer("horizon", self.horizon, 1)
            for name, default in _OF_AROUND.items():
                if getattr(self, name) != default:
                    message = "works only with a window for each key"
                    check.refuse(name, message, "use for example Windows({'action': range(8)}, …)")
        else:
            self._check_around(check, self.around)
        check.integer("stride", self.stride, 1)
        object.__setattr__(self, "pad", checked_pad(check, self.pad))
        is_delta = isinstance(self.delta, Mapping) and all(map(_is_reference, self.delta.values()))
        expected = (
            "a mapping of keys to keys, or to keys with components, such as "
            "{'action': ('observation.joint', (0, 1, 2))}"
        )
        check.expect("delta", self.delta, is_delta, expected, none=True)
        check.raise_problems()

    def _check_around(self, check: Arguments, around: Around) -> None:
        if self.history is not None or self.horizon is not None:
            given = "history" if self.history is not None else "horizon"
            message = "does not work together with a window for each key"
            check.refuse(given, message, f"remove {given}, or the windows")
        are_steps = matches_type(around, Mapping[str, Sequence[float]]) and bool(around)
        expected = "a mapping of keys to steps (whole numbers) or seconds"
        if not check.expect("around", around, are_steps and all(map(len, around.values())), expected):
            return
        check.text("clock", self.clock)
        check.number("tolerance", self.tolerance, none=True)
        is_align = matches_type(self.align, Align) or matches_type(self.align, Mapping[str, Align])
        check.expect(
            "align", self.align, is_align, "'previous', 'nearest' or 'linear', or a mapping of keys to these"
        )
        is_shift = matches_type(self.shift, Mapping[str, float])
        check.expect("shift", self.shift, is_shift, "a mapping of keys to milliseconds", none=True)
        for name in ("align", "shift"):
            value = getattr(self, name)
            if isinstance(value, Mapping) and (unknown := sorted(set(value) - set(around))):
                message = f"there is no window of {', '.join(map(repr, unknown))}"
                check.refuse(name, message, f"use one of {', '.join(around)}")

    def computes(self, key: str) -> bool:
        return self.delta is not None and key in self.delta

    def align_of(self, name: str) -> Align:
        """Return how rows are chosen for the times of a key or clock."""
        return self.align if isinstance(self.align, str) else self.align.get(name, "previous")

    def select(self, store: Store, fields: Sequence[str] | None) -> tuple[str, ...]:
        require_arrays(store, self, EPISODE_OFFSETS)
        parts = parts_of(store, self)
        columns = _columns(parts)
        if unknown := sorted(set(self.delta or ()) - set(columns)):
            message = f"no window contains {', '.join(map(repr, unknown))}"
            raise wrong_argument("delta", message, f"use one of {', '.join(columns)}")
        counts = [count_key(key) for key, path in columns.items() if is_ragged(path)]
        validity = [key for key in validity_keys(store) if key.rpartition("_")[0] in columns]
        default_keys = [*columns, *counts, *(part.mask for part in parts), *validity]
        return select_keys(
            default_keys, fields, [*keys_on_request(store, fields), *(part.timestamps for part in parts)]
        )


def _is_reference(reference: object) -> bool:
    if isinstance(reference, tuple) and len(reference) == 2:
        reference, components = reference
        are_numbers = matches_type(components, Sequence[int]) and min(components, default=0) >= 0
        return isinstance(reference, str) and are_numbers
    return isinstance(reference, str)


class WindowPart(NamedTuple):
    """One of the windows around a tick.

    Attributes
    ----------
    name : str
        Name in `Windows.around`, or ``"history"`` or ``"horizon"``.
    clock : str
        Name of its clock.
    columns : mapping of str to str
        Path of each column by key.
    stream : RowFinder
        Finds the rows of the window.
    """

    name: str
    clock: str
    columns: Mapping[str, str]
    stream: RowFinder

    @property
    def mask(self) -> str:
        """Key of the flags of valid rows: ``"history_valid"``."""
        return f"{self.name}_valid"

    @property
    def timestamps(self) -> str:
        """Key of the timestamps of the rows: ``"history_timestamps"``."""
        return f"{self.name}_timestamps"


def _columns(parts: Sequence[WindowPart]) -> dict[str, str]:
    return dict(chain.from_iterable(part.columns.items() for part in parts))


def parts_of(store: Store, kind: Windows) -> list[WindowPart]:
    """Return the windows around a tick.

    Parameters
    ----------
    store : Store
        A trajectory store.
    kind : Windows
        The sample kind.

    Returns
    -------
    list of WindowPart
        One for each name in `Windows.around`; in the short form, the history and the horizon.

    Raises
    ------
    InputError
        If the windows do not fit the store. It contains all problems.
    """
    clocks = Clocks(store)
    if kind.around is None:
        assert kind.history is not None
        assert kind.horizon is not None
        offsets = clocks.offsets(STEPS)
        paths = clocks.columns[STEPS]
        past = {key: path for key, path in paths.items() if key.startswith("observation.")}
        present = {key: path for key, path in paths.items() if key not in past}
        history = RowFinder(offsets=offsets, clock=None, steps=np.arange(1 - kind.history, 1))
        horizon = RowFinder(offsets=offsets, clock=None, steps=np.arange(kind.horizon))
        return [WindowPart("history", STEPS, past, history), WindowPart("horizon", STEPS, present, horizon)]
    ticks = _clock_of(clocks, store, "clock", kind.clock)
    windowed = set[str]()
    parts = []
    problems = []
    for name, steps in kind.around.items():
        clock_name = _clock_of(clocks, store, "around", name)
        columns = (
            clocks.columns[clock_name] if name == clock_name else {name: clocks.columns[clock_name][name]}
        )
        if twice := windowed.intersection(columns):
            message = f"{', '.join(sorted(twice))} is in two windows"
            problems.append((name, message, "remove one of the two windows"))
        windowed.update(columns)
        is_linear = kind.align_of(name) == "linear"
        needs_times = clock_name != ticks or is_linear or _are_seconds(steps) or name in (kind.shift or {})
        if needs_times and not clocks.has_times(clock_name, ticks):
            message = "needs times, but the store has no times of its steps"
            fix = "give whole numbers, which count steps, without align='linear' and shift"
            problems.append((name, message, fix))
        if is_linear:
            problems += _not_linear(store, name, steps, columns)
        if not problems:
            parts.append(
                WindowPart(name, clock_name, columns, _stream(kind, clocks, name, clock_name, steps))
            )
    if problems:
        shown = [Problem(f"around[{name!r}]", message, fix, "option") for name, message, fix in problems]
        raise InputError(shown)
    return parts


def _clock_of(clocks: Clocks, store: Store, argument: str, name: str) -> str:
    clock_name = clocks.of(name)
    if clock_name is None:
        keys = ", ".join(chain.from_iterable(clocks.columns.values()))
        message = f"{store.path} has no key and no clock {name!r}"
        fix = f"use one of the clocks {', '.join(clocks.columns)}, or of the keys {keys}"
        raise wrong_argument(argument, message, fix)
    return clock_name


def _not_linear(
    store: Store, name: str, steps: Steps, columns: Mapping[str, str]
) -> Iterator[tuple[str, str, str]]:
    # Why rows of a window cannot be interpolated
    if not _are_seconds(steps) and any(step != 0 for step in steps):
        message = "counts rows, but align='linear' interpolates between times"
        yield name, message, "give seconds, for example (-0.1, 0.0)"
    for key, path in columns.items():
        obstacle = ""
        if is_ragged(path):
            obstacle = "has rows of different lengths"
        elif is_uneven(path):
            obstacle = "is text"
        elif (dtype := step_column(store, path).dtype).kind != "f":
            obstacle = f"is {dtype}"
        elif any(word in key.lower() for word in _ROTATIONS):
            obstacle = "is a rotation, according to its name"
        if obstacle:
            fix = f"give align={{{name!r}: 'nearest'}}"
            yield name, f"{key} {obstacle}, which cannot be interpolated", fix


def _are_seconds(steps: Steps) -> bool:
    return any(not is_integer(step, None) for step in steps)


def _stream(kind: Windows, clocks: Clocks, name: str, own: str, steps: Steps) -> RowFinder:
    align = kind.align_of(name)
    shift = (kind.shift or {}).get(name, 0)
    in_time = align == "linear" or _are_seconds(steps)
    is_tick = own == clocks.of(kind.clock) and not shift and not in_time
    seconds = np.rint(np.asarray(steps, np.float64) * _SECOND).astype(np.int64)
    return RowFinder(
        offsets=clocks.offsets(own),
        clock=None if is_tick else clocks.clock(own),
        steps=seconds if in_time else np.asarray(steps, np.int64),
        in_time=in_time,
        align=align,
        tolerance=None if kind.tolerance is None else round(kind.tolerance * _MILLISECOND),
        shift=round(shift * _MILLISECOND),
    )


class _Delta(NamedTuple):
    column: StepColumn
    stream: RowFinder  # finds the row of a tick
    components: Sequence[int]

    def subtract(self, ticks: Ticks, out: AnyArray) -> None:
        places = self.stream.places(ticks)
        reference = self.column.values(places.rows).astype(np.float64)
        reference[~places.is_real] = np.nan  # nothing stands for the tick
        difference = out[..., self.components] - reference[..., self.components]
        out[..., self.components] = difference.astype(out.dtype)


def _delta(store: Store, kind: Windows, clocks: Clocks, key: str, column: StepColumn | None) -> _Delta:
    assert kind.delta is not None
    reference = kind.delta[key]
    name, components = (reference, None) if isinstance(reference, str) else reference
    where = f"delta[{key!r}]"
    clock_name = _clock_of(clocks, store, where, name)
    fix = "name the components, for example {'action': ('observation.joint', range(6))}"
    message = ""
    if clock_name != clocks.of(kind.clock) and not clocks.has_times(clock_name, kind.clock):
        message = f"{name} has another clock than {kind.clock}, and the store does not have the times of both"
    elif kind.align_of(name) == "linear":
        message = f"{name} is interpolated, but a stored row of it must be subtracted"
        fix = f"give align={{{name!r}: 'nearest'}}"
    elif column is None or name == clock_name or is_uneven(clocks.columns[clock_name][name]):
        message = f"{key} or {name} is text, or has rows of different lengths, so it cannot be subtracted"
        fix = "remove it from delta"
    else:
        reference_column = step_column(store, clocks.columns[clock_name][name])
        sizes = [one.row_shape[0] if len(one.row_shape) == 1 else 0 for one in (column, reference_column)]
        sizes += [_smallest(store, padded) for padded in (key, name) if store.has(f"{EXTENT}/{padded}")]
        numbers = range(max(sizes)) if components is None else components
        if column.dtype.kind == "f" and max(numbers, default=0) < min(sizes):
            return _Delta(reference_column, _stream(kind, clocks, name, clock_name, (0,)), list(numbers))
        forms = [f"{one.dtype} {one.row_shape}" for one in (column, reference_column)]
        message = f"{key} is {forms[0]} and {name} is {forms[1]}, but {key} must be floating point, and both "
        message += "must have these components in every episode"
    raise wrong_argument(where, message, fix)


def _smallest(store: Store, key: str) -> int:
    """Return the fewest values that rows of a padded column have in an episode that has it."""
    extents = whole(store, f"{EXTENT}/{key}")[:, 0]
    return int(extents[extents > 0].min(initial=np.iinfo(np.int32).max))


def _interpolate(column: StepColumn, rows: Int64s, weights: Float64s, out: AnyArray) -> None:
    between = weights > 0
    after = column.values(rows[between] + 1).astype(np.float64)
    part = weights[between].reshape(-1, *[1] * len(column.row_shape))
    out[between] = (out[between].astype(np.float64) * (1 - part) + after * part).astype(column.dtype)
