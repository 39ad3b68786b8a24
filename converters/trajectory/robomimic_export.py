"""A store as one HDF5 file in the layout of robomimic: ``data/demo_0/{obs, actions, rewards, dones}``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.exported import File, Values, array_values
from unistore.converters.trajectory.stored_steps import (
    StepColumn,
    StoredEpisode,
    blocks,
    episode_facts,
    final_columns,
    left_out_notes,
    source_facts,
    step_columns,
    step_tasks,
    stored_episodes,
)
from unistore.errors import InputError, Problem
from unistore.schemas.indices import StoreView, whole
from unistore.schemas.trajectory.fields import EPISODES

_FILE = "demo.hdf5"
# What robomimic takes for a Gym environment without a name: it trains, and rolls nothing out
_NO_ENVIRONMENT = json.dumps({"env_name": "", "env_version": "", "type": 2, "env_kwargs": {}})
_ROLES = {"action": "actions", "reward": "rewards", "terminated": "dones"}
# Names of splits where robomimic has its own
_SPLITS = {"val": "valid"}


def files(store: StoreView) -> Iterator[File]:
    """Write a store as one file, images as pixels.

    Raises
    ------
    InputError
        If two columns have one name in robomimic.
    """
    episodes = stored_episodes(store)
    columns = _columns(store)
    finals = final_columns(store)
    facts = source_facts(store)
    facts_of_episodes = episode_facts(store)
    tasks, task_of_step = step_tasks(store, episodes)
    values: dict[str, Values] = {}
    environments = list(dict.fromkeys(str(said["env_args"]) for said in facts if said.get("env_args")))
    total = episodes[-1].stop
    attributes: dict[str, dict[str, Any]] = {
        "data": {"env_args": next(iter(environments), _NO_ENVIRONMENT), "total": total}
    }
    for episode in episodes:
        group = f"data/demo_{episode.number}"
        for path, column in columns.items():
            values[f"{group}/{path}"] = _rows(column, episode)
        for name, path in finals.items():
            key = _observation_key(name)
            now = columns[f"obs/{key}"]
            values[f"{group}/next_obs/{key}"] = _following(store, now, path, episode)
        if "dones" not in columns:
            last = np.arange(episode.length) == episode.length - 1
            values[f"{group}/dones"] = array_values(last.astype(np.int64))
        attributes[group] = {
            **facts_of_episodes[episode.number],
            "num_samples": episode.length,
            "source": episode.source_name,
            "source_episode": episode.name,
        }
        if text := tasks[task_of_step[episode.start]]:
            attributes[group]["task"] = text
    for name, members in _masks(store, episodes).items():
        values[f"mask/{name}"] = array_values(np.array([f"demo_{number}".encode() for number in members]))
    notes = left_out_notes(store, "robomimic")
    if "rewards" not in columns:
        notes.append("no rewards: leave rewards out of dataset_keys in robomimic's configuration")
    if "dones" not in columns:
        notes.append("dones: the sources have none, so the last step of each episode is done")
    if not environments:
        notes.append("env_args name no environment, as the sources do: train without rollouts")
    if len(environments) > 1:
        count = len(environments)
        notes.append(f"the sources have {count} different env_args: those of the first are written")
    yield File(name=_FILE, form="hdf5", source=0, values=values, attributes=attributes, notes=tuple(notes))


def _columns(store: StoreView) -> dict[str, StepColumn]:
    """Map the path of each dataset in an episode to its column."""
    columns: dict[str, StepColumn] = {}
    for column in step_columns(store):
        path = _path_of(column)
        if path in columns:
            message = f"columns {columns[path].name} and {column.name} would be {path!r}"
            cure = "give one another name with --map when converting"
            raise InputError(Problem(store.path, message, cure, "name"))
        columns[path] = column
    return columns


def _path_of(column: StepColumn) -> str:
    if column.name.startswith("observation/"):
        return f"obs/{_observation_key(column.name)}"
    if column.name.startswith("next_observation/"):
        return f"next_obs/{_observation_key(column.name)}"
    return _ROLES.get(column.name, column.name)


def _observation_key(name: str) -> str:
    """Return an observation's name, which has no groups in robomimic."""
    return name.partition("/")[2].replace("/", "_")


def _rows(column: StepColumn, episode: StoredEpisode) -> Values:
    dtype = np.dtype(np.int64) if column.dtype == bool else column.dtype

    def row_blocks() -> Iterator[NDArray[Any]]:
        for start, stop in blocks(episode.start, episode.stop, column.row_bytes):
            yield column.read(start, stop).astype(dtype, copy=False)

    return Values((episode.length, *column.row_shape), dtype, row_blocks)


def _following(store: StoreView, column: StepColumn, path: str, episode: StoredEpisode) -> Values:
    """Next observations: those of the following steps, then the last one of the episode."""

    def row_blocks() -> Iterator[NDArray[Any]]:
        for start, stop in blocks(episode.start + 1, episode.stop, column.row_bytes):
            yield column.read(start, stop)
        yield store.array(path).read(episode.number, episode.number + 1)

    return Values((episode.length, *column.row_shape), column.dtype, row_blocks)


def _masks(store: StoreView, episodes: Sequence[StoredEpisode]) -> dict[str, list[int]]:
    """Return the numbers of the episodes of each split, and of each mask of the sources."""
    masks: dict[str, list[int]] = {}
    for episode in episodes:
        if episode.split:
            masks.setdefault(_SPLITS.get(episode.split, episode.split), []).append(episode.number)
    prefix = f"{EPISODES}/mask/"
    for path in store.paths():
        if path.startswith(prefix):
            members = np.flatnonzero(whole(store, path)).tolist()
            masks.setdefault(path.removeprefix(prefix), members)
    return masks
