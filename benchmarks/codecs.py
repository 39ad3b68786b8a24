"""What codecs save and cost on columns of real files: the table that ``--codec auto`` decides by.

    python benchmarks/codecs.py [--rounds 9] [--only PATTERN …] [--samples FOLDER]

Every column of the samples in ``tests/data`` (spikes, CT, clouds, robots) is encoded with every codec that
``auto`` may choose, chunk by chunk as it is stored. A line has the stored bytes and the nanoseconds of
processor for each decoded byte: those of reading and checking (``pread``, crc32c), and those of decoding.
Codecs take turns. The median of each codec over all columns is printed last.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

import unistore
from unistore.conversion.codec_choice import shuffles
from unistore.zarr3.codecs import crc32c, decoder, encoder
from unistore.zarr3.writer import chunk_slices, compressor_of, pad_chunk

SAMPLES = Path(__file__).resolve().parents[1] / "tests" / "data" / "samples"
SOURCES = {
    "spike": ("spike", {}),
    "ct/*.nii.gz": ("ct", {"window": ("bone",)}),
    "pointcloud/*thin-?.h5": ("point_cloud", {}),
    "trajectory/*Lift*": ("trajectory", {}),
}
MOST_BYTES = 8 << 20
"""Bytes of a column that are encoded, at most."""
LEAST_BYTES = 16 << 10


def columns(samples: Path, folder: Path) -> Iterator[tuple[str, NDArray[Any], tuple[int, ...]]]:
    """Name, values and chunk shape of each column, from stores that are made here."""
    for number, (pattern, (family, options)) in enumerate(SOURCES.items()):
        store = folder / f"{number}.zarr"
        unistore.convert(sorted(samples.glob(pattern)), store, family, codec="none", **options)
        for described in unistore.inspect(store).to_json()["arrays"]:
            path = described["path"]
            array = zarr.open_array(store / path, mode="r")
            if array.nbytes >= LEAST_BYTES and not path.startswith("sources/"):
                yield f"{family} {path}", array[...], array.chunks


def candidates(dtype: np.dtype[Any], chunk: tuple[int, ...]) -> list[str]:
    """Every codec that ``auto`` may choose."""
    tried = shuffles(dtype, chunk)
    return ["none", *(f"{name} {shuffle}" for name in ("lz4", "zstd") for shuffle in tried)]


class Encoded:
    """The chunks of a column in one codec, one behind the other in a file."""

    def __init__(self, codec: str, chunks: list[NDArray[Any]]) -> None:
        compressor = compressor_of(codec, chunks[0].dtype, chunks[0].shape)
        encode = encoder(compressor)
        frames = [b"".join(map(bytes, encode(chunk))) for chunk in chunks]
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  open as long as this object
        self._file.write(b"".join(frames))
        self._file.flush()
        self._sizes = [len(frame) for frame in frames]
        self._out = np.empty_like(chunks[0])
        self._decode = None if codec == "none" else decoder(compressor, chunks[0].nbytes)
        self.stored = sum(self._sizes) / sum(chunk.nbytes for chunk in chunks)
        self._bytes = sum(chunk.nbytes for chunk in chunks)

    def measure(self) -> tuple[float, float]:
        """Nanoseconds for a decoded byte: reading and checking, and decoding (which checks once more)."""
        began = time.process_time_ns()
        offset = 0
        frames = []
        for size in self._sizes:
            frame = os.pread(self._file.fileno(), size, offset)
            crc32c(frame)
            frames.append(frame)
            offset += size
        read = time.process_time_ns() - began
        decoded = 0
        if self._decode is not None:
            began = time.process_time_ns()
            for frame in frames:
                self._decode(frame, self._out)
            decoded = time.process_time_ns() - began
            began = time.process_time_ns()
            for frame in frames:
                crc32c(frame)
            decoded -= time.process_time_ns() - began
        return read / self._bytes, decoded / self._bytes


def main() -> None:
    """Measure every column, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="columns: '*image'")
    parser.add_argument("--samples", type=Path, default=SAMPLES)
    given = parser.parse_args()
    everywhere: dict[str, list[float]] = defaultdict(list)
    print("| column | codec | stored | reading, ns a byte | decoding | ns for a saved byte |")
    print("|---|---|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as folder:
        for name, values, chunk in columns(given.samples, Path(folder)):
            if not any(fnmatch.fnmatch(name, pattern) for pattern in given.only):
                continue
            blank = np.zeros(chunk, values.dtype)
            chunks = [pad_chunk(values[box], blank) for box in chunk_slices(values.shape, chunk)]
            chunks = [each for each in chunks if each.any()][: max(1, MOST_BYTES // blank.nbytes)]
            encoded = {codec: Encoded(codec, chunks) for codec in candidates(values.dtype, chunk)}
            found: dict[str, list[tuple[float, float]]] = defaultdict(list)
            for _ in range(given.rounds):
                for codec, one in encoded.items():
                    found[codec].append(one.measure())
            for codec, pairs in found.items():
                read, decoded = (statistics.median(each) for each in zip(*pairs, strict=True))
                stored = encoded[codec].stored
                saved = f"{decoded / (1 - stored):.2f}" if stored < 0.99 else "–"
                print(
                    f"| {name} | {codec} | {stored:.3f} | {read:.3f} | {decoded:.3f} | {saved} |", flush=True
                )
                everywhere[" ".join(codec.split()[:2])].append(decoded)
                everywhere["reading, of a stored byte"].append(read / stored)
    print("\n| codec | decoding, median of columns | least | most |")
    print("|---|--:|--:|--:|")
    for codec, each in everywhere.items():
        print(f"| {codec} | {statistics.median(each):.2f} | {min(each):.2f} | {max(each):.2f} |")


if __name__ == "__main__":
    main()
