"""Fragments of HTML. Text that comes from files is escaped here."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from unistore.converters.preview import evenly
from unistore.errors import InputError, StoreError, printable
from unistore.pictures.draw import sample_picture
from unistore.remote.url import redact_urls
from unistore.schemas.store_view import StoreView

_MAX_TEXT = 600
_MAX_STORES, _MAX_SAMPLES = 2, 3
"""Shown in a notebook: stores of a Dataset, and samples of each."""
_IMAGE = "width:100%;min-width:560px;max-width:1100px"
"""A narrow screen scrolls a picture instead of shrinking it until it cannot be read."""


def text_html(text: str, max_length: int = _MAX_TEXT) -> str:
    """Escaped text with its line breaks; secrets in URLs are redacted, long text is cut."""
    safe = "\n".join(printable(redact_urls(line)) for line in text.split("\n"))
    return escape(safe if len(safe) <= max_length else f"{safe[:max_length]}…")


def facts_html(facts: Iterable[tuple[str, str]]) -> str:
    """A table of names and values."""
    rows = "".join(f"<tr><th>{text_html(name)}</th><td>{text_html(value)}</td></tr>" for name, value in facts)
    return f'<table class="facts">{rows}</table>'


def table_html(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table that scrolls where it is too wide."""
    head = "".join(f"<th>{text_html(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(f'<td>{text_html(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def pictures_html(store: StoreView, shown: Iterable[tuple[int, str]]) -> str:
    """Pictures of samples, given by number and caption; where one cannot be drawn, the reason."""
    parts = []
    for sample, caption in shown:
        try:
            data = base64.b64encode(sample_picture(store, sample, "webp")).decode()
        except InputError as error:  # concerns all samples: matplotlib is not installed
            return f"<p>{text_html(f'no pictures: {error}')}</p>"
        except StoreError as error:
            parts.append(f"<p>{text_html(f'{caption}: no picture: {error}')}</p>")
            continue
        image = f'<img style="{_IMAGE}" alt="{text_html(caption)}" src="data:image/webp;base64,{data}">'
        below = f"<figcaption>{text_html(caption)}</figcaption>"
        parts.append(
            f'<figure style="margin:1em 0"><div style="overflow-x:auto">{image}</div>{below}</figure>'
        )
    return "".join(parts)


def notebook_html(
    title: str,
    facts: Iterable[tuple[str, str]],
    shown: Sequence[tuple[StoreView, NDArray[np.int64] | None]] = (),
) -> str:
    """Representation of an object in a notebook: its facts, and pictures of a few samples.

    Parameters
    ----------
    shown
        Stores and the numbers of their samples (None: all), of which the first, middle and last are shown.
    """
    figures = ""
    for store, numbers in shown[:_MAX_STORES]:
        count = store.sample_count if numbers is None else len(numbers)
        positions = evenly(0, count, _MAX_SAMPLES)
        few = (positions if numbers is None else numbers[positions]).tolist()
        figures += pictures_html(store, [(number, f"sample {number}") for number in few])
    return (
        f'<div style="max-width:900px"><strong>{text_html(title)}</strong>{facts_html(facts)}{figures}</div>'
    )
