"""Read rows with any number of values, as the scans of a lidar."""

# `lidar/points` (M, 3) beside `lidar/offsets` (N + 1,), or `lidar/points_offsets`: scan t is
# points[offsets[t]:offsets[t + 1]]. In HDF5 a dataset (N,) of variable length says as much by itself.

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.columns import any_length
from unistore.converters.plugin import Array
from unistore.errors import Location, Problem

_OFFSETS = "offsets"
_SUFFIX = "_offsets"


class RangesOf(Array):
    """Rows, (N,) of any length each, of an array (M, …) between offsets (N + 1,)."""

    __slots__ = ("_offsets",)

    def __init__(self, array: Array, offsets: Array) -> None:
        super().__init__(array)
        self._offsets = offsets  # (N + 1,) whole numbers

    @property
    def shape(self) -> tuple[int, ...]:
        """See `Array`."""
        return (len(self._offsets) - 1,)

    @property
    def dtype(self) -> np.dtype[Any]:
        """See `Array`."""
        return any_length(self.values.dtype, self.values.shape[1:])

    def problems(self, *, as_objects: bool = False) -> Sequence[Problem]:
        """See `Array`."""
        if as_objects:
            return [*self.values.problems(), *self._offsets.problems()]
        return super().problems()

    def read(self, lo: int, hi: int, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """See `Array`."""
        del out
        bounds = self._offsets[lo : hi + 1].astype(np.int64)
        values = self.values[int(bounds[0]) : int(bounds[-1])]
        rows = np.empty(hi - lo, object)
        for row, start in enumerate(bounds[:-1] - bounds[0]):
            rows[row] = values[start : bounds[row + 1] - bounds[0]]
        return rows


def ranges_in(
    arrays: Mapping[str, Array], location: Callable[[str], Location]
) -> tuple[dict[str, str], list[Problem]]:
    """Find the arrays that offsets beside them divide, by the path of these. And offsets of none."""
    dividing: dict[str, str] = {}
    problems: list[Problem] = []
    for path, array in arrays.items():
        lengths = _lengths_beside(path, arrays)
        is_row_of_numbers = len(array.shape) == 1 and array.dtype.kind in "iu" and len(array) > 0
        if not lengths or not is_row_of_numbers or array.problems():
            continue
        offsets = array[:]
        wrong = _wrong(offsets, list(lengths.values()))
        if not wrong:
            divided = [other for other, length in lengths.items() if length == offsets[-1]]
            dividing.update(dict.fromkeys(divided, path))
        elif path.endswith(_SUFFIX) or len(offsets) - 1 in lengths.values():
            cure = "write the file again, or leave the stream out with --ignore"
            problems.append(Problem.at(location(path), wrong, cure, "value"))
    return dividing, problems


def _lengths_beside(path: str, arrays: Mapping[str, Array]) -> dict[str, int]:
    """Return rows of the arrays that offsets of such a path may divide."""
    group, _, name = path.rpartition("/")
    others = []
    if name == _OFFSETS:
        others = [other for other in arrays if other != path and other.rpartition("/")[0] == group]
    elif path.endswith(_SUFFIX) and path.removesuffix(_SUFFIX) in arrays:
        others = [path.removesuffix(_SUFFIX)]
    numbers = [other for other in others if arrays[other].dtype.kind in "biuf" and arrays[other].shape]
    return {other: len(arrays[other]) for other in numbers}


def _wrong(offsets: NDArray[Any], lengths: Sequence[int]) -> str:
    """Say why these are no offsets into an array of one of these lengths (empty: they are)."""
    falling = np.flatnonzero(offsets[1:] < offsets[:-1])
    if len(falling):
        row = int(falling[0]) + 1
        return f"row {row} is {offsets[row]}, less than the row before it ({offsets[row - 1]})"
    if offsets[0] != 0 or offsets[-1] not in lengths:
        counts = " or ".join(map(str, dict.fromkeys(lengths)))
        return f"are offsets from {offsets[0]} to {offsets[-1]}, and the arrays beside have {counts} rows"
    return ""
