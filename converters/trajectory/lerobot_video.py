"""Videos of a LeRobot dataset, encoded by PyAV."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

CODEC = "libx264"
VIDEO_OPTIONS = {"g": "2", "crf": "23", "bf": "0"}
"""A key frame every second frame, so that single ones are read fast, as LeRobot encodes its own."""


def write_video(path: Path, frames: Iterable[NDArray[np.uint8]], size: tuple[int, int], rate: float) -> None:
    """Encode RGB frames (height, width, 3) of a rate, by one thread: the same bytes each time."""
    import av

    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(CODEC, rate=Fraction(rate).limit_denominator(100_000))
        stream.options = dict(VIDEO_OPTIONS)
        stream.height, stream.width = size
        stream.pix_fmt = "yuv420p"
        stream.codec_context.thread_count = 1
        for image in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())
