"""Index of one source: its episodes, their rows in the file, and the columns of each."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.files.hdf5.file import location_of
from unistore.converters.trajectory.columns import Feature
from unistore.errors import InputError, Problem
from unistore.schemas.tables import offsets_of


@dataclass(frozen=True)
class Variant:
    """A set of columns that some episodes of a source have; fields as of `Episode`."""

    features: Mapping[str, Feature]
    values: tuple[str, ...] = ()
    empty: Mapping[str, str] = field(default_factory=dict)

    @property
    def knows_next(self) -> bool:
        """Whether every observation has a next observation, so that it is known at the last step, too."""
        observations = [column for column in self.features if column.startswith("observation/")]
        return bool(observations) and all(f"next_{column}" in self.features for column in observations)

    def to_json(self) -> dict[str, Any]:
        """As JSON; see `from_json`."""
        features = {column: feature.to_json() for column, feature in self.features.items()}
        return {"features": features, "values": list(self.values), "empty": dict(self.empty)}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Variant:
        """Inverse of `to_json`."""
        features = {column: Feature.from_json(value) for column, value in plain["features"].items()}
        return cls(features, tuple(plain["values"]), plain["empty"])


@dataclass(frozen=True, slots=True)
class Span:
    """Rows ``first:first + length`` of the datasets in `group`, which are requested rows from `at` on."""

    group: str
    variant: Variant
    first: int
    length: int
    at: int


@dataclass(frozen=True)
class EpisodeIndex:
    """The episodes of one source, in order."""

    layout: str
    """Name of the file's format."""
    names: Sequence[str]
    """Name of each episode: ``"demo_1"``, or made from the file's name."""
    groups: Sequence[str]
    """Group of each episode in the file; ``""`` for the root."""
    firsts: Sequence[int]
    """First row of each episode in the group's datasets."""
    lengths: Sequence[int]
    """Steps of each episode."""
    variant: Sequence[int]
    """Index into `variants` of each episode."""
    variants: Sequence[Variant]
    masks: Mapping[str, Sequence[int]]
    """Episode numbers in each mask of the file."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        lists = ("names", "groups", "firsts", "lengths", "variant")
        return {
            "layout": self.layout,
            **{name: list(getattr(self, name)) for name in lists},
            "variants": [variant.to_json() for variant in self.variants],
            "masks": {mask: list(numbers) for mask, numbers in self.masks.items()},
        }

    def datasets(self) -> set[str]:
        """Paths in the file of all datasets that are converted."""
        found: set[str] = set()
        for group, number in dict.fromkeys(zip(self.groups, self.variant, strict=True)):
            variant = self.variants[number]
            names = [*(each.dataset for each in variant.features.values()), *variant.values, *variant.empty]
            found.update(f"{group}/{name}".strip("/") for name in names)
        return found

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> EpisodeIndex:
        """Inverse of `to_json`; other members are ignored."""
        known = {each.name: plain[each.name] for each in fields(cls)}
        return cls(**{**known, "variants": [Variant.from_json(value) for value in plain["variants"]]})

    def restricted(self, columns: Collection[str]) -> EpisodeIndex:
        """The same index with only the given columns."""
        variants = []
        for each in self.variants:
            features = {column: found for column, found in each.features.items() if column in columns}
            variants.append(replace(each, features=features))
        return replace(self, variants=variants)

    @contextmanager
    def episodes_in_problems(self, name: str) -> Iterator[None]:
        """Set `Problem.source` of raised problems to their episode, so that it can be excluded alone."""
        try:
            yield
        except InputError as error:
            raise InputError(with_episodes(error.problems, name, self.groups)) from error

    @property
    def offsets(self) -> NDArray[np.int64]:
        """(episodes + 1,): episode e has the steps ``offsets[e]:offsets[e + 1]`` of the source."""
        return offsets_of(self.lengths)

    def spans(self, lo: int, hi: int) -> Iterator[Span]:
        """Spans of the steps ``lo:hi``; consecutive episodes in the same datasets make one span."""
        offsets = self.offsets
        episode = int(np.searchsorted(offsets, lo, side="right")) - 1
        at = lo
        while at < hi:
            group, variant = self.groups[episode], self.variant[episode]
            first = self.firsts[episode] + at - int(offsets[episode])
            stop = min(hi, int(offsets[episode + 1]))
            episode += 1
            while stop < hi and (
                (self.groups[episode], self.variant[episode], self.firsts[episode])
                == (group, variant, first + stop - at)
            ):
                stop = min(hi, int(offsets[episode + 1]))
                episode += 1
            yield Span(group, self.variants[variant], first, stop - at, at - lo)
            at = stop


def with_episodes(problems: Sequence[Problem], name: str, groups: Sequence[str]) -> list[Problem]:
    """Problems of a file; `Problem.source` is set to the episode whose group the location lies in, if any."""
    found = []
    for problem in problems:
        owner = next((group for group in groups if lies_in(problem, name, group)), None)
        source = problem.source if owner is None else str(location_of(name, owner))
        found.append(replace(problem, source=source))
    return found


def lies_in(problem: Problem, name: str, group: str) -> bool:
    """Whether a problem is about a group of a file or about something in it."""
    file, path, _ = location_of(name, group)
    if problem.file != file or not problem.dataset:
        return False
    return not path or f"{problem.dataset}/".startswith(f"{path}/")
