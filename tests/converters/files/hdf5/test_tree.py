"""HDF5 trees at random: groups, links, layouts, damage. All is read as plain h5py reads it, or refused."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from unistore.converters.files.hdf5.file import check_dataset, open_hdf5, read_rows
from unistore.converters.files.hdf5.tree import walk
from unistore.errors import InputError, location_of

NAMES = st.sampled_from(["a", "b", "data", "höhe", "segment_0001", "x y"])
DTYPES = st.sampled_from(["<f8", ">f4", "u1", ">i2", "<u8", "?", "S3"])
STORAGE = st.sampled_from(
    [
        {},
        {"chunks": True},
        {"chunks": (2,)},
        {"chunks": (3,), "compression": "gzip", "shuffle": True},
        {"chunks": (5,), "compression": "gzip", "fletcher32": True},
        {"chunks": (4,), "compression": "lzf"},
        {"maxshape": (None,)},
    ]
)
DATASETS = st.fixed_dictionaries({"dtype": DTYPES, "rows": st.integers(0, 12), "storage": STORAGE})
LINKS = st.fixed_dictionaries({"link": st.sampled_from(["hard", "soft", "nowhere", "outside", "up"])})
TREES = st.recursive(
    st.dictionaries(NAMES, DATASETS | LINKS, max_size=4),
    lambda inner: st.dictionaries(NAMES, DATASETS | LINKS | inner, max_size=4),
    max_leaves=8,
)


def write(group: h5py.Group, tree: dict[str, Any]) -> None:
    """Write a tree: datasets, links to the file's root, to nothing or out of the folder, groups."""
    for name, item in tree.items():
        if "dtype" in item:
            values = (np.arange(item["rows"]) * 7 % 5).astype(item["dtype"])
            storage = (
                {"maxshape": (None,), **item["storage"]} if "chunks" in item["storage"] else item["storage"]
            )
            group.create_dataset(name, data=values, **storage)
        elif "link" in item:
            target: Any = {
                "hard": group.file["/"],
                "soft": h5py.SoftLink("/a"),
                "nowhere": h5py.SoftLink("/no/such"),
                "outside": h5py.ExternalLink("/etc/hostname", "/"),
                "up": group,
            }[item["link"]]
            group[name] = target
        else:
            write(group.create_group(name), item)


@contextmanager
def written(tree: dict[str, Any]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.h5"
        with h5py.File(path, "w") as file:
            write(file, tree)
        yield path


def values_of(path: Path) -> dict[str, np.ndarray]:
    """Every dataset that is found, read by rows; problems are left out, as a scan tells them."""
    found = {}
    with open_hdf5(path, "a.h5") as file:
        for name, dataset in walk(file, "a.h5", [path.parent]).datasets.items():
            location = location_of("a.h5", name)
            if not check_dataset(dataset, location):
                half = dataset.shape[0] // 2
                parts = [read_rows(dataset, location, 0, half), read_rows(dataset, location, half)]
                found[name] = np.concatenate(parts)
    return found


def by_h5py(path: Path, names: list[str]) -> dict[str, np.ndarray]:
    with h5py.File(path) as file:
        return {name: file[name][()] for name in names}


@settings(max_examples=40)
@given(tree=TREES)
def test_a_tree_is_read_as_h5py_reads_it(tree: dict[str, Any]) -> None:
    with written(tree) as path:
        found = values_of(path)
        for name, expected in by_h5py(path, list(found)).items():
            np.testing.assert_array_equal(found[name], expected, name)
            assert found[name].dtype.kind == expected.dtype.kind
        assert {name for name, item in tree.items() if item.get("rows")} <= set(found)


@settings(max_examples=40)
@given(tree=TREES, data=st.data())
def test_a_damaged_tree_is_refused_or_read_as_h5py_reads_it(
    tree: dict[str, Any], data: st.DataObject
) -> None:
    """Bytes that are not checksummed may differ: then both readings see the same."""
    with written({"a": {"dtype": "<f8", "rows": 9, "storage": {"chunks": (2,)}}, **tree}) as path:
        raw = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        path.write_bytes(raw[: data.draw(st.integers(len(raw) // 2, len(raw)))])
        try:
            found = values_of(path)
        except InputError as error:
            assert str(error).startswith("a.h5")  # noqa: PT017
            return
        for name, expected in by_h5py(path, list(found)).items():
            np.testing.assert_array_equal(found[name], expected, name)
