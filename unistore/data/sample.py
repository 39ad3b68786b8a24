"""`Sample`, a dict of tensors that knows its ragged keys, and `Samples`, the samples of one batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import default_collate, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from unistore.data.packed import Batch, lent_memory
from unistore.errors import InputError
from unistore.system.packed import Items

_ALIGNMENT = 64
"""Alignment of arrays in bytes: a cache line."""


def empty_tensor(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return an uninitialised contiguous tensor, in the batch's memory if it has any."""
    size = math.prod(shape) * dtype.itemsize
    allocate = lent_memory()
    if size and allocate is not None:
        memory = torch.from_numpy(allocate((size,), np.dtype(np.uint8)))
        return memory.view(dtype).view(tuple(shape))
    if size == 0 or get_worker_info() is None:
        return torch.empty(tuple(shape), dtype=dtype)
    # as torch's default_collate does; `share_memory_` of an ordinary tensor would copy it
    storage: torch.UntypedStorage = torch.UntypedStorage._new_shared(size)  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=dtype).set_(storage).view(tuple(shape))


class BatchMemory:
    """Allocates the arrays of a batch, and makes tensors of them.

    In a worker, the arrays of a batch share one storage as far as they fit: each storage costs the parent a
    descriptor and a connection.
    """

    def __init__(
        self,
        expected: int = 0,  # expected bytes of the batch: the size of the first storage
    ) -> None:
        self._lent = lent_memory()
        self._in_worker = self._lent is None and get_worker_info() is not None
        self._expected = expected
        self._pieces: list[tuple[int, torch.Tensor]] = []
        self._free = 0
        self.used = 0
        """Bytes allocated in shared memory."""

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """See `unistore.data.packed.Allocate`. Text is not allocated in shared memory."""
        size = math.prod(shape) * dtype.itemsize
        if self._lent is not None and dtype.kind != "U":
            return self._lent(shape, dtype)
        if not self._in_worker or size == 0 or dtype.kind == "U":
            return np.empty(shape, dtype)
        room = -(-size // _ALIGNMENT) * _ALIGNMENT
        if room > self._free:
            piece = empty_tensor((max(room, self._expected - self.used),), torch.uint8)
            self._pieces.append((piece.data_ptr(), piece))
            self._free = piece.numel()
        piece = self._pieces[-1][1]
        start = piece.numel() - self._free
        self._free -= room
        self.used += room
        array: NDArray[Any] = piece[start : start + size].numpy().view(dtype).reshape(shape)
        return array

    def tensor(self, array: NDArray[Any]) -> torch.Tensor:
        """Return the tensor over the memory of an array, with its strides."""
        if not self._pieces:
            return torch.from_numpy(array)
        start = array.__array_interface__["data"][0]
        for address, piece in self._pieces:
            if address <= start < address + piece.numel() and array.size:
                dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
                strides = tuple(stride // array.itemsize for stride in array.strides)
                offset = (start - address) // array.itemsize
                return torch.empty(0, dtype=dtype).set_(piece.untyped_storage(), offset, array.shape, strides)
        return torch.from_numpy(array)

    def foreign_tensor(self, array: NDArray[Any]) -> torch.Tensor:
        """Return tensor of an array from other memory: in a worker a copy in shared memory, else a view."""
        if not self._in_worker:
            return torch.from_numpy(array)
        out = self.allocate(array.shape, array.dtype)
        out[...] = array
        return self.tensor(out)


class RaggedKey(NamedTuple):
    """Group of a ragged key, whose offsets it shares, and whether samples are boxes."""

    group: str = ""
    boxed: bool = False


class Sample(dict[str, Any]):
    """One sample: tensors and text by key.

    Attributes
    ----------
    ragged
        The ragged keys. A transform may return any mapping: the keys that it keeps stay ragged.
    """

    __slots__ = ("ragged",)

    def __init__(self, values: Mapping[str, Any], ragged: Mapping[str, RaggedKey] | None = None) -> None:
        super().__init__(values)
        self.ragged: Mapping[str, RaggedKey] = ragged or {}

    def __reduce__(self) -> tuple[type[Sample], tuple[dict[str, Any], Mapping[str, RaggedKey]]]:
        return type(self), (dict(self), self.ragged)

    def __copy__(self) -> Sample:
        return Sample(self, self.ragged)


def _collate_default(batch: Sequence[Sample], **_settings: Any) -> Any:
    """Collation by a ``DataLoader`` without ``collate_fn``, with a helpful error for ragged samples."""
    for key in batch[0].ragged:
        shapes = {tuple(sample[key].shape) for sample in batch if isinstance(sample.get(key), torch.Tensor)}
        if len(shapes) > 1:
            msg = (
                f"samples of {key!r} have different shapes ({', '.join(map(str, sorted(shapes)[:2]))}, …) "
                "and cannot be stacked: give the DataLoader collate_fn=unistore.collate"
            )
            raise InputError(msg)
    return default_collate([dict(sample) for sample in batch])


default_collate_fn_map[Sample] = _collate_default


class Samples(Items[Sample]):
    """The samples of one batch, as views of its arrays; `unistore.collate` uses the arrays themselves."""

    def __init__(
        self,
        batch: Batch,  # the packed batch
        memory: BatchMemory,  # memory that the batch was allocated from
    ) -> None:
        self.batch = batch
        self.memory = memory
        self.ragged = {
            key: RaggedKey(packed.group, packed.shapes is not None)
            for key, packed in batch.items()
            if packed.offsets is not None
        }
        self._values: dict[str, torch.Tensor | list[str]] = {
            key: packed.values.tolist() if packed.values.dtype.kind == "U" else memory.tensor(packed.values)
            for key, packed in batch.items()
        }

    def __len__(self) -> int:
        return len(next(iter(self.batch.values())))

    def _item(self, number: int) -> Sample:
        return Sample({key: self.part(key, number) for key in self.batch}, self.ragged)

    def __reduce__(self) -> tuple[type[list[Sample]], tuple[list[Sample]]]:
        return list, (list(self),)

    def values(self) -> dict[str, torch.Tensor | list[str]]:
        """Return values of all samples by key: dense (B, …), ragged (sum of lengths, …), text a list."""
        return dict(self._values)

    def part(self, key: str, number: int) -> Any:
        """Return one sample's value of a key."""
        values = self._values[key]
        packed = self.batch[key]
        if packed.offsets is None:
            return values[number]
        part = values[int(packed.offsets[number]) : int(packed.offsets[number + 1])]
        if packed.shapes is None:
            return part
        assert isinstance(part, torch.Tensor)
        return part.reshape(packed.shapes[number].tolist())
