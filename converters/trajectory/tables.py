"""Merging the columns of all episodes, and dividing them into tables.

Low-dimensional columns share the table ``steps``. Observations of 4 KiB and more per step (images, depth,
clouds) have a table of their own: with rows of such different sizes in one table, shards would take
gigabytes, or there would be thousands of tiny ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from unistore.converters.common.columns import Column, Merged, reconcile
from unistore.converters.options import Columns
from unistore.converters.trajectory.columns import Feature
from unistore.converters.trajectory.episode_index import EpisodeIndex
from unistore.errors import Problem
from unistore.schemas.tables import Field, Table
from unistore.schemas.trajectory.fields import (
    FINAL,
    NEXT,
    OBSERVATION,
    STEPS,
    column_field,
    image_axes,
    is_image,
    jpeg_fields,
    moved,
)

LARGE = 4096
"""Bytes per step from which an observation is in the table of large ones."""
FRAME = 32 << 10
"""Estimated bytes of a compressed frame, used until frames are counted."""
_FLAGS = ("terminated", "truncated", "next_valid")


@dataclass(frozen=True, slots=True)
class MergedColumns:
    """Columns of a store."""

    merged: Mapping[str, Merged]
    """Dtype and shape of every column, ``next_observation/*`` included."""
    kept: tuple[str, ...]
    """Columns whose compressed frames are stored as they are."""
    image_size: int | None
    """Side of resized images, or None."""
    alone: bool
    """Whether images are stored as resized sets alone."""
    datasets: Mapping[str, tuple[str, ...]]
    """Source datasets of each column."""
    forms: Mapping[str, tuple[str, ...]]
    """Kinds of those datasets, see `Feature`."""
    empty: Mapping[str, str]
    """Dtype of each dataset of shape (T, 0, …)."""

    @property
    def next_keys(self) -> list[str]:
        """Keys of the next observations: ``"images/cam"``."""
        prefix = "next_observation/"
        return [column.removeprefix(prefix) for column in self.merged if column.startswith(prefix)]

    def tables(self, colour: str) -> tuple[Table, ...]:
        """Tables that are known from the scan: ``steps``, large observations, kept frames."""
        small, large, frames = [], [], []
        for column, form in self.merged.items():
            if column in _FLAGS or column.startswith("next_observation/"):
                continue
            field = self.field(column)
            image = column.startswith("observation/") and is_image(field)
            size = self.image_size if image else None
            if size is not None and self.alone:
                pass
            elif column in self.kept:
                key = column.removeprefix("observation/")
                shape = list(form.row_shape)
                origin = self._origin(column)
                data, _ = jpeg_fields(key, FRAME, colour=colour, shape=shape, dtype=form.dtype, **origin)
                frames.append(Table(name=data.path.removesuffix("/data"), fields=(data,), spilled=True))
            elif field.path.startswith(f"{OBSERVATION}/") and field.row_bytes >= LARGE:
                large.append(field)
            else:
                small.append(field)
            if size is not None:
                large.append(_resized(field, size, alone=self.alone))
        small += [self.field(flag) for flag in _FLAGS]
        tables = [Table(name=STEPS, fields=tuple(small))]
        if large:
            tables.append(Table(name=OBSERVATION, fields=tuple(large)))
        return (*tables, *frames)

    def field(self, column: str) -> Field:
        """Field of a column of ``steps``."""
        form = self.merged.get(column)
        attributes = self._origin(column)
        if form is None or column in _FLAGS:
            return column_field(column, "bool", (), **attributes)
        return column_field(column, form.dtype, form.row_shape, **attributes, **_dtypes(form))

    def _origin(self, column: str) -> dict[str, Any]:
        """Attributes: the source datasets of a column, and how their rows were converted."""
        if not self.datasets.get(column):
            return {}
        return {"source_dataset": list(self.datasets[column]), "source_form": list(self.forms[column])}

    def next_fields(self, key: str, group: str) -> list[Field]:
        """Fields of one next observation in `group`, with its resized images."""
        form = self.merged[f"next_observation/{key}"]
        own = column_field(f"observation/{key}", form.dtype, form.row_shape, **_dtypes(form))
        attributes = {**own.attributes, **self._origin(f"next_observation/{key}")}
        field = replace(moved(own, group), attributes=attributes)
        if self.image_size is None or not is_image(field):
            return [field]
        small = _resized(field, self.image_size, alone=self.alone)
        return [small] if self.alone else [field, small]

    def resized_columns(self, table: str) -> dict[str, str]:
        """Original column by resized column of a table of observations, without the table's name."""
        group = {OBSERVATION: "observation", NEXT: "next_observation", FINAL: "next_observation"}.get(table)
        if self.image_size is None or group is None:
            return {}
        names = [
            column.removeprefix(f"{group}/") for column in self._images if column.startswith(f"{group}/")
        ]
        return {_resized_name(name, self.image_size, alone=self.alone): name for name in names}

    @property
    def resized_alone(self) -> Sequence[str]:
        """Columns of images that are stored in another size than the sources have them, and in no other."""
        return self._images if self.alone else ()

    @property
    def _images(self) -> list[str]:
        observed = ("observation/", "next_observation/")
        return [name for name in self.merged if name.startswith(observed) and is_image(self.field(name))]


def _dtypes(form: Merged) -> dict[str, Any]:
    found = form.attributes.get("source_dtype")
    return {"source_dtype": found if isinstance(found, str) else sorted(found or [])}


def _resized_name(name: str, size: int, *, alone: bool) -> str:
    """Name of a resized image set: its own where the store has no other copy of it."""
    return name if alone else f"{name}_{size}"


def _resized(field: Field, size: int, *, alone: bool) -> Field:
    path = _resized_name(field.path, size, alone=alone)
    attributes: dict[str, Any] = {"channels": field.attributes["channels"], "resized_from": field.path}
    if alone:
        attributes = {**field.attributes, "source_shape": list(field.row_shape)}
    return Field(
        path=path,
        dtype=field.dtype,
        row_shape=(size, size, 3),
        axes=(field.axes[0], *image_axes(path)),
        description=f"{field.description}, resized to {size} × {size} (OpenCV, INTER_LINEAR)",
        attributes=attributes,
    )


def merge_columns(
    found: Iterable[tuple[str, EpisodeIndex]], columns: Columns, *, images: str, image_size: int | None
) -> tuple[MergedColumns, list[Problem]]:
    """Merge the columns of all episodes, given with the name of each source; options as they are named."""
    datasets: dict[str, dict[str, None]] = {}
    kinds: dict[str, dict[str, None]] = {}
    encoded: dict[str, set[bool]] = {}
    empty: dict[str, str] = {}

    def forms() -> Iterator[tuple[str, dict[str, Column]]]:
        for name, index in found:
            empty.update(item for each in index.variants for item in each.empty.items())
            for label, features in _variants(name, index):
                for column, feature in features.items():
                    datasets.setdefault(column, {})[feature.dataset] = None
                    kinds.setdefault(column, {})[feature.kind] = None
                    encoded.setdefault(column, set()).add(feature.encoded)
                yield label, {column: feature.form for column, feature in features.items()}

    merged, problems = reconcile(forms(), columns)
    observed = [column for column in merged if column.startswith("observation/")]
    kept = [column for column in observed if images == "keep" and True in encoded[column]]
    problems += [
        Problem(column, "is compressed in some sources and plain in others", "use --images raw", "columns")
        for column in kept
        if len(encoded[column]) > 1
    ]
    layout = MergedColumns(
        merged=merged,
        kept=tuple(kept),
        image_size=image_size,
        alone=images == "resized",
        datasets={column: tuple(names) for column, names in datasets.items()},
        forms={column: tuple(found) for column, found in kinds.items()},
        empty=empty,
    )
    return layout, problems + _name_problems(layout)


def _variants(name: str, index: EpisodeIndex) -> list[tuple[str, Mapping[str, Feature]]]:
    """Label for messages, and features, of each variant of a source."""
    if len(index.variants) == 1:
        return [(name, index.variants[0].features)]
    counts = np.bincount(index.variant)
    found = []
    for number, variant in enumerate(index.variants):
        more = f" (+{counts[number] - 1})" if counts[number] > 1 else ""
        found.append((f"{name}: {index.names[index.variant.index(number)]}{more}", variant.features))
    return found


def _name_problems(layout: MergedColumns) -> list[Problem]:
    """Problems of arrays whose path lies inside another array's, or is the same."""
    paths = [field.path for table in layout.tables("") for field in table.fields]
    paths += [field.path for key in layout.next_keys for field in layout.next_fields(key, NEXT)]
    taken = {path.removesuffix("/data") if path.endswith("_jpeg/data") else path for path in paths}
    inner = sorted((path, outer) for path in taken for outer in taken if path.startswith(f"{outer}/"))
    double = sorted({path for path in paths if paths.count(path) > 1})
    wrong = [(path, f"would lie inside the array {outer!r}") for path, outer in inner]
    wrong += [(path, "stands for two columns") for path in double]
    return [Problem(path, message, "rename one with --map NAME=DATASET", "name") for path, message in wrong]
