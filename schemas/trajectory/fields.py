"""The stored form of episodes: names, axes, and what its arrays must be."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from unistore.schemas.array_specs import BYTES, SAMPLES, ArraySpec, ArraySpecs
from unistore.schemas.tables import Field, bounds_field, own_axes

FAMILY_NAME = "trajectory"
STEPS = "steps"
EPISODES = "episodes"
OBSERVATION = "steps/observation"
CLOCKS = "clocks"
"""Group of the tables of streams that have other rates than the steps, one for each clock."""
CLOCK_OFFSETS = "episodes/clocks"
NEXT = "steps/next_observation"
FINAL = "episodes/final_observation"
JPEG_SUFFIX = "_jpeg"

CHANNEL = "channel"
"""Last axis of a colour image array; whoever hands out samples moves it to the front."""

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
    """Field of one column of ``steps``, or of the table of another clock.

    Parameters
    ----------
    column
        ``"action"``, ``"reward"``, ``"observation/joint"``, or a source's own name.
    dtype
        numpy dtype name.
    row_shape
        Shape of one step's value; (H, W, 3) with ``uint8`` is an RGB image.
    table
        Name of the table.
    **attributes
        Further attributes of the array.
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
    """Whether a field holds RGB images (rows, H, W, 3) u1."""
    return len(field.axes) == 4 and field.axes[-1] == CHANNEL


def moved(field: Field, group: str) -> Field:
    """An observation's field, as its next (`NEXT`) or final (`FINAL`) counterpart; no statistics."""
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


def jpeg_fields(key: str, run: int, **attributes: object) -> tuple[Field, Field]:
    """``data`` and ``offsets`` of compressed frames kept as they are.

    Parameters
    ----------
    key
        Observation key: ``"images/cam_high"``.
    run
        Typical bytes of one frame.
    **attributes
        Attributes of ``data``: ``colour`` ("standard" or "swapped"), ``shape`` and ``dtype`` of a decoded
        frame.
    """
    group = f"{OBSERVATION}/{key}{JPEG_SUFFIX}"
    data = Field(
        path=f"{group}/data",
        dtype="uint8",
        axes=own_axes(group, "byte", 1),
        description=f"compressed frames of observation {key}, back to back, bit for bit as in the source",
        run=run,
        attributes=attributes,
    )
    description = "frame of step t is data[offsets[t]:offsets[t + 1]]"
    offsets = bounds_field(f"{group}/offsets", "step", description)
    return data, offsets


def sample_key(path: str) -> str:
    """Dotted key of an array in samples.

    ``steps/observation/joint`` is ``observation.joint``; the arrays of next and final observations are
    ``next.observation.joint``; kept frames are known by their image: ``observation.cam``.

    >>> sample_key("steps/next_observation/images/cam")
    'next.observation.images.cam'
    """
    for group in (NEXT, FINAL):
        if path.startswith(f"{group}/"):
            return "next.observation." + path.removeprefix(f"{group}/").replace("/", ".")
    if path.startswith(f"{CLOCKS}/"):
        return path.split("/", 2)[2].replace("/", ".")
    column = path.removeprefix(f"{STEPS}/").removesuffix(f"{JPEG_SUFFIX}/data")
    return column.replace("/", ".")


# What the arrays of a trajectory store must be.

_VALID = "steps/next_valid"
_STEPS = (_VALID, 0)
_EPISODES = (SAMPLES, 0)


def _spec(path: str, paths: Collection[str]) -> ArraySpec:
    group, _, name = path.rpartition("/")
    if path.startswith((f"{CLOCKS}/", f"{CLOCK_OFFSETS}/")):
        return _clock_spec(path, paths)
    if group.endswith(JPEG_SUFFIX) and name in ("data", "offsets"):
        offsets = ArraySpec(dtypes=("int64",), row_shape=(), rows=(_VALID, 1), offsets_of=f"{group}/data")
        return offsets if name == "offsets" else BYTES
    if path.startswith(f"{STEPS}/"):
        return ArraySpec(rows=_STEPS)
    if path in _OPTIONAL:
        return _OPTIONAL[path]
    if path.startswith(f"{EPISODES}/mask/"):
        return ArraySpec(dtypes=("bool",), row_shape=(), rows=_EPISODES)
    return ArraySpec(rows=_EPISODES) if path.startswith(f"{EPISODES}/") else ArraySpec()


def _clock_spec(path: str, paths: Collection[str]) -> ArraySpec:
    """Spec of a column of a clock's table, or of the offsets of the episodes in it."""
    if path.startswith(f"{CLOCK_OFFSETS}/"):
        table = f"{CLOCKS}/{path.removeprefix(f'{CLOCK_OFFSETS}/').removesuffix('offsets')}"
        column = min((other for other in paths if other.startswith(table)), default=table)
        return ArraySpec(dtypes=("int64",), row_shape=(), rows=(SAMPLES, 1), offsets_of=column)
    table = "/".join(path.split("/")[:2])
    first = min(other for other in paths if other.startswith(f"{table}/"))
    offsets = f"{CLOCK_OFFSETS}/{table.removeprefix(f'{CLOCKS}/')}/offsets"
    return ArraySpec(beside=(offsets,), rows=None if path == first else (first, 0))


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
    main_rows=_VALID,
    text={EPISODES: (SAMPLES, 1)},
)
