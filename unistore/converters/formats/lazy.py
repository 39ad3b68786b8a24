"""Arrays whose rows are read when they are sliced: by a function, forward only, of records and of text."""

# `Array` slices them by two whole numbers, the first row and the one behind the last.

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from math import prod
from typing import IO, Any

import numpy as np

from unistore.converters.array import Array
from unistore.converters.common.faults import COPY_AGAIN, WRITE_AGAIN
from unistore.converters.opened import SourceFile
from unistore.errors import Problem
from unistore.system.sizes import count_of
from unistore.system.types import AnyArray, Dtype, Shape

_SHOWN = 60
_MOST_WHOLE = 1 << 53  # float64 holds all whole numbers up to here
_WHOLE = re.compile(r"[+-]?[0-9]+")
_LONGEST = 300  # digits of a whole number that float64 may hold
_LINE = 80  # bytes of a line in memory, beside its text
_BYTE_ORDER_MARK = "\ufeff".encode().decode("latin-1")


@dataclass(eq=False)
class LazyRows:
    """Rows of a shape and dtype that are known before they are read. ``read(lo, hi)`` gives some of them."""

    shape: Shape
    dtype: Dtype
    read: Callable[[int, int], AnyArray]

    def __getitem__(self, rows: slice) -> AnyArray:
        return self.read(rows.start, rows.stop)


class ForwardRecords:
    """Records of a file that is decoded packet by packet."""

    def __init__(
        self, dtype: Dtype, packets: Callable[[], Iterator[AnyArray]], count: Callable[[], int]
    ) -> None:
        self.dtype = dtype
        self._packets = packets  # begins to decode the file: arrays of records, one after the other
        self._count = count  # counts the records of the file
        self._coming: Iterator[AnyArray] = iter(())
        self._packet = np.empty(0, dtype)
        self._start = sys.maxsize  # number of the first record of the packet; at first none is decoded

    @cached_property
    def shape(self) -> Shape:
        return (self._count(),)

    def __getitem__(self, rows: slice) -> AnyArray:
        lo = rows.start
        hi = rows.stop
        out = np.empty(hi - lo, self.dtype)
        if lo < self._start:
            self._begin()
        place = lo
        while place < hi:
            end = self._start + len(self._packet)
            if place >= end:
                self._next(place)
                continue
            stop = min(hi, end)
            records = self._packet[place - self._start : stop - self._start]
            out[place - lo : stop - lo] = records
            place = stop
        return out

    def _begin(self) -> None:
        self._coming = self._packets()
        self._packet = self._packet[:0]
        self._start = 0

    def _next(self, place: int) -> None:
        self._start += len(self._packet)
        packet = next(self._coming, None)
        if packet is None:
            raise ValueError(f"ends before record {place:,} of {self.shape[0]:,}")
        self._packet = packet


def lazy_fields(dtype: Dtype, count: int, records: Callable[[], AnyArray]) -> dict[str, LazyRows]:
    """Return the fields of `count` records, which are made when the first field is sliced."""

    def rows_of(name: str, lo: int, hi: int) -> AnyArray:
        rows: AnyArray = records()[name][lo:hi]
        return rows

    fields = {}
    for name in dtype.names or ():
        form = dtype[name]
        fields[name] = LazyRows((count, *form.shape), form.base, partial(rows_of, name))
    return fields


def without_last(line: str, separator: str | None) -> str:
    """Return a line without separators behind its last word, which some programs write."""
    return line if separator is None else line.rstrip(f"{separator} \t\r\n")


@dataclass(eq=False)
class TextRows:
    """Lines of a file from `first` on, without blank ones, as records of a dtype."""

    file: SourceFile
    dtype: Dtype
    first: int
    separator: str | None = None  # what stands between numbers; None: any white space
    stated: int | None = None  # how many the header of the file states, if it does
    others: int = 0  # lines of other things that follow

    @cached_property
    def count(self) -> int:
        """How many there are: the lines are counted, and must be as many as the file states."""
        with self.file.path.open("rb") as lines:
            found = sum(1 for line in islice(lines, self.first, None) if line.strip()) - self.others
        if self.stated is not None and found != self.stated:
            raise self._miscounted(found, self.stated)
        return found

    def _miscounted(self, found: int, stated: int) -> Exception:
        kind = "truncated" if found < stated else "damaged"
        message = f"has {count_of(max(0, found), 'line')} of points, but its header states {stated:,}"
        return self.file.problem(message, f"{COPY_AGAIN}, or correct its header", kind)

    @property
    def memory(self) -> int:
        """Bytes of the lines, of which each is a string, and of the records."""
        return 2 * self.file.size + self.count * (_LINE + self.dtype.itemsize)

    def columns(self) -> dict[str, LazyRows]:
        """Return the fields, which are read with the first that is sliced."""
        return lazy_fields(self.dtype, self.count, lambda: self.records)

    def check_size(self) -> None:
        """Refuse a file that is too short for so many numbers as its header tells of."""
        numbers = sum(prod(self.dtype[name].shape) for name in self.dtype.names or ())
        # A digit each, and what separates it from the next
        self.file.check_size(2 * self.count * numbers - 1)

    @cached_property
    def records(self) -> AnyArray:
        """Return all records, (n,), or name the first line that is wrong."""
        with self._open() as file:
            lines = [line for _, line in islice(self._lines(file), self.count)]
        try:
            rows = self._parsed(lines)
        except ValueError:
            raise self._wrong_line() from None
        if len(rows) != self.count:
            raise self._miscounted(len(rows), self.count)
        for row in self._rows_of_large_numbers(rows):
            self._check_whole_numbers(row, lines[row])
        return rows

    def _rows_of_large_numbers(self, rows: AnyArray) -> list[int]:
        """Return the records with a float64 beyond the whole numbers that it holds one by one."""
        is_large = np.zeros(len(rows), np.bool_)
        for name in self.dtype.names or ():
            if self.dtype[name].base == np.float64:
                values = rows[name].reshape(len(rows), prod(self.dtype[name].shape))
                is_large |= (np.abs(values) >= _MOST_WHOLE).any(axis=1)
        numbers: list[int] = np.flatnonzero(is_large).tolist()
        return numbers

    def _check_whole_numbers(self, row: int, line: str) -> None:
        for word in map(str.strip, line.split(self.separator)):
            if _WHOLE.fullmatch(word) and (len(word) > _LONGEST or int(word) != float(word)):
                with self._open() as file:
                    number, _ = next(islice(self._lines(file), row, None))
                message = f"line {number} has {word[:_SHOWN]}, which is rounded when text is read as float64"
                fix = "save the values as a column of integers, in HDF5 or .npz"
                raise self.file.problem(message, fix, "dtype")

    def _open(self) -> IO[str]:
        return self.file.path.open(encoding="latin-1", newline="\n")

    def _lines(self, file: IO[str]) -> Iterator[tuple[int, str]]:
        """Lines that are not blank, with their numbers."""
        for number, line in enumerate(file, 1):
            if number > self.first and line.strip():
                yield number, without_last(line.removeprefix(_BYTE_ORDER_MARK), self.separator)

    def _parsed(self, lines: list[str]) -> AnyArray:
        if not lines:
            return np.empty(0, self.dtype)
        return np.loadtxt(lines, self.dtype, delimiter=self.separator, comments=None, ndmin=1)

    def _wrong_line(self) -> Exception:
        """Find the first line that is no record."""
        with self._open() as file:
            for number, line in self._lines(file):
                try:
                    self._parsed([line])
                except ValueError:
                    return self.file.problem(
                        f"line {number} is not a point: {line.strip()[:_SHOWN]!r}",
                        "correct this line",
                        "damaged",
                    )
        return self.file.problem("its lines cannot be read as numbers", WRITE_AGAIN, "damaged")


def mapped_records(file: SourceFile, dtype: Dtype, start: int, count: int) -> Mapping[str, AnyArray]:
    """Return the fields of `count` records that follow a byte, which must all be there."""
    file.check_size(start + count * dtype.itemsize)
    records = np.memmap(file.path, dtype, "r", start, (count,)) if count else np.empty(0, dtype)
    return {name: records[name] for name in dtype.names or ()}


class Stretch(Array):
    """Rows ``first:first + count`` of another array."""

    __slots__ = ("_count", "_first")

    def __init__(self, array: Array, first: int, count: int) -> None:
        super().__init__(array)
        self._first = first
        self._count = count

    @property
    def shape(self) -> Shape:
        return (self._count, *self.values.shape[1:])

    def problems(self, *, as_objects: bool = False) -> Sequence[Problem]:
        problems: Sequence[Problem] = self.values.problems(as_objects=as_objects)
        return problems

    def item(self, row: int | None = None) -> Any:
        if row is not None:
            return self.values.item(self._first + row)
        return self.values.item()[self._first : self._first + self._count]

    def objects(self, lo: int, hi: int) -> Iterable[Any]:
        rows: Iterable[Any] = self.values.objects(self._first + lo, self._first + hi)
        return rows

    def read(self, lo: int, hi: int, out: AnyArray | None = None) -> AnyArray:
        rows: AnyArray = self.values.read(self._first + lo, self._first + hi, out)
        return rows


class Unread(Array):
    """Rows that cannot be read, and why."""

    __slots__ = ("_problem",)

    def __init__(self, count: int, problem: Problem) -> None:
        super().__init__(np.empty(count, object))
        self._problem = problem

    def problems(self, *, as_objects: bool = False) -> Sequence[Problem]:
        return (self._problem,)
