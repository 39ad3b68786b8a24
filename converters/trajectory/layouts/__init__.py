"""The source formats of trajectories, a module each; see `unistore.converters.trajectory.source`.

To add one, write a module here with a subclass of `Format` (of `Hdf5Format` where files are HDF5), and
list it in `FORMATS`. Nothing else changes.
"""

from __future__ import annotations

from pathlib import Path

from unistore.converters.trajectory.layouts.act import Act
from unistore.converters.trajectory.layouts.d4rl import D4rl
from unistore.converters.trajectory.layouts.flat import Flat
from unistore.converters.trajectory.layouts.robomimic import Robomimic
from unistore.converters.trajectory.source import Format

__all__ = ["FORMATS", "format_named", "formats_for", "suffixes"]

FORMATS: tuple[Format, ...] = (Robomimic(), Act(), D4rl(), Flat())
"""Asked in this order which of them a file is of."""


def suffixes() -> tuple[str, ...]:
    """Endings of the files of all formats."""
    return tuple(dict.fromkeys(suffix for each in FORMATS for suffix in each.suffixes))


def formats_for(path: Path) -> tuple[Format, ...]:
    """Formats that a file may be of by its ending; all of them if none has its ending."""
    name = path.name.lower()
    return tuple(each for each in FORMATS if name.endswith(each.suffixes)) or FORMATS


def format_named(name: str) -> Format:
    """The format of a name, as a scan or a store has it.

    Raises
    ------
    KeyError
        If there is none.
    """
    return {each.name: each for each in FORMATS}[name]
