"""The `Storage` protocol: objects of a store by key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

from unistore.errors import StoreError

DOCUMENT_LIMIT = 256 << 20
"""Bytes of one object that is read whole, where the reader names no other limit."""


class AbsentError(StoreError):
    """There is no such object."""


class Storage(Protocol):
    """Objects by key (``"points/xyz/c/0/0"``); holds no handle when made, and pickles small.

    ``str(storage)`` names the place in errors: a folder, a URL.
    """

    fork_safe: bool
    """Whether a child forked from a process that has used it can use it too."""

    def get(self, key: str, limit: int = DOCUMENT_LIMIT) -> bytes:
        """Whole object; raises `AbsentError`, or `StoreError` if it has more than `limit` bytes."""

    def size(self, key: str) -> int | None:
        """Bytes of an object, or None where there is none."""

    def read_into(self, key: str, offset: int, out: memoryview) -> None:
        """Fill `out` (bytes) from `offset` of an object; raises `CorruptionError` if it ends before."""

    def read_many(self, keys: Sequence[str], offsets: Sequence[int], sizes: Sequence[int]) -> Iterator[bytes]:
        """Read many ranges, yielded in the order given; those of one object stand together where possible.

        Raises `CorruptionError` if an object ends before its range does.
        """


@runtime_checkable
class SupportsReadEnds(Protocol):
    """A storage with high latency, which reads the ends of many objects concurrently."""

    def read_ends(self, keys: Sequence[str], size: int) -> Iterator[tuple[int, bytes] | None]:
        """Bytes of each object, and its last `size` bytes (all where it has fewer); None: it is absent."""


@runtime_checkable
class SupportsFileIdentity(Storage, Protocol):
    """A storage of files that can detect whether a file was replaced or changed."""

    def identity(self, key: str) -> tuple[int, ...]:
        """Device, inode, size and times of the last changes of an object."""


@runtime_checkable
class SupportsReadInto(Protocol):
    """A storage that reads many ranges directly into arrays."""

    def read_many_into(
        self, keys: Sequence[str], offsets: Sequence[int], targets: Sequence[NDArray[Any]], tail: int
    ) -> Iterator[bytearray]:
        """Fill each target (C-contiguous); yield the `tail` bytes that follow, valid until the next."""
