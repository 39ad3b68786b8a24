"""Spikes and voxels from their files, brought to one form: packed bits, row 0 = top.

A ``.dat`` stream holds its bottom row first (checked against a real recording: with the right bit order and
flip the mean of its frames correlates at 0.97 with the scene, unflipped below 0.15). Arrays in ``.npy`` and
``.npz`` files hold their top row first.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.files.npy.archive import npz_members, open_member
from unistore.converters.files.npy.array import open_npy, read_header
from unistore.errors import InputError, Problem
from unistore.schemas.spike.bits import pack, row_bytes

__all__ = ["array_form", "check_spikes", "load_array", "read_array", "read_dat"]

_PIECE = 8 << 20


def read_dat(path: Path, name: str, layout: str, width: int, flip: bool, out: NDArray[np.uint8]) -> None:
    """Read the first frames of a headerless stream.

    Parameters
    ----------
    path, name
        The file, and what messages call it.
    layout
        ``"packed"``, ``"stream"`` or ``"bytes"``; see `unistore.converters.spike.geometry`.
    width
        Pixels of a row.
    flip
        Whether the stream holds its bottom row first.
    out
        (frames, H, ⌈W/8⌉) u1, may be a part of a larger array; overwritten.

    Raises
    ------
    InputError
        The file ends early, cannot be read, or, in ``"bytes"``, holds a value above 1.
    """
    frames, height, stored = out.shape
    pixels = height * width
    frame_bits = {"packed": height * stored * 8, "stream": pixels, "bytes": pixels * 8}[layout]
    step = max(1, _PIECE * 8 // frame_bits)
    if layout == "stream":
        step = -(-step // 8) * 8  # so that every piece begins at a whole byte
    try:
        with path.open("rb", buffering=0) as file:
            for start in range(0, frames, step):
                count = min(step, frames - start)
                raw = np.fromfile(file, np.uint8, -(-count * frame_bits // 8))
                if raw.size * 8 < count * frame_bits:
                    message = f"ended in frame {start + raw.size * 8 // frame_bits} of {frames}"
                    cure = "it changed during the conversion: run again when it is complete"
                    raise InputError(Problem(name, message, cure, "truncated"))
                rows = _rows(raw, layout, (count, height, width), name)
                out[start : start + count] = rows[:, ::-1] if flip else rows
    except OSError as error:
        raise InputError(_unreadable(name, error)) from error


def _rows(raw: NDArray[np.uint8], layout: str, shape: tuple[int, int, int], name: str) -> NDArray[np.uint8]:
    """Packed rows (frames, H, ⌈W/8⌉) in the order of the file."""
    frames, height, width = shape
    if layout == "packed":
        return raw.reshape(frames, height, row_bytes(width))
    if layout == "stream":
        return pack(np.unpackbits(raw, count=frames * height * width, bitorder="little").reshape(shape))
    if raw.max(initial=0) > 1:
        message = f"holds a byte of {raw.max()}, expected 0 or 1 in one byte a pixel"
        raise InputError(Problem(name, message, "take --layout packed or auto", "values"))
    return pack(raw.reshape(shape))


def array_form(path: Path, name: str, keys: Sequence[str]) -> tuple[str, tuple[int, int, int], np.dtype[Any]]:
    """Shape and dtype of the one three-dimensional array that a ``.npy`` or ``.npz`` file holds.

    Parameters
    ----------
    path, name
        The file, and what messages call it.
    keys
        Names to look for in a ``.npz`` of several arrays, in this order: ``("spk",)``.

    Returns
    -------
    key, shape, dtype
        The key is ``""`` for ``.npy``.

    Raises
    ------
    InputError
        Unreadable, several arrays of other names, or not three axes.
    """
    if path.suffix.lower() == ".npy":
        key, header = "", read_header(path, name)
    else:
        members = npz_members(path, name)
        found = [each for each in keys if each in members] or (list(members) if len(members) == 1 else [])
        if not found:
            message = f"holds {', '.join(members) or 'no array'}, expected {' or '.join(keys)}"
            raise InputError(Problem(name, message, "save it again under that name", "missing"))
        key, header = found[0], members[found[0]].header
    if len(header.shape) != 3 or 0 in header.shape:
        message = f"{key or 'the array'} has shape {header.shape}, expected three axes of at least 1"
        raise InputError(Problem(name, message, "save it as (time or bin, height, width)", "shape"))
    first, height, width = header.shape
    return key, (first, height, width), header.dtype


def load_array(path: Path, name: str, key: str) -> NDArray[Any]:
    """The array that `array_form` found: mapped where the file allows it."""
    if not key:
        return open_npy(path, name)
    return open_member(path, npz_members(path, name)[key], name)


def check_spikes(path: Path, name: str, key: str, dtype: np.dtype[Any]) -> list[Problem]:
    """Whether an array holds spikes: dtype u1 or bool, values 0 and 1. Looks at every value."""
    if dtype not in (np.dtype(np.uint8), np.dtype(np.bool_)):
        message = f"{key or 'the array'} has dtype {dtype}, expected uint8 or bool with values 0 and 1"
        return [Problem(name, message, "save it with .astype(np.uint8)", "dtype")]
    largest = max(int(piece.max(initial=0)) for piece in _pieces(load_array(path, name, key)))
    if largest > 1:
        message = f"{key or 'the array'} holds values up to {largest}, expected spikes of 0 and 1"
        cure = "packed bits? save them as a .dat file; counts of spikes? they belong into spike_vox/"
        return [Problem(name, message, cure, "values")]
    return []


def read_array(path: Path, name: str, key: str, out: NDArray[np.uint8]) -> None:
    """Pack the spikes (T, H, W) of a ``.npy`` or ``.npz`` file into ``out`` (T, H, ⌈W/8⌉) u1."""
    start = 0
    for piece in _pieces(load_array(path, name, key)):
        out[start : start + len(piece)] = pack(piece)
        start += len(piece)


def _pieces(values: NDArray[Any]) -> list[NDArray[Any]]:
    step = max(1, _PIECE // max(1, values[:1].nbytes))
    return [values[start : start + step] for start in range(0, len(values), step)]


def _unreadable(name: str, error: OSError) -> Problem:
    return Problem(name, f"cannot be read: {error.strerror}", "check the file and its rights", "unreadable")
