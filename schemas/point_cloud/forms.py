"""What the arrays of a point cloud store must be: points, segments that cut them, voxels of the segments."""

from __future__ import annotations

from collections.abc import Collection

from unistore.schemas.expected import Forms
from unistore.schemas.forms import Form
from unistore.schemas.point_cloud.fields import NO_SEGMENT, POINTS, SEGMENTS

__all__ = ["FORMS"]

_XYZ = "points/xyz"
_SEGMENTS = ("segments/number", 0)
_OFFSETS = ("segments/number", 1)


def _form(path: str, _paths: Collection[str]) -> Form:
    group, _, name = path.rpartition("/")
    if path == _XYZ:
        return Form(dtypes=("int32", "float64", "float32"), row_shape=(3,))
    if path.startswith(f"{POINTS}/"):
        rows = (_XYZ, 0)
        return Form(dtypes=("int64",), row_shape=(), rows=rows) if name == "source_row" else Form(rows=rows)
    if group == SEGMENTS:
        return _segments().get(name, Form(rows=_SEGMENTS))
    if path.startswith("voxels/"):
        return _voxels(f"{group}/coords").get(name, Form())
    return Form()


def _segments() -> dict[str, Form]:
    source = ("sources/path/offsets", -1)
    return {
        "offsets": Form(dtypes=("int64",), row_shape=(), rows=_OFFSETS, cuts=_XYZ),
        "number": Form(dtypes=("int64",), row_shape=(), least=NO_SEGMENT),
        "origin": Form(dtypes=("float64",), row_shape=(3,), rows=_SEGMENTS),
        "bounds": Form(dtypes=("float64",), row_shape=(2, 3), rows=_SEGMENTS),
        "source": Form(dtypes=("int32",), row_shape=(), rows=_SEGMENTS, below=source, ascending=True),
    }


def _voxels(cells: str) -> dict[str, Form]:
    return {
        "coords": Form(dtypes=("int32",), row_shape=(3,)),
        "counts": Form(dtypes=("uint32",), row_shape=(), rows=(cells, 0)),
        "offsets": Form(dtypes=("int64",), row_shape=(), rows=_OFFSETS, cuts=cells),
        "point_voxel": Form(dtypes=("int32",), row_shape=(), rows=(_XYZ, 0)),
    }


FORMS = Forms(own=_form, main_rows=_XYZ)
