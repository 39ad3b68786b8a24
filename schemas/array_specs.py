"""The specs of all arrays of a family's stores, which readers and ``verify`` check."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from unistore.errors import Problem
from unistore.schemas.array_spec import SAMPLES, ArrayInfo, ArraySpec

BYTES = ArraySpec(dtypes=("uint8",), row_shape=())
"""Bytes of strings or files, one after the other; offsets say where each begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArraySpecs:
    """What the arrays of a family's stores must be, besides those that every store has.

    Attributes
    ----------
    arrays
        Spec by path of arrays that every store of the family has.
    required
        Paths of further arrays that every store of the family has; `others` gives their specs.
    others
        ``others(path, paths) -> ArraySpec``: spec of the array at `path` in a store that has arrays at
        `paths`; ``ArraySpec()`` allows anything.
    main_rows
        Path of an array with the rows of the main table, or `SAMPLES`. None: the columns of the main table
        that the root names.
    check
        ``check(arrays)`` yields what the specs cannot say of arrays that match them.
    text
        Tables with text columns, ``<table>/<column>/{data, offsets}``, and the rows of their offsets:
        ``{"volumes": (SAMPLES, 1)}`` for one more than there are samples.
    """

    arrays: Mapping[str, ArraySpec] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    others: Callable[[str, Collection[str]], ArraySpec] | None = None
    main_rows: str | None = None
    check: Callable[[Mapping[str, ArrayInfo]], Iterable[Problem]] | None = None
    text: Mapping[str, tuple[str, int]] = field(default_factory=dict)

    def of(self, path: str, paths: Collection[str]) -> ArraySpec:
        """Spec of the array at `path` in a store that has arrays at `paths`."""
        known = self.arrays.get(path) or self._common(path, paths)
        return known or (self.others(path, paths) if self.others else ArraySpec())

    def problems(self, arrays: Mapping[str, ArrayInfo], samples: int) -> list[Problem]:
        """Arrays that are missing, or have other axes, dtype or rows than their spec.

        Parameters
        ----------
        arrays
            Shape and dtype of every array of a store, by path.
        samples
            Number of samples that the root gives.
        """
        shapes = {SAMPLES: (samples,), **{path: info.shape for path, info in arrays.items()}}
        needed = (*self.arrays, *self.required)
        found = [Problem(path, "is missing", kind="schema") for path in needed if path not in arrays]
        for path, info in arrays.items():
            spec = self.of(path, arrays)
            error = next((f"needs the array {need}" for need in spec.needs if need not in shapes), None)
            error = error or ("its spec refers to itself" if self._is_circular(path, arrays) else None)
            error = error or spec.array_error(info, shapes.__getitem__)
            if error is not None:
                found.append(Problem(path, error, kind="schema"))
        return found if found or self.check is None else list(self.check(arrays))

    def _is_circular(self, path: str, arrays: Collection[str]) -> bool:
        """Whether checking an array leads back to it, so that no reader could open it."""
        seen: set[str] = set()
        paths = self.of(path, arrays).shape_needs
        while paths:
            needed = paths.pop()
            if needed == path:
                return True
            if needed not in seen:
                seen.add(needed)
                paths += self.of(needed, arrays).shape_needs
        return False

    def is_text(self, path: str, paths: Collection[str]) -> bool:
        """Whether an array holds the bytes of a text column."""
        return path.endswith("/data") and self._is_text(path.removesuffix("/data"), paths)

    def _common(self, path: str, paths: Collection[str]) -> ArraySpec | None:
        """Spec of arrays that stores of every family may have: sources, splits and text; None for others."""
        if path == "splits/code":
            return ArraySpec(dtypes=("uint8",), row_shape=(), rows=(SAMPLES, 0))
        group, _, name = path.rpartition("/")
        if self._is_text(group, paths) and name in ("data", "offsets"):
            if name == "data":
                return BYTES
            table = group.partition("/")[0]
            rows = self.text.get(table, ("sources/path/offsets", 0)) if group != "sources/path" else None
            return ArraySpec(dtypes=("int64",), row_shape=(), rows=rows, offsets_of=f"{group}/data")
        if group == "sources":
            counted = ("sources/path/offsets", -1)
            if name in ("bytes", "rows", "first_row"):
                ascending = name == "first_row"
                return ArraySpec(dtypes=("int64",), row_shape=(), rows=counted, least=0, ascending=ascending)
            if name in ("scale", "offset"):
                return ArraySpec(dtypes=("float64",), row_shape=(3,), rows=counted)
            return ArraySpec(rows=counted)
        return None

    def _is_text(self, group: str, paths: Collection[str]) -> bool:
        table, _, column = group.partition("/")
        known = (table == "sources" or table in self.text) and bool(column) and "/" not in column
        return known and f"{group}/data" in paths and f"{group}/offsets" in paths


GENERAL = ArraySpecs()
"""For families without specs of their own."""
