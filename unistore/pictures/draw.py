"""A sample of a store as a picture, as its family draws it."""

from __future__ import annotations

import io
import warnings
from typing import Any, Literal

from unistore.converters.preview import Preview
from unistore.converters.registry import get_family
from unistore.errors import InputError, Problem, StoreError, UnistoreError
from unistore.schemas.store_view import StoreView

INSTALL = "pip install 'unistore[plot]'"
MARK = "made by unistore inspect"
"""Metadata of every file that is written; other files are overwritten only if that is asked for."""
_FIGSIZE, _DPI = (10, 3.2), 110
_STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "figure.titlesize": 11,
    "text.parse_math": False,  # names of columns may contain $
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}


def preview_of(store: StoreView) -> Preview:
    """The preview functions of a store's family.

    Raises
    ------
    InputError
        If the family is not installed, or has no preview.
    """
    found: Preview = get_family(store.family).part("preview")
    return found


def check_sample(store: StoreView, sample: int) -> None:
    """Check the number of a sample.

    Raises
    ------
    InputError
        If it is out of range.
    """
    if not 0 <= sample < store.sample_count:
        held = f"samples 0 to {store.sample_count - 1}" if store.sample_count else "no samples"
        raise InputError(Problem("sample", f"is {sample}, and {store.path} has {held}", kind="option"))


def sample_picture(store: StoreView, sample: int, form: Literal["png", "webp"] = "png") -> bytes:
    """Picture of one sample.

    Parameters
    ----------
    store
        A sealed store.
    sample
        Row of its sample table: a segment, volume, frame, episode or row.
    form
        Format of the picture.

    Raises
    ------
    InputError
        If there is no such sample, the family has no preview, or matplotlib is not installed.
    StoreError
        If the sample cannot be drawn: the store is damaged, or the family's code fails.
    """
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
