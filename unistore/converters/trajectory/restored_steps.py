"""The episodes of a store, for forms that have a row a step: flags as recorded, tasks as texts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.formats.images import decode
from unistore.converters.formats.packets import KeptVideo
from unistore.plugin import ExportedArray, IndexColumn, StoredRagged, StoreView, whole
from unistore.schemas.trajectory.fields import (
    CLOCKS,
    EPISODES,
    EXTENT,
    FINAL,
    JPEG_SUFFIX,
    NEXT,
    NEXT_RECORDED,
    PRESENT,
    STEPS,
    SUFFIXES,
    VIDEO_SUFFIX,
    is_of_any_length,
    sample_key,
)
from unistore.schemas.trajectory.origins import ColumnOrigin, FrameForm
from unistore.system.types import AnyArray, Int64s, JsonObject, Shape

_TEXT_SUFFIX = SUFFIXES["text"]
STATS = "stats.json"  # statistics of a LeRobot dataset, if the user kept them: text of the source
TRUNCATED = f"{STEPS}/truncated"
FLAGS = (f"{STEPS}/terminated", TRUNCATED)
# Names under which sources say in words what a robot is to do.
_TASKS = ("tasks", "task", "language_instruction", "natural_language_instruction", "instruction", "mission")


class StoredStepColumn(NamedTuple):
    """A column with a row a step."""

    name: str  # as ``observation/images/top``
    dataset: str  # its name in an episode of the sources
    dtype: np.dtype[Any]
    row_shape: Shape
    read: Callable[[int, int], AnyArray]  # the rows of steps (start, stop), images decoded
    files: Callable[[int, int], list[bytes]] | None = None  # images as the files that the store keeps
    # Which episodes have it in their source, (episodes,), of next observations. None: all
    recorded: NDArray[np.bool_] | None = None
    components: tuple[str, ...] = ()  # names of the numbers in a row

    @property
    def is_image(self) -> bool:
        """Whether rows are RGB images."""
        return self.dtype == np.uint8 and len(self.row_shape) == 3 and self.row_shape[-1] == 3

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, decoded."""
        return prod(self.row_shape) * self.dtype.itemsize

    def blocks(self, start: int, stop: int) -> Iterator[AnyArray]:
        """Read the rows of steps, some at a time."""
        for lo, hi in blocks(start, stop, self.row_bytes):
            yield self.read(lo, hi)


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


def step_columns(store: StoreView) -> list[StoredStepColumn]:
    """List the columns that sources have with one shape in every step."""
    columns = []
    for path in store.paths():
        group = path.rpartition("/")[0]
        is_kept = path.endswith(f"{JPEG_SUFFIX}/data")
        is_video = path.endswith(f"{VIDEO_SUFFIX}/data")
        if not path.startswith(f"{STEPS}/") or (is_of_any_length(group) and not (is_kept or is_video)):
            continue
        array = store.array(path)
        attributes = array.attributes
        name = path.removeprefix(f"{STEPS}/")
        origin = ColumnOrigin.of(attributes)
        dataset = "" if origin is None else origin.dataset
        if is_video:
            form = FrameForm.of(store, path)
            name = name.removesuffix(f"{VIDEO_SUFFIX}/data")
            columns.append(StoredStepColumn(name, dataset, *form, KeptVideo(store, group).stretch))
        elif is_kept:
            files = partial(_files, store, path)
            is_swapped = attributes["colour"] == "swapped"
            form = FrameForm.of(store, path)
            read = partial(_images, f"{store.path}: {path}", files, is_swapped)
            name = name.removesuffix(f"{JPEG_SUFFIX}/data")
            columns.append(StoredStepColumn(name, dataset, *form, read, None if is_swapped else files))
        elif dataset or path not in (*FLAGS, f"{STEPS}/next_valid"):
            rows = partial(recorded_truncation, store) if path == TRUNCATED else array.read
            form = FrameForm(array.dtype, tuple(array.shape[1:]))
            recorded = next_recorded(store, path)
            components = () if origin is None else origin.components
            column = StoredStepColumn(name, dataset, *form, rows, recorded=recorded, components=components)
            columns.append(column)
    return columns


def next_recorded(store: StoreView, path: str) -> NDArray[np.bool_] | None:
    """Return which episodes have the next observations of an array, (episodes,). None: all."""
    original = store.array(path).attributes.get("resized_from", path)
    recorded = f"{NEXT_RECORDED}/{sample_key(original).removeprefix('next.')}"
    is_next = original.startswith((f"{NEXT}/", f"{FINAL}/"))
    return whole(store, recorded) if is_next and store.has(recorded) else None


def final_columns(store: StoreView) -> dict[str, str]:
    """Map each observation whose last next one the store has to the array of these, a row an episode."""
    paths = [path for path in store.paths() if path.startswith(f"{FINAL}/")]
    return {path.replace(f"{FINAL}/", "observation/", 1): path for path in paths}


Blocks = Callable[[int, int], Iterator[AnyArray]]  # reads the rows of steps (start, stop), some at a time


def following(
    store: StoreView, final: str, now: Blocks, first: int, last: int, *, with_first: bool = False
) -> ExportedArray:
    """Return the next observations in episodes ``first:last``: those of following steps, and final ones.

    Parameters
    ----------
    store : StoreView
        A trajectory store.
    final : str
        Path of the final observations.
    now : callable
        ``now(lo, hi)`` returns the observations of steps ``lo:hi``, in blocks.
    first, last : int
        First episode, and the episode after the last.
    with_first : bool, default False
        Whether to include the observation before the first step of each episode.
    """
    array = store.array(final)
    bounds = whole(store, f"{EPISODES}/offsets")[first : last + 1].tolist()

    def rows() -> Iterator[AnyArray]:
        for episode, (lo, hi) in enumerate(pairwise(bounds), first):
            for block in now(lo + 1 - with_first, hi):
                yield block.astype(array.dtype, copy=False)
            yield array.read_rows([episode])

    rows_in_all = bounds[-1] - bounds[0] + with_first * (last - first)
    return ExportedArray((rows_in_all, *array.shape[1:]), array.dtype, rows)


def recorded_truncation(store: StoreView, start: int, stop: int) -> AnyArray:
    """Read ``truncated`` without the flags of episodes that the end of a recording cut."""
    flags = store.array(TRUNCATED).read(start, stop)
    if store.has(f"{EPISODES}/cut"):
        last_steps = whole(store, f"{EPISODES}/offsets")[1:] - 1
        cut = last_steps[whole(store, f"{EPISODES}/cut")]
        flags[cut[(cut >= start) & (cut < stop)] - start] = False
    return flags


def _files(store: StoreView, path: str, start: int, stop: int) -> list[bytes]:
    data = store.array(path)
    offsets = IndexColumn(store, f"{path.removesuffix('data')}offsets")
    starts, stops = offsets.ranges(np.arange(start, stop))
    return [data.read(lo, hi).tobytes() for lo, hi in zip(starts.tolist(), stops.tolist(), strict=True)]


def _images(
    location: str, files: Callable[[int, int], list[bytes]], is_swapped: bool, start: int, stop: int
) -> AnyArray:
    return np.stack([decode(file, location, exact=True, swapped=is_swapped) for file in files(start, stop)])


def step_tasks(store: StoreView, episodes: list[StoredEpisode]) -> tuple[list[str], Int64s]:
    """Return all task texts, empty where none is said, and the number of each step's text, (steps,)."""
    of_sources = metadata_of_sources(store)
    of_episodes = metadata_of_episodes(store)
    numbers: dict[str, int] = {}
    of_steps = np.zeros(episodes[-1].stop if episodes else 0, np.int64)
    is_numbered = store.has(f"{STEPS}/task_index")
    column = _task_column(store)
    for episode in episodes:
        steps = slice(episode.start, episode.stop)
        listed = of_sources[episode.source].get("tasks")
        if is_numbered and isinstance(listed, list):
            own = store.array(f"{STEPS}/task_index").read(episode.start, episode.stop)
            texts = np.array([numbers.setdefault(str(text), len(numbers)) for text in listed], np.int64)
            of_steps[steps] = texts[own]
        elif column:
            rows = StoredRagged(store, column).rows(episode.start, episode.stop)
            own_texts = [row.tobytes().decode("utf-8", "backslashreplace") for row in rows]
            of_steps[steps] = [numbers.setdefault(text, len(numbers)) for text in own_texts]
        else:
            task = _task_of(of_episodes[episode.number]) or _task_of(of_sources[episode.source])
            of_steps[steps] = numbers.setdefault(task, len(numbers))
    return list(numbers), of_steps


def _task_column(store: StoreView) -> str:
    """Return the column of texts that says the task of every step, empty if there is none."""
    places = [f"{STEPS}/{name}{_TEXT_SUFFIX}" for name in _TASKS]
    places += [f"{STEPS}/observation/{name}{_TEXT_SUFFIX}" for name in _TASKS]
    return next((place for place in places if store.has(f"{place}/data")), "")


def _task_of(metadata: Mapping[str, Any]) -> str:
    """Return the task that an episode or a source states, empty if it does not."""
    for name in _TASKS:
        value = metadata.get(name)
        texts = value if isinstance(value, list) else [value]
        if texts and isinstance(texts[0], str):
            return texts[0]
    problem = metadata.get("problem_info")  # of LIBERO
    if isinstance(problem, str) and "language_instruction" in problem:
        return str(json.loads(problem)["language_instruction"])
    return ""


def metadata_of_sources(store: StoreView) -> list[JsonObject]:
    """Return what each source says beside its arrays."""
    return _metadata(store, "sources/attributes", "sources/path")


def metadata_of_episodes(store: StoreView) -> list[JsonObject]:
    """Return what each episode says beside its arrays."""
    return _metadata(store, f"{EPISODES}/attributes", f"{EPISODES}/name")


def _metadata(store: StoreView, path: str, names: str) -> list[JsonObject]:
    if store.has(f"{path}/data"):
        return [json.loads(text) for text in store.text(path)]
    return [{} for _ in store.text(names)]


def blocks(start: int, stop: int, row_bytes: int, block_bytes: int = 32 << 20) -> Iterator[tuple[int, int]]:
    """Divide rows into (start, stop) of about `block_bytes`."""
    rows = max(1, block_bytes // max(1, row_bytes))
    for first in range(start, stop, rows):
        yield first, min(stop, first + rows)


def left_out_notes(store: StoreView, form: str) -> list[str]:
    """Say which arrays of a store another form has no place for, and which are filled in."""
    streams = sorted({path.split("/")[1] for path in store.paths() if path.startswith(f"{CLOCKS}/")})
    notes = [f"clock {name} is not written: {form} has one rate per episode" for name in streams]
    for group, what in ((PRESENT, "NaN or 0 in episodes without it"), (EXTENT, "padded with zeros")):
        keys = [path.removeprefix(f"{group}/") for path in store.paths() if path.startswith(f"{group}/")]
        notes += [f"{key} is {what}, and {form} has no mask" for key in keys]
    suffix = f"{SUFFIXES['ragged']}/data"
    ragged = [path.removesuffix(suffix) for path in store.paths() if path.endswith(suffix)]
    notes += [f"{path} is not written: its rows have variable length" for path in ragged]
    suffix = f"{_TEXT_SUFFIX}/data"
    texts = [path.removesuffix("/data") for path in store.paths() if path.endswith(suffix)]
    own = _task_column(store)
    return notes + [
        f"{path.removesuffix(_TEXT_SUFFIX)} is not written: text" for path in texts if path != own
    ]
