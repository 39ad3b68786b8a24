"""Find where episodes begin in arrays that hold several, by the columns that say so under many names."""

# Flags of the last step (`episode_terminals` of d3rlpy, `dones_float` of IQL, `is_last` of RLDS) or of the
# first one (`is_first`, `episode_starts` of Stable-Baselines), numbers of episodes (`episode_index` of
# LeRobot, `episode_id`), and, with a value an episode, ends (`episode_ends` of diffusion policy), starts and
# lengths (`traj_lengths`). All that say of any end must agree. `terminated` and `truncated` may say of some.

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.trajectory.columns import flags
from unistore.converters.trajectory.layouts import EpisodeRecording
from unistore.converters.trajectory.names import ENDS, ROLES, EndKind, kind_of, last_name
from unistore.errors import AddOptions, InputError, Location, Problem
from unistore.plugin import Array, count_of
from unistore.system.types import AnyArray, Int64s

Ends = NDArray[np.bool_]  # which steps are the last one of an episode, (steps,)
# Columns that `--map` makes of arrays with other names, for each kind
_AS: Mapping[EndKind, str] = {kind: names[0] for kind, names in ENDS.items()}
# Words in names of columns: of episodes, of flags that may end one, of numbers of episodes, of values an
# episode, and of what is something else
_EPISODE = frozenset(
    ("ep", "eps", "episode", "episodes", "traj", "trajs", "trajectory", "trajectories", "rollout")
)
_FLAG = frozenset(
    (
        *("done", "dones", "terminal", "terminals", "terminate", "terminated", "termination", "terminations"),
        *("timeout", "timeouts", "truncate", "truncated", "truncation", "truncations", "ends", "ended"),
        *("last", "final", "first", "reset", "resets", "start", "starts"),
    )
)
_STRONG_FLAG = _FLAG | {"end", "over", "stop", "begin", "boundary", "change"}
_NUMBER = frozenset(
    ("id", "ids", "idx", "index", "indices", "number", "numbers", "num", "no", "nr", "uid", "uuid", "name")
)
_A_VALUE_AN_EPISODE = frozenset(
    (
        *("len", "lens", "length", "lengths", "end", "ends", "stops", "offset", "offsets", "start", "starts"),
        *("bounds", "boundaries", "splits", "sizes", "counts", "steps"),
    )
)
_ELSE = frozenset(
    (
        *("step", "frame", "frames", "reward", "rewards", "return", "returns", "success", "effector", "time"),
        *("gripper", "contact", "mask", "valid", "action", "state", "pose", "pos", "progress"),
    )
)


class Divided(NamedTuple):
    """The episodes of a recording."""

    firsts: list[int]  # first step of each
    by: list[str]  # datasets that divide them
    is_cut: bool  # whether the last one is not ended


@dataclass(frozen=True)
class EndFinder:
    """Finds the episodes of a recording of `length` steps. `columns`: of all arrays, by their paths."""

    recording: EpisodeRecording
    columns: Mapping[str, str]
    length: int
    is_joined: bool  # whether files of this layout hold several episodes

    def divide(self) -> Divided:
        """Return the episodes, or raise what contradicts or is unread and would say of ends."""
        ends, flag_datasets = self._flagged()
        marks: dict[str, Ends] = {}
        for path, column in self.columns.items():
            kind = kind_of(column)
            found = None if kind is None else self._ends(path, kind, is_known=True)
            if found is not None and found[:-1].any():
                marks[path] = found
        self._check(ends, flag_datasets, marks)
        by = list(flag_datasets)
        if marks:
            by = [path for path in by if path not in marks] + list(marks)
            ends = next(iter(marks.values())) | ends
        self._check_unread(ends)
        firsts = [0, *(np.flatnonzero(ends[:-1]) + 1).tolist()]
        return Divided(firsts, by, not ends[-1] and not marks)

    def _flagged(self) -> tuple[Ends, list[str]]:
        ends = np.zeros(self.length, bool)
        paths = []
        for path, column in self.columns.items():
            array = self.recording.arrays[path]
            if column in ("terminated", "truncated") and self._is_per_step(array):
                ends |= flags(array[:], self.recording.location(path), 0)
                paths.append(path)
        return ends, paths

    def _is_per_step(self, array: Array) -> bool:
        return array.shape in ((self.length,), (self.length, 1))

    def _ends(self, path: str, kind: EndKind, *, is_known: bool) -> Ends | None:
        """Return the ends that an array says of, None where it has no such form."""
        array, location = self.recording.arrays[path], self.recording.location(path)
        if kind == "number" and self._is_per_step(array):
            return self._where_it_changes(array, location)
        if array.dtype.kind not in "biuf" or array.problems() or array.shape[1:] not in ((), (1,)):
            return None
        if not array.shape or kind == "number" or len(array) == 0:
            return None
        values = array[:].reshape(-1)
        if kind == "last" and not self._is_per_step(array):
            message = f"has {len(values):,} values, but there are {self.length:,} steps"
            fix = AddOptions(("--ignore", path), "if it does not describe these steps")
            raise InputError.at(location, message, fix, "length")
        if self._is_per_step(array) and kind != "lengths" and values.max() <= 1:
            is_set = flags(values, location, 0)
            return is_set if kind != "first" else np.append(is_set[1:], True)
        wrong = ""
        stops = _stops(values, kind)
        if array.dtype.kind not in "iu" or (np.diff(stops, prepend=0) < 0).any():
            wrong = "does not rise from one episode to the next"
        elif self._is_per_step(array) and kind == "lengths" and stops[-1] != self.length:
            return None  # a length a step
        elif stops[-1] > self.length or (kind != "first" and stops[-1] != self.length):
            wrong = f"ends the last episode at step {stops[-1]:,}, but there are {self.length:,} steps"
        if wrong and is_known:
            fix = AddOptions(("--ignore", path), "if it does not describe these steps")
            raise InputError.at(location, wrong, fix, "value")
        if wrong:
            return None
        ends = np.zeros(self.length, bool)
        ends[stops[(stops > 0)] - 1] = True
        return ends

    def _where_it_changes(self, array: Array, location: Location) -> Ends | None:
        if array.is_text:
            if array.problems(as_objects=True):
                return None
            texts = dict[object, int]()
            objects = array.objects(0, self.length)
            values: AnyArray = np.array([texts.setdefault(_plain(text), len(texts)) for text in objects])
        elif array.dtype.kind in "biuf" and not array.problems():
            values = array[:].reshape(-1)
        else:
            return None
        if values.dtype.kind == "f" and (values != np.floor(values)).any():
            return None
        ends = np.append(values[1:] != values[:-1], True)
        first_rows = np.append(0, np.flatnonzero(ends[:-1]) + 1)
        _, numbers = np.unique(values[first_rows], return_index=True)
        if len(numbers) < len(first_rows):
            again = next(
                row for place, row in enumerate(first_rows.tolist()) if place not in set(numbers.tolist())
            )
            message = f"row {again} is {values[again]} again, after other episodes began"
            ignored = AddOptions(("--ignore", location.dataset), "if it does not number episodes")
            fix = ignored, "sort the steps by it"
            raise InputError.at(location, message, fix, "value")
        return ends

    def _check(self, ends: Ends, flag_datasets: Sequence[str], marks: Mapping[str, Ends]) -> None:
        """Refuse columns that contradict each other."""
        for (path, own), (other, further) in pairwise(marks.items()):
            differing = np.flatnonzero(own[:-1] != further[:-1])
            if len(differing):
                step = int(differing[0])
                ender, silent = (path, other) if own[step] else (other, path)
                self._refuse(ender, step, silent, marks[silent])
        if marks and ends[:-1].any():
            path, own = next(iter(marks.items()))
            wrong = np.flatnonzero(ends[:-1] & ~own[:-1])
            if len(wrong):
                self._refuse(" and ".join(flag_datasets), int(wrong[0]), path, own)

    def _refuse(self, ender: str, step: int, silent: str, ends: Ends) -> None:
        count = int(ends[:-1].sum()) + 1
        message = (
            f"does not end an episode at step {step}, but {ender} does; it has {count_of(count, 'episode')}"
        )
        fixes = (
            AddOptions(("--ignore", silent), f"if {ender} is right"),
            *(
                AddOptions(("--ignore", ender), f"if {silent} is right")
                for ender in (ender,)
                if " and " not in ender
            ),
        )
        raise InputError(Problem.at(self.recording.location(silent), message, fixes, "value"))

    def _check_unread(self, ends: Ends) -> None:
        """Refuse a recording in which a column says of further ends under a name that is not read."""
        for path, column in self.columns.items():
            is_read = column in ("terminated", "truncated") or kind_of(column) is not None
            if is_read or column.startswith("next_observation/"):
                continue
            role = self._unread_role(path, last_name(column), is_one=not ends[:-1].any())
            if role is None or not (role[1][:-1] & ~ends[:-1]).any():
                continue
            count = int(role[1][:-1].sum()) + 1
            message = (
                f"could divide the {self.length:,} steps into {count:,} episodes, but its name is not known"
            )
            fixes = (
                AddOptions(("--map", f"{role[0]}={path}"), "to use it"),
                AddOptions(("--ignore", path), "if it does not describe episodes"),
            )
            raise InputError(Problem.at(self.recording.location(path), message, fixes, "name"))

    def _unread_role(self, path: str, name: str, *, is_one: bool) -> tuple[str, Ends] | None:
        """Return the column that an array of another name would be, with the ends that it says of.

        `is_one`: nothing else ends an episode.
        """
        words = {*re.split(r"[^a-z]+", name)}
        of_episodes = not words.isdisjoint(_EPISODE)
        array = self.recording.arrays[path]
        is_number = array.dtype.kind in "biuf" and not array.problems()
        if not words.isdisjoint(_ELSE):
            return None
        if not self._is_per_step(array):
            is_row = is_number and len(array.shape) == 1 and array.dtype.kind in "iu" and len(array) > 1
            is_of_one = of_episodes or not words.isdisjoint(_A_VALUE_AN_EPISODE)
            return self._unread(path, ("stops", "lengths", "first")) if is_row and is_of_one else None
        if of_episodes and (words <= _EPISODE or not words.isdisjoint(_NUMBER)):
            return self._unread(path, ("number",))
        is_flag = not words.isdisjoint(_STRONG_FLAG) if of_episodes else not words.isdisjoint(_FLAG)
        if not is_number or not is_flag or not (of_episodes or (self.is_joined and is_one)):
            return None
        values = array[:].reshape(-1)
        if not np.isin(values, (0, 1)).all():
            return None
        if values[0] and not values[-1]:
            return _AS["first"], np.append(values[1:] != 0, True)
        return self._free_role(name), values != 0

    def _unread(self, path: str, kinds: Iterable[EndKind]) -> tuple[str, Ends] | None:
        for kind in kinds:
            try:
                found = self._ends(path, kind, is_known=False)
            except InputError:
                found = None  # numbers that come again are no episodes
            if found is not None and found[:-1].any():
                return _AS[kind], found
        return None

    def _free_role(self, name: str) -> str:
        """Return the role of flags, or a column of flags where the role is taken."""
        role = "terminated" if name in ROLES["terminated"] else "truncated"
        return role if role not in self.columns.values() else _AS["last"]


def _stops(values: AnyArray, kind: EndKind) -> Int64s:
    stops: Int64s = np.asarray(values).astype(np.int64)
    return np.cumsum(stops) if kind == "lengths" else stops


def _plain(text: object) -> object:
    return text.decode("utf-8", "surrogateescape") if isinstance(text, bytes) else text
