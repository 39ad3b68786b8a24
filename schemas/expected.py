"""The form of every array of every family, by its path: what readers and ``verify`` hold it against."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from unistore.schemas.ct import fields as ct
from unistore.schemas.forms import SAMPLES, Form, Limit
from unistore.schemas.point_cloud import fields as point_cloud
from unistore.schemas.rows import fields as rows
from unistore.schemas.spike import fields as spike
from unistore.schemas.trajectory import fields as trajectory

__all__ = ["MAIN_ROWS", "form_of", "is_text"]

MAIN_ROWS: Mapping[str, str] = {
    rows.FAMILY_NAME: SAMPLES,
    point_cloud.FAMILY_NAME: "points/xyz",
    spike.FAMILY_NAME: SAMPLES,
    ct.FAMILY_NAME: SAMPLES,
    trajectory.FAMILY_NAME: "steps/next_valid",
}
"""What the rows of the sources count, by family: an array whose rows they are, or `SAMPLES`."""

_ANY = Form()
_NUMBERS = ("int64",)
_BYTES = Form(dtypes=("uint8",), row_shape=())
_WITH_TEXT = ("sources", ct.VOLUMES, "sequences", trajectory.EPISODES)
"""Tables some columns of which are text: ``<table>/<column>/{data, offsets}``."""


def form_of(family: str, path: str, paths: Collection[str]) -> Form:
    """Form of an array.

    Parameters
    ----------
    family
        Of the store.
    path
        Of the array.
    paths
        Of all arrays of the store.
    """
    return _common(family, path, paths) or _family(family, path, paths)


def _common(family: str, path: str, paths: Collection[str]) -> Form | None:
    """Sources, splits and text, which every store has."""
    if path == "splits/code":
        return Form(dtypes=("uint8",), row_shape=(), rows=(SAMPLES, 0))
    group, _, name = path.rpartition("/")
    if _is_text(group, paths) and name in ("data", "offsets"):
        if name == "data":
            return _BYTES
        return Form(dtypes=_NUMBERS, row_shape=(), rows=_text_rows(family, group), cuts=f"{group}/data")
    if group == "sources":
        counted = ("sources/path/offsets", -1)
        if name in ("bytes", "rows", "first_row"):
            return Form(dtypes=_NUMBERS, row_shape=(), rows=counted, least=0, ascending=name == "first_row")
        if name in ("scale", "offset"):
            return Form(dtypes=("float64",), row_shape=(3,), rows=counted)
        return Form(rows=counted)
    return None


def _is_text(group: str, paths: Collection[str]) -> bool:
    """Whether a group is a column of text."""
    table, _, column = group.partition("/")
    known = table in _WITH_TEXT and bool(column) and "/" not in column
    return known and f"{group}/data" in paths and f"{group}/offsets" in paths


def is_text(path: str, paths: Collection[str]) -> bool:
    """Whether an array holds the bytes of a column of text."""
    return path.endswith("/data") and _is_text(path.removesuffix("/data"), paths)


def _text_rows(family: str, group: str) -> tuple[str, int] | None:
    """Rows of the offsets of a column of text: one more than its table has."""
    table = group.partition("/")[0]
    if table == "sources":
        return None if group == "sources/path" else ("sources/path/offsets", 0)
    if family == spike.FAMILY_NAME and table == "sequences":
        return spike.SEQUENCE_OFFSETS, 0
    known = {ct.FAMILY_NAME: ct.VOLUMES, trajectory.FAMILY_NAME: trajectory.EPISODES}
    return (SAMPLES, 1) if known.get(family) == table else None


def _family(family: str, path: str, paths: Collection[str]) -> Form:
    if family == spike.FAMILY_NAME:
        return _spike_form(path, paths)
    if family == ct.FAMILY_NAME:
        return _ct_form(path, paths)
    own = {
        rows.FAMILY_NAME: _rows_form,
        point_cloud.FAMILY_NAME: _point_cloud_form,
        trajectory.FAMILY_NAME: _trajectory_form,
    }
    return own[family](path) if family in own else _ANY


def _rows_form(path: str) -> Form:
    return Form(rows=(SAMPLES, 0)) if path.startswith(f"{rows.TABLE}/") else _ANY


def _point_cloud_form(path: str) -> Form:
    group, _, name = path.rpartition("/")
    segments = ("segments/number", 0)
    if path == "points/xyz":
        return Form(dtypes=("int32", "float64", "float32"), row_shape=(3,))
    if path.startswith(f"{point_cloud.POINTS}/"):
        points = ("points/xyz", 0)
        return Form(dtypes=_NUMBERS, row_shape=(), rows=points) if name == "source_row" else Form(rows=points)
    if group == point_cloud.SEGMENTS:
        known = {
            "offsets": Form(dtypes=_NUMBERS, row_shape=(), rows=("segments/number", 1), cuts="points/xyz"),
            "number": Form(dtypes=_NUMBERS, row_shape=(), least=point_cloud.NO_SEGMENT),
            "origin": Form(dtypes=("float64",), row_shape=(3,), rows=segments),
            "bounds": Form(dtypes=("float64",), row_shape=(2, 3), rows=segments),
            "source": Form(
                dtypes=("int32",),
                row_shape=(),
                rows=segments,
                below=("sources/path/offsets", -1),
                ascending=True,
            ),
        }
        return known.get(name, Form(rows=segments))
    if path.startswith("voxels/"):
        cells = f"{group}/coords"
        known = {
            "coords": Form(dtypes=("int32",), row_shape=(3,)),
            "counts": Form(dtypes=("uint32",), row_shape=(), rows=(cells, 0)),
            "offsets": Form(dtypes=_NUMBERS, row_shape=(), rows=("segments/number", 1), cuts=cells),
            "point_voxel": Form(dtypes=("int32",), row_shape=(), rows=("points/xyz", 0)),
        }
        return known.get(name, _ANY)
    return _ANY


def _spike_form(path: str, paths: Collection[str]) -> Form:
    group, _, name = path.rpartition("/")
    frames = (SAMPLES, 0)
    bins = spike.voxel_bins(path)
    if bins is not None:
        return Form(row_shape=(bins, None, None), rows=frames)
    if path == spike.SPIKE:
        return Form(dtypes=("uint8",), row_shape=(None, None, None), rows=frames)
    if path == spike.SPIKE_LENGTH:
        steps = (Limit(spike.SPIKE, (1,)),) if spike.SPIKE in paths else ()
        return Form(dtypes=("int32",), row_shape=(), rows=frames, least=1, inside=steps)
    if path == spike.SPIKE_EXTENT:
        limits = [Limit(each, (2, 3)) for each in sorted(paths) if spike.voxel_bins(each) is not None]
        if spike.SPIKE in paths:
            limits.insert(0, Limit(spike.SPIKE, (2, 3), 8))
        return Form(dtypes=("int32",), row_shape=(2,), rows=frames, least=1, inside=tuple(limits))
    if path == spike.IMAGE_EXTENT:
        images = [f"{spike.FRAMES}/{image}" for image in spike.IMAGES]
        inside = tuple(Limit(each, (1, 2)) for each in images if each in paths)
        return Form(dtypes=("int32",), row_shape=(2,), rows=frames, least=1, inside=inside)
    if path == spike.SEQUENCE_OFFSETS:
        return Form(dtypes=_NUMBERS, row_shape=(), cuts=spike.SPIKE_EXTENT)
    if group in map(spike.file_table_name, spike.IMAGES):
        offsets = Form(dtypes=_NUMBERS, row_shape=(), rows=(SAMPLES, 1), cuts=f"{group}/data")
        return offsets if name == "offsets" else _BYTES
    if group == spike.FRAMES and name in spike.IMAGES:
        return Form(dtypes=("uint8",), row_shape=(None, None, 3), rows=frames)
    return Form(rows=frames) if group == spike.FRAMES else _ANY


def _ct_form(path: str, paths: Collection[str]) -> Form:
    group, _, name = path.rpartition("/")
    volumes = (SAMPLES, 0)
    if path == f"{ct.VOLUMES}/image":
        return Form(row_shape=(None, None, None), rows=volumes)
    if path == f"{ct.VOLUMES}/extent":
        image = f"{ct.VOLUMES}/image"
        limits = [Limit(image, (1, 2, 3))] if image in paths else []
        limits += [Limit(each, (1, 2, 3), 8) for each in sorted(paths) if _is_mask(each)]
        return Form(dtypes=("int32",), row_shape=(3,), rows=volumes, least=0, inside=tuple(limits))
    if group == ct.VOLUMES or name == "present":
        return Form(dtypes=("bool",) if name == "present" else (), rows=volumes)
    if path.partition("/")[0] not in (ct.WINDOWS, ct.MASKS, ct.SDF):
        return _ANY
    if _is_mask(path):
        return Form(dtypes=("uint8",), row_shape=(None, None, None), rows=volumes)
    cells = f"{group}/coords"
    cuts = cells if cells in paths else Limit(f"{group}/mask", (1, 2, 3), 8)
    known = {
        "coords": Form(dtypes=("uint16", "int32"), row_shape=(3,)),
        "values": Form(row_shape=(), rows=(cells, 0)),
        "offsets": Form(dtypes=_NUMBERS, row_shape=(), rows=(SAMPLES, 1), cuts=cuts),
        "resolution": Form(row_shape=(), rows=volumes),
    }
    return known.get(name, _ANY)


def _is_mask(path: str) -> bool:
    return path.endswith("/mask") and path.startswith((f"{ct.WINDOWS}/", f"{ct.MASKS}/"))


def _trajectory_form(path: str) -> Form:
    group, _, name = path.rpartition("/")
    steps, episodes = ("steps/next_valid", 0), (SAMPLES, 0)
    if group.endswith(trajectory.JPEG_SUFFIX) and name in ("data", "offsets"):
        offsets = Form(dtypes=_NUMBERS, row_shape=(), rows=("steps/next_valid", 1), cuts=f"{group}/data")
        return offsets if name == "offsets" else _BYTES
    if path == "steps/next_valid":
        return Form(dtypes=("bool",), row_shape=())
    if path in ("steps/terminated", "steps/truncated"):
        return Form(dtypes=("bool",), row_shape=(), rows=steps)
    if path.startswith(f"{trajectory.STEPS}/"):
        return Form(rows=steps)
    known = {
        "offsets": Form(dtypes=_NUMBERS, row_shape=(), rows=(SAMPLES, 1), cuts="steps/next_valid"),
        "source": Form(
            dtypes=("int32",), row_shape=(), rows=episodes, below=("sources/path/offsets", -1), ascending=True
        ),
        "cut": Form(dtypes=("bool",), row_shape=(), rows=episodes),
        "success": Form(row_shape=(), rows=episodes),
    }
    if group == trajectory.EPISODES and name in known:
        return known[name]
    if path.startswith(f"{trajectory.EPISODES}/mask/"):
        return Form(dtypes=("bool",), row_shape=(), rows=episodes)
    return Form(rows=episodes) if path.startswith(f"{trajectory.EPISODES}/") else _ANY
