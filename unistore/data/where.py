"""Select samples of a store by conditions on numbers and texts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from math import ceil
from typing import Any, TypeAlias

import numpy as np

from unistore.data.kinds.protocol import SOURCE, source_keys, value_column
from unistore.errors import InputError, first_few
from unistore.schemas.indices import (
    IndexColumn,
    contradiction,
    sample_rows,
    sample_sources,
    table_columns,
    whole,
)
from unistore.schemas.ragged import RAGGED_SUFFIX, TEXT_SUFFIX
from unistore.store.reader import Store
from unistore.system.arguments import Arguments, wrong_argument
from unistore.system.types import AnyArray, Int64s

Number: TypeAlias = bool | int | float
# What a number or text must be: equal, like a pattern, in a range (ends included), or one of some
Condition: TypeAlias = Number | str | tuple[Number | None, Number | None] | Sequence[Number | str]
# By name, what reads a number or text of each row of the sample table
Known: TypeAlias = Mapping[str, Callable[[], AnyArray]]

_LISTS = (list, set, frozenset)
_FORMS = "a number, a pattern such as 'lab_a/*', a range such as (50, None), or a list of values"


@dataclass(frozen=True, slots=True)
class Where:
    """Conditions that select samples.

    Attributes
    ----------
    conditions : mapping of str to Condition
        Condition by name. All of them must be met.
    top_fraction : (str, float) or None
        Name, and share of the samples with the largest values to keep after the conditions. None: all.
    removed : tuple of int
        Numbers of sources that a version of a versioned store does not have.
    """

    conditions: Mapping[str, Condition]
    top_fraction: tuple[str, float] | None
    removed: tuple[int, ...] = field(default=(), repr=False)

    def check(self, store: Store) -> None:
        """Raise InputError if the store does not have one of the names. The message lists the valid ones."""
        readers = known_of(store)
        names = [*self.conditions] if self.top_fraction is None else [*self.conditions, self.top_fraction[0]]
        if unknown := [name for name in names if name not in readers]:
            message = f"{store.path} has no {', '.join(map(repr, unknown))} of its samples"
            raise wrong_argument("where", message, f"use one of {', '.join(readers)}")

    def nothing_left(self, paths: Sequence[str]) -> InputError:
        """Return the error of conditions that no sample meets, for you to raise."""
        message = f"no sample of {first_few(paths)} meets all conditions {dict(self.conditions)!r:.200}"
        return wrong_argument("where", message, "remove or widen a condition")

    def units(self, store: Store, units: Int64s | None) -> Int64s:
        """Return the selected rows of the sample table.

        Parameters
        ----------
        store : Store
            The store.
        units : int64 array or None
            Rows to select from. None: all rows.
        """
        readers = known_of(store) if self.conditions or self.top_fraction else {}
        chosen = np.arange(store.sample_count) if units is None else units
        if self.removed:
            chosen = chosen[~np.isin(sample_sources(store)[chosen], self.removed)]
        for name, condition in self.conditions.items():
            chosen = chosen[_fulfil(name, readers[name]()[chosen], condition)]
        if self.top_fraction is None:
            return chosen
        name, share = self.top_fraction
        values = readers[name]()[chosen]
        _check_kind(name, values, is_text=False)
        order = np.argsort(-values.astype(np.float64), kind="stable")
        return np.sort(chosen[order[: ceil(round(share * len(chosen), 9))]])


def parse_where(
    check: Arguments, conditions: Mapping[str, Condition] | None, top_fraction: tuple[str, float] | None
) -> Where | None:
    """Check the conditions that a Dataset gets.

    Parameters
    ----------
    check : Arguments
        Collects problems of invalid conditions.
    conditions : mapping of str to Condition, or None
        The argument `where`.
    top_fraction : (str, float) or None
        The argument `top_fraction`.

    Returns
    -------
    Where or None
        None: there are no conditions.
    """
    if conditions is None and top_fraction is None:
        return None
    is_mapping = isinstance(conditions, Mapping)
    check.expect("where", conditions, is_mapping, "conditions by name", none=True)
    by_name = dict(conditions or {}) if is_mapping else {}
    for name, condition in by_name.items():
        check.expect(f"where[{name!r}]", condition, _is_condition(condition), _FORMS)
    check.expect(
        "top_fraction",
        top_fraction,
        _is_name_and_share(top_fraction),
        "a name and a share above 0 and up to 1, such as ('episode.return', 0.1)",
        none=True,
    )
    return Where(by_name, top_fraction)


def _is_condition(condition: object) -> bool:
    if isinstance(condition, tuple):
        return len(condition) == 2 and all(end is None or _is_number(end) for end in condition)
    several = condition if isinstance(condition, _LISTS) else [condition]
    return all(_is_number(value) or isinstance(value, str) for value in several)


def _is_name_and_share(top_fraction: Any) -> bool:
    if not isinstance(top_fraction, tuple) or len(top_fraction) != 2:
        return False
    return isinstance(top_fraction[0], str) and _is_number(top_fraction[1]) and 0 < top_fraction[1] <= 1


def _is_number(value: object) -> bool:
    return isinstance(value, (bool, int, float, np.bool_, np.number))


def _fulfil(name: str, values: AnyArray, condition: Condition) -> AnyArray:
    several = condition if isinstance(condition, _LISTS) else [condition]
    _check_kind(name, values, is_text=any(isinstance(value, str) for value in several))
    if isinstance(condition, tuple):
        low, high = condition
        is_above = values >= (-np.inf if low is None else low)
        return np.isfinite(values) & is_above & (values <= (np.inf if high is None else high))
    if isinstance(condition, str):
        return np.array([fnmatchcase(text, condition) for text in values], bool)
    if isinstance(condition, _LISTS):
        return np.isin(values, list(condition))
    return np.asarray(values == condition)


def _check_kind(name: str, values: AnyArray, *, is_text: bool) -> None:
    if is_text != (values.dtype.kind == "U"):
        example = f", for example {values[0].item()!r:.60}" if len(values) else ""
        if is_text:
            message = f"{name!r} contains numbers{example}, but the condition is a text"
            fix = "give a number, or a range such as (50, None)"
        else:
            message = f"{name!r} contains texts{example}, but the condition is a number"
            fix = "give a pattern such as 'lab_a/*'"
        raise wrong_argument("where", message, fix)


def known_of(store: Store) -> Known:
    """Return readers of all values that conditions can name, such as ``episode.length``.

    Returns
    -------
    dict of str to callable
        Called without arguments; returns a number or text for each row of the sample table.
    """
    table = store.sample_table
    noun = table.rpartition("/")[2].removesuffix("s")
    samples = np.arange(store.sample_count)
    readers: dict[str, Callable[[], AnyArray]] = {}
    for key, path in source_keys(store).items():
        if path.endswith(RAGGED_SUFFIX):
            continue  # no condition is of several values
        if store.has(f"{path}/data") or (store.has(path) and store.array(path).shape[1:] == ()):
            readers[key] = partial(_of_sources, store, path)
    offsets = f"{table}/offsets"
    if store.has(offsets):
        readers[f"{noun}.length"] = partial(_lengths, store, offsets)
        if store.has(rewards := f"{store.root.main_table}/reward"):
            readers[f"{noun}.return"] = partial(_sums, store, rewards, offsets)
    texts = store.specs.texts()
    numbers = [path for path in table_columns(store, table) if store.array(path).shape == samples.shape]
    for path in (*numbers, *texts):
        name = path.removeprefix(f"{table}/")
        if name != path and name not in (SOURCE, "attributes"):
            key = name.removesuffix(TEXT_SUFFIX).replace("/", ".")
            readers[f"{noun}.{key}"] = partial(_values, store, path)
    if store.has(f"{table}/attributes/data"):
        for name, values in _attributes(store, f"{table}/attributes").items():
            readers.setdefault(f"{noun}.{name}", partial(np.asarray, values))
    return readers


def _values(store: Store, path: str) -> AnyArray:
    return value_column(store, path).take(np.arange(store.sample_count))


def _lengths(store: Store, offsets: str) -> AnyArray:
    return IndexColumn(store, offsets).lengths()[sample_rows(store)]


def _of_sources(store: Store, path: str) -> AnyArray:
    return value_column(store, path).take(sample_sources(store))


def _sums(store: Store, path: str, offsets: str) -> AnyArray:
    bounds = whole(store, offsets)
    values = store.array(path).read().astype(np.float64)
    sums = np.zeros(len(bounds) - 1)
    filled = np.diff(bounds) > 0
    if filled.any():
        of_rows = values.reshape(len(values), -1).sum(axis=1)
        sums[filled] = np.add.reduceat(of_rows, bounds[:-1][filled])
    return sums


def _attributes(store: Store, path: str) -> dict[str, list[Any]]:
    try:
        samples = [json.loads(text) for text in store.text(path)]
    except ValueError as error:
        raise contradiction(store, f"{path}/data", f"is not JSON: {error}") from error
    if not all(isinstance(sample, dict) for sample in samples):
        raise contradiction(store, f"{path}/data", "contains attributes that are not JSON objects")
    values: dict[str, list[Any]] = {}
    for name in samples[0] if samples else ():
        column = [sample.get(name) for sample in samples]
        if all(map(_is_number, column)) or all(isinstance(value, str) for value in column):
            values[name] = column
    return values
