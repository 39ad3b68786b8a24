"""AEDAT 4 files, which faery writes and the library aedat reads."""

from __future__ import annotations

from pathlib import Path

import faery
import numpy as np
import pytest

from tests.converters.events.recordings import made_up
from unistore.converters.formats.aedat import Aedat4
from unistore.converters.opened import SourceFile


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    events = made_up(3_000)
    written = np.empty(len(events), faery.EVENTS_DTYPE)
    for name, other in zip("txy", "txy", strict=True):
        written[name] = events[other]
    written["on"] = events["p"]
    path = tmp_path / "a.aedat4"
    faery.events_stream_from_array(written, (64, 48)).to_file(path)
    return path


def test_events(recording: Path) -> None:
    near = made_up(3_000)
    assert Aedat4().recognise(SourceFile(recording, "a.aedat4")).certainty == "sure"
    with Aedat4().open(SourceFile(recording, "a.aedat4")) as opened:
        assert opened.facts == {"width": 64, "height": 48}
        array = opened.arrays["events"]
        assert array.shape == (3_000,)
        events = array[0:3_000]
        assert array[100:200].tolist() == events[100:200].tolist()
    for name, other in zip(("t", "x", "y", "on"), "txyp", strict=True):
        assert np.array_equal(events[name], near[other]), name
