"""Describe the columns of a store of episodes: their fields, and the tables that they are in."""

# Observations of 4 KiB and more per step (images, depth, clouds) have a table of their own: with rows of such
# different sizes in one table, shards would take gigabytes, or there would be thousands of tiny ones.

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from unistore.converters.trajectory.columns import RAGGED, VIDEO, Variant
from unistore.plugin import Field, Merged, OwnForm, SourceColumn, Table, little_endian, promote
from unistore.schemas.trajectory.clocks import RecordedClock, table_of
from unistore.schemas.trajectory.fields import (
    FINAL,
    NEXT,
    OBSERVATION,
    STEPS,
    SUFFIXES,
    RowsOfAnyLength,
    column_field,
    image_axes,
    is_image,
    moved,
    values_field,
)
from unistore.schemas.trajectory.origins import ColumnOrigin
from unistore.system.types import JsonObject

LARGE = 4096  # bytes per step from which an observation is in the table of large ones
FLAGS = ("terminated", "truncated", "next_valid")
OBSERVED = "observation/"  # begins the names of columns that are observations
FOLLOWING = "next_observation/"  # of those that are next observations
# How names of columns begin, by the tables of observations
_BEGINNINGS = {OBSERVATION: OBSERVED, NEXT: FOLLOWING, FINAL: FOLLOWING}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredColumn:
    """A column of a store.

    Attributes
    ----------
    name
        As ``observation/eef_pos``. Next observations begin with ``next_observation/``.
    form
        dtype and row shape that hold the values of every source.
    datasets, kinds
        Datasets of the sources, and how their rows are read, see `Feature.kind`; each once.
    offsets
        Datasets that divide those of a ragged column.
    flag_dtypes
        dtypes of a flag in the sources.
    components
        Names of the numbers in a row, if all sources state the same ones.
    clock
        The clock whose ticks are its rows.
    colour
        The option.
    is_kept
        Whether compressed frames, or packets of video, are stored as they are.
    size
        Side of resized images, in pixels. None: there are none.
    only_resized
        Whether images are stored resized, and not as they are.
    """

    name: str
    form: Merged
    datasets: tuple[str, ...]
    kinds: tuple[str, ...]
    offsets: tuple[str, ...] = ()
    flag_dtypes: tuple[str, ...] = ()
    components: tuple[str, ...] = ()
    clock: str = STEPS
    colour: str = "standard"
    is_kept: bool = False
    size: int | None = None
    only_resized: bool = False

    @property
    def is_next(self) -> bool:
        """Whether it is a next observation."""
        return self.name.startswith(FOLLOWING)

    @property
    def rows_of_any_length(self) -> RowsOfAnyLength | None:
        """What its rows are, if they have any number of values or bytes. None: each is one value."""
        if self.is_kept:
            return "video" if VIDEO in self.kinds else "frames"
        if RAGGED.isdisjoint(self.kinds):
            return None
        return "text" if "text" in self.kinds else "ragged"

    @property
    def spilled_table(self) -> str:
        """Name of its own table, if a row has any number of values or bytes. Empty: it has no such table."""
        rows = self.rows_of_any_length
        return "" if rows is None else f"{table_of(self.clock)}/{self.name}{SUFFIXES[rows]}"

    @property
    def value_form(self) -> SourceColumn:
        """Form of a value of a spilled column."""
        return SourceColumn("uint8") if self.is_kept else SourceColumn(self.form.dtype, self.form.row_shape)

    @property
    def is_resized(self) -> bool:
        """Whether the store has resized images of it."""
        if self.size is None or not RAGGED.isdisjoint(self.kinds):
            return False
        is_observed = self.name.startswith((OBSERVED, FOLLOWING)) or self.clock != STEPS
        return is_observed and is_image(self.field)

    @property
    def has_extents(self) -> bool:
        """Whether an array of the store says how far its rows reach in each episode."""
        return self.form.is_padded and not self.is_next and not (self.only_resized and self.is_resized)

    @property
    def origin(self) -> ColumnOrigin:
        """Its datasets in the sources, how rows were converted, names of the numbers in a row."""
        return ColumnOrigin(datasets=self.datasets, forms=self.kinds, components=self.components)

    @property
    def field(self) -> Field:
        """Field of its rows, without resizing."""
        if self.name in FLAGS:
            return column_field(self.name, "bool", (), **self.origin.to_json(), **self._flag_dtype)
        form = self.form
        attributes = {**self.origin.to_json(), **form.source_forms}
        field = column_field(self.name, form.dtype, form.row_shape, table_of(self.clock), **attributes)
        return replace(field, statistics=field.statistics and not form.is_filled)

    @property
    def _flag_dtype(self) -> JsonObject:
        """Attribute: the dtype of a flag in the sources, if an export would take another one, uint8."""
        is_other = len(self.flag_dtypes) == 1 and self.flag_dtypes[0] != "uint8"
        return {"source_dtype": self.flag_dtypes[0]} if is_other else {}

    @property
    def data_field(self) -> Field:
        """Field of the values of a spilled column."""
        rows = self.rows_of_any_length
        assert rows is not None
        origin = replace(self.origin, offsets=self.offsets if rows == "ragged" else ())
        attributes = origin.to_json()
        if not self.is_kept:
            attributes |= self.form.source_forms
        form = self.form
        table = table_of(self.clock)
        return values_field(self.name, table, rows, form.dtype, form.row_shape, attributes, self.colour)

    def plain_fields(self, group: str = "") -> list[Field]:
        """Return the field of its rows, if they are stored so: in their table, or in a group of next ones."""
        if self.spilled_table or (self.only_resized and self.is_resized):
            return []
        return [self._field_in(group)]

    def resized_fields(self, group: str = "") -> list[Field]:
        """Return the field of resized images, if the store has these, see `plain_fields`."""
        return [self._resized(self._field_in(group))] if self.is_resized else []

    def resized_name(self, name: str) -> str:
        """Return the name of resized images: that of the images themselves, if these are not stored."""
        return name if self.only_resized else f"{name}_{self.size}"

    def _field_in(self, group: str) -> Field:
        if not group:
            return self.field
        form = self.form
        name = self.name.removeprefix("next_")
        field = column_field(name, form.dtype, form.row_shape, **form.source_forms)
        return replace(moved(field, group), attributes={**field.attributes, **self.origin.to_json()})

    def _resized(self, field: Field) -> Field:
        size = self.size or 0
        path = self.resized_name(field.path)
        attributes: JsonObject = {"channels": field.attributes["channels"], "resized_from": field.path}
        if self.only_resized:
            attributes = {**field.attributes, "source_shape": list(field.row_shape)}
            for name in self.form.source_forms.keys() - {"source_dtype"}:
                del attributes[name]  # row shapes of the sources: resized images have one size
        return Field(
            path=path,
            dtype=field.dtype,
            row_shape=(size, size, 3),
            axes=(field.axes[0], *image_axes(path)),
            description=f"{field.description}, resized to {size} × {size} (OpenCV, INTER_LINEAR)",
            attributes=attributes,
        )

    def own_form(self, variants: Iterable[Variant]) -> OwnForm | None:
        """Return the form that holds the rows of some episodes alone. None: that of the store."""
        forms = [variant.features[self.name].form for variant in variants if self.name in variant.features]
        dtype = promote([np.dtype(form.dtype) for form in forms])
        shapes = {form.row_shape for form in forms}
        has_axes_alike = len({len(shape) for shape in shapes}) == 1
        if self.is_kept or "text" in self.kinds or not has_axes_alike or dtype is None:
            return None
        return OwnForm(little_endian(dtype.name), tuple(map(max, zip(*shapes, strict=True))))


class ArrayOf(NamedTuple):
    """Which column an array of a store has the rows of."""

    column: str
    is_resized: bool = False


@dataclass(frozen=True, slots=True)
class StoredColumns:
    """The columns of a store.

    Attributes
    ----------
    columns
        By name, next observations included.
    datasets
        Datasets of each column that an episode has, by its name, whether it is stored or not.
    empty
        dtype of each dataset of shape (T, 0, …).
    streams
        What tells the times of each clock.
    """

    columns: Mapping[str, StoredColumn]
    datasets: Mapping[str, tuple[str, ...]]
    empty: Mapping[str, str]
    streams: Mapping[str, RecordedClock]

    @property
    def following(self) -> list[StoredColumn]:
        """Next observations with one value in a row."""
        return [column for column in self.columns.values() if column.is_next and not column.spilled_table]

    @property
    def spilled(self) -> list[StoredColumn]:
        """Columns with any number of bytes, or values, in a row: first those of frames."""
        spilled = [column for column in self.columns.values() if column.spilled_table]
        return sorted(spilled, key=lambda column: not column.is_kept)

    @property
    def clocks(self) -> dict[str, str]:
        """Clock of each column."""
        return {name: column.clock for name, column in self.columns.items()}

    def tables(self) -> tuple[Table, ...]:
        """Return the tables that are known from the scan: steps, large observations, clocks, spilled ones."""
        fields: dict[str, list[Field]] = {STEPS: [], OBSERVATION: []}
        for column in self.columns.values():
            if column.name in FLAGS or column.is_next:
                continue
            table = table_of(column.clock)
            is_observation = table == STEPS and column.name.startswith(OBSERVED)
            for field in column.plain_fields():
                is_large = is_observation and field.row_bytes >= LARGE
                fields.setdefault(OBSERVATION if is_large else table, []).append(field)
            for field in column.resized_fields():
                fields.setdefault(OBSERVATION if is_observation else table, []).append(field)
        fields[STEPS] += self._flag_fields()
        tables = [Table(name=table, fields=tuple(members)) for table, members in fields.items() if members]
        tables += [
            Table(name=column.spilled_table, fields=(column.data_field,), spilled=True)
            for column in self.spilled
        ]
        return tuple(tables)

    def _flag_fields(self) -> list[Field]:
        """Return the fields of all flags, of which sources may have recorded some."""
        recorded = {flag: self.columns[flag].field for flag in FLAGS if flag in self.columns}
        return [recorded.get(flag) or column_field(flag, "bool", ()) for flag in FLAGS]

    def arrays_of(self, table: str) -> dict[str, ArrayOf]:
        """Return what the arrays of a table are, by their names without the table's."""
        beginning = _BEGINNINGS.get(table, "")
        arrays = {}
        for name, column in self.columns.items():
            if not (name.startswith(beginning) if beginning else table_of(column.clock) == table):
                continue
            key = name.removeprefix(beginning)
            if not (column.is_resized and column.only_resized):
                arrays[key] = ArrayOf(name)
            if column.is_resized:
                arrays[column.resized_name(key)] = ArrayOf(name, is_resized=True)
        return arrays

    def own_forms(
        self, table: str, variants: Sequence[Variant], fields: Mapping[str, Field]
    ) -> dict[str, OwnForm]:
        """Return the form that rows of a source have, by array of a table. Its episodes are of some variants.

        Without next observations: all sources together decide which of them have rows.
        """
        if table in (FINAL, NEXT):
            return {}
        arrays = self.arrays_of(table)
        for column in self.spilled:
            if column.spilled_table == table:
                arrays["data"] = ArrayOf(column.name)
        forms = {}
        for key, stored in fields.items():
            form = OwnForm(little_endian(stored.dtype), stored.row_shape)
            if key in FLAGS:
                forms[key] = form
                continue
            name, is_resized = arrays.get(key, ArrayOf(key))
            is_in_source = any(name in variant.features for variant in variants)
            if not is_in_source or self.columns[name].is_next:
                continue
            form = self.columns[name].own_form(variants) or form
            forms[key] = form._replace(row_shape=stored.row_shape) if is_resized else form
        return forms


def next_table(group: str, columns: Sequence[StoredColumn]) -> Table:
    """Return the table of next observations of all steps (`NEXT`), or of the last ones (`FINAL`)."""
    fields: list[Field] = []
    for column in columns:
        fields += [*column.plain_fields(group), *column.resized_fields(group)]
    return Table(name=group, fields=tuple(fields))
