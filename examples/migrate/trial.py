"""What the migration scripts share: rates of both loops, and whether their batches are the same."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import synthetic

__all__ = ["DATA", "compare", "rates", "synthetic"]

torch.set_num_threads(1)  # batches are small here, and cores busy

DATA = Path(__file__).resolve().parents[2] / "tests" / "data"
EPOCHS = 10


def rates(before: Callable[[], Iterable[Any]], after: Callable[[], Iterable[Any]], samples: int) -> None:
    """Print samples/s of both loops: of the best of `EPOCHS` epochs of so many samples."""
    for name, epoch in (("before", before), ("after", after)):
        best = min(_seconds(epoch()) for _ in range(EPOCHS))
        print(f"{name}: {samples / best:,.0f} samples/s")


def _seconds(batches: Iterable[Any]) -> float:
    began = time.perf_counter()
    for _ in batches:
        pass
    return time.perf_counter() - began


def compare(what: str, before: Iterable[Any], after: Iterable[Any], *, values: bool = True) -> None:
    """Exit where two series of batches differ in number, shape, dtype or (unless random) values."""
    count = 0
    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        pairs = list(zip(_tensors(old), _tensors(new), strict=True))
        for at, (one, other) in enumerate(pairs):
            if one.shape != other.shape or one.dtype != other.dtype:
                sys.exit(f"{what}: batch {number}, tensor {at}: {_form(one)} before, {_form(other)} after")
            if values and not torch.equal(one, other):
                sys.exit(f"{what}: batch {number}, tensor {at}: values differ")
        count += 1
    print(f"{what}: {count} batches, equal in {'every value' if values else 'shape and dtype'}")


def _tensors(batch: Any) -> list[torch.Tensor]:
    """Tensors of nested tuples and lists, in their order."""
    if isinstance(batch, torch.Tensor):
        return [batch]
    return [tensor for part in batch for tensor in _tensors(part)]


def _form(tensor: torch.Tensor) -> str:
    return f"{tuple(tensor.shape)} {tensor.dtype}"
