"""Open Minari datasets: ``main_data.hdf5`` with an observation more than steps, ``metadata.json`` beside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from unistore.converters.claims import Claim, no, sure
from unistore.converters.formats.hdf5 import Hdf5
from unistore.converters.formats.last_observations import LastObservations, metadata_in, opened_with_last
from unistore.converters.opened import Format, Metadata, OpenFile, SourceFile

FILE = "main_data.hdf5"
METADATA = "metadata.json"
MINARI = LastObservations("observations", "infos", "rewards", METADATA, "episode_{}")
_MARK = "observation_space"


class Minari(Format):
    """A Minari dataset, by its ``main_data.hdf5``."""

    name = "minari"
    suffixes = (FILE,)
    offered = False

    def recognise(self, file: SourceFile) -> Claim:
        beside = file.path.with_name(METADATA)
        if file.path.name == FILE and beside.is_file() and _MARK in _metadata(file):
            return sure(f"is in a folder with the {METADATA} of Minari")
        return no(f"is not in a folder with the {METADATA} of Minari")

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[OpenFile]:
        metadata = _metadata(file)
        with Hdf5().open(file) as opened:
            yield opened_with_last(opened, file, MINARI, metadata, [file.beside(METADATA)])


def _metadata(file: SourceFile) -> Metadata:
    return metadata_in(file.beside(METADATA))
