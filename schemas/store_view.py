"""Read-only interface of an open store, for families and rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from unistore.schemas.array_specs import ArraySpecs

Rows = NDArray[Any] | Sequence[int]


class ArrayView(Protocol):
    """An array of a store, for reading."""

    @property
    def path(self) -> str:
        """Path in the store: ``"points/xyz"``."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of every axis, rows first."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the values that are read."""

    @property
    def chunk_shape(self) -> tuple[int, ...]:
        """Shape of a chunk."""

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Attributes of the array."""

    def __len__(self) -> int:
        """Rows."""

    def read(self, lo: int = 0, hi: int | None = None) -> NDArray[Any]:
        """Rows ``lo:hi`` of axis 0; None: up to the end."""

    def read_box(self, lo: Sequence[int], hi: Sequence[int]) -> NDArray[Any]:
        """The box ``lo <= i < hi``, one number per axis; shape ``hi - lo``."""

    def read_rows(self, rows: Rows) -> NDArray[Any]:
        """Whole rows of axis 0 in the order given, duplicates included; (n, *shape[1:])."""

    def read_ranges(self, lo: Rows, hi: Rows) -> NDArray[Any]:
        """Rows ``lo[i] <= row < hi[i]`` of axis 0 for every i, concatenated."""


class StoreView(Protocol):
    """A sealed store, for reading; `unistore.store.reader.Store` is one."""

    @property
    def path(self) -> str:
        """Folder or URL of the store, as it was given."""

    @property
    def family(self) -> str:
        """Family of the store: ``"point_cloud"``."""

    @property
    def specs(self) -> ArraySpecs:
        """What its arrays must be."""

    @property
    def attributes(self) -> Mapping[str, Any]:
        """The root's ``unistore`` object: ``fields``, ``options`` and so on."""

    @property
    def sample_count(self) -> int:
        """Number of samples."""

    @property
    def cached_indices(self) -> dict[str, NDArray[Any]]:
        """Small index arrays that were read and checked, by path; see `unistore.schemas.indices`."""

    def has(self, path: str) -> bool:
        """Whether the store has an array at `path`."""

    def paths(self) -> list[str]:
        """Paths of all arrays, sorted."""

    def array(self, path: str) -> ArrayView:
        """Array at `path`, opened once; a `StoreError` if there is none or it violates its spec."""

    def group(self, path: str) -> dict[str, Any]:
        """Attributes of the group at `path` (``"windows/lung"``)."""

    def text(self, path: str) -> list[str]:
        """Strings stored as UTF-8 bytes ``path/data`` and ``path/offsets`` (n + 1)."""

    def split_names(self) -> list[str]:
        """Names of the splits by code; empty if there are no splits."""
