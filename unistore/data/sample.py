"""`Sample`, a dict of tensors that knows its ragged keys, and `Samples`, the samples of one batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from unistore.data.packed import Batch
from unistore.data.tensors import Memory
from unistore.errors import InputError
from unistore.system.packed import Items


class Ragged(NamedTuple):
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

    def __init__(self, values: Mapping[str, Any], ragged: Mapping[str, Ragged] | None = None) -> None:
        super().__init__(values)
        self.ragged: Mapping[str, Ragged] = ragged or {}

    def __reduce__(self) -> tuple[type[Sample], tuple[dict[str, Any], Mapping[str, Ragged]]]:
        return type(self), (dict(self), self.ragged)

    def __copy__(self) -> Sample:
        return Sample(self, self.ragged)


def _collate_default(batch: Sequence[Sample], **_settings: Any) -> Any:
    """Collation by a ``DataLoader`` without ``collate_fn``, with a helpful error for ragged samples."""
    for key in batch[0].ragged:
        shapes = {tuple(each[key].shape) for each in batch if isinstance(each.get(key), torch.Tensor)}
        if len(shapes) > 1:
            msg = (
                f"samples of {key!r} have different shapes ({', '.join(map(str, sorted(shapes)[:2]))}, …) "
                "and cannot be stacked: give the DataLoader collate_fn=unistore.collate"
            )
            raise InputError(msg)
    return default_collate([dict(each) for each in batch])


default_collate_fn_map[Sample] = _collate_default


class Samples(Items[Sample]):
    """The samples of one batch, as views of its arrays; `unistore.collate` uses the arrays themselves.

    Parameters
    ----------
    batch
        The packed batch.
    memory
        Memory that the batch was allocated from.
    """

    def __init__(self, batch: Batch, memory: Memory) -> None:
        self.batch = batch
        self.memory = memory
        self.ragged = {
            key: Ragged(packed.group, packed.shapes is not None)
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
        """Values of all samples by key: dense (B, …), ragged (sum of lengths, …), text a list."""
        return dict(self._values)

    def part(self, key: str, number: int) -> Any:
        """One sample's value of a key."""
        values, packed = self._values[key], self.batch[key]
        if packed.offsets is None:
            return values[number]
        part = values[int(packed.offsets[number]) : int(packed.offsets[number + 1])]
        if packed.shapes is None:
            return part
        assert isinstance(part, torch.Tensor)
        return part.reshape(packed.shapes[number].tolist())
