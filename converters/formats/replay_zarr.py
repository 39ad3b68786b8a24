"""Replay buffers of diffusion policy: Zarr v2, a folder or ``.zarr.zip``, with ``data/*`` and ``meta/episode_ends``.

The arrays hold all episodes one after the other. They open as ``data/episode_0/<name>``, a range of rows each.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
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
_BLOSC_HEADER = 16
_DEFLATE = ("zlib", "gzip")
_CODECS = ("blosc", "zstd", "lz4", *_DEFLATE)
"""Codecs that decode numbers into memory of a size that is known before. Others may unpickle, or need packages."""
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
        self._root = file.path.parents[2]
        if file.path.name != _METADATA:
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
        """Return the files beside the one that was found, of which none may lie outside of what the user gave."""
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
        return prod(self.chunks) * self.dtype.itemsize

    @property
    def absent(self) -> int:
        """Number of chunks without a file, which hold the fill value."""
        grid = [range(-(-size // chunk)) for size, chunk in zip(self.shape, self.chunks, strict=True)]
        return sum(self._name(place) not in self._container.names for place in product(*grid))

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
            grid = [
                range(-(-size // chunk)) for size, chunk in zip(self.shape[1:], self.chunks[1:], strict=True)
            ]
            for place in product(*grid):
                starts = [number * chunk for number, chunk in zip(place, self.chunks[1:], strict=True)]
                box = [
                    slice(start, start + chunk) for start, chunk in zip(starts, self.chunks[1:], strict=True)
                ]
                target = rows[(slice(None), *box)]
                target[...] = self._chunk((layer, *place))[tuple(map(slice, target.shape))]
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
        return content.view(self.dtype).reshape(self.chunks, order=self._order)

    def _name(self, place: Sequence[int]) -> str:
        return f"{self.path}/{self._separator.join(map(str, place))}"


def _decoded(encoded: bytes, compressor: Mapping[str, Any] | None, size: int) -> NDArray[np.uint8]:
    """Decode a chunk to exactly so many bytes.

    Raises
    ------
    ValueError, RuntimeError, zlib.error
        If it has another size, or is cut short.
    """
    from numcodecs import get_codec

    codec = "" if compressor is None else compressor["id"]
    content = np.empty(size, np.uint8)
    if codec in _DEFLATE:
        content = np.frombuffer(zlib.decompressobj(_ANY_DEFLATE).decompress(encoded, size + 1), np.uint8)
    elif not codec:
        content = np.frombuffer(encoded, np.uint8)
    else:
        if codec == "blosc":  # which reads beyond the end of what is cut short
            _check_blosc(encoded, size)
        get_codec(dict(compressor or {})).decode(encoded, out=content)
    if content.size != size:
        message = f"decodes to {content.size} bytes, expected {size}"
        raise ValueError(message)
    return content


def _check_blosc(encoded: bytes, size: int) -> None:
    """Compare both sizes in the header of a Blosc chunk with the true ones."""
    if len(encoded) < _BLOSC_HEADER:
        message = f"has {len(encoded)} bytes, fewer than the header of Blosc"
        raise ValueError(message)
    decoded = int.from_bytes(encoded[4:8], "little")
    stored = int.from_bytes(encoded[12:16], "little")
    if (decoded, stored) != (size, len(encoded)):
        message = f"has {len(encoded)} bytes for {size}, and says {stored} for {decoded}"
        raise ValueError(message)


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

    def item(self, row: int | None = None) -> Any:
        """See `Array`."""
        return self.read(0, len(self)) if row is None else self.read(row, row + 1)[0]

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
    """A replay buffer of diffusion policy; of a folder the file ``meta/episode_ends/.zarray`` stands for all."""

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
        raise file.problem(f"{ENDS} does not rise from one episode to the next", _AGAIN, "value")
    steps = int(ends[-1])
    for path, array in arrays.items():
        if array.shape[0] != steps:
            message = f"{path} has shape {array.shape}, and the last episode ends at step {steps}"
            raise file.problem(message, _AGAIN, "length")
        if array.fill is None and array.absent:
            raise file.problem(f"{path} lacks {array.absent} chunks", _AGAIN, "missing")


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
