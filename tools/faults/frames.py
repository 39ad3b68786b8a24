"""Damaged frames, indexes, ranges, ranks: the compiled kernel refuses what Python refuses.

Each trial damages one chunk of a small array, its entry in the index, or what is asked for, and reads by the
kernel and by Python. Where the kernel reads, it must give the bytes that Python gives. What stands before and
behind its buffers must stay. Half of the damaged frames get a checksum that fits, so that blosc sees them.

    python tools/faults/frames.py --count 5000000
    python tools/faults/frames.py --count 100000 --sanitize      kernel.c with -fsanitize=address,undefined
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from trials import make_parser

from unistore.data.kinds.sparse_points import points_at_ranks
from unistore.system import kernel as module
from unistore.system.kernel import load
from unistore.zarr3.codecs import (
    CRC_BYTES,
    SHUFFLES,
    Blosc,
    FrameError,
    crc32c,
    decoder,
    encoder,
    max_encoded_size,
)
from unistore.zarr3.compiled import compiled_functions

CHUNKS = 4
STEPS = 64  # rows of a chunk
MARGIN = 64
FILL = 0xA5
UNTOUCHED = bytes([FILL]) * MARGIN
TRIALS_OF_RANGES = 100  # with the same ranges and random numbers
INTERESTING = (0, 1, 2, 15, 16, 19, 20, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, -1, -2, -(2**63))


class Memory:
    """Bytes between margins that nobody may write to."""

    def __init__(self, nbytes: int) -> None:
        self._all = np.full(nbytes + 2 * MARGIN, FILL, np.uint8)
        self.inside = self._all[MARGIN : MARGIN + nbytes]
        self.address = self.inside.ctypes.data

    def check(self) -> None:
        assert self._all[:MARGIN].tobytes() == UNTOUCHED, "written before a buffer"
        assert self._all[-MARGIN:].tobytes() == UNTOUCHED, "written behind a buffer"


class Array:
    """An array of a few chunks in a file: its frames, and memory to read into."""

    def __init__(self, rng: np.random.Generator, folder: Path, number: int) -> None:
        dtype = np.dtype(["u1", "i2", "f4", "f8"][number % 4])
        columns = int(rng.integers(1, 40))
        shuffle = SHUFFLES[int(rng.integers(3))]
        self.options = Blosc(
            typesize=dtype.itemsize,
            cname=("lz4", "zstd")[number // 4 % 2],
            clevel=int(rng.integers(0, 10)),
            shuffle=shuffle,
            blocksize=int(rng.choice([0, 0, 256, 2048])),
        )
        self.row_bytes = columns * dtype.itemsize
        self.chunk_bytes = STEPS * self.row_bytes
        encode = encoder(self.options)
        values = rng.integers(0, int(rng.choice([2, 9, 250])), (CHUNKS, STEPS, columns)).astype(dtype)
        self.frames = [b"".join(encode(chunk)) for chunk in values]
        self.values = values.view(np.uint8).reshape(CHUNKS * STEPS, self.row_bytes)
        self.decode = decoder(self.options, self.chunk_bytes)
        self.file = os.open(folder / f"{number}", os.O_RDWR | os.O_CREAT)
        self.slot = 2 * max_encoded_size(self.chunk_bytes)  # a damaged frame may be longer
        self.raw = Memory(max_encoded_size(self.chunk_bytes))
        self.chunk = Memory(self.chunk_bytes)
        self.out = Memory(3 * CHUNKS * self.chunk_bytes)
        self.memory = self.raw.address, len(self.raw.inside), self.chunk.address
        for position in range(CHUNKS):
            self.store(position, self.frames[position])

    def store(self, position: int, frame: bytes) -> None:
        os.pwrite(self.file, frame[: self.slot], position * self.slot)

    def entries(self) -> Any:
        return np.array([[n * self.slot, len(frame)] for n, frame in enumerate(self.frames)], np.int64)


def damaged(frame: bytes, rng: np.random.Generator) -> bytes:
    """Return a frame with a change, with its checksum set right in half of the cases."""
    content = bytearray(frame[:-CRC_BYTES])
    way = int(rng.integers(5))
    if way == 0:
        content[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
    elif way == 1:  # the header
        content[int(rng.integers(16))] = int(rng.integers(256))
    elif way == 2:  # offsets of blocks, sizes of streams
        at = int(rng.integers(4, max(5, min(len(content), 64) - 4)))
        number = INTERESTING[int(rng.integers(len(INTERESTING)))] % 2**32
        content[at : at + 4] = number.to_bytes(4, "little")
    elif way == 3:
        del content[int(rng.integers(len(content))) :]
    else:
        start = int(rng.integers(len(content)))
        noise = rng.integers(0, 256, int(rng.integers(1, 32)), np.uint8).tobytes()
        content[start : start + len(noise)] = noise
    if way > 2 and len(content) >= 16 and rng.random() < 0.5:
        content[12:16] = len(content).to_bytes(4, "little")
    if rng.random() < 0.5:
        return bytes(content) + frame[-CRC_BYTES:]
    return bytes(content) + crc32c(bytes(content)).to_bytes(CRC_BYTES, "little")


def expected(array: Array, position: int, frame: bytes, ranges: Any) -> Any:
    """Return the output that Python gives with one damaged frame, None where it refuses that."""
    values = array.values.copy()
    if any(start < (position + 1) * STEPS and stop > position * STEPS for start, stop, _ in ranges.tolist()):
        try:
            chunk = np.frombuffer(array.decode(frame, None), np.uint8, array.chunk_bytes)
        except FrameError:
            return None
        values[position * STEPS : (position + 1) * STEPS] = chunk.reshape(STEPS, -1)
    out = np.full((len(array.out.inside) // array.row_bytes, array.row_bytes), FILL, np.uint8)
    for start, stop, place in ranges.tolist():
        out[place : place + stop - start] = values[start:stop]
    return out


def drawn_ranges(rng: np.random.Generator) -> Any:
    """Return ranges by their first row, one behind the other in the output in another order."""
    count = int(rng.integers(1, 4))
    starts = np.sort(rng.integers(0, CHUNKS * STEPS, count))
    stops = np.minimum(starts + rng.integers(1, 3 * STEPS // 2, count), CHUNKS * STEPS)
    order = rng.permutation(count)
    places = np.empty(count, np.int64)
    places[order] = np.cumsum((stops - starts)[order]) - (stops - starts)[order]
    return np.stack([starts, stops, places], axis=1)


def ranges_trial(library: Any, array: Array, ranges: Any, rng: np.random.Generator) -> str:
    """Read a damaged chunk, or by damaged tables. Returns what came of it."""
    entries = array.entries()
    shards = np.array([[0, CHUNKS, array.file, entries.ctypes.data, entries.size]], np.int64)
    position = int(ranges[0, 0]) // STEPS
    tables_are_damaged = rng.random() < 0.2
    if tables_are_damaged:
        ranges = ranges.copy()
        table = (entries, ranges, shards[:, [0, 1]])[int(rng.integers(3))]
        number = INTERESTING[int(rng.integers(len(INTERESTING)))]
        table.reshape(-1)[int(rng.integers(table.size))] = number
        shards[:, :2] = table if table.shape == (1, 2) else shards[:, :2]
        shards[0, 4] = entries.size - 2 * int(rng.integers(2))
    else:
        frame = damaged(array.frames[position], rng)
        array.store(position, frame)
        entries[position, 1] = len(frame)
    array.out.inside[:] = FILL
    rows = len(array.out.inside) // array.row_bytes
    functions = compiled_functions()
    assert functions is not None
    failed = library.unistore_read_ranges(
        *(ranges.ctypes.data, len(ranges), shards.ctypes.data, len(shards), STEPS, array.row_bytes),
        *(array.out.address, rows, *array.memory, *functions),
    )
    for memory in (array.raw, array.chunk, array.out):
        memory.check()
    if tables_are_damaged:
        return "tables refused" if failed else "tables read"
    array.store(position, array.frames[position])
    values = expected(array, position, frame, ranges)
    if failed:
        return "refused" if values is None else "refused by the kernel alone"
    assert values is not None, "read what Python refuses"
    assert array.out.inside.tobytes() == values.tobytes(), "read other bytes than Python"
    return "read"


def boxes_trial(library: Any, array: Array, rng: np.random.Generator) -> str:
    """Read two boxes of one damaged chunk, seen as bytes on three axes, or by damaged tables."""
    shape = np.array([8, STEPS // 8, array.row_bytes])
    extents = shape + rng.integers(0, 3, 3)
    shapes = np.array([shape, extents * (2, 1, 1)], np.int64)
    position = int(rng.integers(CHUNKS))
    counts = rng.integers(1, shape + 1, (2, 3)) if rng.random() < 0.8 else np.array([shape, shape])
    starts = rng.integers(0, shape - counts + 1)
    places = rng.integers(0, extents - counts + 1)
    places[1, 0] += extents[0]  # boxes never overlap in an output
    frame = damaged(array.frames[position], rng) if rng.random() < 0.8 else array.frames[position]
    boxes = np.empty((2, 12), np.int64)
    boxes[:, :3] = array.file, position * array.slot, len(frame)
    boxes[:, 3:] = np.stack([starts, places, counts], axis=2).reshape(2, 9)
    tables_are_damaged = rng.random() < 0.2
    if tables_are_damaged:
        table = boxes if rng.random() < 0.8 else shapes[:1]
        number = INTERESTING[int(rng.integers(len(INTERESTING)))]
        table.reshape(-1)[int(rng.integers(1, table.size))] = number
    array.store(position, frame)
    array.out.inside[:] = FILL
    functions = compiled_functions()
    assert functions is not None
    failed = library.unistore_read_boxes(
        *(boxes.ctypes.data, 2, 3, shapes.ctypes.data, 1, array.out.address, *array.memory, *functions)
    )
    array.store(position, array.frames[position])
    for memory in (array.raw, array.chunk, array.out):
        memory.check()
    if tables_are_damaged:
        return "tables refused" if failed else "tables read"
    try:
        decoded = np.frombuffer(array.decode(frame, None), np.uint8, array.chunk_bytes).reshape(shape)
    except FrameError:
        assert failed, "read what Python refuses"
        return "refused"
    if failed:
        return "refused by the kernel alone"
    out = np.full(shapes[1], FILL, np.uint8)
    for start, place, count in zip(starts, places, counts, strict=True):
        source = tuple(map(slice, start, start + count))
        out[tuple(map(slice, place, place + count))] = decoded[source]
    assert array.out.inside[: out.size].tobytes() == out.tobytes(), "read other bytes than Python"
    return "read"


def points_trial(library: Any, rng: np.random.Generator) -> str:
    """Find points of a random mask, with ranks that may be wrong."""
    mask = rng.random(rng.integers(1, 12, 3)) < rng.choice([0.02, 0.5, 1.0])
    bits = np.packbits(mask, axis=-1, bitorder="little")
    total = int(mask.sum())
    ranks = np.flatnonzero(rng.random(total) < 0.5)
    if len(ranks) and (is_wrong := rng.random() < 0.5):
        ranks[int(rng.integers(len(ranks)))] = INTERESTING[int(rng.integers(len(INTERESTING)))]
    out = Memory(12 * len(ranks))
    count = library.unistore_find_points(
        bits.ctypes.data, *bits.shape, ranks.ctypes.data, len(ranks), out.address
    )
    out.check()
    assert 0 <= count <= len(ranks)
    points = out.inside.view(np.int32).reshape(-1, 3)[:count]
    values = np.empty((count, 3), np.int32)
    points_at_ranks(bits, ranks[:count], values)
    assert np.array_equal(points, values), "other points than Python"
    if len(ranks) and not is_wrong:
        assert count == len(ranks), "points refused"
    return "points found" if count == len(ranks) else "ranks refused"


def sanitized(folder: str, arguments: list[str]) -> int:
    """Run this program with a kernel whose every access is checked."""
    source = Path(module.__file__).with_name("kernel.c")
    library = Path(folder, "kernel.so")
    flags = ["-std=gnu11", "-O1", "-g", "-shared", "-fPIC", "-fsanitize=address,undefined"]
    subprocess.run(["cc", *flags, "-fno-sanitize-recover=all", "-o", library, source], check=True)
    found = subprocess.run(["cc", "-print-file-name=libasan.so"], check=True, capture_output=True, text=True)
    environment = os.environ | {"LD_PRELOAD": found.stdout.strip(), "ASAN_OPTIONS": "detect_leaks=0"}
    command = [sys.executable, __file__, *arguments, "--library", str(library)]
    return subprocess.run(command, env=environment, check=False).returncode


def trials(options: argparse.Namespace, folder: Path) -> int:
    """Run them all, and print how many ended how."""
    library = load(options.library)
    if library is None or compiled_functions() is None:
        print(f"{options.library}: no kernel, or libraries without its functions")
        return 77
    endings: dict[str, int] = {}
    began = time.monotonic()
    arrays: list[Array] = []
    for number in range(options.count):
        if number % TRIALS_OF_RANGES == 0:
            rng = np.random.default_rng((options.seed, number))
            ranges = drawn_ranges(rng)
        if number % 20_000 == 0:
            for array in arrays:
                os.close(array.file)
            arrays = [Array(np.random.default_rng((options.seed, number, n)), folder, n) for n in range(8)]
            print(f"{number} trials, {time.monotonic() - began:.0f} s", flush=True)
        try:
            if number % 10 == 0:
                ending = points_trial(library, rng)
            elif number % 3 == 0:
                ending = boxes_trial(library, arrays[number % 8], rng)
            else:
                ending = ranges_trial(library, arrays[number % 8], ranges, rng)
        except AssertionError as error:
            print(f"trial {number} of seed {options.seed}: {error}")
            return 1
        endings[ending] = endings.get(ending, 0) + 1
    counts = ", ".join(f"{count} {ending}" for ending, count in sorted(endings.items()))
    print(f"{options.count} trials, 0 failed: {counts}")
    return 0


def main() -> int:
    """Run the trials."""
    parser = make_parser(__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--sanitize", action="store_true", help="compile the kernel with checks of its memory"
    )
    parser.add_argument("--library", type=Path, default=module.PATH, help="kernel to try")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.sanitize:
            arguments = ["--count", str(options.count), "--seed", str(options.seed)]
            return sanitized(folder, arguments)
        return trials(options, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
