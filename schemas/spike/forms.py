"""What the arrays of a spike store must be: frames, the extents inside them, the sequences that cut them."""

from __future__ import annotations

from collections.abc import Collection

from unistore.schemas.expected import BYTES, Forms
from unistore.schemas.forms import SAMPLES, Form, Limit
from unistore.schemas.spike.fields import (
    FRAMES,
    IMAGE_EXTENT,
    IMAGES,
    SEQUENCE_OFFSETS,
    SPIKE,
    SPIKE_EXTENT,
    SPIKE_LENGTH,
    file_table_name,
    voxel_bins,
)

__all__ = ["FORMS"]

_ROWS = (SAMPLES, 0)


def _form(path: str, paths: Collection[str]) -> Form:
    group, _, name = path.rpartition("/")
    bins = voxel_bins(path)
    if bins is not None:
        return Form(row_shape=(bins, None, None), rows=_ROWS)
    if path == SPIKE:
        return Form(dtypes=("uint8",), row_shape=(None, None, None), rows=_ROWS)
    if path == SPIKE_LENGTH:
        steps = (Limit(SPIKE, (1,)),) if SPIKE in paths else ()
        return Form(dtypes=("int32",), row_shape=(), rows=_ROWS, least=1, inside=steps)
    if path == SPIKE_EXTENT:
        limits = [Limit(each, (2, 3)) for each in sorted(paths) if voxel_bins(each) is not None]
        if SPIKE in paths:
            limits.insert(0, Limit(SPIKE, (2, 3), 8))
        return Form(dtypes=("int32",), row_shape=(2,), rows=_ROWS, least=1, inside=tuple(limits))
    if path == IMAGE_EXTENT:
        images = [f"{FRAMES}/{image}" for image in IMAGES]
        inside = tuple(Limit(each, (1, 2)) for each in images if each in paths)
        return Form(dtypes=("int32",), row_shape=(2,), rows=_ROWS, least=1, inside=inside)
    if path == SEQUENCE_OFFSETS:
        return Form(dtypes=("int64",), row_shape=(), cuts=SPIKE_EXTENT)
    if group in map(file_table_name, IMAGES):
        offsets = Form(dtypes=("int64",), row_shape=(), rows=(SAMPLES, 1), cuts=f"{group}/data")
        return offsets if name == "offsets" else BYTES
    if group == FRAMES and name in IMAGES:
        return Form(dtypes=("uint8",), row_shape=(None, None, 3), rows=_ROWS)
    return Form(rows=_ROWS) if group == FRAMES else Form()


FORMS = Forms(own=_form, main_rows=SAMPLES, text={"sequences": (SEQUENCE_OFFSETS, 0)})
