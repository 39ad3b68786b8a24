"""What is recognised as spike recordings: one verdict a file, by its own name, folder and header."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.detection import detect
from unistore.converters.scan import Candidate, LeftOut, Verdict
from unistore.converters.spike.family import converter as spike_converter


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
