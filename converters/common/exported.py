"""What an exported file is: arrays that come in blocks, attributes, and a name; nothing of it is read yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["Blocks", "File", "Form", "Values", "array_values", "converted"]

Blocks = Callable[[], Iterator[NDArray[Any]]]
"""Gives the rows of an array from the first to the last, axis 0 first, as often as it is called."""

Form = Literal["hdf5", "npy", "npz", "png", "raw"]


_NUMBERS = "biufc"
"""Kinds of dtype that a source's numbers have."""


@dataclass(frozen=True, slots=True)
class Values:
    """One array of an exported file.

    Attributes
    ----------
    shape, dtype
        In the file; the dtype's byte order included. ``object``: rows are byte strings of their own length.
    blocks
        Its rows, of that dtype or of one whose values it holds.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    blocks: Blocks

    @property
    def nbytes(self) -> int:
        """Bytes of all values; of rows that are byte strings, their number."""
        return prod(self.shape) * (1 if self.dtype.hasobject else self.dtype.itemsize)

    def whole(self) -> NDArray[Any]:
        """All rows in one array."""
        out = np.empty(self.shape, self.dtype)
        at = 0
        for block in self.blocks():
            out[at : at + len(block)] = block
            at += len(block)
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One file of an export.

    Attributes
    ----------
    name
        Path below the destination, with ``/``; as the store has it, so not yet to be trusted.
    form
        ``"hdf5"``, ``"npy"``, ``"npz"``, ``"png"`` (RGB), or ``"raw"`` (the bytes themselves).
    source
        Index in ``sources/`` of what it comes from.
    values
        Arrays by path inside the file; the one array of the other forms is called ``""``.
    attributes
        Attributes of HDF5 groups and datasets by path, ``""`` for the root.
    compressed
        Whether HDF5 datasets are compressed (gzip and shuffle, chunks of 8,192 rows).
    """

    name: str
    form: Form
    source: int
    values: Mapping[str, Values]
    attributes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    compressed: bool = False


def array_values(values: NDArray[Any]) -> Values:
    """Values that are in memory already."""
    return Values(values.shape, values.dtype, lambda: iter([values]))


def converted(values: Values, dtype: np.dtype[Any]) -> Values:
    """The same rows in another dtype.

    Raises
    ------
    ValueError
        If it is no dtype of numbers or, as blocks are read, does not hold all values exactly.
    """
    if dtype == values.dtype:
        return values
    if dtype.kind not in _NUMBERS:
        msg = f"values of {values.dtype} cannot be given back as {dtype}"
        raise ValueError(msg)
    return Values(values.shape, dtype, lambda: (_exactly(block, dtype) for block in values.blocks()))


def _exactly(block: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    with np.errstate(invalid="ignore", over="ignore"):
        done = block.astype(dtype)
        same = np.can_cast(block.dtype, dtype) or np.array_equal(
            done.astype(block.dtype), block, equal_nan=block.dtype.kind in "fc"
        )
    if not same:
        msg = f"{dtype} does not hold all values of {block.dtype} exactly"
        raise ValueError(msg)
    return done
