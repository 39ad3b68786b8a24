"""Stores of every case through xarray and tensorstore: every group opens, every array has the same values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import dask.array
import h5py
import numpy as np
import pytest
import tensorstore
import xarray
import zarr

import unistore
from tests.support.cases import Case
from unistore.store.reader import Store

MakeCase = Callable[[str], tuple[Case, Path]]


def assert_same_bits(found: np.ndarray, expected: np.ndarray) -> None:
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert found.tobytes() == expected.tobytes()


def groups_of(store: Path) -> list[str]:
    members = zarr.open_group(store, mode="r").members(max_depth=None)
    return ["", *(path for path, member in members if isinstance(member, zarr.Group))]


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name",
    [
        *("rows_structured", "cloud_indices", "ct_cases", "ct_sparse", "spike_tiles", "spike_keep"),
        *("events_of_two_cameras", "robot_streams", "robot_act_keep"),
    ],
)
def test_xarray_opens_every_group(name: str, make_case: MakeCase) -> None:
    path = make_case(name)[1]
    store = Store(path)
    tree = xarray.open_datatree(path, engine="zarr", chunks=None)
    opened = {node.path.strip("/"): node for node in tree.subtree}
    groups = groups_of(path)
    assert set(opened) == set(groups)
    seen = set()
    for group in groups:
        consolidated = False if group else None  # xarray looks for them in the group that it opens
        alone = xarray.open_zarr(path, group=group or None, consolidated=consolidated, chunks=None)
        assert set(alone.variables) == set(opened[group].to_dataset(inherit=False).variables)
        for key, variable in alone.variables.items():
            array = store.array(f"{group}/{key}")
            field = store.attributes["fields"][array.path]
            assert variable.dims == tuple(field["axes"])
            assert (variable.attrs.get("units"), variable.attrs["long_name"]) == (
                field["unit"],
                field["description"],
            )
            assert_same_bits(variable.values, array.read())
            seen.add(array.path)
    assert seen == set(store.paths())


def test_tensorstore_reads_every_array(family_case: str, make_case: MakeCase) -> None:
    path = make_case(family_case)[1]
    for name, array in Store(path).arrays().items():
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path / name)}}
        found = tensorstore.open(spec, open=True, read=True).result()
        assert found.domain.labels == tuple(array.metadata.dimension_names or ())
        assert_same_bits(found.read().result().view(array.dtype), array.read())


def test_xarray_opens_columns_whose_names_resemble_axes(tmp_path: Path) -> None:
    extents = {
        "a/x": (3,),
        "x": (4,),
        "row": (2,),
        "x_axis": (),
        "a/b/row": (2, 6),
        "y": (5,),
        "y_axis": (7,),
    }
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, extent in extents.items():
            file[name] = np.zeros((5, *extent))
    store = Case("rows", [tmp_path / "a.h5"]).convert(tmp_path / "store.zarr")
    tree = xarray.open_datatree(store, engine="zarr", chunks=None)
    for name, extent in extents.items():
        assert tree[f"rows/{name}"].shape == (5, *extent)
        assert tree[f"rows/{name}"].dims[0] == "row"


def test_dask_reads_a_shard_a_task(make_case: MakeCase) -> None:
    path = make_case("spike_real")[1]
    group = unistore.open_zarr(path)
    for name in ("spikes/bits", "frames/voxel/5"):
        array = group[name]
        lazy = dask.array.from_array(array, chunks=array.shards)
        shards = [key for key in (path / name / "c").rglob("*") if key.is_file()]
        assert lazy.npartitions == len(shards) < array.nchunks
        assert_same_bits(lazy.compute(scheduler="sync"), Store(path).array(name).read())
