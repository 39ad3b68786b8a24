"""Frames beside streams: their size tells that of the streams, and a missing one costs a frame."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.support.family_converters import spike as spike_converter
from tests.support.spike_recordings import sequences, stream
from tests.support.spikes import stored_spikes
from unistore import convert, verify
from unistore.converters.source_scan import scan_sources
from unistore.errors import InputError
from unistore.store.reader import open_zarr


def assert_stored(store: Path, frames: Sequence[np.ndarray]) -> None:
    stored = open_zarr(store)
    for name, values in stored_spikes(frames).items():
        np.testing.assert_array_equal(stored[name][...], values, err_msg=name)


@pytest.mark.parametrize(
    ("size", "images"), [((48, 80), (48, 80)), ((24, 40), (48, 80)), ((396, 640), (396, 640))]
)
@pytest.mark.parametrize("layout", ["packed", "bytes"])
def test_the_size_of_frames_is_that_of_streams_or_twice_it(
    tmp_path: Path, size: tuple[int, int], images: tuple[int, int], layout: str
) -> None:
    """316,800 bytes are 10 steps of 396 x 640 in packed bits, and 11 of a camera of 360 x 640."""
    made = sequences(tmp_path / "in", {"train/a": (10, 12)}, size=size, images=images, layout=layout)
    convert(made.root, tmp_path / "out.zarr", "spike")
    assert_stored(tmp_path / "out.zarr", list(made.spikes.values()))
    assert verify(tmp_path / "out.zarr", against=made.root).ok


def test_similar_rows_win_over_the_size_of_frames_of_another_camera(tmp_path: Path) -> None:
    """88 x 360 x 640 packed are 80 x 396 x 640, but rows are alike in the first alone."""
    made = sequences(tmp_path / "in", {"train/a": (88,)}, size=(360, 640), images=(396, 640))
    scan = scan_sources(spike_converter(), [made.root])
    assert scan.sources[0].detail.shapes["spike"] == (88, 360, 640)


def test_the_size_of_frames_decides_if_no_rows_are_similar(tmp_path: Path) -> None:
    made = sequences(tmp_path / "in", {"train/a": (10,)}, size=(396, 640), images=(396, 640))
    noise = np.random.default_rng(0).integers(0, 2, (10, 396, 640)).astype(np.uint8)
    (made.root / "train/a/spike/000.dat").write_bytes(stream(noise))
    scan = scan_sources(spike_converter(), [made.root])
    assert scan.sources[0].detail.shapes["spike"] == (10, 396, 640)


def test_a_cut_stream_is_found_by_the_size_of_the_other_streams(tmp_path: Path) -> None:
    made = sequences(tmp_path / "in", {"train/a": (10, 10, 10)}, size=(48, 80), images=(48, 80))
    path = made.root / "train/a/spike/001.dat"
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(InputError) as caught:
        scan_sources(spike_converter(), [made.root])
    (problem,) = caught.value.problems
    assert "48 x 80 frames: 9 frames of 480 bytes" in problem.message


@pytest.mark.parametrize("missing", ["blur/002.png", "sharp/002.png", "spike/002.dat"])
def test_a_missing_frame_cuts_the_sequence_there(tmp_path: Path, missing: str) -> None:
    made = sequences(tmp_path / "in", {"train/a": (16,) * 5, "train/b": (16,) * 2})
    (made.root / "train/a" / missing).unlink()
    with pytest.raises(InputError, match="there is no file of this name in") as caught:
        convert(made.root, tmp_path / "out.zarr", "spike", height=24, width=40)
    (problem,) = caught.value.problems
    assert f"--exclude {problem.source}" in problem.advice
    convert(made.root, tmp_path / "out.zarr", "spike", on_error="skip", height=24, width=40)
    store = open_zarr(tmp_path / "out.zarr")
    assert np.diff(store["sequences/offsets"][...]).tolist() == [2, 2, 2]
    kept = [spikes for name, spikes in made.spikes.items() if not name.endswith("a/spike/002.dat")]
    assert_stored(tmp_path / "out.zarr", kept)


def test_a_folder_that_lacks_most_frames_is_a_problem_of_the_sequence(tmp_path: Path) -> None:
    made = sequences(tmp_path / "in", {"train/a": (16,) * 5})
    for number in range(4):
        (made.root / f"train/a/blur/{number:03d}.png").unlink()
    with pytest.raises(
        InputError,
        match="4 of 5 frames do not have a file in every folder: 5 in train/a/spike, 1 in train/a/blur",
    ):
        scan_sources(spike_converter(), [made.root])
