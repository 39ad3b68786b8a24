"""``replay``: the samples that a run was given until a saved state of its Loader, and their sources."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from unistore.data.dataset import Dataset
from unistore.data.kinds.protocol import SOURCE, SampleIndices
from unistore.data.parts import bind_parts
from unistore.errors import InputError
from unistore.loader.iteration import EpochProgress, dataset_digest
from unistore.loader.loader import Loader
from unistore.loader.ordering import sequence_for
from unistore.order.sequences import EpochSequence, RankShare, ShuffleKind
from unistore.system.arguments import MAX_COUNT, MAX_EPOCH, Arguments, is_integer, wrong_argument
from unistore.system.types import Int64s, JsonObject, PathLike

_ORDERS: tuple[ShuffleKind | Literal[False], ...] = (False, "full", "blocks", "sources")
_LARGEST_STATE = 1 << 20
_HOW_TO_SAVE = "save it by json.dump(loader.state_dict(), file)"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Replayed:
    """Samples in the order in which a run was given them.

    Attributes
    ----------
    epoch
        Their epoch.
    first
        Position of the first of them in the epoch.
    index
        (n,) int64: samples of the Dataset.
    sources
        (n,) text: name of the source of each.
    """

    epoch: int
    first: int
    index: Int64s
    sources: NDArray[np.str_]

    def to_json(self) -> JsonObject:
        """Return plain JSON values."""
        index = self.index.tolist()
        return {"epoch": self.epoch, "first": self.first, "index": index, "sources": self.sources.tolist()}


def replay(
    store: PathLike | Loader,
    state: Mapping[str, Any] | PathLike,
    *,
    epoch: int | None = None,
    batch: int | None = None,
    batch_size: int | None = None,
    samples: str | None = None,
    split: str | Sequence[str] | None = None,
    seed: int = 0,
) -> Replayed:
    """Return what a model saw: the samples behind a saved state of a Loader, and their sources.

    Parameters
    ----------
    store
        Folder or URL of the store that the run read, of a grown one in the version of the state. Or a Loader
        made as that of the run, which orders with weights, a subset or a sampler need.
    state
        What ``loader.state_dict()`` returned, or the path of a JSON file with it.
    epoch
        An epoch up to that of the state. None: that of the state, up to its position, or the one before it if
        nothing of it was delivered.
    batch
        One batch of the epoch, from 0. None: all.
    batch_size
        Of a store: samples of a batch, on all ranks together. A Loader knows those of its rank.
    samples, split, seed
        Arguments of the Dataset of the run, if it had any.

    Returns
    -------
    Replayed
        An epoch before that of the state is returned whole, though the run may have left it early.

    Raises
    ------
    InputError
        If the state cannot be read, is of other samples, or its order needs the Loader. If there was no such
        epoch or batch.
    LoaderError
        If the state is of another order than the Loader's, or invalid.
    """
    check = Arguments()
    check.integer("epoch", epoch, most=MAX_EPOCH, none=True)
    check.integer("batch", batch, most=MAX_COUNT, none=True)
    check.integer("batch_size", batch_size, 1, none=True)
    if (batch is None) != (batch_size is None) and not isinstance(store, Loader):
        check.refuse("batch", "needs batch_size, which a state does not hold", "batch=3, batch_size=64")
    check.raise_problems()
    fields = state if isinstance(state, Mapping) else _read_state(state)
    order = fields.get("order")
    order = order if isinstance(order, Mapping) else {}
    if isinstance(store, Loader):
        dataset = store.dataset
        sequence = store.sequence.arranged(order)
        share = store.share()
    else:
        dataset = _open(store, fields, samples, split, seed)
        sequence = _sequence(dataset, order)
        share = RankShare(length=len(sequence), batch_size=batch_size or 1)
    progress = EpochProgress(dataset_digest(dataset), dataset.version)
    progress.load(fields, sequence)
    chosen = epoch
    if chosen is None:
        chosen = progress.epoch if progress.delivered or not progress.epoch else progress.epoch - 1
    if chosen > progress.epoch:
        message = f"is {chosen}, and the state is of epoch {progress.epoch}: the run was not there yet"
        raise wrong_argument("epoch", message)
    start = 0
    stop = progress.delivered if chosen == progress.epoch else len(sequence)
    if batch is not None:
        start, stop = _span(share, batch, stop)
    index = sequence.indices(chosen, start, stop)
    return Replayed(epoch=chosen, first=start, index=index, sources=_sources(dataset, index))


def _read_state(path: PathLike) -> Mapping[str, Any]:
    name = os.fspath(path)
    try:
        with Path(name).open("rb") as file:
            state = json.loads(file.read(_LARGEST_STATE))
    except OSError as error:
        raise wrong_argument(name, f"cannot be read ({error.strerror})", "check the path") from error
    except (ValueError, RecursionError) as error:
        message = "is no JSON, and a pickled state is never loaded"
        raise wrong_argument(name, message, _HOW_TO_SAVE) from error
    if not isinstance(state, Mapping):
        raise wrong_argument(name, "is no state of a Loader", _HOW_TO_SAVE)
    return state


def _open(
    store: PathLike,
    state: Mapping[str, Any],
    samples: str | None,
    split: str | Sequence[str] | None,
    seed: int,
) -> Dataset:
    version = state.get("store_version")
    dataset = Dataset(store, samples, split=split, seed=seed, version=version)
    if version is None and dataset.version is not None:
        dataset = dataset.at_version(1)
    if dataset_digest(dataset) != state.get("digest"):
        message = f"is of other samples than {dataset!r}"
        fix = "give the store and the samples, split and seed of the Dataset of the run, or its Loader"
        raise wrong_argument("state", message, fix)
    return dataset


def _sequence(dataset: Dataset, order: Mapping[str, Any]) -> EpochSequence:
    seed = order.get("seed", 0)
    for shuffle in _ORDERS:
        try:
            own_seed = seed if is_integer(seed) else 0
            sequence = sequence_for(dataset, shuffle, seed=own_seed, batch_size=1)
        except InputError:  # the samples of a source do not follow one another
            continue
        arranged = sequence.arranged(order)
        if arranged.describe() == order:
            return arranged
    message = "is of an order with weights, a subset, or a sampler"
    raise wrong_argument("state", message, "give a Loader made as that of the run: replay(loader, state)")


def _span(share: RankShare, batch: int, delivered: int) -> tuple[int, int]:
    start, stop = share.span(batch) if batch < share.steps else (delivered, delivered)
    if start >= delivered:
        raise wrong_argument("batch", f"is {batch}, and {delivered} samples of the epoch were delivered")
    return start, min(stop, delivered)


def _sources(dataset: Dataset, index: Int64s) -> NDArray[np.str_]:
    reader = bind_parts(dataset.parts, (SOURCE,)).reader
    names: NDArray[np.str_] = reader.read(SampleIndices(index, np.zeros_like(index)), np.empty)[SOURCE].values
    return names
