"""Open Minari datasets: ``main_data.hdf5`` with an observation more than steps, ``metadata.json`` beside."""

# Observations, and infos where they are as many, open as two arrays: `observations/x` has those before each
# step, `next_observations/x` those after it.

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from unistore.converters.claims import Claim, no, sure
from unistore.converters.formats.hdf5 import Hdf5, OpenedHdf5
from unistore.converters.formats.lazy import Stretch
from unistore.converters.opened import Array, Facts, Format, Member, NamedArrays, OpenFile, Origin, SourceFile
from unistore.errors import Problem

FILE = "main_data.hdf5"
METADATA = "metadata.json"
_MARK = "observation_space"
_OBSERVATIONS = "observations"
_INFOS = "infos"
_COUNTED = "rewards"  # has a row a step in every episode


@dataclass(frozen=True, eq=False, kw_only=True)
class _OpenedMinari(OpenFile):
    """An open dataset, by the groups of its HDF5 file."""

    hdf5: OpenedHdf5

    @cached_property
    def all_arrays(self) -> NamedArrays:
        return _by_step(self.hdf5.all_arrays)

    @property
    def groups(self) -> Sequence[str]:
        return self.hdf5.groups

    @property
    def unreachable(self) -> Sequence[Problem]:
        return self.hdf5.unreachable

    def members(self, group: str = "") -> Mapping[str, Member]:
        return self.hdf5.members(group)

    def origins(self, name: str) -> Sequence[Origin]:
        """See `OpenFile`."""
        episode, _, below = name.partition("/")
        is_divided = name not in self.hdf5.tree.datasets
        return self.hdf5.origins(f"{episode}/{dataset_in_minari(below)}" if is_divided else name)

    def group_facts(self, group: str = "") -> Facts:
        """See `OpenFile`: what the metadata say, or attributes of a group."""
        episode, _, dataset = group.partition("/")
        return self.hdf5.group_facts(f"{episode}/{dataset_in_minari(dataset)}") if group else self.facts


class Minari(Format):
    """A Minari dataset, by its ``main_data.hdf5``."""

    name = "minari"
    suffixes = (FILE,)
    offered = False

    def recognise(self, file: SourceFile) -> Claim:
        metadata = file.path.with_name(METADATA)
        if file.path.name == FILE and metadata.is_file() and _MARK in _facts(file):
            return sure(f"has {METADATA} of Minari beside it")
        return no(f"has no {METADATA} of Minari beside it")

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[OpenFile]:
        facts = _facts(file)
        with Hdf5().open(file) as opened:
            assert isinstance(opened, OpenedHdf5)
            yield _OpenedMinari(
                arrays=_by_step({**opened.sound, **opened.of_any_length}),
                facts=facts,
                further=[file.beside(METADATA), *opened.further],
                memory=opened.memory,
                problems=opened.problems,
                left_out=opened.left_out,
                file=file,
                shows=opened.shows,
                hdf5=opened,
            )


def _facts(file: SourceFile) -> Facts:
    """Read the metadata beside a file. Damaged ones are no sign that the file is another's."""
    metadata = file.beside(METADATA)
    metadata.check_whole()
    try:
        facts: Any = json.loads(metadata.path.read_bytes())
    except ValueError as error:
        raise metadata.problem(f"is no JSON: {error}", "get the dataset again", "damaged") from error
    return facts if isinstance(facts, dict) else {}


def _by_step(arrays: NamedArrays) -> dict[str, Array]:
    """Divide arrays of an observation more than steps into those before and those after a step."""
    rows: dict[str, int] = {}  # steps of each episode
    for path, array in arrays.items():
        episode, _, below = path.partition("/")
        if below == _COUNTED and array.shape:
            rows[episode] = array.shape[0]
    with_last = set[str]()  # by path in an episode; an episode may lack the last observation
    for path, array in arrays.items():
        episode, _, below = path.partition("/")
        if below.partition("/")[0] in (_OBSERVATIONS, _INFOS) and array.shape[:1] == (
            rows.get(episode, -1) + 1,
        ):
            with_last.add(below)
    divided: dict[str, Array] = {}
    for path, array in arrays.items():
        episode, _, below = path.partition("/")
        steps = rows.get(episode, -1)
        is_whole = array.shape[:1] == (steps + 1,)
        if below not in with_last or not (is_whole or array.shape[:1] == (steps,)):
            divided[path] = array
            continue
        role, _, name = below.partition("/")
        key = f"{_INFOS}/{name}" if role == _INFOS else name
        ending = f"/{key}" if key else ""
        divided[f"{episode}/{_OBSERVATIONS}{ending}"] = Stretch(array, 0, steps)
        if is_whole:
            divided[f"{episode}/next_{_OBSERVATIONS}{ending}"] = Stretch(array, 1, steps)
    return divided


def dataset_in_minari(dataset: str) -> str:
    """Return the path in an episode of the rows that open as next observations, below ``infos`` or not."""
    own = dataset.removeprefix("next_")
    return own.replace(f"{_OBSERVATIONS}/{_INFOS}/", f"{_INFOS}/", 1)
