"""What a trajectory store holds: steps, the episodes they belong to, and where the next observation lies.

::

    steps/<column>                        one row a step, episodes contiguous and in order
    steps/observation/<key>               low-dimensional values beside images (N, H, W, 3) u1 RGB
    steps/observation/<key>_jpeg/data     compressed frames as in the source, with ``offsets`` (N + 1)
    steps/next_observation/<key>          only where it is not the following step's observation
    episodes/offsets                      steps of episode e are offsets[e]:offsets[e + 1]
    episodes/final_observation/<key>      what was observed after the last step of each episode

Inside an episode the next observation of step t is ``observation[t + 1]``; at its last step it is
``final_observation`` where there is one, and unknown (``next_valid`` False) where there is not.
"""

from __future__ import annotations

from dataclasses import replace

from unistore.schemas.tables import Field, bounds_field, own_axes

FAMILY_NAME = "trajectory"
STEPS = "steps"
EPISODES = "episodes"
OBSERVATION = "steps/observation"
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


def column_field(column: str, dtype: str, row_shape: tuple[int, ...], **attributes: object) -> Field:
    """Field of one column of ``steps``.

    Parameters
    ----------
    column
        ``"action"``, ``"reward"``, ``"observation/joint"``, or a source's own name.
    dtype
        numpy dtype name.
    row_shape
        Shape of one step's value; (H, W, 3) with ``uint8`` is an RGB image.
    **attributes
        Further attributes of the array.
    """
    image = dtype == "uint8" and len(row_shape) == 3 and row_shape[-1] == 3
    own = own_axes(column, "dimension" if len(row_shape) == 1 else "axis", len(row_shape))
    axes = image_axes(column) if image else own
    numeric = dtype != "bool" and not image and len(row_shape) <= 1
    described = f"observation {column.removeprefix('observation/')} before the step's action"
    return Field(
        path=f"{STEPS}/{column}",
        dtype=dtype,
        row_shape=row_shape,
        axes=("step", *axes),
        description=_TEXTS.get(
            column, described if column.startswith("observation/") else f"{column}, per step"
        ),
        statistics=numeric and (column in ("action", "reward") or column.startswith("observation/")),
        attributes={"channels": ["red", "green", "blue"], **attributes} if image else attributes,
    )


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
        Attributes of ``data``: ``encoding`` ("jpeg" or "png"), ``colour`` ("standard" or "swapped"),
        ``shape`` of a decoded frame.
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
    column = path.removeprefix(f"{STEPS}/").removesuffix(f"{JPEG_SUFFIX}/data")
    return column.replace("/", ".")
