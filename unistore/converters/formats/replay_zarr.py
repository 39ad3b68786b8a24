"""Open replay buffers of diffusion policy: Zarr v2 with ``data/*`` and ``meta/episode_ends``."""

# The arrays hold all episodes one after the other. They open as `data/episode_0/<name>`, a range of rows
# each.

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from math import prod
from typing import IO, Any, NamedTuple

import numpy as np

from unistore.converters.array import Array
from unistore.converters.claims import Claim, no, sure
from unistore.converters.common.faults import COPY_AGAIN, WRITE_AGAIN, is_out_of_memory
from unistore.converters.formats.lazy import Stretch, Unread
from unistore.converters.opened import Format, Metadata, OpenFile, SourceFile
from unistore.errors import InputError, Problem
from unistore.system.frames import BLOSC_HEADER, zstd_size
from unistore.system.sizes import count_of
from unistore.system.types import AnyArray

ENDS = "meta/episode_ends"
_DATA = "data/"
_METADATA = ".zarray"
_DEFLATE = ("zlib", "gzip")
_ANY_DEFLATE = 47  # says to zlib: with the header of zlib or that of gzip
_MOST_CHUNK_BYTES = 1 << 30
_MOST_METADATA = 1 << 20
_NO_CODEC = "write the array again with Blosc, or skip it with --ignore"


class _Hierarchy(NamedTuple):
    """The files of a folder, or the members of an archive, by path in the hierarchy."""

    file: SourceFile
    names: frozenset[str]
    open: Callable[[str], IO[bytes]]

    def read(self, name: str, most: int) -> bytes:
        """Read a file of at most so many bytes, and one byte more if it is longer."""
        with self.open(name) as file:
            return file.read(most + 1)


def _in_archive(file: SourceFile, stack: ExitStack) -> _Hierarchy:
    archive = stack.enter_context(zipfile.ZipFile(file.path))
    return _Hierarchy(file, frozenset(archive.namelist()), archive.open)


def _in_folder(file: SourceFile) -> _Hierarchy:
    """List a folder. Behind a link to another one nothing is looked for."""
    root = file.path.parents[2]
    names = []
    for path in sorted(root.rglob("*")):
        if path.is_symlink() and path.is_dir():
            raise file.problem(
                f"its folder contains {path.relative_to(root)}, a link to a folder, which is not followed",
                "replace the link by the folder",
                "link",
            )
        if path.is_file():
            names.append(path.relative_to(root).as_posix())
    return _Hierarchy(file, frozenset(names), lambda name: root.joinpath(name).open("rb"))


class _ZarrArray:
    """An array of Zarr v2, of which chunks are read when rows are."""

    def __init__(self, hierarchy: _Hierarchy, path: str, described: Metadata) -> None:
        self.shape = tuple(map(int, described["shape"]))
        self.chunks = tuple(map(int, described["chunks"]))
        self.chunk_rows = self.chunks[0]
        self.dtype = np.dtype(described["dtype"])
        self.chunk_bytes = prod(self.chunks) * self.dtype.itemsize
        self.fill = described["fill_value"]
        self._path = path
        self._hierarchy = hierarchy
        self._order = described["order"]
        self._separator = described.get("dimension_separator", ".")
        self._compressor = described["compressor"]
        self._grid = [-(-size // chunk) for size, chunk in zip(self.shape, self.chunks, strict=True)]
        self._last: tuple[int, AnyArray] = (-1, np.empty(0))

    @property
    def absent(self) -> int:
        """Number of chunks without a file, which hold the fill value."""
        own = f"{self._path}/"
        files = [name.removeprefix(own) for name in self._hierarchy.names if name.startswith(own)]
        places = [file.split(self._separator) for file in files]
        numbers = [tuple(map(int, place)) for place in places if all(map(str.isdecimal, place))]
        present = {place for place in numbers if len(place) == len(self._grid) and self._has(place)}
        return prod(self._grid) - len(present)

    def _has(self, place: Sequence[int]) -> bool:
        """Return whether a chunk of the grid has a file."""
        is_inside = all(number < count for number, count in zip(place, self._grid, strict=True))
        return is_inside and self._name(place) in self._hierarchy.names

    @property
    def layer_bytes(self) -> int:
        """Bytes of the chunks with the same rows, which are kept together."""
        return self.chunk_rows * prod(self.shape[1:]) * self.dtype.itemsize

    def __getitem__(self, rows: slice) -> AnyArray:
        values = np.empty((rows.stop - rows.start, *self.shape[1:]), self.dtype)
        start = rows.start
        while start < rows.stop:
            layer, skipped = divmod(start, self.chunk_rows)
            part = self._layer(layer)[skipped : rows.stop - layer * self.chunk_rows]
            values[start - rows.start :][: len(part)] = part
            start += len(part)
        return values

    def _layer(self, layer: int) -> AnyArray:
        """Read all chunks with the same rows. The last ones read are kept."""
        if self._last[0] != layer:
            rows = np.empty((self.chunk_rows, *self.shape[1:]), self.dtype)
            for place in np.ndindex(*self._grid[1:]):
                inner = zip(place, self.chunks[1:], strict=True)
                box = [slice(number * chunk, (number + 1) * chunk) for number, chunk in inner]
                target = rows[(slice(None), *box)]
                # The last chunk along an axis may reach beyond the array.
                target[...] = self._chunk((layer, *place))[tuple(map(slice, target.shape))]
            self._last = layer, rows
        return self._last[1]

    def _chunk(self, place: tuple[int, ...]) -> AnyArray:
        name = self._name(place)
        if name not in self._hierarchy.names:
            return np.full(self.chunks, self.fill, self.dtype)
        encoded = self._hierarchy.read(name, 2 * self.chunk_bytes + (1 << 16))
        try:
            content = _decoded(encoded, self._compressor, self.chunk_bytes)
        except (ValueError, RuntimeError, zlib.error) as error:
            if is_out_of_memory(error):
                raise
            raise self._hierarchy.file.problem(
                f"{name} is damaged: {error}", WRITE_AGAIN, "damaged"
            ) from error
        chunk: AnyArray = np.frombuffer(content, self.dtype).reshape(self.chunks, order=self._order)
        return chunk

    def _name(self, place: Sequence[int]) -> str:
        return f"{self._path}/{self._separator.join(map(str, place))}"


def _decoded(encoded: bytes, compressor: Metadata | None, size: int) -> Any:
    """Decode a chunk to exactly so many bytes. What says another size is not decoded."""
    content: Any = encoded
    if compressor is not None and compressor["id"] in _DEFLATE:
        content = zlib.decompressobj(_ANY_DEFLATE).decompress(encoded, size + 1)
    elif compressor is not None:
        from numcodecs import get_codec

        # These trust their headers: Blosc reads beyond the end of what is cut short.
        stated = _STATED_SIZES[compressor["id"]](encoded)
        if stated != size:
            raise ValueError(f"its header states {stated:,} bytes, not {size:,}")
        codec: Any = get_codec(dict(compressor))  # type: ignore[no-untyped-call]
        content = codec.decode(encoded)
    if len(content) != size:
        raise ValueError(f"it has {len(content):,} bytes, not {size:,}")
    return content


def _size_in_blosc(encoded: bytes) -> int:
    """Return the decoded size that a Blosc header states, -1 if the encoded one is another."""
    if len(encoded) < BLOSC_HEADER.size:
        return -1
    *_, decoded, _, size = BLOSC_HEADER.unpack_from(encoded)
    return int(decoded) if size == len(encoded) else -1


# Decoded sizes that chunks state, by codec. Other codecs may unpickle, or need packages.
_STATED_SIZES: Mapping[str, Callable[[bytes], int]] = {
    "blosc": _size_in_blosc,
    "lz4": lambda encoded: int.from_bytes(encoded[:4], "little"),
    "zstd": zstd_size,
}


class ReplayZarr(Format):
    """A replay buffer of diffusion policy. ``meta/episode_ends/.zarray`` stands for a folder."""

    name = "replay_zarr"
    suffixes = (_METADATA, ".zarr.zip")
    twins = (f".zarr/{ENDS}/{_METADATA}", ".zarr.zip")
    library = "numcodecs"
    offered = False

    def recognise(self, file: SourceFile) -> Claim:
        has_ends = file.path.parts[-3:] == ("meta", "episode_ends", _METADATA)
        if file.path.name.lower().endswith(".zarr.zip"):
            if file.head(2) != b"PK":
                raise file.wrong_beginning("as a zip does")
            try:
                with zipfile.ZipFile(file.path) as archive:
                    has_ends = f"{ENDS}/{_METADATA}" in archive.NameToInfo
            except zipfile.BadZipFile as error:
                message = f"is a damaged or truncated zip: {error}"
                raise file.problem(message, COPY_AGAIN, "truncated") from error
        return sure(f"has {ENDS}") if has_ends else no(f"has no {ENDS} of Zarr v2")

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[OpenFile]:
        with ExitStack() as stack:
            try:
                if file.path.name == _METADATA:
                    hierarchy = _in_folder(file)
                    names = sorted(hierarchy.names - {f"{ENDS}/{_METADATA}"})
                    further = [file.beside(f"../../{name}") for name in names]
                else:
                    hierarchy = _in_archive(file, stack)
                    further = []
                opened = _opened(hierarchy, further)
            except (KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
                message = f"and the other files of its folder are not a replay buffer: {error!r}"
                raise file.problem(message, WRITE_AGAIN, "damaged") from error
            yield opened


def _opened(hierarchy: _Hierarchy, further: Sequence[SourceFile]) -> OpenFile:
    file = hierarchy.file
    arrays: dict[str, _ZarrArray] = {}
    refused: dict[str, Problem] = {}
    for name in sorted(hierarchy.names):
        path = name.removesuffix(f"/{_METADATA}")
        if path != name and (path == ENDS or path.startswith(_DATA)):
            described = json.loads(hierarchy.read(name, _MOST_METADATA))
            problem = _problem(f"{file.name}: {path}", described)
            if problem is None:
                arrays[path] = _ZarrArray(hierarchy, path, described)
            else:
                refused[path] = problem
    if ENDS in refused:
        raise InputError(refused[ENDS])
    ends_array = arrays.pop(ENDS)
    ends = ends_array[0 : ends_array.shape[0]]
    if ends.ndim != 1 or ends.dtype.kind not in "iu" or not ends.size:
        form = f"{ends.dtype} of shape {ends.shape}"
        message = f"its {ENDS} is {form}, but a list of integers, one for each episode, is expected"
        raise file.problem(message, WRITE_AGAIN, "dtype")
    if (np.diff(ends, prepend=0) <= 0).any():
        raise file.problem(
            f"its {ENDS} does not increase from each episode to the next", WRITE_AGAIN, "value"
        )
    notes = {}
    for path, array in arrays.items():
        absent = array.absent
        if array.shape[0] != ends[-1]:
            raise file.problem(
                f"its {path} has the shape {array.shape}, but the last episode ends at step {ends[-1]}",
                WRITE_AGAIN,
                "length",
            )
        if absent and array.fill is None:
            message = f"its {path} has no file for {count_of(absent, 'chunk')}, and no fill value"
            raise file.problem(message, WRITE_AGAIN, "missing")
        if absent:
            notes[path] = f"{path}: {absent} chunks have no file, so their values are {array.fill}"
    return OpenFile(
        arrays=_by_episode(arrays, refused, ends.tolist()),
        further=further,
        memory=sum(array.layer_bytes for array in arrays.values())
        + 2 * max([array.chunk_bytes for array in arrays.values()], default=0),
        notes=notes,
        file=file,
    )


def _problem(place: str, described: Metadata) -> Problem | None:
    """Say why an array is not read: another dtype than numbers, or a codec that may do more than decode."""
    codecs = [described["compressor"], *(described["filters"] or ())]
    names = [codec["id"] for codec in codecs if codec is not None]
    if described["filters"] or not {*_STATED_SIZES, *_DEFLATE}.issuperset(names):
        message = f"is encoded with {', '.join(names)}, which is not supported"
        return Problem.at(place, message, _NO_CODEC, "filter")
    dtype = described["dtype"]
    if not isinstance(dtype, str) or np.dtype(dtype).kind not in "biuf":
        message = f"has the dtype {dtype!r}, and only numbers are supported"
        return Problem.at(place, message, "skip the array with --ignore", "dtype")
    chunks = described["chunks"]
    size = prod(chunks) * np.dtype(dtype).itemsize
    if len(chunks) != len(described["shape"]) or not chunks or not 0 < size <= _MOST_CHUNK_BYTES:
        limit = f"at most {_MOST_CHUNK_BYTES:,} bytes and the axes of the array"
        message = f"has the chunks {chunks}, but chunks must have {limit}"
        return Problem.at(place, message, "write the array with other chunks", "shape")
    return None


def _by_episode(
    arrays: Mapping[str, _ZarrArray], refused: Mapping[str, Problem], ends: Sequence[int]
) -> dict[str, Array]:
    """Divide the rows of all arrays at the ends of episodes."""
    width = len(str(len(ends) - 1))
    whole = {path: Array(values) for path, values in arrays.items()}
    divided: dict[str, Array] = {}
    start = 0
    for number, end in enumerate(ends):
        group = f"data/episode_{number:0{width}d}"
        for path, array in whole.items():
            divided[f"{group}/{path.removeprefix(_DATA)}"] = Stretch(array, start, end - start)
        for path, problem in refused.items():
            divided[f"{group}/{path.removeprefix(_DATA)}"] = Unread(end - start, problem)
        start = end
    return divided
