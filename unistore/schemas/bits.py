"""Pixels of 0 and 1 that are packed along the last axis, least significant bit first."""

from __future__ import annotations

import numpy as np

from unistore.system.hints import UInt8s


def unpack(packed: UInt8s, width: int, left: int = 0) -> UInt8s:
    """Unpack bits (…, bytes) into pixels of 0 and 1, (…, width), without the first `left` of every row."""
    # For a crop that begins inside a byte, at pixel x: the bytes from x // 8 on, and left = x % 8.
    check_width(packed, width, left)
    if packed.shape[-1] * 8 == width:
        flat = np.unpackbits(np.ascontiguousarray(packed).reshape(-1), bitorder="little")
        return flat.reshape(*packed.shape[:-1], width)
    return np.unpackbits(packed, axis=-1, bitorder="little")[..., left : left + width]


def check_width(packed: UInt8s, width: int, left: int) -> None:
    """Raise a ValueError if rows of bytes hold fewer pixels than `width` from bit `left` on."""
    if left < 0 or width < 0 or left + width > packed.shape[-1] * 8:
        msg = f"{packed.shape[-1]} bytes a row hold no {width} pixels from bit {left} on"
        raise ValueError(msg)
