"""What stands beyond the data: against ``np.pad``, in every kind that cuts; refused unless told."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import unistore
from tests.support.spikes import stored_spikes
from unistore.data.kinds.padding import copy_padded, fill_values
from unistore.errors import InputError

DTYPES = ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")
PADS: tuple[Any, ...] = ("valid", "edge", "zero", 0, 1, 7)


def padded(data: NDArray[Any], shape: tuple[int, ...], pad: Any, *, number: bool = True) -> NDArray[Any]:
    """The oracle: numpy's own padding behind the data; a number only where `number`."""
    behind = [(0, extent - held) for extent, held in zip(shape, data.shape, strict=True)]
    if pad == "edge":
        return np.pad(data, behind, mode="edge")
    value = pad if number and not isinstance(pad, str) else 0
    return np.pad(data, behind, mode="constant", constant_values=value)


@given(st.data())
def test_copy_padded_equals_numpy_pad(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    held = tuple(data.draw(st.integers(1, extent)) for extent in shape)
    dtype = np.dtype(data.draw(st.sampled_from(DTYPES)))
    pad = data.draw(st.sampled_from(["valid", "edge", "zero", 0, 1]))
    inside = np.random.default_rng(sum(shape)).integers(0, 100, held).astype(dtype)
    out = np.full(shape, 55, dtype)
    copy_padded(inside, out, pad, fill_values(pad, {"x": dtype})["x"])
    expected = padded(inside, shape, pad)
    assert out.dtype == expected.dtype
    assert np.array_equal(out, expected)


@pytest.mark.parametrize("pad", [float("nan"), -np.inf, np.float32(0.5), np.float64("inf"), np.int16(3)])
def test_any_number_is_kept_as_the_pad(pad: Any) -> None:
    kept = unistore.Volumes("lung", size=4, pad=pad).pad
    assert repr(kept) == repr(np.asarray(pad).item())


@pytest.mark.parametrize("pad", ["mirror", True, 1j, list(range(99))])
def test_a_pad_that_is_neither_a_mode_nor_a_number_is_an_error(pad: Any) -> None:
    expected = r"pad: must be one of 'valid', 'edge', 'zero', 'drop', or a number, got .{1,40}$"
    with pytest.raises(InputError, match=expected):
        unistore.Volumes("lung", size=4, pad=pad)


def test_edge_padding_of_empty_data_is_an_error() -> None:
    with pytest.raises(InputError, match="has no value to repeat"):
        copy_padded(np.empty((0, 3)), np.empty((2, 3)), "edge", 0)


@pytest.mark.parametrize(
    ("dtype", "number", "holds"),
    [
        *(("i2", -1024, True), ("i2", 40_000, False), ("u1", -1, False), ("u1", 255.0, True)),
        *(("i2", 0.5, False), ("i8", 2**63, False), ("u8", 2**64 - 1, True), ("?", 1, True), ("?", 2, False)),
        *(("f4", 0.1, True), ("f2", 70_000, False), ("f8", 10**400, False), ("f4", float("nan"), True)),
        *(
            ("i4", float("nan"), False),
            ("u1", float("inf"), False),
            ("f4", float("-inf"), True),
            ("c8", -3, True),
        ),
    ],
)
def test_a_pad_that_the_dtype_cannot_hold_is_an_error(dtype: str, number: Any, holds: bool) -> None:
    if not holds:
        with pytest.raises(InputError, match=rf"pad: is .* not a value of image \({np.dtype(dtype)}\)"):
            fill_values(number, {"image": np.dtype(dtype)})
        return
    out = np.zeros(2, dtype)
    copy_padded(np.ones(1, dtype), out, number, fill_values(number, {"image": np.dtype(dtype)})["image"])
    assert np.array_equal(out, np.array([1, number], dtype), equal_nan=np.dtype(dtype).kind in "fc")


EXTENTS = ((9, 4, 12), (3, 20, 7), (8, 8, 8))


def write_scans(make_store: Any, dtype: str) -> tuple[Path, list[NDArray[Any]], list[NDArray[np.bool_]]]:
    """A store of volumes of one dtype, with a mask."""
    rng = np.random.default_rng(4)
    volumes = [rng.integers(0, 2 if dtype == "?" else 100, extent).astype(dtype) for extent in EXTENTS]
    masks = [rng.random(extent) < 0.4 for extent in EXTENTS]
    shape = np.max(EXTENTS, axis=0)
    image = np.zeros((len(EXTENTS), *shape), dtype)
    bits = np.zeros((len(EXTENTS), shape[0], shape[1], -(-shape[2] // 8)), np.uint8)
    for i, (volume, mask) in enumerate(zip(volumes, masks, strict=True)):
        box = tuple(slice(extent) for extent in volume.shape)
        image[i][box] = volume
        packed = np.packbits(mask, axis=-1, bitorder="little")
        bits[i][*box[:2], : packed.shape[2]] = packed
    arrays = {
        "volumes/extent": np.array(EXTENTS, np.int32),
        "volumes/name": ["a", "b", "c"],
        "volumes/image": image,
        "masks/bone/mask": bits,
        "sources/path": ["a", "b", "c"],
        "sources/volumes/offsets": np.arange(4),
    }
    return make_store("ct", arrays, count=3), volumes, masks


@pytest.mark.parametrize(
    ("dtype", "pad", "random"),
    [
        *(("i2", pad, random) for pad in PADS for random in (True, False)),
        *((dtype, pad, pad == "edge") for dtype in ("u1", "f4", "f8", "f2", "?") for pad in ("edge", 7)),
    ],
)
def test_patches_are_padded_like_numpy_pad(make_store: Any, dtype: str, pad: Any, random: bool) -> None:
    path, volumes, masks = write_scans(make_store, dtype)
    if dtype == "?" and pad == 7:
        with pytest.raises(InputError, match=r"pad: is 7, which is not a value of image \(bool\)"):
            len(unistore.Dataset(path, unistore.Patches(10, pad=pad)))
        return
    size = (6, 8, 10)
    fields = ["image", "bone", "corner", "valid", "valid_extent", "name"]
    dataset = unistore.Dataset(path, unistore.Patches(size, random, pad=pad), fields, seed=2)
    assert ("valid_extent" in unistore.Dataset(path, unistore.Patches(size, pad=pad)).fields) == (
        pad == "valid"
    )
    seen = 0
    for sample in dataset:
        number = "abc".index(sample["name"])
        lo = sample["corner"].tolist()
        box = tuple(slice(a, a + n) for a, n in zip(lo, size, strict=True))
        inside = volumes[number][box]
        seen += inside.shape != size
        assert sample["image"].numpy().dtype == np.dtype(dtype)
        assert np.array_equal(sample["image"].numpy(), padded(inside, size, pad))
        bone = masks[number][box].astype(np.uint8)
        assert np.array_equal(sample["bone"].numpy(), padded(bone, size, pad, number=False))
        assert sample["valid_extent"].tolist() == list(inside.shape)
        assert np.array_equal(sample["valid"].numpy(), padded(np.ones(inside.shape, bool), size, "zero"))
    assert seen


def test_pad_drop_leaves_out_volumes_smaller_than_the_patch(make_store: Any) -> None:
    path, *_ = write_scans(make_store, "i2")
    random = unistore.Dataset(path, unistore.Patches((6, 8, 8), per_volume=3, pad="drop"), ["name"])
    assert [sample["name"] for sample in random] == ["c"] * 3
    grid = unistore.Dataset(path, unistore.Patches((4, 4, 4), random=False, pad="drop"), ["name"])
    assert [sample["name"] for sample in grid] == ["a"] * 9 + ["c"] * 8
    with pytest.raises(
        InputError, match=r"boxes of 20 × 1 × 1 voxels .* 3 of 3 volumes; the smallest has 3 × 4"
    ):
        len(unistore.Dataset(path, unistore.Patches((20, 1, 1), pad="drop")))


H, W, STEPS, FRAMES = 7, 11, 5, 6


def write_frames(make_store: Any, ratio: int, *, name: str = "a") -> tuple[Path, dict[str, NDArray[Any]]]:
    """Frames of 7 x 11 spikes, and images `ratio` times as large."""
    rng = np.random.default_rng(5)
    spikes = rng.integers(0, 2, (FRAMES, STEPS, H, W)).astype(np.uint8)
    blur = rng.integers(0, 255, (FRAMES, H * ratio, W * ratio, 3)).astype(np.uint8)
    voxel = rng.integers(0, 9, (FRAMES, 3, H, W)).astype(np.uint16)
    arrays = {
        **stored_spikes(spikes),
        "frames/spike_extent": np.tile(np.array([H, W], np.int32), (FRAMES, 1)),
        "frames/image_extent": np.tile(np.array([H * ratio, W * ratio], np.int32), (FRAMES, 1)),
        "frames/voxel/3": voxel,
        "frames/blur": blur,
        "sequences/offsets": np.array([0, 4, FRAMES]),
        "sequences/name": [name, "b"],
        "sources/path": list("abcdef"),
    }
    path = make_store("spike", arrays, count=FRAMES, table="frames")
    return path, {"spike": spikes, "blur": blur, "voxel": voxel}


CROPS = ((40, 6), (8, 40), (39, 41), (4, 4))


@pytest.mark.parametrize(
    ("pad", "crop", "ratio"),
    [
        *((pad, CROPS[0], 2) for pad in PADS),
        *((pad, crop, ratio) for pad, ratio in (("valid", 1), ("edge", 2)) for crop in CROPS[1:]),
    ],
)
def test_clips_are_padded_like_numpy_pad(
    make_store: Any, pad: Any, crop: tuple[int, int], ratio: int
) -> None:
    path, held = write_frames(make_store, ratio)
    kind = unistore.Clips(2, crop=crop, pad=pad)
    said = ["valid", "spike_valid", "valid_extent", "spike_valid_extent"]
    fields = ["spike", "spike_packed", "voxel", "blur", "corner", "frame", *said]
    dataset = unistore.Dataset(path, kind, fields, seed=3)
    assert len(dataset) == 4
    for sample in dataset:
        frames = slice(int(sample["frame"]), int(sample["frame"]) + 2)
        top, left = sample["corner"].tolist()
        # the crop's share of the image, of the spikes, rounded
        small = tuple(max(1, int(extent / ratio + 0.5)) for extent in crop)
        blur = held["blur"][frames, top : top + crop[0], left : left + crop[1]]
        found = sample["blur"].permute(0, 2, 3, 1).numpy()
        assert np.array_equal(found, padded(blur, (2, *crop, 3), pad))
        top = min(top // ratio, max(0, H - small[0]))
        left = min(left // ratio, max(0, W - small[1]))
        box = (slice(top, top + small[0]), slice(left, left + small[1]))
        spike = padded(held["spike"][frames, :, *box], (2, STEPS, *small), pad, number=False)
        assert np.array_equal(sample["spike"].numpy(), spike)
        bits = np.packbits(spike, axis=-1, bitorder="little")
        assert np.array_equal(sample["spike_packed"].numpy(), bits)
        voxel = padded(held["voxel"][frames, :, *box], (2, 3, *small), pad, number=False)
        assert np.array_equal(sample["voxel"].numpy(), voxel)
        inside = held["spike"][0, 0][box].shape
        assert sample["valid_extent"].tolist() == list(blur.shape[1:3])
        assert sample["spike_valid_extent"].tolist() == list(inside)
        assert np.array_equal(sample["valid"].numpy(), padded(np.ones(blur.shape[1:3], bool), crop, "zero"))
        assert np.array_equal(sample["spike_valid"].numpy(), padded(np.ones(inside, bool), small, "zero"))
    natural = unistore.Dataset(path, kind).fields
    assert natural == ("voxel", "blur", *(("valid_extent", "spike_valid_extent") if pad == "valid" else ()))


def test_clips_of_frames_that_differ_are_dropped_padded_or_ragged(make_store: Any) -> None:
    """Two cameras: dropped, padded, and masks that are ragged where whole frames are read."""
    extents = np.array([[8, 16]] * 2 + [[4, 9]] * 2, np.int32)
    blur = np.random.default_rng(0).integers(1, 255, (4, 8, 16, 3)).astype(np.uint8)
    arrays = {
        "frames/voxel/2": np.ones((4, 2, 8, 16), np.uint8),
        "frames/source": np.arange(4, dtype=np.int32),
        "sources/path": list("abcd"),
        "frames/spike_extent": extents,
        "frames/image_extent": extents,
        "frames/blur": blur,
        "sequences/offsets": np.array([0, 4]),
        "sequences/name": ["a"],
    }
    path = make_store("spike", arrays, count=4, table="frames")
    dropped = unistore.Dataset(path, unistore.Clips(2, crop=6, pad="drop"), ["frame"])
    assert [int(sample["frame"]) for sample in dropped] == [0]
    edge = unistore.Dataset(path, unistore.Clips(2, crop=(6, 10), pad="edge"))
    assert np.array_equal(
        edge[1]["blur"].permute(0, 2, 3, 1), padded(blur[2:, :4, :9], (2, 6, 10, 3), "edge")
    )
    with pytest.raises(InputError, match=r"crops of 6 × 10 pixels .* 1 of 2 clips; the smallest has 4 × 9"):
        len(unistore.Dataset(path, unistore.Clips(2, crop=(6, 10))))
    whole = unistore.Dataset(path, unistore.Clips(2, crop=None), ["blur", "valid", "valid_extent"])
    batch = unistore.collate(whole.__getitems__([1, 0]))
    assert batch["valid_shapes"].tolist() == batch["valid_extent"].tolist() == [[4, 9], [8, 16]]
    assert batch["valid"].all()
    joined = unistore.Dataset([path, path], unistore.Clips(2, crop=None), ["valid"])
    assert [tuple(sample["valid"].shape) for sample in joined] == [(8, 16), (4, 9)] * 2


EPISODES = (5, 1, 8, 3)


def write_episodes(make_store: Any) -> tuple[Path, dict[str, NDArray[Any]]]:
    rng = np.random.default_rng(6)
    total = sum(EPISODES)
    columns: dict[str, NDArray[Any]] = {
        "observation/image": rng.integers(1, 255, (total, 2, 3, 3)).astype(np.uint8),
        "observation/joint": rng.random((total, 4)),
        "action": rng.random((total, 2)).astype(np.float32),
        "terminated": rng.random(total) < 0.5,
        "task": rng.integers(-5, 5, total),
    }
    arrays: dict[str, Any] = {f"steps/{name}": values for name, values in columns.items()}
    arrays |= {"steps/next_valid": np.ones(total, bool), "episodes/offsets": np.cumsum([0, *EPISODES])}
    return make_store("trajectory", arrays, count=len(EPISODES), table="episodes"), columns


@pytest.mark.parametrize(("history", "horizon", "stride"), [(3, 4, 1), (1, 1, 2), (9, 2, 3), (2, 12, 1)])
@pytest.mark.parametrize("pad", ["valid", "edge", "zero", 0, 1])
def test_windows_are_padded_like_numpy_pad(
    make_store: Any, pad: Any, history: int, horizon: int, stride: int
) -> None:
    path, columns = write_episodes(make_store)
    dataset = unistore.Dataset(
        path, unistore.Windows(history=history, horizon=horizon, stride=stride, pad=pad)
    )
    bounds = np.cumsum([0, *EPISODES])
    mode: dict[str, Any] = {"mode": "edge"}
    if pad != "edge":
        mode = {"mode": "constant", "constant_values": 0 if isinstance(pad, str) else pad}
    at = 0
    for first, end in pairwise(bounds.tolist()):
        for step in range(0, end - first, stride):
            sample = dataset[at]
            at += 1
            for key, values in columns.items():
                before, behind = (history - 1, 0) if key.startswith("observation") else (0, horizon - 1)
                around = [(before, behind)] + [(0, 0)] * (values.ndim - 1)
                expected = np.pad(values[first:end], around, **mode)[step : step + before + behind + 1]
                assert np.array_equal(sample[key.replace("/", ".")].numpy(), expected), key
                mask = sample["history_valid" if key.startswith("observation") else "horizon_valid"]
                inside = np.pad(np.ones(end - first, bool), around[:1])[step : step + before + behind + 1]
                assert np.array_equal(mask.numpy(), inside)
    assert at == len(dataset)


def refused(dataset: unistore.Dataset) -> str:
    with pytest.raises(InputError) as found:
        len(dataset)
    return str(found.value)
