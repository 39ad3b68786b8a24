"""What a page shows of a recording: its first events, and the frames beside."""

from __future__ import annotations

import numpy as np

from unistore.converters.preview import evenly
from unistore.converters.views import View, ViewLimits, stride
from unistore.schemas.events.fields import FAMILY_NAME, HEIGHTS, RECORDINGS, T_OFFSETS, WIDTHS
from unistore.schemas.indices import StoreView, whole

_EVENT_BYTES = 13  # of a shown event: time, column, row, polarity
_FRAMES = 16  # frames beside the events, at most


def view(store: StoreView, sample: int, detail: ViewLimits) -> View:
    """Return the first events of a recording, and the frames that lie beside them."""
    lo, hi = whole(store, RECORDINGS)[sample : sample + 2].tolist()
    source = int(whole(store, "recordings/source")[sample])
    height, width = (int(whole(store, path)[source]) for path in (HEIGHTS, WIDTHS))
    most = max(1, min(detail.shown, detail.read) // _EVENT_BYTES)
    stop = min(hi, lo + most)
    arrays = {name: store.array(f"{FAMILY_NAME}/{name}").read(lo, stop) for name in "xypt"}
    read = sum(values.nbytes for values in arrays.values())
    times = arrays["t"].astype(np.int64)
    shown = len(times)
    first = int(times[0]) if shown else 0
    arrays["t"] = (times - first).astype(np.float64)
    duration = float(arrays["t"][-1]) if shown else 0.0
    images = []
    if store.has("frames/image"):
        begin, end = whole(store, "sources/frames/offsets")[source : source + 2].tolist()
        clock = int(whole(store, T_OFFSETS)[source]) + first
        frame_times = store.array("frames/t").read(begin, end).astype(np.int64) - clock
        frames = evenly(begin, begin + int((frame_times <= duration).sum()), _FRAMES)
        if len(frames):
            pixels = store.array("frames/image").read_rows(frames)
            read += pixels.nbytes
            step = stride(max(pixels.shape[1:3]), detail.side)
            arrays["image0"] = pixels[:, ::step, ::step]
            images = [{"name": "frame", "array": "image0", "times": frame_times[frames - begin].tolist()}]
    total = hi - lo
    note = f"the first {shown:,} of {total:,} events" if shown < total else f"all {total:,} events"
    head = {
        "shape": [height, width],
        "time": {"first": first, "count": duration, "unit": "µs"},
        "images": images,
        "note": note,
    }
    return View(widget="stream", title=f"{height} × {width} pixels", head=head, arrays=arrays, read=read)
