"""Commands that look at a store take a URL, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unistore
from unistore.errors import StoreError
from unistore.inspect import inspect
from unistore.verify import verify


def test_inspect_shows_what_it_shows_of_the_local_store(uploaded: str, local: Path) -> None:
    far, near = inspect(uploaded), inspect(local)
    assert far.kind == near.kind == "store"
    assert far.path == uploaded
    assert {k: v for k, v in far.details.items() if k != "snippet"} == {
        k: v for k, v in near.details.items() if k != "snippet"
    }
    assert f"unistore.Dataset({uploaded!r}".replace("'", '"') in far.details["snippet"].replace("'", '"')
    with pytest.raises(StoreError, match="no such store"):
        inspect(f"{uploaded}-not")


def test_verify_finds_damage(uploaded: str, bucket: Any, sources: Path) -> None:
    assert verify(uploaded).ok
    assert verify(uploaded, against=[sources]).ok
    key = "deep/store.zarr/rows/data/c/1/0"
    raw = bytearray(bucket.get(key))
    raw[77] ^= 4
    bucket.put(key, bytes(raw))
    bucket.delete("deep/store.zarr/rows/label/zarr.json")
    found = verify(uploaded)
    assert not found.ok
    told = " ".join(str(problem) for problem in found.problems)
    assert "rows/data/c/1/0" in told
    assert "rows/label/zarr.json" in told


def test_zarr_python_reads_what_was_converted_to_a_bucket(
    bucket: Any, sources: Path, truth: Any, tmp_path: Path
) -> None:
    unistore.convert(sources, bucket.url("x.zarr"), work=tmp_path)
    group = unistore.open(bucket.url("x.zarr"))
    expected = truth(sources)
    assert np.array_equal(group["rows/data"][...], expected["data"])
    assert np.array_equal(group["rows/label"][...], expected["label"])
    assert group.read_only
