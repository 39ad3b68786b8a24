"""Views of frames: their spikes or voxel bins over time, with blur and sharp images beside."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from unistore.converters.formats.images import decode
from unistore.converters.spike.export import Frame, images_in
from unistore.converters.spike.gather import SATURATED, firing_rate
from unistore.errors import InputError, StoreError
from unistore.plugin import Measure, Preview, StoreView, View, ViewLimits, evenly, stride, whole
from unistore.schemas.spike.fields import BITS, FRAME_OFFSETS, voxel_bins, voxel_path
from unistore.system.types import AnyArray

_MEASURED = 24
_MEASURED_BITS = 1 << 20


def view(store: StoreView, sample: int, detail: ViewLimits) -> View:
    """Return one frame: its spikes, or voxel bins where the store has these alone, and images beside."""
    frame = Frame(store, sample)
    height, width = frame.extent
    arrays: dict[str, AnyArray] = {}
    note = ""
    unit = "step"
    if store.has(BITS):
        arrays["bits"] = frame.beginning(min(detail.read, detail.shown))
        steps = len(arrays["bits"])
        note = "all steps" if steps == frame.length else f"the first {steps:,} of {frame.length:,} steps"
    else:
        stored = sorted(filter(None, map(voxel_bins, store.paths())))
        unit = "bin"
        steps = stored[0]
        arrays["counts"] = frame.voxels(voxel_path(steps), as_source=False).astype(np.float32)
        note = f"{steps} stored bins"
    read = sum(values.nbytes for values in arrays.values())
    images = []
    for number, name in enumerate(images_in(store)):
        pixels = _image(frame, name)
        step = stride(max(pixels.shape[:2]), 2 * detail.side)
        arrays[f"image{number}"] = pixels[None, ::step, ::step]
        images.append({"name": name, "array": f"image{number}", "times": [0]})
        read += pixels.nbytes
    head = {
        "shape": [height, width],
        "time": {"first": 0, "count": steps, "unit": unit},
        "images": images,
        "note": note,
    }
    return View(widget="stream", title=f"{height} × {width} pixels", head=head, arrays=arrays, read=read)


def measures(store: StoreView) -> Iterator[Measure]:
    """Yield steps of every frame, and how many spikes a pixel fires in some."""
    if not store.has(BITS):
        return
    yield Measure(name="time steps", values=np.diff(whole(store, FRAME_OFFSETS)))
    samples = evenly(0, store.sample_count, _MEASURED)
    frames = [Frame(store, sample) for sample in samples.tolist()]
    rates = [firing_rate([frame.beginning(_MEASURED_BITS)], frame.extent[1]) for frame in frames]
    yield Measure(
        name="spikes per pixel and step",
        values=np.array(rates),
        samples=samples,
        most=SATURATED,
        fix="look at the recordings",
    )


PREVIEW = Preview(view=view, measures=measures)


def _image(frame: Frame, image: str) -> AnyArray:
    """Blur or sharp as RGB."""
    stored = frame.image(image)
    if stored.ndim == 3:
        return stored
    where = f"{frame.store.path}: the {image} image of frame {frame.number}"
    try:
        return decode(stored, where)
    except InputError as error:
        msg = f"{where} {error.problems[0].message}"
        raise StoreError(msg) from error
