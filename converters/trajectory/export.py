"""Export of trajectories to files of their source format."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.exported import (
    VALUE,
    File,
    Values,
    array_values,
    converted,
    row_blocks,
    row_values,
)
from unistore.converters.files.hdf5.attributes import attribute_texts, parse_attributes
from unistore.converters.trajectory.layouts import Layout, layout_named
from unistore.schemas.indices import ArrayView, Column, StoreView, whole
from unistore.schemas.trajectory.fields import EPISODES, FINAL, JPEG_SUFFIX, OBSERVATION, STEPS

_FLAGS = ("steps/terminated", "steps/truncated")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Consecutive episodes ``first:last`` in the same datasets: one episode, or all of a file.

    `group` is that of the datasets in the file (``""``: its root); `bounds` are the offsets of their steps,
    (last - first + 1,).
    """

    store: StoreView
    group: str
    first: int
    last: int
    bounds: NDArray[np.int64]

    @property
    def steps(self) -> int:
        """Rows of each dataset."""
        return int(self.bounds[-1] - self.bounds[0])

    def path_of(self, dataset: str) -> str:
        """Path of an array in the file."""
        return f"{self.group}/{dataset}".strip("/")

    def values(self, path: str, *, own_dtype: bool = True) -> Values:
        """Rows of a column, in the shape of its source; `own_dtype` casts them to its dtype."""
        array = self.store.array(path)
        lo, hi = int(self.bounds[0]), int(self.bounds[-1])
        if path.endswith(f"{JPEG_SUFFIX}/data"):
            return self._frames(path)
        if path.startswith(f"{FINAL}/"):
            values = self._following(path)
        elif path == "steps/truncated" and self.store.has(f"{EPISODES}/cut"):
            values = self._uncut(array, lo, hi)
        else:
            values = row_values(array, lo, hi)
        return _in_source_form(values, path, array.attributes, own_dtype=own_dtype)

    def frames(self, path: str) -> Iterator[NDArray[np.uint8]]:
        """Kept frame of every step, (n,) u1; `path` is that of the ``data`` array."""
        data, bounds = self.store.array(path), self._frame_bounds(path)
        for lo, hi in pairwise(bounds.tolist()):
            yield data.read(lo, hi)

    def _frame_bounds(self, path: str) -> NDArray[np.int64]:
        steps = np.arange(int(self.bounds[0]), int(self.bounds[-1]))
        lo, hi = Column(self.store, f"{path.removesuffix('data')}offsets").ranges(steps)
        return np.concatenate([lo, hi[-1:]])

    def _frames(self, path: str) -> Values:
        """Compressed frames, padded with zeros to one length or of variable length, as in the source."""
        if self.store.array(path).attributes["source_form"] == ["variable"]:
            return Values((self.steps,), np.dtype(object), lambda: frame_rows(self.frames(path)))
        longest = int(np.diff(self._frame_bounds(path)).max(initial=0))
        return Values((self.steps, longest), np.dtype(np.uint8), lambda: _padded(self.frames(path), longest))

    def _following(self, path: str) -> Values:
        """Next observations: those of the following steps, then the final one of each episode."""
        final, now = self.store.array(path), self.store.array(path.replace(FINAL, OBSERVATION, 1))

        def blocks() -> Iterator[NDArray[Any]]:
            for episode in range(self.first, self.last):
                lo, hi = self.bounds[episode - self.first : episode - self.first + 2].tolist()
                for block in row_blocks(now, lo + 1, hi):
                    yield block.astype(final.dtype, copy=False)
                yield final.read_rows([episode])

        return Values((self.steps, *final.shape[1:]), final.dtype, blocks)

    def _uncut(self, array: ArrayView, lo: int, hi: int) -> Values:
        """``truncated`` as recorded: without a flag where the end of the recording cut an episode."""
        cut = self.store.array(f"{EPISODES}/cut").read(self.first, self.last)
        recorded = array.read(lo, hi)
        recorded[self.bounds[1:][cut] - 1 - lo] = False
        return array_values(recorded)


def runs(store: StoreView) -> Iterator[tuple[int, str, list[Run]]]:
    """Number and name of every source, and its runs."""
    layout = _layout(store)
    owner, bounds = whole(store, f"{EPISODES}/source"), whole(store, f"{EPISODES}/offsets")
    groups = [layout.group_of(name) for name in store.text(f"{EPISODES}/name")]
    for number, source in enumerate(store.text("sources/path")):
        first, last = (int(np.searchsorted(owner, number, side)) for side in ("left", "right"))
        parts = []
        for group, members in groupby(range(first, last), lambda episode: groups[episode]):
            lo, *rest = members
            hi = lo + len(rest) + 1
            parts.append(Run(store=store, group=group, first=lo, last=hi, bounds=bounds[lo : hi + 1]))
        yield number, source, parts


def files(store: StoreView) -> Iterator[File]:
    """Every file of a trajectory store."""
    layout = _layout(store)
    columns = _columns(store)
    empty: Mapping[str, str] = store.group(STEPS).get("empty_datasets", {})
    of_sources = _texts(store, "sources/attributes")
    of_episodes = _texts(store, f"{EPISODES}/attributes")
    kept = attribute_texts(store, len(store.array("sources/rows")))
    notes = _resized_notes(store, columns)
    for number, name, parts in runs(store):
        values: dict[str, Values] = {}
        attributes = {layout.container: dict(of_sources[number]) if of_sources else {}}
        for part in parts:
            for path, dataset in columns.items():
                values[part.path_of(dataset)] = part.values(path)
            for dataset, dtype in empty.items():
                values[part.path_of(dataset)] = array_values(np.empty((part.steps, 0), np.dtype(dtype)))
            if of_episodes and part.last == part.first + 1:
                attributes.setdefault(part.group, {}).update(of_episodes[part.first])
        for mask, listed in masks_of(store, parts).items():
            values[f"mask/{mask}"] = array_values(np.array([episode.encode() for episode in listed]))
        yield File(
            name=name,
            form="hdf5",
            source=number,
            values=values,
            attributes=_with_kept(attributes, values, parse_attributes(kept[number])),
            notes=notes,
        )


def _resized_notes(store: StoreView, columns: Mapping[str, str]) -> tuple[str, ...]:
    """What is said of cameras of which the store has resized copies alone."""
    resized = {path: name for path, name in columns.items() if is_resized(store, path)}
    if not resized:
        return ()
    side = store.array(next(iter(resized))).shape[1]
    names = ", ".join(dict.fromkeys(resized.values()))
    return (f"{names}: written as {side} × {side}, as stored; the originals are not in the store",)


def is_resized(store: StoreView, path: str) -> bool:
    """Whether a store has an image of the sources in another size than they have it."""
    # Stores of earlier versions name the original instead of its shape.
    return not {"source_shape", "resized_from"}.isdisjoint(store.array(path).attributes)


def _with_kept(
    told: Mapping[str, Mapping[str, Any]], paths: Iterable[str], kept: Mapping[str, Mapping[str, Any]]
) -> dict[str, Mapping[str, Any]]:
    """Attributes and single values of a file, where those that are stored exactly replace the JSON ones.

    The JSON has those of the root among those of another group, and single values as attributes.
    """
    below = (path.rsplit("/", depth)[0] for path in paths for depth in range(path.count("/") + 1))
    places = {"", *below}
    found = {path: own for path, own in kept.items() if path in places or VALUE in own}
    as_dataset = {path for path, own in kept.items() if VALUE in own}
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


def _layout(store: StoreView) -> Layout:
    return layout_named(str(store.group(EPISODES)["source_layout"]))


def _columns(store: StoreView) -> dict[str, str]:
    """Source dataset of each array, relative to its group."""
    found: dict[str, str] = {}
    for path in store.paths():
        attributes = store.array(path).attributes if path.startswith((f"{STEPS}/", f"{FINAL}/")) else {}
        if "source_dataset" in attributes:
            found[path] = attributes["source_dataset"][0].strip("/")
    kept = {path for path in found if path.startswith(f"{FINAL}/")}
    for path in kept:  # next observations of compressed frames are decoded, so they are not exported
        if not store.has(path.replace(FINAL, OBSERVATION, 1)):
            del found[path]
    return found


def _texts(store: StoreView, path: str) -> list[dict[str, Any]]:
    return [json.loads(text) for text in store.text(path)] if store.has(f"{path}/data") else []


def masks_of(store: StoreView, parts: Sequence[Run]) -> dict[str, list[str]]:
    """Names of a source's episodes in each mask, without empty masks."""
    group = f"{EPISODES}/mask/"
    paths = [path for path in store.paths() if path.startswith(group)] if parts else []
    if not paths:
        return {}
    first, last = parts[0].first, parts[-1].last
    names = store.text(f"{EPISODES}/name")[first:last]
    found = {}
    for path in paths:
        listed = store.array(path).read(first, last)
        if chosen := [name for name, member in zip(names, listed, strict=True) if member]:
            found[path.removeprefix(group)] = chosen
    return found


def _in_source_form(values: Values, path: str, attributes: Mapping[str, Any], *, own_dtype: bool) -> Values:
    """Undo the conversions of reading: squeezed axes, channels last, promoted dtypes, flags as bool."""
    if path in _FLAGS:
        return converted(values, np.dtype(np.uint8))
    dtype = attributes.get("source_dtype")
    if isinstance(dtype, str) and own_dtype:
        values = converted(values, np.dtype(dtype))
    if attributes["source_form"] == ["squeezed"]:
        return Values((*values.shape, 1), values.dtype, lambda: (each[:, None] for each in values.blocks()))
    if attributes["source_form"] == ["channels_first"]:
        steps, height, width, channels = values.shape
        return Values(
            (steps, channels, height, width),
            values.dtype,
            lambda: (np.ascontiguousarray(each.transpose(0, 3, 1, 2)) for each in values.blocks()),
        )
    return values


def frame_rows(frames: Iterator[NDArray[np.uint8]]) -> Iterator[NDArray[Any]]:
    """Frames one by one, each as an object array (1,)."""
    for frame in frames:
        row = np.empty(1, object)
        row[0] = frame
        yield row


def _padded(frames: Iterator[NDArray[np.uint8]], longest: int) -> Iterator[NDArray[np.uint8]]:
    """Frames one by one, (1, longest) each."""
    for frame in frames:
        row = np.zeros((1, longest), np.uint8)
        row[0, : len(frame)] = frame
        yield row
