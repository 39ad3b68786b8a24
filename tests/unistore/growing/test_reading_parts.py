"""Parts of a grown store are read as one: arrays, samples and orders are those of the compacted store."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unistore
from tests.unistore.growing.conftest import CASES, Make
from unistore.errors import InputError
from unistore.growing.growth import growing
from unistore.store.joined import JoinedStore
from unistore.store.manifest import root_digest, sign_root
from unistore.store.versions import open_stores
from unistore.zarr3.storage import MAX_SHARED_FILES

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
def test_arrays_and_samples_are_those_of_the_compacted_store(tmp_path: Path, joined: Any, make: Make) -> None:
    case = joined(make)
    store = tmp_path / "s.zarr"
    unistore.compact(store, tmp_path / "one.zarr", overwrite=True)
    one = unistore.Store(tmp_path / "one.zarr")
    opened = open_stores(os.fspath(store))
    parts = JoinedStore(opened, range(len(opened.stores)))
    compared = []
    for path, array in parts.arrays().items():
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
    fields = [*unistore.Dataset(store, kind).fields, "source"]
    dataset = unistore.Dataset(store, kind, fields)
    # Masks of rows come from numbers of sources, which differ between the parts
    has_masks = case.family == "rows" and any(key.endswith("_mask") for key in fields)
    assert len(dataset.read_parts) == (2 if has_masks else 1)
    check_same_batches(dataset, unistore.Dataset(one.path, kind, fields))
    check_same_batches(pickle.loads(pickle.dumps(dataset)), dataset)


def test_orders_conditions_and_splits_are_those_of_the_compacted_store(tmp_path: Path) -> None:
    for number, rows in enumerate((300, 40, 700, 7, 50)):
        folder = tmp_path / str(max(1, number))
        folder.mkdir(exist_ok=True)
        values = np.random.default_rng(number).random((rows, 64))
        np.savez(folder / f"s{number}.npz", x=values, y=np.arange(rows))
    unistore.convert(tmp_path / "1", tmp_path / "s.zarr", split="train=0.6,val=0.4")
    for number in (2, 3, 4):
        unistore.append(tmp_path / str(number), tmp_path / "s.zarr")
    unistore.compact(tmp_path / "s.zarr", tmp_path / "one.zarr")
    paths = [tmp_path / "s.zarr", tmp_path / "one.zarr"]
    split = unistore.Store(paths[1]).split_names()[0]
    for options in ({}, {"split": split}, {"where": {"source": "s[03]*"}}):
        grown, one = (unistore.Dataset(path, fields=["x", "y", "source"], **options) for path in paths)
        check_same_batches(grown, one)
        for shuffle in ("blocks", "full", "sources", False):
            orders = []
            for dataset in (grown, one):
                loader = unistore.Loader(dataset, 8, shuffle=shuffle, num_workers=0)
                orders.append([batch["index"].tolist() for batch in loader])
            assert orders[0] == orders[1]
    unistore.remove(tmp_path / "s.zarr", "s1.npz")
    unistore.compact(tmp_path / "s.zarr", tmp_path / "one.zarr", overwrite=True)
    check_same_batches(unistore.Dataset(paths[0]), unistore.Dataset(paths[1]))


def test_many_parts_keep_few_files_open_and_open_with_first_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unistore.zarr3.chunks._MAX_CACHED_KEYS", 9)
    (tmp_path / "src").mkdir()
    for number in range(2):
        np.savez(tmp_path / "src" / f"{number}.npz", **{f"x{key}": np.arange(9) for key in range(10)})
    unistore.convert(tmp_path / "src" / "0.npz", tmp_path / "s.zarr")
    unistore.append(tmp_path / "src" / "1.npz", tmp_path / "s.zarr")
    for number in range(30):  # the second part, once more under every name
        with growing(tmp_path / "s.zarr") as growth:
            parts = list(growth.version.parts)
            seal = dataclasses.replace(parts[1].seal, digest=f"{number:032x}", root="0" * 32)
            folder = shutil.copytree(Path(growth.store, parts[1].key), Path(growth.new_store))
            root = json.loads((folder / "zarr.json").read_bytes())
            root["attributes"]["unistore"]["seal"] = seal.to_json()
            document = sign_root(json.dumps(root).encode())
            (folder / "zarr.json").write_bytes(document)
            seal = dataclasses.replace(seal, root=root_digest(document))
            parts.append(dataclasses.replace(parts[1], seal=seal))
            growth.commit(parts, list(growth.version.schemas), unistore.Store(folder))
    dataset = unistore.Dataset(tmp_path / "s.zarr")
    assert not any(part.store.cached_indices for part in dataset.parts)
    assert [dataset[index]["x3"].item() for index in range(len(dataset))] == [*range(9)] * 32
    joined = dataset.parts[0].joined
    assert joined is not None
    assert 0 < len(joined.store.array("rows/x3").reader._keys) <= 9
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    files = [link.readlink() for link in links if link.exists()]
    assert 0 < len([file for file in files if file.is_relative_to(tmp_path)]) <= MAX_SHARED_FILES


def test_rows_of_several_shapes_keep_their_masks(tmp_path: Path) -> None:
    def write(folder: str, *sizes: int) -> Path:
        for number, length in enumerate(sizes):
            (tmp_path / folder).mkdir(exist_ok=True)
            np.savez(tmp_path / folder / f"{folder}{number}.npz", x=np.ones((5, length)))
        return tmp_path / folder

    store = tmp_path / "grown.zarr"
    unistore.convert(write("a", 4, 2), store, columns="union")
    unistore.append(write("b", 3, 4), store)
    dataset = unistore.Dataset(store)
    assert dataset.fields == ("x", "x_mask")
    lengths = [int(dataset[index]["x_mask"].sum()) for index in range(len(dataset))]
    assert lengths == [length for length in (4, 2, 3, 4) for _ in range(5)]
    with pytest.raises(InputError, match=r"x_mask.*only .* ha(s|ve) it.*append them together with a source"):
        unistore.append(write("c", 4), store)
    assert unistore.append(write("c", 4, 1), store).version == 3
    unistore.compact(store, tmp_path / "one.zarr")
    one = unistore.Dataset(tmp_path / "one.zarr")
    assert [int(one[index]["x_mask"].sum()) for index in range(0, len(one), 5)] == [*lengths[::5], 4, 1]
