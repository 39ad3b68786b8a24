"""Arrays of files of several episodes: stretches of longer ones, rows that are not read, what groups say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.plugin import Array, Facts, Opened
from unistore.errors import Problem


class Stretch(Array):
    """Rows ``first:first + count`` of another array."""

    __slots__ = ("_count", "_first")

    def __init__(self, array: Array, first: int, count: int) -> None:
        super().__init__(array)
        self._first = first
        self._count = count

    @property
    def shape(self) -> tuple[int, ...]:
        """See `Array`."""
        return (self._count, *self.values.shape[1:])

    def problems(self, *, as_objects: bool = False) -> Sequence[Problem]:
        """See `Array`."""
        problems: Sequence[Problem] = self.values.problems(as_objects=as_objects)
        return problems

    def item(self, row: int | None = None) -> Any:
        """See `Array`."""
        if row is not None:
            return self.values.item(self._first + row)
        return self.values.item()[self._first : self._first + self._count]

    def objects(self, lo: int, hi: int) -> Iterable[Any]:
        """See `Array`."""
        rows: Iterable[Any] = self.values.objects(self._first + lo, self._first + hi)
        return rows

    def read(self, lo: int, hi: int, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """See `Array`."""
        rows: NDArray[Any] = self.values.read(self._first + lo, self._first + hi, out)
        return rows


class Unread(Array):
    """Rows that cannot be read, and why."""

    __slots__ = ("_problem",)

    def __init__(self, count: int, problem: Problem) -> None:
        super().__init__(np.empty(count, object))
        self._problem = problem

    def problems(self, *, as_objects: bool = False) -> Sequence[Problem]:
        """See `Array`."""
        return (self._problem,)


@dataclass(frozen=True, eq=False, kw_only=True)
class OpenedEpisodes(Opened):
    """An open file, with what it says of its groups."""

    of_groups: Mapping[str, Facts]

    def group_facts(self, group: str = "") -> Facts:
        """See `Opened`."""
        return self.of_groups.get(group, {})
