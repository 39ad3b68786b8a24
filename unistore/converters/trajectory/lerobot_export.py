"""A store as a LeRobot dataset, v3.0: rows in Parquet, images as PNG or video, all of ``meta/``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cached_property, partial
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.trajectory.restored_steps import (
    StoredEpisode,
    StoredStepColumn,
    blocks,
    final_columns,
    left_out_notes,
    metadata_of_sources,
    step_columns,
    step_tasks,
    stored_episodes,
)
from unistore.errors import InputError, import_fault
from unistore.plugin import File, StoreView
from unistore.schemas.trajectory.fields import EPISODES
from unistore.system.types import AnyArray, Float64s, Int64s, JsonObject, Shape, UInt8s

# Statistics as LeRobot keeps them: of each episode and of the whole dataset, exact, in float64.

Read = Callable[[int, int], AnyArray]  # reads the rows of steps (start, stop)
Bounds = Sequence[tuple[int, int]]  # steps (start, stop) of each episode

_QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
_MEMORY = 256 << 20
_LEVELS = 256


def number_statistics(read: Read, bounds: Bounds, row_shape: Shape) -> tuple[list[JsonObject], JsonObject]:
    """Return the statistics of each episode and of all rows, which are read an episode at a time."""
    episodes = [_document(_of_rows(read(start, stop)), row_shape, stop - start) for start, stop in bounds]
    count = bounds[-1][1]
    width = prod(row_shape)
    # So many values of each row at a time as fit into memory.
    together = max(1, _MEMORY // (8 * count))
    parts = []
    for first in range(0, width, together):
        columns = [
            read(start, stop).reshape(stop - start, width)[:, first : first + together]
            for start, stop in bounds
        ]
        parts.append(_of_rows(np.concatenate(columns)))
    whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return episodes, _document(whole, row_shape, count)


def _of_rows(rows: AnyArray) -> dict[str, Float64s]:
    numbers = rows.astype(np.float64)
    statistics = {
        "min": numbers.min(axis=0),
        "max": numbers.max(axis=0),
        "mean": numbers.mean(axis=0),
        "std": numbers.std(axis=0),
    }
    quantiles = np.quantile(numbers, list(_QUANTILES.values()), axis=0)
    return statistics | dict(zip(_QUANTILES, quantiles, strict=True))


def image_statistics(read: Read, bounds: Bounds, row_bytes: int) -> tuple[list[JsonObject], JsonObject]:
    """Return the statistics of the channels of RGB images, whose values LeRobot divides by 255."""
    total = np.zeros((3, _LEVELS), np.int64)
    episodes = []
    for start, stop in bounds:
        counts = np.zeros((3, _LEVELS), np.int64)
        for lo, hi in blocks(start, stop, row_bytes):
            rows = read(lo, hi)
            for channel in range(3):
                counts[channel] += np.bincount(rows[..., channel].reshape(-1), minlength=_LEVELS)
        episodes.append(_document(_of_counts(counts), (3, 1, 1), stop - start))
        total += counts
    return episodes, _document(_of_counts(total), (3, 1, 1), bounds[-1][1])


def _of_counts(counts: Int64s) -> dict[str, Float64s]:
    """Return the statistics of pixels of which `counts` says how many have each level, (3, 256)."""
    levels = np.arange(_LEVELS) / (_LEVELS - 1)
    pixels = counts.sum(axis=1)
    mean = counts @ levels / pixels
    variance = (counts * np.square(levels - mean[:, None])).sum(axis=1) / pixels
    running = np.cumsum(counts, axis=1)
    statistics = {"mean": mean, "std": np.sqrt(variance)}
    for name, share in {"min": 0.0, "max": 1.0, **_QUANTILES}.items():
        statistics[name] = np.array([_quantile_of(channel, share) for channel in running]) / (_LEVELS - 1)
    return statistics


def _quantile_of(running: Int64s, share: float) -> float:
    """Return the level at a share of sorted pixels, between two of them as `numpy.quantile` has it."""
    last = int(running[-1]) - 1
    place = share * last
    below = int(place)
    low, high = np.searchsorted(running, [below, min(below + 1, last)], "right").tolist()
    return float(low + (place - below) * (high - low))


def _document(values: dict[str, Float64s], row_shape: Shape, rows: int) -> JsonObject:
    document: JsonObject = {name: value.reshape(row_shape).tolist() for name, value in values.items()}
    return {**document, "count": [rows]}


_VERSION = "v3.0"
_DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
_VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
_CHUNK_FILES = 1000
_DATA_MEGABYTES = 100
_VIDEO_MEGABYTES = 200
# How many bytes of pixels make a byte of video, at least: it decides which episodes share a file
_VIDEO_RATIO = 10
_CODEC = "libx264"
# A key frame every second frame, so that single ones are read fast, as LeRobot encodes its own
_VIDEO_OPTIONS = {"g": "2", "crf": "23", "bf": "0"}
_ROLES = {"reward": "next.reward", "terminated": "next.done", "truncated": "next.truncated"}
_COUNTED = ("frame_index", "episode_index", "index", "task_index")
_MOST_AXES = 5
# Bytes of a row up to which its statistics are computed
_STATISTICS_BYTES = 4096
_IMAGE_AXES = ["height", "width", "channels"]


class _FileSpan(NamedTuple):
    """Consecutive episodes that are in one file."""

    number: int
    episodes: Sequence[StoredEpisode]

    @property
    def place(self) -> dict[str, int]:
        """Numbers of its file in paths."""
        return {"chunk_index": self.number // _CHUNK_FILES, "file_index": self.number % _CHUNK_FILES}


def files(store: StoreView, *, fps: float | None = None, video: bool = False) -> Iterator[File]:
    """Write a store as one LeRobot dataset.

    Parameters
    ----------
    store : StoreView
        A trajectory store.
    fps : float, optional
        Steps per second, if the sources do not state it.
    video : bool, default False
        True: encode cameras as H.264, which changes pixels. False: exact PNG images.
    """
    yield from _DatasetWriter(store, fps, is_video=video).files()


class _DatasetWriter:
    """A dataset that is being written."""

    def __init__(self, store: StoreView, fps: float | None, *, is_video: bool) -> None:
        self._arrow = _needed("pyarrow", store)
        self._parquet = _needed("pyarrow.parquet", store)
        if is_video:
            _needed("av", store)
        self._store = store
        self._is_video = is_video
        self._metadata = metadata_of_sources(store)
        self._rate = _rate(store, self._metadata, fps)
        self._episodes = stored_episodes(store)
        self._tasks, self._task_of_step = step_tasks(store, self._episodes)
        self._features = self._all_features()
        self._cameras = [feature for feature in self._features if is_video and feature.is_image]
        self._in_tables = [feature for feature in self._features if feature not in self._cameras]
        self._table_bytes = sum(feature.row_bytes for feature in self._in_tables)
        self._data_spans = _spans(self._episodes, self._table_bytes, _DATA_MEGABYTES << 20)
        self._video_spans = {
            camera.name: _spans(self._episodes, camera.row_bytes, (_VIDEO_MEGABYTES << 20) * _VIDEO_RATIO)
            for camera in self._cameras
        }

    def files(self) -> Iterator[File]:
        """Yield tables, videos, and ``meta/``."""
        for span in self._data_spans:
            yield _file(_DATA_PATH.format(**span.place), span, partial(self._write_table, span))
        for camera in self._cameras:
            for span in self._video_spans[camera.name]:
                name = _VIDEO_PATH.format(video_key=camera.name, **span.place)
                yield _file(name, span, partial(self._write_video, camera, span))
        last = _FileSpan(0, self._episodes[-1:])
        notes = self._notes()
        yield _file("meta/tasks.parquet", last, self._write_tasks)
        yield _file("meta/episodes/chunk-000/file-000.parquet", last, self._write_episodes)
        yield _file("meta/stats.json", last, self._write_statistics)
        yield _file("meta/info.json", last, partial(self._write_info, notes), notes)

    # Features

    def _all_features(self) -> list[StoredStepColumn]:
        is_lerobot = self._store.group(EPISODES)["source_layout"] == "lerobot"
        made = {feature.name: feature for feature in self._made_features()}
        features: dict[str, StoredStepColumn] = {}
        for column in step_columns(self._store):
            name = _feature_name(column, is_lerobot=is_lerobot)
            if column.recorded is not None or (is_lerobot and name in _COUNTED):
                continue
            if not is_lerobot and name in made:
                name = f"source.{name}"
            if name in features:
                message = f"two columns would become the feature {name!r}"
                fix = "convert the sources again, and rename one with --map or skip it with --ignore"
                raise _refused(self._store, message, fix)
            features[name] = self._feature(name, column)
        return list((features | {name: one for name, one in made.items() if name not in features}).values())

    def _feature(self, name: str, column: StoredStepColumn) -> StoredStepColumn:
        shape = column.row_shape
        if column.is_image and self._is_video and any(size % 2 for size in shape[:2]):
            message = (
                f"the camera {column.name} has {shape[0]} × {shape[1]} pixels, but H.264 needs even numbers"
            )
            raise _refused(self._store, message, "remove --video")
        if column.dtype.kind not in "biuf" or len(shape) > _MOST_AXES:
            message = (
                f"the column {column.name} is {column.dtype} of shape {shape}, which LeRobot cannot store"
            )
            fix = f"convert the sources again with --ignore for {column.name}"
            raise _refused(self._store, message, fix)
        return column._replace(name=name, row_shape=shape or (1,))

    def _made_features(self) -> Iterator[StoredStepColumn]:
        """Return the features that every dataset has."""
        first_steps = np.array([episode.start for episode in self._episodes])

        def episode_index(start: int, stop: int) -> Int64s:
            return np.searchsorted(first_steps, np.arange(start, stop), "right") - 1

        def frame_index(start: int, stop: int) -> Int64s:
            first: Int64s = first_steps[episode_index(start, stop)]
            return np.arange(start, stop) - first

        def timestamp(start: int, stop: int) -> NDArray[np.float32]:
            return (frame_index(start, stop) / self._rate).astype(np.float32)

        def task_index(start: int, stop: int) -> Int64s:
            return self._task_of_step[start:stop]

        yield StoredStepColumn("timestamp", "", np.dtype(np.float32), (1,), timestamp)
        numbers: dict[str, Callable[[int, int], AnyArray]] = {"frame_index": frame_index}
        numbers |= {"episode_index": episode_index, "index": np.arange, "task_index": task_index}
        for name, read in numbers.items():
            yield StoredStepColumn(name, "", np.dtype(np.int64), (1,), read)

    # Tables and videos

    def _write_table(self, span: _FileSpan, path: Path) -> None:
        types = [self._type_of(feature) for feature in self._in_tables]
        described = {feature.name: _as_datasets_has_it(feature) for feature in self._in_tables}
        # What tells the library `datasets` which columns are images.
        about = {"huggingface": json.dumps({"info": {"features": described}})}
        names = [feature.name for feature in self._in_tables]
        schema = self._arrow.schema(list(zip(names, types, strict=True)), about)
        with self._parquet.ParquetWriter(path, schema) as writer:
            for episode in span.episodes:
                for start, stop in blocks(episode.start, episode.stop, self._table_bytes):
                    columns = [
                        self._arrow.array(_values(feature, start, stop), own_type)
                        for feature, own_type in zip(self._in_tables, types, strict=True)
                    ]
                    writer.write_table(self._arrow.Table.from_arrays(columns, schema=schema))

    def _type_of(self, feature: StoredStepColumn) -> Any:
        """Return the type that Arrow has for rows: files, values, lists of one length, or lists of lists."""
        arrow = self._arrow
        if feature.is_image:
            return arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])
        own_type = arrow.from_numpy_dtype(feature.dtype)
        if feature.row_shape == (1,):
            return own_type
        if len(feature.row_shape) == 1:
            return arrow.list_(own_type, feature.row_shape[0])
        for _ in feature.row_shape:
            own_type = arrow.list_(own_type)
        return own_type

    def _write_video(self, camera: StoredStepColumn, span: _FileSpan, path: Path) -> None:
        """Encode frames by one thread: the same bytes each time."""
        import av

        with av.open(str(path), "w") as container:
            rate = Fraction(self._rate).limit_denominator(100_000)
            stream: Any = container.add_stream(_CODEC, rate=rate)
            stream.options = dict(_VIDEO_OPTIONS)
            stream.height, stream.width, _ = camera.row_shape
            stream.pix_fmt = "yuv420p"
            stream.codec_context.thread_count = 1
            first, last = span.episodes[0], span.episodes[-1]
            for start, stop in blocks(first.start, last.stop, camera.row_bytes):
                for image in camera.read(start, stop):
                    container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
            container.mux(stream.encode())

    # meta/

    def _write_tasks(self, path: Path) -> None:
        """Write the tasks as pandas has a table whose index is the text."""
        index = "__index_level_0__"
        text = {"name": None, "field_name": index, "pandas_type": "unicode", "numpy_type": "object"}
        number = {"name": "task_index", "field_name": "task_index"}
        number |= {"pandas_type": "int64", "numpy_type": "int64"}
        unnamed = {"name": None, "field_name": None, "pandas_type": "unicode", "numpy_type": "object"}
        about = {
            "index_columns": [index],
            "column_indexes": [{**unnamed, "metadata": {"encoding": "UTF-8"}}],
            "columns": [{**number, "metadata": None}, {**text, "metadata": None}],
        }
        columns = {"task_index": list(range(len(self._tasks))), index: self._tasks}
        table = self._arrow.table(columns, metadata={"pandas": json.dumps(about)})
        self._parquet.write_table(table, path)

    def _write_episodes(self, path: Path) -> None:
        rows: list[JsonObject] = [self._episode_row(episode) for episode in self._episodes]
        for span in self._data_spans:
            for episode in span.episodes:
                rows[episode.number] |= {f"data/{name}": number for name, number in span.place.items()}
        for camera, spans in self._video_spans.items():
            for span in spans:
                first = span.episodes[0].start
                for episode in span.episodes:
                    place: dict[str, float] = {
                        **span.place,
                        "from_timestamp": (episode.start - first) / self._rate,
                        "to_timestamp": (episode.stop - first) / self._rate,
                    }
                    rows[episode.number] |= {f"videos/{camera}/{key}": value for key, value in place.items()}
        for name, (documents, _) in self._statistics.items():
            for row, document in zip(rows, documents, strict=True):
                row |= {f"stats/{name}/{statistic}": value for statistic, value in document.items()}
        self._parquet.write_table(self._arrow.Table.from_pylist(rows), path)

    def _episode_row(self, episode: StoredEpisode) -> JsonObject:
        numbers = np.unique(self._task_of_step[episode.start : episode.stop]).tolist()
        return {
            "episode_index": episode.number,
            "tasks": [self._tasks[number] for number in numbers],
            "length": episode.length,
            "dataset_from_index": episode.start,
            "dataset_to_index": episode.stop,
            "meta/episodes/chunk_index": 0,
            "meta/episodes/file_index": 0,
            "source": episode.source_name,
            "source_episode": episode.name,
            "split": episode.split,
        }

    @cached_property
    def _statistics(self) -> dict[str, tuple[list[JsonObject], JsonObject]]:
        """Statistics of each feature: of each episode, and of all."""
        bounds = [(episode.start, episode.stop) for episode in self._episodes]
        statistics = {}
        for feature in self._features:
            if feature.is_image:
                statistics[feature.name] = image_statistics(feature.read, bounds, feature.row_bytes)
            elif feature.row_bytes <= _STATISTICS_BYTES:
                statistics[feature.name] = number_statistics(feature.read, bounds, feature.row_shape)
        return statistics

    def _write_statistics(self, path: Path) -> None:
        path.write_text(json.dumps({name: whole for name, (_, whole) in self._statistics.items()}, indent=4))

    def _write_info(self, notes: Sequence[str], path: Path) -> None:
        robots = {metadata.get("robot_type") for metadata in self._metadata}
        info = {
            "codebase_version": _VERSION,
            "robot_type": robots.pop() if len(robots) == 1 else None,
            "total_episodes": len(self._episodes),
            "total_frames": self._episodes[-1].stop,
            "total_tasks": len(self._tasks),
            "chunks_size": _CHUNK_FILES,
            "data_files_size_in_mb": _DATA_MEGABYTES,
            "video_files_size_in_mb": _VIDEO_MEGABYTES,
            "fps": int(self._rate) if self._rate.is_integer() else self._rate,
            "splits": self._splits(),
            "data_path": _DATA_PATH,
            "video_path": _VIDEO_PATH if self._cameras else None,
            "features": {feature.name: self._description(feature) for feature in self._features},
            "unistore": {"notes": list(notes)},
        }
        path.write_text(json.dumps(info, indent=4))

    def _description(self, feature: StoredStepColumn) -> JsonObject:
        described: JsonObject = {"dtype": feature.dtype.name, "shape": list(feature.row_shape)}
        if not feature.is_image:
            return {**described, "names": list(feature.components) or None}
        described |= {"dtype": "video" if self._is_video else "image", "names": _IMAGE_AXES}
        if self._is_video:
            height, width, channels = feature.row_shape
            described["info"] = {
                "video.height": height,
                "video.width": width,
                "video.codec": "h264",
                "video.pix_fmt": "yuv420p",
                "video.is_depth_map": False,
                "video.fps": self._rate,
                "video.channels": channels,
                "has_audio": False,
            }
        return described

    def _splits(self) -> dict[str, str]:
        """Return the ranges of episodes of each split, or one of all where a split is no range."""
        ranges: dict[str, tuple[int, int]] = {}
        for episode in self._episodes:
            first, stop = ranges.get(episode.split, (episode.number, episode.number))
            if stop != episode.number:
                return {"train": f"0:{len(self._episodes)}"}
            ranges[episode.split] = first, episode.number + 1
        return {split or "train": f"{first}:{stop}" for split, (first, stop) in ranges.items()}

    def _notes(self) -> tuple[str, ...]:
        notes = left_out_notes(self._store, "LeRobot")
        notes += [
            f"next observations after the last steps ({name}) are not written: LeRobot does not store them"
            for name in final_columns(self._store)
        ]
        notes += [
            f"{column.name} is not written: only some episodes have it, and LeRobot has no mask"
            for column in step_columns(self._store)
            if column.recorded is not None
        ]
        names = {episode.split for episode in self._episodes}
        if len(names) > 1 and len(self._splits()) == 1:
            notes.append(
                "splits are not ranges of episodes, so they are in the column split of meta/episodes"
            )
        if "" in self._tasks:
            notes.append("some sources do not state a task, so its text is empty")
        if self._cameras:
            settings = ", ".join(f"{name} {value}" for name, value in _VIDEO_OPTIONS.items())
            cameras = ", ".join(camera.name for camera in self._cameras)
            notes.append(f"encoded with {_CODEC}, which is lossy ({settings}, yuv420p): {cameras}")
        numbers = [feature for feature in self._features if not feature.is_image]
        large = [feature.name for feature in numbers if feature.row_bytes > _STATISTICS_BYTES]
        notes += [
            f"statistics of {name} are not written, because a row has more than 4 KiB" for name in large
        ]
        return tuple(notes)


def _file(name: str, span: _FileSpan, write: Callable[[Path], None], notes: tuple[str, ...] = ()) -> File:
    source = span.episodes[-1].source
    return File(name=name, form="format", source=source, scope="all", values={}, write=write, notes=notes)


def _spans(episodes: Sequence[StoredEpisode], row_bytes: int, most: int) -> list[_FileSpan]:
    """Divide episodes among files of at most `most` bytes, or of one episode."""
    spans: list[list[StoredEpisode]] = []
    filled = 0
    for episode in episodes:
        size = episode.length * row_bytes
        if not spans or filled + size > most:
            spans.append([])
            filled = 0
        spans[-1].append(episode)
        filled += size
    return [_FileSpan(number, members) for number, members in enumerate(spans)]


def _values(feature: StoredStepColumn, start: int, stop: int) -> list[Any]:
    """Return rows as Arrow takes them."""
    if feature.files is not None:
        return [{"bytes": image, "path": None} for image in feature.files(start, stop)]
    rows = feature.read(start, stop)
    if feature.is_image:
        return [{"bytes": _png(image), "path": None} for image in rows]
    values: list[Any] = (rows.reshape(-1) if feature.row_shape == (1,) else rows).tolist()
    return values


def _feature_name(column: StoredStepColumn, *, is_lerobot: bool) -> str:
    """Return a feature's name: as LeRobot had it, or by LeRobot's customs."""
    if is_lerobot and column.dataset:
        return column.dataset
    name = _ROLES.get(column.name, column.name.replace("/", "."))
    if column.is_image and name.startswith("observation."):
        camera = name.removeprefix("observation.").removeprefix("images.")
        return f"observation.images.{camera}"
    return name


def _rate(store: StoreView, metadata: Sequence[Mapping[str, Any]], asked: float | None) -> float:
    """Return the steps a second that all sources state, or the one that is asked for."""
    stated = {rate for rate in map(_stated_rate, metadata) if rate is not None}
    if asked is not None:
        stated.add(float(asked))
    if len(stated) == 1:
        return stated.pop()
    if stated:
        rates = " and ".join(f"{rate:g}" for rate in sorted(stated))
        message = f"has rates of {rates} steps per second, but LeRobot needs one"
        raise _refused(store, message, "export stores of one rate, without another --fps")
    raise _refused(store, "does not state its steps per second", "for example --fps 20 (fps=20)")


def _stated_rate(metadata: Mapping[str, Any]) -> float | None:
    """Return the rate that a source states, by LeRobot or for robosuite's controller."""
    rate = metadata.get("fps")
    arguments = metadata.get("env_args")
    if rate is None and isinstance(arguments, str):
        rate = json.loads(arguments).get("env_kwargs", {}).get("control_freq")
    return float(rate) if isinstance(rate, (int, float)) else None


def _as_datasets_has_it(feature: StoredStepColumn) -> JsonObject:
    """Describe a feature as the library `datasets` does."""
    if feature.is_image:
        return {"_type": "Image"}
    value = {"dtype": feature.dtype.name, "_type": "Value"}
    if feature.row_shape == (1,):
        return value
    if len(feature.row_shape) == 1:
        return {"feature": value, "length": feature.row_shape[0], "_type": "List"}
    kind = f"Array{len(feature.row_shape)}D"
    return {"shape": list(feature.row_shape), "dtype": feature.dtype.name, "_type": kind}


def _png(image: UInt8s) -> bytes:
    import cv2

    _, encoded = cv2.imencode(".png", np.ascontiguousarray(image[..., ::-1]))
    return bytes(encoded.tobytes())


def _needed(module: str, store: StoreView) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        fault, fix = import_fault(module, "robots", error)
        raise _refused(store, f"the export needs {fault}", fix, "library") from error


def _refused(store: StoreView, message: str, fix: str, kind: str = "option") -> InputError:
    return InputError.at(store.path, message, fix, kind)
