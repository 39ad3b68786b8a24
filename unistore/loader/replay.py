"""`replay`: the samples that a run has read up to a saved state of its Loader, with their sources."""

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
from unistore.loader.loader import Loader
from unistore.loader.ordering import sequence_for
from unistore.loader.state import DatasetIdentity, load_state
from unistore.order.sequences import EpochSequence, RankShare
from unistore.order.shuffle_choice import ShuffleKind
from unistore.system.arguments import MAX_COUNT, MAX_EPOCH, Arguments, is_integer, wrong_argument
from unistore.system.types import Int64s, JsonObject, PathLike

_ORDERS: tuple[ShuffleKind | Literal[False], ...] = (False, "full", "blocks", "sources")
_LARGEST_STATE = 1 << 20
_HOW_TO_SAVE = "save it with json.dump(loader.state_dict(), file)"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Replayed:
    """Samples in the order in which a run read them.

    Attributes
    ----------
    epoch : int
        Their epoch.
    first : int
        Position of the first one in the epoch.
    index : int64 array of shape (n,)
        Indices of the samples in the Dataset.
    sources : str array of shape (n,)
        Name of the source of each sample.
    """

    epoch: int
    first: int
    index: Int64s
    sources: NDArray[np.str_]

    def to_json(self) -> JsonObject:
        """Return the attributes as JSON values."""
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
    """Return the samples that a model has seen, with their sources, from a saved state of a Loader.

    Parameters
    ----------
    store : path, URL or Loader
        Folder or URL of the store that the run read; a versioned store is read in the version of the
        state. Give a Loader made like the Loader of the run if its order used weights, a subset or a
        sampler.
    state : dict or path
        Result of ``loader.state_dict()``, or a JSON file with it.
    epoch : int, optional
        An epoch up to the epoch of the state. None: the epoch of the state, up to its position; if it has not
        delivered anything, the epoch before it.
    batch : int, optional
        Number of one batch of the epoch, from 0. For a store, together with `batch_size`. None: all batches.
    batch_size : int, optional
        Number of samples of a batch on all ranks together. A Loader knows the batches of its rank.
    samples, split, seed
        Arguments of the Dataset of the run, if it had any.

    Returns
    -------
    Replayed
        The samples. An epoch before the epoch of the state is complete, even if the run left it early.

    Raises
    ------
    InputError
        If the state cannot be read, belongs to other samples, or its order needs the Loader. If there was
        no such epoch or batch.
    LoaderError
        If the state is invalid, or has another order than the Loader.

    Examples
    --------
    Find the files of the batch at which a loss became NaN:

    >>> seen = unistore.replay("train.zarr", "state.json", batch=812, batch_size=64)  # doctest: +SKIP
    >>> sorted(set(seen.sources.tolist()))  # doctest: +SKIP
    ['lab_a/run_7.h5', 'lab_b/run_1.h5']
    """
    check = Arguments()
    check.integer("epoch", epoch, most=MAX_EPOCH, none=True)
    check.integer("batch", batch, most=MAX_COUNT, none=True)
    check.integer("batch_size", batch_size, 1, none=True)
    if (batch is None) != (batch_size is None) and not isinstance(store, Loader):
        message = "batch and batch_size work only together" if batch is None else "needs batch_size"
        name = "batch_size" if batch is None else "batch"
        check.refuse(name, message, "give both, for example batch=3, batch_size=64")
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
    progress = load_state(fields, DatasetIdentity.of(dataset), sequence)
    chosen = epoch
    if chosen is None:
        chosen = progress.epoch if progress.delivered or not progress.epoch else progress.epoch - 1
    if chosen > progress.epoch:
        message = f"is {chosen:,}, but the run had only reached epoch {progress.epoch:,}"
        raise wrong_argument("epoch", message, f"give an epoch from 0 to {progress.epoch}")
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
        raise wrong_argument(name, f"cannot be read: {error.strerror}", "check the path") from error
    except (ValueError, RecursionError) as error:
        message = "is not JSON, and unistore never loads a pickled state"
        raise wrong_argument(name, message, _HOW_TO_SAVE) from error
    if not isinstance(state, Mapping):
        raise wrong_argument(name, "is not a state of a Loader", _HOW_TO_SAVE)
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
    if DatasetIdentity.of(dataset).digest != state.get("digest"):
        message = f"was saved with other samples than {dataset!r} has"
        fix = "give the store, and samples, split and seed of the Dataset of that run, or its Loader"
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
    message = "was saved by a Loader with weights, a subset, or a sampler"
    fix = "make a Loader with the arguments of that run, and call replay(loader, state)"
    raise wrong_argument("state", message, fix)


def _span(share: RankShare, batch: int, delivered: int) -> tuple[int, int]:
    start, stop = share.span(batch) if batch < share.steps else (delivered, delivered)
    if start >= delivered:
        message = f"is {batch:,}, but only {delivered:,} samples of the epoch were delivered"
        raise wrong_argument("batch", message, "give a smaller number")
    return start, min(stop, delivered)


def _sources(dataset: Dataset, index: Int64s) -> NDArray[np.str_]:
    reader = bind_parts(dataset.parts, (SOURCE,)).reader
    names: NDArray[np.str_] = reader.read(SampleIndices(index, np.zeros_like(index)), np.empty)[SOURCE].values
    return names
