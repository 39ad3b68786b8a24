"""Recordings of event cameras, made up: their events, and files that hold them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np

EVENT = np.dtype([("t", "<i8"), ("x", "<u2"), ("y", "<u2"), ("p", "u1")])
WIDTH, HEIGHT = 64, 48
HEADER3 = b"% format EVT3;width=64;height=48\n% end\n"
HEADER2 = b"% evt 2.0\n% geometry 64x48\n% end\n"


def made_up(count: int = 20_000, microseconds: int = 400_000, seed: int = 0) -> np.ndarray:
    """Events at random places, several of them at the same time."""
    rng = np.random.default_rng(seed)
    events = np.empty(count, EVENT)
    events["t"] = np.sort(rng.integers(0, microseconds, count))
    events["x"] = rng.integers(0, WIDTH, count)
    events["y"] = rng.integers(0, HEIGHT, count)
    events["p"] = rng.integers(0, 2, count)
    return events


def ms_to_idx(times: np.ndarray) -> np.ndarray:
    return np.searchsorted(times, np.arange(0, times[-1] // 1000 + 1) * 1000).astype("u8")


def write_dsec(path: Path, events: np.ndarray, **changed: Any) -> None:
    """Write the datasets of DSEC, with its filter; `changed` replaces some, or leaves them out."""
    arrays: dict[str, Any] = {
        "events/t": events["t"].astype("u4"),
        "events/x": events["x"],
        "events/y": events["y"],
        "events/p": events["p"],
        "ms_to_idx": ms_to_idx(events["t"]),
        "t_offset": np.int64(57_000_000),
    }
    arrays |= {name.replace("__", "/"): value for name, value in changed.items()}
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            if np.ndim(values):
                chunks = (min(4096, len(values)),)
                file.create_dataset(name, data=values, chunks=chunks, **hdf5plugin.Blosc(cname="zstd"))
            elif values is not None:
                file[name] = values


def words3(events: np.ndarray) -> np.ndarray:
    """Words of EVT 3.0: each event alone, and a word for the upper half of a time where that changes."""
    words = []
    high = -1
    for event in events:
        t, x, y, p = event.item()
        if t >> 12 != high:
            high = t >> 12
            words.append(0x8000 | high & 0xFFF)
        words += [0x6000 | t & 0xFFF, y, 0x2000 | p << 11 | x]
    return np.array(words, "<u2")


def words2(events: np.ndarray) -> np.ndarray:
    """Words of EVT 2.0."""
    words = []
    high = -1
    for event in events:
        t, x, y, p = event.item()
        if t >> 6 != high:
            high = t >> 6
            words.append(0x80000000 | high & 0xFFFFFFF)
        words.append(p << 28 | (t & 0x3F) << 22 | x << 11 | y)
    return np.array(words, "<u4")


def write_dat(
    path: Path, events: np.ndarray, header: bytes = b"% Version 2\n% Width 64\n% Height 48\n"
) -> None:
    records = np.empty(len(events), [("t", "<u4"), ("place", "<u4")])
    records["t"] = events["t"]
    places = events["p"].astype("u4") << 28 | events["y"].astype("u4") << 14
    records["place"] = places | events["x"]
    path.write_bytes(header + bytes((12, 8)) + records.tobytes())
