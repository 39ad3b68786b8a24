"""What names alone tell: a part a frame, and a reason for everything that belongs to none."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unistore.converters.common.exclusion import Exclusion
from unistore.converters.files.formats import has_ending
from unistore.converters.files.paths import list_files
from unistore.converters.scan import Found
from unistore.converters.scanning import scan_sources
from unistore.converters.spike.family import converter as spike_converter
from unistore.converters.spike.frames import FrameName
from unistore.errors import InputError

SIZE = {"height": 24, "width": 40}

NO_FRAME = "belongs to no frame; their files lie in spike/, spike_vox/, blur/, sharp/"


def find(*paths: Path, **options: Any) -> Found:
    converter = spike_converter(**options)
    return converter.find(list_files(paths), Exclusion(converter.exclude))


def left_out(root: Path, *more: Path, **options: Any) -> dict[str, str]:
    """Reasons by name relative to the first path; checks that none is forgotten or named twice."""
    found = find(root, *more, **options)
    named = [path for path, _ in found.left_out]
    used = {file.resolve() for part in found.parts for file in part.files}
    exclusion = Exclusion(options.get("exclude", ()))
    for path in (root, *more):
        for file in path.rglob("*"):
            if file.is_dir() or exclusion.covers(file.relative_to(root).as_posix()):
                continue
            if not has_ending(file, spike_converter().suffixes):
                continue
            below = [each for each in named if file == each or each in file.parents]
            assert len(below) + (file.resolve() in used) == 1, file
    return {path.relative_to(root).as_posix(): why for path, why in found.left_out}


def test_a_part_is_a_frame(tmp_path: Path, sequences: Callable[..., Any]) -> None:
    sequences(tmp_path, {"train/a": (8, 8), "test/b": (8,)})
    found = find(tmp_path)
    assert not found.problems
    assert not found.left_out
    assert [part.name for part in found.parts] == [
        "test/b/spike/000.dat",
        "train/a/spike/000.dat",
        "train/a/spike/001.dat",
    ]
    last = found.parts[-1]
    assert last.files == tuple(tmp_path / name for name in last.detail.names)
    assert last.roots == (tmp_path,)
    assert last.detail.names == ("train/a/spike/001.dat", "train/a/blur/001.png", "train/a/sharp/001.png")
    assert last.detail.roles == ("spike", "blur", "sharp")
    assert (last.detail.unit, last.detail.detail) == ("train/a", FrameName("train/a", "train"))


def test_behind_a_gap_the_sequence_is_another(tmp_path: Path, sequences: Callable[..., Any]) -> None:
    sequences(tmp_path, {"a": (8, 8, 8)}, images=None)
    found = find(tmp_path, exclude=("a/spike/001.dat",))
    assert [(part.detail.unit, part.detail.detail.sequence) for part in found.parts] == [
        ("a", "a"),
        ("a", "a~2"),
    ]


def test_no_header_is_read(tmp_path: Path) -> None:
    for name in ("a/spike/000.dat", "a/blur/000.png", "b/spike/000.npy", "b/blur/7.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = find(tmp_path)
    assert [part.name for part in found.parts] == ["a/spike/000.dat"]
    assert [problem.location for problem in found.problems] == ["b/blur"]


def test_scans_are_plain_values(tmp_path: Path, sequences: Callable[..., Any]) -> None:
    sequences(tmp_path, {"a": (8, 11)})
    np.savez(tmp_path / "b.npz", spk=np.zeros((3, 4, 5), np.uint8))
    converter = spike_converter(columns="intersection", **SIZE)
    for part in find(tmp_path, columns="intersection").parts:
        scanned = converter.scan(pickle.loads(pickle.dumps(part)))
        assert pickle.loads(pickle.dumps(scanned)) == scanned


def test_what_is_wrong_with_some_files_of_a_frame_leaves_the_others(
    tmp_path: Path, sequences: Callable[..., Any]
) -> None:
    sequences(tmp_path, {"a": (8,)})
    (part,) = find(tmp_path).parts
    part.files[1].write_bytes(b"")
    scanned = spike_converter().scan(part)
    assert [problem.location for problem in scanned.problems] == ["a/blur/000.png"]
    assert scanned.values["spike"].is_stream
    for file in part.files:
        file.write_bytes(b"")
    with pytest.raises(InputError) as error:
        spike_converter().scan(part)
    assert len(error.value.problems) == 3


def test_everything_else_is_left_out_with_a_reason(tmp_path: Path, sequences: Callable[..., Any]) -> None:
    sequences(tmp_path, {"train/a": (8, 8)})
    for name in (
        "readme.md",
        "train/a/notes.txt",
        "train/a/extra.dat",
        "train/a/cover.png",
        "train/a/blur_gamma/000.png",
        "train/a/blur_gamma/001.png",
        "train/a/spike/000.png",
        "train/a/spike/old/000.dat",
        "train/a/blur/000.dat",
        "pictures/x/a.png",
        "pictures/y/b.png",
        "mixed/a.png",
        "empty/.hidden",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "mixed/alone.dat").write_bytes(b"\xff")
    (tmp_path / "store.zarr/frames/spike").mkdir(parents=True)
    (tmp_path / "store.zarr/zarr.json").write_text("{}")
    found = find(tmp_path, columns="intersection")
    assert not found.problems
    reasons = {path.relative_to(tmp_path).as_posix(): why for path, why in found.left_out}
    assert reasons == {
        "mixed/a.png": NO_FRAME,
        "pictures/x": NO_FRAME,
        "pictures/y": NO_FRAME,
        "train/a/blur": "not every sequence has blur/",
        "train/a/sharp": "not every sequence has sharp/",
        "train/a/blur_gamma": NO_FRAME,
        "train/a/cover.png": NO_FRAME,
        "train/a/extra.dat": NO_FRAME,
        "train/a/spike/000.png": "is no file of spikes (.dat, .bin, .npy, .npz)",
        "train/a/spike/old": NO_FRAME,
    }
    (tmp_path / "mixed/alone.dat").unlink()
    again = left_out(tmp_path)
    assert again["train/a/blur/000.dat"] == "is no file of images (.png, .jpg)"
    assert again["mixed"] == NO_FRAME
    assert "train/a/blur" not in again
    named = [path for path, _ in find(tmp_path).left_out]
    assert named == sorted(named), "in natural order"


def test_images_beside_spikes_that_another_sequence_has(
    tmp_path: Path, sequences: Callable[..., Any]
) -> None:
    sequences(tmp_path, {"a": (8,)})
    sequences(tmp_path, {"b": (8,)})
    (tmp_path / "b/spike/000.dat").unlink()
    (tmp_path / "b/spike/000.dat").symlink_to(tmp_path / "a/spike/000.dat")
    assert left_out(tmp_path) == {f"b/{role}": NO_FRAME for role in ("blur", "sharp")}


def test_left_out_files_are_remarked(tmp_path: Path, sequences: Callable[..., Any]) -> None:
    sequences(tmp_path, {"a": (8,)})
    (tmp_path / "a/blur_gamma").mkdir()
    (tmp_path / "a/blur_gamma/000.png").touch()
    notes = scan_sources(spike_converter(**SIZE), [tmp_path]).notes
    assert f"left out, {NO_FRAME}: blur_gamma" in notes
    assert not any("000.png" in note for note in notes)


def test_sequences_without_spikes_in_common_have_no_parts(
    tmp_path: Path, sequences: Callable[..., Any]
) -> None:
    sequences(tmp_path, {"a": (8,)}, images=None)
    (tmp_path / "b/spike_vox").mkdir(parents=True)
    np.save(tmp_path / "b/spike_vox/000.npy", np.zeros((4, 24, 40), np.uint8))
    for columns in ("exact", "intersection"):
        found = find(tmp_path, columns=columns)
        assert not found.parts
        assert [problem.kind for problem in found.problems] == ["columns"]
