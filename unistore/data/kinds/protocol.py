"""What a kind of sample is: options, and once bound to a store a reader of whole batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from unistore.data.packed import Allocate, Batch
from unistore.errors import InputError
from unistore.order.randomness import below, generator, words
from unistore.store.reader import Store

__all__ = ["INDEX", "SOURCE", "BoxReader", "Picks", "SampleKind", "SampleReader", "chosen", "require"]

INDEX = "index"
"""Key of a sample's position in its Dataset; every sample has it."""
SOURCE = "source"
"""Key of the source's name; read where ``fields`` asks for it."""


@dataclass(frozen=True, slots=True)
class Picks:
    """Which samples a batch reads, and what their randomness derives from.

    Attributes
    ----------
    index, epoch
        (B,) int64 each: sample of the reader, and the epoch it is read in.
    seed
        The Dataset's seed.
    """

    index: NDArray[np.int64]
    epoch: NDArray[np.int64]
    seed: int = 0

    def __len__(self) -> int:
        return len(self.index)

    def below(self, bounds: NDArray[np.int64]) -> NDArray[np.int64]:
        """Uniform integers in ``[0, bounds)``, (B, k) for bounds (B, k)."""
        return below(words(self.seed, self.epoch, self.index, bounds.shape[1]), bounds)

    def generator(self, sample: int) -> np.random.Generator:
        """Generator of one sample of the batch, for large draws."""
        return generator(self.seed, int(self.epoch[sample]), int(self.index[sample]))


class SampleReader(Protocol):
    """A kind of sample, bound to a store."""

    def __len__(self) -> int:
        """Number of samples."""
        ...

    def read(self, picks: Picks, allocate: Allocate) -> Batch:
        """Read a batch: each chunk decoded once, straight into allocated memory where it can be."""
        ...


@runtime_checkable
class BoxReader(Protocol):
    """A reader some of whose keys are boxes: dense where all samples have one extent, else ragged."""

    def box_shape(self, key: str) -> tuple[int, ...] | None:
        """Shape of a key in every sample; None where samples differ."""
        ...


class SampleKind(Protocol):
    """What one sample is. Implementations are frozen dataclasses of their options."""

    def select(self, store: Store, fields: Sequence[str] | None) -> tuple[str, ...]:
        """Keys that samples will have (`INDEX` apart); reads metadata only.

        Raises
        ------
        InputError
            If the store has no such samples, or a field is unknown: the message lists the known ones.
        """
        ...

    def bind(self, store: Store, fields: Sequence[str], units: NDArray[np.int64] | None) -> SampleReader:
        """Reader of the samples that lie in `units`, rows of the store's sample table (None: all)."""
        ...


def chosen(
    known: Iterable[str], fields: Sequence[str] | None, on_request: Iterable[str] = ()
) -> tuple[str, ...]:
    """Fields that a Dataset reads: those asked for, in their order, or else all known ones.

    Parameters
    ----------
    known
        Keys that are read unless others are asked for.
    fields
        What was asked for; None: all of `known`. `INDEX` is always there and may be named.
    on_request
        Further keys that are read only when named.

    Raises
    ------
    InputError
        If a field is unknown.
    """
    known, on_request = list(known), sorted(on_request)
    if fields is None:
        return tuple(known)
    if isinstance(fields, str):
        fields = [fields]
    unknown = [name for name in fields if name not in (*known, *on_request, INDEX)]
    if unknown:
        extra = f"; on request: {', '.join(on_request)}" if on_request else ""
        msg = f"unknown field {', '.join(map(repr, unknown))}: samples have {', '.join(known)}{extra}"
        raise InputError(msg)
    return tuple(dict.fromkeys(name for name in fields if name != INDEX))


def require(store: Store, family: str, kind: object) -> None:
    """Refuse a store of another family.

    Raises
    ------
    InputError
        Naming both, and the natural kind.
    """
    if store.family != family:
        name = type(kind).__name__
        msg = (
            f"{store.path}: {name} reads {family} stores, and this is a {store.family} store; "
            f"leave samples out to get its natural kind"
        )
        raise InputError(msg)
