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
    """Draw one frame."""
    require_version_2(store)
    frame = Frame(store=store, number=sample)
    packed = frame.beginning(_BITS) if store.has(BITS) else None
    width = frame.extent()[1]
    bins, caption = _bins(frame, packed)
    shown: list[tuple[str, NDArray[Any]]] = [(image, _image(frame, image)) for image in images_in(store)]
    if packed is not None:
        shown.append((f"sum of {len(packed)} steps", voxelize(packed, width, 1)[0]))
    else:
        shown.append(("sum of bins", bins.sum(axis=0)))
    positions = evenly(0, len(bins), _BINS).tolist()
    counts = [len(shown) + (packed is not None), max(1, len(positions))]
    tall = frame.extent()[0] / max(1, width)
    heights = [float(np.clip(9.6 / count * tall, 1.4, 3.2)) + 0.6 for count in counts]
    figure.set_size_inches(10, sum(heights) + 0.3)
    above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=heights)[:, 0]
    panels = above.subplots(1, counts[0], squeeze=False)[0]
    for axes, (title, values) in zip(panels, shown, strict=False):
        bare(axes, title)
        axes.imshow(values, cmap="gray")
    if packed is not None:
        axes = panels[-1]
        axes.imshow(
            unpack(packed, width)[:, :, width // 2].T, cmap="gray_r", aspect="auto", interpolation="nearest"
        )
        axes.set_title(f"spikes of column {width // 2}")
        axes.set_xlabel("time step")
        axes.set_ylabel("y")
    for axes, number in zip(below.subplots(1, counts[1], squeeze=False)[0], positions, strict=False):
        bare(axes, f"bin {number} of {len(bins)}, {caption}")
        axes.imshow(bins[number], cmap="magma", vmin=0, vmax=max(float(bins.max()), 1e-6))
    figure.suptitle(f"frame {sample}: {' × '.join(map(str, frame.extent()))} pixels")


def measures(store: StoreView) -> Iterator[Measure]:
    """Steps of every frame, and how many spikes a pixel fires in some."""
    if not store.has(BITS):
        return
    yield Measure(name="time steps", values=np.diff(whole(store, FRAME_OFFSETS)))
    samples = evenly(0, store.sample_count, _MEASURED)
    some = [Frame(store=store, number=sample) for sample in samples.tolist()]
    yield Measure(
        name="spikes a pixel and step",
        values=np.array([firing_rate([view.beginning(_MEASURED_BITS)], view.extent()[1]) for view in some]),
        samples=samples,
        most=SATURATED,
        cure="look at the recordings",
    )


PREVIEW = Preview(draw=draw, measures=measures)


def _bins(frame: Frame, packed: NDArray[np.uint8] | None) -> tuple[NDArray[Any], str]:
    """The stored voxels of the fewest bins, or some counted from the spikes, (B, H, W)."""
    stored = sorted(bins for path in frame.store.paths() if (bins := voxel_bins(path)) is not None)
    if not stored:
        assert packed is not None  # a store has spikes or voxels
        return voxelize(packed, frame.extent()[1], _BINS), "counted"
    array = frame.store.array(voxel_path(stored[0]))
    start = [frame.number, 0, 0, 0]
    end = [frame.number + 1, stored[0], *frame.extent()]
    return array.read_box(start, end)[0], "stored"


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
