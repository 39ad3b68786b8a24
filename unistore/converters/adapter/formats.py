"""The formats there are, and opening of files by them. Exceptions of an author's code name the package."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from traceback import format_exception, walk_tb
from typing import Any, TypeVar

import numpy as np

from unistore.converters.array import Array, NamedArrays
from unistore.converters.claims import Claim, sure
from unistore.converters.common.faults import UNREADABLE, WRITE_AGAIN, as_problem
from unistore.converters.family import Family
from unistore.converters.family_types import Group
from unistore.converters.files.hdf5 import file as hdf5
from unistore.converters.formats.arrays import Npy, Npz, Raw
from unistore.converters.formats.hdf5 import Hdf5
from unistore.converters.formats.pictures import Jpeg, Png
from unistore.converters.opened import Format, Metadata, OpenFile, Origin, SourceFile
from unistore.converters.registry import leave_out, resolve
from unistore.converters.scan_types import SourcePart
from unistore.errors import InputError, Problem, UnistoreError
from unistore.system.foreign import NO_FAULTS, opening

T = TypeVar("T")

# Group of the entry points by which packages add formats
ENTRY_POINTS = "unistore.formats"
OWN: tuple[type[Format], ...] = (Hdf5, Npy, Npz, Png, Jpeg, Raw)


class Later(Format):
    """A format of this package whose module is imported when it meets its first file."""

    offered = False

    def __init__(
        self,
        name: str,
        suffixes: tuple[str, ...],
        reference: str,
        library: str = "",
        twins: tuple[str, ...] = (),
    ) -> None:
        self.name = name  # type: ignore[misc]  # of the class of other formats
        self.suffixes = suffixes  # type: ignore[misc]
        self.library = library  # type: ignore[misc]
        self.twins = twins  # type: ignore[misc]
        self._reference = reference

    @property
    def _format(self) -> Format:
        kind: type[Format] = resolve(f"unistore.converters.formats.{self._reference}")
        return kind()

    def recognise(self, file: SourceFile) -> Claim:
        return self._format.recognise(file)

    def open(self, file: SourceFile) -> AbstractContextManager[OpenFile]:
        return self._format.open(file)

    def write(self, path: Path, arrays: Mapping[str, Array], metadata: Metadata) -> None:
        self._format.write(path, arrays, metadata)


_RECORDINGS = (".mcap", ".db3", ".bag", "/metadata.yaml")
_BUFFERS = (".zarr/meta/episode_ends/.zarray", ".zarr.zip")
# Formats of this package that few files have
LATER = (
    Later("atis_bin", (".bin",), "atis:AtisBin"),
    Later("bag", (".bag", ".mcap", ".db3", ".yaml"), "bags:Rosbag", "rosbags", _RECORDINGS),
    Later("dicom", (".dcm", ".ima"), "dicom:Dicom", "pydicom"),
    Later("las", (".las",), "las:Las", twins=(".las", ".laz")),
    Later("laz", (".laz",), "las:Laz", "lazrs", twins=(".las", ".laz")),
    Later("lerobot", (".json",), "lerobot:LeRobot", "Arrow and FFmpeg"),
    Later("maniskill", hdf5.SUFFIXES, "maniskill:ManiSkill"),
    Later("metaimage", (".mha", ".mhd"), "metaimage:MetaImage", twins=(".mha", ".mhd")),
    Later("minari", ("main_data.hdf5",), "minari:Minari"),
    Later("nifti", (".nii", ".nii.gz"), "nifti:Nifti", twins=(".nii", ".nii.gz")),
    Later("nrrd", (".nrrd", ".nhdr"), "nrrd:Nrrd", twins=(".nrrd", ".nhdr")),
    Later("parquet", (".parquet",), "parquet:Parquet", "Arrow"),
    Later("pcd", (".pcd",), "pcd:Pcd"),
    Later("ply", (".ply",), "ply:Ply"),
    Later("replay_zarr", (".zarray", ".zarr.zip"), "replay_zarr:ReplayZarr", "numcodecs", _BUFFERS),
    Later("rlds", (".tfrecord",), "rlds:Rlds"),
    Later("sweep", (".bin",), "sweeps:Sweep"),
    Later("tiff", (".tif", ".tiff"), "tiff:Tiff", "imagecodecs"),
    Later("text_points", (".xyz", ".pts", ".asc", ".txt"), "text_points:TextPoints"),
)


def open_file(kind: Format, file: SourceFile) -> AbstractContextManager[OpenFile]:
    """Open a file. The format's native library does so in a worker process, which it may crash."""
    return kind.open(file) if type(kind) is Npy else _opened(kind, file)


@contextmanager
def _opened(kind: Format, file: SourceFile) -> Iterator[OpenFile]:
    native = opening(file.path, file.name, kind.library) if kind.library else nullcontext()
    with native, ExitStack() as stack:
        if is_own(kind):
            opened = stack.enter_context(kind.open(file))
        else:
            with calling(kind, file.name):
                opened = _checked(kind, file, stack.enter_context(kind.open(file)))
        yield opened if opened.file is not None else replace(opened, file=file)
        with calling(kind, file.name):  # what is raised above is of those who read the file
            stack.close()


def is_own(plugin: object) -> bool:
    """Return whether a format or a family is one of this package."""
    return type(plugin).__module__.partition(".")[0] == _OURS


def _checked(kind: Format, file: SourceFile, opened: object) -> OpenFile:
    """Refuse what is no open file, in the name of the format. Its metadata become JSON values."""
    if not isinstance(opened, OpenFile):
        raise fault(kind, "open", file.name, f"returned {opened!r:.60}, not an OpenFile")
    arrays: Mapping[Any, Any] = opened.arrays
    for name, array in arrays.items():
        if not isinstance(name, str) or not isinstance(array, Array):
            message = f"returned {array!r:.60} as {name!r}, but names are texts and values an Array"
            raise fault(kind, "open", file.name, message)
    if type(opened) is not OpenFile:
        return opened
    return replace(opened, metadata=json_metadata(kind, "open", file.name, opened.metadata))


def json_metadata(plugin: object, method: str, location: str, metadata: object) -> Metadata:
    """Return what a method says of a file, with NumPy's numbers as numbers. Refuse what is no JSON."""
    if not isinstance(metadata, Mapping):
        raise fault(plugin, method, location, f"returned the metadata {metadata!r:.60}, not a mapping")
    plain: dict[str, Any] = {}
    for name, value in metadata.items():
        plain[name] = _plain(value)
        try:
            json.dumps({name: plain[name]}, sort_keys=True)
            is_json = isinstance(name, str)
        except (TypeError, ValueError, RecursionError):
            is_json = False
        if not is_json:
            message = f"returned the fact {name!r:.60}: {value!r:.60}, which is not JSON; give numbers, texts"
            raise fault(plugin, method, location, message)
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def origins_in(opened: Sequence[OpenFile], names: Collection[str] | None = None) -> tuple[Origin, ...]:
    """Return where the values of arrays of open files lie: of those of these names (None: of all)."""
    origins: list[Origin] = []
    for one in opened:
        for name, array in one.all_arrays.items():
            # Single values are stored with every source.
            if names is None or name in names or not array.shape:
                origins += one.origins(name)
        origins += one.unlisted
    return tuple(origins)


class FileToOpen:
    """A file of a source, see `Openable`.

    Parameters
    ----------
    file
        The file.
    kind
        The format that opens it.
    unlisted
        See `Family.unlisted_groups`.
    """

    def __init__(self, file: SourceFile, kind: Format, unlisted: Collection[str] = ()) -> None:
        self.file = file
        self._kind = kind
        self._unlisted = unlisted

    def recognised(self) -> Claim:
        """See `Openable`."""
        return sure(f"was {self.format.name} when {self.file.name} was scanned")

    @property
    def format(self) -> Format:
        """See `Openable`."""
        return self._kind

    def followed_by(self, parts: Sequence[Path], known: Any = None) -> FileToOpen:
        """See `Openable`."""
        whole = replace(self.file, parts=tuple(parts), known=known)
        return FileToOpen(whole, self._kind, self._unlisted)

    @contextmanager
    def open(self) -> Iterator[OpenFile]:
        """See `Openable`."""
        with calling(self.format, self.file.name), open_file(self.format, self.file) as opened:
            yield opened.without(self._unlisted) if self._unlisted else opened


class FileToScan:
    """A file that is scanned, see `Openable`, whose first bytes tell its format.

    Attributes
    ----------
    shows
        Whether it, or the same file continued by others, was open and shows values of other files.
    """

    def __init__(
        self,
        file: SourceFile,
        recognise: Callable[[SourceFile], tuple[Format | None, Claim]],
        unlisted: Collection[str] = (),
    ) -> None:
        self.file = file
        self.shows = False
        self._alone = self
        self._recognise = recognise
        self._unlisted = unlisted

    @cached_property
    def _found(self) -> tuple[Format | None, Claim]:
        return self._recognise(self.file)

    def recognised(self) -> Claim:
        """See `Openable`."""
        return self._found[1]

    @property
    def format(self) -> Format:
        """See `Openable`."""
        found, claim = self._found
        if found is None:
            raise self.file.problem(claim.reason)
        return found

    def followed_by(self, parts: Sequence[Path], known: Any = None) -> FileToScan:
        """See `Openable`."""
        whole = FileToScan(
            replace(self.file, parts=tuple(parts), known=known), self._recognise, self._unlisted
        )
        whole._alone = self._alone
        return whole

    @contextmanager
    def open(self) -> Iterator[OpenFile]:
        """See `Openable`."""
        with FileToOpen(self.file, self.format, self._unlisted).open() as opened:
            yield opened
            if opened.shows:
                self._alone.shows = True


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
                leave_out(point.name, f"{point.value} does not inherit unistore.plugin.Format", "format")
            elif kind.name in by_name:
                leave_out(point.name, f"{point.value} has the name of an existing format", "format")
            else:
                by_name[kind.name] = kind()
        except Exception as error:  # noqa: BLE001  whatever a package raises, the other formats work
            message = f"{point.value} cannot be used: {type(error).__name__}: {error}"
            leave_out(point.name, message, "format")
    return by_name


def unoffered_format(path: Path) -> str:
    """Return the name of a package's format that is sure of a file and offered to no family, else empty."""
    file = SourceFile(path, path.name)
    for kind in formats().values():
        if not is_own(kind) and not kind.offered and path.name.lower().endswith(kind.suffixes):
            with suppress(InputError), calling(kind, file.name):
                if kind.recognise(file).certainty == "sure":
                    return kind.name
    return ""


def formats_for(family: Family | type[Family]) -> tuple[Format, ...]:
    """Return the formats of a family's files: those that it names, and the others that it takes."""
    return formats_of(family.formats, offered=family.any_format)


def format_by_ending(formats: Sequence[Format], name: str) -> Format:
    """Return the first format with the ending of a file, or the first of all."""
    return next((one for one in formats if name.lower().endswith(one.suffixes)), formats[0])


def formats_of(kinds: Sequence[type[Format] | str], *, offered: bool = False) -> tuple[Format, ...]:
    """Return the formats of a family, as instances.

    Parameters
    ----------
    kinds : sequence of Format class or str
        Formats by class or by name, as `Family.formats`.
    offered : bool, default False
        Whether to add the formats that are offered to every family; see `Format.offered`.

    Raises
    ------
    InputError
        If there is no format with one of the names.
    """
    chosen = []
    for kind in kinds:
        if not isinstance(kind, str):
            chosen.append(kind())
        elif kind in formats():
            chosen.append(formats()[kind])
        else:
            fix = "install the package that adds it"
            raise InputError(Problem(f"format {kind}", "does not exist", fix, "format"))
    if offered:
        names = {one.name for one in chosen}
        chosen += [one for one in formats().values() if one.offered and one.name not in names]
    return tuple(chosen)


def group_of(part: SourcePart) -> Group:
    """Return the files of a part."""
    names, *labels = part.detail
    files = [SourceFile(path, name, part.roots) for path, name in zip(part.files, names, strict=True)]
    return Group(part.name, tuple(files), *labels)


@dataclass(frozen=True, eq=False)
class _OpenedTogether(OpenFile):
    """Open files as one."""

    texts: NamedArrays = field(default_factory=dict)  # which are not among `arrays`

    @property
    def all_arrays(self) -> NamedArrays:
        return {**self.texts, **self.arrays}


def joined(group: Group, opened: Sequence[OpenFile]) -> OpenFile:
    """Return the files of a source as one."""
    first = opened[0]
    if len(opened) == 1 and (not group.arrays or first.arrays.keys() == set(group.arrays)):
        return first
    arrays: dict[str, Array] = {}
    texts: dict[str, Array] = {}
    several: list[str] = []  # texts of several files, of which none is that of the source
    notes: dict[str, str] = {}
    for number, (file, one) in enumerate(zip(group.files, opened, strict=True)):
        for name, inside in names_in(group, number, one.arrays).items():
            if name in arrays:
                message = f"contains {inside}, but another file of the source {group.name} has it, too"
                raise file.problem(message, "convert these files to separate stores", "name")
            arrays[name] = one.arrays[inside]
            if inside in one.notes:
                notes[name] = one.notes[inside]
        for name in texts_in(group, one):
            several += [name] * (name in texts)
            texts[name] = one.objects[name]
    return _OpenedTogether(
        texts={name: array for name, array in texts.items() if name not in several},
        arrays=arrays,
        metadata=dict(chain.from_iterable(one.metadata.items() for one in opened)),
        further=tuple(chain.from_iterable(one.further for one in opened)),
        forward_only=any(one.forward_only for one in opened),
        memory=max(one.memory for one in opened),
        problems=list(chain.from_iterable(one.problems for one in opened)),
        left_out=dict(chain.from_iterable(one.left_out.items() for one in opened)),
        notes=notes,
        file=first.file,
    )


def names_in(group: Group, number: int, arrays: Collection[str]) -> dict[str, str]:
    """Return the names of the arrays of a file in its source, each with the name in the file."""
    if not group.arrays:
        return {name: name for name in arrays}
    (name,) = arrays
    return {group.arrays[number]: name}


def texts_in(group: Group, opened: OpenFile) -> Collection[str]:
    """Return arrays of texts, or of any number of values a row, of a file whose arrays have their names."""
    return opened.objects.keys() - opened.arrays.keys() if not group.arrays else ()


# What damaged bytes do not raise by themselves
_FAULTS_OF_CODE = (
    AssertionError,
    AttributeError,
    ImportError,
    NameError,
    NotImplementedError,
    TypeError,
)
_FAULTS_OF_MACHINE = (OSError, MemoryError)
_SLICING = (Array.__getitem__.__code__, Array.read.__code__)
_OURS = __name__.partition(".")[0]


@contextmanager
def calling(plugin: object, location: str) -> Iterator[None]:
    """Run an author's code on a file, so that a fault of it is an `InputError` that names its package."""
    try:
        yield
    except (UnistoreError, *NO_FAULTS):
        raise
    except BaseException as error:
        author = plugin if isinstance(plugin, type) else type(plugin)
        package = author.__module__.partition(".")[0]
        if package == _OURS:
            with as_problem(location):
                raise
        if not _is_fault_of_code(author, error):
            raise _perhaps_of_package(author, location, error) from error
        message = f"{author.__module__}.{author.__qualname__} failed: {type(error).__name__}: {error}"
        fix = f"report this to the authors of the package {package}"
        text = "".join(format_exception(error))
        raise InputError(Problem(location, message, fix, "plugin", trace=text)) from error


def returned(kind: type[T], plugin: object, method: str, location: str, value: object) -> T:
    """Return what a method gave, which must be of a kind."""
    if not isinstance(value, kind):
        raise fault(
            plugin, method, location, f"returned {value!r:.60}, not a value of the type {kind.__name__}"
        )
    return value


def _perhaps_of_package(author: type, location: str, error: BaseException) -> InputError:
    """Return the problem of a file, which may be one of the package that reads it."""
    try:
        with as_problem(location):
            raise error
    except InputError as failure:
        (problem,) = failure.problems
    if problem.kind == UNREADABLE:
        return InputError(problem)
    name = f"{author.__module__}.{author.__qualname__}"
    message = problem.message.replace("cannot be read", f"cannot be read by {name}", 1)
    package = author.__module__.partition(".")[0]
    fix = f"{WRITE_AGAIN}; if other programs read it, report this to the authors of the package {package}"
    return InputError(replace(problem, message=message, fix=fix))


def fault(plugin: object, method: str, location: str, message: str) -> InputError:
    """Return the error of a method that gave something wrong, which names the plugin."""
    author = type(plugin)
    fix = f"report this to the authors of {author.__module__}"
    text = " ".join(f"{author.__qualname__}.{method} {message}".split())  # values of several lines in one
    return InputError(Problem(location, text, fix, "plugin"))


def _is_fault_of_code(author: type, error: BaseException) -> bool:
    """Tell a bug from a bad file: a format parses bytes, a family meets them in values that it slices."""
    if isinstance(error, _FAULTS_OF_CODE):
        return True
    if not issubclass(author, Family) or isinstance(error, _FAULTS_OF_MACHINE):
        return False
    return all(frame.f_code not in _SLICING for frame, _ in walk_tb(error.__traceback__))
