"""Frames and boxes beside recordings of event cameras, each with a clock of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

import unistore
from tests.support.event_recordings import HEIGHT, WIDTH, made_up, write_dsec
from unistore.errors import InputError
from unistore.html import STILL, sample_view

SENSOR = (WIDTH, HEIGHT)
OFFSET = 57_000_000
BOX = np.dtype(
    [
        ("t", "<u8"),
        ("x", "<f4"),
        ("y", "<f4"),
        ("w", "<f4"),
        ("h", "<f4"),
        ("class_id", "u1"),
        ("track_id", "<u4"),
    ]
)


def sequence(folder: Path, seed: int = 0, frames: int = 9, boxes: int = 25) -> dict[str, np.ndarray]:
    """Write a sequence as DSEC has it; return its events, and the frames and boxes by table and column."""
    rng = np.random.default_rng(seed)
    for name in ("events/left", "images/left/rectified", "object_detections/left"):
        (folder / name).mkdir(parents=True)
    events = made_up(5_000, 400_000, seed)
    write_dsec(folder / "events/left/events.h5", events)
    times = OFFSET + np.sort(rng.integers(-30_000, 430_000, frames))
    images = rng.integers(0, 255, (frames, 12, 16, 3)).astype("u1")
    (folder / "images/timestamps.txt").write_text("".join(f"{time}\n" for time in times))
    for number, image in enumerate(images):
        assert cv2.imwrite(str(folder / f"images/left/rectified/{number:06d}.png"), image[..., ::-1])
    tracks = np.zeros(boxes, BOX)
    for name in BOX.names or ():
        tracks[name] = rng.integers(0, 40, boxes)
    tracks["t"] = OFFSET + np.sort(rng.integers(0, 400_000, boxes))
    np.save(folder / "object_detections/left/tracks.npy", tracks)
    tables = {f"boxes/{name}": tracks[name] for name in BOX.names or ()}
    return {"events": events, "frames/t": times, "frames/image": images, **tables}


def test_frames_and_boxes_are_tables_with_times(tmp_path: Path) -> None:
    made = [sequence(tmp_path / f"in/seq_{seed}", seed, 9 + seed, 25 - seed) for seed in range(2)]
    write_dsec(tmp_path / "in/zz_events.h5", made_up(300))
    unistore.convert(tmp_path / "in", tmp_path / "a.zarr", "events", sensor=SENSOR)
    store = unistore.Store(tmp_path / "a.zarr")
    for path in made[0].keys() - {"events"}:
        expected = np.concatenate([one[path] for one in made])
        np.testing.assert_array_equal(store.array(path).read(), expected, path)
    assert store.array("sources/frames/offsets").read().tolist() == [0, 9, 19, 19]
    assert store.array("sources/boxes/offsets").read().tolist() == [0, 25, 49, 49]
    assert unistore.verify(tmp_path / "a.zarr", against=tmp_path / "in").ok
    unistore.export(tmp_path / "a.zarr", tmp_path / "out")
    unistore.convert(tmp_path / "out", tmp_path / "again.zarr", "events", sensor=SENSOR)
    again = unistore.Store(tmp_path / "again.zarr")
    for path in ("events/t", *made[0].keys() - {"events"}):
        np.testing.assert_array_equal(again.array(path).read(), store.array(path).read(), path)


def test_hidden_files_that_macos_leaves_are_not_frames(tmp_path: Path) -> None:
    made = sequence(tmp_path / "in")
    folder = tmp_path / "in/images/left/rectified"
    for path in [*folder.iterdir()]:
        path.with_name(f"._{path.name}").write_bytes(b"\0\5\x16\7")
    unistore.convert(tmp_path / "in", tmp_path / "a.zarr", "events", sensor=SENSOR)
    frames = unistore.Store(tmp_path / "a.zarr").array("frames/image").read()
    np.testing.assert_array_equal(frames, made["frames/image"])


def test_a_page_shows_frames_at_their_times(tmp_path: Path) -> None:
    made = [sequence(tmp_path / f"in/seq_{seed}", seed, 9 + seed, 25 - seed) for seed in range(2)]
    unistore.convert(tmp_path / "in", tmp_path / "a.zarr", "events", sensor=SENSOR)
    view = sample_view(unistore.Store(tmp_path / "a.zarr"), 1, STILL)
    events = made[1]["events"]
    (image,) = view.head["images"]
    times = made[1]["frames/t"] - OFFSET - events["t"][0]
    shown = times[times <= events["t"][-1] - events["t"][0]]
    assert image["times"] == shown.tolist()
    np.testing.assert_array_equal(view.arrays["image0"], made[1]["frames/image"][: len(shown)])
    np.testing.assert_array_equal(view.arrays["t"], events["t"] - events["t"][0])
    assert view.head["shape"] == [HEIGHT, WIDTH]


def test_a_changed_frame_is_found(tmp_path: Path) -> None:
    sequence(tmp_path / "in/seq")
    unistore.convert(tmp_path / "in", tmp_path / "a.zarr", "events", sensor=SENSOR)
    image = tmp_path / "in/seq/images/left/rectified/000003.png"
    cv2.imwrite(str(image), np.zeros((12, 16, 3), "u1"))
    problems = unistore.verify(tmp_path / "a.zarr", against=tmp_path / "in").problems
    assert any("frames/image: row 3" in str(problem) for problem in problems)


@pytest.mark.parametrize(
    "arguments", [{"window": "50ms"}, {"window": "30ms", "stride": "70ms"}, {"count": 700}]
)
def test_windows_have_the_frames_and_boxes_of_their_time(tmp_path: Path, arguments: dict[str, Any]) -> None:
    made = [sequence(tmp_path / f"in/seq_{seed}", seed) for seed in range(2)]
    unistore.convert(tmp_path / "in", tmp_path / "a.zarr", "events", sensor=SENSOR)
    tables = sorted(made[0].keys() - {"events"})
    keys = [path.replace("/", ".") for path in tables]
    kind = unistore.Events(**arguments)
    dataset = unistore.Dataset(tmp_path / "a.zarr", kind, fields=["t", "start", "source", *keys])
    seen = 0
    for number in range(len(dataset)):
        sample = {key: np.asarray(value) for key, value in dataset[number].items()}
        one = made[int(str(sample["source"])[4])]  # seq_0/…
        first = int(sample["start"]) + OFFSET
        stop = int(sample["t"][-1]) + 1 + OFFSET if kind.count else first + kind.length
        for path, key in zip(tables, keys, strict=True):
            times = one[f"{path.partition('/')[0]}/t"]
            expected = one[path][(times >= first) & (times < stop)]
            np.testing.assert_array_equal(sample[key].reshape(expected.shape), expected, key)
            seen += len(expected)
    assert seen > 0


def test_times_and_boxes_without_a_recording_are_rows(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/timestamps.txt").write_text("1\n2\n")
    np.save(tmp_path / "in/tracks.npy", np.zeros(3, BOX))
    report = unistore.convert(tmp_path / "in", tmp_path / "a.zarr")
    assert (report.family, report.samples) == ("rows", 3)


def falling(folder: Path) -> None:
    file = folder / "images/timestamps.txt"
    lines = file.read_text().split()
    file.write_text("\n".join([*lines[:3], lines[1], *lines[4:]]))


def text(folder: Path) -> None:
    with (folder / "images/timestamps.txt").open("a") as file:
        file.write("later\n")


def fewer(folder: Path) -> None:
    (folder / "images/left/rectified/000004.png").unlink()


def other_size(folder: Path) -> None:
    cv2.imwrite(str(folder / "images/left/rectified/000004.png"), np.zeros((6, 8, 3), "u1"))


def falling_boxes(folder: Path) -> None:
    file = folder / "object_detections/left/tracks.npy"
    np.save(file, np.load(file)[::-1])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            falling,
            r"images/timestamps\.txt: its times decrease from \d+ to \d+.*Fix: sort the frames",
        ),
        (text, r"images/timestamps\.txt: has 'later' in line 10, "),
        (fewer, r"images/timestamps\.txt: has 9 times, but its folder contains 8 images\. Fix: copy"),
        (other_size, r"000004\.png: is uint8 \(6, 8, 3\), but the first frame is uint8 \(12, 16, 3\)"),
        (falling_boxes, r"events\.h5: .*the time of a box falls from \d+ to \d+\. Fix: sort tracks\.npy"),
    ],
)
def test_frames_times_and_boxes_that_contradict_each_other_are_an_error(
    tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    sequence(tmp_path / "in/seq")
    damage(tmp_path / "in/seq")
    with pytest.raises(InputError, match=message):
        unistore.convert(tmp_path / "in", tmp_path / "a.zarr", "events", sensor=SENSOR)
