"""A format of trajectories made up here: an ``.npz`` file an episode, ``action`` beside ``obs/<key>``.

Members that are not per step, such as a text ``task``, are the episode's attributes.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.exported import File, array_values
from unistore.converters.scan import Source
from unistore.converters.trajectory.source import (
    Array,
    Contents,
    EpisodeSource,
    Format,
    Group,
    Match,
    RestoredFile,
    SourceFile,
)
from unistore.errors import InputError, Location, Problem


@contextmanager
def opened(path: Path, name: str = "") -> Iterator[Any]:
    """The members of an archive, read when they are asked for."""
    with path.open("rb") as stream:
        try:
            members = np.load(stream, allow_pickle=False)
        except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
            problem = Problem(name or str(path), f"is no archive: {error}", "get it again", "format")
            raise InputError(problem) from error
        yield members


@dataclass(frozen=True, slots=True)
class NpzArray:
    """A member."""

    location: Location
    values: NDArray[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.values.dtype

    def problems(self, *, objects: bool = False) -> Sequence[Problem]:
        return ()

    def read(self, lo: int, hi: int, out: NDArray[Any] | None = None) -> NDArray[Any]:
        rows = self.values[lo:hi]
        if out is None:
            return rows.astype(self.dtype.newbyteorder("="))
        out[...] = rows
        return out

    def value(self, row: int | None = None) -> Any:
        return self.values[()] if row is None else self.values[row]


@dataclass(frozen=True, slots=True)
class Episode(EpisodeSource):
    """An open archive."""

    members: Any
    name: str

    def array(self, group: str, dataset: str) -> Array:
        assert group == ""
        return NpzArray(Location(self.name, dataset), self.members[dataset])

    def group_attributes(self, group: str) -> Mapping[str, Any]:
        return {"members": len(self.members.files)}


class Npz(Format):
    """The format."""

    name = "npz"
    suffixes = (".npz",)
    evidence = "action beside obs/ in an archive"

    def match(self, look: SourceFile) -> Match:
        names = look.opened(opened).files
        return (
            Match.CERTAIN
            if "action" in names and any(name.startswith("obs/") for name in names)
            else Match.NO
        )

    def names(self, look: SourceFile) -> Sequence[str]:
        return sorted(look.opened(opened).files)

    def describe(self, look: SourceFile) -> Contents:
        members = look.opened(opened)
        arrays: dict[str, Array] = {
            name: NpzArray(Location(look.name, name), members[name]) for name in members.files
        }
        return Contents(
            groups=[Group(name=look.path.stem, path="", arrays=arrays)],
            memory=sum(members[name].nbytes for name in members.files),
        )

    @contextmanager
    def open_episodes(self, source: Source) -> Iterator[EpisodeSource]:
        with opened(source.path, source.name) as members:
            yield Episode(members, source.name)

    def file(self, restored: RestoredFile) -> File:
        said = {key: array_values(np.array(value)) for key, value in restored.group_attributes[""].items()}
        del said["members"]
        return File(
            name=restored.name, form="npz", source=restored.source, values={**restored.values, **said}
        )
