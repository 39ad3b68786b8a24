"""Clips are what they were when a frame's spikes were one row: digests of batches, taken from version 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

import unistore
from tests.cases import MAKERS
from unistore.errors import InputError
from unistore.order.permutation import At

KINDS = (
    unistore.Clips(length=1, crop=None),
    unistore.Clips(length=2, crop=8),
    unistore.Clips(length=1, crop=(9, 11), stride=2, pad="edge"),
    unistore.Clips(length=1, crop=(40, 30), pad=3),
    unistore.Clips(length=1, crop=6, voxel_bins=4),
    unistore.Clips(length=2, crop=7, voxel_bins=300, random=False),
)
FIELDS = (
    "voxel",
    "spike",
    "spike_packed",
    "spike_length",
    "blur",
    "sharp",
    "frame",
    "corner",
    "source",
    "valid",
)
VERSION_1 = {
    "spike_real": "925dfa68bb325ccca51e43ebded38ab8",
    "spike_tiles": "1b00e28d8c884186597cc03c9772952a",
    "spike_keep": "907e98249d1e6a535ac0003f74c6de85",
    "spike_bytes": "295b8c3fc7d81e0047e3f09f963e143b",
    "spike_arrays": "e8d85f565a31ca5c387b2c08e22ca2a7",
}
"""By the name of the case."""


def readable(path: Path, kind: unistore.Clips) -> list[str]:
    """The fields that a store has."""
    found = []
    for field in FIELDS:
        try:
            unistore.Dataset(path, kind, [field])
        except InputError:
            continue
        found.append(field)
    return found


def digest_of(path: Path) -> str:
    """Digest of every key of every sample of all kinds, with its form."""
    digest = xxhash.xxh3_128()
    for kind in KINDS:
        dataset = unistore.Dataset(path, kind, readable(path, kind), seed=3)
        try:
            count = len(dataset)
        except InputError:  # no two frames follow one another
            continue
        for sample in dataset.__getitems__([At(number, 5) for number in range(count)]):
            add(digest, sample)
    return digest.hexdigest()


def add(digest: xxhash.xxh3_128, sample: dict[str, Any]) -> None:
    """Add the keys of a sample to a digest."""
    for key, value in sample.items():
        values = np.ascontiguousarray(value)
        digest.update(f"{key} {values.dtype} {values.shape}".encode())
        digest.update(values.tobytes())


@pytest.mark.parametrize("name", VERSION_1)
def test_batches_are_those_of_version_1(name: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    case = MAKERS[name](tmp_path / "in")
    assert digest_of(case.convert(tmp_path / "store.zarr")) == VERSION_1[name]
