"""What names alone tell: a part a frame, and a reason for everything that belongs to none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.detection import detect
from tests.support.family_converters import spike as spike_converter
from tests.support.spike_recordings import sequences
from unistore.converters.claims import no
from unistore.converters.common.exclusion import Exclusion
from unistore.converters.files.formats import has_ending
from unistore.converters.files.paths import list_files
from unistore.converters.scan_types import Candidate, Found
from unistore.errors import InputError

NO_FRAME = "does not belong to a frame; the files of frames are in spike/, spike_vox/, blur/, sharp/"


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


def test_an_array_named_spk_is_a_recording_and_one_of_another_name_is_not(tmp_path: Path) -> None:
    for name, key in (("a", "spk"), ("b", "data")):
        np.savez(tmp_path / f"{name}.npz", **{key: np.zeros((2, 3, 4), np.uint8)})
    found = detect([tmp_path / "a.npz"])
    assert found is not None
    assert (found.family, found.reason) == ("spike", "a.npz contains spk (2, 3, 4)")
    with Candidate(tmp_path / "b.npz", [tmp_path]) as file:
        assert spike_converter().look(file) == no("does not contain spk")


def test_a_new_sequence_begins_after_each_missing_frame(tmp_path: Path) -> None:
    sequences(tmp_path, {"a": (8,) * 9, "b": (8,)})
    exclude = [f"a/spike/{number:03d}.dat" for number in (0, 3, 4, 7)]
    found = find(tmp_path, exclude=tuple(exclude))
    frames = [(part.detail.unit, part.detail.detail.sequence, part.files[0].stem) for part in found.parts]
    assert frames == [
        ("a", "a", "001"),
        ("a", "a", "002"),
        ("a", "a~2", "005"),
        ("a", "a~2", "006"),
        ("a", "a~3", "008"),
        ("b", "b", "000"),
    ]
    assert all(len({file.stem for file in part.files}) == 1 for part in found.parts), "images of their spikes"


def test_a_damaged_file_of_a_frame_does_not_hide_the_others(tmp_path: Path) -> None:
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


def test_images_of_a_linked_frame_are_skipped(tmp_path: Path) -> None:
    sequences(tmp_path, {"a": (8,)})
    sequences(tmp_path, {"b": (8,)})
    (tmp_path / "b/spike/000.dat").unlink()
    (tmp_path / "b/spike/000.dat").symlink_to(tmp_path / "a/spike/000.dat")
    assert left_out(tmp_path) == {f"b/{role}": NO_FRAME for role in ("blur", "sharp")}


def test_sequences_without_spikes_in_common_have_no_parts(tmp_path: Path) -> None:
    sequences(tmp_path, {"a": (8,)}, images=None)
    (tmp_path / "b/spike_vox").mkdir(parents=True)
    np.save(tmp_path / "b/spike_vox/000.npy", np.zeros((4, 24, 40), np.uint8))
    for columns in ("exact", "intersection"):
        found = find(tmp_path, columns=columns)
        assert not found.parts
        assert [problem.kind for problem in found.problems] == ["columns"]
