"""What a store of recordings gives back: files, their comparison, views."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from unistore.converters.events.family import EventsFamily
from unistore.converters.preview import Preview, evenly
from unistore.converters.seam.record import stored_parts
from unistore.converters.views import View, ViewLimits, stride
from unistore.schemas.events.fields import HEIGHTS, RECORDINGS, T_OFFSETS, WIDTHS
from unistore.schemas.indices import StoreView, whole

_PARTS = stored_parts(EventsFamily)
export = _PARTS["export"]
restore = _PARTS["restore"]
_FRAMES = 16  # frames beside the events, at most


def view(store: StoreView, sample: int, detail: ViewLimits) -> View:
    """Return the first events of a recording, and the frames that lie beside them."""
    events: View = _PARTS["preview"].view(store, sample, detail)
    source = int(whole(store, "recordings/source")[sample])
    sensor = [int(whole(store, path)[source]) for path in (HEIGHTS, WIDTHS)]
    total = int(np.diff(whole(store, RECORDINGS)[sample : sample + 2])[0])
    shown = len(events.arrays["t"])
    head = {**events.head, "shape": sensor}
    head["note"] = f"all {total:,} events" if shown == total else f"the first {shown:,} of {total:,} events"
    events = replace(events, head=head, title=f"{sensor[0]} × {sensor[1]} pixels")
    if not store.has("frames/image"):
        return events
    lo, hi = whole(store, "sources/frames/offsets")[source : source + 2].tolist()
    clock = int(whole(store, T_OFFSETS)[source]) + events.head["time"]["first"]
    times = store.array("frames/t").read(lo, hi).astype("int64") - clock
    before_end = int((times <= events.head["time"]["count"]).sum())
    frames = evenly(lo, lo + before_end, _FRAMES)
    if not len(frames):
        return events
    pixels = store.array("frames/image").read_rows(frames)
    step = stride(max(pixels.shape[1:3]), detail.side)
    image = {"name": "frame", "array": "image0", "times": times[frames - lo].tolist()}
    arrays = {**events.arrays, "image0": pixels[:, ::step, ::step]}
    return replace(
        events, head={**events.head, "images": [image]}, arrays=arrays, read=events.read + pixels.nbytes
    )


PREVIEW = Preview(view=view, measures=_PARTS["preview"].measures)
