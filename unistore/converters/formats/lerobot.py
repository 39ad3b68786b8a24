"""Open LeRobot datasets, v2.1 and v3: ``meta/info.json``, tables in Parquet, cameras as videos."""

# A dataset opens as one tree, `data/episode_000000/<feature>`, wherever its files keep the rows.

from __future__ import annotations

import glob
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property, partial
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unistore.converters.array import Array
from unistore.converters.claims import Claim, no, sure
from unistore.converters.common.columns import ANY_TEXT
from unistore.converters.formats.lazy import LazyRows, Unread
from unistore.converters.formats.parquet import ParquetColumn, ParquetFile, Tables, open_parquet
from unistore.converters.formats.video import Frames, decoder_memory
from unistore.converters.opened import Format, Metadata, OpenFile, SourceFile
from unistore.errors import OF_ROWS, AddOptions, InputError, Problem, location_of
from unistore.system.sizes import count_of
from unistore.system.types import AnyArray, Dtype, JsonObject, Shape

_TASK_INDEX = "task_index"
_TASK = "task"
# The texts of tasks in tables that pandas wrote without a name for them, as LeRobot 0.4 does
_UNNAMED_INDEX = "__index_level_0__"
_NUMBERS = ("frame_index", "episode_index", "index")
_TIMESTAMP = "timestamp"
_IMAGE_AXES = ("height", "width", "channels")  # of videos, if none are stated
_METADATA = ("codebase_version", "robot_type", "fps")
_CONVERTERS = {
    "v2.0": "convert it to v2.1 with lerobot's convert_dataset_v20_to_v21.py",
    "v1.6": "convert it to v2.0 with lerobot's convert_dataset_v1_to_v2.py, then to v2.1",
}
_PLACEHOLDER = re.compile(r"\{(\w+)(?::0?(\d)d)?\}")
# Seconds between a timestamp, a float32, and the number of its step over the rate
_TIME_TOLERANCE = 1e-3
_NUMBERS_READ = 1 << 20  # rows of which the numbers of episodes are read at a time
_DAMAGED = "download the dataset again"
# What tells a damaged info.json: words that it has, and what lies beside it
_WORDS = (b'"total_episodes"', b'"data_path"', b'"chunks_size"')
_BESIDE = ("episodes.jsonl", "tasks.jsonl", "tasks.parquet", "episodes")


class _Feature(NamedTuple):
    """What a dataset says of one feature."""

    name: str
    dtype: str
    shape: Shape
    axes: Sequence[str]
    is_depth: bool

    @property
    def components(self) -> tuple[str, ...]:
        """Names of the numbers in a row, empty if there are none or of another number."""
        names = [str(name) for name in self.axes]
        return tuple(names) if self.shape == (len(names),) else ()

    @property
    def stored(self) -> Dtype:
        """Dtype of its values. Images are files in memory."""
        if self.dtype == "string":
            return ANY_TEXT
        return np.dtype(object if self.dtype == "image" else self.dtype)

    @property
    def row_shape(self) -> Shape:
        """Shape of its values. LeRobot has single ones as scalars."""
        return () if self.dtype == "image" or self.shape == (1,) else self.shape

    @property
    def image_size(self) -> tuple[int, int]:
        sizes = dict(zip(self.axes or _IMAGE_AXES, self.shape, strict=True))
        return sizes["height"], sizes["width"]


def _is_depth(description: Metadata) -> bool:
    """Return whether the frames of a feature are distances. Older datasets begin the key with ``video.``."""
    info = description.get("info") or {}
    return bool(info.get("is_depth_map") or info.get("video.is_depth_map"))


def _names(stated: Any) -> Sequence[str]:
    """Return the names of axes or of the numbers in a row. Older datasets have ``{"motors": […]}``."""
    if isinstance(stated, Mapping):
        stated = next(iter(stated.values())) if len(stated) == 1 else ()
    return stated if isinstance(stated, list) else ()


class _Stretch(NamedTuple):
    """Where the frames of an episode lie."""

    path: str
    start: float


class _Episode(NamedTuple):
    """Where an episode lies."""

    number: int
    length: int
    tasks: Sequence[str]
    table: str
    first_row: int
    videos: Mapping[str, _Stretch]

    @property
    def group(self) -> str:
        return f"data/episode_{self.number:06d}"


class _RowsOfEpisode(NamedTuple):
    """Rows ``start:stop`` of a table that have the number of an episode."""

    episode: int
    table: str
    start: int
    stop: int


def _runs(table: ParquetFile, name: str) -> Iterator[_RowsOfEpisode]:
    """Yield the rows of a table that follow each other with one number of an episode."""
    column = ParquetColumn(lambda: table, "episode_index", 0, table.row_count, np.dtype("i8"), ())
    last: _RowsOfEpisode | None = None
    for lo in range(0, table.row_count, _NUMBERS_READ):
        numbers = column[lo : min(lo + _NUMBERS_READ, table.row_count)]
        bounds = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        for start, stop in pairwise(bounds):
            rows = _RowsOfEpisode(int(numbers[start]), name, lo + start, lo + stop)
            if last is not None and last.episode == rows.episode:
                rows = rows._replace(start=last.start)
            elif last is not None:
                yield last
            last = rows
    if last is not None:
        yield last


class _LazyReasons(Mapping[str, str]):
    """What is left out, each with the reason, which is found when it is asked for."""

    def __init__(self, find: Callable[[], dict[str, str]]) -> None:
        self._find = find

    @cached_property
    def _reasons(self) -> dict[str, str]:
        return self._find()

    def __getitem__(self, name: str) -> str:
        return self._reasons[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._reasons)

    def __len__(self) -> int:
        return len(self._reasons)


class LeRobot(Format):
    """A LeRobot dataset, by its ``meta/info.json``."""

    name = "lerobot"
    suffixes = (".json",)
    library = "Arrow and FFmpeg"
    offered = False

    def recognise(self, file: SourceFile) -> Claim:
        if is_info(file.path):
            head = file.head(1 << 16)
            if b'"codebase_version"' in head:
                return sure("contains a codebase_version")
            if any(word in head for word in _WORDS) or any(map(_is_beside(file), _BESIDE)):
                raise file.wrong_beginning("with a codebase_version, as meta/info.json of LeRobot does")
        return no("is not a meta/info.json of LeRobot")

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[OpenFile]:
        """Read what ``meta/`` says. Rows and frames are read when arrays are sliced."""
        with ExitStack() as stack:
            try:
                opened = _DatasetMeta(file).opened(Tables(stack))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise file.problem(
                    f"and the other files of its folder do not describe a dataset: {error!r}",
                    _DAMAGED,
                    "damaged",
                ) from error
            yield opened


def _is_beside(file: SourceFile) -> Callable[[str], bool]:
    return lambda name: (file.path.parent / name).exists()


def is_info(path: Path) -> bool:
    """Return whether a file has the name of one that describes a dataset."""
    return path.name == "info.json" and path.parent.name in ("meta", "meta_data")


class _DatasetMeta:
    """What ``meta/`` says of a dataset."""

    def __init__(self, file: SourceFile) -> None:
        self.file = file
        self.info = json.loads(file.bytes()[:].tobytes())
        self.version = str(self.info["codebase_version"])
        if self.version not in ("v2.1", "v3.0"):
            raise file.problem(
                f"is a LeRobot dataset of version {self.version}, and only v2.1 and v3.0 are supported",
                _CONVERTERS.get(self.version, "convert it to v3.0 with lerobot"),
            )
        self.rate = float(self.info["fps"])
        self.features = [
            _Feature(
                name,
                str(description["dtype"]),
                tuple(map(int, description["shape"])),
                _names(description.get("names")),
                _is_depth(description),
            )
            for name, description in self.info["features"].items()
        ]
        self.cameras = [feature.name for feature in self.features if feature.dtype == "video"]
        self.files: dict[str, SourceFile] = {}  # further files by their path in the dataset

    def opened(self, tables: Tables) -> OpenFile:
        """List the arrays of all episodes. A table is opened with its first use."""
        tasks, episodes = self._from_tables() if self.version == "v3.0" else self._from_lines()
        self._check(episodes, tasks)
        notes = {}
        if self.version == "v3.0" and not self._fills_tables(episodes, tables):
            before = {episode.number: episode.table for episode in episodes}
            episodes = self._by_their_rows(episodes, tables)
            moved = sorted({episode.table for episode in episodes if episode.table != before[episode.number]})
            if moved:
                notes["data"] = f"{self.file.name}: meta/episodes lists other files for some episodes; "
                notes["data"] += f"their rows, by episode_index, were read from {', '.join(moved)}"
        arrays: dict[str, Array] = {}
        for episode in episodes:
            arrays |= self._arrays(episode, tables)
            if _TASK_INDEX in self.info["features"] and _TASK not in self.info["features"]:
                indices = arrays[f"{episode.group}/{_TASK_INDEX}"]
                texts = LazyRows((episode.length,), ANY_TEXT, partial(self._task_texts, tasks, indices))
                arrays[f"{episode.group}/{_TASK}"] = Array(texts)
        names = dict.fromkeys(episode.table for episode in episodes)
        largest = max(map(self._beside, names), key=lambda table: table.size, default=None)
        numbers = dict.fromkeys(_NUMBERS, "because it follows from the order of the rows")
        texts_of_tasks = list(tasks.values())
        is_numbered_from_0 = list(tasks) == list(range(len(tasks)))
        metadata = {
            "tasks": texts_of_tasks if is_numbered_from_0 else {str(index): tasks[index] for index in tasks},
            **{name: self.info.get(name) for name in _METADATA},
        }
        return OpenFile(
            arrays=arrays,
            metadata=metadata,
            further=list(self.files.values()),
            memory=(0 if largest is None else tables.open(largest).held) + self._held_by_decoder,
            left_out=_LazyReasons(lambda: {**numbers, **self._rows_of_none(episodes, tables)}),
            notes=notes,
            of_groups={"": metadata}
            | {episode.group: {"tasks": list(episode.tasks)} for episode in episodes},
            file=self.file,
        )

    @property
    def _held_by_decoder(self) -> int:
        """Most bytes that the frames of a camera take while they are decoded, of one after the other."""
        sizes = [feature.image_size for feature in self.features if feature.dtype == "video"]
        return max((decoder_memory(size) for size in sizes), default=0)

    def _fills_tables(self, episodes: Sequence[_Episode], tables: Tables) -> bool:
        """Return whether the episodes of each table have as many rows as it has."""
        lengths = Counter[str]()
        for episode in episodes:
            lengths[episode.table] += episode.length
        root = self.file.path.parents[1]
        are_there = all((root / table).is_file() for table in lengths)
        return are_there and all(
            tables.open(self._beside(table)).row_count == length for table, length in lengths.items()
        )

    def _by_their_rows(self, episodes: Sequence[_Episode], tables: Tables) -> list[_Episode]:
        """Return episodes where rows have their numbers, if in one place as many as they are long."""
        places: dict[int, list[_RowsOfEpisode]] = {}
        for table in self._data_tables(episodes):
            for rows in _runs(tables.open(self._beside(table)), table):
                places.setdefault(rows.episode, []).append(rows)
        placed = []
        for episode in episodes:
            found = places.get(episode.number, [])
            is_found = len(found) == 1 and found[0].stop - found[0].start == episode.length
            moved = episode._replace(table=found[0].table, first_row=found[0].start) if is_found else episode
            placed.append(moved)
        return placed

    def _data_tables(self, episodes: Sequence[_Episode]) -> list[str]:
        """Return the tables of rows that are there, and those of episodes."""
        root = self.file.path.parents[1]
        there = {path.relative_to(root).as_posix() for path in root.glob("data/**/[!.]*.parquet")}
        return sorted(there.union(episode.table for episode in episodes if (root / episode.table).is_file()))

    def _rows_of_none(self, episodes: Sequence[_Episode], tables: Tables) -> dict[str, str]:
        """Return rows of tables that are in no episode, each with the reason."""
        taken: dict[str, list[tuple[int, int]]] = {}
        for episode in episodes:
            taken.setdefault(episode.table, []).append(
                (episode.first_row, episode.first_row + episode.length)
            )
        reasons = {}
        for table in self._data_tables(episodes):
            opened = tables.open(self._beside(table))
            start = 0
            for first, stop in [*sorted(taken.get(table, ())), (opened.row_count, 0)]:
                if first > start:
                    rows = f"{OF_ROWS}{start} to {first - 1} of {table} ({count_of(first - start, 'row')})"
                    reasons[rows] = "because they are not in an episode that meta/ lists"
                start = max(start, stop)
        return reasons

    def _arrays(self, episode: _Episode, tables: Tables) -> Iterator[tuple[str, Array]]:
        open_table = partial(tables.open, self._beside(episode.table))
        for feature in self.features:
            path = f"{episode.group}/{feature.name}"
            if feature.dtype == "video" and feature.is_depth:
                yield path, self._unread_depth(episode, feature)
            elif feature.dtype == "video":
                stretch = episode.videos[feature.name]
                video = self._beside(stretch.path)
                yield path, Frames(video, feature.image_size, stretch.start, episode.length, self.rate)
            elif feature.name == _TIMESTAMP:
                yield path, _Timestamps(open_table, episode, self.rate)
            elif feature.name not in _NUMBERS:
                rows = episode.first_row, episode.length
                column = ParquetColumn(open_table, feature.name, *rows, feature.stored, feature.row_shape)
                yield path, Array(column, components=feature.components)

    def _unread_depth(self, episode: _Episode, feature: _Feature) -> Array:
        """Return frames that cannot be read: a depth has more than the 8 bits of a colour."""
        location = location_of(self.file.name, f"{episode.group}/{feature.name}")
        fix = AddOptions(("--ignore", glob.escape(feature.name)), "to skip it")
        return Unread(
            episode.length,
            Problem.at(location, "is a video of depths, which is not supported", fix, "format"),
        )

    def _task_texts(self, tasks: Mapping[int, str], indices: Array, lo: int, hi: int) -> AnyArray:
        texts = np.empty(hi - lo, object)
        for row, number in enumerate(indices[lo:hi].tolist()):
            if number not in tasks:
                raise self.file.problem(
                    f"its rows contain the task_index {number}, which meta/tasks does not list",
                    _DAMAGED,
                    "missing",
                )
            texts[row] = tasks[number]
        return texts

    def _from_tables(self) -> tuple[dict[int, str], list[_Episode]]:
        """Read tasks and episodes of version 3, of which files hold many."""
        rows = self._rows_of("meta/tasks.parquet")
        tasks = self._tasks(rows, _TASK if rows and _TASK in rows[0] else _UNNAMED_INDEX)
        folder = self.file.path.parent
        tables = sorted(path.relative_to(folder) for path in folder.glob("episodes/*/[!.]*.parquet"))
        first_rows: dict[str, int] = {}
        episodes = []
        for path in tables:
            for row in self._rows_of(f"meta/{path.as_posix()}"):
                table = self._path_of("data_path", _place(row, "data"))
                first = first_rows.setdefault(table, row["dataset_from_index"])
                videos = {camera: self._stretch(row, camera) for camera in self.cameras}
                first_row = row["dataset_from_index"] - first
                place = row["episode_index"], row["length"], row["tasks"], table, first_row
                episodes.append(_Episode(*place, videos))
        return tasks, episodes

    def _stretch(self, row: Metadata, camera: str) -> _Stretch:
        name = f"videos/{camera}"
        path = self._path_of("video_path", {**_place(row, name), "video_key": camera})
        return _Stretch(path, float(row[f"{name}/from_timestamp"]))

    def _tasks(self, rows: Sequence[JsonObject], text: str) -> dict[int, str]:
        """Return the texts of tasks by their numbers, in the order of these."""
        tasks: dict[int, str] = {}
        for row in sorted(rows, key=itemgetter(_TASK_INDEX)):
            number = row[_TASK_INDEX]
            if tasks.setdefault(number, row[text]) != row[text]:
                texts = f"{tasks[number]!r} and {row[text]!r}"
                message = f"meta/tasks has two texts for the task_index {number}: {texts}"
                raise self.file.problem(message, "correct meta/tasks", "value")
        return tasks

    def _from_lines(self) -> tuple[dict[int, str], list[_Episode]]:
        """Read tasks and episodes of version 2.1, of which each has its own files."""
        tasks = self._tasks(self._lines_of("meta/tasks.jsonl"), _TASK)
        episodes = []
        for line in self._lines_of("meta/episodes.jsonl"):
            number = line["episode_index"]
            place = {"episode_index": number, "episode_chunk": number // self.info["chunks_size"]}
            table = self._path_of("data_path", place)
            videos = {}
            for camera in self.cameras:
                path = self._path_of("video_path", {**place, "video_key": camera})
                videos[camera] = _Stretch(path, 0.0)
            episodes.append(_Episode(number, line["length"], line["tasks"], table, 0, videos))
        return tasks, episodes

    def _rows_of(self, name: str) -> list[JsonObject]:
        """Read the rows of a table of ``meta/``, without the statistics."""
        with open_parquet(self._beside(name)) as table:
            return table.rows(lambda column: not column.startswith("stats/"))

    def _lines_of(self, name: str) -> list[JsonObject]:
        lines = self._beside(name).bytes()[:].tobytes().splitlines()
        return [json.loads(line) for line in lines if line.strip()]

    def _beside(self, name: str) -> SourceFile:
        if name not in self.files:
            beside = self.file.beside(f"../{name}")
            self.files[name] = replace(beside, name=os.path.normpath(beside.name))
        return self.files[name]

    def _path_of(self, template: str, values: Metadata) -> str:
        """Fill in a path that ``info.json`` gives. What else `str.format` could do is left to others."""

        def filled(match: re.Match[str]) -> str:
            return str(values[match[1]]).zfill(int(match[2] or 0))

        return _PLACEHOLDER.sub(filled, self.info[template])

    def _check(self, episodes: Sequence[_Episode], tasks: Mapping[int, str]) -> None:
        """Refuse episodes that are missing or out of order, and tasks that nobody names."""
        numbers = [episode.number for episode in episodes]
        stated = int(self.info["total_episodes"])
        if len(numbers) != stated or numbers != list(range(stated)):
            wrong = next(
                (position for position, number in enumerate(numbers) if number != position), len(numbers)
            )
            counts = f"states {stated:,} episodes, and meta/ lists {len(numbers):,}"
            message = f"{counts}; the first that is missing or out of order is number {wrong}"
            raise self.file.problem(message, _DAMAGED, "missing")
        known_tasks = set(tasks.values())
        for episode in episodes:
            unknown = [task for task in episode.tasks if task not in known_tasks]
            if unknown:
                raise self.file.problem(
                    f"{episode.group} has the task {unknown[0]!r}, which meta/tasks does not list",
                    _DAMAGED,
                    "missing",
                )


class _Timestamps(Array):
    """Seconds of each step since the first, (steps,) float32."""

    def __init__(self, open_table: Callable[[], ParquetFile], episode: _Episode, rate: float) -> None:
        rows = episode.first_row, episode.length
        super().__init__(ParquetColumn(open_table, _TIMESTAMP, *rows, np.dtype("f4"), ()))
        self._table = open_table
        self._episode = episode
        self._rate = rate

    def problems(self, *, as_objects: bool = False) -> Sequence[Problem]:
        """Say whether the rows are another episode's, or steps are missing."""
        first = self._episode.first_row
        numbers = ParquetColumn(self._table, "episode_index", first, self._episode.length, np.dtype("i8"), ())
        try:
            steps = np.arange(self._episode.length)
            late = np.abs(self.read(0, len(steps)) - steps / self._rate) > _TIME_TOLERANCE
            foreign = numbers[0 : len(steps)] != self._episode.number
        except InputError as error:
            return error.problems
        file = self._table().file
        if foreign.any():
            return file.problem(
                f"row {first + int(foreign.argmax())} does not belong to episode {self._episode.number}",
                _DAMAGED,
                "value",
            ).problems
        if late.any():
            step = int(late.argmax())
            return file.problem(
                f"step {step} of episode {self._episode.number} is not at {step / self._rate:.4f} s, "
                "so steps are missing",
                "record the episode again, or skip it with --exclude",
                "value",
            ).problems
        return ()


def _place(row: Metadata, name: str) -> JsonObject:
    return {"chunk_index": row[f"{name}/chunk_index"], "file_index": row[f"{name}/file_index"]}
