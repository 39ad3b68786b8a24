"""Parts of a grown store are read as one: arrays, samples and orders are those of the compacted store."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import unistore
from tests import cases
from tests.unistore.growing.test_compact import CASES, joined
from unistore.store.joined import JoinedStore
from unistore.store.versions import open_stores

# What is read where the default samples are longer than these recordings
SAMPLES = {"spike": unistore.Clips(1, crop=(20, 30)), "events": unistore.Events("5ms")}


def check_same_batches(dataset: unistore.Dataset, expected: unistore.Dataset) -> None:
    indices = np.random.default_rng(0).permutation(len(expected))
    assert len(dataset) == len(expected) > 0
    batch = dataset.read_batch(indices)
    for key, packed in expected.read_batch(indices).items():
        for number in range(len(indices)):
            np.testing.assert_array_equal(batch[key][number], packed[number], f"{key} of {indices[number]}")


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_arrays_and_samples_are_those_of_the_compacted_store(
    tmp_path: Path, make: Callable[[Path], cases.Case]
) -> None:
    (tmp_path / "src").mkdir()
    case = make(tmp_path / "src")
    store = joined(case, tmp_path)
    unistore.compact(store, tmp_path / "one.zarr", overwrite=True)
    one = unistore.Store(tmp_path / "one.zarr")
    parts = JoinedStore(os.fspath(store), open_stores(os.fspath(store)).stores)
    compared = []
    for path, array in parts.arrays().items():
        if path == "sources/digest":  # of other shards
            continue
        whole = one.array(path).read()
        np.testing.assert_array_equal(array.read(), whole, path)
        rows = np.random.default_rng(0).permutation(len(whole))
        np.testing.assert_array_equal(array.read_rows(rows), whole[rows], path)
        lo = np.arange(len(whole))
        hi = np.minimum(lo + 5, len(whole))
        np.testing.assert_array_equal(array.read_ranges(lo, hi), one.array(path).read_ranges(lo, hi), path)
        compared.append(path)
    assert {"sources/path/data", "sources/path/offsets"} <= set(compared)
    assert parts.sample_count == one.sample_count
    kind = SAMPLES.get(case.family)
    fields = [*unistore.Dataset(one.path, kind).fields, "source"]
    dataset = unistore.Dataset(store, kind, fields)
    assert len(dataset.runs) == 1
    check_same_batches(dataset, unistore.Dataset(one.path, kind, fields))
    check_same_batches(pickle.loads(pickle.dumps(dataset)), dataset)
