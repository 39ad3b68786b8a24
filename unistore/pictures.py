"""Pictures of samples, as families draw them, and the HTML in which they are shown."""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from unistore.converters.preview import evenly, preview_of
from unistore.errors import InputError, Problem, StoreError, UnistoreError, printable
from unistore.remote.url import redact_urls
from unistore.schemas.indices import StoreView

INSTALL = "pip install 'unistore[plot]'"
# Metadata of every file that is written; other files are overwritten only if that is asked for
MARK = "made by unistore inspect"
_MAX_TEXT = 600
# Shown in a notebook: stores of a Dataset, and samples of each
_MAX_STORES = 2
_MAX_SAMPLES = 3
# A narrow screen scrolls a picture instead of shrinking it until it cannot be read
_IMAGE = "width:100%;min-width:560px;max-width:1100px"

_FIGSIZE = (10, 3.2)
_DPI = 110
_STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "figure.titlesize": 11,
    "text.parse_math": False,  # names of columns may contain $
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}


def check_sample(store: StoreView, sample: int) -> None:
    """Raise an `InputError` if there is no sample with this number."""
    if not 0 <= sample < store.sample_count:
        held = f"samples 0 to {store.sample_count - 1}" if store.sample_count else "no samples"
        raise InputError(Problem("sample", f"is {sample}, and {store.path} has {held}", kind="option"))


def sample_picture(store: StoreView, sample: int, form: Literal["png", "webp"] = "png") -> bytes:
    """Return a picture of one sample, which is a row of the sample table."""
    check_sample(store, sample)
    preview = preview_of(store)
    try:
        import matplotlib.style
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError(Problem("pictures", f"need matplotlib ({error})", INSTALL, "missing")) from error
    encoded = io.BytesIO()
    with warnings.catch_warnings(), matplotlib.style.context(["default", _STYLE]):
        warnings.simplefilter("ignore")  # glyphs missing from the font, axes of a single value
        figure = Figure(figsize=_FIGSIZE, dpi=_DPI, layout="constrained")
        try:
            preview.draw(store, sample, figure)
            if form == "png":
                figure.savefig(encoded, format="png", metadata={"Software": MARK})
            else:
                figure.savefig(encoded, format="webp", pil_kwargs={"quality": 80})
        except UnistoreError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}; damaged? Run 'unistore verify {store.path}'"
            msg = f"{store.path}: sample {sample} cannot be drawn: {reason}"
            raise StoreError(msg) from error
    return encoded.getvalue()


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
    body = "".join(f"<tr>{''.join(f'<td>{text_html(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def pictures_html(store: StoreView, shown: Iterable[tuple[int, str]]) -> str:
    """Return pictures of samples, given by number and caption, or the reason why one cannot be drawn."""
    html = ""
    for sample, caption in shown:
        try:
            data = base64.b64encode(sample_picture(store, sample, "webp")).decode()
        except InputError as error:  # concerns all samples: matplotlib is not installed
            return f"<p>{text_html(f'no pictures: {error}')}</p>"
        except StoreError as error:
            html += f"<p>{text_html(f'{caption}: no picture: {error}')}</p>"
            continue
        image = f'<img style="{_IMAGE}" alt="{text_html(caption)}" src="data:image/webp;base64,{data}">'
        below = f"<figcaption>{text_html(caption)}</figcaption>"
        html += f'<figure style="margin:1em 0"><div style="overflow-x:auto">{image}</div>{below}</figure>'
    return html


def notebook_html(
    title: str,
    facts: Iterable[tuple[str, str]],
    shown: Sequence[tuple[StoreView, NDArray[np.int64] | None]] = (),
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
