"""Packs as a package of somebody else: a format alone, of named arrays of any kind."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from unistore import plugin


class Pack(plugin.Format):
    """``PACK``, the length of a JSON text, the text, and the arrays that it lists, one behind the other."""

    name = "pack"
    suffixes = (".pack",)

    def recognise(self, file: plugin.SourceFile) -> plugin.Claim:
        if file.head(4) == b"PACK":
            return plugin.sure("begins with PACK")
        raise file.wrong_beginning("with PACK")

    @contextmanager
    def open(self, file: plugin.SourceFile) -> Iterator[plugin.OpenFile]:
        length = int.from_bytes(file.head(8)[4:], "little")
        start = 8 + length
        listed = json.loads(file.head(start)[8:])
        arrays = {}
        for name, dtype, shape in listed["arrays"]:
            size = np.dtype(dtype).itemsize * int(np.prod(shape))
            if start + size > file.size:
                raise file.problem(f"ends inside of {name}", "copy it again", "truncated")
            arrays[name] = plugin.Array(np.memmap(file.path, dtype, "r", start, tuple(shape)))
            start += size
        yield plugin.OpenFile(arrays, listed["facts"])

    def write(self, path: Path, arrays: Mapping[str, plugin.Array], metadata: Mapping[str, object]) -> None:
        listed = [(name, array.dtype.str, array.shape) for name, array in arrays.items()]
        text = json.dumps({"arrays": listed, "facts": dict(metadata)}).encode()
        with path.open("wb") as file:
            file.write(b"PACK" + len(text).to_bytes(4, "little") + text)
            for array in arrays.values():
                file.write(np.ascontiguousarray(array[:]).tobytes())
