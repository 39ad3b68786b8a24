"""The exact position of a run: epoch, delivered samples, and the order they belong to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from numbers import Integral
from typing import Any

import xxhash

from unistore.errors import LoaderError
from unistore.order.sequences import EpochSequence
from unistore.system.arguments import MAX_EPOCH

VERSION = 1
_FIELDS = {"version": int, "epoch": int, "delivered": int, "digest": str, "order": dict}


def dataset_digest(dataset: Any) -> str:
    """Digest of a dataset's number of samples, and of its own ``digest`` if it has one."""
    own = getattr(dataset, "digest", None)
    known = own() if callable(own) else own
    identity = json.dumps({"samples": len(dataset), "dataset": None if known is None else str(known)})
    return xxhash.xxh3_128_hexdigest(identity.encode())


class Progress:
    """Epoch, and samples delivered in it by all ranks together.

    Prefetched samples do not count until they are delivered. Leaving an iteration early ends its epoch; an
    epoch resumed from a state continues at the state's position.

    Parameters
    ----------
    digest
        Of the dataset, see `dataset_digest`.
    """

    def __init__(self, digest: str) -> None:
        self._digest = digest
        self.epoch = 0
        self.delivered = 0
        self._begun = False
        self._following: int | None = None

    def set_epoch(self, epoch: int) -> None:
        """Make ``epoch`` the next one to be iterated; within a resumed epoch, stay where it is."""
        if epoch != self.epoch or self._begun:
            self.epoch, self.delivered, self._begun = epoch, 0, False
            self._following = epoch

    def begin(self) -> tuple[int, int]:
        """Return epoch and position at which an iteration starts."""
        if self._begun:
            self.finish()
        self._following = None
        return self.epoch, self.delivered

    def deliver(self, epoch: int, delivered: int) -> None:
        """Note that all samples of an epoch before a position were delivered."""
        self.epoch, self.delivered, self._begun = epoch, delivered, True

    def finish(self) -> None:
        """Note that the epoch is over."""
        following = self.epoch + 1 if self._following is None else self._following
        self.epoch, self.delivered, self._begun = following, 0, False

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
        """Continue from a state.

        Raises
        ------
        LoaderError
            The state is of other samples or of another order; the difference is named.
        """
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
        self.epoch, self.delivered, self._begun = epoch, delivered, False
        self._following = None
