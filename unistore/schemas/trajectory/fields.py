"""The stored form of episodes: names, axes, and what its arrays must be."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Literal, TypeAlias

from unistore.schemas.array_specs import SAMPLES, ArraySpec, ArraySpecs
from unistore.schemas.ragged import RAGGED_SUFFIX, TEXT_SUFFIX, ragged_field, ragged_spec, text_field
from unistore.schemas.tables import Field, IndexValues, bounds_field, own_axes

FAMILY_NAME = "trajectory"
STEPS = "steps"
EPISODES = "episodes"
OBSERVATION = "steps/observation"
CLOCKS = "clocks"  # group of the tables of streams that have other rates than the steps, one for each clock
CLOCK_OFFSETS = "episodes/clocks"
PRESENT = "episodes/present"  # which episodes have a column, by its key in samples; all where there is none
EXTENT = "episodes/extent"  # how far rows of a padded column reach, by its key in samples
# which episodes have next observations in their source, by the key of the column; all where there is none
NEXT_RECORDED = "episodes/next_recorded"
NEXT = "steps/next_observation"
FINAL = "episodes/final_observation"
JPEG_SUFFIX = "_jpeg"  # ending of the group of a column of compressed frames that are kept as they are
VIDEO_SUFFIX = "_video"  # of one of video, whose packets are kept
KEPT_SUFFIXES = (JPEG_SUFFIX, VIDEO_SUFFIX)

# What the rows of a column are that has ``data`` and ``offsets``, any number of values or bytes each
RowsOfAnyLength: TypeAlias = Literal["frames", "video", "ragged", "text"]
# Endings of the groups of these columns
SUFFIXES: Mapping[RowsOfAnyLength, str] = {
    "frames": JPEG_SUFFIX,
    "video": VIDEO_SUFFIX,
    "ragged": RAGGED_SUFFIX,
    "text": TEXT_SUFFIX,
}
# An array that is written whole, with its field
IndexArray: TypeAlias = tuple[Field, IndexValues]

CHANNEL = "channel"  # last axis of a colour image array; whoever hands out samples moves it to the front

_FLAGS = {
    "terminated": "the step ended the episode in a terminal state, as the source says",
    "truncated": "the episode ends here without a terminal state: a recorded timeout or the recording's end",
    "next_valid": "the observation after this step is known",
}
_TEXTS = {
    "action": "what was commanded at this step",
    "reward": "reward received for this step's action",
    **_FLAGS,
}


def column_field(
    column: str, dtype: str, row_shape: tuple[int, ...], table: str = STEPS, **attributes: object
) -> Field:
    """Return the field of one column of ``steps``, or of the table of another clock."""
    # Rows of shape (H, W, 3) with uint8 are RGB images.
    image = dtype == "uint8" and len(row_shape) == 3 and row_shape[-1] == 3
    own = own_axes(column, "dimension" if len(row_shape) == 1 else "axis", len(row_shape))
    axes = image_axes(column) if image else own
    numeric = dtype != "bool" and not image and len(row_shape) <= 1
    return Field(
        path=f"{table}/{column}",
        dtype=dtype,
        row_shape=row_shape,
        axes=("step" if table == STEPS else f"{table.rpartition('/')[2]}_tick", *axes),
        description=_description(column, table),
        statistics=numeric and (column in ("action", "reward") or column.startswith("observation/")),
        attributes={"channels": ["red", "green", "blue"], **attributes} if image else attributes,
    )


def _description(column: str, table: str) -> str:
    if table != STEPS:
        return f"{column}, at the times of the clock {table.removeprefix(f'{CLOCKS}/')}"
    if column.startswith("observation/"):
        return f"observation {column.removeprefix('observation/')} before the step's action"
    return _TEXTS.get(column, f"{column}, per step")


def image_axes(column: str) -> tuple[str, str, str]:
    """Axes of one image of a column."""
    y, x = (f"{column.rpartition('/')[2]}_{axis}" for axis in "yx")
    return y, x, CHANNEL


def is_image(field: Field) -> bool:
    """Return whether a field holds RGB images (rows, H, W, 3) u1."""
    return len(field.axes) == 4 and field.axes[-1] == CHANNEL


def moved(field: Field, group: str) -> Field:
    """An observation's field, as its next (`NEXT`) or final (`FINAL`) counterpart. No statistics."""
    key = field.path.removeprefix(f"{OBSERVATION}/")
    axis, what = (
        ("episode", "after the last step of the episode") if group == FINAL else ("step", "after the step")
    )
    return replace(
        field,
        path=f"{group}/{key}",
        axes=(axis, *field.axes[1:]),
        description=f"observation {key} {what}",
        statistics=False,
    )


# Estimated bytes of a compressed frame, used until frames are counted
_FRAME = 32 << 10


def present_field(key: str, column: str) -> Field:
    """Return the field that says which episodes have a column, by its key in samples."""
    text = f"whether the episode has {column}"
    return Field(path=f"{PRESENT}/{key}", dtype="bool", axes=("episode",), description=text)


def next_recorded_field(key: str, column: str) -> Field:
    """Return the field that says which episodes have next observations of a column in their source."""
    text = f"whether the source has next observations of {column}; else they are those of the following steps"
    return Field(path=f"{NEXT_RECORDED}/{key}", dtype="bool", axes=("episode",), description=text)


def extent_field(key: str, column: str, array: str, axes: int) -> Field:
    """Return the field of how far the rows of a padded column reach in each episode, (E, axes) i4."""
    path = f"{EXTENT}/{key}"
    return Field(
        path=path,
        dtype="int32",
        row_shape=(axes,),
        axes=("episode", *own_axes(path, "axis", 1)),
        description=f"how far rows of {column} reach; behind it is padding",
        attributes={"array": array},
    )


def values_field(
    column: str,
    table: str,
    rows: RowsOfAnyLength,
    dtype: str,
    row_shape: tuple[int, ...],
    attributes: Mapping[str, object],
    colour: str = "standard",
) -> Field:
    """Return the field ``data`` of a column with any number of values, or bytes, in a row.

    Parameters
    ----------
    column, table
        Name of the column, and the table of its clock.
    rows
        What its rows are. Packets of video stand in the row of the first step of their group of pictures.
    dtype, row_shape
        Form of a value of ragged rows, or of a decoded frame.
    attributes
        What the sources say of it.
    colour
        Of compressed frames: "standard", or "swapped" if they were encoded with red as blue.
    """
    if rows == "text":
        return text_field(column, table, **attributes)
    if rows == "ragged":
        return ragged_field(column, table, dtype, row_shape, **attributes)
    group = f"{table}/{column}{SUFFIXES[rows]}"
    about = {"shape": list(row_shape), "dtype": dtype, **attributes}
    if rows == "frames":
        return _bytes_field(column, group, "compressed frames", {"colour": colour, **about})
    content = {"content": "packets of video, which PyAV decodes when they are read"}
    return _bytes_field(column, group, "video", {**content, **about})


def _bytes_field(column: str, group: str, what: str, attributes: Mapping[str, object]) -> Field:
    column = column.replace("observation/", "observation ", 1)
    return Field(
        path=f"{group}/data",
        dtype="uint8",
        axes=own_axes(group, "byte", 1),
        description=f"{what} of {column}, back to back, bit for bit as in the source",
        run=_FRAME,
        attributes=attributes,
    )


def bounds_of(group: str) -> Field:
    """``offsets`` beside the ``data`` of a column with any number of bytes, or values, in a row."""
    clock = group.split("/")[1] if group.startswith(f"{CLOCKS}/") else ""
    tick = "tick" if clock else "step"
    what = "frame" if group.endswith(JPEG_SUFFIX) else "row"
    description = f"{what} of {tick} t is data[offsets[t]:offsets[t + 1]]"
    return bounds_field(f"{group}/offsets", f"{clock}_tick" if clock else "step", description)


def is_of_any_length(group: str) -> bool:
    """Return whether a group is a column of ``data`` and ``offsets``, with any number of values in a row."""
    return group.endswith(tuple(SUFFIXES.values()))


def column_group(path: str) -> str:
    """Path of a column by that of its array: the group of those that have ``data`` and ``offsets``."""
    group, _, name = path.rpartition("/")
    return group if name in ("data", "offsets") and is_of_any_length(group) else path


def sample_key(path: str) -> str:
    """Return the dotted key of an array in samples: ``observation.joint``."""
    # The arrays of next and final observations are `next.observation.joint`, and kept frames are known by
    # their image: `observation.cam`.
    column = column_group(path)
    for suffix in SUFFIXES.values():
        column = column.removesuffix(suffix)
    for group in (NEXT, FINAL):
        if path.startswith(f"{group}/"):
            return "next.observation." + column.removeprefix(f"{group}/").replace("/", ".")
    if path.startswith(f"{CLOCKS}/"):
        return column.split("/", 2)[2].replace("/", ".")
    return column.removeprefix(f"{STEPS}/").replace("/", ".")


# What the arrays of a trajectory store must be.

_VALID = "steps/next_valid"
_STEPS = (_VALID, 0)
_EPISODES = (SAMPLES, 0)


def _spec(path: str, paths: Collection[str]) -> ArraySpec:
    if path.startswith(f"{CLOCK_OFFSETS}/"):
        return _clock_offsets_spec(path, paths)
    table = "/".join(path.split("/")[:2]) if path.startswith(f"{CLOCKS}/") else STEPS
    if column_group(path) != path:
        first = _VALID if table == STEPS else _first_column(table, paths)
        return ragged_spec(path, (first, 1) if first else None)
    if table != STEPS:
        first = _first_column(table, paths)
        offsets = f"{CLOCK_OFFSETS}/{table.removeprefix(f'{CLOCKS}/')}/offsets"
        return ArraySpec(beside=(offsets,), rows=None if path == first else (first, 0))
    if path.startswith(f"{STEPS}/"):
        return ArraySpec(rows=_STEPS)
    if path in _OPTIONAL:
        return _OPTIONAL[path]
    if path.startswith((f"{EPISODES}/mask/", f"{PRESENT}/", f"{NEXT_RECORDED}/")):
        return ArraySpec(dtypes=("bool",), row_shape=(), rows=_EPISODES)
    if path.startswith(f"{EXTENT}/"):
        return ArraySpec(dtypes=("int32",), rows=_EPISODES)
    return ArraySpec(rows=_EPISODES) if path.startswith(f"{EPISODES}/") else ArraySpec()


def _first_column(table: str, paths: Collection[str]) -> str:
    """A column of a clock's table with a row a tick (empty: all have any number of values in a row)."""
    inside = [path for path in paths if path.startswith(f"{table}/") and column_group(path) == path]
    return min(inside, default="")


def _clock_offsets_spec(path: str, paths: Collection[str]) -> ArraySpec:
    """Return the spec of the offsets of the episodes in the table of a clock."""
    table = f"{CLOCKS}/{path.removeprefix(f'{CLOCK_OFFSETS}/').removesuffix('/offsets')}"
    first = _first_column(table, paths)
    if first:
        return ArraySpec(dtypes=("int64",), row_shape=(), rows=(SAMPLES, 1), offsets_of=first)
    bounds = min(other for other in paths if other.startswith(f"{table}/") and other.endswith("/offsets"))
    return ArraySpec(dtypes=("int64",), row_shape=(), rows=(SAMPLES, 1), indexes=(bounds, 0), ascending=True)


_FLAG = ArraySpec(dtypes=("bool",), row_shape=(), rows=_STEPS)
_OPTIONAL = {
    f"{EPISODES}/source": ArraySpec(
        dtypes=("int32",), row_shape=(), rows=_EPISODES, indexes=("sources/path/offsets", -1), ascending=True
    ),
    f"{EPISODES}/cut": ArraySpec(dtypes=("bool",), row_shape=(), rows=_EPISODES),
    f"{EPISODES}/success": ArraySpec(row_shape=(), rows=_EPISODES),
}

SPECS = ArraySpecs(
    arrays={
        _VALID: ArraySpec(dtypes=("bool",), row_shape=()),
        "steps/terminated": _FLAG,
        "steps/truncated": _FLAG,
        f"{EPISODES}/offsets": ArraySpec(
            dtypes=("int64",), row_shape=(), rows=(SAMPLES, 1), offsets_of=_VALID
        ),
    },
    others=_spec,
    text={EPISODES: (SAMPLES, 1)},
    absent={
        f"{EPISODES}/cut": False,
        f"{EPISODES}/success": -1,
        f"{EPISODES}/mask": False,
        NEXT_RECORDED: True,
        f"{EPISODES}/attributes": "{}",
        "sources/attributes": "{}",
    },
)
