"""Reads datasets, each in a process of its own: ``read_hdf5_apart.py SEED FILE DATASET [FILE DATASET …]``.

Their memory was filled with bytes that depend on the seed, and freed, before. The output is
a line of JSON: for each dataset its values in hexadecimal digits, the message that refuses it, or how the
process ended.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
from pathlib import Path
from random import Random

import h5py  # noqa: F401  once, not by every process
import hdf5plugin  # noqa: F401

from unistore.converters.files.hdf5.file import open_hdf5, read_rows
from unistore.errors import InputError

CPU_SECONDS = 5
BLOCKS = 5000


def main() -> None:
    seed, *names = sys.argv[1:]
    scramble_memory(Random(seed))
    print(json.dumps([apart(*pair) for pair in zip(names[::2], names[1::2], strict=True)]))


def apart(path: str, dataset: str) -> dict[str, str]:
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(reader)
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with os.fdopen(writer, "w") as stream:
            json.dump(read(Path(path), dataset), stream)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        text = stream.read()
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return json.loads(text) if status == 0 and text else {"died": str(status)}


def read(path: Path, dataset: str) -> dict[str, str]:
    with open_hdf5(path, path.name) as file:
        try:
            return {"values": read_rows(file[dataset], dataset).tobytes().hex()}
        except InputError as error:
            return {"refused": str(error)}


def scramble_memory(rng: Random) -> None:
    """Leave freed blocks of all sizes that hold random bytes between blocks that stay."""
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    library.free.argtypes = (ctypes.c_void_p,)
    blocks = []
    for number in range(BLOCKS):
        size = 1 << rng.randrange(4, 16) if number % 10 == 0 else rng.randrange(16, 2048)
        block = library.malloc(size)
        ctypes.memmove(block, rng.randbytes(size), size)
        blocks.append(block)
    for block in rng.sample(blocks, BLOCKS // 2):
        library.free(block)


if __name__ == "__main__":
    main()
