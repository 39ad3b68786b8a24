"""The sources' own values, read with h5py, numpy and OpenCV alone, beside what the store gives back of them.

Nothing here reads a value through a converter: a converter's scan only tells which dataset of which file a
column comes from. So a mistake in reading would show, unlike in a comparison of a converter with itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Compared", "datasets_of", "open_plain", "summary"]

_NUMBER = re.compile(r"[0-9]+")


@dataclass(frozen=True, slots=True)
class Compared:
    """One dataset of a source that was compared.

    Attributes
    ----------
    location
        File and dataset, for messages.
    file
        The file.
    values
        Values that were compared, each as it stands in the file.
    difference
        Where it differs; None: nowhere.
    """

    location: str
    file: Path
    values: int
    difference: str | None


@contextmanager
def open_plain(path: Path) -> Iterator[Any]:
    """Open an HDF5 file with h5py alone, codecs of plugins included."""
    import h5py
    import hdf5plugin  # noqa: F401  registers the codecs

    with h5py.File(path, "r", locking="best-effort") as file:
        yield file


def datasets_of(file: Any) -> list[str]:
    """Paths of all datasets of an open HDF5 file that stand in the file itself."""
    import h5py

    found: list[str] = []

    def note(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            found.append(name)

    file.visititems(note)
    return found


def summary(names: Iterable[str]) -> list[str]:
    """Names with their numbers taken out, each once: ``segments/segment_N/unique_labels``."""
    return list(dict.fromkeys(_NUMBER.sub("N", name) for name in names))
