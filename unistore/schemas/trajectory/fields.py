"""The stored form of episodes: names, axes, and what its arrays must be."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Literal, TypeAlias

from unistore.schemas.array_specs import SAMPLES, SOURCE_BOUNDS, ArraySpec, spec_of
from unistore.schemas.declared_rules import ArraySpecs, Declared, resolved, text_columns
from unistore.schemas.ragged import RAGGED_SUFFIX, TEXT_SUFFIX, ragged_arrays, ragged_field, text_field
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
    """Return the field of a column of ``steps``, or of the table of another clock.

    Rows of shape (H, W, 3), uint8, are RGB images.
    """
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
    """Return the dotted key of an array in samples: ``observation.joint``.

    Arrays of next and final observations have the key ``next.observation.joint``. Stored image files have
    the key of their image, ``observation.cam``.
    """
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

_VALID = f"{STEPS}/next_valid"
_FLAG = spec_of("bool", rows=(_VALID, 0))
_EPISODES = (SAMPLES, 0)
_OF_EPISODE = spec_of("bool", rows=_EPISODES)
_EPISODE_BOUNDS = (SAMPLES, 1)
_CLOCK = f"{CLOCKS}/<clock>"
_CLOCK_BOUNDS = f"{CLOCK_OFFSETS}/<clock>/offsets"


def _rows_of_any_length(table: str, rows: str) -> dict[str, Declared]:
    """Declare the columns of a table that have any number of values, or bytes, in a row."""
    columns: dict[str, Declared] = {}
    for suffix in SUFFIXES.values():
        columns |= ragged_arrays(f"{table}/<column>{suffix}", (rows, 1))
    return columns


SPECS = ArraySpecs(
    arrays={
        _VALID: spec_of("bool"),
        f"{STEPS}/terminated": _FLAG,
        f"{STEPS}/truncated": _FLAG,
        f"{EPISODES}/offsets": spec_of("int64", rows=_EPISODE_BOUNDS, offsets_of=_VALID),
    },
    optional={
        **_rows_of_any_length(STEPS, _VALID),
        f"{STEPS}/<column>": ArraySpec(rows=(_VALID, 0)),
        **_rows_of_any_length(_CLOCK, f"{_CLOCK}/"),
        f"{_CLOCK}/<column>": ArraySpec(beside=(_CLOCK_BOUNDS,), rows=(f"{_CLOCK}/", 0)),
        # of ticks; of the bounds of their rows where all columns have rows of any length
        _CLOCK_BOUNDS: (
            spec_of("int64", rows=_EPISODE_BOUNDS, offsets_of=f"{_CLOCK}/"),
            spec_of("int64", rows=_EPISODE_BOUNDS, indexes=(f"{_CLOCK}/", 1), ascending=True),
        ),
        f"{EPISODES}/source": spec_of("int32", rows=_EPISODES, indexes=(SOURCE_BOUNDS, -1), ascending=True),
        f"{EPISODES}/cut": replace(_OF_EPISODE, absent=False),
        f"{EPISODES}/success": ArraySpec(row_shape=(), rows=_EPISODES, absent=-1),
        f"{EPISODES}/mask/<name>": replace(_OF_EPISODE, absent=False),
        f"{PRESENT}/<key>": _OF_EPISODE,
        f"{NEXT_RECORDED}/<key>": replace(_OF_EPISODE, absent=True),
        f"{EXTENT}/<key>": ArraySpec(dtypes=("int32",), rows=_EPISODES),
        **text_columns(f"{EPISODES}/attributes", _EPISODE_BOUNDS, absent="{}"),
        **text_columns(f"{EPISODES}/<column>", _EPISODE_BOUNDS),
        f"{EPISODES}/<column>": ArraySpec(rows=_EPISODES),
        **text_columns("sources/attributes", (SOURCE_BOUNDS, 0), absent="{}"),
    },
)


def rules_of(paths: Collection[str]) -> Mapping[str, ArraySpec]:
    """Return the rules of the arrays of a store that has them at these paths."""
    return resolved(SPECS, paths).rules()
