"""Value rules of spike recordings: lengths, extents, sequences, kept images."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from unistore.errors import Problem
from unistore.schemas.spike import (
    FRAMES,
    IMAGE_EXTENT,
    IMAGES,
    SEQUENCE_OFFSETS,
    SPIKE,
    SPIKE_EXTENT,
    SPIKE_LENGTH,
    file_table_name,
    voxel_bins,
)
from unistore.verify.rules import broken, offsets_problems
from unistore.verify.view import Rule, View, first_row

__all__ = ["RULES"]


def lengths(view: View) -> Iterator[Problem]:
    """Every frame has at least one time step, and no more than are stored."""
    if view.has(SPIKE):
        most, length = view.shape(SPIKE)[1], view.whole(SPIKE_LENGTH)
        wrong = (length < 1) | (length > most)
        if wrong.any():
            at = first_row(wrong)
            yield broken(SPIKE_LENGTH, f"frame {at} has {length[at]} time steps, stored are {most}")


def extents(view: View) -> Iterator[Problem]:
    """True heights and widths are at most those that are stored."""
    stored: list[tuple[str, tuple[int, int]]] = []
    if view.has(SPIKE):
        height, width = view.shape(SPIKE)[2:]
        stored.append((SPIKE_EXTENT, (height, width * 8)))
    for path in view.under(f"{FRAMES}/"):
        if voxel_bins(path) is not None:
            stored.append((SPIKE_EXTENT, (view.shape(path)[2], view.shape(path)[3])))
        elif path.removeprefix(f"{FRAMES}/") in IMAGES:
            stored.append((IMAGE_EXTENT, (view.shape(path)[1], view.shape(path)[2])))
    for path, most in dict.fromkeys(stored):
        extent = view.whole(path)
        wrong = ((extent < 1) | (extent > np.array(most))).any(axis=1)
        if wrong.any():
            at = first_row(wrong)
            yield broken(path, f"frame {at} is {extent[at].tolist()}, stored are {list(most)}")


def sequences(view: View) -> Iterator[Problem]:
    """Sequences cut the frames."""
    frames = view.shape(SPIKE_EXTENT)[0]
    yield from offsets_problems(SEQUENCE_OFFSETS, view.whole(SEQUENCE_OFFSETS), frames, "frames")


def kept_images(view: View) -> Iterator[Problem]:
    """Kept images cut their bytes."""
    for table in map(file_table_name, IMAGES):
        if view.has(f"{table}/data"):
            offsets, total = view.whole(f"{table}/offsets"), view.shape(f"{table}/data")[0]
            yield from offsets_problems(f"{table}/offsets", offsets, total, "bytes")


RULES: tuple[Rule, ...] = (lengths, extents, sequences, kept_images)
