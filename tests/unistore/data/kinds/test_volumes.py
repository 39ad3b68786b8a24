"""Volumes, patches and sparse points, against the volumes they were written from."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import SimpleITK
import torch

import unistore
from tests.support.kernel import needs_kernel
from unistore.data.kinds import sparse_points
from unistore.errors import InputError
from unistore.order.permutation import EpochIndex

FORMS = ["coords", "mask"]


@pytest.mark.parametrize("sparse", FORMS)
def test_volumes_have_their_true_extent(make_scans: Callable[..., Any], sparse: str) -> None:
    scans = make_scans(sparse=sparse)
    dataset = unistore.Dataset(scans.path)
    assert isinstance(dataset.samples, unistore.Volumes)
    for number, sample in enumerate(dataset):
        assert list(sample) == ["index", "image", "low", "spacing"]
        assert sample["image"].dtype == torch.int16
        assert np.array_equal(sample["image"].numpy(), scans.volumes[number])
        assert sample["low"].dtype == torch.uint8
        assert np.array_equal(sample["low"].numpy(), scans.inside(number))
    named = unistore.Dataset(scans.path, fields=["name", "extent", "source"])[2]
    assert (named["name"], named["source"], named["extent"].tolist()) == ("case2", "case2", [8, 9, 10])


@pytest.mark.parametrize(
    ("window", "low", "high"),
    [("lung", -1350, 150), ("mine:400:50", -150, 250)],
)
def test_a_window_clips_and_scales_on_read(
    make_scans: Callable[..., Any], window: str, low: float, high: float
) -> None:
    scans = make_scans()
    limited = unistore.Dataset(scans.path, unistore.Volumes(window=window))
    scaled = unistore.Dataset(scans.path, unistore.Volumes(window=window, scale=True))
    for number, volume in enumerate(scans.volumes):
        expected = np.clip(volume.astype(np.float32), low, high)
        assert limited[number]["image"].dtype == scaled[number]["image"].dtype == torch.float32
        np.testing.assert_array_equal(limited[number]["image"], expected)
        np.testing.assert_array_equal(scaled[number]["image"], (expected - low) / np.float32(high - low))
        assert np.array_equal(scaled[number]["low"].numpy(), scans.inside(number))


def test_a_window_of_the_store_is_applied_by_its_name(tmp_path: Path) -> None:
    volume = np.arange(-300, 300, dtype=np.int16).reshape(6, 10, 10)
    np.save(tmp_path / "ct.npy", volume)
    unistore.convert(tmp_path / "ct.npy", tmp_path / "a.zarr", "ct", window=("mine:400:50",))
    sample = unistore.Dataset(tmp_path / "a.zarr", unistore.Volumes(window="mine", scale=True))[0]
    np.testing.assert_array_equal(sample["image"], (volume.astype("f4").clip(-150, 250) + 150) / 400)


def test_the_text_of_info_json_is_delivered_if_requested(tmp_path: Path) -> None:
    infos = {"a": '{"age": 40, "spacing": [1, 1, 2]}', "b": '{"age": 7}'}
    for name, text in infos.items():
        (tmp_path / "set" / name).mkdir(parents=True)
        np.save(tmp_path / "set" / name / "ct_original.npy", np.zeros((4, 4, 8), np.int16))
        (tmp_path / "set" / name / "info.json").write_text(text)
    unistore.convert(tmp_path / "set", tmp_path / "a.zarr", "ct")
    for kind in (unistore.Volumes(), unistore.Patches(2)):
        dataset = unistore.Dataset(tmp_path / "a.zarr", kind, fields=["name", "info"])
        assert "info" not in unistore.Dataset(tmp_path / "a.zarr", kind).fields
        assert {sample["name"]: sample["info"] for sample in dataset} == infos


def test_the_row_of_metadata_csv_is_delivered_if_requested(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / "set" / "processed" / name).mkdir(parents=True)
        np.save(tmp_path / "set" / "processed" / name / "ct_original.npy", np.zeros((4, 4, 8), np.int16))
    table = tmp_path / "set" / "metadata.csv"
    table.write_text('\ufeffcase_id,age,said\nb,40,"x, ""y"""\na,7,ä\n', encoding="utf-8")
    assert "4 used" in str(unistore.inspect(tmp_path / "set"))
    report = unistore.convert(tmp_path / "set", tmp_path / "a.zarr", "ct")
    assert "1 file: metadata.csv has no row with this name" in report.notes
    assert not report.skipped
    dataset = unistore.Dataset(tmp_path / "a.zarr", fields=["name", "metadata"])
    rows = {sample["name"]: sample["metadata"] for sample in dataset}
    assert rows.pop("c") == ""
    assert {name: json.loads(text) for name, text in rows.items()} == {
        "a": {"case_id": "a", "age": "7", "said": "ä"},
        "b": {"case_id": "b", "age": "40", "said": 'x, "y"'},
    }
    assert unistore.verify(tmp_path / "a.zarr", against=[tmp_path / "set"]).ok


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"case,age\na,1\na,2\n", "has 2 rows for 'a'"),
        (b"case,age\n\na\n", "row 3 has 1 columns, but row 1 has 2"),
        (b"case,case\na,1\n", "two columns have the same name"),
        (b"case,age\na,\xff\n", "in UTF-8"),
        (b'case,age\na,"1\n', "unexpected end of data"),
    ],
)
def test_a_malformed_metadata_csv_is_an_error(tmp_path: Path, text: bytes, told: str) -> None:
    (tmp_path / "set" / "a").mkdir(parents=True)
    np.save(tmp_path / "set" / "a" / "ct_original.npy", np.zeros((4, 4, 8), np.int16))
    (tmp_path / "set" / "metadata.csv").write_bytes(text)
    with pytest.raises(InputError, match=told):
        unistore.convert(tmp_path / "set", tmp_path / "a.zarr", "ct")


def test_scale_without_a_window_and_an_unknown_window_are_an_error(make_scans: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match="scale: works only with a window"):
        unistore.Volumes(scale=True)
    with pytest.raises(InputError, match=r"--window lungs: .*lung, bone"):
        unistore.Dataset(make_scans().path, unistore.Volumes(window="lungs"))


@pytest.mark.parametrize("sparse", FORMS)
@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("pad", ["edge", "zero", -1000])
def test_size_cuts_and_pads_every_volume_to_one_shape(
    make_scans: Callable[..., Any], pad: Any, step: int, sparse: str
) -> None:
    scans = make_scans([(9, 5, 40), (70, 8, 6), (3, 3, 3)], sparse=sparse)
    size = (24, 4, 7)
    dataset = unistore.Dataset(scans.path, unistore.Volumes(size=size, pad=pad, step=step))
    batch = unistore.collate(dataset.__getitems__([0, 1, 2]))
    assert batch["image"].shape == batch["low"].shape == (3, *size)
    for number, volume in enumerate(scans.volumes):
        for key, whole in (("image", volume), ("low", scans.inside(number))):
            cut = whole[::step, ::step, ::step][: size[0], : size[1], : size[2]]
            fill = 0 if pad == "zero" or key == "low" else pad
            how = {"mode": "edge"} if pad == "edge" else {"constant_values": fill}
            widths = [(0, end - extent) for end, extent in zip(size, cut.shape, strict=True)]
            assert np.array_equal(batch[key][number], np.pad(cut, widths, **how)), (key, number)
    stored = unistore.Dataset(scans.path)[0]["spacing"]
    assert torch.equal(batch["spacing"][0], stored * step)


def test_step_takes_every_second_voxel(make_scans: Callable[..., Any]) -> None:
    scans = make_scans()
    for sample, volume in zip(
        unistore.Dataset(scans.path, unistore.Volumes("low:9:0", step=2)), scans.volumes, strict=True
    ):
        assert np.array_equal(sample["image"], volume[::2, ::2, ::2].clip(-4.5, 4.5).astype("f4"))


def test_a_size_larger_than_a_volume_is_an_error_without_pad(make_scans: Callable[..., Any]) -> None:
    path = make_scans([(5, 6, 7), (9, 9, 9)]).path
    with pytest.raises(InputError, match="1 of 2 volumes; the smallest has 5 × 6 × 7"):
        unistore.Dataset(path, unistore.Volumes(size=8))[0]
    assert unistore.Dataset(path, unistore.Volumes(size=5))[1]["image"].shape == (5, 5, 5)
    for wrong in ({"pad": "edge"}, {"size": 8, "pad": "drop"}, {"size": 0}, {"step": 0}, {"size": (1, 2)}):
        with pytest.raises(InputError):
            unistore.Volumes(**wrong)
    with pytest.raises(InputError, match="not a value of image"):
        unistore.Dataset(path, unistore.Volumes(size=8, pad=1e9))[0]


def test_volumes_of_different_extents_are_ragged(make_scans: Callable[..., Any]) -> None:
    scans = make_scans()
    samples = unistore.Dataset(scans.path).__getitems__([2, 0])
    packed = unistore.collate(samples)
    assert packed["shapes"].tolist() == [[8, 9, 10], [20, 30, 41]]
    lo, hi = packed["offsets"][1:]
    assert np.array_equal(packed["image"][lo:hi].reshape(20, 30, 41).numpy(), scans.volumes[0])
    padded = unistore.collate(samples, ragged="padded")
    assert padded["image"].shape == padded["low"].shape == (2, 20, 30, 41)
    assert np.array_equal(padded["image"][0, :8, :9, :10].numpy(), scans.volumes[2])
    assert padded["image"][0].count_nonzero() == np.count_nonzero(scans.volumes[2])
    assert [image.shape for image in unistore.collate(samples, ragged="list")["image"]] == [
        (8, 9, 10),
        (20, 30, 41),
    ]
    single = unistore.Dataset(scans.path)
    assert unistore.collate([single[2], single[0]]).keys() == packed.keys()


@pytest.mark.parametrize("sparse", FORMS)
def test_random_patches_are_boxes_of_their_volume(make_scans: Callable[..., Any], sparse: str) -> None:
    scans = make_scans(sparse=sparse)
    dataset = unistore.Dataset(scans.path, unistore.Patches((8, 9, 10), per_volume=20), seed=1)
    assert len(dataset) == 60
    corners = set()
    for sample in dataset.__getitems__([EpochIndex(i, 2) for i in range(40)]):
        number = int(sample["index"]) // 20
        box = tuple(slice(int(lo), int(lo) + n) for lo, n in zip(sample["corner"], (8, 9, 10), strict=True))
        assert np.array_equal(sample["image"].numpy(), scans.volumes[number][box])
        assert np.array_equal(sample["low"].numpy(), scans.inside(number)[box])
        corners.add((number, *sample["corner"].tolist()))
    assert len(corners) > 30
    assert torch.equal(
        dataset[EpochIndex(7, 2)]["corner"],
        dataset.__getitems__([EpochIndex(9, 1), EpochIndex(7, 2)])[1]["corner"],
    )
    assert not torch.equal(dataset[EpochIndex(7, 2)]["image"], dataset[EpochIndex(7, 3)]["image"])


def test_random_corners_of_patches_reach_both_ends_of_a_volume(make_scans: Callable[..., Any]) -> None:
    scans = make_scans([(6, 8, 9)])
    dataset = unistore.Dataset(scans.path, unistore.Patches((4, 8, 7)), fields=["corner"])
    drawn = {tuple(dataset[EpochIndex(0, epoch)]["corner"].tolist()) for epoch in range(200)}
    assert drawn == {(z, 0, x) for z in range(3) for x in range(3)}


def test_a_grid_of_patches_covers_each_volume(make_scans: Callable[..., Any]) -> None:
    scans = make_scans()
    dataset = unistore.Dataset(scans.path, unistore.Patches((8, 16, 16), random=False, pad="zero"))
    assert len(dataset) == 3 * 2 * 3 + 3 * 3 * 2 + 1
    seen = [np.zeros(volume.shape, bool) for volume in scans.volumes]
    bounds = [0, 18, 36, 37]
    for sample in dataset:
        number = int(np.searchsorted(bounds, int(sample["index"]), side="right")) - 1
        box = tuple(slice(int(lo), int(lo) + n) for lo, n in zip(sample["corner"], (8, 16, 16), strict=True))
        expected = scans.volumes[number][box]
        inside = tuple(slice(n) for n in expected.shape)
        assert np.array_equal(sample["image"].numpy()[inside], expected)
        seen[number][box] = True
        assert sample["image"].shape == sample["low"].shape == (8, 16, 16)
    assert all(part.all() for part in seen)


@pytest.mark.parametrize("sparse", FORMS)
@pytest.mark.parametrize("image", [True, False])
def test_sparse_points_equal_argwhere(make_scans: Callable[..., Any], sparse: str, image: bool) -> None:
    scans = make_scans(sparse=sparse, image=image)
    dataset = unistore.Dataset(scans.path, unistore.SparsePoints("low"))
    for number, sample in enumerate(dataset):
        expected = np.argwhere(scans.inside(number))
        assert sample["coords"].dtype == torch.int32
        assert np.array_equal(sample["coords"].numpy(), expected)
        values = scans.volumes[number][scans.inside(number)] if image else np.ones(len(expected), np.uint8)
        assert sample["values"].numpy().dtype == values.dtype
        assert np.array_equal(sample["values"].numpy(), values[:, None])
    natural = unistore.Dataset(scans.path).samples
    assert isinstance(natural, unistore.Volumes if image else unistore.SparsePoints)


def test_points_and_mask_give_equal_subsets(make_scans: Callable[..., Any]) -> None:
    kind = unistore.SparsePoints(max_points=500)
    batches = []
    for sparse in FORMS:
        dataset = unistore.Dataset(make_scans(sparse=sparse).path, kind, seed=4)
        batches.append(
            unistore.collate(dataset.__getitems__([EpochIndex(1, 3), EpochIndex(2, 3), EpochIndex(0, 3)]))
        )
    points, mask = batches
    assert points.keys() == mask.keys() == {"index", "coords", "values", "offsets"}
    assert all(torch.equal(points[key], mask[key]) for key in points)
    assert points["offsets"].diff().tolist()[::2] == [500, 500]
    flat = points["coords"][:500].long() @ torch.tensor([10_000, 100, 1])
    assert (flat.diff() > 0).all()


@pytest.mark.parametrize("dtype", ["uint16", "float32"])
def test_a_window_cut_while_reading_is_the_one_that_a_conversion_cuts(tmp_path: Path, dtype: str) -> None:
    rng = np.random.default_rng(7)
    for number, extent in enumerate([(20, 31, 43), (70, 9, 16), (5, 6, 7)]):
        volume = rng.normal(40, 400, extent).clip(0 if dtype[0] == "u" else None).astype(dtype)
        if dtype[0] == "f":
            volume[0, 1, 2] = np.nan
            volume[0, 0, :2] = -135, 215
        np.save(tmp_path / f"ct{number}.npy", volume)
    sources = [tmp_path / f"ct{number}.npy" for number in range(3)]
    unistore.convert(sources, tmp_path / "bare.zarr", "ct")
    for sparse in FORMS:
        store = tmp_path / f"{sparse}.zarr"
        unistore.convert(sources, store, "ct", window=("mediastinum", "thin:0.5:7"), sparse=sparse)
        for window in ("mediastinum", "thin:0.5:7"):
            for kind in (unistore.SparsePoints(window), unistore.SparsePoints(window, max_points=100)):
                stored = unistore.SparsePoints(window.partition(":")[0], max_points=kind.max_points)
                indices = [EpochIndex(2, 5), EpochIndex(0, 5), EpochIndex(1, 5), EpochIndex(0, 6)]
                cut = unistore.Dataset(tmp_path / "bare.zarr", kind, seed=3).__getitems__(indices)
                expected = unistore.Dataset(store, stored, seed=3).__getitems__(indices)
                for one, other in zip(cut, expected, strict=True):
                    assert one.keys() == other.keys()
                    assert all(one[key].dtype == other[key].dtype for key in one)
                    assert all(torch.equal(one[key], other[key]) for key in one)


def test_an_affine_places_the_voxels_of_a_sample(tmp_path: Path) -> None:
    """Against SimpleITK, whose axes and world are in reverse."""
    image = SimpleITK.GetImageFromArray(np.arange(9 * 10 * 11, dtype=np.int16).reshape(9, 10, 11))
    image.SetSpacing((0.5, 0.75, 2.0))
    image.SetOrigin((-100.0, 20.0, 7.0))
    turn, tilt = 0.3, -0.2
    about_z = np.array([[np.cos(turn), -np.sin(turn), 0], [np.sin(turn), np.cos(turn), 0], [0, 0, 1]])
    about_x = np.array([[1, 0, 0], [0, np.cos(tilt), -np.sin(tilt)], [0, np.sin(tilt), np.cos(tilt)]])
    image.SetDirection((about_z @ about_x).ravel().tolist())
    SimpleITK.WriteImage(image, str(tmp_path / "scan.nii.gz"))
    unistore.convert(tmp_path / "scan.nii.gz", tmp_path / "a.zarr", "ct")
    kinds = [unistore.Volumes(), unistore.Volumes(step=2), unistore.Patches(4), unistore.SparsePoints("lung")]
    for kind in kinds:
        assert "affine" not in unistore.Dataset(tmp_path / "a.zarr", kind).fields
        corner = ["corner"] if isinstance(kind, unistore.Patches) else []
        sample = unistore.Dataset(tmp_path / "a.zarr", kind, fields=["affine", *corner])[0]
        first = sample["corner"].numpy() if corner else np.zeros(3)
        step = getattr(kind, "step", 1)
        for voxel in ([0, 0, 0], [1, 2, 3], [3, 1, 0]):
            place = sample["affine"].numpy() @ [*voxel, 1]
            stored = (first + np.array(voxel) * step)[::-1].astype(int).tolist()
            expected = image.TransformIndexToPhysicalPoint(stored)
            np.testing.assert_allclose(place, [*expected[::-1], 1], atol=1e-4)


def test_an_affine_is_unknown_where_the_source_states_less(
    tmp_path: Path, make_scans: Callable[..., Any]
) -> None:
    with pytest.raises(InputError, match="the samples have no 'affine'"):
        unistore.Dataset(make_scans().path, fields=["affine"])
    for name, text in {"a": '{"spacing": [1, 1, 2]}', "b": "{}"}.items():
        (tmp_path / "set" / name).mkdir(parents=True)
        np.save(tmp_path / "set" / name / "ct_original.npy", np.zeros((4, 4, 8), np.int16))
        (tmp_path / "set" / name / "info.json").write_text(text)
    unistore.convert(tmp_path / "set", tmp_path / "a.zarr", "ct", info_order="zyx")
    with pytest.raises(InputError, match="the samples have no 'affine'"):
        unistore.Dataset(tmp_path / "a.zarr", fields=["affine"])


def test_volumes_with_too_few_points_are_left_out(make_scans: Callable[..., Any]) -> None:
    scans = make_scans()
    counts = [int(scans.inside(number).sum()) for number in range(3)]
    dataset = unistore.Dataset(
        scans.path, unistore.SparsePoints(min_points=counts[1]), fields=["name", "coords"]
    )
    assert [sample["name"] for sample in dataset] == ["case0", "case1"]
    assert dataset[1]["index"] == 1
    split = make_scans(splits={"train": [2, 1], "val": [0]})
    kept = unistore.Dataset(split.path, unistore.SparsePoints(min_points=200), ["name"], "train")
    assert [sample["name"] for sample in kept] == ["case1"]


@pytest.mark.parametrize("shape", [(3, 5, 8), (2, 3, 11), (4, 7, 64), (1, 1, 1), (5, 300, 70)])
@pytest.mark.parametrize("density", [0.0, 0.05, 0.9, 1.0])
@pytest.mark.parametrize("has_kernel", [pytest.param(True, marks=needs_kernel), False])
def test_points_of_a_mask_equal_argwhere(
    shape: tuple[int, int, int], density: float, has_kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if has_kernel:
        monkeypatch.setattr(sparse_points, "all_points", None)
        monkeypatch.setattr(sparse_points, "points_at_ranks", None)
    else:
        monkeypatch.setattr(sparse_points, "kernel", lambda: None)
    rng = np.random.default_rng(2)
    mask = rng.random(shape) < density
    bits = np.packbits(mask, axis=-1, bitorder="little")
    expected = np.argwhere(mask)
    out = np.empty(expected.shape, np.int32)
    sparse_points.find_points(bits, None, out)
    assert np.array_equal(out, expected)
    for share in (0.01, 0.3, 1.0):  # many points are found in another way than few
        ranks = np.flatnonzero(rng.random(len(expected)) < share)
        some = np.empty((len(ranks), 3), np.int32)
        sparse_points.find_points(bits, ranks, some)
        assert np.array_equal(some, expected[ranks])


def test_fewer_voxels_than_requested_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse_points, "kernel", lambda: None)
    with pytest.raises(ValueError, match="2 voxels of the mask are set, but 3"):
        sparse_points.find_points(np.full((1, 2, 1), 4, np.uint8), None, np.empty((3, 3), np.int32))


def test_points_of_planes_are_found_without_a_copy_of_all() -> None:
    """A volume is read some planes at a time: a copy of 134 million keys for each took 29 s and more."""
    depths = np.sort(np.random.default_rng(5).integers(0, 512, 1 << 20)).astype(np.int32)
    keys = np.stack([depths, depths, depths], axis=1)[:, 0]  # apart in memory, as those of points are
    tracemalloc.start()
    found = [sparse_points.points_between(keys, first, first + 16) for first in range(0, 528, 16)]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 16
    inside = [np.flatnonzero((depths >= first) & (depths < first + 16)) for first in range(0, 512, 16)]
    assert found == [*((rows[0], rows[-1] + 1) for rows in inside), (1 << 20, 1 << 20)]


def test_a_step_of_more_voxels_than_are_read_at_once(make_scans: Callable[..., Any]) -> None:
    scans = make_scans()
    for sample, volume in zip(
        unistore.Dataset(scans.path, unistore.Volumes(step=40)), scans.volumes, strict=True
    ):
        assert np.array_equal(sample["image"].numpy(), volume[::40, ::40, ::40])


@pytest.mark.parametrize("sparse", FORMS)
def test_values_of_points_are_read_without_their_coordinates(
    make_scans: Callable[..., Any], sparse: str
) -> None:
    scans = make_scans(sparse=sparse)
    dataset = unistore.Dataset(scans.path, unistore.SparsePoints("low"), fields=["values"])
    for number, volume in enumerate(scans.volumes):
        values = dataset[number]["values"].numpy()
        assert np.array_equal(values.ravel(), volume[scans.inside(number)])
