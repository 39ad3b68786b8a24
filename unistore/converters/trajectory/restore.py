"""The files of trajectories as a store gives them back: for export, and to compare them with the source."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, groupby
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from unistore.converters.formats.hdf5 import Hdf5
from unistore.converters.formats.images import opencv
from unistore.converters.formats.packets import KeptVideo
from unistore.converters.trajectory.columns import Feature
from unistore.converters.trajectory.episodes import EpisodeIndex
from unistore.converters.trajectory.layouts import LEROBOT, EpisodeLayout, layout_named
from unistore.converters.trajectory.names import is_of_episodes
from unistore.converters.trajectory.restored_steps import (
    FLAGS,
    STATS,
    TRUNCATED,
    blocks,
    following,
    metadata_of_episodes,
    metadata_of_sources,
    next_recorded,
    recorded_truncation,
)
from unistore.plugin import (
    ExportedArray,
    File,
    OpenedByLibrary,
    Restore,
    RestoredArray,
    RestoredFile,
    RestoredFiles,
    Scan,
    StoredRagged,
    StoreView,
    array_values,
    kept_attributes,
    whole,
)
from unistore.schemas.trajectory.clocks import offsets_path, table_of
from unistore.schemas.trajectory.fields import (
    CLOCKS,
    EPISODES,
    EXTENT,
    FINAL,
    NEXT,
    OBSERVATION,
    PRESENT,
    STEPS,
    SUFFIXES,
    sample_key,
)
from unistore.schemas.trajectory.origins import ColumnOrigin, FrameForm
from unistore.system.types import AnyArray, Int64s, UInt8s

_COLUMNS = (f"{STEPS}/", f"{FINAL}/", f"{CLOCKS}/")
_VALUE = ""  # the name of single values among attributes, see `File.attributes`
_KEPT, _VIDEO, _RAGGED, _TEXT = (f"{suffix}/data" for suffix in SUFFIXES.values())


class _EpisodeRun(NamedTuple):
    """Consecutive episodes ``first:last`` in the same datasets: one episode, or all of a file."""

    store: StoreView
    source: int  # number of the file
    group: str  # of the datasets in it (``""``: its root)
    first: int
    last: int

    def path_of(self, dataset: str) -> str:
        """Return the path of an array in the file."""
        return f"{self.group}/{dataset}".strip("/")

    def rows_in(self, path: str) -> tuple[int, int]:
        """Return which rows of an array the episodes have."""
        clock = path.split("/")[1] if path.startswith(f"{CLOCKS}/") else STEPS
        offsets = whole(self.store, offsets_path(clock))
        return int(offsets[self.first]), int(offsets[self.last])

    def has(self, path: str) -> bool:
        """Return whether the source has a column, which ``--columns union`` fills elsewhere."""
        recorded = next_recorded(self.store, path)
        if recorded is not None:
            return bool(recorded[self.first])
        presence = f"{PRESENT}/{_key(path)}"
        return not self.store.has(presence) or bool(whole(self.store, presence)[self.first])

    def values(self, path: str, *, with_first: bool = False) -> ExportedArray:
        """Return rows of a column, in the shape and dtype of its source.

        `with_first`: next observations of an episode with the one before its first step, too.
        """
        array = self.store.array(path)
        lo, hi = self.rows_in(path)
        if path.endswith(_KEPT):
            return self._frames(path)
        if path.endswith(_VIDEO):
            return self._video(path, lo, hi)
        if path.endswith(_TEXT):
            own = self._ragged(path).values(self.source, lo, hi)
            if not with_first:
                return own
            before = self._ragged(path.replace(NEXT, OBSERVATION, 1)).values(self.source, lo, lo + 1)
            return own._replace(shape=(hi - lo + 1,), blocks=lambda: chain(before.blocks(), own.blocks()))
        if path.endswith(_RAGGED):
            if not self.offsets_name(path, ""):
                return self.ragged_rows(path)
            bounds = self._row_bounds(path)
            return ExportedArray.of_rows(array, int(bounds[0]), int(bounds[-1]))
        if path.startswith(f"{FINAL}/"):
            now = self.store.array(path.replace(FINAL, OBSERVATION, 1))
            values = following(
                self.store,
                path,
                lambda lo, hi: ExportedArray.of_rows(now, lo, hi).blocks(),
                self.first,
                self.last,
                with_first=with_first,
            )
        elif path == TRUNCATED:
            values = array_values(recorded_truncation(self.store, lo, hi))
        else:
            values = ExportedArray.of_rows(array, lo, hi)
        extents = f"{EXTENT}/{_key(path)}"
        if self.store.has(extents):
            values = values.within(tuple(whole(self.store, extents)[self.first].tolist()))
        return _in_source_form(values, path, array.attributes)

    def _ragged(self, path: str) -> StoredRagged:
        """Return a column of any length. `path` is that of its ``data``."""
        return StoredRagged(self.store, _group(path))

    def _row_bounds(self, path: str) -> Int64s:
        return self._ragged(path).bounds(*self.rows_in(path))

    def frames(self, path: str) -> ExportedArray:
        """Return compressed frames without padding."""
        return self._ragged(path).byte_strings(*self.rows_in(path))

    def _frames(self, path: str) -> ExportedArray:
        """Return compressed frames as in the source: padded to one length, or of variable length."""
        frames = self.frames(path)
        if ColumnOrigin.stated(self.store.array(path).attributes).forms == ("variable",):
            return frames
        longest = int(np.diff(self._row_bounds(path)).max(initial=0))

        def padded() -> Iterator[UInt8s]:
            for frame in self._ragged(path).rows(*self.rows_in(path)):
                row = np.zeros((1, longest), np.uint8)
                row[0, : len(frame)] = frame
                yield row

        return ExportedArray((*frames.shape, longest), np.dtype(np.uint8), padded)

    def _video(self, path: str, lo: int, hi: int) -> ExportedArray:
        """Return frames of a video, decoded."""
        shape = FrameForm.of(self.store, path).shape
        video = KeptVideo(self.store, _group(path))
        return ExportedArray(
            (hi - lo, *shape),
            np.dtype(np.uint8),
            lambda: (video.stretch(*rows) for rows in blocks(lo, hi, prod(shape))),
        )

    def ragged_rows(self, path: str) -> ExportedArray:
        """Return rows with any number of values."""
        return self._ragged(path).values(self.source, *self.rows_in(path))

    def offsets_name(self, path: str, dataset: str) -> str:
        """Return the name of the dataset that divides a ragged one. Empty: rows are of variable length."""
        if not path.endswith(_RAGGED):
            return ""
        array = self.store.array(path)
        origin = ColumnOrigin.of(array.attributes)
        if origin is not None and origin.offsets:
            return origin.offsets[0].strip("/")
        return f"{dataset}_offsets" if array.shape[1:] else ""  # of rows of variable length HDF5 has one axis

    def offsets(self, path: str) -> ExportedArray:
        """Return offsets that divide a ragged column, from 0 on."""
        bounds = self._row_bounds(path)
        return array_values(bounds - bounds[0])


def _runs(store: StoreView) -> Iterator[tuple[str, list[_EpisodeRun]]]:
    """Yield the name of every source, and its runs."""
    layout = _layout(store)
    owner = whole(store, f"{EPISODES}/source")
    groups = [layout.group_of(name) for name in store.text(f"{EPISODES}/name")]
    for number, source in enumerate(store.text("sources/path")):
        first, last = (int(np.searchsorted(owner, number, side)) for side in ("left", "right"))
        runs = []
        for group, members in groupby(range(first, last), groups.__getitem__):
            episodes = list(members)
            runs.append(_EpisodeRun(store, number, group, episodes[0], episodes[-1] + 1))
        yield source, runs


def files(store: StoreView) -> Iterator[File]:
    """Yield every file of a trajectory store."""
    layout = _layout(store)
    columns = _columns(store)
    empty: Mapping[str, str] = store.group(STEPS).get("empty_datasets", {})
    of_sources = metadata_of_sources(store)
    of_episodes = metadata_of_episodes(store)
    notes = _resized_notes(store, columns)
    following_groups = (f"{FINAL}/", f"{NEXT}/")
    finals = [path for path in columns if layout.last and path.startswith(following_groups)]
    next_of = {path.replace(FINAL, OBSERVATION, 1).replace(NEXT, OBSERVATION, 1): path for path in finals}
    for number, (name, runs) in enumerate(_runs(store)):
        values: dict[str, ExportedArray] = {}
        stats = of_sources[number].pop(STATS, "") if layout == LEROBOT else ""
        attributes = {layout.container or "": {} if layout.last else dict(of_sources[number])}
        beside = layout.last.of_groups(of_sources[number]) if layout.last else {}
        for run in runs:
            for path, dataset in columns.items():
                if not run.has(path):
                    continue
                if path in finals:
                    values[run.path_of(layout.dataset_in_file(dataset))] = run.values(path, with_first=True)
                elif path not in next_of:
                    values[run.path_of(dataset)] = run.values(path)
                elif not run.has(next_of[path]):
                    values[run.path_of(layout.dataset_in_file(dataset))] = run.values(path)
                if offsets := run.offsets_name(path, dataset):
                    values[run.path_of(offsets)] = run.offsets(path)
            lo, hi = run.rows_in(STEPS)
            for dataset, dtype in empty.items():
                empty_values = array_values(np.empty((hi - lo, 0), np.dtype(dtype)))
                values.setdefault(run.path_of(dataset), empty_values)  # others have values of this name
            if run.last == run.first + 1:
                in_beside = beside.get(run.group, {})
                told = of_episodes[run.first].items()
                own = {key: fact for key, fact in told if in_beside.get(key) != fact}
                attributes.setdefault(run.group, {}).update(own)
        for path in _ends_in(store, of_sources[number]) if layout.container is None else ():
            numbers = attributes[""].pop(path) if "" in attributes else of_sources[number][path]
            values[path] = array_values(np.array(numbers, np.int64))
        for mask, listed in _masks_of(store, runs).items():
            values[f"mask/{mask}"] = array_values(np.array([episode.encode() for episode in listed]))
        yield File(
            name=name if name.lower().endswith(Hdf5.suffixes) else f"{name}.h5",
            form="hdf5",
            source=number,
            values=values,
            attributes=_with_kept(attributes, values, kept_attributes(store, number)),
            notes=notes,
        )
        metadata = "" if layout.last is None else layout.last.metadata(PurePosixPath(name).name)
        texts = {metadata: json.dumps(of_sources[number]) if of_sources[number] else "", STATS: stats}
        yield from _texts_beside(name, number, texts)


def _texts_beside(name: str, source: int, texts: Mapping[str, str]) -> Iterator[File]:
    """Yield files of texts beside another one, by their names, without empty ones."""
    for beside, text in texts.items():
        if beside and text:
            values = array_values(np.frombuffer(text.encode(), np.uint8))
            path = PurePosixPath(name).with_name(beside)
            yield File(name=str(path), form="raw", source=source, values={"": values})


def _ends_in(store: StoreView, metadata: Mapping[str, Any]) -> list[str]:
    """Return datasets with a value an episode, which are kept as attributes: where episodes end."""
    mapped = store.root.options.get("map", {})
    named = {path.strip("/") for name, path in mapped.items() if is_of_episodes(name)}
    listed = [path for path, value in metadata.items() if isinstance(value, list)]
    return [path for path in listed if path in named or is_of_episodes(path)]


def _resized_notes(store: StoreView, columns: Mapping[str, str]) -> tuple[str, ...]:
    """Return what is said of cameras of which the store has only resized copies."""
    resized = {path: name for path, name in columns.items() if _is_resized(store, path)}
    if not resized:
        return ()
    side = store.array(next(iter(resized))).shape[1]
    names = ", ".join(dict.fromkeys(resized.values()))
    return (f"{names}: written as {side} × {side}, as stored; the originals are not in the store",)


def _is_resized(store: StoreView, path: str) -> bool:
    """Return whether a store has an image of the sources in another size than they have it."""
    return "source_shape" in store.array(path).attributes


def _with_kept(
    told: Mapping[str, Mapping[str, Any]], paths: Iterable[str], kept: Mapping[str, Mapping[str, Any]]
) -> dict[str, Mapping[str, Any]]:
    """Return attributes and single values of a file, where exactly stored ones replace the JSON ones.

    The JSON has those of the root among those of another group, and single values as attributes.
    """
    below = (path.rsplit("/", depth)[0] for path in paths for depth in range(path.count("/") + 1))
    places = {"", *below}
    found = {path: own for path, own in kept.items() if path in places or _VALUE in own}
    as_dataset = {path for path, own in kept.items() if _VALUE in own}
    of_root = found.get("", {}) if "" not in told else {}
    told = {
        path: {
            name: value
            for name, value in own.items()
            if name not in of_root and f"{path}/{name}".strip("/") not in as_dataset
        }
        for path, own in told.items()
    }
    return {path: {**told.get(path, {}), **found.get(path, {})} for path in {**told, **found}}


def _layout(store: StoreView) -> EpisodeLayout:
    return layout_named(str(store.group(EPISODES)["source_layout"]))


def _columns(store: StoreView) -> dict[str, str]:
    """Return the source dataset of each array, relative to its group."""
    found: dict[str, str] = {}
    for path in store.paths():
        origin = ColumnOrigin.of(store.array(path).attributes) if path.startswith(_COLUMNS) else None
        if origin is not None:
            found[path] = origin.dataset
    kept = {path for path in found if path.startswith(f"{FINAL}/")}
    for path in kept:  # next observations of compressed frames are decoded, so they are not exported
        if not store.has(path.replace(FINAL, OBSERVATION, 1)):
            del found[path]
    return found


def _masks_of(store: StoreView, runs: Sequence[_EpisodeRun]) -> dict[str, list[str]]:
    """Return the names of a source's episodes in each mask, without empty masks."""
    masks: dict[str, list[str]] = {}
    group = f"{EPISODES}/mask/"
    names = store.text(f"{EPISODES}/name")
    for path in store.paths():
        if path.startswith(group) and runs:
            first, last = runs[0].first, runs[-1].last
            listed = np.flatnonzero(store.array(path).read(first, last)) + first
            if len(listed):
                masks[path.removeprefix(group)] = [names[number] for number in listed.tolist()]
    return masks


def _in_source_form(values: ExportedArray, path: str, attributes: Mapping[str, Any]) -> ExportedArray:
    """Undo the conversions of reading: squeezed axes, channels last, promoted dtypes, flags as bool."""
    dtype = attributes.get("source_dtype")
    if path in FLAGS:
        return values.converted(np.dtype(dtype or np.uint8))
    if isinstance(dtype, str):
        values = values.converted(np.dtype(dtype))
    forms = ColumnOrigin.stated(attributes).forms
    if forms == ("squeezed",):
        return ExportedArray(
            (*values.shape, 1), values.dtype, lambda: (each[:, None] for each in values.blocks())
        )
    if forms == ("channels_first",):
        steps, height, width, channels = values.shape
        return ExportedArray(
            (steps, channels, height, width),
            values.dtype,
            lambda: (np.ascontiguousarray(each.transpose(0, 3, 1, 2)) for each in values.blocks()),
        )
    return values


def _key(path: str) -> str:
    """Return the key of an observation, also for the array of next ones."""
    return sample_key(path).removeprefix("next.")


def _group(path: str) -> str:
    """Return the group of a column of any length, by its ``data``."""
    return path.removesuffix("/data")


# Comparison with the files of the source.


def restore(store: StoreView, scan: Scan) -> Restore:
    """Restore every dataset of every episode. The scan says which dataset a column is."""
    all_runs = [runs for _, runs in _runs(store)]
    metadata = metadata_of_sources(store)
    swapped = store.root.options["colour"] == "swapped"

    def source(number: int) -> RestoredFiles:
        found, parts = scan.sources[number], all_runs[number]
        index: EpisodeIndex = found.detail.episodes
        arrays: list[RestoredArray] = []
        remarks: dict[str, str] = {}
        for run in parts:
            variant = index.variants[index.episodes[run.first - parts[0].first].variant]
            for column, feature in variant.features.items():
                path, name = _path_of(store, column, feature.clock), run.path_of(feature.dataset)
                if path is not None and _is_resized(store, path):
                    remarks[name] = "only resized"
                elif path is not None:
                    arrays.append(_restored(run, path, name, feature, swapped=swapped))
                    if feature.offsets:
                        arrays.append(RestoredArray(run.path_of(feature.offsets), run.offsets(path)))
            for dataset in variant.values:
                remarks[run.path_of(dataset)] = "only as an attribute"
        for name, listed in _masks_of(store, parts).items():
            episodes = array_values(np.array(sorted(listed), object))
            arrays.append(RestoredArray(f"mask/{name}", episodes, of_file=_sorted_names, may_differ=True))
        groups = {run.group for run in parts}
        in_texts = {"", *groups, *(group.rpartition("/")[0] for group in groups)}

        def is_in_text(path: str, item: Any, name: Any) -> bool:  # noqa: ARG001  whatever its name
            """Return whether an attribute is among those of the file and its episodes."""
            return path in in_texts

        own_metadata = dict(metadata[number])
        stats = str(own_metadata.pop(STATS, "")) if _layout(store) == LEROBOT else ""
        file = RestoredFile(
            found.path,
            arrays,
            format=found.detail.formats[0],
            remarks=remarks,
            is_rewritten=is_in_text,
            metadata=own_metadata,
        )
        texts = [_text_of(found.path.with_name(STATS), stats)] if stats else []
        return RestoredFiles([file, *texts])

    return source


def _text_of(path: Path, text: str) -> RestoredFile:
    """Return a text file, whose bytes are compared."""
    content = array_values(np.frombuffer(text.encode(), np.uint8))
    return RestoredFile(path, [RestoredArray("", content)], open=_open_text)


@contextmanager
def _open_text(path: Path) -> Iterator[OpenedByLibrary]:
    yield OpenedByLibrary("numpy", [""], lambda _: np.fromfile(path, np.uint8))


def _path_of(store: StoreView, column: str, clock: str) -> str | None:
    """Return the array of the store with the values of a column, or None if there is none."""
    if column.startswith("next_observation/"):
        key = column.removeprefix("next_observation/")
        paths = [f"{FINAL}/{key}"] if store.has(f"{OBSERVATION}/{key}") else []
        paths += [f"{NEXT}/{key}", f"{NEXT}/{key}{_TEXT}"]
    else:
        path = f"{table_of(clock)}/{column}"
        paths = [path, f"{path}{_KEPT}", f"{path}{_VIDEO}", f"{path}{_RAGGED}", f"{path}{_TEXT}"]
    return next((path for path in paths if store.has(path)), None)


def _restored(run: _EpisodeRun, path: str, name: str, feature: Feature, *, swapped: bool) -> RestoredArray:
    if path.endswith(_KEPT):
        strip = _without_padding if feature.kind == "padded" else None
        return RestoredArray(name, run.frames(path), of_file=strip)
    if feature.kind == "ragged" and not feature.offsets:
        return RestoredArray(name, run.ragged_rows(path))
    values = run.values(path)
    if feature.is_encoded:
        return RestoredArray(name, values, of_file=partial(_decoded, swapped=swapped), decoder="OpenCV")
    return RestoredArray(name, values)


def _without_padding(rows: UInt8s) -> AnyArray:
    frames = np.empty(len(rows), object)
    frames[:] = [row.tobytes().rstrip(b"\0") for row in rows]
    return frames


def _decoded(rows: AnyArray, *, swapped: bool) -> AnyArray:
    """Decode the compressed frames of some rows."""
    cv2 = opencv("a compressed frame")
    images = []
    for row in rows:
        frame = np.frombuffer(bytes(row), np.uint8)
        png = frame[:4].tobytes() == b"\x89PNG"
        image = cv2.imdecode(frame, cv2.IMREAD_UNCHANGED if png else cv2.IMREAD_COLOR)
        if image is not None and image.ndim == 3 and not swapped:
            image = image[..., [2, 1, 0, *range(3, image.shape[2])]]
        images.append(np.asarray(image))
    return np.stack(images)


def _sorted_names(names: AnyArray) -> AnyArray:
    texts = [name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else name for name in names]
    return np.array(sorted(texts), object)
