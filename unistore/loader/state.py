"""The state of a run, as JSON values: how it is saved, checked and resumed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from numbers import Integral
from typing import Any, NamedTuple

import xxhash

from unistore.errors import LoaderError
from unistore.loader.iteration import EpochProgress
from unistore.order.sequences import EpochSequence
from unistore.system.arguments import MAX_EPOCH
from unistore.system.types import JsonObject

VERSION = 1
_FIELDS = {"version": int, "epoch": int, "delivered": int, "digest": str, "order": dict}


class DatasetIdentity(NamedTuple):
    """Which samples a run reads.

    Attributes
    ----------
    digest : str
        Hash of the number of samples, and of the attribute ``digest`` of the dataset if it has one.
    version : int or None
        Number of the version of a versioned store. None: the store has no versions.
    """

    digest: str
    version: int | None

    @classmethod
    def of(cls, dataset: Any) -> DatasetIdentity:
        dataset_hash = getattr(dataset, "digest", None)
        declared_hash = dataset_hash() if callable(dataset_hash) else dataset_hash
        hashed = {"samples": len(dataset), "dataset": None if declared_hash is None else str(declared_hash)}
        digest = xxhash.xxh3_128_hexdigest(json.dumps(hashed).encode())
        return cls(digest, getattr(dataset, "version", None))


def load_state(state: object, identity: DatasetIdentity, sequence: EpochSequence) -> EpochProgress:
    """Return the position that a state was saved at.

    Raises
    ------
    LoaderError
        If the state is invalid, or belongs to other samples or another order. The message names the
        difference.
    """
    fields: Mapping[str, Any] = state if isinstance(state, Mapping) else {}
    missing = [name for name, kind in _FIELDS.items() if type(fields.get(name)) is not kind]
    if missing or fields["version"] != VERSION:
        fault = f"has no {', '.join(sorted(missing))}" if missing else f"has version {fields['version']!r}"
        msg = f"load_state_dict: this is not a Loader state of version {VERSION}: it {fault}"
        raise LoaderError(msg)
    differences = _differences(fields["order"], sequence.describe())
    if fields["digest"] != identity.digest:
        differences.append("it had other samples: the store, split, sample kind, seed or condition differs")
    if differences:
        msg = (
            f"load_state_dict: the state was saved by a different run: {'; '.join(differences)}. "
            "Fix: open the dataset and the Loader with the arguments of that run"
        )
        raise LoaderError(msg)
    epoch = fields["epoch"]
    delivered = fields["delivered"]
    if not 0 <= epoch <= MAX_EPOCH or not 0 <= delivered <= len(sequence):
        msg = (
            f"load_state_dict: the state is invalid: epoch {epoch:,}, {delivered:,} of {len(sequence):,} "
            "samples delivered"
        )
        raise LoaderError(msg)
    return EpochProgress(epoch, delivered)


def _differences(saved_order: Mapping[Any, Any], order: Mapping[str, str | int]) -> list[str]:
    saved = {str(name): value for name, value in saved_order.items()}
    return [
        f"{name} was {saved.get(name)!r}, and is now {order.get(name)!r}"
        for name in sorted(order.keys() | saved.keys())
        if not isinstance(saved.get(name), str | Integral) or saved[name] != order.get(name)
    ]


class RunState:
    """The epoch that a run is in: its samples, their order, and how many of them were delivered.

    A run that is resumed may finish an epoch of an older version of its store. Its next epoch has all
    samples again.

    Parameters
    ----------
    dataset
        The dataset.
    sequence_of : callable
        Returns the order of the samples of a dataset: this one, or an older version of it.

    Attributes
    ----------
    sequence : EpochSequence
        Order of the samples of the epoch.
    progress : EpochProgress
        Position in it.
    """

    def __init__(self, dataset: Any, sequence_of: Callable[[Any], EpochSequence]) -> None:
        self._dataset = dataset
        self._sequence_of = sequence_of
        self.sequence = sequence_of(dataset)
        self.progress = EpochProgress()
        self._identity = DatasetIdentity.of(dataset)
        self._newest: EpochSequence | None = None  # order of later epochs, if this one is of an older version

    @property
    def is_older(self) -> bool:
        """Whether the epoch is of an older version of the store."""
        return self._newest is not None

    def end_older(self) -> bool:
        """Return to all samples, because the epoch is over. Return whether it was of an older version."""
        if self._newest is None:
            return False
        self.sequence = self._newest
        self._identity = DatasetIdentity.of(self._dataset)
        self._newest = None
        return True

    def save(self) -> JsonObject:
        """Return the state as JSON values."""
        state: JsonObject = {
            "version": VERSION,
            "epoch": self.progress.epoch,
            "delivered": self.progress.delivered,
            "digest": self._identity.digest,
            "order": self.sequence.describe(),
        }
        if self._identity.version is not None:
            state["store_version"] = self._identity.version
        return state

    def load(self, state: object, *, extend: bool) -> None:
        """Continue from a saved state. If that is an error, nothing changes.

        Parameters
        ----------
        state
            Result of `save`.
        extend : bool
            Whether an epoch of an older version may be finished.

        Raises
        ------
        LoaderError
            As `load_state`, or if the state is of an older version.
        """
        fields: Mapping[str, Any] = state if isinstance(state, Mapping) else {}
        newest = self.sequence if self._newest is None else self._newest
        sequence = newest
        identity = DatasetIdentity.of(self._dataset)
        saved = fields.get("store_version", 1)
        has_versions = identity.version is not None
        is_older = has_versions and fields.get("digest") != identity.digest and saved != identity.version
        if is_older:
            older = self._older_dataset(saved, identity.version, extend=extend)
            identity = DatasetIdentity.of(older)._replace(version=saved)
            sequence = self._sequence_of(older)
        order = fields.get("order")
        if isinstance(order, Mapping):
            sequence = sequence.arranged(order)
        self.progress = load_state(state, identity, sequence)
        self.sequence = sequence
        self._identity = identity
        self._newest = newest if is_older else None

    def _older_dataset(self, saved: Any, version: int | None, *, extend: bool) -> Any:
        path = self._dataset.path
        if not extend:
            msg = (
                f"load_state_dict: the state was saved with version {saved!r} of {path}, but version "
                f"{version} is open. Fix: open Dataset(…, version={saved!r}), or finish that epoch with "
                "load_state_dict(state, extend=True)"
            )
            raise LoaderError(msg)
        older = self._dataset.at_version(saved)
        if not self._dataset.extends(older):
            msg = (
                f"load_state_dict: version {version} of {path} does not have all samples "
                f"of version {saved!r}, or has another sample kind. "
                f"Fix: open Dataset(…, version={saved!r}), or start a new epoch without the state"
            )
            raise LoaderError(msg)
        return older
