"""Camera frames: compressed ones kept or decoded, resized sets, channel order (synthetic files)."""

from __future__ import annotations

from pathlib import Path

import cv2
import h5py
import numpy as np
import pytest

import unistore
from tests.support.converter_contract import check_contract, convert_in_memory
from tests.support.family_converters import trajectory
from unistore.converters.source_scan import scan_sources
from unistore.errors import InputError

RANDOM = np.random.default_rng(11)
CAMERAS = ("cam_high", "cam_low", "cam_left_wrist")
"""In the order of a recorder, which is not the file's alphabetical one."""


def picture(height: int = 48, width: int = 64) -> np.ndarray:
    """A smooth picture with a strong colour, so that exchanged channels show."""
    base = cv2.resize(RANDOM.integers(0, 256, (6, 8, 3), np.uint8), (width, height))
    base[..., 0] |= 0x80
    return base


def jpeg(image: np.ndarray) -> np.ndarray:
    """Compressed by OpenCV from an RGB picture, true colours."""
    return cv2.imencode(".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR))[1].reshape(-1)


def decoded(frame: np.ndarray) -> np.ndarray:
    return cv2.imdecode(frame, cv2.IMREAD_COLOR)[..., ::-1]


def act(path: Path, steps: int, *, damage: tuple[int, int] | None = None) -> dict[str, list[np.ndarray]]:
    """Synthetic ACT file with zero-padded JPEG frames and float32 lengths in the recorder's camera order."""
    frames = {camera: [jpeg(picture()) for _ in range(steps)] for camera in CAMERAS}
    longest = max(frame.size for camera in CAMERAS for frame in frames[camera])
    with h5py.File(path, "w") as file:
        file.attrs.update({"sim": False, "compress": True})
        file["action"] = np.zeros((steps, 14))
        file["observations/qpos"] = np.zeros((steps, 14))
        for camera, compressed in frames.items():
            padded = np.zeros((steps, longest), np.uint8)
            for row, frame in enumerate(compressed):
                padded[row, : frame.size] = frame
            if damage is not None and camera == "cam_low":
                padded[damage[0], damage[1] :] = 0
            file.create_dataset(f"observations/images/{camera}", data=padded, chunks=(1, longest))
        lengths = [[frame.size for frame in frames[camera]] for camera in CAMERAS]
        file["compress_len"] = np.array(lengths, np.float32)
    return frames


def test_compressed_frames_are_decoded_and_stored(tmp_path: Path) -> None:
    parts = [act(tmp_path / f"episode_{k}.hdf5", 3 + k) for k in range(3)]
    oracle = {
        f"steps/observation/images/{camera}": np.stack([decoded(f) for part in parts for f in part[camera]])
        for camera in CAMERAS
    }
    converted = check_contract(trajectory(), [tmp_path], oracle)
    assert not [path for path in converted.arrays if "compress_len" in path]
    note = next(note for note in converted.scan.notes if note.startswith("compressed frames"))
    assert "cam_high" in note
    assert "standard" in note


def test_images_keep_stores_compressed_frames_bit_for_bit(tmp_path: Path) -> None:
    parts = [act(tmp_path / f"episode_{k}.hdf5", 3 + k) for k in range(3)]
    oracle = {}
    for camera in CAMERAS:
        frames = [frame for part in parts for frame in part[camera]]
        path = f"steps/observation/images/{camera}_jpeg"
        oracle[f"{path}/data"] = np.concatenate(frames)
        oracle[f"{path}/offsets"] = np.cumsum([0, *(frame.size for frame in frames)])
    converted = check_contract(trajectory(images="keep"), [tmp_path], oracle)
    attributes = converted.fields["steps/observation/images/cam_low_jpeg/data"].attributes
    assert attributes == {
        "colour": "standard",
        "shape": [48, 64, 3],
        "dtype": "uint8",
        "source_dataset": ["observations/images/cam_low"],
        "source_form": ["padded"],
    }
    assert "steps/observation/images/cam_low" not in converted.arrays
    assert [table.name for table in converted.finalized.spilled] == [
        f"steps/observation/images/{camera}_jpeg" for camera in sorted(CAMERAS)
    ]


def test_kept_frames_of_a_camera_that_an_episode_lacks_are_zeros(tmp_path: Path) -> None:
    frames = act(tmp_path / "a.hdf5", 3)["cam_high"]
    act(tmp_path / "b.hdf5", 2)
    with h5py.File(tmp_path / "b.hdf5", "r+") as file:
        del file["observations/images/cam_high"]
    store = tmp_path / "out.zarr"
    unistore.convert([tmp_path / "a.hdf5", tmp_path / "b.hdf5"], store, images="keep", columns="union")
    dataset = unistore.Dataset(store)
    key = "observation.images.cam_high"
    images = [dataset[index][key].numpy().transpose(1, 2, 0) for index in range(5)]
    np.testing.assert_array_equal(images, [*map(decoded, frames), *np.zeros((2, 48, 64, 3), np.uint8)])
    assert [bool(dataset[index][f"{key}_present"]) for index in range(5)] == [True] * 3 + [False] * 2
    assert unistore.verify(store, against=[tmp_path / "a.hdf5", tmp_path / "b.hdf5"]).ok


@pytest.mark.parametrize("images", ["raw", "keep"])
def test_resized_frames_equal_opencv_beside_kept_or_decoded_ones(tmp_path: Path, images: str) -> None:
    frames = act(tmp_path / "episode_0.hdf5", 4)
    small = [
        cv2.resize(np.ascontiguousarray(decoded(f)), (32, 32), interpolation=cv2.INTER_LINEAR)
        for f in frames["cam_high"]
    ]
    oracle = {"steps/observation/images/cam_high_32": np.stack(small)}
    check_contract(trajectory(image_size=32, images=images), [tmp_path], oracle)


def test_colour_swapped_restores_the_rgb_of_swapped_recorders(tmp_path: Path) -> None:
    """A recorder that gave OpenCV RGB arrays: without converting back, its decoder returns RGB."""
    pictures = [picture() for _ in range(3)]
    frames = [cv2.imencode(".jpg", image)[1].reshape(-1) for image in pictures]
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["action"] = np.zeros((3, 2))
        file["observations/qpos"] = np.zeros((3, 2))
        dataset = file.create_dataset("observations/images/top", (3,), h5py.vlen_dtype(np.uint8))
        for row, frame in enumerate(frames):
            dataset[row] = frame
    oracle = {"steps/observation/images/top": np.stack([cv2.imdecode(f, 1) for f in frames])}
    converted = check_contract(trajectory(colour="swapped"), [tmp_path], oracle)
    shown = converted.arrays["steps/observation/images/top"].astype(int)
    assert np.abs(shown - np.stack(pictures)).mean() < 12


def test_variable_length_colour_and_depth_frames_are_decoded(tmp_path: Path) -> None:
    """RoboMIND: one byte string a step, no action of that name (synthetic)."""
    frames = [jpeg(picture()) for _ in range(4)]
    depth = [RANDOM.integers(0, 4000, (48, 64)).astype(np.uint16) for _ in range(4)]
    with h5py.File(tmp_path / "trajectory.hdf5", "w") as file:
        kinds = (
            ("rgb_images", frames),
            ("depth_images", [cv2.imencode(".png", d)[1].reshape(-1) for d in depth]),
        )
        for name, listed in kinds:
            dataset = file.create_dataset(f"observations/{name}/top", (4,), h5py.vlen_dtype(np.uint8))
            for row, frame in enumerate(listed):
                dataset[row] = frame
        file["master/joint_position"] = np.ones((4, 8))
        file["puppet/joint_position"] = np.zeros((4, 8))
        file["language_raw"] = np.array([b"pick the plate"], dtype=h5py.string_dtype())
    oracle = {
        "steps/action": np.ones((4, 8)),
        "steps/puppet/joint_position": np.zeros((4, 8)),
        "steps/observation/rgb_images/top": np.stack([decoded(frame) for frame in frames]),
        "steps/observation/depth_images/top": np.stack(depth),
    }
    converter = trajectory(map={"action": "master/joint_position"})
    converted = check_contract(converter, [tmp_path], oracle)
    assert converted.finalized.groups["episodes"]["attributes"] == {"language_raw": ["pick the plate"]}
    kept = check_contract(trajectory(images="keep"), [tmp_path])
    assert kept.arrays["steps/observation/rgb_images/top_jpeg/data"].size == sum(f.size for f in frames)


@pytest.mark.parametrize("following", [True, False])
def test_images_resized_stores_only_the_resized_frames(tmp_path: Path, following: bool) -> None:
    image = np.stack([picture() for _ in range(11)])
    depth = RANDOM.random((5, 20, 20, 1), np.float32)
    now, after = (image[:5], image[1:6]) if following else (image[:5], image[5:10])
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["data/demo_0/actions"] = np.zeros((5, 2))
        file["data/demo_0/obs/image"], file["data/demo_0/next_obs/image"] = now, after
        file["data/demo_0/obs/depth_20"] = file["data/demo_0/next_obs/depth_20"] = depth
    small = np.stack([cv2.resize(one, (20, 20), interpolation=cv2.INTER_LINEAR) for one in image])
    oracle = {"steps/observation/image": small[:5]}
    if following:
        oracle["episodes/final_observation/image"] = small[5:6]
    else:
        oracle["steps/next_observation/image"] = small[5:10]
    converted = check_contract(trajectory(image_size=20, images="resized"), [tmp_path], oracle)
    assert not [path for path in converted.arrays if path.endswith("/image_20")]
    field = converted.fields["steps/observation/image"]
    assert field.axes == ("step", "image_y", "image_x", "channel")
    assert field.attributes["source_shape"] == [48, 64, 3]
    assert "resized_from" not in field.attributes
    np.testing.assert_array_equal(converted.arrays["steps/observation/depth_20"], depth)
    if following:
        np.testing.assert_array_equal(converted.arrays["steps/next_observation/depth_20"], depth)
    store = tmp_path / "a.zarr"
    report = unistore.convert(tmp_path / "a.hdf5", store, image_size=20, images="resized")
    both = unistore.convert(tmp_path / "a.hdf5", tmp_path / "both.zarr", image_size=20)
    assert both.raw_bytes - report.raw_bytes >= image[:5].nbytes
    found = unistore.verify(store, against=tmp_path / "a.hdf5")
    assert found.ok
    assert found.receipt is not None
    samples, raw = unistore.Dataset(store), tmp_path / "raw.zarr"
    after = samples[4]["next.observation.image"].permute(1, 2, 0).numpy()
    assert np.array_equal(after, small[5 if following else 9])
    unistore.convert(tmp_path / "a.hdf5", raw)
    assert samples.fields == unistore.Dataset(raw).fields
    done = unistore.export(store, tmp_path / "back")
    assert done.notes[0].endswith("image: written as 20 × 20, as stored; the originals are not in the store")
    with h5py.File(tmp_path / "back/a.hdf5") as file:
        assert np.array_equal(file["data/demo_0/obs/image"], small[:5])
        assert np.array_equal(file["data/demo_0/next_obs/image"], small[1:6] if following else small[5:10])
        assert np.array_equal(file["data/demo_0/obs/depth_20"], depth)
    assert unistore.export(tmp_path / "both.zarr", tmp_path / "whole").notes == ()
    with h5py.File(tmp_path / "whole/a.hdf5") as file:
        assert np.array_equal(file["data/demo_0/obs/image"], now)


def test_a_frame_cut_short_is_refused_when_read_and_when_kept(tmp_path: Path) -> None:
    act(tmp_path / "episode_0.hdf5", 4, damage=(2, 200))
    for images in ("raw", "keep"):
        with pytest.raises(
            InputError, match=r"episode_0.hdf5: observations/images/cam_low row 2: .*200 bytes"
        ):
            convert_in_memory(trajectory(images=images), [tmp_path])


def test_frames_of_mixed_sizes_are_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["action"] = np.zeros((2, 2))
        dataset = file.create_dataset("observations/images/top", (2,), h5py.vlen_dtype(np.uint8))
        dataset[0], dataset[1] = jpeg(picture()), jpeg(picture(24, 32))
    with pytest.raises(
        InputError, match=r"row 1: the frame has shape \(24, 32, 3\), but the first one has \(48, 64, 3\)"
    ):
        convert_in_memory(trajectory(), [tmp_path])


def test_plain_and_compressed_frames_of_one_camera_cannot_be_kept_together(tmp_path: Path) -> None:
    for name, compressed in (("episode_0.h5", True), ("episode_1.h5", False)):
        with h5py.File(tmp_path / name, "w") as file:
            file["action"] = np.zeros((1, 2))
            if compressed:
                dataset = file.create_dataset("observations/images/top", (1,), h5py.vlen_dtype(np.uint8))
                dataset[0] = jpeg(picture())
            else:
                file["observations/images/top"] = picture()[None]
    assert len(scan_sources(trajectory(), [tmp_path]).sources) == 2
    with pytest.raises(InputError, match="compressed in some sources, but not in others"):
        scan_sources(trajectory(images="keep"), [tmp_path])


def test_frames_with_channels_first_are_resized_with_channels_last(tmp_path: Path) -> None:
    image = np.stack([picture() for _ in range(6)])
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["data/demo_0/actions"] = np.zeros((5, 2))
        for name, images in (("obs", image[:-1]), ("next_obs", image[1:])):
            file[f"data/demo_0/{name}/image"] = images.transpose(0, 3, 1, 2)
            file[f"data/demo_0/{name}/depth"] = np.zeros((5, 48, 64, 1), np.float32)
    small = np.stack([cv2.resize(one, (24, 24), interpolation=cv2.INTER_LINEAR) for one in image])
    oracle = {
        "steps/observation/image": image[:-1],
        "steps/observation/image_24": small[:-1],
        "episodes/final_observation/image": image[-1:],
        "episodes/final_observation/image_24": small[-1:],
    }
    converted = check_contract(trajectory(image_size=24), [tmp_path], oracle)
    assert "steps/observation/depth_24" not in converted.arrays
    axes = converted.fields["steps/observation/image_24"].axes
    assert axes == ("step", "image_24_y", "image_24_x", "channel")


def test_a_camera_with_a_number_in_its_name_keeps_its_own_images(tmp_path: Path) -> None:
    large, small = (np.stack([picture(side, side) for _ in range(6)]) for side in (16, 8))
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["data/demo_0/actions"] = np.zeros((5, 2))
        for name, images in (("image", large), ("image_8", small)):
            file[f"data/demo_0/obs/{name}"], file[f"data/demo_0/next_obs/{name}"] = images[:-1], images[1:]
    oracle = {
        "episodes/final_observation/image": large[-1:],
        "episodes/final_observation/image_8": small[-1:],
    }
    check_contract(trajectory(), [tmp_path], oracle)
