"""Windows of time steps: pixels, bits, voxels and gray pictures, against plain numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import unistore
from tests.support.spikes import stored_spikes
from unistore.errors import InputError
from unistore.order.permutation import EpochIndex

H, W = 20, 37
LENGTHS = (50, 7, 33)
NUMBERS = ["frame", "step", "corner"]


def recordings(lengths: tuple[int, ...] = LENGTHS, size: tuple[int, int] = (H, W)) -> list[NDArray[np.uint8]]:
    rng = np.random.default_rng(3)
    return [(rng.random((length, *size)) < 0.15).astype(np.uint8) for length in lengths]


def write(make_store: Any, spikes: list[NDArray[np.uint8]]) -> Path:
    count = len(spikes)
    arrays = {
        **stored_spikes(spikes),
        "frames/spike_extent": np.array([frame.shape[1:] for frame in spikes], np.int32),
        "sequences/offsets": np.array([0, 1, count]),
        "sequences/name": ["a", "b"],
        "sources/path": [f"{number}.dat" for number in range(count)],
    }
    path: Path = make_store("spike", arrays, count=count, table="frames", chunks={"spikes/bits": (8, 8, 2)})
    return path


def counted(window: NDArray[np.uint8], bins: int) -> NDArray[np.int64]:
    found = np.zeros((bins, *window.shape[1:]), np.int64)
    for t in range(len(window)):
        found[t * bins // len(window)] += window[t]
    return found


def interval_picture(window: NDArray[np.uint8]) -> NDArray[np.float32]:
    """One over the steps between the spikes around the middle, pixel by pixel."""
    picture = np.zeros(window.shape[1:], np.float32)
    middle = len(window) // 2
    for y, x in np.ndindex(picture.shape):
        fired = np.flatnonzero(window[:, y, x])
        before, behind = fired[fired <= middle], fired[fired > middle]
        if len(before) and len(behind):
            picture[y, x] = np.float32(1) / np.float32(behind[0] - before[-1])
    return picture


@pytest.mark.parametrize("crop", [None, (9, 14), (5, 8)])
def test_every_key_of_a_window_has_the_same_steps_and_crop(
    make_store: Any, crop: tuple[int, int] | None
) -> None:
    spikes = recordings()
    path = write(make_store, spikes)
    fields = ["spike", "spike_packed", "voxel", "tfp", "tfi", "source", "sequence", *NUMBERS]
    dataset = unistore.Dataset(path, unistore.Steps(21, stride=4, crop=crop, voxel_bins=5), fields, seed=2)
    places = []
    for sample in dataset.__getitems__([EpochIndex(number, 3) for number in range(len(dataset))]):
        frame, step = int(sample["frame"]), int(sample["step"])
        top, left = sample["corner"].tolist()
        height, width = crop or (H, W)
        window = spikes[frame][step : step + 21, top : top + height, left : left + width]
        places.append((frame, step))
        assert np.array_equal(sample["spike"], window)
        assert np.array_equal(sample["spike_packed"], np.packbits(window, axis=-1, bitorder="little"))
        assert np.array_equal(sample["voxel"], counted(window, 5))
        assert np.array_equal(sample["tfp"], window.sum(axis=0).astype(np.float32) / np.float32(21))
        assert np.array_equal(sample["tfi"], interval_picture(window))
        assert (sample["source"], sample["sequence"]) == (f"{frame}.dat", "a" if frame == 0 else "b")
    assert places == [(0, step) for step in range(0, 30, 4)] + [(2, step) for step in range(0, 13, 4)]


def test_the_default_key_is_spikes_or_the_requested_voxels(make_store: Any) -> None:
    path = write(make_store, recordings())
    assert unistore.Dataset(path, unistore.Steps(8)).fields == ("spike",)
    voxels = unistore.Dataset(path, unistore.Steps(600, voxel_bins=2, fields=("voxel",)), ["spike"])
    assert voxels.fields == ("spike",)
    sample = unistore.Dataset(path, "Steps(8, voxel_bins=3)")[0]
    assert {key: (tuple(value.shape), value.dtype) for key, value in sample.items()} == {
        "index": ((), torch.int64),
        "voxel": ((3, H, W), torch.uint8),
    }
    with pytest.raises(InputError, match=r"the samples have no 'voxel'.*samples, spike"):
        unistore.Dataset(path, unistore.Steps(8), ["voxel"])


def test_counts_above_255_get_two_bytes(make_store: Any) -> None:
    path = write(make_store, [np.ones((600, 3, 9), np.uint8)] * 2)
    for length, bins, dtype in ((600, 2, torch.uint16), (600, 3, torch.uint8)):
        voxel = unistore.Dataset(path, unistore.Steps(length, voxel_bins=bins))[0]["voxel"]
        assert voxel.dtype == dtype
        assert (voxel.numpy() == length // bins).all()


def test_recordings_of_several_cameras_are_ragged_unless_cropped(make_store: Any) -> None:
    spikes = [recordings((12,), (8, 16))[0], recordings((12,), (4, 9))[0]]
    path = write(make_store, spikes)
    whole = unistore.Dataset(path, unistore.Steps(12), ["spike", "spike_packed", "tfp"])
    batch = unistore.collate(whole.__getitems__([1, 0]))
    assert batch["spike_shapes"].tolist() == [[12, 4, 9], [12, 8, 16]]
    assert batch["spike_packed_shapes"].tolist() == [[12, 4, 2], [12, 8, 2]]
    assert batch["tfp_shapes"].tolist() == [[4, 9], [8, 16]]
    assert np.array_equal(whole[1]["spike"], spikes[1])
    cropped = unistore.Dataset(path, unistore.Steps(12, crop=4), ["spike"]).__getitems__([0, 1])
    assert unistore.collate(cropped)["spike"].shape == (2, 12, 4, 4)
    with pytest.raises(InputError, match=r"crops of 6 × 6 pixels .* 1 of 2 windows.*crop=\(4, 6\)\)"):
        len(unistore.Dataset(path, unistore.Steps(12, crop=6)))


def test_windows_longer_than_any_recording_are_an_error_with_the_longest(make_store: Any) -> None:
    path = write(make_store, recordings())
    with pytest.raises(
        InputError, match=r"length=51 leaves no samples: .* 50 time steps.*Steps\(length=50\)"
    ):
        len(unistore.Dataset(path, unistore.Steps(51)))
    for wrong, said in (({"length": 0}, "length"), ({"stride": 0}, "stride"), ({"crop": (1, 2, 3)}, "crop")):
        with pytest.raises(InputError, match=said):
            unistore.Steps(**wrong)


def test_stores_without_spikes_are_refused(make_store: Any) -> None:
    arrays = {
        "frames/voxel/2": np.ones((1, 2, 8, 16), np.uint8),
        "frames/source": np.zeros(1, np.int32),
        "frames/spike_extent": np.array([[8, 16]], np.int32),
        "sequences/offsets": np.array([0, 1]),
        "sequences/name": ["a"],
        "sources/path": ["a"],
    }
    voxels = make_store("spike", arrays, count=1, table="frames")
    with pytest.raises(InputError, match="Steps cannot read this spike store, which has no spikes/bits"):
        unistore.Dataset(voxels, unistore.Steps(1))
