"""The content of a page for one sample: a few arrays, and JSON that describes them."""

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
    """Limits for the size of a view, and for the data that is read for it.

    Attributes
    ----------
    shown : int
        Approximate size of the arrays of a view, in bytes.
    read : int
        Approximate size of the data that is read from the store, in decoded bytes.
    edge : int, default 128
        Number of blocks along an axis of a volume.
    points : int, default 25,000
        Number of points of a cloud.
    side : int, default 192
        Number of pixels along a side of an additional image.
    frames : int, default 60
        Number of frames of each camera.
    """

    shown: int
    read: int
    edge: int = 128
    points: int = 25_000
    side: int = 192
    frames: int = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The content of a page for one sample.

    Attributes
    ----------
    widget : {"volume", "cloud", "stream", "episode", "rows"}
        Part of the page that draws it.
    title : str
        Title of the sample.
    head : mapping
        Axes, units and labels, as JSON values.
    arrays : mapping of str to array
        Arrays by the names that the widget expects.
    read : int, default 0
        Approximate number of decoded bytes that were read from the store.
    """

    widget: Widget
    title: str
    head: Mapping[str, Any]
    arrays: Mapping[str, AnyArray]
    read: int = 0


def limits(values: AnyArray) -> list[float]:
    """Return the range of nearly all finite values, ``[low, high]``, for a colour scale."""
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    if not finite.size:
        return [0.0, 1.0]
    low, high = np.percentile(finite.astype(np.float64), _PERCENTILES).tolist()
    return [low, high if high > low else low + 1.0]


def stride(extent: int, most: int) -> int:
    """Return the step that reduces `extent` values to at most `most`."""
    return max(1, -(-extent // max(1, most)))


def rows_view(columns: Mapping[str, AnyArray], detail: ViewLimits) -> View:
    """Return a view of columns as images, lines and numbers.

    Parameters
    ----------
    columns : mapping of str to array
        Rows of each column. A single row is shown without its axis.
    detail : ViewLimits
        Limits for the size of the view.
    """
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
