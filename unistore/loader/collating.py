"""torch's default collation, stacking directly into the memory of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils.collate import (
    collate,
    collate_numpy_array_fn,
    collate_tensor_fn,
    default_collate_fn_map,
)

from unistore.data.packed import lent_memory


def collate_samples(samples: Sequence[Any]) -> Any:
    """Collate samples as ``torch.utils.data.default_collate`` does, same types and same errors."""
    return collate(samples, collate_fn_map={**default_collate_fn_map, **STACKING})


def _stack_tensors(batch: Sequence[torch.Tensor], *, collate_fn_map: Any = None) -> Any:
    first = batch[0]
    if all(type(item) is torch.Tensor and item.dtype is first.dtype for item in batch):
        # tensors without memory that numpy knows, and those of different shapes, are left to torch
        with suppress(RuntimeError, TypeError):
            allocate = lent_memory() or np.empty
            out = torch.from_numpy(allocate((len(batch), *first.shape), first.numpy().dtype))
            return torch.stack(tuple(batch), 0, out=out)
    return collate_tensor_fn(batch, collate_fn_map=collate_fn_map)


def _stack_arrays(batch: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
    first = batch[0]
    same = all(item.dtype == first.dtype and item.shape == first.shape for item in batch)
    if not same or first.dtype.kind not in "biufc" or not first.dtype.isnative:
        return collate_numpy_array_fn(batch, collate_fn_map=collate_fn_map)
    allocate = lent_memory() or np.empty
    out = allocate((len(batch), *first.shape), first.dtype)
    return torch.from_numpy(np.stack(batch, out=out))


STACKING: dict[Any, Callable[..., Any]] = {torch.Tensor: _stack_tensors, np.ndarray: _stack_arrays}
"""Entries of torch's ``default_collate_fn_map``."""
