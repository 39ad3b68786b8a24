"""Still pictures of samples, drawn from their views, and the HTML that notebooks show."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from unistore.converters.families import preview_of_store
from unistore.converters.preview import evenly
from unistore.converters.views import View, ViewLimits
from unistore.errors import InputError, StoreError, UnistoreError, printable, without_fix
from unistore.remote.url import redact_urls
from unistore.schemas.indices import StoreView
from unistore.system.arguments import wrong_argument
from unistore.system.extras import is_installed, require
from unistore.system.types import AnyArray, Int64s

# Metadata of every file that is written; other files are overwritten only if that is asked for
MARK = "made by unistore inspect"
STILL = ViewLimits(shown=4 << 20, read=64 << 20, frames=8)
_MAX_TEXT = 600
# Shown in a notebook: stores of a Dataset, and samples of each
_MAX_STORES = 2
_MAX_SAMPLES = 3
_PIXELS = 300  # height of a picture
_MAX_WIDTH = 1600
_GAP = 8
_LINE_WIDTH = 420
_MIN_SPAN = 1e-9
# Distinct colours of classes, overlays and lines: red, green, blue
COLOURS = (
    (78, 121, 167),
    (242, 142, 43),
    (89, 161, 79),
    (225, 87, 89),
    (176, 122, 161),
    (118, 183, 178),
    (237, 201, 72),
    (255, 157, 167),
    (156, 117, 95),
    (140, 140, 140),
)

Picture = NDArray[np.uint8]  # (height, width, 3), red first


def check_sample(path: str, count: int, sample: int) -> None:
    """Raise an `InputError` if there is no sample with this number among `count`."""
    if not 0 <= sample < count:
        present = f"the samples 0 to {count - 1:,}" if count else "no samples"
        raise wrong_argument("sample", f"is {sample:,}, but {path} has {present}")


def sample_view(store: StoreView, sample: int, detail: ViewLimits) -> View:
    """Return what is shown of one sample, which is a row of the sample table."""
    check_sample(store.path, store.sample_count, sample)
    preview = preview_of_store(store)
    try:
        return preview.view(store, sample, detail)
    except UnistoreError:
        raise
    except Exception as error:
        raise _undrawn(store, sample, error) from error


def sample_picture(store: StoreView, sample: int, form: Literal["png", "webp"] = "png") -> bytes:
    """Return a still picture of one sample."""
    view = sample_view(store, sample, STILL)
    try:
        return still_picture(view, form)
    except Exception as error:
        raise _undrawn(store, sample, error) from error


def draws_pictures() -> bool:
    """Return whether still pictures can be drawn: OpenCV is installed."""
    return is_installed("cv2")


def still_picture(view: View, form: Literal["png", "webp"] = "webp") -> bytes:
    """Return a still picture of what is shown of a sample."""
    require("cv2", "drawing still pictures needs", "images")
    import cv2

    parts = [part for part in _DRAWN[view.widget](view) if part.size]
    picture = _beside(parts or [np.full((_PIXELS, _PIXELS, 3), 255, np.uint8)])
    quality = [cv2.IMWRITE_WEBP_QUALITY, 80] if form == "webp" else []
    _, encoded = cv2.imencode(f".{form}", picture[:, :, ::-1], quality)
    data = encoded.tobytes()
    return _marked(data) if form == "png" else data


def _undrawn(store: StoreView, sample: int, error: Exception) -> StoreError:
    reason = f"{type(error).__name__}: {without_fix(error)}"
    fix = f"check the store with unistore verify {store.path}"
    return StoreError(f"{store.path}: sample {sample:,} cannot be drawn: {reason}. Fix: {fix}")


def _marked(png: bytes) -> bytes:
    """Return a PNG file with the mark as its text, behind the header."""
    import zlib

    text = b"tEXt" + f"Software\0{MARK}".encode()
    chunk = (len(text) - 4).to_bytes(4, "big") + text + zlib.crc32(text).to_bytes(4, "big")
    header_end = 33
    return png[:header_end] + chunk + png[header_end:]


def _beside(parts: Sequence[Picture]) -> Picture:
    """Return pictures side by side, of one height."""
    import cv2

    resized = []
    for part in parts:
        height, width = part.shape[:2]
        wide = int(np.clip(round(width * _PIXELS / height), 1, _MAX_WIDTH))
        method = cv2.INTER_AREA if height > _PIXELS else cv2.INTER_NEAREST
        resized.append(cv2.resize(part, (wide, _PIXELS), interpolation=method))
        resized.append(np.full((_PIXELS, _GAP, 3), 255, np.uint8))
    row: Picture = np.concatenate(resized[:-1], axis=1)
    if row.shape[1] > _MAX_WIDTH:
        height = max(1, row.shape[0] * _MAX_WIDTH // row.shape[1])
        row = np.asarray(cv2.resize(row, (_MAX_WIDTH, height), interpolation=cv2.INTER_AREA), np.uint8)
    return row


def gray(values: AnyArray, low: float, high: float) -> Picture:
    """Return values as gray, black up to `low` and white from `high`."""
    scaled = (values.astype(np.float64) - low) * (255 / max(high - low, _MIN_SPAN))
    bright = np.clip(np.nan_to_num(scaled), 0, 255).round().astype(np.uint8)
    return np.repeat(bright[:, :, None], 3, axis=2)


def _volume(view: View) -> Iterable[Picture]:
    import cv2

    shape = np.array(view.head["shape"])
    spacing = np.array(view.head["spacing"] or [1.0, 1.0, 1.0])
    low, high = view.head["window"]
    for axis in range(3):
        if not shape.all():
            continue
        block = view.head["full"][axis] // view.head["block"][axis]
        plane = view.arrays.get(f"plane{axis}")
        if plane is None:
            plane = np.take(view.arrays["image"], block, axis=axis)
        picture = gray(plane, low, high)
        for number, overlay in enumerate(view.head["overlays"]):
            if not overlay["shown"]:
                continue
            blocks = np.take(view.arrays[f"overlay{number}"], block, axis=axis)
            inside = cv2.resize(blocks, picture.shape[1::-1], interpolation=cv2.INTER_NEAREST) > 0
            tinted = picture[inside] * 0.55 + np.array(COLOURS[(number + 1) % len(COLOURS)]) * 0.45
            picture[inside] = tinted.astype(np.uint8)
        rows, columns = np.delete(shape * spacing, axis)
        width = max(1, round(_PIXELS * columns / max(rows, columns)))
        height = max(1, round(_PIXELS * rows / max(rows, columns)))
        drawn = np.zeros((_PIXELS, width, 3), np.uint8)
        top = (_PIXELS - height) // 2
        drawn[top : top + height] = cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA)
        yield drawn


def _cloud(view: View) -> Iterable[Picture]:
    xyz = view.arrays["xyz"]
    colours = np.broadcast_to(np.array(COLOURS[0], np.uint8), (len(xyz), 3))
    column = next(iter(view.head["columns"]), None)
    if column is not None and len(xyz):
        values = view.arrays[column["array"]]
        if column["kind"] == "class":
            colours = np.array(COLOURS, np.uint8)[values % len(COLOURS)]
        elif column["kind"] == "rgb":
            colours = values
        else:
            colours = gray(values[:, None], *column["limits"])[:, 0]
    for across, up in ((0, 1), (0, 2)):
        yield _scatter(xyz[:, [across, up]], colours)


def _scatter(points: AnyArray, colours: Picture) -> Picture:
    picture = np.full((_PIXELS, _PIXELS, 3), 255, np.uint8)
    if not len(points):
        return picture
    low = points.min(axis=0)
    span = max(float(np.ptp(points, axis=0).max()), _MIN_SPAN)
    places = ((points - low) / span * (_PIXELS - 12) + 2).astype(np.int64)
    size = int(np.clip(_PIXELS / 3 / np.sqrt(len(points)), 1, 9))
    for row in range(size):
        for column in range(size):
            picture[_PIXELS - 1 - places[:, 1] - row, places[:, 0] + column] = colours
    return picture


def _stream(view: View) -> Iterable[Picture]:
    height, width = view.head["shape"]
    if "bits" in view.arrays:
        packed = view.arrays["bits"]
        counts = sum_bits(packed, width)
        yield gray(counts, 0, max(1, int(counts.max(initial=0))))
    elif "counts" in view.arrays:
        sums = view.arrays["counts"].sum(axis=0)
        yield gray(sums, min(0.0, float(sums.min())), max(_MIN_SPAN, float(sums.max())))
    else:
        picture = np.full((height, width, 3), 245, np.uint8)
        colours = np.array([COLOURS[0], COLOURS[3]], np.uint8)
        picture[view.arrays["y"], view.arrays["x"]] = colours[(view.arrays["p"] > 0).astype(np.int64)]
        yield picture
    for image in view.head["images"]:
        yield _coloured(view.arrays[image["array"]][0])


def sum_bits(packed: Picture, width: int) -> Int64s:
    """Return how often every pixel of packed bits (t, h, bytes) is set, (h, width)."""
    counts = np.zeros((packed.shape[1], width), np.int64)
    for step in packed:
        counts += np.unpackbits(step, axis=1, bitorder="little")[:, :width]
    return counts


def _coloured(image: AnyArray) -> Picture:
    if image.ndim == 3 and image.dtype == np.uint8:
        return image
    return gray(image, float(np.nanmin(image)), float(np.nanmax(image)))


def _episode(view: View) -> Iterable[Picture]:
    import cv2

    for number in range(len(view.head["cameras"])):
        data = view.arrays[f"camera{number}"]
        bounds = view.arrays[f"offsets{number}"]
        middle = (len(bounds) - 1) // 2
        for frame in sorted({0, middle}):
            file = data[bounds[frame] : bounds[frame + 1]]
            yield np.asarray(cv2.imdecode(file, cv2.IMREAD_COLOR), np.uint8)[:, :, ::-1]
    for number in range(min(2, len(view.head["curves"]))):
        yield _chart(view.arrays[f"curve{number}"])


def _chart(lines: AnyArray) -> Picture:
    """Return lines (n, k) over the numbers of their values."""
    import cv2

    picture = np.full((_PIXELS, _LINE_WIDTH, 3), 255, np.uint8)
    finite = lines[np.isfinite(lines)]
    if not finite.size:
        return picture
    low = float(finite.min())
    span = max(float(finite.max()) - low, _MIN_SPAN)
    across = np.linspace(6, _LINE_WIDTH - 6, len(lines))
    for number, line in enumerate(np.nan_to_num(lines, nan=low, posinf=low, neginf=low).T):
        down = _PIXELS - 8 - (line - low) / span * (_PIXELS - 16)
        points = np.stack([across, down], axis=1).round().astype(np.int32)
        cv2.polylines(picture, [points], False, COLOURS[number % len(COLOURS)], 2, cv2.LINE_AA)
    return picture


def _rows(view: View) -> Iterable[Picture]:
    columns = [column for column in view.head["columns"] if "array" in column]
    for column in columns[:3]:
        values = view.arrays[column["array"]]
        if column["form"] == "lines":
            yield _chart(values)
        elif values.ndim == 3:
            yield values
        else:
            yield gray(values, *column["limits"])


_DRAWN: Mapping[str, Callable[[View], Iterable[Picture]]] = {
    "volume": _volume,
    "cloud": _cloud,
    "stream": _stream,
    "episode": _episode,
    "rows": _rows,
}


def text_html(text: str, max_length: int = _MAX_TEXT) -> str:
    """Return the escaped text with its line breaks. Secrets in URLs are redacted, long text is cut."""
    safe = "\n".join(printable(redact_urls(line)) for line in text.split("\n"))
    return escape(safe if len(safe) <= max_length else f"{safe[:max_length]}…")


def facts_html(facts: Iterable[tuple[str, str]]) -> str:
    """Return a table of names and values, without empty values."""
    rows = [
        f"<tr><th>{text_html(name)}</th><td>{text_html(value)}</td></tr>" for name, value in facts if value
    ]
    return f'<table class="facts">{"".join(rows)}</table>'


def table_html(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table that scrolls where it is too wide."""
    head = "".join(f"<th>{text_html(name)}</th>" for name in columns)
    body = ""
    for row in rows:
        cells = "".join(f"<td>{text_html(cell)}</td>" for cell in row)
        body += f"<tr>{cells}</tr>"
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def image_html(data: bytes, caption: str) -> str:
    """Return a WebP picture with its caption."""
    encoded = base64.b64encode(data).decode()
    image = f'<img alt="{text_html(caption)}" src="data:image/webp;base64,{encoded}">'
    return f"<figure>{image}<figcaption>{text_html(caption)}</figcaption></figure>"


def pictures_html(store: StoreView, shown: Iterable[tuple[int, str]]) -> str:
    """Return pictures of samples, given by number and caption, or the reason why one cannot be drawn."""
    html = ""
    for sample, caption in shown:
        try:
            html += image_html(sample_picture(store, sample, "webp"), caption)
        except InputError as error:  # concerns all samples: the family is not installed
            return f"<p>{text_html(f'no pictures: {error}')}</p>"
        except StoreError as error:
            html += f"<p>{text_html(f'{caption}: no picture: {error}')}</p>"
    return html


def notebook_html(
    title: str,
    facts: Iterable[tuple[str, str]],
    shown: Sequence[tuple[StoreView, Int64s | None]] = (),
) -> str:
    """Return an object's facts, and pictures of the first, middle and last samples of `shown`."""
    figures = ""
    for store, numbers in shown[:_MAX_STORES]:
        count = store.sample_count if numbers is None else len(numbers)
        positions = evenly(0, count, _MAX_SAMPLES)
        few = (positions if numbers is None else numbers[positions]).tolist()
        figures += pictures_html(store, [(number, f"sample {number}") for number in few])
    head = f"<strong>{text_html(title)}</strong>{facts_html(facts)}"
    return f'<div style="max-width:900px">{head}{figures}</div>'
