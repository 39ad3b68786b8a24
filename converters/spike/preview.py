"""Pictures of frames: blur, sharp, the sum of the spikes, a raster of one column, and voxel bins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.formats.images import decode
from unistore.converters.preview import Measure, Preview, bare, evenly
from unistore.converters.spike.export import Frame, images_in
from unistore.converters.spike.gather import SATURATED, firing_rate
from unistore.errors import InputError, StoreError
from unistore.schemas.indices import StoreView, whole
from unistore.schemas.spike.fields import BITS, FRAME_OFFSETS, unpack, voxel_bins, voxel_path, voxelize
from unistore.schemas.spike.specs import require_version_2

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BINS = 5
# Bytes of packed spikes that are read of a frame
_BITS = 32 << 20
_MEASURED = 24
_MEASURED_BITS = 1 << 20


def draw(store: StoreView, sample: int, figure: Figure) -> None:
    """Draw one frame: images, sum of the spikes and raster above, voxel bins below."""
    require_version_2(store)
    frame = Frame(store, sample)
    height, width = frame.extent
    shown: dict[str, NDArray[Any]] = {image: _image(frame, image) for image in images_in(store)}
    stored = sorted(filter(None, map(voxel_bins, store.paths())))
    if store.has(BITS):
        packed = frame.beginning(_BITS)
        shown[f"sum of {len(packed)} steps"] = voxelize(packed, width, 1)[0]
        raster = unpack(packed, width)[:, :, width // 2]
        shown[f"spikes of column {width // 2}, time to the right"] = 1 - raster.T
    # A store has spikes or voxels
    bins = frame.stored_voxels(voxel_path(stored[0])) if stored else voxelize(packed, width, _BINS)
    positions = evenly(0, len(bins), _BINS).tolist()
    counts = [max(1, len(shown)), len(positions)]
    heights = [float(np.clip(9.6 / count * height / width, 1.4, 3.2)) + 0.6 for count in counts]
    figure.set_size_inches(10, sum(heights) + 0.3)
    above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (title, values) in zip(
        above.subplots(1, counts[0], squeeze=False)[0], shown.items(), strict=False
    ):
        bare(axes, title)
        axes.imshow(values, cmap="gray", aspect="auto" if title.startswith("spikes") else "equal")
    brightest = max(float(bins.max()), 1e-6)
    for axes, number in zip(below.subplots(1, counts[1], squeeze=False)[0], positions, strict=True):
        bare(axes, f"bin {number} of {len(bins)}, {'stored' if stored else 'counted'}")
        axes.imshow(bins[number], cmap="magma", vmin=0, vmax=brightest)
    figure.suptitle(f"frame {sample}: {height} × {width} pixels")


def measures(store: StoreView) -> Iterator[Measure]:
    """Yield steps of every frame, and how many spikes a pixel fires in some."""
    if not store.has(BITS):
        return
    yield Measure(name="time steps", values=np.diff(whole(store, FRAME_OFFSETS)))
    samples = evenly(0, store.sample_count, _MEASURED)
    frames = [Frame(store, sample) for sample in samples.tolist()]
    rates = [firing_rate([frame.beginning(_MEASURED_BITS)], frame.extent[1]) for frame in frames]
    yield Measure(
        name="spikes a pixel and step",
        values=np.array(rates),
        samples=samples,
        most=SATURATED,
        cure="look at the recordings",
    )


PREVIEW = Preview(draw=draw, measures=measures)


def _image(frame: Frame, image: str) -> NDArray[Any]:
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
