"""torch's default collation, stacking directly into the memory of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils.collate import collate, collate_tensor_fn, default_collate_fn_map

from unistore.data.packed import lent_memory


def collate_samples(samples: Sequence[Any]) -> Any:
    """Collate samples as ``torch.utils.data.default_collate`` does, same types and same errors."""
    return collate(samples, collate_fn_map={**default_collate_fn_map, **STACKING})


def _stack_tensors(batch: Sequence[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
    first = batch[0]
    if all(type(item) is torch.Tensor and item.dtype is first.dtype for item in batch):
        # tensors without memory that numpy knows, and those of different shapes, are left to torch
        with suppress(RuntimeError, TypeError):
            allocate = lent_memory() or np.empty
            out = torch.from_numpy(allocate((len(batch), *first.shape), first.numpy().dtype))
            return torch.stack(tuple(batch), 0, out=out)
    return collate_tensor_fn(batch, collate_fn_map=collate_fn_map)


STACKING = {torch.Tensor: _stack_tensors}
"""Entry of torch's ``default_collate_fn_map``, which collates arrays as tensors, too."""
