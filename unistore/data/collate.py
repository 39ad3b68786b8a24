"""Collate samples to batches, with keys of variable length packed, as lists, or padded."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch.utils.data import default_collate, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from unistore.data.packed import Batch, lent_memory
from unistore.system.arguments import Arguments, as_names, matches_type
from unistore.system.packed import Items
from unistore.system.types import AnyArray, Shape

# `Sample`, a dict of tensors that knows its ragged keys, and `Samples`, the samples of one batch.

# Alignment of arrays in bytes: a cache line
_ALIGNMENT = 64


def empty_tensor(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return an uninitialised contiguous tensor, in the memory of the batch if there is any."""
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

    Parameters
    ----------
    expected : int, default 0
        Expected size of the batch in bytes: size of the first storage.

    Attributes
    ----------
    used : int
        Number of bytes allocated in shared memory.
    """

    # In a worker the arrays share one storage as far as they fit: each storage costs the parent a
    # descriptor and a connection

    def __init__(
        self,
        expected: int = 0,  # expected bytes of the batch: the size of the first storage
    ) -> None:
        self._lent = lent_memory()
        self._in_worker = self._lent is None and get_worker_info() is not None
        self._expected = expected
        self._pieces: list[tuple[int, torch.Tensor]] = []
        self._free = 0
        self.used = 0  # Bytes allocated in shared memory

    def allocate(self, shape: Shape, dtype: np.dtype[Any]) -> AnyArray:
        """Return an uninitialised C-contiguous array, in shared memory unless it has text."""
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
        array: AnyArray = piece[start : start + size].numpy().view(dtype).reshape(shape)
        return array

    def tensor(self, array: AnyArray) -> torch.Tensor:
        """Return a tensor with the memory and the strides of an array."""
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

    def foreign_tensor(self, array: AnyArray) -> torch.Tensor:
        """Return a tensor of an array from other memory: a view, or in a worker a copy in shared memory."""
        if not self._in_worker:
            return torch.from_numpy(array)
        out = self.allocate(array.shape, array.dtype)
        out[...] = array
        return self.tensor(out)


class RaggedKey(NamedTuple):
    """Properties of a key with variable length.

    Attributes
    ----------
    group : str, default ""
        Group whose offsets it shares.
    boxed : bool, default False
        Whether samples are volumes or crops of different extents.
    """

    group: str = ""
    boxed: bool = False


class Sample(dict[str, Any]):
    """One sample: a dict of tensors and texts.

    A transform may return any mapping: the keys that it keeps in `ragged` stay ragged.

    Attributes
    ----------
    ragged : mapping of str to RaggedKey
        Keys with variable length.
    """

    __slots__ = ("ragged",)

    def __init__(self, values: Mapping[str, Any], ragged: Mapping[str, RaggedKey] | None = None) -> None:
        super().__init__(values)
        self.ragged: Mapping[str, RaggedKey] = ragged or {}

    def __reduce__(self) -> tuple[type[Sample], tuple[dict[str, Any], Mapping[str, RaggedKey]]]:
        return type(self), (dict(self), self.ragged)


class Samples(Items[Sample]):
    """The samples of a batch, as views of its arrays. `unistore.collate` uses the arrays without a copy.

    Parameters
    ----------
    batch : dict of str to Packed
        The batch.
    memory : BatchMemory
        Memory that the batch was allocated from.
    """

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
        """Return the values of all samples by key.

        Dense keys have shape (B, …), keys of variable length (sum of lengths, …), and texts are lists.
        """
        return dict(self._values)

    def part(self, key: str, number: int) -> Any:
        """Return the value of a key of one sample."""
        values = self._values[key]
        packed = self.batch[key]
        if packed.offsets is None:
            return values[number]
        part = values[int(packed.offsets[number]) : int(packed.offsets[number + 1])]
        if packed.shapes is None:
            return part
        assert isinstance(part, torch.Tensor)
        return part.reshape(packed.shapes[number].tolist())


@dataclass(frozen=True, slots=True)
class Collate:
    """Makes a batch of samples, for ``DataLoader(collate_fn=Collate(ragged="padded"))``. It pickles.

    Keys with the same shape in every sample are stacked, (B, …). Texts become a list. Keys with variable
    length (points of a segment, voxels of a window, volumes of different extents) depend on `ragged`:

    - ``"packed"``: the values of all samples, one after another, (sum of lengths, …), and one ``offsets``
      (B + 1,), int64, for all keys of the main group: sample i is ``xyz[offsets[i]:offsets[i + 1]]``.
      Other groups have their own offsets, such as ``voxel_offsets``. Volumes of different extents are
      flat, with ``shapes`` (B, 3). Nothing is copied, so this is the fastest form to send from a worker.
    - ``"list"``: a list of B tensors. Each tensor that a worker sends takes a file descriptor.
    - ``"padded"``: (B, longest, …) with zeros after each sample, and ``lengths`` (B,), int64, for the
      main group (for volumes ``shapes``), ``voxel_lengths`` for the group ``voxel``.

    If a transform returns tuples, they are batched item by item and the batch is a tuple. Its items are
    the keys ``"0"``, ``"1"``, …, or those of `as_tuple`. With ``"list"``, each of their tensors goes into
    a list of B.

    Parameters
    ----------
    ragged : {"packed", "list", "padded"}, default "packed"
        Form of keys with variable length.
    groups : dict of str to str, optional
        Group of each key with variable length that a transform adds: ``{"points": ""}``. Keys of the
        dataset are known.
    coords : {"batch-first"}, optional
        ``"batch-first"``: packed voxel coordinates (``coords``, ``voxel_coords``) become (sum of N, 4):
        the number of the sample in its batch, then depth, height and width, as libraries for sparse
        convolutions expect. None: (sum of N, 3).
    as_tuple : sequence of str, optional
        Keys that form the batch, as a tuple in this order: ``("xyz", "classification")``. None: a dict of
        all keys.

    Raises
    ------
    InputError
        If an argument is invalid.

    Examples
    --------
    >>> padded = unistore.Collate(ragged="padded")  # doctest: +SKIP
    >>> loader = unistore.Loader(dataset, batch_size=8, collate_fn=padded)  # doctest: +SKIP
    """

    ragged: Literal["packed", "list", "padded"] = "packed"
    groups: Mapping[str, str] = field(default_factory=dict)
    coords: Literal["batch-first"] | None = None
    as_tuple: Sequence[str] | None = None

    def __post_init__(self) -> None:
        check = Arguments()
        check.one_of("ragged", self.ragged, ("packed", "list", "padded"))
        if self.coords is not None:
            check.one_of("coords", self.coords, ("batch-first",))
            if self.ragged != "packed":
                message = f"works only with packed batches, got ragged={self.ragged!r}"
                check.refuse("coords", message, 'remove coords, or give ragged="packed"')
        if not matches_type(self.groups, Mapping[str, str]):
            message = f"must be a mapping of keys to groups, got {self.groups!r}"
            check.refuse("groups", message, "give for example {'points': ''}")
        check.names("as_tuple", self.as_tuple)
        check.raise_problems()
        object.__setattr__(self, "as_tuple", as_names(self.as_tuple))

    def __call__(self, samples: Sequence[Any]) -> Any:
        """Return the batch of samples.

        Parameters
        ----------
        samples : sequence
            Result of ``__getitems__`` of a Dataset, or any sequence of samples: ``[dataset[0], dataset[1]]``.

        Returns
        -------
        dict or tuple
            The batch; see `Collate`.

        Raises
        ------
        ValueError
            If samples differ in their keys, keys of a group in their lengths, or other keys in their
            shapes. If there are no coordinates for `coords`, or the batch lacks a key of `as_tuple`.
        """
        keys = self.as_tuple
        if not isinstance(samples, Samples) and isinstance(samples[0], tuple):
            named = keys or [str(number) for number in range(len(samples[0]))]
            batch = self._collate_list(_named(samples, named), listed=True)
            return tuple(batch[name] for name in [*named, *(key for key in batch if key not in named)])
        batch = self._batch(samples)
        if keys is None:
            return batch
        if missing := [key for key in keys if key not in batch]:
            msg = f"as_tuple: the batch has no {', '.join(missing)}. Fix: use keys of {', '.join(batch)}"
            raise ValueError(msg)
        return tuple(batch[key] for key in keys)

    def _batch(self, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        if not isinstance(samples, Samples):
            return self._collate_list(samples)
        if self.ragged == "packed":
            return self._numbered(_collate_packed(samples), samples.ragged)
        dense = {key: values for key, values in samples.values().items() if key not in samples.ragged}
        parts = {key: [samples.part(key, i) for i in range(len(samples))] for key in samples.ragged}
        return dense | self._collate_ragged(parts, samples.ragged)

    def _collate_list(self, samples: Sequence[Mapping[str, Any]], *, listed: bool = False) -> dict[str, Any]:
        keys = samples[0].keys()
        in_some_only = set[str]().union(*(sample.keys() ^ keys for sample in samples))
        uncommon = sorted(map(str, in_some_only))
        if uncommon:
            msg = f"the samples of a batch have different keys: only some have {', '.join(uncommon)}"
            raise ValueError(msg)
        ragged_keys: dict[str, RaggedKey] = dict(getattr(samples[0], "ragged", {}))
        ragged_keys |= {key: RaggedKey(group) for key, group in self.groups.items()}
        if listed and self.ragged == "list":
            tensors = [key for key, value in samples[0].items() if isinstance(value, torch.Tensor)]
            ragged_keys |= dict.fromkeys(tensors, RaggedKey())
        ragged = {key: kind for key, kind in ragged_keys.items() if key in keys}
        dense = {key: _stacked(key, [sample[key] for sample in samples]) for key in keys if key not in ragged}
        parts = {key: [_as_part(sample[key]) for sample in samples] for key in ragged}
        return dense | self._numbered(self._collate_ragged(parts, ragged), ragged)

    def _numbered(self, batch: dict[str, Any], ragged: Mapping[str, RaggedKey]) -> dict[str, Any]:
        if self.coords is None:
            return batch
        coordinate_keys = [key for key in ragged if key == "coords" or key.endswith("_coords")]
        if not coordinate_keys:
            msg = (
                f"coords={self.coords!r}: the samples have no coords or voxel_coords, but "
                f"{', '.join(batch)}. Fix: remove coords"
            )
            raise ValueError(msg)
        for key in coordinate_keys:
            group = ragged[key].group
            coords = batch[key]
            lengths = batch[f"{group}_offsets" if group else "offsets"].diff()
            rows = empty_tensor((len(coords), coords.shape[1] + 1), coords.dtype)
            rows[:, 0] = torch.repeat_interleave(torch.arange(len(lengths), dtype=coords.dtype), lengths)
            rows[:, 1:] = coords
            batch[key] = rows
        return batch

    def _collate_ragged(
        self, parts: Mapping[str, list[torch.Tensor]], ragged: Mapping[str, RaggedKey]
    ) -> dict[str, Any]:
        if self.ragged == "list":
            return dict(parts)
        batch: dict[str, Any] = {}
        shared: dict[str, Any] = {}
        for key, tensors in parts.items():
            group, boxed = ragged[key]
            sizes = torch.tensor([tuple(tensor.shape) if boxed else (len(tensor),) for tensor in tensors])
            index: dict[str, torch.Tensor] = {}
            if self.ragged == "packed":
                flat = [tensor.reshape(-1) for tensor in tensors] if boxed else tensors
                index["offsets"] = torch.tensor([0, *map(len, flat)]).cumsum(0)
                batch[key] = _joined(flat)
            else:
                is_text = isinstance(tensors[0], list)
                batch[key] = tensors if is_text else _padded(tensors, axes=sizes.shape[1])
                if not boxed:
                    index["lengths"] = sizes[:, 0]
            if boxed:
                index["shapes"] = sizes
            for what, values in index.items():
                name = f"{group}_{what}" if group else what
                if not torch.equal(shared.setdefault(name, values), values):
                    lengths = shared[name].tolist()
                    msg = (
                        f"the keys of one group have different lengths: {name} is {values.tolist()} for "
                        f"{key}, but {lengths} for the others. Fix: give {key} another group in "
                        "Collate(groups=…)"
                    )
                    raise ValueError(msg)
        return batch | shared


# Made once: checking its arguments takes a tenth of what this process does for a batch
_DEFAULT = Collate()


def collate(
    samples: Sequence[Mapping[str, Any]], *, ragged: Literal["packed", "list", "padded"] = "packed"
) -> dict[str, Any]:
    """Return the batch of samples, for ``DataLoader(collate_fn=unistore.collate)``.

    Parameters
    ----------
    samples : sequence
        Samples of a Dataset.
    ragged : {"packed", "list", "padded"}, default "packed"
        Form of keys with variable length; see `Collate`.

    Returns
    -------
    dict
        The batch by key.

    Raises
    ------
    ValueError
        If samples differ in their keys or shapes; see `Collate`.

    Examples
    --------
    >>> loader = DataLoader(dataset, batch_size=8, collate_fn=unistore.collate)  # doctest: +SKIP
    """
    batch: dict[str, Any] = Collate(ragged)(samples)
    return batch


def _collate_by_default(samples: Sequence[Sample], *, collate_fn_map: Any = None) -> dict[str, Any]:  # noqa: ARG001
    return collate(samples)


# torch collates the samples of a Dataset so where a DataLoader has no `collate_fn`
default_collate_fn_map[Sample] = _collate_by_default


def _named(samples: Sequence[tuple[Any, ...]], names: Sequence[str]) -> list[Sample]:
    odd = {len(sample) for sample in samples} - {len(names)}
    if odd:
        sizes = " or ".join(map(str, sorted(odd)))
        msg = f"some samples are tuples of {sizes} items, but {len(names)} are expected"
        raise ValueError(msg)
    return [Sample(dict(zip(names, sample, strict=True))) for sample in samples]


def _collate_packed(samples: Samples) -> dict[str, Any]:
    values_of_samples: dict[str, Any] = samples.values()
    for key in samples.ragged:
        packed = samples.batch[key]
        if packed.offsets is None or packed.group_key("offsets") in values_of_samples:
            continue
        values_of_samples[packed.group_key("offsets")] = samples.memory.foreign_tensor(packed.offsets)
        if packed.shapes is not None:
            values_of_samples[packed.group_key("shapes")] = samples.memory.foreign_tensor(packed.shapes)
    return values_of_samples


def _joined(parts: list[Any]) -> Any:
    """Return tensors, or lists of texts, one after another."""
    if isinstance(parts[0], list):
        return list(chain.from_iterable(parts))
    shape = (sum(map(len, parts)), *parts[0].shape[1:])
    return torch.cat(parts, out=empty_tensor(shape, parts[0].dtype))


def _as_part(value: Any) -> Any:
    return value if isinstance(value, list) else torch.as_tensor(value)


def _stacked(key: str, values: list[Any]) -> Any:
    shapes = {tuple(value.shape) for value in values if hasattr(value, "shape")}
    if isinstance(values[0], list):  # texts of several rows
        return values
    if len(shapes) > 1:
        shown_shapes = ", ".join(map(str, sorted(shapes)))
        fix = f'Collate(groups={{"{key}": ""}})'
        msg = f"{key} has different shapes in one batch: {shown_shapes}. Fix: if it is ragged, use {fix}"
        raise ValueError(msg)
    return default_collate(values)


def _padded(tensors: list[torch.Tensor], axes: int) -> torch.Tensor:
    longest = [max(tensor.shape[axis] for tensor in tensors) for axis in range(axes)]
    out = empty_tensor((len(tensors), *longest, *tensors[0].shape[axes:]), tensors[0].dtype).zero_()
    for row, tensor in zip(out, tensors, strict=True):
        row[tuple(slice(extent) for extent in tensor.shape[:axes])] = tensor
    return out


def as_tensors(
    batch: Batch,
    collate: Callable[[Any], Any] | None = None,
) -> Any:
    """Return a packed batch as `unistore.collate` returns it, in the same memory.

    Parameters
    ----------
    batch : dict of str to Packed
        The batch, as a dataset read it.
    collate : Collate, optional
        Form of the batch. None: the default one.
    """
    return (collate or _DEFAULT)(Samples(batch, BatchMemory()))


def pin(batch: Any) -> Any:
    """Return a batch of any structure, with its tensors copied into pinned memory."""
    from torch.utils.data._utils.pin_memory import pin_memory

    return pin_memory(batch)  # type: ignore[no-untyped-call]
