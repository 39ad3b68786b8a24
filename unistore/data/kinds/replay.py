"""The `ReplayBuffer`: random batches of transitions from a store, prefetched by a thread."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray

from unistore.converters.formats.images import resize
from unistore.data.collate import as_tensors
from unistore.data.dataset import Dataset
from unistore.data.kinds.episodes import Transitions
from unistore.data.parts import check_drawable, common_fields
from unistore.data.statistics import Statistics
from unistore.errors import InputError
from unistore.memory import Arena, SlabRing
from unistore.order.permutation import below, random_words
from unistore.order.sequences import Weighted
from unistore.store.reader import Store
from unistore.system.arguments import MAX_EPOCH, MAX_WORKERS, Arguments, wrong_argument
from unistore.system.types import Int64s, JsonObject, PathLike
from unistore.system.workers import distributed_ranks, resolve_ranks

# The flat layout of replay buffers: which observations its tuple has, and images in another size.

# Observations in the order of the tuple, each under the names it goes by
_OBSERVATIONS = (
    ("left_image", "left_wrist_image"),
    ("right_image", "right_wrist_image"),
    ("global_image",),
    ("joint", "joints", "qpos"),
)


class Flat(NamedTuple):
    """The layout of a batch as a tuple.

    Attributes
    ----------
    keys : tuple of str
        Keys of the observations, in order.
    size : int or None
        Side of the images. None: as stored.
    """

    keys: tuple[str, ...]
    size: int | None

    @property
    def fields(self) -> list[str]:
        """Keys to read for a tuple."""
        return [*self.keys, "action", *(f"next.{key}" for key in self.keys), "reward", "terminated"]

    def of(self, batch: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return a batch of tensors by key as a tuple; see `ReplayBuffer`."""
        now = [self._ready(batch[key]) for key in self.keys]
        after = [self._ready(batch[f"next.{key}"]) for key in self.keys]
        reward = batch["reward"].float().reshape(-1, 1)
        not_done = 1.0 - batch["terminated"].float().reshape(-1, 1)
        return (*now, batch["action"].float(), *after, reward, not_done)

    def _ready(self, values: torch.Tensor) -> torch.Tensor:
        if values.dtype != torch.uint8 or values.ndim != 4:
            return values.float()
        if self.size is None or values.shape[-2:] == (self.size, self.size):
            return values
        return _resized(values, self.size)


def flat_layout(where: str, known: Sequence[str], size: int | None) -> Flat:
    """Return the layout of a batch as a tuple.

    Parameters
    ----------
    where : str
        Path of the store, which the message names.
    known : sequence of str
        Keys that the store has.
    size : int or None
        Side of the images. None: as stored.

    Raises
    ------
    InputError
        If the store lacks an observation of the tuple. The message states the options that name it.
    """
    stored = [_stored(names, known, size) for names in _OBSERVATIONS]
    keys = tuple(key for key in stored if key is not None)
    if len(keys) == len(stored):
        return Flat(keys, size)
    missing = [names for names, key in zip(_OBSERVATIONS, stored, strict=True) if key is None]
    options = " ".join(f"--map observation/{names[0]}=DATASET" for names in missing)
    names = ", ".join(" or ".join(alternatives) for alternatives in missing)
    message = f"output='tuple' needs the observations {names}, but the store has {', '.join(known)}"
    fix = f"give output='dict', or convert again with {options}"
    raise InputError.at(where, message, fix, "fields")


def _stored(names: Sequence[str], known: Sequence[str], size: int | None) -> str | None:
    for name in names:
        for key in (f"observation.{name}_{size}", f"observation.{name}"):
            if key in known:
                return key
    return None


def _resized(images: torch.Tensor, size: int) -> torch.Tensor:
    # Bilinear, as OpenCV does it, with channels last in memory
    out = np.empty((len(images), size, size, 3), np.uint8)
    resize(images.permute(0, 2, 3, 1).contiguous().cpu().numpy(), out)
    return torch.from_numpy(out).permute(0, 3, 1, 2)


# Limit of memory that is kept for reuse between batches, in bytes
_BUDGET = 4 << 30
# Seconds that a large batch waits for the memory of the one that the caller is just replacing
_PATIENCE = 0.05
# For each entry of a state besides ``served``: what it means that it differs
_WHAT_DIFFERS = {
    "seed": "another seed",
    "world_size": "another number of ranks",
    "digest": "other stores, split, indices, limit or weights",
}


class ReplayBuffer:
    """Uniform random transitions of a trajectory store, drawn with replacement and prefetched by a thread.

    Steps whose next observation was not recorded are never drawn, except terminal steps: there `not_done`
    is 0, and the next observation is the step's own.

    **Reproducible.** Batch n depends only on `seed`, n, the batch size and the rank. Batch n of all ranks
    together is batch n of a single process that draws as many transitions.

    **Processes and threads.** Several threads may use one buffer. A forked process needs a buffer of its own.

    Parameters
    ----------
    store : path, URL, Store, or list of paths
        Folder of the store, or an open `Store`. A list joins several stores with the same fields.
    output : {"tuple", "dict"}, default "tuple"
        ``"tuple"``: (left, right, global, joint, action, next left, next right, next global, next joint,
        reward, not_done). Images are (B, 3, H, W), uint8; everything else is float32; reward and not_done
        are (B, 1). ``"dict"``: tensors by key in their stored dtypes, as in `Transitions`, for any
        trajectory store.
    fields : list of str, optional
        Keys of the dict. Not with ``"tuple"``. None: all default keys of `Transitions`.
    limit : int, optional
        Draw only from the first so many transitions. None: from all.
    split : str or list of str, optional
        Draw only from the episodes of this split, or of these splits. None: from all episodes.
    indices : sequence of int, optional
        Draw only from these transitions: their numbers in the split, in any order. None: from all.
    weights : sequence of float, optional
        Draw in proportion to these weights: one per transition (of `indices`, in their order), or one per
        store of several, with equal weights for its transitions. `set_weights` changes them. None: equal
        weights.
    image_size : int, optional
        Side of the images, only with ``"tuple"``. Images that the store has in this size are read; others are
        resized while reading, as ``cv2.resize`` does. None: as stored.
    seed : int, default 0
        Seed of the draws.
    prefetch : int, default 2
        Number of batches to prepare ahead; fewer if they would take more than 256 MB together, but at
        least one. 0: no prefetching, and no thread.
    device : torch.device or str, optional
        Device of the batches. None: host memory.
    rank, world_size : int, optional
        Number of this process, and number of processes that draw together, as in `unistore.Loader`. None:
        from ``torch.distributed`` if it is initialised when a batch is drawn, otherwise from ``RANK`` and
        ``WORLD_SIZE``, otherwise 0 and 1.

    Raises
    ------
    InputError
        If an argument is invalid, the store is not a trajectory store, or lacks observations of the tuple.

    Examples
    --------
    >>> with unistore.ReplayBuffer("demos.zarr", output="dict", seed=1) as buffer:  # doctest: +SKIP
    ...     batch = buffer.sample(256)
    >>> batch["reward"].shape  # doctest: +SKIP
    torch.Size([256])
    """

    def __init__(
        self,
        store: PathLike | Store | Sequence[PathLike],
        *,
        output: Literal["tuple", "dict"] = "tuple",
        fields: Sequence[str] | None = None,
        limit: int | None = None,
        split: str | Sequence[str] | None = None,
        indices: Sequence[int] | NDArray[np.integer] | None = None,
        weights: Sequence[float] | NDArray[np.floating] | None = None,
        image_size: int | None = None,
        seed: int = 0,
        prefetch: int = 2,
        device: torch.device | str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        check = Arguments()
        check.one_of("output", output, ("tuple", "dict"))
        if output == "tuple" and fields is not None:
            check.refuse("fields", "works only with output='dict'", "give output='dict', or remove fields")
        if output == "dict" and image_size is not None:
            fix = "give output='tuple', or remove image_size"
            check.refuse("image_size", "works only with output='tuple'", fix)
        check.integer("limit", limit, 1, MAX_EPOCH, none=True)
        check.integer("image_size", image_size, 1, none=True)
        check.integer("seed", seed, None)
        check.integer("prefetch", prefetch, most=MAX_WORKERS)
        self.rank, self.world_size = resolve_ranks(check, rank, world_size)
        self._are_ranks_stated = rank is not None or world_size is not None
        try:
            self._device = None if device is None else torch.device(device)
        except (RuntimeError, TypeError) as error:
            check.refuse("device", f"{device!r} cannot be used: {str(error).splitlines()[0]}")
        check.raise_problems()
        path = store.place if isinstance(store, Store) else store
        self._dataset = Dataset(path, Transitions(only_valid=True), fields, split)
        self._flat = None
        if output == "tuple":
            self._flat = flat_layout(self._dataset.path, self._dataset.fields, image_size)
            self._dataset.fields = common_fields(self._dataset.parts, self._flat.fields)
        self._seed = int(seed)
        self._chosen = None if indices is None else _chosen_transitions(indices, len(self._dataset))
        bounds = self._dataset.store_offsets
        if self._chosen is not None:
            bounds = np.searchsorted(self._chosen, bounds)
        self._bounds = bounds if limit is None else np.minimum(bounds, limit)
        self._length = int(self._bounds[-1])
        self._places = None if self._chosen is None else np.searchsorted(self._chosen, np.asarray(indices))
        self._first_draws = None if weights is None else self._weighted_draws(weights)
        self._weighted = self._first_draws
        self._changed_weights: torch.Tensor | None = None
        self._has_new_weights = False
        self._next_number = 0
        self._prefetch = prefetch
        self._prefetched: deque[tuple[int, Future[Any]]] = deque()
        self._thread = ThreadPoolExecutor(1, "unistore-replay") if prefetch else None
        self._ring = SlabRing(in_flight=prefetch + 1, held=1, budget=_BUDGET, least=1)
        self._ring_lock = threading.Lock()
        self._closed = False
        self._owner = os.getpid()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return the number of transitions to draw from."""
        return self._length

    @cached_property
    def action_mean(self) -> torch.Tensor:
        """Mean of all actions of the store, (A,) float32, accumulated in float64."""
        return torch.as_tensor(self._action_statistics.mean).float()

    @cached_property
    def action_std(self) -> torch.Tensor:
        """Standard deviation (ddof 0) of all actions of the store, (A,) float32, accumulated in float64."""
        return torch.as_tensor(self._action_statistics.std).float()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def sample(self, batch_size: int) -> Any:
        """Return the next batch.

        Parameters
        ----------
        batch_size : int
            Number of transitions B. Batches of the size that was last requested are prefetched.

        Returns
        -------
        tuple or dict of Tensor
            See `output`. The batch never changes while you hold it.

        Raises
        ------
        InputError
            If `batch_size` is not an integer of at least 1.
        ValueError
            If the buffer is closed, has no transitions, or was made in another process.
        CorruptionError
            If stored bytes are damaged. The message names array, shard and chunk.
        """
        check = Arguments()
        check.integer("batch_size", batch_size, 1)
        check.raise_problems()
        if self._owner != os.getpid():
            msg = (
                "this ReplayBuffer was made in another process. "
                "Fix: make one in each process, with a seed or rank of its own"
            )
            raise ValueError(msg)
        with self._lock:
            if self._closed:
                msg = "this ReplayBuffer is closed"
                raise ValueError(msg)
            if not self._length:
                msg = f"{self._dataset.path}: there are no transitions to sample"
                raise ValueError(msg)
            return self._next(int(batch_size))

    def _next(self, batch_size: int) -> Any:
        self._follow_ranks()
        if self._prefetched and self._prefetched[0][0] != batch_size:
            self._discard_prefetched()
        number = self._next_number
        self._next_number += 1
        if not self._ring.slab_size:  # from one transition follows how much memory a batch needs
            _, needed = self._read(number, 1, Arena(None))
            self._observe(batch_size * needed)
        ready = self._prefetched.popleft()[1] if self._prefetched else None
        # Weights that change after every batch would let every prefetched one be read in vain.
        is_steady = not self._has_new_weights
        self._has_new_weights = False
        if self._thread is not None and is_steady:
            while len(self._prefetched) < min(self._prefetch, self._ring.batches_in_flight):
                later = number + 1 + len(self._prefetched)
                job = self._thread.submit(self._read, later, batch_size)
                self._prefetched.append((batch_size, job))
        batch, needed = self._read(number, batch_size) if ready is None else ready.result()
        self._observe(needed)
        return batch

    def _observe(self, needed: int) -> None:
        with self._ring_lock:
            self._ring.observe(needed)

    def close(self) -> None:
        """Stop prefetching. Batches that you hold stay valid. Leaving a ``with`` block closes the buffer."""
        if self._owner != os.getpid():  # a forked child has no such thread
            return
        with self._lock:
            self._closed = True
            self._discard_prefetched()
            if self._thread is not None:
                self._thread.shutdown()
            self._ring.close()

    def set_weights(self, weights: Sequence[float] | NDArray[np.floating] | torch.Tensor) -> None:
        """Draw in proportion to other weights from the next `sample` on.

        Batches that were prefetched are drawn again. If several ranks draw together, set the same weights
        on all of them after the same number of batches.

        Parameters
        ----------
        weights : sequence of float, array or Tensor
            One per transition (of `indices`, in their order), or one per store of several: finite, at
            least 0, and not all 0. They are rounded to float32, as `state_dict` stores them.

        Raises
        ------
        InputError
            If the weights are invalid. The buffer then keeps its weights.
        """
        rounded = torch.as_tensor(weights).detach().to("cpu", torch.float32, copy=True)
        draws = self._weighted_draws(rounded.numpy())
        with self._lock:
            self._use_weights(draws, rounded)

    def _use_weights(self, draws: Weighted | None, changed: torch.Tensor | None) -> None:
        self._discard_prefetched()
        self._weighted = draws
        self._changed_weights = changed
        self._has_new_weights = True

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the draws: a buffer that loads it returns the same next batch.

        The state is the same on every rank after the same number of batches, so one checkpoint is enough
        for all.

        Returns
        -------
        dict
            JSON values; after `set_weights` also ``"weights"``, a float32 tensor.
        """
        with self._lock:
            state = {"served": self._next_number, **self._identity()}
            return state if self._changed_weights is None else {**state, "weights": self._changed_weights}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where another buffer stopped.

        Parameters
        ----------
        state : dict
            Result of `state_dict` of a buffer with the same stores, split, indices, limit, weights, seed
            and number of ranks.

        Raises
        ------
        InputError
            If it is not such a state. The message names the difference.
        """
        if not isinstance(state, Mapping) or not state.keys() >= {"served", *_WHAT_DIFFERS}:
            raise wrong_argument("state", f"is not a state of a ReplayBuffer: {state!r:.80}")
        check = Arguments()
        check.integer("served", state["served"], most=MAX_EPOCH)
        check.raise_problems()
        differing = [_WHAT_DIFFERS[name] for name, own in self._identity().items() if state[name] != own]
        if differing:
            message = f"was saved with {' and '.join(differing)}"
            raise wrong_argument("state", message, "make the ReplayBuffer with the arguments of that run")
        changed = state.get("weights")
        if changed is not None:
            changed = torch.as_tensor(changed).to("cpu", torch.float32, copy=True)
        draws = self._first_draws if changed is None else self._weighted_draws(changed.numpy())
        with self._lock:
            self._use_weights(draws, changed)
            self._next_number = int(state["served"])

    @cached_property
    def _action_statistics(self) -> Statistics:
        stores = [part.store.place for part in self._dataset.parts]
        dataset = Dataset(stores, Transitions(), ["action"])
        is_vector = len(dataset.parts[0].store.array("steps/action").shape) > 1
        return dataset.statistics("action", axis=-1 if is_vector else None)

    def _follow_ranks(self) -> None:
        # Trainers may start the processes, or initialise torch.distributed, after the buffer was made
        ranks = None if self._are_ranks_stated else distributed_ranks()
        if ranks is not None and ranks != (self.rank, self.world_size):
            self._discard_prefetched()
            self.rank, self.world_size = ranks

    def _discard_prefetched(self) -> None:
        for _, future in self._prefetched:
            future.cancel()
        self._prefetched.clear()

    def _memory(self) -> Arena:
        # Reused once nothing refers to the batch
        latest = time.monotonic() + _PATIENCE
        while True:
            with self._ring_lock:
                slab = self._ring.take()
                if slab is not None:
                    return Arena(slab, self._ring.lend(slab))
                large = self._ring.limit < self._prefetch + 2
            if not large or time.monotonic() > latest:
                return Arena(None)
            time.sleep(0.001)

    def _read(self, number: int, batch_size: int, memory: Arena | None = None) -> tuple[Any, int]:
        memory = self._memory() if memory is None else memory
        drawn = self._draw(number, batch_size)
        read = self._dataset.read_batch(drawn, memory.allocate)
        batch = as_tensors(read)
        if self._device is not None:
            batch = {
                key: value.to(self._device) if isinstance(value, torch.Tensor) else value
                for key, value in batch.items()
            }
        return batch if self._flat is None else self._flat.of(batch), memory.needed

    def _draw(self, number: int, batch_size: int) -> Int64s:
        start = self.rank * batch_size
        stop = (self.rank + 1) * batch_size
        if self._weighted is None:
            together = batch_size * self.world_size
            drawn = random_words(self._seed, np.array([number]), np.array([together]), together)
            places = below(drawn[0, start:stop], self._length)
        else:
            places = self._weighted.indices(number, start, stop)
        return places if self._chosen is None else self._chosen[places]

    def _weighted_draws(self, weights: Any) -> Weighted:
        parts = self._dataset.read_parts
        transitions = len(self._dataset) if self._places is None else len(self._places)
        try:
            numbers = np.asarray(weights, np.float64)
            if len(parts) > 1 and numbers.shape == (len(parts),):
                check_drawable(numbers.tolist(), parts, np.diff(self._bounds))
                return Weighted(numbers, self._bounds, seed=self._seed)
            if numbers.shape != (transitions,):
                stores = f", or {len(parts)}, one for each store" if len(parts) > 1 else ""
                expected = f"{transitions:,} numbers, one for each transition{stores}"
                msg = f"must be {expected}, got {numbers.size:,}"
                raise ValueError(msg)
            if self._places is not None:  # a transition that is listed twice is drawn with both its weights
                numbers = np.bincount(self._places, numbers).astype(np.float64)
            return Weighted(numbers[: self._length], seed=self._seed)
        except (TypeError, ValueError) as error:
            raise wrong_argument("weights", str(error).removeprefix("weights ")) from error

    def _identity(self) -> JsonObject:
        self._follow_ranks()
        # What the draws depend on besides the number of the batch, its size and the rank
        chosen = "" if self._chosen is None else xxhash.xxh3_128_hexdigest(self._chosen.tobytes())
        weighted = None if self._first_draws is None else self._first_draws.describe()["weights"]
        identity = [self._dataset.digest, weighted, self._length, chosen]
        digest = xxhash.xxh3_128_hexdigest(json.dumps(identity).encode())
        return {"seed": self._seed, "world_size": self.world_size, "digest": digest}


def _chosen_transitions(indices: Sequence[int] | NDArray[np.integer], count: int) -> Int64s:
    numbers = np.asarray(indices)
    if numbers.ndim == 1 and numbers.dtype.kind in "iu" and len(numbers):
        chosen = np.unique(numbers.astype(np.int64))
        if chosen[0] >= 0 and chosen[-1] < count:
            return chosen
    message = f"must be at least one number of a transition, from 0 to {count - 1:,}"
    raise wrong_argument("indices", message)
