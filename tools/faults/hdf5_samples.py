"""Random sound HDF5 files: element types, layouts, chunk indices, filters, fill values, virtual datasets."""

from __future__ import annotations

import ctypes
import faulthandler
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import h5py
import hdf5plugin
import numpy as np
from numpy.typing import NDArray

NAME = "data"
"""The dataset of a file that is compared; others are its sources."""
ATTEMPTS = 100
EDGES_UNFILTERED = 2
VERSIONS = ("earliest", "v108", "v110", "v112", "v114", "latest")


def library_function(name: str, *types: Any) -> Any:
    """A function of the HDF5 library that h5py does not have."""
    function = getattr(ctypes.CDLL(h5py.h5p.__file__), name)
    function.argtypes = types
    return function


_set_chunk_options = library_function("H5Pset_chunk_opts", ctypes.c_int64, ctypes.c_uint)
_set_fill_value = library_function("H5Pset_fill_value", ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


class Element(NamedTuple):
    """A type of the file, and the dtype that values of it are written from."""

    stored: h5py.h5t.TypeID
    dtype: np.dtype[Any]


def _of(dtype: Any) -> Callable[[], Element]:
    form = np.dtype(dtype)
    return lambda: Element(h5py.h5t.py_create(form, logical=True), form)


def _wide_bool() -> Element:
    stored = h5py.h5t.enum_create(h5py.h5t.STD_I16LE)
    stored.enum_insert(b"FALSE", 0)
    stored.enum_insert(b"TRUE", 1)
    return Element(stored, np.dtype(bool))


def _brain_float() -> Element:
    stored = h5py.h5t.IEEE_F32LE.copy()
    stored.set_fields(15, 7, 8, 0, 7)
    stored.set_precision(16)
    stored.set_size(2)
    return Element(stored, np.dtype("f4"))


def _precise(base: h5py.h5t.TypeID, precision: int, offset: int, dtype: str) -> Callable[[], Element]:
    def make() -> Element:
        stored = base.copy()
        stored.set_precision(precision)
        stored.set_offset(offset)
        return Element(stored, np.dtype(dtype))

    return make


def _text(padding: int, encoding: str) -> Callable[[], Element]:
    def make() -> Element:
        dtype = h5py.string_dtype(encoding, 6)
        stored = h5py.h5t.py_create(dtype, logical=True)
        stored.set_strpad(padding)
        return Element(stored, dtype)

    return make


def _complex() -> Element:
    return Element(h5py.h5t.COMPLEX_IEEE_F32LE, np.dtype("c8"))


_COLOUR = h5py.enum_dtype({"red": 0, "green": 1, "blue": 2}, basetype="i2")
_PACKED = np.dtype([("a", "u1"), ("b", ">f4", (2,)), ("c", "S3"), ("d", "i8")])
_ALIGNED = np.dtype([("a", "u1"), ("b", "f8"), ("c", "i2")], align=True)
_NESTED = np.dtype([("p", _PACKED), ("flag", "?"), ("colour", _COLOUR), ("grid", "u2", (2, 2))])
_WITH_TEXT = np.dtype([("a", "i2"), ("text", h5py.string_dtype())])

_NUMBERS = ("i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16")

ELEMENTS: dict[str, Callable[[], Element]] = {
    **{
        f"{order}{kind}": _of(order + kind) for order in "<>" for kind in ("i2", "u2", "i4", "u4", "i8", "u8")
    },
    **{f"<{kind}": _of(f"<{kind}") for kind in _NUMBERS},
    **{f">{kind}": _of(f">{kind}") for kind in _NUMBERS},
    "i1": _of("i1"),
    "u1": _of("u1"),
    "long double": _of(np.longdouble),
    "bool": _of("?"),
    "wide bool": _wide_bool,
    "enum": _of(_COLOUR),
    "bfloat16": _brain_float,
    "24 bits": _precise(h5py.h5t.STD_I32BE, 24, 0, "i4"),
    "12 bits": _precise(h5py.h5t.STD_U16LE, 12, 3, "u2"),
    "complex": _complex,
    "bits": lambda: Element(h5py.h5t.STD_B16LE, np.dtype("u2")),
    "opaque": _of("V7"),
    "text null": _text(h5py.h5t.STR_NULLTERM, "ascii"),
    "text zeros": _text(h5py.h5t.STR_NULLPAD, "utf-8"),
    "text spaces": _text(h5py.h5t.STR_SPACEPAD, "ascii"),
    "packed": _of(_PACKED),
    "aligned": _of(_ALIGNED),
    "nested": _of(_NESTED),
    "array": _of(("<i2", (3,))),
    "any text": _of(h5py.string_dtype()),
    "ragged": _of(h5py.vlen_dtype(np.int32)),
    "with text": _of(_WITH_TEXT),
}


def some_values(element: Element, shape: tuple[int, ...], numbers: np.random.Generator) -> NDArray[Any]:
    """Random values, half of the time such as compress well."""
    dtype = element.dtype
    high = 100 if numbers.integers(2) else 5
    counts = numbers.integers(0, high, shape)
    if dtype.names is not None:
        values = np.zeros(shape, dtype)
        for name in dtype.names:
            part = dtype[name]
            inner = Element(element.stored, part.base)
            values[name] = some_values(inner, (*shape, *part.shape), numbers)
        return values
    if dtype.subdtype is not None:
        base, inner_shape = dtype.subdtype
        return some_values(Element(element.stored, base), (*shape, *inner_shape), numbers)
    if dtype.hasobject:
        values = np.empty(shape, dtype)
        is_text = h5py.check_string_dtype(dtype) is not None
        for place in np.ndindex(*shape):
            count = int(counts[place])
            values[place] = "ü" * (count % 7) if is_text else np.arange(count % 5, dtype="i4")
        return values
    if dtype.kind in "SV":
        return counts.astype("S6").astype(dtype) if dtype.kind == "S" else _opaque(counts, dtype)
    if dtype.kind == "b":
        return counts % 2 == 0
    if dtype.metadata:
        return (counts % 3).astype(dtype)
    if dtype.kind in "fc":
        scale = 1 if numbers.integers(2) else numbers.normal(size=shape)
        return (counts * scale).astype(dtype)
    return (counts if numbers.integers(2) else numbers.integers(0, 2**62, shape)).astype(dtype)


def _opaque(counts: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    values = np.zeros((*counts.shape, dtype.itemsize), "u1")
    values[..., 0] = counts
    return values.view(dtype)[..., 0]


def _plugin(options: Any) -> Callable[[Any], None]:
    def add(creation: Any) -> None:
        creation.set_filter(options["compression"], h5py.h5z.FLAG_OPTIONAL, options["compression_opts"])

    return add


FILTERS: dict[str, Callable[[Any], None]] = {
    "deflate": lambda creation: creation.set_deflate(4),
    "shuffle": lambda creation: creation.set_shuffle(),
    "fletcher32": lambda creation: creation.set_fletcher32(),
    "lzf": lambda creation: creation.set_filter(h5py.h5z.FILTER_LZF, h5py.h5z.FLAG_OPTIONAL),
    "szip": lambda creation: creation.set_szip(h5py.h5z.SZIP_NN_OPTION_MASK, 8),
    "n-bit": lambda creation: creation.set_filter(h5py.h5z.FILTER_NBIT, 0),
    "scale-offset": lambda creation: creation.set_scaleoffset(h5py.h5z.SO_INT, 0),
    "bzip2": _plugin(hdf5plugin.BZip2()),
    "blosc": _plugin(hdf5plugin.Blosc()),
    "blosc2": _plugin(hdf5plugin.Blosc2()),
    "lz4": _plugin(hdf5plugin.LZ4()),
    "zstd": _plugin(hdf5plugin.Zstd()),
    "bitshuffle": _plugin(hdf5plugin.Bitshuffle()),
    "bare bitshuffle": _plugin(hdf5plugin.Bitshuffle(cname="none")),
    "zfp": _plugin(hdf5plugin.Zfp(reversible=True)),
}
_COMMON_FILTERS = ("deflate", "shuffle", "fletcher32")
_OF_ELEMENTS = ("szip", "n-bit", "scale-offset", "zfp")
"""Filters that must come first: after others, they read beyond what those return."""
LAYOUTS = ("scalar", "compact", "contiguous", "external", "chunked", "chunked", "chunked", "virtual")


class Sample(NamedTuple):
    """What a file holds."""

    path: Path
    layout: str
    element: str


def make_sample(folder: Path, rng: Random) -> Sample:
    """Write a random file; what the library cannot write, or dies of, is drawn again."""
    for attempt in range(ATTEMPTS):
        sample = Sample(folder / f"{attempt}.h5", rng.choice(LAYOUTS), rng.choice(list(ELEMENTS)))
        seed = rng.randrange(2**32)
        process = os.fork()
        if process == 0:
            try:
                _write_file(sample, seed)
            except (OSError, RuntimeError, ValueError, TypeError):
                os._exit(1)
            os._exit(0)
        if os.waitpid(process, 0)[1] == 0:
            return sample
    msg = f"none of {ATTEMPTS} files can be written"
    raise RuntimeError(msg)


def _write_file(sample: Sample, seed: int) -> None:
    faulthandler.disable()
    rng, numbers = Random(seed), np.random.default_rng(seed)
    low, high = sorted(rng.choices(range(len(VERSIONS)), k=2))
    versions = VERSIONS[low], VERSIONS[max(1, high)]
    element = ELEMENTS[sample.element]()
    with h5py.File(sample.path, "w", libver=versions, userblock_size=rng.choice((0, 0, 512))) as file:
        if sample.layout == "virtual":
            _make_virtual(file, element, rng, numbers)
        else:
            _make_dataset(file, NAME, sample.layout, element, rng, numbers)


def _make_dataset(
    file: h5py.File, name: str, layout: str, element: Element, rng: Random, numbers: np.random.Generator
) -> h5py.Dataset:
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    shape = _some_shape(rng) if layout != "scalar" else ()
    limits = shape
    if layout == "compact":
        creation.set_layout(h5py.h5d.COMPACT)
    elif layout == "external" and element.dtype.hasobject:
        msg = "references of other files"
        raise ValueError(msg)
    elif layout == "external":
        size = int(np.prod(shape)) * element.stored.get_size()
        creation.set_external(f"{name}.first".encode(), rng.choice((0, 16)), size // 2)
        creation.set_external(f"{name}.second".encode(), 0, size - size // 2)
        for part in ("first", "second"):
            Path(f"{name}.{part}").write_bytes(numbers.bytes(rng.choice((0, size // 4, size))))
    elif layout == "chunked":
        if rng.random() < 0.5:
            limits = tuple(rng.choice((length, length + 7, h5py.h5s.UNLIMITED)) for length in shape)
        _set_chunks(creation, shape, limits, rng)
        if rng.random() < 0.7:
            _set_filters(creation, rng)
    _set_fill(creation, element, rng, numbers)
    space = h5py.h5s.create_simple(shape, limits) if shape else h5py.h5s.create(h5py.h5s.SCALAR)
    created = h5py.h5d.create(file.id, name.encode(), element.stored, space, creation)
    dataset = h5py.Dataset(created)
    _write(dataset, element, rng, numbers)
    if layout == "chunked":
        _change(dataset, element, limits, rng, numbers)
    return dataset


def _some_shape(rng: Random) -> tuple[int, ...]:
    if rng.random() < 0.03:
        return rng.choice(((0,), (4, 0), (3000,)))
    axes = rng.randrange(1, 4)
    longest = {1: 300, 2: 40, 3: 12}[axes]
    return tuple(rng.randrange(1, longest) for _ in range(axes))


def _set_chunks(creation: Any, shape: tuple[int, ...], limits: tuple[int, ...], rng: Random) -> None:
    most_chunks = rng.choice((1, 3, 8, 40))
    chunk = []
    for length, limit in zip(shape, limits, strict=True):
        longest = length + 5 if limit == h5py.h5s.UNLIMITED else limit
        chunk.append(min(max(1, longest), rng.randrange(1 + length // most_chunks, length + 6)))
    creation.set_chunk(tuple(chunk))
    if rng.random() < 0.4 and _set_chunk_options(creation.id, EDGES_UNFILTERED) < 0:
        msg = "the library does not set options of chunks"
        raise RuntimeError(msg)


def _set_filters(creation: Any, rng: Random) -> None:
    count = rng.choice((1, 1, 2, 2, 3))
    names = _COMMON_FILTERS if rng.random() < 0.4 else list(FILTERS)
    chosen = rng.sample(names, count)
    of_elements = [name for name in chosen if name in _OF_ELEMENTS]
    of_bytes = [name for name in chosen if name not in _OF_ELEMENTS]
    for name in (*of_elements[:1], *of_bytes):
        FILTERS[name](creation)


def _set_fill(creation: Any, element: Element, rng: Random, numbers: np.random.Generator) -> None:
    if element.dtype.hasobject:  # HDF5 dies of references that are not defined
        return
    kind = rng.choice(("default", "default", "chosen", "chosen", "undefined"))
    if kind == "undefined":
        _set_fill_value(creation.id, element.stored.id, None)
    elif kind == "chosen":
        creation.set_fill_value(some_values(element, (1,), numbers)[0:1].reshape(()))
    times = (h5py.h5d.FILL_TIME_IFSET, h5py.h5d.FILL_TIME_ALLOC, h5py.h5d.FILL_TIME_NEVER)
    creation.set_fill_time(rng.choice(times))
    if rng.random() < 0.6:
        early = h5py.h5d.ALLOC_TIME_EARLY
        when = (h5py.h5d.ALLOC_TIME_LATE, early, early, h5py.h5d.ALLOC_TIME_INCR)
        creation.set_alloc_time(rng.choice(when))


def _write(dataset: h5py.Dataset, element: Element, rng: Random, numbers: np.random.Generator) -> None:
    """Write all values, some rows, some of all axes, or nothing."""
    values = some_values(element, dataset.shape, numbers)
    part = rng.choice(("all", "all", "all", "rows", "box", "nothing"))
    if part == "all" or (not dataset.shape and part != "nothing"):
        dataset[...] = values
    elif part != "nothing":
        axes = dataset.shape[:1] if part == "rows" else dataset.shape
        box = []
        for length in axes:
            start, stop = sorted(rng.randrange(length + 1) for _ in range(2))
            box.append(slice(start, stop))
        dataset[*box] = values[*box]


def _change(
    dataset: h5py.Dataset,
    element: Element,
    limits: tuple[int, ...],
    rng: Random,
    numbers: np.random.Generator,
) -> None:
    """Grow or shrink a dataset, or replace a chunk by one that no filter was applied to."""
    if rng.random() < 0.3:
        lengths = []
        for length, limit in zip(dataset.shape, limits, strict=True):
            longest = length + 9 if limit == h5py.h5s.UNLIMITED else limit
            lengths.append(rng.randrange(1, max(1, longest) + 1))
        dataset.id.set_extent(tuple(lengths))
        if rng.random() < 0.7:
            dataset[...] = some_values(element, dataset.shape, numbers)
    if rng.random() < 0.2 and element.dtype.kind in "iufc" and not element.dtype.metadata:
        chunk = some_values(element, dataset.chunks, numbers)
        every = (1 << dataset.id.get_create_plist().get_nfilters()) - 1
        if chunk.dtype.itemsize == element.stored.get_size():
            dataset.id.write_direct_chunk((0,) * dataset.ndim, chunk.tobytes(), every)


def _make_virtual(file: h5py.File, element: Element, rng: Random, numbers: np.random.Generator) -> None:
    """Map datasets of this file, or of one beside it, one after the other, perhaps with gaps."""
    folder = Path(file.filename).parent
    beside = h5py.File(folder / "beside.h5", "w", libver="latest")
    mappings = []
    rows = 0
    width = rng.randrange(1, 20)
    with beside:
        for number in range(rng.randrange(1, 4)):
            holder = rng.choice((file, beside))
            while True:
                name = f"source{number}.{rng.randrange(10**9)}"
                layout = rng.choice(("contiguous", "chunked"))
                source = _make_dataset(holder, name, layout, element, rng, numbers)
                if source.size:
                    break
            start = rng.choice((0, 0, 2))
            mappings.append((holder, source.name, source.shape, rows + start))
            rows += start + source.size
        rows += rng.choice((0, 0, 3))
        creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        creation.set_layout(h5py.h5d.VIRTUAL)
        _set_fill(creation, element, rng, numbers)
        for holder, name, shape, first in mappings:
            source_space = h5py.h5s.create_simple(shape)
            space = h5py.h5s.create_simple((rows, width))
            space.select_hyperslab((first, 0), (source_space.get_simple_extent_npoints(), 1))
            own = holder is file
            creation.set_virtual(space, b"." if own else b"beside.h5", name.encode(), source_space)
        space = h5py.h5s.create_simple((rows, width))
        h5py.h5d.create(file.id, NAME.encode(), element.stored, space, creation)
