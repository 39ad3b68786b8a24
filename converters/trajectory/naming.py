"""Make column names from the names of an episode's datasets."""

# - ``actions``, ``rewards``, ``terminals``/``dones``, ``timeouts`` (singular too) are the columns ``action``,
#   ``reward``, ``terminated`` and ``truncated``; so are LeRobot's ``next.reward`` and ``next.done``, and
#   ``is_terminal`` of RLDS.
# - ``obs/*``, ``observations/*`` and ``next_obs/*``, ``next_observations/*`` are (next) observations; a
#   single dataset ``observations`` is ``observation/state``.
# - Every other dataset keeps its own name (``states``, ``joint_torques``, ``datagen_info/eef_pose``), so that
#   only what the source calls actions becomes the action.

from __future__ import annotations

from fnmatch import fnmatchcase

from unistore.converters.trajectory.options import TrajectoryOptions

_ROLES = {
    "action": ("actions", "action"),
    "reward": ("rewards", "reward", "next.reward"),
    "terminated": (
        "terminals",
        "terminal",
        "terminated",
        "terminations",
        "dones",
        "done",
        "next.done",
        "is_terminal",
    ),
    "truncated": ("timeouts", "timeout", "truncated", "truncations"),
}
_OBSERVATIONS = ("obs", "observations", "observation")
_NEXT = ("next_obs", "next_observations", "next_observation")
# Datasets that can be derived from others: lengths of padded frames
_DERIVED = "compress_len"
RESERVED = ("next_valid", "observation", "next_observation")  # names that the stored form uses itself


def is_ignored(dataset: str, options: TrajectoryOptions) -> bool:
    """Return whether the user leaves a dataset out."""
    return any(fnmatchcase(dataset, pattern) for pattern in options.ignore)


def column_of(
    dataset: str, options: TrajectoryOptions, name: str = "", *, is_bare: bool = False
) -> str | None:
    """Return the column name of a dataset, such as ``observation/eef_pos``, or None if it is left out."""
    # `name` is what it is known by, if not by its path. `is_bare`: datasets outside of groups of observations
    # are observations, too.
    if is_ignored(dataset, options):
        return None
    for column, source in options.map.items():
        if dataset == source.strip("/"):
            return column
    if dataset.rsplit("/", 1)[-1].endswith(_DERIVED):
        return None
    dataset = name or dataset
    for role, names in _ROLES.items():
        if dataset in names:
            return role
    head, _, below = dataset.replace("observation.", "observation/", 1).partition("/")
    if head in _OBSERVATIONS:
        return f"observation/{below or 'state'}"
    if head in _NEXT:
        return f"next_observation/{below or 'state'}"
    return f"observation/{dataset}" if is_bare else dataset


def is_role(column: str) -> bool:
    """Return whether a column is the action, the reward, or says that an episode ends."""
    return column in _ROLES


def is_core(path: str, column: str) -> bool:
    """Return whether a dataset of any size must have one row per step."""
    head = path.partition("/")[0]
    return is_role(column) or head in (*_OBSERVATIONS, *_NEXT, "infos") or path == "states"
