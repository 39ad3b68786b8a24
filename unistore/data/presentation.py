"""Tensors over the memory of a packed batch, as the training loop sees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from unistore.data.packed import Batch


def as_tensors(batch: Batch, collate: Callable[[Any], Any] | None = None) -> Any:
    """Return a packed batch as `unistore.collate` returns it, over the same memory.

    Parameters
    ----------
    batch
        As a dataset read it.
    collate
        A `unistore.Collate`; None: the default one.
    """
    from unistore.data.collate import Collate
    from unistore.data.sample import Samples
    from unistore.data.tensors import Memory

    return (collate or Collate())(Samples(batch, Memory()))


def pin(batch: Any) -> Any:
    """Return a batch of any structure with its tensors copied into pinned memory."""
    from torch.utils.data._utils.pin_memory import pin_memory

    return pin_memory(batch)  # type: ignore[no-untyped-call]
