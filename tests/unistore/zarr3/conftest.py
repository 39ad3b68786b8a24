"""Shared by the engine's tests; nothing here needs torch, so that they also run under newer Pythons."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from unistore.zarr3 import ArrayMetadata, LocalStorage, StoredArray
from unistore.zarr3.durable import write_file
from unistore.zarr3.metadata import shard_key
from unistore.zarr3.writer import array_metadata, encode_shard

Check = Callable[[NDArray[Any], NDArray[Any]], None]
Write = Callable[..., StoredArray]


@pytest.fixture(scope="session")
def same_bits() -> Check:
    """Assert that two arrays agree in shape, dtype and every bit (NaN payloads, signs of zero)."""

    def check(found: NDArray[Any], expected: NDArray[Any]) -> None:
        assert found.shape == expected.shape
        assert found.dtype == expected.dtype
        assert found.tobytes() == np.ascontiguousarray(expected).tobytes()

    return check


@pytest.fixture(scope="session")
def write() -> Write:
    """Write values as an array of `root`, by metadata or by a preset; give the engine's Array."""

    def write(
        root: Path,
        values: NDArray[Any],
        chunk: tuple[int, ...] = (),
        shard: tuple[int, ...] = (),
        codec: str = "fast",
        *,
        path: str = "a",
        metadata: ArrayMetadata | None = None,
        **options: Any,
    ) -> StoredArray:
        if metadata is None:
            metadata = array_metadata(values.shape, values.dtype, chunk, shard, codec, **options)
        folder = root / path
        folder.mkdir(parents=True)
        (folder / "zarr.json").write_bytes(metadata.to_bytes())
        for shard_coord in itertools.product(*map(range, metadata.shards)):
            low = [at * step for at, step in zip(shard_coord, metadata.shard_shape, strict=True)]
            block = values[tuple(slice(a, a + n) for a, n in zip(low, metadata.shard_shape, strict=True))]
            write_file(folder, shard_key(shard_coord), encode_shard(metadata, shard_coord, np.asarray(block)))
        return StoredArray.open(LocalStorage(root), path)

    return write
