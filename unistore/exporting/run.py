"""`export`: write all files to a temporary folder, which is then renamed."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import signature
from math import prod
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np

from unistore.conversion.lock import Lock, check_own, check_plain
from unistore.converters.common.columns import is_text
from unistore.converters.common.exported import VALUE, ExportedArray, File
from unistore.converters.families import exporter_of
from unistore.converters.registry import family_of
from unistore.errors import ConversionError, InputError, StoreError, named, refusal
from unistore.exporting.written import Written, check_written
from unistore.progress import resolve_progress
from unistore.remote.url import local_path, require_local_path
from unistore.schemas.indices import whole
from unistore.store.names import ROOT, file_name_problem, folder_beside
from unistore.store.reader import Store
from unistore.store.shard_cache import CachedStorage, temporary_copies
from unistore.store.side_tables import side_names
from unistore.store.versions import open_stores
from unistore.system.arguments import Arguments
from unistore.system.extras import require
from unistore.system.progress import Progress, ProgressLike
from unistore.system.types import AnyArray, Attributes, PathLike, VersionLike
from unistore.zarr3.codecs import codecs_document, encoder
from unistore.zarr3.metadata import json_bytes
from unistore.zarr3.writer import array_metadata, chunk_slices, pad_chunk

# Writes one HDF5 file to a disk that may fill up.
#
# libhdf5 crashes on closing a file after a failed write, with its own drivers as well as with a Python file
# object that raises. So its writes never fail: the file object that it writes to records the first error,
# keeps all later data in memory and reads them back, until the file is closed. The error is checked after
# each block of rows and raised once the file is closed, so at most one block of rows and the file's metadata
# are kept in memory.

_CHUNK_ROWS = 8192
_MAX_CHUNK_BYTES = 16 << 20


def write_hdf5(file: File, path: Path) -> None:
    """Write a new HDF5 file."""
    # On a thread, as a KeyboardInterrupt is raised in the main thread only: inside a write of libhdf5 it
    # would be a failed write
    with _FailSafeFile(path) as out, ThreadPoolExecutor(1, "unistore-hdf5") as thread:
        try:
            thread.submit(_write, file, out).result()
        except BaseException as error:
            out.stop(error)
            raise


class _FailSafeFile:
    # A file for libhdf5, none of whose operations fails: leaving the ``with`` statement raises the first
    # error
    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._position = self._end = 0
        self._error: BaseException | None = None
        self._unwritten: list[tuple[int, bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            os.close(self._descriptor)
        except OSError as failure:  # network file systems report a full disk only now
            self._fail(failure)
        if error is None:
            self.check()

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def stop(self, error: BaseException) -> None:
        self._error = self._error or error

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = offset if whence == os.SEEK_SET else self._end + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def write(self, data: Any) -> int:
        # What cannot be written is kept in memory
        view = memoryview(data).cast("B")
        offset = self._position
        size = len(view)
        self._end = max(self._end, offset + size)
        try:
            while view and self._error is None:
                done = os.pwrite(self._descriptor, view, offset)
                view = view[done:]
                offset += done
        except OSError as error:
            self._fail(error)
        if view:
            self._unwritten.append((offset, bytes(view)))
        return size

    def read(self, size: int) -> bytes:
        # Zeros where nothing was written
        out = bytearray(size)
        offset = self._position
        try:
            os.preadv(self._descriptor, [out], offset)
        except OSError as error:
            self._fail(error)
        for start, data in self._unwritten:
            lo = max(start, offset)
            hi = min(start + len(data), offset + size)
            if lo < hi:
                out[lo - offset : hi - offset] = data[lo - start : hi - start]
        return bytes(out)

    def truncate(self, size: int) -> None:
        self._end = size
        try:
            if self._error is None:
                os.ftruncate(self._descriptor, size)
        except OSError as error:
            self._fail(error)

    def flush(self) -> None:
        """Do nothing: writes are not buffered."""

    def _fail(self, error: OSError) -> None:
        error.filename = str(self._path)
        self.stop(error)


def _write(file: File, disk: _FailSafeFile) -> None:
    import h5py

    for name in (*file.values, *file.attributes):
        if "\0" in name or (name and "" in name.split("/")):
            msg = f"{file.name}: {name!r} cannot be written, because it is not a valid name in HDF5"
            raise StoreError(msg)
    with h5py.File(disk, "w", libver=("v108", "latest")) as out:  # 1.8 on: attributes above 64 KiB
        for name, values in file.values.items():
            try:
                _write_dataset(out, name, values, disk, compressed=file.compressed)
            except (ValueError, TypeError) as error:
                msg = f"{file.name}: the dataset {name!r} cannot be written: {error}"
                raise StoreError(msg) from error
        for name, attributes in file.attributes.items():
            if VALUE in attributes and name not in out:
                value = attributes[VALUE]
                out.create_dataset(name, data=value, dtype=value.dtype)
            target = out.require_group(name) if name and name not in out else out[name or "/"]
            for key, value in attributes.items():
                if key != VALUE:
                    _write_attribute(target.attrs, key, value)


def _write_dataset(
    out: Any, name: str, values: ExportedArray, disk: _FailSafeFile, *, compressed: bool
) -> None:
    import h5py

    dtype = values.dtype
    has_objects = dtype.hasobject and dtype.names is None  # records have them in fields
    if has_objects:
        metadata: Attributes = dtype.metadata or {}
        dtype = dtype if is_text(dtype) else h5py.vlen_dtype(metadata.get("vlen", np.uint8))
    storage: dict[str, Any] = {}
    if compressed and not values.dtype.hasobject and 0 not in values.shape:
        row_bytes = max(1, prod(values.shape[1:]) * dtype.itemsize)
        rows = max(1, min(_CHUNK_ROWS, values.shape[0], _MAX_CHUNK_BYTES // row_bytes))
        chunks = (rows, *values.shape[1:])
        storage = {"chunks": chunks, "compression": "gzip", "compression_opts": 4, "shuffle": True}
    dataset = out.create_dataset(name, values.shape, dtype, **storage)
    row = 0
    for block in values.blocks():
        if block.size:
            is_one_object = has_objects and len(block) == 1
            dataset[row : row + len(block)] = block[0] if is_one_object else block
        disk.check()
        row += len(block)


def _write_attribute(attributes: Any, name: str, value: Any) -> None:
    import h5py

    plain = value if isinstance(value, np.ndarray | h5py.Empty) else _from_json(value)
    attributes.create(name, plain, dtype=plain.dtype if isinstance(plain, np.ndarray) else None)


def _from_json(value: Any) -> Any:
    import h5py

    if value is None:
        return h5py.Empty("f4")
    if not isinstance(value, list):
        return value
    kinds = {type(item) for item in np.array(value, object).ravel()}  # a list, where lengths differ
    if kinds == {str}:
        return value
    array = np.asarray(value) if kinds <= {int, float} or kinds == {bool} else np.empty(0, object)
    return json.dumps(value) if array.dtype.kind == "O" else array


# A temporary folder beside a destination, for one process at a time.


@contextmanager
def temporary_folder(target: Path, purpose: str) -> Iterator[Path]:
    """Yield an empty folder next to `target`, which is removed at the end, also after errors.

    Folders that a killed process left are removed first.

    Parameters
    ----------
    target : Path
        Destination of the files.
    purpose : str
        Suffix of the name of the outer folder.
    """
    folder = folder_beside(target, purpose)
    work = folder / "work"
    check_plain(folder)
    try:
        with Lock(folder / "lock"):
            check_own(folder, folder / "lock")
            if work.exists():
                shutil.rmtree(work)
            work.mkdir()
            try:
                yield work
            finally:
                shutil.rmtree(work, ignore_errors=True)
    finally:
        with suppress(OSError):  # not empty if another process uses it
            folder.rmdir()


# Voxels along each axis of a Zarr chunk: a plane across any axis reads few chunks
_EDGE = 64


class FileNames:
    """File names of one export: valid, without duplicates, and none inside another.

    Parameters
    ----------
    store : str
        Path of the store, for messages.
    """

    def __init__(self, store: str) -> None:
        self._store = store
        self._files: set[str] = set()
        self._folders: set[str] = set()

    def take(self, name: str) -> tuple[str, ...]:
        """Register a new file name, and return its parts.

        Raises
        ------
        StoreError
            If the name is not valid on every file system, or is taken.
        """
        if reason := file_name_problem(name):
            msg = f"{self._store}: the name {name!r} of a file cannot be written: {reason}"
            raise StoreError(msg)
        parts = tuple(name.split("/"))
        parents = ["/".join(parts[:depth]) for depth in range(1, len(parts))]
        if name in self._files or name in self._folders or self._files.intersection(parents):
            msg = f"{self._store}: two files have the name {name!r}, or one is inside the other"
            raise StoreError(msg)
        self._files.add(name)
        self._folders.update(parents)
        return parts


def _write_zarr(file: File, path: Path) -> None:
    # Every chunk is a file, since viewers do not all read shards. Not by zarr-python: after a failed write
    # others of its writes go on for a while
    names = FileNames(str(path))
    for name in (*file.attributes, *file.values):
        document = path.joinpath(*names.take(f"{name}/{ROOT}".lstrip("/")))
        document.parent.mkdir(parents=True)
        if name in file.values:
            _write_array(file.values[name], document.parent, file.axes)
        else:
            group = {"zarr_format": 3, "node_type": "group", "attributes": file.attributes[name]}
            document.write_text(json.dumps(group, indent=2, allow_nan=False))


def _write_array(values: ExportedArray, folder: Path, axes: tuple[str, ...]) -> None:
    chunk = tuple(max(1, min(_EDGE, extent)) for extent in values.shape)
    blank = np.zeros(chunk, values.dtype)
    metadata = array_metadata(values.shape, values.dtype, chunk, chunk, "balanced", dimension_names=axes)
    document = metadata.to_json()
    document["codecs"] = codecs_document(metadata.compressor, values.dtype.itemsize)
    (folder / ROOT).write_bytes(json_bytes(document))
    encode = encoder(metadata.compressor)
    for depth, layer in enumerate(_layers(values, chunk[0])):
        for box in chunk_slices(layer.shape, chunk):
            along = (part.start // edge for part, edge in zip(box[1:], chunk[1:], strict=True))
            file = folder.joinpath("c", str(depth), *map(str, along))
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("xb") as out:
                out.writelines(encode(pad_chunk(layer[box], blank)))


def _layers(values: ExportedArray, depth: int) -> Iterator[AnyArray]:
    # The buffer is reused for each layer
    layer = np.empty((depth, *values.shape[1:]), values.dtype)
    filled = 0
    for block in values.blocks():
        done = 0
        while done < len(block):
            count = min(len(block) - done, depth - filled)
            layer[filled : filled + count] = block[done : done + count]
            filled += count
            done += count
            if filled == depth:
                yield layer
                filled = 0
    if filled:
        yield layer[:filled]


def write(file: File, path: Path) -> None:
    """Write a new file, open it again, and compare it."""
    if file.write is not None:
        file.write(path)
        return
    if file.format:
        from unistore.converters.adapter.restore import write_by_format

        write_by_format(file, path)
        return
    written = {name: Written(values) for name, values in file.values.items()}
    _write_form(replace(file, values={name: array.values for name, array in written.items()}), path)
    check_written(path, file.form, written)


def _write_form(file: File, path: Path) -> None:
    if file.form == "hdf5":
        write_hdf5(file, path)
        return
    if file.form == "zarr":
        _write_zarr(file, path)
        return
    with path.open("xb") as out:
        if file.form == "npz":
            _write_npz(file.values, out)
        elif file.form == "npy":
            _write_npy(file.values[""], out)
        elif file.form == "png":
            out.write(_png(file.values[""].whole(), path))
        else:
            out.writelines(map(_bytes_of, file.values[""].blocks()))


def _write_npy(values: ExportedArray, out: IO[bytes]) -> None:
    descr = np.lib.format.dtype_to_descr(values.dtype)
    header = {"descr": descr, "fortran_order": False, "shape": values.shape}
    np.lib.format.write_array_header_1_0(out, header)
    out.writelines(_bytes_of(np.asarray(block, values.dtype)) for block in values.blocks())


def _write_npz(members: Mapping[str, ExportedArray], out: IO[bytes]) -> None:
    with zipfile.ZipFile(out, "w", allowZip64=True) as archive:
        for name, values in members.items():
            info = zipfile.ZipInfo(f"{name}.npy")  # fixed time stamp (1980): exports are reproducible
            with archive.open(info, "w", force_zip64=True) as member:
                _write_npy(values, member)


def _bytes_of(block: AnyArray) -> memoryview:
    return np.ascontiguousarray(block).reshape(-1).view(np.uint8).data


def _png(pixels: AnyArray, path: Path) -> bytes:
    require("cv2", f"writing {path.name} needs", "images")
    import cv2

    done, encoded = cv2.imencode(".png", np.ascontiguousarray(pixels[..., ::-1]))
    if not done:
        msg = f"{path}: an image of {pixels.shape} could not be encoded as PNG"
        raise ConversionError(msg)
    return encoded.tobytes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """Result of an export.

    Attributes
    ----------
    destination : str
        The folder.
    family : str
        Family of the store.
    sources, files, bytes : int
        Number of sources, and number and size of the written files.
    notes : tuple of str
        Differences from the sources, such as cameras of another size.
    """

    destination: str
    family: str
    sources: int
    files: int
    bytes: int
    notes: tuple[str, ...]


def export(
    store: PathLike,
    destination: PathLike,
    *,
    to: str | None = None,
    fps: float | None = None,
    video: bool = False,
    version: VersionLike = None,
    progress: ProgressLike = None,
) -> Exported:
    """Export a store as files, in the layout of its sources or in another format.

    Values are exactly those of the sources. ``docs/reference/verify.md`` lists the files of each family, and
    what of a source is not in a store.

    Parameters
    ----------
    store : path or URL
        Folder or URL of a sealed store.
    destination : path
        Folder to create. It must not exist.
    to : str, optional
        ``"ome-zarr"``: CT volumes as OME-NGFF 0.5 images. ``"lerobot"``, ``"robomimic"``: trajectories as
        a LeRobot dataset v3.0, or as one HDF5 file of robomimic. None: the layout of the sources.
    fps : float, optional
        Steps per second for ``"lerobot"``, if the sources do not state it.
    video : bool, default False
        For ``"lerobot"``. True: encode cameras as H.264, which loses detail. False: exact PNG images.
    version : int or str, optional
        Number or name of the version of a versioned store. None: the newest.
    progress : optional
        As in `unistore.convert`.

    Returns
    -------
    Exported
        The folder, and counts of its files.

    Raises
    ------
    InputError
        If an argument is invalid. If the destination exists, is inside the store, or is a URL. If the
        store cannot be exported in this format.
    StoreError
        If the store cannot be read, its family is not installed, or it names files outside the
        destination. No files are left behind.
    ConversionError
        If writing failed. No files are left behind.

    Examples
    --------
    >>> exported = unistore.export("demos.zarr", "demos-lerobot", to="lerobot")  # doctest: +SKIP
    """
    check = Arguments()
    check.path("store", store)
    check.path("destination", destination)
    check.text("to", to, none=True)
    check.number("fps", fps, none=True)
    check.flag("video", video)
    check.raise_problems()
    target = Path(os.path.abspath(require_local_path(destination, "DST")))  # noqa: PTH100  does not resolve links
    choices = {"fps": fps, "video": video or None}
    with resolve_progress(progress) as callbacks, temporary_copies(store) as copies:
        opened = open_stores(os.fspath(store), version, **copies)
        _check_destination(target, local_path(store))
        files_of = _exporter(opened.stores[0], to, choices)
        try:
            with temporary_folder(target, "unistore-export") as work:
                (work / "files").mkdir()
                is_joined = len(opened.stores) > 1 or any(opened.removed)
                done = _Export(FileNames(opened.path), work / "files", callbacks, is_joined)
                for part, removed in zip(opened.stores, opened.removed, strict=True):
                    if isinstance(part.storage, CachedStorage):
                        part.storage.fetch_all(callbacks)
                    done.write_all(part, files_of(part), removed)
                _check_destination(target, local_path(store))
                os.sync()
                (work / "files").rename(target)
        except OSError as error:
            then = "then export again"
            raise ConversionError(refusal(named(error, target), then)) from error
    sides = dict.fromkeys(name for part in opened.stores for name in side_names(part))
    if sides:
        done.notes[f"added columns are not exported: {', '.join(sides)}"] = None
    return Exported(
        destination=str(target),
        family=opened.stores[0].family,
        sources=done.sources,
        files=done.files,
        bytes=done.bytes,
        notes=(*done.notes,),
    )


@dataclass(slots=True)
class _Export:
    names: FileNames
    work: Path
    progress: Progress
    is_joined: bool  # whether several stores, or a part of one, become these files
    shared: set[str] = field(default_factory=set)  # names of files that several sources have
    notes: dict[str, None] = field(default_factory=dict)
    sources: int = 0
    files: int = 0
    bytes: int = 0

    def write_all(self, store: Store, files: Iterator[File], removed: Sequence[int]) -> None:
        # Write the files of a store, without those of removed sources
        sizes = whole(store, "sources/bytes").tolist()
        self.sources += len(sizes) - len(removed)
        self.progress.begin("writing", sum(sizes))
        current = 0
        while True:
            with _store_errors(store):
                file = next(files, None)
            if file is None:
                break
            if file.source != current:
                self.progress.advance(sum(sizes[current : file.source]))
            current = file.source
            if file.scope == "all" and self.is_joined:
                message = (
                    f"{file.name} needs all sources, but they are in several parts, or some were removed"
                )
                fix = "merge the parts with unistore compact STORE DST, and export DST"
                raise InputError.at(store.path, message, fix, "version")
            if file.source not in removed and not (file.scope == "shared" and file.name in self.shared):
                self._write(store, file)
        self.progress.advance(sum(sizes[current:]))

    def _write(self, store: Store, file: File) -> None:
        if file.scope == "shared":
            self.shared.add(file.name)
        path = self.work.joinpath(*self.names.take(file.name))
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with _store_errors(store):
                write(file, path)
        except OSError as error:
            raise named(error, path) from error
        written = [file for file in path.rglob("*") if file.is_file()] or [path]
        self.files += len(written)
        self.bytes += sum(file.stat().st_size for file in written)
        self.notes |= dict.fromkeys(file.notes)


@contextmanager
def _store_errors(store: Store) -> Iterator[None]:
    # A store's free-form metadata (options, attributes) may cause any exception
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}".rstrip(": ")
        msg = (
            f"{store.path}: cannot be exported, because the description of its sources contradicts its "
            f"arrays: {reason}. Fix: unistore verify {store.path}"
        )
        raise StoreError(msg) from error


def _exporter(
    store: Store, to: str | None, choices: Mapping[str, object]
) -> Callable[[Store], Iterator[File]]:
    try:
        family = family_of(store.root)
        files_of = exporter_of(family, to or "")
    except InputError as error:
        msg = f"{store.path}: cannot be exported: {error}"
        raise StoreError(msg) from error
    if files_of is None:
        message = f"{family.command()} stores cannot be exported as '{to}'"
        fixes = tuple(f"give --to {name}" for name in family.exports)
        remove = "remove --to, which writes the layout of the sources"
        raise InputError.at(store.path, message, (remove, *fixes), "option")
    chosen = {name: value for name, value in choices.items() if value is not None}
    for name in sorted(chosen.keys() - signature(files_of).parameters.keys()):
        raise InputError.at(store.path, f"this export has no --{name}", f"remove --{name}", "option")
    return partial(files_of, **chosen)


def _check_destination(target: Path, store: Path | None) -> None:
    if os.path.lexists(target):
        message = "exists, and an export never writes into an existing folder"
        raise InputError.at(str(target), message, "choose another folder", "target")
    real = target.parent.resolve() / target.name
    if store is not None and real.is_relative_to(store.resolve()):
        raise InputError.at(str(target), "is inside the store", "choose another folder", "target")
