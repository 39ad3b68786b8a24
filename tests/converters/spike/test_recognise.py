"""What is recognised as spike recordings: one verdict a file, by its own name, folder and header."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from tests.detection import detect
from unistore.converters.scan import Candidate, LeftOut, Taken, Verdict
from unistore.converters.spike.family import converter as spike_converter
from unistore.errors import InputError


def look(path: Path, **options: Any) -> Verdict:
    with Candidate(path, [path.parent]) as file:
        return spike_converter(**options).look(file)


def test_arrays_named_spk(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", spk=np.zeros((2, 3, 4), np.uint8))
    np.savez(tmp_path / "b.npz", data=np.zeros((2, 3, 4), np.uint8))
    found = detect([tmp_path / "a.npz"])
    assert found is not None
    assert (found.family, found.reason) == ("spike", "a.npz holds spk (2, 3, 4)")
    assert look(tmp_path / "b.npz") == LeftOut("holds no spk")


def test_arrays_count_in_the_folders_of_a_sequence(tmp_path: Path) -> None:
    for folder in ("spike", "spike_vox", "other"):
        (tmp_path / folder).mkdir()
        np.save(tmp_path / folder / "000.npy", np.zeros((2, 3, 4), np.uint8))
        np.savez(tmp_path / folder / "001.npz", a=np.zeros((2, 3, 4), np.uint8))
    for folder in ("spike", "spike_vox"):
        expected = Taken("sequences", f"lies in a {folder}/ folder")
        assert look(tmp_path / folder / "000.npy") == look(tmp_path / folder / "001.npz") == expected
    left = LeftOut("is an array outside of a sequence's folders")
    assert look(tmp_path / "other/000.npy") == left
    assert look(tmp_path / "spike/000.npy", spike_dir="spikes") == left
    (tmp_path / "spike_vox/002.dat").write_bytes(b"\x00\xff")
    assert look(tmp_path / "spike_vox/002.dat") == Taken("stream", "is a headerless .dat stream")


def test_images_count_beside_spikes(tmp_path: Path) -> None:
    for folder in ("a/blur", "a/sharp", "a/blur_gamma", "a/spike_vox", "b/blur"):
        (tmp_path / folder).mkdir(parents=True)
        cv2.imwrite(str(tmp_path / folder / "000.png"), np.zeros((4, 6, 3), np.uint8))
    assert look(tmp_path / "a/blur/000.png") == Taken("sequences", "lies in blur/ beside spike_vox/")
    assert look(tmp_path / "a/sharp/000.png") == Taken("sequences", "lies in sharp/ beside spike_vox/")
    assert look(tmp_path / "a/blur_gamma/000.png") == LeftOut("lies in no blur/ or sharp/ folder")
    assert look(tmp_path / "b/blur/000.png") == LeftOut(
        "lies in blur/ without spike/ or spike_vox/ beside it"
    )
    assert detect([tmp_path / "b"]) is None


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.dat", "empty"),
        ("spike/a.dat", "empty"),
        ("a.npz", "empty"),
        ("a.npy", "empty"),
        ("spike/a.npy", "empty"),
        ("blur/a.png", "empty"),
    ],
)
def test_damaged_files_are_problems(tmp_path: Path, name: str, kind: str) -> None:
    for folder in ("spike", "blur"):
        (tmp_path / folder).mkdir()
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(InputError) as error:
        look(tmp_path / name)
    assert [problem.kind for problem in error.value.problems] == [kind]
