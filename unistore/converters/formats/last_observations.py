"""Episodes in groups of an HDF5 file whose observations have a row more than steps."""

# The last observation follows the last step. Such arrays open as two: `observations/x` has the rows before
# each step, `next_observations/x` those after it.

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from unistore.converters.array import Array, NamedArrays
from unistore.converters.common.faults import WRITE_AGAIN
from unistore.converters.formats.hdf5 import OpenedHdf5
from unistore.converters.formats.lazy import Stretch
from unistore.converters.opened import Member, Metadata, OpenFile, Origin, SourceFile
from unistore.errors import InputError, Problem, location_of

if TYPE_CHECKING:
    from unistore.converters.files.hdf5.attributes import Attributes

NO_NOTES: Mapping[str, str] = {}
_EPISODES, _NUMBER = "episodes", "episode_id"  # in metadata: a list of what is said of each episode


class LastObservations(NamedTuple):
    """The names of a format in each of its episodes."""

    observations: str  # group, or array, of observations
    further: str  # group whose arrays open as ``observations/<further>/…`` if they have a row more than steps
    counted: str  # array with a row for each step
    beside: str  # name of the JSON file that describes an HDF5 file; ``{stem}``: the name of that one
    group: str  # name of the group of an episode; ``{}``: its number

    def dataset_in_file(self, dataset: str) -> str:
        """Return the path in an episode of rows that open as next observations, or below `further`."""
        own = dataset.removeprefix("next_")
        return own.replace(f"{self.observations}/{self.further}/", f"{self.further}/", 1)

    def metadata(self, name: str) -> str:
        """Return the name of the JSON file that describes an HDF5 file of a name."""
        return self.beside.format(stem=name.rpartition(".")[0])

    def of_groups(self, metadata: Metadata) -> Mapping[str, Metadata]:
        """Return what the metadata say of each episode that they list, by its group."""
        listed = metadata.get(_EPISODES)
        entries = listed if isinstance(listed, list) else []
        return {
            self.group.format(entry[_NUMBER]): entry
            for entry in entries
            if isinstance(entry, dict) and isinstance(entry.get(_NUMBER), int)
        }

    def by_step(self, arrays: NamedArrays, name: str) -> dict[str, Array]:
        """Divide arrays of a row more than steps into those before and those after a step.

        Raises
        ------
        InputError
            If two arrays of the file, which is called `name`, would have the same path.
        """
        rows: dict[str, int] = {}  # steps of each episode
        for path, array in arrays.items():
            episode, _, below = path.partition("/")
            if below == self.counted and array.shape:
                rows[episode] = array.shape[0]
        with_last = set[str]()  # by path in an episode; an episode may lack the last observation
        for path, array in arrays.items():
            episode, _, below = path.partition("/")
            if below.partition("/")[0] in (self.observations, self.further) and array.shape[:1] == (
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
            role, _, inside = below.partition("/")
            key = below if role == self.further else inside
            ending = f"/{key}" if key else ""
            parts = {f"{episode}/{self.observations}{ending}": Stretch(array, 0, steps)}
            if is_whole:
                parts[f"{episode}/next_{self.observations}{ending}"] = Stretch(array, 1, steps)
            others = divided.keys() | (arrays.keys() - {path})
            if twice := sorted(parts.keys() & others):
                message = f"is read as {twice[0]}, but the file already contains a dataset of this name"
                raise InputError.at(location_of(name, path), message, "rename one of the two", "name")
            divided |= parts
        return divided


@dataclass(frozen=True, eq=False, kw_only=True)
class OpenedWithLast(OpenFile):
    """An open dataset, by the groups of its HDF5 file.

    Attributes
    ----------
    hdf5
        The file.
    names
        The names in its episodes.
    """

    hdf5: OpenedHdf5
    names: LastObservations

    @cached_property
    def all_arrays(self) -> NamedArrays:
        return self.names.by_step(self.hdf5.all_arrays, self.name)

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
        return self.hdf5.origins(self._path_in_file(name))

    def attributes(
        self, is_wanted: Callable[[str], bool], is_told: Callable[[str, str, bool], bool] | None = None
    ) -> Attributes | None:
        """See `OpenFile`: the attributes of the datasets in the file, of which arrays are parts."""
        wanted = {self._path_in_file(name) for name in self.all_arrays if is_wanted(name)}
        return self.hdf5.attributes(wanted.__contains__, is_told)

    def _path_in_file(self, name: str) -> str:
        episode, _, below = name.partition("/")
        is_divided = bool(below) and name not in self.hdf5.tree.datasets
        return f"{episode}/{self.names.dataset_in_file(below)}" if is_divided else name

    def group_metadata(self, group: str = "") -> Metadata:
        """See `OpenFile`: what the metadata say, and attributes of a group."""
        if not group:
            return self.metadata
        episode, _, dataset = group.partition("/")
        is_in_file = not dataset or group in self.hdf5.groups or group in self.hdf5.tree.datasets
        own = self.hdf5.group_metadata(group if is_in_file else self._path_in_file(group))
        return own if dataset else {**self.of_groups.get(episode, {}), **own}


def opened_with_last(
    opened: OpenFile,
    file: SourceFile,
    names: LastObservations,
    metadata: Metadata,
    further: Sequence[SourceFile],
    notes: Mapping[str, str] = NO_NOTES,
) -> OpenFile:
    """Return an open HDF5 file as one whose observations are divided.

    `metadata`: what the metadata say, which are in the files `further`.
    """
    assert isinstance(opened, OpenedHdf5)
    return OpenedWithLast(
        arrays=names.by_step({**opened.sound, **opened.of_any_length}, file.name),
        metadata=metadata,
        further=[*further, *opened.further],
        memory=opened.memory,
        problems=opened.problems,
        left_out=opened.left_out,
        notes=notes,
        of_groups=names.of_groups(metadata),
        file=file,
        shows=opened.shows,
        hdf5=opened,
        names=names,
    )


def metadata_in(file: SourceFile) -> Metadata:
    """Read metadata in JSON. Damaged ones are no sign that the file is another's."""
    file.check_whole()
    try:
        metadata: Any = json.loads(file.path.read_bytes())
    except ValueError as error:
        raise file.problem(f"is not valid JSON: {error}", WRITE_AGAIN, "damaged") from error
    return metadata if isinstance(metadata, dict) else {}
