"""Sequences of millions of small objects, a fraction of their size: what a scan holds of every source."""

from __future__ import annotations

import pickle
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from io import BytesIO
from typing import Any, Self, TypeVar, overload

from numcodecs import zstd

T = TypeVar("T")
R = TypeVar("R")

BLOCK = 256
"""Objects that are packed together."""
BYTES = 1 << 20
"""Bytes of them that are packed before there are as many."""
FEW = 4096
"""Objects that are kept as they are: packing so few saves too little."""
_LEVEL = 1


class Packed(Sequence[T]):
    """Objects that can be pickled, taken one by one, in compressed blocks; few are kept as they are."""

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._blocks: list[bytes] = []
        self._firsts: list[int] = [0]
        self._last = BytesIO()
        self._pickler: pickle.Pickler | None = None
        self._count = 0
        self._unpacked: tuple[int, list[T]] = (-1, [])
        self._few: list[T] | None = []
        for item in items:
            self.append(item)

    def append(self, item: T) -> None:
        """Add one more object."""
        if self._few is not None:
            self._few.append(item)
            self._count += 1
            if self._count > FEW:
                few, self._few, self._count = self._few, None, 0
                for each in few:
                    Packed.append(self, each)
            return
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
        self._last, self._pickler = BytesIO(), None

    def only(self, numbers: Collection[int]) -> Self:
        """A copy with the objects of these numbers and those between, to be sent to another process."""
        found = type(self)()
        found._count, found._few = self._count, None
        if self._few is not None:
            first, last = (min(numbers), max(numbers) + 1) if numbers else (0, 0)
            pickler = pickle.Pickler(found._last, pickle.HIGHEST_PROTOCOL)
            for item in self._few[first:last]:
                pickler.dump(item)
            found._firsts = [first]
        elif numbers:
            first, last = self._block_of(min(numbers)), self._block_of(max(numbers))
            found._blocks = self._blocks[first : last + 1]
            found._firsts = self._firsts[first : last + 2]
            found._last = self._last if last == len(self._blocks) else found._last
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_unpacked": (-1, []), "_pickler": None}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Packed):
            return NotImplemented
        return len(self) == len(other) and all(one == two for one, two in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> list[T]: ...
    def __getitem__(self, at: int | slice) -> T | list[T]:
        if isinstance(at, slice):
            return [self[number] for number in range(*at.indices(len(self)))]
        number = range(len(self))[at]
        if self._few is not None:
            return self._few[number]
        block = self._block_of(number)
        return self._items(block)[number - self._firsts[block]]

    def __iter__(self) -> Iterator[T]:
        if self._few is not None:
            yield from self._few
            return
        for block in range(len(self._blocks) + 1):
            yield from self._items(block)

    def _block_of(self, number: int) -> int:
        block = bisect_right(self._firsts, number) - 1
        if block < 0:
            msg = f"{number} is not one of those that were asked for"
            raise IndexError(msg)
        return block

    def _items(self, block: int) -> list[T]:
        number, found = self._unpacked
        if number != block:
            whole = block < len(self._blocks)
            data = zstd.decompress(self._blocks[block]) if whole else self._last.getvalue()
            stream = BytesIO(data)
            unpickler = pickle.Unpickler(stream)  # noqa: S301  our own
            found = []
            while stream.tell() < len(data):
                found.append(unpickler.load())
            self._unpacked = block, found
        return found


class _View(Sequence[R]):
    def __init__(self, items: Sequence[Any], function: Callable[[Any], R]) -> None:
        self._items, self._function = items, function

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, at: int) -> R: ...
    @overload
    def __getitem__(self, at: slice) -> list[R]: ...
    def __getitem__(self, at: int | slice) -> R | list[R]:
        found = self._items[at]
        return list(map(self._function, found)) if isinstance(at, slice) else self._function(found)

    def __iter__(self) -> Iterator[R]:
        return map(self._function, self._items)


def view(items: Sequence[Any], function: Callable[[Any], R]) -> Sequence[R]:
    """A lazy map that is a sequence: the function is called each time an object is asked for."""
    return _View(items, function)
