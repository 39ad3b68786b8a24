"""What the arrays of a CT store must be: volumes, their extents, windows as masks or coordinates."""

from __future__ import annotations

from collections.abc import Collection

from unistore.schemas.ct.fields import LABELS, MASKS, SDF, VOLUMES, WINDOWS
from unistore.schemas.expected import Forms
from unistore.schemas.forms import SAMPLES, Form, Limit

__all__ = ["FORMS"]

_ROWS = (SAMPLES, 0)
_IMAGE = f"{VOLUMES}/image"


def _form(path: str, paths: Collection[str]) -> Form:
    group, _, name = path.rpartition("/")
    if path == _IMAGE:
        return Form(row_shape=(None, None, None), rows=_ROWS)
    if path == f"{VOLUMES}/extent":
        limits = [Limit(_IMAGE, (1, 2, 3))] if _IMAGE in paths else []
        limits += [Limit(each, (1, 2, 3), 8) for each in sorted(paths) if _is_mask(each)]
        limits += [Limit(each, (1, 2, 3)) for each in sorted(paths) if _is_label(each)]
        return Form(dtypes=("int32",), row_shape=(3,), rows=_ROWS, least=0, inside=tuple(limits))
    if group == VOLUMES or name == "present":
        return Form(dtypes=("bool",) if name == "present" else (), rows=_ROWS)
    if path.partition("/")[0] not in (WINDOWS, MASKS, LABELS, SDF):
        return Form()
    if _is_label(path):
        return Form(row_shape=(None, None, None), rows=_ROWS)
    if _is_mask(path):
        return Form(dtypes=("uint8",), row_shape=(None, None, None), rows=_ROWS)
    cells = f"{group}/coords"
    cuts = cells if cells in paths else Limit(f"{group}/mask", (1, 2, 3), 8)
    known = {
        "coords": Form(dtypes=("uint16", "int32"), row_shape=(3,)),
        "values": Form(row_shape=(), rows=(cells, 0)),
        "offsets": Form(dtypes=("int64",), row_shape=(), rows=(SAMPLES, 1), cuts=cuts),
        "resolution": Form(row_shape=(), rows=_ROWS),
    }
    return known.get(name, Form())


def _is_mask(path: str) -> bool:
    return path.endswith("/mask") and path.startswith((f"{WINDOWS}/", f"{MASKS}/", f"{LABELS}/"))


def _is_label(path: str) -> bool:
    return path.endswith("/label") and path.startswith((f"{MASKS}/", f"{LABELS}/"))


FORMS = Forms(own=_form, main_rows=SAMPLES, text={VOLUMES: (SAMPLES, 1)})
