"""`ReplayBuffer`: random batches of transitions from a store, prefetched by a thread."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray

from unistore.data.dataset import Dataset
from unistore.data.kinds.transitions import Transitions
from unistore.data.presentation import as_tensors
from unistore.errors import InputError
from unistore.memory.arena import Arena
from unistore.memory.slabs import SlabRing
from unistore.order.randomness import below, words
from unistore.schemas.indices import contradiction
from unistore.store.reader import Store
from unistore.system.arguments import MAX_EPOCH, Arguments
from unistore.system.workers import MAX_WORKERS

__all__ = ["ReplayBuffer"]

_FLAT = (
    ("left_image", "left_wrist_image"),
    ("right_image", "right_wrist_image"),
    ("global_image",),
    ("joint",),
)
"""Observations of the flat layout in the order of its tuple, with alternative names."""
_BUDGET = 4 << 30
"""Limit of memory that is kept for reuse between batches, in bytes."""


class ReplayBuffer:
    """Uniform random transitions of a trajectory store, with replacement, prefetched by a thread.

    Steps whose next observation was not recorded are never drawn, except terminal ones (there `not_done` is
    0, and the next observation is the step's own). The n-th batch is a function of (`seed`, n, batch size).
    Thread-safe; a forked process needs a buffer of its own.

    Parameters
    ----------
    store
        Folder of the store, or an open `Store`.
    output
        ``"tuple"``: (left, right, global, joint, action, next left, next right, next global, next joint,
        reward, not_done): images (B, 3, H, W) u1, everything else float32, reward and not_done (B, 1).
        ``"dict"``: tensors by key in their stored dtypes, as `Transitions`. ``"auto"``: a tuple if the store
        has the observations of the flat layout.
    fields
        Keys of the dict; None: all.
    limit
        Number of transitions, from the first on, to draw from; None: all.
    split
        Name of a split, or several; None: all episodes.
    image_size
        Side of a stored set of resized images, read instead of the full ones (tuple only).
    seed
        Seed of the draws.
    prefetch
        Batches to prefetch; 0: none, and no thread.
    device
        Device of the batches; None: host memory.

    Raises
    ------
    InputError
        If an argument is invalid, the store is not a trajectory store, or lacks observations of the requested
        tuple.
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | Store,
        *,
        output: Literal["auto", "tuple", "dict"] = "auto",
        fields: Sequence[str] | None = None,
        limit: int | None = None,
        split: str | Sequence[str] | None = None,
        image_size: int | None = None,
        seed: int = 0,
        prefetch: int = 2,
        device: torch.device | str | None = None,
    ) -> None:
        check = Arguments()
        check.one_of("output", output, ("auto", "tuple", "dict"))
        check.integer("limit", limit, 1, MAX_EPOCH, none=True)
        check.integer("image_size", image_size, 1, none=True)
        check.integer("seed", seed, None)
        check.integer("prefetch", prefetch, most=MAX_WORKERS)
        try:
            self._device = None if device is None else torch.device(device)
        except (RuntimeError, TypeError) as error:
            check.refuse("device", f"is {device!r}: {str(error).splitlines()[0]}")
        check.raise_problems()
        path = store.path if isinstance(store, Store) else store
        kind = Transitions(only_valid=True)
        known = Dataset(path, kind).fields
        self._flat = _flat_keys(known, image_size) if output != "dict" and fields is None else []
        if (output == "tuple" or image_size is not None) and len(self._flat) < len(_FLAT):
            side = "" if image_size is None else f", images as sets of side {image_size}"
            needed = ", ".join("|".join(names) for names in _FLAT) + side
            found = ", ".join(known)
            msg = f"{os.fspath(path)}: a tuple needs the observations {needed}; the store has {found}"
            raise InputError(msg)
        self._tuple = len(self._flat) == len(_FLAT)
        if self._tuple:
            fields = [*self._flat, "action", *(f"next.{key}" for key in self._flat), "reward", "terminated"]
        self._dataset = Dataset(path, kind, fields, split)
        self._length = len(self._dataset) if limit is None else min(limit, len(self._dataset))
        self._seed = int(seed)
        self._next_number = 0
        self._prefetch = prefetch
        self._prefetched: deque[tuple[int, Future[Any]]] = deque()
        self._thread = ThreadPoolExecutor(1, "unistore-replay") if prefetch else None
        self._ring = SlabRing(in_flight=prefetch + 1, held=1, budget=_BUDGET)
        self._closed = False
        self._owner, self._lock = os.getpid(), threading.Lock()

    def __len__(self) -> int:
        """Number of transitions to draw from."""
        return self._length

    @property
    def action_mean(self) -> torch.Tensor:
        """Mean (A,) float32 of all actions of the store, accumulated in float64."""
        return self._action_statistics[0]

    @property
    def action_std(self) -> torch.Tensor:
        """Standard deviation (A,) float32 of all actions of the store, in float64, ddof 0."""
        return self._action_statistics[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def sample(self, batch_size: int) -> Any:
        """Next batch.

        Parameters
        ----------
        batch_size
            Number of transitions B; batches of the last requested size are prefetched.

        Returns
        -------
        tuple or dict of tensors
            As `output` says.

        Raises
        ------
        InputError
            If `batch_size` is not an integer of at least 1.
        ValueError
            If the buffer is closed, has no transitions, or was made in another process.
        CorruptionError
            If stored bytes are damaged; names array, shard and chunk.
        """
        check = Arguments()
        check.integer("batch_size", batch_size, 1)
        check.raise_problems()
        if self._owner != os.getpid():
            msg = "this ReplayBuffer was made in another process: make one in each, with a seed of its own"
            raise ValueError(msg)
        with self._lock:
            return self._next(int(batch_size))

    def _next(self, batch_size: int) -> Any:
        if self._closed:
            msg = "this ReplayBuffer is closed"
            raise ValueError(msg)
        if not self._length:
            msg = f"{self._dataset.path}: there are no transitions to draw from"
            raise ValueError(msg)
        if self._prefetched and self._prefetched[0][0] != batch_size:
            self._discard_prefetched()
        number = self._next_number
        self._next_number += 1
        ready = self._prefetched.popleft()[1] if self._prefetched else None
        if self._thread is not None:
            while len(self._prefetched) < self._prefetch:
                later = number + 1 + len(self._prefetched)
                job = self._thread.submit(self._read, later, batch_size, self._memory())
                self._prefetched.append((batch_size, job))
        batch, needed = self._read(number, batch_size, self._memory()) if ready is None else ready.result()
        self._ring.observe(needed)
        return batch

    def close(self) -> None:
        """Stop prefetching; batches that were returned stay valid."""
        if self._owner != os.getpid():  # a forked child has no such thread
            return
        with self._lock:
            self._closed = True
            self._discard_prefetched()
            if self._thread is not None:
                self._thread.shutdown()
            self._ring.close()

    @cached_property
    def _action_statistics(self) -> tuple[torch.Tensor, torch.Tensor]:
        mean, std = _read_statistics(self._dataset.store)
        return torch.from_numpy(mean.astype(np.float32)), torch.from_numpy(std.astype(np.float32))

    def _discard_prefetched(self) -> None:
        for _, future in self._prefetched:
            future.cancel()
        self._prefetched.clear()

    def _memory(self) -> Arena:
        """Memory for one batch, reused once nothing refers to the batch."""
        slab = self._ring.take()
        return Arena(None) if slab is None else Arena(slab.segment, None, self._ring.lend(slab, [])[0])

    def _read(self, number: int, batch_size: int, memory: Arena) -> tuple[Any, int]:
        """Batch `number`, and the bytes it needed."""
        drawn = words(self._seed, np.array([number]), np.array([batch_size]), batch_size)
        read = self._dataset.read_batch(below(drawn[0], self._length), memory.allocate)
        batch = as_tensors(read)
        if self._device is not None:
            batch = {
                key: value.to(self._device) if isinstance(value, torch.Tensor) else value
                for key, value in batch.items()
            }
        return self._as_tuple(batch) if self._tuple else batch, memory.needed

    def _as_tuple(self, batch: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        now = [_as_float(batch[key]) for key in self._flat]
        after = [_as_float(batch[f"next.{key}"]) for key in self._flat]
        reward = batch["reward"].float().reshape(-1, 1)
        not_done = 1.0 - batch["terminated"].float().reshape(-1, 1)
        return (*now, batch["action"].float(), *after, reward, not_done)


def _flat_keys(known: Sequence[str], image_size: int | None) -> list[str]:
    """Keys of the flat layout's observations that exist."""
    found = []
    for names in _FLAT:
        suffix = f"_{image_size}" if image_size is not None and names != ("joint",) else ""
        keys = [f"observation.{name}{suffix}" for name in names]
        found += [key for key in keys if key in known][:1]
    return found


def _as_float(values: torch.Tensor) -> torch.Tensor:
    """Images unchanged, everything else as float32."""
    return values if values.dtype == torch.uint8 and values.ndim == 4 else values.float()


def _recorded(store: Store, statistics: Any, name: str) -> NDArray[np.float64]:
    """Recorded statistic of the actions; NaN for null."""
    expected = store.array("steps/action").shape[1:]
    try:
        values: NDArray[np.float64] = np.array(statistics[name], np.float64)
    except (TypeError, ValueError, KeyError):
        values = np.empty(0)
    if values.shape != expected:
        message = f"statistics of steps/action have no {name} of shape {expected}"
        raise contradiction(store, "zarr.json", message)
    return values


def _read_statistics(store: Store) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation of the actions, as recorded, or else computed."""
    recorded = store.attributes.get("statistics", {}).get("steps/action")
    if recorded is not None:
        mean, std = (_recorded(store, recorded, name) for name in ("mean", "std"))
        if np.isfinite(mean).all() and np.isfinite(std).all():
            return mean, std
    actions = store.array("steps/action").read().astype(np.float64)
    return actions.mean(axis=0), actions.std(axis=0)
