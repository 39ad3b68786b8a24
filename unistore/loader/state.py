"""Where a run stands: its exact position, and its statistics."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from numbers import Integral
from typing import Any

import xxhash

from unistore.errors import LoaderError
from unistore.loader.iteration import Arrival
from unistore.order.sequences import EpochSequence
from unistore.system.arguments import MAX_EPOCH

# Statistics of a Loader: `Loader.stats`, and the line that ``log_every`` prints.

_log = logging.getLogger("unistore.loader")


@dataclass(slots=True)
class Stats:
    """Totals of some batches: since the loader was made, or since the last report."""

    # delivered
    batches: int = 0
    samples: int = 0
    bytes: int = 0  # bytes of memory that delivered batches took
    wait_seconds: float = 0.0  # seconds that the consumer waited for batches (``data_time``)
    decode_seconds: float = 0.0  # seconds that workers spent reading batches, summed over workers
    slab_misses: int = 0  # delivered batches that did not fit into a slab and got memory of their own
    copies: int = 0  # batches that were copied, or read into new memory, because the consumer held too many
    # chunks or samples that the cache had, and had not
    cache_hits: int = 0
    cache_misses: int = 0

    def count(self, arrival: Arrival, samples: int, waited: float) -> None:
        """Add a delivered batch, its number of samples, and the seconds that the consumer waited for it."""
        self.batches += 1
        self.samples += samples
        self.bytes += arrival.needed
        self.wait_seconds += waited
        self.decode_seconds += arrival.seconds
        self.slab_misses += arrival.missed
        self.copies += arrival.copied
        self.cache_hits += arrival.hits
        self.cache_misses += arrival.misses

    def as_dict(self) -> dict[str, int | float]:
        """Return the totals by name."""
        return asdict(self)

    def line(
        self,
        # where the loader stands
        epoch: int,
        batch: int,
        seconds: float,  # how long they took
    ) -> str:
        """Return one line about these batches."""
        count = max(1, self.batches)
        rate = self.samples / seconds if seconds > 0 else 0.0
        parts = [
            f"epoch {epoch} batch {batch}",
            f"{rate:,.0f} samples/s",
            f"data_time {self.wait_seconds / count * 1e3:.2f} ms of {seconds / count * 1e3:.2f} ms a batch",
            f"decode {self.decode_seconds / count * 1e3:.2f} ms",
            f"{self.bytes / count / 1e6:.2f} MB a batch",
        ]
        if self.slab_misses:
            parts.append(f"{self.slab_misses} slab misses")
        if self.copies:
            parts.append(f"{self.copies} copied")
        if self.cache_hits or self.cache_misses:
            parts.append(f"cache {self.cache_hits / (self.cache_hits + self.cache_misses):.0%}")
        return "loader: " + ", ".join(parts)


def report(line: str) -> None:
    """Log a line at level INFO, or print it to standard error where that level is not logged."""
    if _log.hasHandlers() and _log.isEnabledFor(logging.INFO):
        _log.info(line)
    else:
        print(line, file=sys.stderr, flush=True)


VERSION = 1
_FIELDS = {"version": int, "epoch": int, "delivered": int, "digest": str, "order": dict}


def dataset_digest(dataset: Any) -> str:
    """Return the digest of a dataset's number of samples, and of its own ``digest`` if it has one."""
    own = getattr(dataset, "digest", None)
    own_digest = own() if callable(own) else own
    identity = json.dumps(
        {"samples": len(dataset), "dataset": None if own_digest is None else str(own_digest)}
    )
    return xxhash.xxh3_128_hexdigest(identity.encode())


class EpochProgress:
    """Epoch, and samples delivered in it by all ranks together.

    Prefetched samples do not count until they are delivered. Leaving an iteration early ends its epoch; an
    epoch resumed from a state continues at the state's position.
    """

    def __init__(
        self,
        digest: str,  # of the dataset, see `dataset_digest`
    ) -> None:
        self._digest = digest
        self.epoch = 0
        self.delivered = 0
        self._begun = False
        self._following: int | None = None

    def set_epoch(self, epoch: int) -> None:
        """Make ``epoch`` the next one to be iterated; within a resumed epoch, stay where it is."""
        if epoch != self.epoch or self._begun:
            self.epoch = epoch
            self.delivered = 0
            self._begun = False
            self._following = epoch

    def begin(self) -> tuple[int, int]:
        """Return epoch and position at which an iteration starts."""
        if self._begun:
            self.finish()
        self._following = None
        return self.epoch, self.delivered

    def deliver(self, epoch: int, delivered: int) -> None:
        """Note that all samples of an epoch before a position were delivered."""
        self.epoch = epoch
        self.delivered = delivered
        self._begun = True

    def finish(self) -> None:
        """Note that the epoch is over."""
        following = self.epoch + 1 if self._following is None else self._following
        self.epoch = following
        self.delivered = 0
        self._begun = False

    def save(self, sequence: EpochSequence) -> dict[str, Any]:
        """Return the state, a JSON object."""
        return {
            "version": VERSION,
            "epoch": self.epoch,
            "delivered": self.delivered,
            "digest": self._digest,
            "order": sequence.describe(),
        }

    def load(self, state: Mapping[str, Any], sequence: EpochSequence) -> None:
        """Continue from a state."""
        fields = state if isinstance(state, Mapping) else {}
        missing = [name for name, kind in _FIELDS.items() if type(fields.get(name)) is not kind]
        if missing or state["version"] != VERSION:
            fault = f"lacks {', '.join(sorted(missing))}" if missing else f"has version {state['version']!r}"
            msg = f"this is not a loader state of version {VERSION}: it {fault}"
            raise LoaderError(msg)
        mine = sequence.describe()
        theirs = {str(name): value for name, value in state["order"].items()}
        differences = [
            f"{name} was {theirs.get(name)!r} and is {mine.get(name)!r}"
            for name in sorted(mine.keys() | theirs.keys())
            if not isinstance(theirs.get(name), str | Integral) or theirs[name] != mine.get(name)
        ]
        if state["digest"] != self._digest:
            differences.append("the dataset holds other samples")
        if differences:
            msg = f"this state is of another run and cannot be continued exactly: {'; '.join(differences)}"
            raise LoaderError(msg)
        epoch = state["epoch"]
        delivered = state["delivered"]
        if not 0 <= epoch <= MAX_EPOCH or not 0 <= delivered <= len(sequence):
            msg = (
                f"the state says epoch {epoch}, {delivered} samples delivered of {len(sequence)}: "
                "no run of this loader comes there"
            )
            raise LoaderError(msg)
        self.epoch = epoch
        self.delivered = delivered
        self._begun = False
        self._following = None
