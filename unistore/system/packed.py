"""Sequences of millions of texts or small objects, a fraction of their size: what a scan holds of sources."""

from __future__ import annotations

import pickle
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from io import BytesIO
from typing import Any, Self, TypeVar, overload

from numcodecs import zstd

T = TypeVar("T")
R = TypeVar("R")

BLOCK = 256  # Objects that are packed together
BYTES = 1 << 20  # Bytes of them that are packed before there are as many
_LEVEL = 1
_NOT_HELD = "{} is not one of those that were asked for"


class Items(Sequence[T]):
    """A sequence of items that are made when asked for. A slice is a list of them."""

    @abstractmethod
    def _item(self, number: int) -> T:
        """Return the item of a number from 0 to the length."""

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> list[T]: ...
    def __getitem__(self, at: int | slice) -> T | list[T]:
        numbers = range(len(self))[at]
        return self._item(numbers) if isinstance(numbers, int) else list(map(self._item, numbers))

    def __iter__(self) -> Iterator[T]:
        return map(self._item, range(len(self)))

    def view(self, function: Callable[[T], R]) -> Sequence[R]:
        """See `view`."""
        return view(self, function)


class PackedObjects(Items[T]):
    """Objects that can be pickled, in compressed blocks."""

    def __init__(
        self,
        # the objects, taken one by one. Paths, and dataclasses with slots, take long to unpack
        items: Iterable[T] = (),
    ) -> None:
        self._blocks: list[bytes] = []
        self._firsts: list[int] = [0]
        self._last = BytesIO()
        self._pickler: pickle.Pickler | None = None
        self._count = 0
        self._unpacked: tuple[int, list[T]] = (-1, [])
        for item in items:
            self.append(item)

    def append(self, item: T) -> None:
        if self._pickler is None:  # whose memory of what it wrote serves all objects of a block
            self._close()
            self._pickler = pickle.Pickler(self._last, pickle.HIGHEST_PROTOCOL)
        self._pickler.dump(item)
        self._count += 1
        if self._unpacked[0] == len(self._blocks):
            self._unpacked = (-1, [])
        if self._count - self._firsts[-1] == BLOCK or self._last.tell() >= BYTES:
            self._close()

    def _close(self) -> None:
        if self._count > self._firsts[-1]:
            self._blocks.append(bytes(zstd.compress(self._last.getvalue(), _LEVEL)))
            self._firsts.append(self._count)
        self._last = BytesIO()
        self._pickler = None

    def only(self, numbers: Collection[int]) -> Self:
        """Return a copy with the objects of these numbers and those between, for another process."""
        part = type(self)()
        part._count = self._count
        if numbers:
            first = self._block_of(min(numbers))
            last = self._block_of(max(numbers))
            part._blocks = self._blocks[first : last + 1]
            part._firsts = self._firsts[first : last + 2]
            part._last = self._last if last == len(self._blocks) else part._last
        return part

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_unpacked": (-1, []), "_pickler": None}

    def __len__(self) -> int:
        return self._count

    def _item(self, number: int) -> T:
        block = self._block_of(number)
        return self._items(block)[number - self._firsts[block]]

    def __iter__(self) -> Iterator[T]:
        for block in range(len(self._blocks) + 1):
            yield from self._items(block)

    def _block_of(self, number: int) -> int:
        block = bisect_right(self._firsts, number) - 1
        if block < 0:
            raise IndexError(_NOT_HELD.format(number))
        return block

    def _items(self, block: int) -> list[T]:
        number, items = self._unpacked
        if number != block:
            whole = block < len(self._blocks)
            data = zstd.decompress(self._blocks[block]) if whole else self._last.getvalue()
            stream = BytesIO(data)
            unpickler = pickle.Unpickler(stream)  # noqa: S301  our own
            items = []
            while stream.tell() < len(data):
                items.append(unpickler.load())
            self._unpacked = block, items
        return items


class _View(Items[R]):
    def __init__(self, items: Sequence[Any], function: Callable[[Any], R]) -> None:
        self._items = items
        self._function = function

    def __len__(self) -> int:
        return len(self._items)

    def _item(self, number: int) -> R:
        return self._function(self._items[number])

    def __iter__(self) -> Iterator[R]:
        return map(self._function, self._items)


def view(items: Sequence[Any], function: Callable[[Any], R]) -> Sequence[R]:
    """Return a lazy map that is a sequence: the function is called each time an object is asked for."""
    return _View(items, function)
