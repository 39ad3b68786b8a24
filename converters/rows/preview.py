"""Pictures of rows: each array of a row as an image, a curve, bars, or a number."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.preview import Preview, bare
from unistore.schemas.indices import StoreView
from unistore.schemas.rows.fields import TABLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANELS = 5
# Numbers and bars that are drawn, at most; longer vectors are curves
_NUMBERS = 12
# Arrays with more values per row are not drawn
_MOST = 1 << 22
# Smallest side of an array that is drawn as an image
_SIDE = 4


def draw(store: StoreView, sample: int, figure: Figure) -> None:
    """Draw one row."""
    rows = {}
    for path in store.paths():
        if path.startswith(f"{TABLE}/") and prod(store.array(path).shape[1:]) <= _MOST:
            rows[path.removeprefix(f"{TABLE}/")] = store.array(path).read(sample, sample + 1)[0]
    lines = [f"{name}: {row.item()}" for name, row in rows.items() if row.size == 1]
    pictured = sorted([name for name in rows if rows[name].size > 1], key=lambda name: -rows[name].ndim)
    pictured = pictured[:_PANELS]
    widths = [2.0] * len(pictured) + [1.0] * (bool(lines) or not pictured)
    panels = figure.subplots(1, len(widths), squeeze=False, width_ratios=widths)[0]
    for axes, name in zip(panels, pictured, strict=False):
        row = rows[name]
        _show(axes, row, f"{name}\n{' × '.join(map(str, row.shape))} {row.dtype}")
    if lines:
        if len(lines) > _NUMBERS:
            lines[_NUMBERS:] = [f"and {len(lines) - _NUMBERS} more"]
        panels[-1].set_axis_off()
        panels[-1].text(0, 0.95, "\n".join(lines), va="top", transform=panels[-1].transAxes, fontsize=12)
    figure.suptitle(f"row {sample}")


PREVIEW = Preview(draw=draw)


def _show(axes: Axes, values: NDArray[Any], title: str) -> None:
    """Show an array as (H, W), or (H, W, 3) u1, at the middle of further axes, or else as its values."""
    image = values
    while image.ndim > 2 and not (image.ndim == 3 and image.shape[2] == 3 and image.dtype == np.uint8):
        image = image[..., 0] if image.shape[-1] in (1, 3) else image[len(image) // 2]
    if image.ndim > 1 and min(image.shape[:2]) >= _SIDE:
        bare(axes, title)
        axes.imshow(image, cmap="gray", interpolation="nearest")
        return
    axes.set_title(title)
    flat = values.reshape(-1)
    if len(flat) <= _NUMBERS:
        axes.bar(range(len(flat)), flat, tick_label=list(map(str, range(len(flat)))))
    else:
        axes.plot(flat, linewidth=1)
