"""Columns of a store's steps as trainers take them: decoded images, flags as recorded, tasks as texts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.formats.images import decode
from unistore.schemas.indices import Column, StoreView, whole
from unistore.schemas.trajectory.fields import (
    CLOCKS,
    EPISODES,
    FINAL,
    JPEG_SUFFIX,
    RAGGED_SUFFIX,
    STEPS,
    is_of_any_length,
)

_NOT_EXPORTED = f"{STEPS}/next_valid"
_FLAGS = (f"{STEPS}/terminated", f"{STEPS}/truncated")
_KEPT = f"{JPEG_SUFFIX}/data"
_TASKS = ("tasks", "task", "language_instruction", "natural_language_instruction", "instruction")
"""Names under which sources say in words what a robot is to do."""


class StepColumn(NamedTuple):
    """A column with a row a step."""

    name: str
    """As ``observation/images/top``."""
    dataset: str
    """Its name in an episode of the sources."""
    dtype: np.dtype[Any]
    row_shape: tuple[int, ...]
    read: Callable[[int, int], NDArray[Any]]
    """Reads the rows of steps (start, stop), images decoded."""
    files: Callable[[int, int], list[bytes]] | None = None
    """Reads images of steps (start, stop) as the JPEG or PNG files that the store keeps."""

    @property
    def is_image(self) -> bool:
        """Whether rows are RGB images."""
        return self.dtype == np.uint8 and len(self.row_shape) == 3 and self.row_shape[-1] == 3

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return int(np.prod(self.row_shape, dtype=np.int64)) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class StoredEpisode:
    """An episode of a store, whose steps are rows ``start:stop``."""

    number: int
    name: str
    source: int
    source_name: str
    start: int
    stop: int
    split: str

    @property
    def length(self) -> int:
        """Steps."""
        return self.stop - self.start


def stored_episodes(store: StoreView) -> list[StoredEpisode]:
    """List the episodes in the order of the store."""
    offsets = whole(store, f"{EPISODES}/offsets").tolist()
    sources = whole(store, f"{EPISODES}/source").tolist()
    paths = store.text("sources/path")
    splits = store.split_names()
    codes = whole(store, "splits/code").tolist() if splits else []
    episodes = []
    for number, name in enumerate(store.text(f"{EPISODES}/name")):
        source = sources[number]
        split = splits[codes[number]] if splits else ""
        place = offsets[number], offsets[number + 1]
        episodes.append(StoredEpisode(number, name, source, paths[source], *place, split))
    return episodes


def step_columns(store: StoreView) -> list[StepColumn]:
    """List the columns that sources have with one shape in every step."""
    columns = []
    for path in store.paths():
        is_step = path.startswith(f"{STEPS}/") and path != _NOT_EXPORTED
        group = path.rpartition("/")[0]
        is_kept_frame = path.endswith(_KEPT)
        if not is_step or (is_of_any_length(group) and not is_kept_frame):
            continue
        attributes = store.array(path).attributes
        if path in _FLAGS and "source_dataset" not in attributes:
            continue
        dataset = attributes.get("source_dataset", [""])[0].strip("/")
        columns.append(_kept(store, path, dataset) if is_kept_frame else _plain(store, path, dataset))
    return columns


def final_columns(store: StoreView) -> dict[str, str]:
    """Map each observation whose last next one the store has to the array of these, a row an episode."""
    paths = [path for path in store.paths() if path.startswith(f"{FINAL}/")]
    return {path.replace(f"{FINAL}/", "observation/", 1): path for path in paths}


def _plain(store: StoreView, path: str, dataset: str) -> StepColumn:
    array = store.array(path)
    read = array.read
    if path == f"{STEPS}/truncated" and store.has(f"{EPISODES}/cut"):
        read = partial(_as_recorded, store)
    return StepColumn(path.removeprefix(f"{STEPS}/"), dataset, array.dtype, tuple(array.shape[1:]), read)


def _as_recorded(store: StoreView, start: int, stop: int) -> NDArray[Any]:
    """Read ``truncated`` without the flags of episodes that the end of a recording cut."""
    flags = store.array(f"{STEPS}/truncated").read(start, stop)
    last_steps = whole(store, f"{EPISODES}/offsets")[1:] - 1
    cut = last_steps[whole(store, f"{EPISODES}/cut")]
    flags[cut[(cut >= start) & (cut < stop)] - start] = False
    return flags


def _kept(store: StoreView, path: str, dataset: str) -> StepColumn:
    attributes = store.array(path).attributes
    is_swapped = attributes["colour"] == "swapped"
    files = partial(_files, store, path)

    def read(start: int, stop: int) -> NDArray[Any]:
        """Decode the images."""
        images = [
            decode(file, f"{store.path}: {path}", exact=True, swapped=is_swapped)
            for file in files(start, stop)
        ]
        return np.stack(images)

    name = path.removeprefix(f"{STEPS}/").removesuffix(_KEPT)
    dtype = np.dtype(attributes["dtype"])
    row_shape = tuple(attributes["shape"])
    return StepColumn(name, dataset, dtype, row_shape, read, None if is_swapped else files)


def _files(store: StoreView, path: str, start: int, stop: int) -> list[bytes]:
    data = store.array(path)
    offsets = Column(store, f"{path.removesuffix('data')}offsets")
    starts, stops = offsets.ranges(np.arange(start, stop))
    return [data.read(lo, hi).tobytes() for lo, hi in zip(starts.tolist(), stops.tolist(), strict=True)]


def step_tasks(store: StoreView, episodes: list[StoredEpisode]) -> tuple[list[str], NDArray[np.int64]]:
    """Return all task texts, empty where none is said, and the number of each step's text, (steps,)."""
    of_sources = source_facts(store)
    of_episodes = episode_facts(store)
    numbers: dict[str, int] = {}
    of_steps = np.zeros(episodes[-1].stop if episodes else 0, np.int64)
    is_numbered = store.has(f"{STEPS}/task_index")
    for episode in episodes:
        steps = slice(episode.start, episode.stop)
        listed = of_sources[episode.source].get("tasks")
        if is_numbered and isinstance(listed, list):
            own = store.array(f"{STEPS}/task_index").read(episode.start, episode.stop)
            texts = np.array([numbers.setdefault(str(text), len(numbers)) for text in listed], np.int64)
            of_steps[steps] = texts[own]
        else:
            facts = [of_episodes[episode.number], of_sources[episode.source]]
            of_steps[steps] = numbers.setdefault(task_of(facts), len(numbers))
    return list(numbers), of_steps


def task_of(facts: Sequence[Mapping[str, Any]]) -> str:
    """Return the task that an episode, or else its source, states; empty if neither does."""
    for said in facts:
        for name in _TASKS:
            value = said.get(name)
            texts = value if isinstance(value, list) else [value]
            if texts and isinstance(texts[0], str):
                return texts[0]
        problem = said.get("problem_info")
        if isinstance(problem, str) and "language_instruction" in problem:
            return str(json.loads(problem)["language_instruction"])
    return ""


def source_facts(store: StoreView) -> list[dict[str, Any]]:
    """Return what each source says beside its arrays."""
    facts = _json_texts(store, "sources/attributes")
    return facts or [{} for _ in store.text("sources/path")]


def episode_facts(store: StoreView) -> list[dict[str, Any]]:
    """Return what each episode says beside its arrays."""
    facts = _json_texts(store, f"{EPISODES}/attributes")
    return facts or [{} for _ in store.text(f"{EPISODES}/name")]


def blocks(start: int, stop: int, row_bytes: int, block_bytes: int = 32 << 20) -> Iterator[tuple[int, int]]:
    """Divide rows into (start, stop) of about `block_bytes`."""
    rows = max(1, block_bytes // max(1, row_bytes))
    for first in range(start, stop, rows):
        yield first, min(stop, first + rows)


def left_out_notes(store: StoreView, form: str) -> list[str]:
    """Say which arrays of a store another form has no place for."""
    streams = sorted({path.split("/")[1] for path in store.paths() if path.startswith(f"{CLOCKS}/")})
    notes = [f"clock {name} is left out: {form} has one rate an episode" for name in streams]
    suffix = f"{RAGGED_SUFFIX}/data"
    ragged = [path.removesuffix(suffix) for path in store.paths() if path.endswith(suffix)]
    notes += [f"{path} is left out: its rows are of any length" for path in ragged]
    return notes


def _json_texts(store: StoreView, path: str) -> list[dict[str, Any]]:
    return [json.loads(text) for text in store.text(path)] if store.has(f"{path}/data") else []
