"""Read what formats of volumes share: planes that lie one after the other, and where voxels lie."""

from __future__ import annotations

import sys
import zlib
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import SEEK_SET, FileIO
from math import prod
from typing import IO, Any, Self

import numpy as np
from isal import igzip, isal_zlib

from unistore.converters.array import Array
from unistore.converters.claims import Claim, sure
from unistore.converters.common.faults import COPY_AGAIN, WRITE_AGAIN
from unistore.converters.files.paths import real_path
from unistore.converters.opened import Format, Metadata, OpenFile, Origin, SourceFile
from unistore.system.types import AnyArray, Dtype, Float64s, JsonObject, Shape

_ISAL_ERROR: type[Exception] = isal_zlib.IsalError  # type: ignore[assignment]  # its stub says an instance
_DAMAGED = (igzip.BadGzipFile, _ISAL_ERROR, zlib.error)
MOST_DEFLATE = 1032  # bytes that one of deflate decodes to at most (RFC 1951)
_WHOLE = ("u1", "i1", "u2", "i2", "u4", "i4", "i8")  # dtypes of whole numbers, the smallest first
_EXACT = 1 << 53  # from here on float64, in which other libraries compute, does not count every whole number


class VolumeFormat(Format):
    """A format of volumes, recognised by how files begin."""

    offered = False

    @abstractmethod
    def begins(self, file: SourceFile) -> bool:
        """Return whether a file begins as those of the format do."""

    def recognise(self, file: SourceFile) -> Claim:
        if self.begins(file):
            return sure(f"begins as a {self.name} file does")
        raise file.wrong_beginning(f"as a {self.name} file does")


@dataclass(frozen=True)
class Scaling:
    """What a file says that its numbers mean: ``number * slope + intercept``."""

    slope: float
    intercept: float
    # Of the results: whole numbers stay so where slope and intercept are, all others are float64.
    dtype: Dtype

    @classmethod
    def of(cls, slope: float, intercept: float, lowest: int, highest: int) -> Self:
        """Return the scaling of whole numbers in a range."""
        ends = [lowest * slope + intercept, highest * slope + intercept]
        is_whole = float(slope).is_integer() and float(intercept).is_integer()
        if not is_whole or max(map(abs, ends)) >= _EXACT:
            return cls(slope, intercept, np.dtype(np.float64))
        limits = [(kind, np.iinfo(kind)) for kind in _WHOLE]
        fitting = [kind for kind, limit in limits if limit.min <= min(ends) and max(ends) <= limit.max]
        return cls(slope, intercept, np.dtype(fitting[0]))

    def apply(self, numbers: AnyArray) -> AnyArray:
        values: AnyArray = numbers.astype(self.dtype)
        slope = self.slope
        intercept = self.intercept
        if self.dtype.kind != "f":  # results fit, so that what overflows on the way comes back
            slope, intercept = np.array([slope, intercept]).astype(np.int64).astype(self.dtype)
        if slope != 1:
            values *= slope
        values += intercept
        return values


@dataclass(frozen=True, eq=False)
class Planes:
    """Values of a volume, whose rows of axis 0 are read when they are sliced."""

    # `file` and `stream`: the file, and its decompressed bytes.
    file: SourceFile
    stream: IO[bytes]
    start: int  # where the values begin in these
    # `shape` and `stored`: shape, slowest axis first, and dtype of the numbers in the file.
    shape: Shape
    stored: Dtype
    scaling: Scaling | None = None  # what they mean; None: themselves
    is_all: bool = False  # whether the stream has nothing else, so that what follows is damage

    def __post_init__(self) -> None:
        if min(self.shape, default=0) < 0 or prod(self.shape) * self.stored.itemsize > sys.maxsize:
            message = f"its header states the shape {self.shape}, which no file has"
            raise self.file.problem(message, WRITE_AGAIN, "damaged")

    @property
    def dtype(self) -> Dtype:
        return self.stored if self.scaling is None else self.scaling.dtype

    @property
    def nbytes(self) -> int:
        return prod(map(int, self.shape)) * self.stored.itemsize

    def check_size(self, size: int) -> None:
        """Refuse a file that has fewer than `size` bytes for its values."""
        if size < self.nbytes:
            raise self.file.problem(
                f"has {max(0, size):,} bytes of voxels, but its header states {self.nbytes:,}",
                COPY_AGAIN,
                "truncated",
            )

    def __getitem__(self, rows: slice) -> AnyArray:
        return self.read_into(rows.start, rows.stop, None)

    def read_into(self, lo: int, hi: int, out: AnyArray | None) -> AnyArray:
        """Read planes ``lo:hi``, into `out` if they stand so in the file."""
        numbers = out
        if numbers is None or numbers.dtype != self.stored or self.scaling is not None:
            numbers = np.empty((hi - lo, *self.shape[1:]), self.stored)
        plane = prod(self.shape[1:]) * self.stored.itemsize
        with reading(self.file):
            self.stream.seek(self.start + lo * plane)
            self._fill(memoryview(numbers.reshape(-1).view(np.uint8).data))
            # The checksum at the end of a compressed stream is read with what follows the last voxel
            if hi == self.shape[0] and self.stream.read(1) and self.is_all:
                message = f"has more compressed voxels than the {self.nbytes:,} bytes that its header states"
                raise self.file.problem(message, COPY_AGAIN, "damaged")
        return numbers if self.scaling is None else self.scaling.apply(numbers)

    def _fill(self, target: memoryview) -> None:
        filled = 0
        while filled < len(target):
            count = self.stream.readinto(target[filled:])  # type: ignore[attr-defined]  # of all that we open
            if not count:
                raise EOFError
            filled += count


@contextmanager
def open_raw(
    file: SourceFile,
    voxels: SourceFile,
    form: tuple[Shape, Dtype],
    metadata: Metadata,
    notes: Mapping[str, str],
    *,
    start: int,
    skip: int,
    gzip: bool = False,
) -> Iterator[OpenFile]:
    """Open voxels in the file of a header, or beside it, `skip` bytes behind `start`.

    They are decompressed if they are gzip from there on. A negative `skip`: they are the last bytes.
    """
    shape, dtype = form
    if skip < 0:
        skip = max(0, voxels.size - start - prod(shape) * dtype.itemsize)
    with stream_of(voxels, start, gzip=gzip) as stream:
        planes = Planes(file, stream, skip, shape, dtype)
        if gzip:
            voxels.check_packed(skip + planes.nbytes, voxels.size, MOST_DEFLATE)
        else:
            planes.check_size(voxels.size - start - skip)
        yield OpenFile(
            {"image": Array(planes)},
            metadata,
            () if voxels is file else (voxels,),
            forward_only=gzip,
            notes=notes,
            shows=detached(file, voxels, start + skip, None if gzip else planes),
        )


def detached(
    file: SourceFile, voxels: SourceFile, start: int, planes: Planes | None
) -> Mapping[str, Sequence[Origin]]:
    """Return where voxels lie, see `OpenFile.shows`, if it is another file than the header's.

    They begin at a byte. None for `planes`: they are compressed, up to the end of the file.
    """
    if voxels is file:
        return {}
    size = voxels.size - start if planes is None else prod(planes.shape) * planes.stored.itemsize
    return {"image": (Origin(str(real_path(voxels.path)), "", start, start + size, size),)}


@contextmanager
def reading(file: SourceFile) -> Iterator[None]:
    """Turn what is raised of a damaged stream into a problem of the file."""
    try:
        yield
    except EOFError as error:
        message = "is truncated: it ends before its last voxel"
        raise file.problem(message, COPY_AGAIN, "truncated") from error
    except _DAMAGED as error:
        raise file.problem(f"is damaged: {error}", COPY_AGAIN, "damaged") from error


class _Tail(FileIO):
    """The bytes of a file from `start` on, as a file that begins there."""

    def __init__(self, file: SourceFile, start: int) -> None:
        super().__init__(file.path)
        self._start = start
        self.seek(0)

    def seek(self, offset: int, whence: int = SEEK_SET, /) -> int:
        """Count from `start`."""
        if whence == SEEK_SET:
            offset += self._start
        return super().seek(offset, whence) - self._start

    def tell(self) -> int:
        """Count from `start`."""
        return super().tell() - self._start


@contextmanager
def stream_of(file: SourceFile, start: int = 0, *, gzip: bool) -> Iterator[IO[bytes]]:
    """Open the bytes of a file from `start` on, decompressed if they are gzip."""
    with _Tail(file, start) as tail:
        raw: Any = tail
        if not gzip:
            yield raw
            return
        unpacked: Any = igzip.IGzipFile  # which is not typed
        with unpacked(fileobj=raw, mode="rb") as stream:
            yield stream


def is_compressed(file: SourceFile) -> bool:
    """Return whether a file is gzip."""
    return file.head(2) == b"\x1f\x8b"


# What files call lengths, in small letters; ImageJ writes the Greek letter by its number.
MILLIMETRES = {
    **dict.fromkeys(("m", "meter"), 1000.0),
    "cm": 10.0,
    **dict.fromkeys(("mm", "millimeter"), 1.0),
    **dict.fromkeys(("um", "µm", "μm", "micron", "microns", r"\u00b5m"), 1e-3),
    "nm": 1e-6,
    **dict.fromkeys(("in", "inch"), 25.4),
}

RAS_TO_LPS = np.diag([-1.0, -1.0, 1.0])  # turns right, front, head into left, back, head, and back


def stated(steps: Float64s, origin: Float64s) -> JsonObject:
    """Return spacing, origin and direction of a volume.

    Parameters
    ----------
    steps : float64 array of shape (3, n)
        Column i is the step along axis i of the array, as x, y, z of LPS in mm.
    origin : float64 array of shape (3,)
        First voxel, as x, y, z of LPS in mm.
    """
    spacing = np.linalg.norm(steps, axis=0)
    metadata: JsonObject = {"spacing": spacing.tolist(), "origin": _plain(origin[::-1])}
    if (spacing > 0).all():
        metadata["direction"] = _plain((steps / spacing)[::-1])
    return metadata


def steps_of(metadata: Metadata) -> Float64s:
    """Return the steps of `stated`. Where no direction is known, the axes are those of the world."""
    spacing = np.array(metadata.get("spacing") or (1.0, 1.0, 1.0))
    direction = metadata.get("direction")
    turned = np.eye(3) if direction is None else np.array(direction).reshape(3, 3)
    steps: Float64s = (turned * spacing)[::-1]
    return steps


def origin_of(metadata: Metadata) -> Float64s:
    """Return the first voxel, x, y, z of LPS."""
    return np.array(metadata.get("origin") or (0.0, 0.0, 0.0))[::-1]


def _plain(numbers: Float64s) -> list[float]:
    """Return numbers in one row, with no negative zero among them."""
    flat: list[float] = (numbers + 0.0).ravel().tolist()
    return flat
