"""Images are decoded in worker processes, which OpenCV may crash: a stand-in for it crashes at one image."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import unistore
from tests.support.spike_recordings import sequences

STAND_IN = """
import os, signal, struct, time
from pathlib import Path
import numpy as np

error = ValueError
IMREAD_COLOR = IMREAD_IGNORE_ORIENTATION = COLOR_BGR2RGB = 0

def imdecode(data, flags):
    if bytes(data) == Path(os.environ["CRASHES"]).read_bytes():
        time.sleep(0.3)  # another thread has opened another image meanwhile
        os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(0.2)
    width, height = struct.unpack(">II", bytes(data[16:24]))
    return np.full((height, width, 3), 7, np.uint8)

def cvtColor(pixels, code):
    return pixels
"""


def test_an_image_that_crashes_opencv_is_skipped_as_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequences(tmp_path / "in", {"train/a": (16, 16, 16)})
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "cv2.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(str(tmp_path / "path"))
    monkeypatch.setenv("CRASHES", str(tmp_path / "in/train/a/blur/001.png"))
    store = tmp_path / "out.zarr"
    report = unistore.convert(
        tmp_path / "in", store, "spike", height=24, width=40, workers=1, on_error="skip"
    )
    assert [(each["file"], each["reason"], each["kind"]) for each in report.skipped] == [
        ("train/a/blur/001.png", "is damaged: it crashes OpenCV (signal 11)", "damaged")
    ]
    blur = unistore.open_zarr(store)["frames/blur"][...]
    assert blur.shape[0] == 2
    assert np.unique(blur).tolist() == [7]


def test_nothing_is_decoded_in_the_process_of_the_command(tmp_path: Path) -> None:
    made, store = sequences(tmp_path / "in", {"train/a": (16,)}), tmp_path / "out.zarr"
    program = (
        "import sys, unistore\n"
        "unistore.convert(*sys.argv[1:], 'spike', height=24, width=40)\n"
        "assert 'cv2' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program, made.root, store], check=True)
    assert np.array_equal(unistore.open_zarr(store)["frames/blur"][0], *made.blur.values())
