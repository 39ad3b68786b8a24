"""A Dataset that is given no kind of samples takes one that its data have."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import cv2
import h5py
import numpy as np
import pytest

import unistore
from tests.support.cases import events_of_two_cameras
from tests.support.golden_stores import STORES
from unistore.report.suggestions import natural_suggestion
from unistore.store.reader import Store

STEPS = 3  # of a frame


def write_sequence(folder: Path, name: str, frames: int, height: int, width: int) -> Path:
    """Write frames with their spikes, as in `tests.support.cases`."""
    rng = np.random.default_rng(frames)
    sequence = folder / name
    for role in ("spike", "sharp"):
        (sequence / role).mkdir(parents=True)
    for number in range(frames):
        spikes = rng.integers(0, 256, STEPS * height * width // 8, dtype=np.uint8)
        (sequence / "spike" / f"{number:03d}.dat").write_bytes(spikes.tobytes())
        pixels = rng.integers(0, 255, (height, width, 3), dtype=np.uint8)
        assert cv2.imwrite(str(sequence / "sharp" / f"{number:03d}.png"), pixels)
    return sequence


def clips(folder: Path, *sequences: tuple[int, int, int]) -> Path:
    """Convert sequences of so many frames, rows and columns."""
    for number, (frames, height, width) in enumerate(sequences):
        write_sequence(folder / "recordings", f"seq_{number}", frames, height, width)
    store = folder / "clips.zarr"
    unistore.convert(folder / "recordings", store, "spike")
    return store


def streams(folder: Path, *lengths: int) -> Path:
    """Convert streams of so many time steps, without images."""
    for number, length in enumerate(lengths):
        (folder / "streams").mkdir(exist_ok=True)
        np.save(folder / "streams" / f"{number}.npy", np.ones((length, 6, 8), np.uint8))
    store = folder / "streams.zarr"
    unistore.convert(folder / "streams", store, "spike")
    return store


def cloud(folder: Path) -> Path:
    """One point in one segment."""
    with h5py.File(folder / "cloud.h5", "w") as file:
        for name in "xyz":
            file[f"data/{name}"] = np.array([1.5])
        file["segments/segment_0000/indices"] = np.array([0])
    unistore.convert(folder / "cloud.h5", folder / "cloud.zarr", "point_cloud")
    return folder / "cloud.zarr"


def volume(folder: Path) -> Path:
    """A volume of 2 × 3 × 4 voxels."""
    np.save(folder / "volume.npy", np.arange(24, dtype=np.int16).reshape(2, 3, 4) * 40)
    unistore.convert(folder / "volume.npy", folder / "volume.zarr", "ct")
    return folder / "volume.zarr"


def episodes(folder: Path) -> Path:
    """Two episodes of one step."""
    with h5py.File(folder / "demos.hdf5", "w") as file:
        file.create_group("data").attrs["env_args"] = json.dumps({})
        for number in range(2):
            file[f"data/demo_{number}/actions"] = np.full((1, 2), number, np.float32)
            file[f"data/demo_{number}/obs/state"] = np.full((1, 3), number, np.float32)
    unistore.convert(folder / "demos.hdf5", folder / "demos.zarr", "trajectory")
    return folder / "demos.zarr"


def events(folder: Path) -> Path:
    """Recordings shorter than 50 ms."""
    (folder / "recordings").mkdir()
    return events_of_two_cameras(folder / "recordings").convert(folder / "events.zarr")


def row(folder: Path) -> Path:
    """One row of one number."""
    np.savez(folder / "row.npz", value=np.ones(1))
    unistore.convert(folder / "row.npz", folder / "row.zarr", "rows")
    return folder / "row.zarr"


def shapes_of(dataset: unistore.Dataset) -> dict[str, tuple[int, ...]]:
    return {key: tuple(value.shape) for key, value in dataset[0].items()}


@pytest.mark.parametrize("store", sorted(STORES.iterdir()), ids=lambda store: store.stem)
def test_every_golden_store_gives_samples(store: Path) -> None:
    dataset = unistore.Dataset(store)
    assert len(dataset) > 0
    for index in range(len(dataset)):
        assert dataset[index].keys() == {"index", *dataset.fields}
    if not (store / "unistore-versions").exists() and store.stem != "grown":
        assert dataset.samples == natural_suggestion(Store(store)).kind


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (cloud, unistore.Segments()),
        (volume, unistore.Volumes()),
        (episodes, unistore.Transitions()),
        (row, unistore.Rows()),
    ],
)
def test_small_clouds_volumes_and_episodes_have_their_declared_kind(
    make: Callable[[Path], Path], kind: object, tmp_path: Path
) -> None:
    dataset = unistore.Dataset(make(tmp_path))
    assert dataset[0]["index"] == 0
    assert dataset.samples == kind


def test_recordings_shorter_than_the_window_of_events_are_one_window(tmp_path: Path) -> None:
    dataset = unistore.Dataset(events(tmp_path))
    assert len(dataset[0]["t"]) > 0
    assert isinstance(dataset.samples, unistore.Events)
    assert dataset.samples.window != "50ms"


def test_frames_smaller_than_the_crop_are_cropped_to_the_smallest(tmp_path: Path) -> None:
    dataset = unistore.Dataset(clips(tmp_path, (6, 72, 128), (5, 96, 104)))
    assert shapes_of(dataset)["sharp"] == (5, 3, 72, 104)
    assert dataset.samples == unistore.Clips(crop=(72, 104))
    assert len(dataset) == 2 + 1


def test_a_crop_is_as_large_as_frames_allow_and_no_larger_than_declared(tmp_path: Path) -> None:
    dataset = unistore.Dataset(clips(tmp_path, (5, 40, 264)))
    assert dataset.samples == unistore.Clips(crop=(40, 256))
    assert shapes_of(dataset)["sharp"] == (5, 3, 40, 256)


def test_sequences_shorter_than_the_clip_give_clips_of_the_longest(tmp_path: Path) -> None:
    dataset = unistore.Dataset(clips(tmp_path, (2, 16, 24), (3, 16, 24)))
    assert dataset.samples == unistore.Clips(length=3, crop=(16, 24))
    assert len(dataset) == 1
    assert shapes_of(dataset)["sharp"] == (3, 3, 16, 24)


def test_streams_have_windows_of_steps_and_never_whole_recordings(tmp_path: Path) -> None:
    dataset = unistore.Dataset(streams(tmp_path, 250, 300))
    assert dataset.samples == unistore.Steps(length=200)
    assert shapes_of(dataset)["spike"] == (200, 6, 8)


def test_streams_shorter_than_a_window_of_steps_are_clips(tmp_path: Path) -> None:
    dataset = unistore.Dataset(streams(tmp_path, 20, 23))
    assert dataset.samples == unistore.Clips(length=2, crop=(6, 8))
    assert shapes_of(dataset)["spike"] == (2, 23, 6, 8)


def test_the_default_kind_fits_the_selected_samples(tmp_path: Path) -> None:
    clips(tmp_path, (5, 16, 24), (5, 32, 48))
    store = tmp_path / "split.zarr"
    unistore.convert(tmp_path / "recordings", store, "spike")
    few = unistore.Dataset(store, where={"source": "*seq_1*"})
    assert few.samples == unistore.Clips(crop=(32, 48))
    assert unistore.Dataset(store).samples == unistore.Clips(crop=(16, 24))


def test_a_given_kind_is_never_changed(tmp_path: Path) -> None:
    store = clips(tmp_path, (6, 72, 128))
    for given in (unistore.Clips(), "Clips()", "unistore.Clips(length=5, crop=256)"):
        dataset = unistore.Dataset(store, given)
        assert dataset.samples == unistore.Clips()
        with pytest.raises(unistore.InputError, match=r"Clips\(crop=\(72, 128\)\), which fits"):
            dataset[0]
        with pytest.raises(unistore.InputError, match="256 × 256 pixels do not fit"):
            len(pickle.loads(pickle.dumps(dataset)))


def test_stores_of_one_dataset_have_one_kind_that_fits_all(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    (tmp_path / "large").mkdir()
    paths = [clips(tmp_path / "large", (5, 32, 24)), clips(tmp_path / "small", (3, 16, 48), (5, 24, 48))]
    dataset = unistore.Dataset(paths)
    assert dataset.samples == unistore.Clips(crop=(24, 24))
    assert {tuple(dataset[index]["sharp"].shape) for index in range(len(dataset))} == {(5, 3, 24, 24)}


def test_each_version_of_a_store_has_the_kind_that_fits_it(tmp_path: Path) -> None:
    store = clips(tmp_path, (5, 48, 64))
    write_sequence(tmp_path / "recordings", "seq_9", 5, 16, 24)
    unistore.append(tmp_path / "recordings", store)
    dataset = unistore.Dataset(store)
    assert dataset.samples == unistore.Clips(crop=(16, 24))
    before = dataset.at_version(1)
    assert before.samples == unistore.Clips(crop=(48, 64))
    assert dataset.samples == unistore.Clips(crop=(16, 24))
    assert shapes_of(before)["sharp"] == (5, 3, 48, 64)
    with pytest.raises(unistore.InputError, match="do not fit into"):
        len(unistore.Dataset(store, unistore.Clips(crop=(48, 64)), version=1).at_version(2))


def test_an_epoch_is_not_finished_with_samples_of_another_kind(tmp_path: Path) -> None:
    store = clips(tmp_path, (6, 48, 64))
    with unistore.Loader(unistore.Dataset(store), num_workers=0) as loader:
        next(iter(loader))
        state = loader.state_dict()
    write_sequence(tmp_path / "recordings", "seq_9", 5, 16, 24)
    unistore.append(tmp_path / "recordings", store)
    with (
        unistore.Loader(unistore.Dataset(store), num_workers=0) as grown,
        pytest.raises(unistore.LoaderError, match="another sample kind"),
    ):
        grown.load_state_dict(state, extend=True)
    with unistore.Loader(unistore.Dataset(store, version=1), num_workers=0) as same:
        same.load_state_dict(state, extend=True)
        assert [tuple(batch["sharp"].shape) for batch in same] == [(1, 5, 3, 48, 64)]


def test_workers_statistics_and_counts_use_the_kind_that_fits(tmp_path: Path) -> None:
    store = clips(tmp_path, (6, 16, 24))
    fresh = unistore.Dataset(store)
    assert fresh.statistics("sharp").count.max() > 0
    copied = pickle.loads(pickle.dumps(unistore.Dataset(store)))
    assert copied.samples == fresh.samples == unistore.Clips(crop=(16, 24))
    assert "Clips(crop=(16, 24))" in repr(unistore.Dataset(store))
    with unistore.Loader(store, batch_size=2, num_workers=1, shuffle=False) as loader:
        batches = [batch["sharp"].shape for batch in loader]
    assert batches == [(2, 5, 3, 16, 24)]
    counted = unistore.Dataset(store, fields=["frame"])
    assert counted.label_counts("frame") == {0: 1, 1: 1}
