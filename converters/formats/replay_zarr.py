"""Replay buffers of diffusion policy: Zarr v2 with ``data/*`` and ``meta/episode_ends``, a folder or archive.

The arrays hold all episodes one after the other. They open as ``data/episode_0/<name>``, a range of rows
each.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from unistore.converters.plugin import Array, Claim, Format, Opened, SourceFile, no, sure
from unistore.errors import InputError, Problem

ENDS = "meta/episode_ends"
_DATA = "data/"
_METADATA = ".zarray"
_DEFLATE = ("zlib", "gzip")
_CODECS = ("blosc", "zstd", "lz4", *_DEFLATE)
"""Codecs whose decoded size is known before. Others may unpickle, or need packages."""
_ANY_DEFLATE = 47
"""Says to zlib: with the header of zlib or that of gzip."""
_KINDS = "biuf"
_MOST_CHUNK_BYTES = 1 << 30
_MOST_METADATA = 1 << 20
_AGAIN = "get or write it again"
_NO_CODEC = "write it again with Blosc, or leave the array out with --ignore"


class _Container:
    """The files of a hierarchy: a folder, or the members of an archive."""

    def __init__(self, file: SourceFile, stack: ExitStack) -> None:
        self.file = file
        self._archive: zipfile.ZipFile | None = None
        if file.path.name == _METADATA:
            self._root = file.path.parents[2]
        else:
            self._root = file.path.parent
            self._archive = stack.enter_context(zipfile.ZipFile(file.path))
        self.names = frozenset(self._listed())

    def _listed(self) -> list[str]:
        """List the files, by path in the hierarchy.

        Raises
        ------
        InputError
            If a folder in it is a link, behind which nothing is looked for.
        """
        if self._archive is not None:
            return self._archive.namelist()
        paths = sorted(self._root.rglob("*"))
        for path in paths:
            if path.is_symlink() and path.is_dir():
                message = f"lies beside {path.relative_to(self._root)}, a link to a folder"
                raise self.file.problem(message, "put the folder itself there", "link")
        return [path.relative_to(self._root).as_posix() for path in paths if path.is_file()]

    def read(self, name: str, most: int) -> bytes:
        """Read a file of at most so many bytes, and one byte more if it is longer."""
        if self._archive is not None:
            with self._archive.open(name) as member:
                return member.read(most + 1)
        with self._root.joinpath(name).open("rb") as file:
            return file.read(most + 1)

    def further(self) -> list[SourceFile]:
        """Return the other files, none of which may lie outside of what the user gave."""
        if self._archive is not None:
            return []
        others = sorted(self.names - {f"{ENDS}/{_METADATA}"})
        return [self.file.beside(f"../../{name}") for name in others]


class _ZarrArray:
    """An array of Zarr v2, of which chunks are read when rows are."""

    def __init__(self, container: _Container, path: str, described: Mapping[str, Any]) -> None:
        self.path = path
        self.shape = tuple(int(size) for size in described["shape"])
        self.chunks = tuple(int(size) for size in described["chunks"])
        self.dtype = np.dtype(described["dtype"])
        self._container = container
        self._order = described["order"]
        self.fill = described["fill_value"]
        self._separator = described.get("dimension_separator", ".")
        self._compressor = described["compressor"]
        self._last: tuple[int, NDArray[Any]] | None = None

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a decoded chunk."""
        return int(prod(self.chunks) * self.dtype.itemsize)

    @property
    def absent(self) -> int:
        """Number of chunks without a file, which hold the fill value."""
        names = map(self._name, _grid(self.shape, self.chunks))
        return sum(name not in self._container.names for name in names)

    def read(self, lo: int, hi: int) -> NDArray[Any]:
        """Read rows ``lo:hi``."""
        rows = np.empty((hi - lo, *self.shape[1:]), self.dtype)
        at = lo
        while at < hi:
            layer = at // self.chunks[0]
            first = layer * self.chunks[0]
            stop = min(hi, first + self.chunks[0])
            rows[at - lo : stop - lo] = self._layer(layer)[at - first : stop - first]
            at = stop
        return rows

    def _layer(self, layer: int) -> NDArray[Any]:
        """Read all chunks with the same rows; the last ones read are kept."""
        if self._last is None or self._last[0] != layer:
            rows = np.empty((self.chunks[0], *self.shape[1:]), self.dtype)
            for place in _grid(self.shape[1:], self.chunks[1:]):
                target = rows[(slice(None), *_box(place, self.chunks[1:]))]
                inside = tuple(map(slice, target.shape))
                target[...] = self._chunk((layer, *place))[inside]
            self._last = layer, rows
        return self._last[1]

    def _chunk(self, place: tuple[int, ...]) -> NDArray[Any]:
        name = self._name(place)
        if name not in self._container.names:
            return np.full(self.chunks, self.fill, self.dtype)
        encoded = self._container.read(name, 2 * self.chunk_bytes + (1 << 16))
        try:
            content = _decoded(encoded, self._compressor, self.chunk_bytes)
        except (ValueError, RuntimeError, zlib.error) as error:
            message = f"{name} is damaged: {error}"
            raise self._container.file.problem(message, _AGAIN, "corrupt") from error
        chunk: NDArray[Any] = content.view(self.dtype).reshape(self.chunks, order=self._order)
        return chunk

    def _name(self, place: Sequence[int]) -> str:
        return f"{self.path}/{self._separator.join(map(str, place))}"


def _grid(shape: Sequence[int], chunks: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the place of every chunk."""
    counts = [-(-size // chunk) for size, chunk in zip(shape, chunks, strict=True)]
    return product(*map(range, counts))


def _box(place: Sequence[int], chunks: Sequence[int]) -> list[slice]:
    """Return what a chunk covers; the last along an axis may reach beyond the array."""
    return [slice(number * chunk, (number + 1) * chunk) for number, chunk in zip(place, chunks, strict=True)]


def _decoded(encoded: bytes, compressor: Mapping[str, Any] | None, size: int) -> NDArray[np.uint8]:
    """Decode a chunk to exactly so many bytes.

    Raises
    ------
    ValueError, RuntimeError, zlib.error
        If it has another size, or is cut short.
    """
    if compressor is None:
        content = encoded
    elif compressor["id"] in _DEFLATE:
        content = zlib.decompressobj(_ANY_DEFLATE).decompress(encoded, size + 1)
    else:
        # Blosc reads beyond the end of what is cut short, and all of them leave memory as it is behind
        # what decodes to less.
        stated = _STATED_SIZES[compressor["id"]](encoded)
        if stated != size:
            message = f"says that it has {stated} bytes, expected {size}"
            raise ValueError(message)
        return _by_numcodecs(encoded, compressor, size)
    if len(content) != size:
        message = f"decodes to {len(content)} bytes, expected {size}"
        raise ValueError(message)
    return np.frombuffer(content, np.uint8)


def _by_numcodecs(encoded: bytes, compressor: Mapping[str, Any], size: int) -> NDArray[np.uint8]:
    from numcodecs import get_codec

    content = np.empty(size, np.uint8)
    codec: Any = get_codec(dict(compressor))  # type: ignore[no-untyped-call]
    codec.decode(encoded, out=content)
    return content


def _number(encoded: bytes, start: int, count: int) -> int:
    if len(encoded) < start + count:
        message = f"has {len(encoded)} bytes, fewer than its header"
        raise ValueError(message)
    return int.from_bytes(encoded[start : start + count], "little")


def _size_in_blosc(encoded: bytes) -> int:
    """Return the decoded size that a Blosc header states, after a check of the encoded one."""
    stored = _number(encoded, 12, 4)
    if stored != len(encoded):
        message = f"has {len(encoded)} bytes, and says {stored}"
        raise ValueError(message)
    return _number(encoded, 4, 4)


def _size_in_lz4(encoded: bytes) -> int:
    """Return the decoded size that stands before a block of LZ4."""
    return _number(encoded, 0, 4)


def _size_in_zstd(encoded: bytes) -> int:
    """Return the decoded size that the header of a Zstandard frame states (RFC 8878, 3.1.1.1)."""
    descriptor = _number(encoded, 4, 1)
    is_single = bool(descriptor & 0x20)
    window_bytes = 0 if is_single else 1
    dictionary_bytes = (0, 1, 2, 4)[descriptor & 3]
    size_bytes = (int(is_single), 2, 4, 8)[descriptor >> 6]
    size = _number(encoded, 5 + window_bytes + dictionary_bytes, size_bytes)
    return size + 256 if size_bytes == 2 else size


_STATED_SIZES: Mapping[str, Callable[[bytes], int]] = {
    "blosc": _size_in_blosc,
    "lz4": _size_in_lz4,
    "zstd": _size_in_zstd,
}


class _Stretch(Array):
    """Rows of one episode in an array of all episodes."""

    __slots__ = ("_count", "_first")

    def __init__(self, values: _ZarrArray, first: int, count: int) -> None:
        super().__init__(values)
        self._first = first
        self._count = count

    @property
    def shape(self) -> tuple[int, ...]:
        """See `Array`."""
        return (self._count, *self.values.shape[1:])

    @property
    def chunk_rows(self) -> int:
        """See `Array`."""
        rows: int = self.values.chunks[0]
        return rows

    def read(self, lo: int, hi: int, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """See `Array`."""
        rows: NDArray[Any] = self.values.read(self._first + lo, self._first + hi)
        return rows


class _Refused(Array):
    """Rows of an array that is not read."""

    __slots__ = ("_problem",)

    def __init__(self, count: int, problem: Problem) -> None:
        super().__init__(np.empty(count, object))
        self._problem = problem

    def problems(self, *, as_objects: bool = False) -> Sequence[Problem]:
        """See `Array`."""
        return (self._problem,)


class ReplayZarr(Format):
    """A replay buffer of diffusion policy; ``meta/episode_ends/.zarray`` stands for a folder."""

    name: ClassVar[str] = "replay_zarr"
    suffixes: ClassVar[tuple[str, ...]] = (_METADATA, ".zarr.zip")
    library: ClassVar[str] = "numcodecs"
    offered: ClassVar[bool] = False

    def recognise(self, file: SourceFile) -> Claim:
        """Look for ``meta/episode_ends``."""
        if file.path.name == _METADATA and file.path.parent.parts[-2:] == ("meta", "episode_ends"):
            return sure(f"has {ENDS}")
        if file.path.name.lower().endswith(".zarr.zip") and zipfile.is_zipfile(file.path):
            with zipfile.ZipFile(file.path) as archive:
                if f"{ENDS}/{_METADATA}" in archive.NameToInfo:
                    return sure(f"has {ENDS}")
        return no(f"has no {ENDS} of Zarr v2")

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[Opened]:
        """Read the metadata of all arrays, and where episodes end."""
        with ExitStack() as stack:
            try:
                opened = _opened(file, _Container(file, stack))
            except (KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
                message = f"and the files beside it are no replay buffer: {error!r}"
                raise file.problem(message, _AGAIN, "damaged") from error
            yield opened


def _opened(file: SourceFile, container: _Container) -> Opened:
    arrays: dict[str, _ZarrArray] = {}
    refused: dict[str, Problem] = {}
    for path in _arrays_in(container.names):
        described = json.loads(container.read(f"{path}/{_METADATA}", _MOST_METADATA))
        problem = _problem(f"{file.name}: {path}", described)
        if problem is None:
            arrays[path] = _ZarrArray(container, path, described)
        else:
            refused[path] = problem
    if ENDS in refused:
        raise InputError(refused[ENDS])
    further = container.further()
    ends_array = arrays.pop(ENDS)
    ends = ends_array.read(0, ends_array.shape[0])
    _check(file, ends, arrays)
    notes = {}
    for path, array in arrays.items():
        if array.absent:
            notes[path] = f"{path}: {array.absent} chunks have no file, so their values are {array.fill}"
    return Opened(
        arrays=_by_episode(arrays, refused, ends.tolist()),
        further=further,
        memory=3 * max([array.chunk_bytes for array in arrays.values()], default=0),
        notes=notes,
        file=file,
    )


def _arrays_in(names: frozenset[str]) -> list[str]:
    """List the arrays of episodes among the files of a hierarchy, and `ENDS`."""
    paths = [name.removesuffix(f"/{_METADATA}") for name in sorted(names) if name.endswith(f"/{_METADATA}")]
    return [path for path in paths if path == ENDS or path.startswith(_DATA)]


def _problem(place: str, described: Mapping[str, Any]) -> Problem | None:
    """Say why an array is not read: another dtype than numbers, or a codec that may do more than decode."""
    codecs = [described["compressor"], *(described["filters"] or ())]
    names = [codec["id"] for codec in codecs if codec is not None]
    strange = [name for name in names if name not in _CODECS]
    if strange or described["filters"]:
        message = f"is encoded by {', '.join(strange or names)}, which is not read"
        return Problem.at(place, message, _NO_CODEC, "filter")
    dtype = described["dtype"]
    if not isinstance(dtype, str) or np.dtype(dtype).kind not in _KINDS:
        return Problem.at(place, f"has dtype {dtype!r}, which is no number", "leave it out", "dtype")
    chunks = described["chunks"]
    size = prod(chunks) * np.dtype(dtype).itemsize
    if len(chunks) != len(described["shape"]) or not chunks or not 0 < size <= _MOST_CHUNK_BYTES:
        return Problem.at(place, f"has chunks of {chunks}", "write it in other chunks", "shape")
    return None


def _check(file: SourceFile, ends: NDArray[Any], arrays: Mapping[str, _ZarrArray]) -> None:
    """Refuse ends of episodes that do not rise, and arrays with another number of rows or without fill."""
    if (
        ends.ndim != 1
        or ends.dtype.kind not in "iu"
        or (np.diff(ends, prepend=0) <= 0).any()
        or not ends.size
    ):
        message = f"{ENDS} does not rise from one episode to the next"
        raise file.problem(message, _AGAIN, "value")
    steps = int(ends[-1])
    for path, array in arrays.items():
        if array.shape[0] != steps:
            message = f"{path} has shape {array.shape}, and the last episode ends at step {steps}"
            raise file.problem(message, _AGAIN, "length")
        if array.fill is None and array.absent:
            message = f"{path} lacks {array.absent} chunks"
            raise file.problem(message, _AGAIN, "missing")


def _by_episode(
    arrays: Mapping[str, _ZarrArray], refused: Mapping[str, Problem], ends: Sequence[int]
) -> dict[str, Array]:
    """Divide the rows of all arrays at the ends of episodes."""
    width = len(str(len(ends) - 1))
    divided: dict[str, Array] = {}
    start = 0
    for number, end in enumerate(ends):
        group = f"data/episode_{number:0{width}d}"
        for path, array in arrays.items():
            divided[f"{group}/{path.removeprefix(_DATA)}"] = _Stretch(array, start, end - start)
        for path, problem in refused.items():
            divided[f"{group}/{path.removeprefix(_DATA)}"] = _Refused(end - start, problem)
        start = end
    return divided
