"""From a packed batch to what the training loop sees: tensors over the same memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from unistore.packed import Batch

__all__ = ["pin", "present"]


def present(batch: Batch, collate: Callable[[Any], Any] | None = None) -> Any:
    """Return a packed batch as `unistore.collate` returns it, over the same memory.

    Parameters
    ----------
    batch
        As a dataset read it.
    collate
        A `unistore.Collate`; None: the packed one.
    """
    from unistore.collate import collate as packed
    from unistore.sample import Samples
    from unistore.tensors import Memory

    return (collate or packed)(Samples(batch, Memory()))


def pin(batch: Any) -> Any:
    """Return a batch with its tensors copied into pinned memory, whatever its structure."""
    from torch.utils.data._utils.pin_memory import pin_memory

    return pin_memory(batch)  # type: ignore[no-untyped-call]
