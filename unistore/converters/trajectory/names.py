"""Make column names from the names of an episode's datasets, and know what they say by them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Literal

from unistore.converters.trajectory.options import TrajectoryOptions

# - ``actions``, ``rewards``, ``terminals``/``dones``, ``timeouts`` (singular too) are the columns ``action``,
#   ``reward``, ``terminated`` and ``truncated``; so are LeRobot's ``next.reward`` and ``next.done``, and
#   ``is_terminal`` of RLDS and RoboTwin's ``joint_action/vector``.
# - ``obs/*``, ``observations/*`` and ``next_obs/*``, ``next_observations/*`` are (next) observations; a
#   single dataset ``observations`` is ``observation/state``.
# - ``action/*``, as in DROID, are ``actions/*``: only one of them may be the action, by ``--map``.
# - Every other dataset keeps its own name (``states``, ``joint_torques``, ``datagen_info/eef_pose``), so that
#   only what the source calls actions becomes the action.

ROLES = {
    "action": ("actions", "action", "joint_action/vector"),
    "reward": ("rewards", "reward", "next.reward"),
    "terminated": (
        "terminals",
        "terminal",
        "terminated",
        "terminations",
        "terminateds",
        "dones",
        "done",
        "next.done",
        "is_terminal",
    ),
    "truncated": ("timeouts", "timeout", "truncated", "truncations", "truncateds"),
}
_OBSERVATIONS = ("obs", "observations", "observation")
_NEXT = ("next_obs", "next_observations", "next_observation")
# Datasets that can be derived from others: lengths of padded frames
_DERIVED = "compress_len"
RESERVED = ("next_valid", "observation", "next_observation")  # names that the stored form uses itself


def is_ignored(dataset: str, options: TrajectoryOptions) -> bool:
    """Return whether the user leaves a dataset out: a pattern does, and no ``--map`` names it."""
    if any(dataset == source.strip("/") for source in options.map.values()):
        return False
    return any(fnmatchcase(dataset, pattern) for pattern in options.ignore)


def column_of(
    dataset: str, options: TrajectoryOptions, name: str = "", *, is_bare: bool = False
) -> str | None:
    """Return the column name of a dataset, such as ``observation/eef_pos``. None: it is not stored.

    Parameters
    ----------
    dataset : str
        Path of the dataset.
    options : TrajectoryOptions
        Options of the conversion.
    name : str, default ""
        Name by which the dataset is known. Empty: its path.
    is_bare : bool, default False
        Whether datasets outside of groups of observations are observations, too.
    """
    if is_ignored(dataset, options):
        return None
    for column, source in options.map.items():
        if dataset == source.strip("/"):
            return column
    if dataset.rsplit("/", 1)[-1].endswith(_DERIVED):
        return None
    dataset = name or dataset
    for role, names in ROLES.items():
        if dataset in names:
            return role
    head, _, below = dataset.replace("observation.", "observation/", 1).partition("/")
    if head in _OBSERVATIONS:
        return f"observation/{below or 'state'}"
    if head in _NEXT:
        return f"next_observation/{below or 'state'}"
    if head == "action":
        return f"actions/{below}"
    return f"observation/{dataset}" if is_bare else dataset


def is_role(column: str) -> bool:
    """Return whether a column is the action, the reward, or says that an episode ends."""
    return column in ROLES


def is_core(path: str, column: str) -> bool:
    """Return whether a dataset of any size must have one row per step."""
    head = path.partition("/")[0]
    return is_role(column) or head in (*_OBSERVATIONS, *_NEXT, "infos") or path == "states"


# Names of columns, or their last parts, that say where episodes end, by the way in which they do. `last`,
# `first`: flags of steps. `stops`, `lengths`: a value an episode; `first` too. `number`: a value a step that
# is another one in each episode.
EndKind = Literal["last", "first", "stops", "lengths", "number"]

ENDS: Mapping[EndKind, tuple[str, ...]] = {
    "last": ("is_last", "episode_terminals", "dones_float"),
    "first": ("is_first", "episode_starts", "episode_start", "traj_starts"),
    "stops": ("episode_ends", "traj_ends", "trajectory_ends", "episode_offsets", "traj_offsets"),
    "lengths": (
        *("episode_lengths", "episode_lens", "ep_lengths", "ep_lens"),
        *("traj_lengths", "traj_lens", "trajectory_lengths"),
    ),
    "number": (
        *(
            "episode_index",
            "episode_idx",
            "episode_id",
            "episode_ids",
            "episode_number",
            "episode_num",
            "episode",
        ),
        *("ep_index", "ep_idx", "ep_id", "eps_id", "ep_num"),
        *("traj_index", "traj_idx", "traj_id", "traj_ids", "traj_num", "trajectory_index", "trajectory_id"),
    ),
}
_END_KINDS: dict[str, EndKind] = {name: kind for kind, names in ENDS.items() for name in names}


def kind_of(column: str) -> EndKind | None:
    """Return in what way a column says where episodes end, by its name. None: it does not."""
    return None if column.startswith("next_observation/") else _END_KINDS.get(last_name(column))


def is_of_episodes(column: str) -> bool:
    """Return whether a column may have a value an episode, not a step."""
    return kind_of(column) in ("stops", "first", "lengths")


def last_name(column: str) -> str:
    """Return the last part of the name of a column."""
    return re.split(r"[/.]", column)[-1].lower()
