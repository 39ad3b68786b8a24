"""What is recognised as spike recordings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.detection import detect


def test_sequence_folders_and_streams(tmp_path: Path, sequences: Callable[..., Any]) -> None:
    made = sequences(tmp_path / "set", {"train/a": (8,)})
    found = detect([made.root])
    assert found is not None
    assert (found.family, found.layout) == ("spike", "sequences")
    assert found.reason == "set/train/a/spike/ holds a file for every frame"
    found = detect([made.root / "train/a/spike/000.dat"])
    assert found is not None
    assert found.layout == "stream"


def test_arrays_named_spk(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", spk=np.zeros((2, 3, 4), np.uint8))
    np.savez(tmp_path / "b.npz", data=np.zeros((2, 3, 4), np.uint8))
    found = detect([tmp_path / "a.npz"])
    assert found is not None
    assert found.reason == "a.npz holds spk (2, 3, 4)"
    assert detect([tmp_path / "b.npz"]) is None
    assert detect([tmp_path / "a.npz", tmp_path / "b.npz"]) is None


def test_links_to_the_folders_of_a_sequence(tmp_path: Path, sequences: Callable[..., Any]) -> None:
    sequences(tmp_path / "raw", {"a": (8,)}, images=None)
    (tmp_path / "unified/train/a").mkdir(parents=True)
    (tmp_path / "unified/train/a/spike").symlink_to(tmp_path / "raw/a/spike", target_is_directory=True)
    found = detect([tmp_path / "unified"])
    assert found is not None
    assert found.layout == "sequences"


def test_other_folders(tmp_path: Path) -> None:
    np.save(tmp_path / "volume.npy", np.zeros((4, 4, 4), np.int16))
    (tmp_path / "broken.npz").write_bytes(b"PK")
    assert detect([tmp_path]) is None
    assert detect([tmp_path / "volume.npy"]) is None
