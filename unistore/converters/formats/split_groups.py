"""HDF5 files whose groups ``train``, ``val`` and ``test`` are splits of the same columns."""

# The rows of such groups open as one array, those of one split after those of another.

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from unistore.converters.array import Array, NamedArrays
from unistore.converters.files.paths import SPLIT_NAMES, split_of
from unistore.converters.opened import OpenFile, Origin, SourceFile
from unistore.errors import Problem, first_few
from unistore.system.types import AnyArray, Dtype, Shape

if TYPE_CHECKING:
    from unistore.converters.files.hdf5.attributes import Attributes


class SplitGroup(NamedTuple):
    """A group that is a split."""

    name: str  # of the group
    split: str  # ``"train"``, ``"val"`` or ``"test"``
    rows: int = 0


class ArrayOfSplits(Array):
    """Arrays of several groups as one, one after the other along axis 0."""

    __slots__ = ("_bounds", "_parts")

    def __init__(self, parts: Sequence[Array]) -> None:
        super().__init__(parts[0])
        self._parts = parts
        self._bounds = np.cumsum([0, *map(len, parts)]).tolist()

    @property
    def shape(self) -> Shape:
        return (self._bounds[-1], *self._parts[0].shape[1:])

    @property
    def dtype(self) -> Dtype:
        dtypes = [part.dtype for part in self._parts]
        # byte strings of another length are texts all the same
        return max(dtypes, key=lambda dtype: dtype.itemsize) if dtypes[0].kind in "SU" else dtypes[0]

    @property
    def chunk_rows(self) -> int:
        return max(part.chunk_rows for part in self._parts)

    def problems(self, *, as_objects: bool = False) -> Sequence[Problem]:
        return [*chain.from_iterable(part.problems(as_objects=as_objects) for part in self._parts)]

    def _within(self, lo: int, hi: int) -> Iterator[tuple[Array, int, int, int]]:
        """Yield each part that has some of the rows, with these rows of it, and where they go."""
        for part, first, stop in zip(self._parts, self._bounds, self._bounds[1:], strict=False):
            start, end = max(lo, first), min(hi, stop)
            if start < end:
                yield part, start - first, end - first, start - lo

    def objects(self, lo: int, hi: int) -> Iterable[Any]:
        return chain.from_iterable(part.objects(start, end) for part, start, end, _ in self._within(lo, hi))

    def read(self, lo: int, hi: int, out: AnyArray | None = None) -> AnyArray:
        pieces = list(self._within(lo, hi))
        if len(pieces) == 1:
            (part, start, end, _) = pieces[0]
            return part.read(start, end, out)
        dtype = self.dtype.newbyteorder("=")
        rows = np.empty((hi - lo, *self.shape[1:]), dtype) if out is None or out.dtype != dtype else out
        for part, start, end, place in pieces:
            rows[place : place + end - start] = part.read(start, end)
        return rows


@dataclass(frozen=True, eq=False, kw_only=True)
class OpenedSplits(OpenFile):
    """An open file, by the columns that its groups have in common.

    Attributes
    ----------
    hdf5
        The file.
    splits
        Its groups, train first, then val, then test.
    all_columns
        Arrays of numbers and of texts, by their path in each group.
    """

    hdf5: OpenFile
    splits: Sequence[SplitGroup]
    all_columns: NamedArrays

    @property
    def all_arrays(self) -> NamedArrays:
        return self.all_columns

    @property
    def unreachable(self) -> Sequence[Problem]:
        return self.hdf5.unreachable

    def origins(self, name: str) -> Sequence[Origin]:
        """See `OpenFile`."""
        return [*chain.from_iterable(self.hdf5.origins(path) for path in self._paths(name))]

    def attributes(
        self, is_wanted: Callable[[str], bool], is_told: Callable[[str, str, bool], bool] | None = None
    ) -> Attributes | None:
        """See `OpenFile`: the attributes of the datasets of each group."""
        wanted = {path for name in self.all_columns if is_wanted(name) for path in self._paths(name)}
        return self.hdf5.attributes(wanted.__contains__, is_told)

    def _paths(self, name: str) -> list[str]:
        return [f"{group.name}/{name}" for group in self.splits]


class SplitReading:
    """What the groups of an open file say if they are read as splits.

    Parameters
    ----------
    opened
        The file.

    Attributes
    ----------
    groups
        Groups at the root that are called like a split, train first; fewer than two are no splits.
    """

    def __init__(self, opened: OpenFile) -> None:
        self._opened = opened
        names = [name for name, kind in opened.members().items() if kind == "group"]
        found = [SplitGroup(name, split) for name in names if (split := split_of(f"{name}/")) is not None]
        self.groups = sorted(found, key=lambda group: SPLIT_NAMES.index(group.split))

    @cached_property
    def columns(self) -> Mapping[str, Mapping[str, Array]]:
        """Arrays with rows of each group, by their path in the group."""
        opened = self._opened
        arrays = {**opened.of_any_length, **opened.arrays}
        columns: dict[str, dict[str, Array]] = {group.name: {} for group in self.groups}
        for path, array in arrays.items():
            name, _, inner = path.partition("/")
            if name in columns and array.shape:
                columns[name][inner] = array
        return columns

    @cached_property
    def common(self) -> list[str]:
        """Columns that every group has."""
        first, *others = self.columns.values()
        return [name for name in first if all(name in other for other in others)]

    @property
    def differing(self) -> str:
        """Say which columns only some of the groups have. Empty: none."""
        for name, columns in self.columns.items():
            own = [column for column in columns if column not in self.common]
            if own:
                having = [other for other, theirs in self.columns.items() if own[0] in theirs]
                verb = "has" if len(having) == 1 else "have"
                return f"only {' and '.join(having) or name} {verb} {first_few(own)}"
        return ""

    @property
    def contradiction(self) -> str:
        """Say why the common columns cannot be rows of one table. Empty: they can."""
        splits = [group.split for group in self.groups]
        if len(set(splits)) < len(splits):
            return f"{' and '.join(group.name for group in self.groups)} are not different splits"
        if not self.common:
            return "they have no column in common"
        for column in self.common:
            forms = {name: _form(columns[column]) for name, columns in self.columns.items()}
            if len(set(forms.values())) > 1:
                shown = [f"{form} in {name}" for name, form in forms.items()]
                return f"{column} is {' and '.join(shown)}"
            first, *others = (_class_names(columns[column]) for columns in self.columns.values())
            if any(names != first for names in others):
                return f"{column} numbers its classes differently in {' and '.join(self.columns)}"
        for name, columns in self.columns.items():
            lengths = {column: len(columns[column]) for column in self.common}
            if len(set(lengths.values())) > 1:
                shown = [f"{column} {length}" for column, length in lengths.items()]
                return f"columns of {name} differ in length: {first_few(shown)}"
        return ""

    def are_splits(self, only_common: bool) -> bool:
        """Return whether the groups can only be splits, by all columns or by the common ones."""
        is_alike = len(self.groups) > 1 and not self.contradiction
        return is_alike and (only_common or not self.differing)

    def opened(self, file: SourceFile) -> OpenedSplits:
        """Return the open file by the common columns of its groups."""
        whole = self._opened
        columns = {name: ArrayOfSplits([own[name] for own in self.columns.values()]) for name in self.common}
        splits = [group._replace(rows=len(self.columns[group.name][self.common[0]])) for group in self.groups]
        paths = {f"{group.name}/{name}" for group in splits for name in columns}
        inside = tuple(f"{group.name}/" for group in splits)
        called = " and ".join(group.name for group in splits)
        outside = [path for path in (*whole.arrays, *whole.of_any_length) if path not in paths]
        reasons = {
            path: "because only some of the splits have it"
            if path.startswith(inside)
            else f"because it is outside of the splits {called}"
            for path in outside
            if whole.all_arrays[path].shape
        }
        shows = {}
        for name in columns:
            own = [f"{group.name}/{name}" for group in splits]
            if any(path in whole.shows for path in own):
                shows[name] = [*chain.from_iterable(whole.origins(path) for path in own)]
        return OpenedSplits(
            arrays={name: array for name, array in columns.items() if not array.problems()},
            metadata=whole.metadata,
            further=whole.further,
            memory=whole.memory,
            problems=[
                problem
                for problem in whole.problems
                if problem.dataset not in paths and problem.dataset.startswith(inside)
            ],
            left_out={**whole.left_out, **reasons},
            file=file,
            shows=shows,
            hdf5=whole,
            splits=splits,
            all_columns=columns,
        )


def _form(array: Array) -> str:
    """Return the form of the rows of a column, equal for those that can follow each other."""
    dtype = array.dtype
    text = "bytes" if dtype.kind == "S" else str(dtype)
    metadata: Mapping[str, Any] = dtype.metadata or {}
    inner = metadata.get("vlen", "")
    return f"{text}{f' of {inner}' if inner else ''} {array.shape[1:]}"


def _class_names(array: Array) -> Mapping[str, int]:
    """Return the names that an HDF5 enumeration gives to numbers. Empty: the column is of plain numbers."""
    metadata: Mapping[str, Any] = array.dtype.metadata or {}
    names: Mapping[str, int] = metadata.get("enum", {})
    return names
