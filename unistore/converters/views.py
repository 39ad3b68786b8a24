"""What a page shows of one sample: a few arrays, and JSON that says what they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from unistore.system.types import AnyArray, JsonObject

# The script of a page has one widget of each name:
# - `volume`: `image` (z, y, x) of block means, `plane<axis>` of full resolution, `overlay<k>` (z, y, x)
# - `cloud`: `xyz` (n, 3), `column<k>` (n,) or (n, 3) to colour by
# - `stream`: `bits` (t, h, w / 8), `counts` (t, h, w), or events `t`, `x`, `y`, `p` (n,); `image<k>` beside
# - `episode`: `frames` (k,), files of `camera<k>`, `steps` (n,), `curve<k>` (n, lines)
# - `rows`: `column<k>`, an image (h, w) or (h, w, 3), or lines (n, lines)
Widget = Literal["volume", "cloud", "stream", "episode", "rows"]

_TEXTS = 16  # texts of a column, at most
_LINES = 16  # lines of a chart, at most
_STEPS = 2000  # values of a line, at most
_SIDE = 8  # smallest side of an array that is shown as an image
_COLUMNS = 64  # columns of a row that are shown, at most
_PERCENTILES = (1, 99)


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewLimits:
    """How much of a sample is shown, and how much of the store is read for it."""

    shown: int  # bytes of the arrays of a view, about
    read: int  # decoded bytes that are read of the store, about
    edge: int = 128  # blocks along an axis of a volume
    points: int = 25_000
    side: int = 192  # pixels along a side of an image beside a widget
    frames: int = 60  # of each camera


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a page shows of one sample."""

    widget: Widget
    title: str
    head: Mapping[str, Any]  # axes, units and labels, JSON values
    arrays: Mapping[str, AnyArray]
    read: int = 0  # decoded bytes that were read of the store, about


def limits(values: AnyArray) -> list[float]:
    """Return the values between which nearly all finite ones lie, (low, high)."""
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    if not finite.size:
        return [0.0, 1.0]
    low, high = np.percentile(finite.astype(np.float64), _PERCENTILES).tolist()
    return [low, high if high > low else low + 1.0]


def stride(extent: int, most: int) -> int:
    """Return the step with which at most `most` of `extent` values are taken."""
    return max(1, -(-extent // max(1, most)))


def rows_view(columns: Mapping[str, AnyArray], detail: ViewLimits) -> View:
    """Show columns as images, lines and numbers. A single row is shown without its axis."""
    arrays: dict[str, AnyArray] = {}
    shown = []
    share = detail.shown // max(1, len(columns))
    for number, (name, column) in enumerate(list(columns.items())[:_COLUMNS]):
        values = column[0] if len(column) == 1 else column
        entry: JsonObject = {"name": name, "dtype": values.dtype.name, "shape": list(values.shape)}
        if values.dtype.kind not in "biuf" or not values.size:
            entry["text"] = "; ".join(map(str, values.reshape(-1)[:_TEXTS].tolist()))
        elif values.size == 1:
            entry["value"] = values.reshape(-1)[0].item()
        else:
            entry["array"] = f"column{number}"
            image = _image(values)
            is_image = image.ndim > 1 and min(image.shape[:2]) >= _SIDE
            entry["form"] = "image" if is_image else "lines"
            picture = _smaller(image, share) if is_image else _lines(values)
            arrays[f"column{number}"] = picture
            entry["limits"] = limits(picture)
        shown.append(entry)
    shown.sort(key=lambda entry: "array" not in entry)
    left_out = len(columns) - len(shown)
    head = {"columns": shown, "note": f"{left_out} more columns are not shown" if left_out else ""}
    rows = len(next(iter(columns.values()))) if columns else 0
    read = sum(values.nbytes for values in columns.values())
    title = "" if rows == 1 else f"{rows:,} rows"
    return View(widget="rows", title=title, head=head, arrays=arrays, read=read)


def _image(values: AnyArray) -> AnyArray:
    """Return the middle of the axes before the last two. Colours are the last axis of bytes."""
    is_coloured = values.ndim > 2 and values.shape[-1] == 3 and values.dtype == np.uint8
    while values.ndim > 2 + is_coloured:
        values = values[len(values) // 2]
    return values


def _smaller(image: AnyArray, most_bytes: int) -> AnyArray:
    pixels = image.shape[0] * image.shape[1]
    step = stride(pixels * image.itemsize, most_bytes)
    side = int(np.ceil(np.sqrt(step)))
    return image[::side, ::side]


def _lines(values: AnyArray) -> NDArray[np.float32]:
    lines = values.reshape(len(values), -1)[:, :_LINES]
    return lines[:: stride(len(lines), _STEPS)].astype(np.float32)
