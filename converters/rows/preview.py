"""Pictures of rows: each array of a row as an image, a curve, bars, or a number."""

from __future__ import annotations

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
    arrays = [store.array(path) for path in store.paths() if path.startswith(f"{TABLE}/")]
    arrays = [array for array in arrays if np.prod(array.shape[1:], dtype=object) <= _MOST]
    numbers = [array for array in arrays if np.prod(array.shape[1:], dtype=object) == 1]
    pictured = sorted(
        (array for array in arrays if array not in numbers), key=lambda array: -len(array.shape)
    )
    pictured = [array for array in pictured if 0 not in array.shape][:_PANELS]
    widths = [2.0] * len(pictured) + [1.0] * (bool(numbers) or not pictured)
    panels = figure.subplots(1, len(widths), squeeze=False, width_ratios=widths)[0]
    for axes, array in zip(panels, pictured, strict=False):
        name = array.path.removeprefix(f"{TABLE}/")
        title = f"{name}\n{' × '.join(map(str, array.shape[1:]))} {array.dtype}"
        _show(axes, array.read(sample, sample + 1)[0], title)
    if numbers:
        lines = [
            f"{array.path.removeprefix(f'{TABLE}/')}: {array.read(sample, sample + 1).reshape(-1)[0]}"
            for array in numbers[:_NUMBERS]
        ]
        more = [f"and {len(numbers) - _NUMBERS} more"] if len(numbers) > _NUMBERS else []
        panels[-1].set_axis_off()
        panels[-1].text(
            0, 0.95, "\n".join([*lines, *more]), va="top", transform=panels[-1].transAxes, fontsize=12
        )
    figure.suptitle(f"row {sample}")


PREVIEW = Preview(draw=draw)


def _show(axes: Axes, values: NDArray[Any], title: str) -> None:
    image = _as_image(values)
    if image is not None:
        bare(axes, title)
        axes.imshow(image, cmap="gray", interpolation="nearest")
        return
    axes.set_title(title)
    flat = values.reshape(-1).astype(np.float64)
    if len(flat) <= _NUMBERS:
        axes.bar(np.arange(len(flat)), flat, tick_label=list(map(str, range(len(flat)))))
    else:
        axes.plot(flat, linewidth=1)


def _as_image(values: NDArray[Any]) -> NDArray[Any] | None:
    """(H, W), or (H, W, 3) u1; the middle index of further axes; None if it is no image."""
    while values.ndim > 3 or (values.ndim == 3 and values.shape[-1] != 3 and values.shape[0] not in (1, 3)):
        values = values[len(values) // 2]
    if values.ndim == 3 and values.shape[-1] != 3:
        values = np.moveaxis(values, 0, -1)
    if values.ndim == 3 and (values.shape[-1] == 1 or values.dtype != np.uint8):
        values = values[..., 0]
    if values.ndim < 2 or min(values.shape[:2]) < _SIDE:
        return None
    return values if values.dtype == np.uint8 else values.astype(np.float64)
