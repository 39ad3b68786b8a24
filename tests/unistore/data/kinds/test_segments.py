"""Segments: exact coordinates, subsets, voxel grids, columns; against the definitions in plain numpy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

import unistore
from unistore.data.kinds.segments import convert, quantised_view
from unistore.errors import InputError
from unistore.order.permutation import EpochIndex
from unistore.schemas.point_cloud.fields import Quantum


@pytest.mark.parametrize("batched", [False, True])
def test_coordinates_are_exact(make_cloud: Callable[..., Any], batched: bool) -> None:
    cloud = make_cloud()
    absolute = unistore.Dataset(cloud.path, unistore.Segments(coordinates="absolute"))
    local = unistore.Dataset(cloud.path, unistore.Segments())
    order = [2, 0, 3, 1, 0]
    far = absolute.__getitems__(order) if batched else [absolute[i] for i in order]
    near = local.__getitems__(order) if batched else [local[i] for i in order]
    for at, sample in enumerate(order):
        expected = cloud.absolute(sample)
        origin = cloud.origin[cloud.samples[sample]]
        assert far[at]["xyz"].numpy().tobytes() == expected.tobytes()
        assert near[at]["xyz"].numpy().tobytes() == (expected - origin).astype(np.float32).tobytes()
        assert np.array_equal(near[at]["origin"].numpy(), origin)
        for name in cloud.columns:
            assert np.array_equal(near[at][name].numpy(), cloud.column(name, sample))


def test_pseudo_segments_are_no_samples(make_cloud: Callable[..., Any]) -> None:
    cloud = make_cloud()
    dataset = unistore.Dataset(cloud.path, fields=["number", "source", "bounds", "source_row"])
    assert [int(sample["number"]) for sample in dataset] == [0, 1, 0, 1]
    assert [sample["source"] for sample in dataset] == ["a/one.h5"] * 2 + ["b/two.h5"] * 2
    assert np.array_equal(dataset[0]["bounds"][0].numpy(), cloud.origin[0])
    assert dataset[0]["source_row"][0] == len(cloud.quantised) - 1


def test_max_points_keeps_order_and_small_segments(make_cloud: Callable[..., Any]) -> None:
    cloud = make_cloud((500, 3, 1, 4000, 20, 5))
    dataset = unistore.Dataset(cloud.path, unistore.Segments(coordinates="absolute", max_points=100), seed=3)
    samples = dataset.__getitems__([EpochIndex(i, 1) for i in range(4)])
    assert [len(sample["xyz"]) for sample in samples] == [100, 3, 100, 20]
    for number, sample in enumerate(samples):
        whole = {row.tobytes(): place for place, row in enumerate(cloud.absolute(number))}
        places = [whole[row.tobytes()] for row in sample["xyz"].numpy()]
        assert (np.diff(places) > 0).all()
        assert np.array_equal(sample["intensity"].numpy(), cloud.column("intensity", number)[places])


def test_subsets_depend_on_seed_epoch_and_index_alone(make_cloud: Callable[..., Any]) -> None:
    cloud = make_cloud()
    kind = unistore.Segments(max_points=40)
    dataset = unistore.Dataset(cloud.path, kind)
    alone = dataset[EpochIndex(0, 1)]["xyz"]
    together = dataset.__getitems__([EpochIndex(2, 0), EpochIndex(3, 1), EpochIndex(0, 1)])[2]["xyz"]
    assert torch.equal(alone, together)
    dataset.set_epoch(1)
    assert torch.equal(dataset[0]["xyz"], alone)
    dataset.set_epoch(2)
    assert not torch.equal(dataset[0]["xyz"], alone)
    assert not torch.equal(unistore.Dataset(cloud.path, kind, seed=1)[EpochIndex(0, 1)]["xyz"], alone)


def test_voxels_are_those_of_the_store(make_cloud: Callable[..., Any]) -> None:
    cloud = make_cloud()
    dataset = unistore.Dataset(cloud.path, unistore.Segments(coordinates="absolute", voxel=500))
    batch = unistore.collate(dataset.__getitems__([3, 0]))
    for at, sample in enumerate([3, 0]):
        expected = np.floor((cloud.absolute(sample) - cloud.origin[cloud.samples[sample]]) / 500).astype(
            np.int32
        )
        lo, hi = batch["voxel_offsets"][at : at + 2]
        coords, counts = batch["voxel_coords"][lo:hi], batch["voxel_counts"][lo:hi]
        lo, hi = batch["offsets"][at : at + 2]
        point_voxel = batch["point_voxel"][lo:hi]
        assert np.array_equal(coords[point_voxel].numpy(), expected)
        assert np.array_equal(np.bincount(point_voxel.numpy(), minlength=len(coords)), counts.numpy())
    assert batch["voxel_counts"].dtype == torch.int32
    some = unistore.Dataset(cloud.path, unistore.Segments(voxel=500.0), fields=["voxel_coords"])[0]
    assert some.keys() == {"index", "voxel_coords"}


@pytest.mark.parametrize("dtype", ["integers", "decimals", "float32"])
def test_voxels_of_any_size_are_those_that_a_conversion_stores(tmp_path: Path, dtype: str) -> None:
    rng = np.random.default_rng(2)
    xyz = rng.normal(0, 40, (3, 700, 3))
    xyz[1, 5:] = xyz[1, :-5]  # several points a voxel
    xyz[2] = xyz[2, :1]
    if dtype == "integers":
        xyz = np.rint(xyz * 100) * 0.01 + 5_000_000
    with h5py.File(tmp_path / "objects.h5", "w") as file:
        file["data"] = xyz.astype("f4") if dtype == "float32" else np.round(xyz, 3)
        file["label"] = np.arange(3)[:, None]
    sizes = (0.3, 7.0, 1e4)
    unistore.convert(tmp_path / "objects.h5", tmp_path / "stored.zarr", "point-cloud", voxel_size=sizes)
    unistore.convert(tmp_path / "objects.h5", tmp_path / "bare.zarr", "point-cloud")
    for size in sizes:
        for kind in (unistore.Segments(voxel=size), unistore.Segments(voxel=size, max_points=100)):
            stored = unistore.collate(
                unistore.Dataset(tmp_path / "stored.zarr", kind).__getitems__([2, 0, 1])
            )
            computed = unistore.collate(
                unistore.Dataset(tmp_path / "bare.zarr", kind).__getitems__([2, 0, 1])
            )
            assert stored.keys() == computed.keys()
            assert all(stored[key].dtype == computed[key].dtype for key in stored)
            assert all(torch.equal(stored[key], computed[key]) for key in stored)
    alone = unistore.Dataset(tmp_path / "bare.zarr", unistore.Segments(voxel=9), fields=["voxel_counts"])
    assert alone[1]["voxel_counts"].sum() == 700
    with pytest.raises(InputError, match=r"voxel: is 1e-12.*more than int32 allows"):
        unistore.Dataset(tmp_path / "bare.zarr", unistore.Segments(voxel=1e-12))[0]


def test_segments_with_too_few_points_are_left_out(make_cloud: Callable[..., Any]) -> None:
    cloud = make_cloud((500, 3, 1, 4000, 20, 5), splits={"train": [0, 1, 3], "val": [2]})
    large = unistore.Dataset(cloud.path, unistore.Segments(min_points=21), fields=["xyz", "number"])
    assert [len(sample["xyz"]) for sample in large] == [500, 4000]
    assert [int(sample["index"]) for sample in large] == [0, 1]
    train = unistore.Dataset(cloud.path, unistore.Segments(min_points=4), split="train")
    assert [len(sample["xyz"]) for sample in train] == [500, 20]
    every = unistore.Dataset(cloud.path, unistore.Segments(), fields=["xyz"])
    median = int(np.median([len(sample["xyz"]) for sample in every]))
    found = rf"the largest segment has 4,000 points, the median is {median}"
    message = rf"min_points=5,000 leaves no samples: {found}. .*unistore.Segments\(min_points={median}\)"
    with pytest.raises(InputError, match=message):
        len(unistore.Dataset(cloud.path, unistore.Segments(min_points=5000)))


def test_exactly_draws_or_repeats_points_to_the_number_in_their_order(make_cloud: Callable[..., Any]) -> None:
    cloud = make_cloud()  # of 50, 0, 7 and 300 points; the second is no segment
    kind = unistore.Segments(exactly=64, coordinates="absolute")
    dataset = unistore.Dataset(cloud.path, kind, fields=["xyz", "intensity", "source_row"], seed=5)
    lengths = [len(cloud.absolute(sample)) for sample in range(4)]
    filled = [sample for sample in range(4) if lengths[sample]]
    batch = unistore.collate(dataset.__getitems__([EpochIndex(at, 1) for at in range(len(dataset))]))
    assert len(dataset) == len(filled) < 4
    assert batch["xyz"].shape == (len(filled), 64, 3)
    assert batch["intensity"].shape == (len(filled), 64)
    assert "offsets" not in batch
    for at, sample in enumerate(filled):
        rows = {row.tobytes(): place for place, row in enumerate(cloud.absolute(sample))}
        places = np.array([rows[row.tobytes()] for row in batch["xyz"][at].numpy()])
        assert np.array_equal(batch["intensity"][at].numpy(), cloud.column("intensity", sample)[places])
        times = np.bincount(places, minlength=lengths[sample])
        assert times.max() <= -(-64 // lengths[sample])
        assert times.min() >= 64 // lengths[sample]
        assert (np.diff(places) >= 0).all()
    again = dataset.__getitems__([EpochIndex(1, 1)])[0]
    assert torch.equal(again["xyz"], batch["xyz"][1])
    assert not torch.equal(dataset[EpochIndex(1, 2)]["xyz"], batch["xyz"][1])


@pytest.mark.parametrize("voxel", [500, 3000.0])
def test_a_grid_takes_one_point_of_each_voxel(make_cloud: Callable[..., Any], voxel: float) -> None:
    cloud = make_cloud((900, 3, 1, 400, 20, 5))
    kind = unistore.Segments("absolute", voxel=voxel, sample="grid")
    dataset = unistore.Dataset(cloud.path, kind)
    taken = []
    for sample, epoch in ((0, 0), (0, 1), (2, 0)):
        found = dataset[EpochIndex(sample, epoch)]
        assert sorted(found["point_voxel"].tolist()) == list(range(len(found["voxel_coords"])))
        assert len(found["xyz"]) == len(found["voxel_coords"])
        low = cloud.origin[cloud.samples[sample]]
        cells = np.floor((found["xyz"].numpy() - low) / voxel)
        assert np.array_equal(cells, found["voxel_coords"][found["point_voxel"]].numpy())
        taken.append(found["xyz"])
    if voxel == 3000:
        assert not torch.equal(taken[0], taken[1])
    for length in (16, 1000):
        exact = unistore.Segments("absolute", voxel=voxel, sample="grid", exactly=length)
        sample = unistore.Dataset(cloud.path, exact, fields=["xyz", "point_voxel"])[0]
        assert sample["xyz"].shape == (length, 3)
        used = len(np.unique(sample["point_voxel"]))
        assert used == min(length, len(taken[0]))


def test_exactly_with_a_grid_repeats_grid_points_and_takes_no_others(make_cloud: Callable[..., Any]) -> None:
    """Repeated rows are as many as the segment's own, and are no shortcut to all of them."""
    cloud = make_cloud((900, 3, 1, 400, 20, 5))
    kind = unistore.Segments("absolute", voxel=3000.0, sample="grid", exactly=900)
    sample = unistore.Dataset(cloud.path, kind)[0]
    assert len(np.unique(sample["xyz"].numpy(), axis=0)) == len(sample["voxel_coords"]) < 900


def test_contradicting_options_are_an_error() -> None:
    with pytest.raises(InputError, match=r"sample: is 'grid', .* no size of voxels"):
        unistore.Segments(sample="grid")
    with pytest.raises(InputError, match=r"exactly: does not work together with max_points"):
        unistore.Segments(exactly=5, max_points=5)
    with pytest.raises(InputError, match="coordinates"):
        unistore.Segments(coordinates="global")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="max_points: must be a whole number of at least 1, got 0"):
        unistore.Segments(max_points=0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_unquantised_coordinates_are_delivered_to_the_bit(make_store: Any, dtype: str) -> None:
    rng = np.random.default_rng(5)
    xyz = (rng.random((6000, 3)) * 1000).astype(dtype)
    origin = np.array([xyz[:5000].min(axis=0), xyz[5000:].min(axis=0)], np.float64)
    path = make_store(
        "point_cloud",
        {
            "points/xyz": xyz,
            "points/label": np.arange(6000, dtype=np.uint8),
            "segments/offsets": np.array([0, 5000, 6000]),
            "segments/origin": origin,
            "segments/source": np.zeros(2, np.int32),
            "segments/number": np.arange(2),
            "segments/label": np.array([4, 5], np.uint8),
            "sources/path": ["a.h5"],
        },
        count=2,
        table="segments",
    )
    absolute = unistore.Dataset(path, unistore.Segments("absolute")).__getitems__([1, 0])
    assert absolute[1]["xyz"].dtype == torch.float64
    assert np.array_equal(absolute[1]["xyz"].numpy(), xyz[:5000].astype(np.float64))
    natural = unistore.Dataset(path).__getitems__([1, 0])
    if dtype == "float32":
        assert natural[0]["xyz"].numpy().tobytes() == xyz[5000:].tobytes()
        assert not natural[0]["origin"].any()
    else:
        assert np.array_equal(natural[0]["origin"].numpy(), origin[1])
    assert np.allclose(natural[0]["xyz"].double() + natural[0]["origin"], xyz[5000:], atol=1e-3)
    local = unistore.Dataset(path, unistore.Segments("local")).__getitems__([1, 0])
    assert np.array_equal(local[0]["origin"].numpy(), origin[1])
    expected = (xyz[5000:].astype(np.float64) - origin[1]).astype(np.float32)
    assert np.array_equal(local[0]["xyz"].numpy(), expected)
    assert (local[0]["segment_label"], local[0]["label"][0]) == (5, 5000 % 256)


@pytest.mark.parametrize("points", [0, 1, 4095, 4096, 10_000])
@pytest.mark.parametrize("scale", [(0.01, 0.01, 0.01), (0.1, 0.001, 3.0)])
def test_coordinates_are_converted_in_place_to_the_bit(
    points: int, scale: tuple[float, float, float]
) -> None:
    rng = np.random.default_rng(points)
    q = rng.integers(-(2**31), 2**31, (points, 3)).astype(np.int32)
    offset, origin = np.array([1e5, -2e6, 0.3]), np.array([7.7, 1e3, -1e-3])
    expected = q * np.array(scale) + offset
    form = Quantum(np.array([scale]), offset[None], decimal=False)
    absolute = np.empty((points, 3))
    quantised_view(absolute)[...] = q
    convert(quantised_view(absolute), absolute, form, 0)
    assert absolute.tobytes() == expected.tobytes()
    local = np.empty((points, 3), np.float32)
    quantised_view(local)[...] = q
    convert(quantised_view(local), local, form, 0, origin)
    assert local.tobytes() == (expected - origin).astype(np.float32).tobytes()
    single = q.astype(np.float32)
    convert(single, local, None, 0, origin)
    assert local.tobytes() == (single.astype(np.float64) - origin).astype(np.float32).tobytes()
