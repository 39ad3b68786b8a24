"""Where the steps of one source lie: its episodes, their rows in the file, and the columns of each."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.trajectory.episodes import name_episodes
from unistore.converters.trajectory.features import Feature
from unistore.errors import InputError

__all__ = ["Index", "Span", "Variant"]


@dataclass(frozen=True, slots=True)
class Variant:
    """One set of columns that episodes of a source have.

    Attributes
    ----------
    features
        By column name.
    values
        Datasets of small arrays that are not per step.
    empty
        Dtypes of the datasets that have one row a step and nothing in it, by dataset.
    """

    features: Mapping[str, Feature]
    values: tuple[str, ...] = ()
    empty: Mapping[str, str] = field(default_factory=dict)

    @property
    def knows_next(self) -> bool:
        """Whether every observation has a recorded next one, so that the last step's is known too."""
        keys = [column.removeprefix("observation/") for column in self.features if _observes(column)]
        return bool(keys) and all(f"next_observation/{key}" in self.features for key in keys)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        features = {column: feature.to_json() for column, feature in self.features.items()}
        return {"features": features, "values": list(self.values), "empty": dict(self.empty)}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Variant:
        """Inverse of `to_json`."""
        features = {column: Feature.from_json(value) for column, value in plain["features"].items()}
        return cls(features, tuple(plain["values"]), plain["empty"])


def _observes(column: str) -> bool:
    return column.startswith("observation/")


@dataclass(frozen=True, slots=True)
class Span:
    """Rows ``first:first + length`` of the datasets in `group`; they begin at row `at` of what is read."""

    group: str
    variant: Variant
    first: int
    length: int
    at: int


@dataclass(frozen=True, slots=True)
class Index:
    """The episodes of one source, in order.

    Attributes
    ----------
    layout
        Name of the file's format.
    names
        One an episode: ``"demo_1"``, or made from the file's name.
    groups
        Its group in the file; ``""`` for the root.
    firsts, lengths
        Its rows in the group's datasets.
    variant
        Index into `variants`, one an episode.
    masks
        Episode numbers that each mask of the file lists.
    """

    layout: str
    names: Sequence[str]
    groups: Sequence[str]
    firsts: Sequence[int]
    lengths: Sequence[int]
    variant: Sequence[int]
    variants: Sequence[Variant]
    masks: Mapping[str, Sequence[int]]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "layout": self.layout,
            "names": list(self.names),
            "groups": list(self.groups),
            "firsts": list(self.firsts),
            "lengths": list(self.lengths),
            "variant": list(self.variant),
            "variants": [variant.to_json() for variant in self.variants],
            "masks": {mask: list(numbers) for mask, numbers in self.masks.items()},
        }

    def datasets(self) -> set[str]:
        """Paths in the file of all datasets of the episodes that are taken."""
        found: set[str] = set()
        for group, number in dict.fromkeys(zip(self.groups, self.variant, strict=True)):
            variant = self.variants[number]
            names = [*(each.dataset for each in variant.features.values()), *variant.values, *variant.empty]
            found.update(f"{group}/{name}".strip("/") for name in names)
        return found

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Index:
        """Inverse of `to_json`; further members are passed over."""
        known = {each.name: plain[each.name] for each in fields(cls)}
        return cls(**{**known, "variants": [Variant.from_json(value) for value in plain["variants"]]})

    def restricted(self, columns: Collection[str]) -> Index:
        """The same index, without columns that are not among the given ones."""
        variants = [
            replace(
                variant,
                features={column: found for column, found in variant.features.items() if column in columns},
            )
            for variant in self.variants
        ]
        return replace(self, variants=variants)

    @contextmanager
    def naming_episodes(self, name: str) -> Iterator[None]:
        """Let problems that are about one episode of the source `name` say so: it can be left out alone."""
        try:
            yield
        except InputError as error:
            raise InputError(name_episodes(error.problems, name, self.groups)) from error

    @property
    def offsets(self) -> NDArray[np.int64]:
        """(episodes + 1,): steps of episode e are ``offsets[e]:offsets[e + 1]``, counted in the source."""
        offsets = np.zeros(len(self.lengths) + 1, np.int64)
        np.cumsum(self.lengths, out=offsets[1:])
        return offsets

    def spans(self, lo: int, hi: int) -> Iterator[Span]:
        """Where steps ``lo:hi`` lie; neighbouring episodes of one dataset make one span."""
        offsets = self.offsets
        episode = int(np.searchsorted(offsets, lo, side="right")) - 1
        at = lo
        while at < hi:
            group, variant = self.groups[episode], self.variant[episode]
            first = self.firsts[episode] + at - int(offsets[episode])
            stop = at
            while (
                episode < len(self.lengths)
                and stop < hi
                and self._continues(episode, group, variant, first, at, stop)
            ):
                stop = min(hi, int(offsets[episode + 1]))
                episode += 1
            yield Span(group, self.variants[variant], first, stop - at, at - lo)
            at = stop

    def _continues(self, episode: int, group: str, variant: int, first: int, at: int, stop: int) -> bool:
        """Whether an episode's rows follow those of a span so far."""
        if (self.groups[episode], self.variant[episode]) != (group, variant):
            return False
        return stop == at or self.firsts[episode] == first + stop - at
