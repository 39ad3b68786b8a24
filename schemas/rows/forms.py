"""What the arrays of a store of plain arrays must be: rows, as many as there are samples."""

from __future__ import annotations

from collections.abc import Collection

from unistore.schemas.expected import Forms
from unistore.schemas.forms import SAMPLES, Form
from unistore.schemas.rows.fields import TABLE

__all__ = ["FORMS"]


def _form(path: str, _paths: Collection[str]) -> Form:
    return Form(rows=(SAMPLES, 0)) if path.startswith(f"{TABLE}/") else Form()


FORMS = Forms(own=_form, main_rows=SAMPLES)
