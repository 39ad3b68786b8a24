"""torch's default collation, stacking directly into the memory of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from unistore.data.packed import Allocate


def collate_into(samples: Sequence[Any], allocate: Allocate) -> Any:
    """Collate samples as ``torch.utils.data.default_collate`` does, same types and same errors.

    Parameters
    ----------
    samples
        The samples of a batch.
    allocate
        Memory for stacked tensors and arrays.
    """
    import torch
    from torch.utils.data._utils.collate import collate, default_collate_fn_map

    def stack_tensors(batch: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
        first = batch[0]
        plain = all(
            type(item) is torch.Tensor
            and item.layout is torch.strided
            and item.device.type == "cpu"
            and item.dtype is first.dtype
            and item.shape == first.shape
            and not item.requires_grad
            and not item.is_quantized
            for item in batch
        )
        dtype = _numpy_dtype(first) if plain else None
        if dtype is None:
            return default_collate_fn_map[torch.Tensor](batch, collate_fn_map=collate_fn_map)
        out = torch.from_numpy(allocate((len(batch), *first.shape), dtype))
        return torch.stack(tuple(batch), 0, out=out)

    def stack_arrays(batch: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
        first = batch[0]
        same = all(item.dtype == first.dtype and item.shape == first.shape for item in batch)
        if not same or first.dtype.kind not in "biufc" or not first.dtype.isnative:
            return default_collate_fn_map[np.ndarray](batch, collate_fn_map=collate_fn_map)
        out = allocate((len(batch), *first.shape), first.dtype)
        return torch.from_numpy(np.stack(batch, out=out))

    own: dict[Any, Callable[..., Any]] = {torch.Tensor: stack_tensors, np.ndarray: stack_arrays}
    return collate(samples, collate_fn_map={**default_collate_fn_map, **own})


def _numpy_dtype(tensor: Any) -> np.dtype[Any] | None:
    """NumPy dtype of a tensor; None if NumPy has no such dtype."""
    if tensor.is_conj() or tensor.is_neg():
        return None
    name = str(tensor.dtype).removeprefix("torch.")
    try:
        return np.dtype(name)
    except TypeError:
        return None
