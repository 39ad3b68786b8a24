"""Clips: consecutive frames, one crop in every field, voxels computed from bits; against plain numpy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import unistore
from tests.support.spikes import stored_spikes
from unistore.errors import InputError
from unistore.order.permutation import EpochIndex

H, W, STEPS = 20, 37, 12
LENGTHS = (7, 2, 6)


@dataclass
class Recording:
    """A spike store and what is in it."""

    path: Path
    spikes: NDArray[np.uint8]
    lengths: NDArray[np.int32]
    blur: NDArray[np.uint8]
    sharp: NDArray[np.uint8]
    ratio: int

    def voxel(self, frame: int, bins: int) -> NDArray[np.uint8]:
        """The reference formula: ``bin = (t * B) // T``."""
        found = np.zeros((bins, H, W), np.uint8)
        for t in range(self.lengths[frame]):
            found[t * bins // self.lengths[frame]] += self.spikes[frame, t]
        return found


def record(
    make_store: Any, *, ratio: int = 2, bins: tuple[int, ...] = (5,), files: bool = False, splits: Any = None
) -> Recording:
    rng = np.random.default_rng(3)
    frames = sum(LENGTHS)
    lengths = rng.choice([STEPS, 9], frames).astype(np.int32)
    spikes = rng.integers(0, 2, (frames, STEPS, H, W)).astype(np.uint8)
    for frame, length in enumerate(lengths):
        spikes[frame, length:] = 0
    # smooth colours, distinct in every frame, so that neighbouring crops differ
    blur = rng.integers(0, 255, (frames, H * ratio, W * ratio, 3)).astype(np.uint8)
    sharp = blur[::-1].copy()
    names = [f"train/{name}" for name in "abc"]
    arrays: dict[str, Any] = {
        **stored_spikes([frame[:length] for frame, length in zip(spikes, lengths, strict=True)]),
        "frames/source": np.repeat(np.arange(3, dtype=np.int32), LENGTHS),
        "frames/spike_extent": np.tile(np.array([H, W], np.int32), (frames, 1)),
        "frames/image_extent": np.tile(np.array([H * ratio, W * ratio], np.int32), (frames, 1)),
        "sequences/offsets": np.cumsum([0, *LENGTHS]),
        "sequences/name": names,
        "sources/path": names,
    }
    found = Recording(Path(), spikes, lengths, blur, sharp, ratio)
    for count in bins:
        arrays[f"frames/voxel/{count}"] = np.stack([found.voxel(frame, count) for frame in range(frames)])
    for name, images in (("blur", blur), ("sharp", sharp)):
        if files:
            encoded = [cv2.imencode(".png", image[:, :, ::-1])[1] for image in images]
            arrays[f"frames/{name}_file/data"] = np.concatenate(encoded)
            arrays[f"frames/{name}_file/offsets"] = np.cumsum([0, *map(len, encoded)])
        else:
            arrays[f"frames/{name}"] = images
    found.path = make_store(
        "spike",
        arrays,
        count=frames,
        table="frames",
        chunks={
            "spikes/bits": (5, 8, 2),
            "frames/voxel/5": (1, 5, 8, 16),
            "frames/blur": (1, 16, 16, 3),
            "frames/sharp": (1, 16, 16, 3),
        },
        splits=splits,
    )
    return found


@pytest.mark.parametrize(("stride", "length", "firsts"), [(1, 5, [0, 1, 2, 9, 10]), (3, 2, [0, 3, 7, 9, 12])])
def test_clips_stay_inside_their_sequence(
    make_store: Any, stride: int, length: int, firsts: list[int]
) -> None:
    kind = unistore.Clips(length, stride, crop=16)
    dataset = unistore.Dataset(record(make_store).path, kind, ["frame", "sequence", "source"])
    assert [int(sample["frame"]) for sample in dataset] == firsts
    assert [sample["sequence"] for sample in dataset] == [sample["source"] for sample in dataset]
    assert dataset[-1]["sequence"] == "train/c"


@pytest.mark.parametrize("files", [False, True])
@pytest.mark.parametrize("ratio", [1, 2])
def test_every_field_of_a_clip_has_the_same_crop(make_store: Any, files: bool, ratio: int) -> None:
    recording = record(make_store, ratio=ratio, files=files)
    fields = ("voxel", "spike", "spike_packed", "spike_length", "blur", "sharp", "frame", "corner")
    kind = unistore.Clips(length=3, crop=(14, 10), fields=fields)
    dataset = unistore.Dataset(recording.path, kind, seed=1)
    height, width = 14 // ratio, 10 // ratio
    seen = set()
    for sample in dataset.__getitems__([EpochIndex(i, 5) for i in range(len(dataset))]):
        first = int(sample["frame"])
        top, left = sample["corner"].tolist()
        seen.add((top, left))
        assert top % ratio == left % ratio == 0
        for name, images in (("blur", recording.blur), ("sharp", recording.sharp)):
            expected = images[first : first + 3, top : top + 14, left : left + 10]
            assert np.array_equal(sample[name].permute(0, 2, 3, 1).numpy(), expected)
        top, left = top // ratio, left // ratio
        box = (slice(top, top + height), slice(left, left + width))
        spikes = recording.spikes[first : first + 3, :, *box]
        assert np.array_equal(sample["spike"].numpy(), spikes)
        assert np.array_equal(sample["spike_packed"].numpy(), np.packbits(spikes, axis=-1, bitorder="little"))
        assert np.array_equal(sample["spike_length"].numpy(), recording.lengths[first : first + 3])
        for at in range(3):
            assert np.array_equal(sample["voxel"][at].numpy(), recording.voxel(first + at, 5)[:, *box])
    assert len(seen) > 4


def test_crops_are_random_in_the_epoch_and_centred_otherwise(make_store: Any) -> None:
    path = record(make_store).path
    random = unistore.Dataset(path, unistore.Clips(crop=16), ["corner"])
    drawn = {tuple(random[EpochIndex(0, epoch)]["corner"].tolist()) for epoch in range(300)}
    assert {top for top, _ in drawn} == set(range(0, 25, 2))
    assert {left for _, left in drawn} == set(range(0, 59, 2))
    assert torch.equal(
        random[EpochIndex(2, 7)]["corner"], random.__getitems__([0, EpochIndex(2, 7)])[1]["corner"]
    )
    centre = unistore.Dataset(path, unistore.Clips(crop=16, random=False), ["corner"])
    assert {tuple(sample["corner"].tolist()) for sample in centre} == {(12, 28)}


@pytest.mark.parametrize("bins", [1, 4, 5, 10, 12, 13])
def test_voxels_from_bits_equal_the_formula(make_store: Any, bins: int) -> None:
    recording = record(make_store, bins=(5,))
    kind = unistore.Clips(length=2, crop=(22, 26), voxel_bins=bins)
    for sample in unistore.Dataset(recording.path, kind, ["voxel", "frame", "corner"]):
        top, left = (sample["corner"] // 2).tolist()
        expected = recording.voxel(int(sample["frame"]) + 1, bins)[:, top : top + 11, left : left + 13]
        assert np.array_equal(sample["voxel"][1].numpy(), expected)
        assert sample["voxel"].dtype == torch.uint8


def test_frames_of_several_resolutions_are_cut_to_their_own_extents(make_store: Any) -> None:
    extents = np.array([[8, 16], [8, 16], [4, 9], [4, 9]], np.int32)
    spikes = [np.ones((6, height, width), np.uint8) for height, width in extents]
    blur = np.arange(4 * 8 * 16 * 3, dtype=np.uint8).reshape(4, 8, 16, 3)
    path = make_store(
        "spike",
        {
            **stored_spikes(spikes),
            "frames/spike_extent": extents,
            "frames/image_extent": extents,
            "frames/blur": blur,
            "sequences/offsets": np.array([0, 4]),
            "sequences/name": ["a"],
            "sources/path": list("abcd"),
        },
        count=4,
        table="frames",
    )
    dataset = unistore.Dataset(path, unistore.Clips(length=2, crop=None))
    assert dataset.fields == ("spike", "spike_length", "blur")
    samples = dataset.__getitems__([1, 0])
    assert samples[0]["spike"].shape == (2, 6, 4, 9)
    assert samples[0]["blur"].shape == (2, 3, 4, 9)
    assert np.array_equal(samples[0]["blur"].permute(0, 2, 3, 1).numpy(), blur[2:, :4, :9])
    batch = unistore.collate(samples)
    assert batch["blur_shapes"].tolist() == [[2, 3, 4, 9], [2, 3, 8, 16]]
    assert unistore.collate(samples, ragged="padded")["blur"].shape == (2, 2, 3, 8, 16)
    cropped = unistore.Dataset(path, unistore.Clips(length=2, crop=4)).__getitems__([0, 1])
    assert unistore.collate(cropped)["blur"].shape == (2, 2, 3, 4, 4)
    with pytest.raises(InputError, match=r"length=3 leaves no samples: at most 2 frames"):
        len(unistore.Dataset(path, unistore.Clips(length=3)))


def test_names_renames_keys_and_unknown_or_doubled_names_are_an_error(make_store: Any) -> None:
    path, kind = record(make_store).path, unistore.Clips(crop=16, random=False)
    plain, named = unistore.Dataset(path, kind), unistore.Dataset(path, kind, names={"voxel": "spike_vox"})
    assert list(named[0]) == ["index", "spike_vox", "blur", "sharp"]
    loader = unistore.Loader(named, batch_size=2, shuffle=False, num_workers=0)
    batch = next(iter(loader))
    assert torch.equal(batch["spike_vox"], unistore.collate([plain[0], plain[1]])["voxel"])
    for wrong, said in (
        ({"vox": "v"}, "the Dataset does not read 'vox'.*keys of voxel, blur, sharp"),
        ({"voxel": "blur"}, "several keys would get the name 'blur'"),
        ({"voxel": "index"}, "several keys would get the name 'index'"),
        (["voxel"], "names: must be a mapping"),
    ):
        with pytest.raises(InputError, match=said):
            unistore.Dataset(path, kind, names=wrong)


def test_damaged_frames_are_named(make_store: Any) -> None:
    path = make_store(
        "spike",
        {
            "frames/spike_extent": np.array([[4, 8]], np.int32),
            "frames/image_extent": np.array([[4, 8]], np.int32),
            "frames/voxel/2": np.zeros((1, 2, 4, 8), np.uint8),
            "frames/source": np.zeros(1, np.int32),
            "frames/blur_file/data": np.zeros(50, np.uint8),
            "frames/blur_file/offsets": np.array([0, 50]),
            "sequences/offsets": np.array([0, 1]),
            "sequences/name": ["a"],
            "sources/path": ["a"],
        },
        count=1,
        table="frames",
    )
    with pytest.raises(unistore.CorruptionError, match="frames/blur_file/data: frame 0 cannot be decoded"):
        unistore.Dataset(path, unistore.Clips(1, crop=4))[0]
