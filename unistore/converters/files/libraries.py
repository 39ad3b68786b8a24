"""Open files with other libraries, such as NumPy, h5py and OpenCV, without any code of a converter."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unistore.converters.files.hdf5 import library as h5py
from unistore.system.foreign import begin_reading, opening, refuse_here

# Name of the array of a file with one array, which has none
ONLY = ""
_OPENCV = "OpenCV"
# Bytes of the header of a ``.npy`` file: NumPy refuses more than 10,000 unless it is told
_MOST_HEADER = 1 << 30
# Stands for a library where no other reads a format
UNISTORE = "unistore"


class OpenedByLibrary(NamedTuple):
    """A file that another library opened.

    Attributes
    ----------
    library : str
        Name of the library: ``"h5py"``.
    names : sequence of str
        Names of the arrays. A file with one array without a name has the name ``""``.
    array : callable
        ``array(name)`` returns an object with ``shape``, ``dtype`` and slices of axis 0.
    hdf5 : optional
        The open file, if h5py reads it.
    metadata : mapping, optional
        Other metadata, if the format of a package read the file.
    """

    library: str
    names: Sequence[str]
    array: Callable[[str], Any]
    hdf5: Any = None
    metadata: Mapping[str, Any] | None = None


Open = Callable[[Path], AbstractContextManager[OpenedByLibrary]]


@contextmanager
def open_npy(path: Path) -> Iterator[OpenedByLibrary]:
    """Map a ``.npy`` file into memory."""
    values = np.load(path, mmap_mode="r", allow_pickle=False, max_header_size=_MOST_HEADER)
    yield OpenedByLibrary("numpy", [ONLY], lambda _: values)


@contextmanager
def open_npz(path: Path) -> Iterator[OpenedByLibrary]:
    """Open a ``.npz`` file with NumPy."""
    with np.load(path, allow_pickle=False, max_header_size=_MOST_HEADER) as members:
        yield OpenedByLibrary("numpy", members.files, members.__getitem__)


@contextmanager
def open_bytes(path: Path) -> Iterator[OpenedByLibrary]:
    """Map the bytes of a file into memory, (n,) uint8."""
    yield OpenedByLibrary("numpy", [ONLY], lambda _: np.memmap(path, np.uint8, "r"))


@contextmanager
def open_image(path: Path, *, exact: bool = False) -> Iterator[OpenedByLibrary]:
    """Open an image with OpenCV.

    Parameters
    ----------
    path : Path
        The image.
    exact : bool, default False
        False: (H, W, 3) uint8 RGB, without EXIF rotation. True: with alpha, 16 bits and EXIF rotation.
    """

    def pixels(_: str) -> Any:
        import cv2

        flags = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
        if exact:
            with path.open("rb") as file:
                is_png = file.read(4)[1:] == b"PNG"
            flags = cv2.IMREAD_UNCHANGED if is_png else cv2.IMREAD_COLOR
        with opening(path, path.name, _OPENCV):
            decoded: Any = cv2.imdecode(np.fromfile(path, np.uint8), flags)
        if decoded.ndim == 2:
            return decoded
        order = [2, 1, 0, 3][: decoded.shape[2]]
        return decoded[..., order]

    yield OpenedByLibrary(_OPENCV, [ONLY], pixels)


@contextmanager
def open_hdf5(path: Path) -> Iterator[OpenedByLibrary]:
    """Open an HDF5 file with h5py and the codecs of hdf5plugin."""
    refuse_here()
    with opening(path, str(path)), h5py.File(path, "r", locking="best-effort") as file:
        yield OpenedByLibrary("h5py", _dataset_paths(file), file.__getitem__, file)


@contextmanager
def open_nifti(path: Path) -> Iterator[OpenedByLibrary]:
    """Open a NIfTI file with nibabel, with its axes reversed so that the slowest comes first."""
    import nibabel

    # By its bytes: nibabel goes by the ending, and files are called `.nii.gz` that are not compressed
    with path.open("rb") as raw, ExitStack() as stack:
        stream: Any = raw
        if raw.read(2) == b"\x1f\x8b":
            stream = stack.enter_context(gzip.GzipFile(path))
        stream.seek(0)
        length = stream.read(4)
        stream.seek(0)
        is_long = 540 in (int.from_bytes(length, "little"), int.from_bytes(length, "big"))
        kind: Any = nibabel.Nifti2Image if is_long else nibabel.Nifti1Image
        proxy = kind.from_file_map({"image": nibabel.FileHolder(fileobj=stream)}).dataobj
        if proxy.offset < kind.header_class.sizeof_hdr:  # nibabel would read the header as voxels
            nbytes = int(np.prod(proxy.shape, dtype=np.int64)) * proxy.dtype.itemsize
            form = (proxy.shape, proxy.dtype, stream.seek(0, os.SEEK_END) - nbytes, proxy.slope, proxy.inter)
            kind_of_proxy: Any = nibabel.arrayproxy.ArrayProxy
            proxy = kind_of_proxy(stream, form)

        def voxels(_: str) -> Any:
            values = np.asanyarray(proxy)
            trailing = tuple(range(3, values.ndim))
            return values.squeeze(trailing).T

        yield OpenedByLibrary("nibabel", [ONLY], voxels)


_open_exactly = partial(open_image, exact=True)
# How files of a format of this package are opened
BY_FORMAT: Mapping[str, Open] = {
    "hdf5": open_hdf5,
    "npy": open_npy,
    "npz": open_npz,
    "png": _open_exactly,
    "jpeg": _open_exactly,
    "raw": open_bytes,
    "nifti": open_nifti,
}


def open_with_library(path: Path) -> AbstractContextManager[OpenedByLibrary]:
    """Open a file of arrays: ``.npy`` and ``.npz`` with NumPy, any other with h5py."""
    name = path.suffix.lower().removeprefix(".")
    return BY_FORMAT[name if name in ("npy", "npz") else "hdf5"](path)


def objects_in(file: Any) -> Iterator[tuple[str, Any]]:
    """Iterate over everything in an open HDF5 file, as path and object.

    Each object appears once, without links to other objects. The object is None if it is damaged; h5py's
    `visititems` would raise an error instead.
    """
    seen = {_address(file)}
    pending = [("", file)]
    while pending:
        prefix, group = pending.pop()
        begin_reading()
        for key in group:
            if not isinstance(group.get(key, getlink=True), h5py.HardLink):
                continue
            path = f"{prefix}{os.fsdecode(key)}"
            try:
                item = group[key]
            except (KeyError, OSError, RuntimeError):
                yield path, None
                continue
            if _address(item) in seen:
                continue
            seen.add(_address(item))
            yield path, item
            if isinstance(item, h5py.Group):
                pending.append((f"{path}/", item))


def _address(item: Any) -> tuple[int, int]:
    info = h5py.h5o.get_info(item.id)
    return info.fileno, info.addr


def _dataset_paths(file: Any) -> list[str]:
    """Return paths of unlinked datasets with values in an open HDF5 file, and of what is damaged."""
    return [
        path
        for path, item in objects_in(file)
        if item is None or (isinstance(item, h5py.Dataset) and item.size)
    ]
