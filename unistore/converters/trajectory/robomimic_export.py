"""A store as one HDF5 file in the layout of robomimic: ``data/demo_0/{obs, actions, rewards, dones}``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import numpy as np

from unistore.converters.trajectory.restored_steps import (
    StoredEpisode,
    StoredStepColumn,
    final_columns,
    following,
    left_out_notes,
    metadata_of_episodes,
    metadata_of_sources,
    next_recorded,
    step_columns,
    step_tasks,
    stored_episodes,
)
from unistore.errors import InputError
from unistore.plugin import ExportedArray, File, StoreView, array_values, whole
from unistore.schemas.trajectory.fields import EPISODES
from unistore.system.types import AnyArray, JsonObject

_FILE = "demo.hdf5"
# What robomimic takes for a Gym environment without a name: it trains, and rolls nothing out
_NO_ENVIRONMENT = json.dumps({"env_name": "", "env_version": "", "type": 2, "env_kwargs": {}})
_ROLES = {"action": "actions", "reward": "rewards", "terminated": "dones"}
_GROUPS = {"observation": "obs", "next_observation": "next_obs"}


def files(store: StoreView) -> Iterator[File]:
    """Write a store as one file, images as pixels."""
    episodes = stored_episodes(store)
    columns = _columns(store)
    finals = final_columns(store)
    own_metadata = metadata_of_episodes(store)
    tasks, task_of_step = step_tasks(store, episodes)
    stated = [
        str(metadata["env_args"]) for metadata in metadata_of_sources(store) if metadata.get("env_args")
    ]
    environments = list(dict.fromkeys(stated))
    values: dict[str, ExportedArray] = {}
    attributes: dict[str, JsonObject] = {
        "data": {"env_args": next(iter(environments), _NO_ENVIRONMENT), "total": episodes[-1].stop}
    }
    for episode in episodes:
        group = f"data/demo_{episode.number}"
        for path, column in columns.items():
            if column.recorded is None or column.recorded[episode.number]:
                values[f"{group}/{path}"] = _rows(column, episode)
        for name, path in finals.items():
            recorded = next_recorded(store, path)
            if recorded is not None and not recorded[episode.number]:
                continue
            now = columns[_path_of(name)].blocks
            own = following(store, path, now, episode.number, episode.number + 1)
            values[f"{group}/{_path_of(f'next_{name}')}"] = own
        if "dones" not in columns:
            last = np.arange(episode.length) == episode.length - 1
            values[f"{group}/dones"] = array_values(last.astype(np.int64))
        attributes[group] = {
            **own_metadata[episode.number],
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
        notes.append("the sources have no dones, so the last step of each episode is done")
    if not environments:
        notes.append(
            "env_args do not name an environment, because the sources do not: train without rollouts"
        )
    if len(environments) > 1:
        count = len(environments)
        notes.append(f"the sources have {count} different env_args; the ones of the first source are written")
    yield File(
        name=_FILE,
        form="hdf5",
        source=0,
        scope="all",
        values=values,
        attributes=attributes,
        notes=tuple(notes),
    )


def _columns(store: StoreView) -> dict[str, StoredStepColumn]:
    """Map the path of each dataset in an episode to its column."""
    columns: dict[str, StoredStepColumn] = {}
    for column in step_columns(store):
        path = _path_of(column.name)
        if path in columns:
            message = f"the columns {columns[path].name} and {column.name} would both become {path!r}"
            fix = "convert the sources again, and rename one with --map"
            raise InputError.at(store.path, message, fix, "name")
        columns[path] = column
    return columns


def _path_of(column: str) -> str:
    """Return the path of a column in an episode. Observations have no groups in robomimic."""
    head, _, key = column.partition("/")
    return f"{_GROUPS[head]}/{key.replace('/', '_')}" if head in _GROUPS else _ROLES.get(column, column)


def _rows(column: StoredStepColumn, episode: StoredEpisode) -> ExportedArray:
    dtype = np.dtype(np.int64) if column.dtype == bool else column.dtype

    def rows() -> Iterator[AnyArray]:
        return (block.astype(dtype, copy=False) for block in column.blocks(episode.start, episode.stop))

    return ExportedArray((episode.length, *column.row_shape), dtype, rows)


def _masks(store: StoreView, episodes: Sequence[StoredEpisode]) -> dict[str, list[int]]:
    """Return the numbers of the episodes of each split, ``val`` as ``valid``, and of each mask."""
    masks: dict[str, list[int]] = {}
    for episode in episodes:
        if episode.split:
            masks.setdefault("valid" if episode.split == "val" else episode.split, []).append(episode.number)
    prefix = f"{EPISODES}/mask/"
    for path in store.paths():
        if path.startswith(prefix):
            masks.setdefault(path.removeprefix(prefix), np.flatnonzero(whole(store, path)).tolist())
    return masks
