"""The form of every array of a store, by its path: what readers and ``verify`` hold it against."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from unistore.errors import Problem
from unistore.schemas.arrays import ArrayInfo
from unistore.schemas.forms import SAMPLES, Form

__all__ = ["BYTES", "GENERAL", "Forms"]

BYTES = Form(dtypes=("uint8",), row_shape=())
"""Bytes one after the other, which offsets cut."""


def _any(_path: str, _paths: Collection[str]) -> Form:
    return Form()


@dataclass(frozen=True, slots=True, kw_only=True)
class Forms:
    """What the arrays of a family's stores must be, beside those that every store has.

    Attributes
    ----------
    arrays
        Form by path of the arrays that every store of the family has.
    own
        ``own(path, paths) -> Form``: what another array, at `path`, must be in a store that has arrays at
        `paths`; ``Form()`` asks for nothing.
    main_rows
        What the rows of the sources count: an array whose rows they are, or `SAMPLES`. None: the columns of
        the table that the root names as the main one.
    text
        Tables some columns of which are text, ``<table>/<column>/{data, offsets}``, and the rows that their
        offsets have: ``{"volumes": (SAMPLES, 1)}``, one more than there are samples.
    """

    arrays: Mapping[str, Form] = field(default_factory=dict)
    own: Callable[[str, Collection[str]], Form] = _any
    main_rows: str | None = None
    text: Mapping[str, tuple[str, int]] = field(default_factory=dict)

    def of(self, path: str, paths: Collection[str]) -> Form:
        """Form of an array.

        Parameters
        ----------
        path
            Of the array.
        paths
            Of all arrays of the store.
        """
        return self._common(path, paths) or self.arrays.get(path) or self.own(path, paths)

    def problems(self, arrays: Mapping[str, ArrayInfo], samples: int) -> list[Problem]:
        """Arrays that are missing, and those of other axes, dtype or rows than their form.

        Parameters
        ----------
        arrays
            Shape and dtype of every array of a store, by path.
        samples
            Samples that its root counts.
        """
        shapes = {SAMPLES: (samples,), **{path: info.shape for path, info in arrays.items()}}
        found = [Problem(path, "is missing", kind="schema") for path in self.arrays if path not in arrays]
        for path, info in arrays.items():
            form = self.of(path, arrays)
            error = next((f"needs the array {need}" for need in form.needs if need not in shapes), None)
            error = error or form.array_error(info, shapes.__getitem__)
            if error is not None:
                found.append(Problem(path, error, kind="schema"))
        return found

    def is_text(self, path: str, paths: Collection[str]) -> bool:
        """Whether an array holds the bytes of a column of text."""
        return path.endswith("/data") and self._is_text(path.removesuffix("/data"), paths)

    def _common(self, path: str, paths: Collection[str]) -> Form | None:
        """Sources, splits and text, which every store has."""
        if path == "splits/code":
            return Form(dtypes=("uint8",), row_shape=(), rows=(SAMPLES, 0))
        group, _, name = path.rpartition("/")
        if self._is_text(group, paths) and name in ("data", "offsets"):
            if name == "data":
                return BYTES
            return Form(dtypes=("int64",), row_shape=(), rows=self._text_rows(group), cuts=f"{group}/data")
        if group == "sources":
            counted = ("sources/path/offsets", -1)
            if name in ("bytes", "rows", "first_row"):
                ascending = name == "first_row"
                return Form(dtypes=("int64",), row_shape=(), rows=counted, least=0, ascending=ascending)
            if name in ("scale", "offset"):
                return Form(dtypes=("float64",), row_shape=(3,), rows=counted)
            return Form(rows=counted)
        return None

    def _is_text(self, group: str, paths: Collection[str]) -> bool:
        """Whether a group is a column of text."""
        table, _, column = group.partition("/")
        known = (table == "sources" or table in self.text) and bool(column) and "/" not in column
        return known and f"{group}/data" in paths and f"{group}/offsets" in paths

    def _text_rows(self, group: str) -> tuple[str, int] | None:
        """Rows of the offsets of a column of text; of the names of sources, any number."""
        if group == "sources/path":
            return None
        table = group.partition("/")[0]
        return self.text.get(table, ("sources/path/offsets", 0))


GENERAL = Forms()
"""Of a family that tells nothing of its own arrays."""
