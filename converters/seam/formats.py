"""The formats there are: our own, and those of installed packages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from unistore.converters.formats.arrays import Npy, Npz, Raw
from unistore.converters.formats.hdf5 import Hdf5
from unistore.converters.formats.pictures import Jpeg, Png
from unistore.converters.plugin import Array, Claim, Facts, Family, Format, Opened, SourceFile
from unistore.converters.registry import leave_out, resolve
from unistore.converters.seam.faults import calling
from unistore.errors import InputError, Problem
from unistore.system.foreign import opening

# Group of the entry points by which packages add formats
ENTRY_POINTS = "unistore.formats"
OWN: tuple[type[Format], ...] = (Hdf5, Npy, Npz, Png, Jpeg, Raw)


class Later(Format):
    """A format of this package whose module is imported when it meets its first file."""

    offered = False

    def __init__(self, name: str, suffixes: tuple[str, ...], reference: str, library: str = "") -> None:
        self.name = name  # type: ignore[misc]  # of the class of other formats
        self.suffixes = suffixes  # type: ignore[misc]
        self.library = library  # type: ignore[misc]
        self._reference = reference

    @property
    def _format(self) -> Format:
        kind: type[Format] = resolve(f"unistore.converters.formats.{self._reference}")
        return kind()

    def recognise(self, file: SourceFile) -> Claim:
        return self._format.recognise(file)

    def open(self, file: SourceFile) -> AbstractContextManager[Opened]:
        return self._format.open(file)

    def write(self, path: Path, arrays: Mapping[str, Array], facts: Facts) -> None:
        self._format.write(path, arrays, facts)


# Formats of this package that few files have
LATER = (
    Later("bag", (".bag", ".mcap", ".db3", ".yaml"), "bags:Rosbag", "rosbags"),
    Later("dicom", (".dcm", ".ima"), "dicom:Dicom", "pydicom"),
    Later("las", (".las",), "las:Las"),
    Later("laz", (".laz",), "las:Laz", "lazrs"),
    Later("lerobot", (".json",), "lerobot:LeRobot", "Arrow and FFmpeg"),
    Later("metaimage", (".mha", ".mhd"), "metaimage:MetaImage"),
    Later("minari", ("main_data.hdf5",), "minari:Minari"),
    Later("nifti", (".nii", ".nii.gz"), "nifti:Nifti"),
    Later("nrrd", (".nrrd", ".nhdr"), "nrrd:Nrrd"),
    Later("parquet", (".parquet",), "parquet:Parquet", "Arrow"),
    Later("pcd", (".pcd",), "pcd:Pcd"),
    Later("ply", (".ply",), "ply:Ply"),
    Later("replay_zarr", (".zarray", ".zarr.zip"), "replay_zarr:ReplayZarr", "numcodecs"),
    Later("rlds", (".tfrecord",), "rlds:Rlds"),
    Later("sweep", (".bin",), "sweeps:Sweep"),
    Later("tiff", (".tif", ".tiff"), "tiff:Tiff", "imagecodecs"),
    Later("text_points", (".xyz", ".pts", ".asc", ".txt"), "text_points:TextPoints"),
)


def open_file(kind: Format, file: SourceFile) -> AbstractContextManager[Opened]:
    """Open a file. The format's native library does so in a worker process, which it may crash."""
    return kind.open(file) if type(kind) is Npy else _opened(kind, file)


@contextmanager
def _opened(kind: Format, file: SourceFile) -> Iterator[Opened]:
    native = opening(file.path, file.name, kind.library) if kind.library else nullcontext()
    with native, kind.open(file) as opened:
        yield opened if opened.file is not None else replace(opened, file=file)


class FileArray(NamedTuple):
    """An array of a file that is opened anew for each reading. It can be pickled."""

    format: Format
    file: SourceFile
    key: str

    @contextmanager
    def open(self) -> Iterator[Array]:
        """Open the file for the values of the array."""
        with calling(self.format, self.file.name), open_file(self.format, self.file) as opened:
            yield opened.arrays[self.key]


@cache
def formats() -> Mapping[str, Format]:
    """Return every format by name. One of a package that fails is left out with a line on standard error."""
    from importlib.metadata import entry_points

    by_name: dict[str, Format] = {kind.name: kind() for kind in OWN}
    by_name |= {kind.name: kind for kind in LATER}
    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
        try:
            kind = point.load()
            if not (isinstance(kind, type) and issubclass(kind, Format)):
                leave_out(point.name, f"{point.value} is no unistore.plugin.Format", "format")
            elif kind.name in by_name:
                leave_out(point.name, f"{point.value} has the name of an existing format", "format")
            else:
                by_name[kind.name] = kind()
        except Exception as error:  # noqa: BLE001  whatever a package raises, the other formats work
            message = f"{point.value} cannot be used: {type(error).__name__}: {error}"
            leave_out(point.name, message, "format")
    return by_name


@cache
def offered_suffixes() -> tuple[str, ...]:
    """Return the endings of the formats that are offered to every family."""
    return tuple(chain.from_iterable([one.suffixes for one in formats().values() if one.offered]))


def formats_for(family: Family | type[Family]) -> tuple[Format, ...]:
    """Return the formats of a family's files: those that it names, and the others that it takes."""
    named = formats_of(family.formats)
    if not family.any_format:
        return named
    names = {one.name for one in named}
    return (*named, *[one for one in formats().values() if one.offered and one.name not in names])


def format_by_ending(formats: Sequence[Format], name: str) -> Format:
    """Return the first format with the ending of a file, or the first of all."""
    return next((one for one in formats if name.lower().endswith(one.suffixes)), formats[0])


def formats_of(kinds: Sequence[type[Format] | str]) -> tuple[Format, ...]:
    """Return formats that a family names, by class or by name."""
    chosen = []
    for kind in kinds:
        if not isinstance(kind, str):
            chosen.append(kind())
        elif kind in formats():
            chosen.append(formats()[kind])
        else:
            cure = "install the package that adds it"
            raise InputError(Problem(f"format {kind}", "is not known", cure, "format"))
    return tuple(chosen)
