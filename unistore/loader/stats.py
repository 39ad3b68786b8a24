"""Statistics of a Loader: `Loader.stats`, and the line that ``log_every`` prints."""

from __future__ import annotations

import logging
import sys
from dataclasses import asdict, dataclass

from unistore.loader.production import Arrival

_log = logging.getLogger("unistore.loader")


@dataclass(slots=True)
class Stats:
    """Totals of some batches: since the loader was made, or since the last report.

    Attributes
    ----------
    batches, samples
        Delivered.
    bytes
        Bytes of memory that delivered batches took.
    wait_seconds
        Seconds that the consumer waited for batches (``data_time``).
    decode_seconds
        Seconds that workers spent reading batches, summed over workers.
    slab_misses
        Delivered batches that did not fit into a slab and got memory of their own.
    copies
        Batches that were copied, or read into new memory, because the consumer held too many.
    cache_hits, cache_misses
        Chunks or samples that the cache had, and had not.
    """

    batches: int = 0
    samples: int = 0
    bytes: int = 0
    wait_seconds: float = 0.0
    decode_seconds: float = 0.0
    slab_misses: int = 0
    copies: int = 0
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

    def line(self, epoch: int, batch: int, seconds: float) -> str:
        """Return one line about these batches.

        Parameters
        ----------
        epoch, batch
            Where the loader stands.
        seconds
            How long they took.
        """
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
