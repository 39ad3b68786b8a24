"""Groups of an HDF5 file that are splits, and the error of those that may be columns instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

from unistore.converters.adapter.sources import common_length
from unistore.converters.formats.hdf5 import OpenedHdf5
from unistore.converters.formats.split_groups import OpenedSplits, SplitGroup, SplitReading
from unistore.errors import AddOptions, Fix
from unistore.plugin import FileSummary, InputError


def splits_in(head: FileSummary, *, is_mapped: bool) -> tuple[Sequence[SplitGroup], Sequence[str]]:
    """Return the groups of a file that are read as splits, and notes on them. Without any, both are empty.

    `is_mapped`: the user names the datasets, so that there is one reading.

    Raises
    ------
    InputError
        If groups are called like splits and their columns differ, with an option for each reading.
    """
    if isinstance(head.opened, OpenedSplits):
        splits = head.opened.splits
        shown = [
            f"{group.name} ({group.split})" if group.name != group.split else group.name for group in splits
        ]
        one = f"--map NAME={splits[0].name}/DATASET stores only one of them"
        return splits, [f"groups {', '.join(shown)} are splits of the same columns; {one}"]
    if not is_mapped and isinstance(head.opened, OpenedHdf5):
        reading = SplitReading(head.opened)
        if len(reading.groups) > 1:
            raise _either(head.opened, reading)
    return (), ()


def _either(opened: OpenedHdf5, reading: SplitReading) -> InputError:
    """Return the error of groups that may be splits, or hold columns of the same rows."""
    fixes: list[Fix] = []
    # texts and rows of any length make no store by themselves
    has_numbers = any(f"{reading.groups[0].name}/{name}" in opened.arrays for name in reading.common)
    if has_numbers and not reading.contradiction:
        purpose = "to store splits with the columns that all have"
        fixes.append(AddOptions(("--columns", "intersection"), purpose))
    arrays = {**opened.sound, **opened.of_any_length}
    shapes = {path: array.shape for path, array in arrays.items() if array.shape}
    _, differing = common_length(shapes, opened.name)
    if not differing:
        as_columns = _map_words({path: path for path in shapes})
        fixes.append(AddOptions(as_columns, "to store columns of the same rows"))
    for group in () if len(fixes) > 1 else reading.groups:
        columns = reading.columns[group.name]
        words = _map_words({name: f"{group.name}/{name}" for name in columns})
        if words and len(set(map(len, columns.values()))) == 1:
            fixes.append(AddOptions(words, f"to store only {group.name}"))
    called = " and ".join(group.name for group in reading.groups)
    message = f"the groups {called} may be splits or columns: {reading.contradiction or reading.differing}"
    by_name = f"add --map NAME={reading.groups[0].name}/DATASET for each dataset to store"
    return InputError.at(opened.name, message, tuple(fixes) or by_name, "ambiguous")


def _map_words(datasets: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(chain.from_iterable(("--map", f"{name}={path}") for name, path in datasets.items()))
