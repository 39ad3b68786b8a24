"""From a packed batch to what the training loop sees: tensors over the same memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from unistore.data.packed import Batch

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
    packed, samples, memory = _torch_side()
    return (collate or packed)(samples(batch, memory()))


@cache
def _torch_side() -> tuple[Callable[[Any], Any], Callable[[Any, Any], Any], Callable[[], Any]]:
    """What deals with tensors, imported with the first batch."""
    from unistore.data.collate import Collate
    from unistore.data.sample import Samples
    from unistore.data.tensors import Memory

    return Collate(), Samples, Memory


def pin(batch: Any) -> Any:
    """Return a batch with its tensors copied into pinned memory, whatever its structure."""
    from torch.utils.data._utils.pin_memory import pin_memory

    return pin_memory(batch)  # type: ignore[no-untyped-call]
