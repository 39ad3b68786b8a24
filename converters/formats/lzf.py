"""LZF, the compression of PCD files (http://oldhome.schmorp.de/marc/liblzf.html)."""

from __future__ import annotations

_RUN = 32  # control bytes below begin a run of bytes, others a copy
_LONG = 7  # length of a copy that goes on in the next byte


def decompress(packed: bytes, size: int) -> bytes:
    """Decompress LZF: runs of bytes, and copies of what stands at most 8,192 bytes before."""
    # Raises a ValueError or IndexError if the bytes do not give `size` of them.
    out = bytearray()
    position = 0
    while position < len(packed) and len(out) <= size:
        control = packed[position]
        position += 1
        if control < _RUN:
            out += packed[position : position + control + 1]
            position += control + 1
            continue
        length = control >> 5
        if length == _LONG:
            length += packed[position]
            position += 1
        back = ((control & (_RUN - 1)) << 8 | packed[position]) + 1
        position += 1
        if back > len(out):
            raise ValueError("a copy of nothing")
        copied = out[len(out) - back : len(out) - back + length + 2]
        repeats = -(-(length + 2) // len(copied))  # a copy may overlap what it makes
        out += (copied * repeats)[: length + 2]
    if len(out) != size:
        message = f"{len(out)} bytes, expected {size}"
        raise ValueError(message)
    return bytes(out)
