"""Checks of plans and rows against the schema of a family, so that no store is sealed that breaks it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.conversion.plan import Plan
from unistore.converters.registry import get_family
from unistore.errors import ConversionError, Problem
from unistore.schemas.array_specs import ArrayInfo, ArraySpec, ArraySpecs
from unistore.schemas.tables import Field, IndexValues

_CURE = "correct the file, or the schema of the family"


def check_plan(plan: Plan, samples: int, index: Sequence[tuple[Field, IndexValues]]) -> None:
    """Check the planned arrays, and the values of the index arrays, before anything is written.

    Raises
    ------
    ConversionError
        Naming every rule that is broken: a fault of the family.
    """
    specs = _specs(plan)
    infos = {
        array.field.path: ArrayInfo(shape=array.shape, dtype=array.field.dtype) for array in plan.arrays()
    }
    problems = specs.problems(infos, samples)
    if not problems:
        problems = [*_unchecked_columns(plan, specs), *_broken_index(plan, specs, samples, index)]
    if problems:
        listed = "\n  ".join(str(problem) for problem in problems)
        msg = f"the planned arrays do not match the schema of {plan.family}; please report it:\n  {listed}"
        raise ConversionError(msg)


def bounded_columns(plan: Plan) -> dict[str, ArraySpec]:
    """Specs of the columns of tables whose values have bounds, by path."""
    specs = _specs(plan)
    paths = [array.field.path for array in plan.arrays()]
    columns = (array.field.path for table in plan.tables for array in table.arrays)
    by_path = {path: specs.of(path, paths) for path in columns}
    return {path: spec for path, spec in by_path.items() if spec.bounds_values}


def broken_rows(
    plan: Plan,
    bounded: Mapping[str, ArraySpec],
    source: str,
    table: str,
    first_row: int,
    columns: Mapping[str, NDArray[Any]],
) -> Iterator[Problem]:
    """Problems of the rows of a source that break the bounds of their columns.

    `first_row` is the number of the first of them in the source.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for column, values in columns.items():
        spec = bounded.get(f"{table}/{column}")
        if spec is None:
            continue
        shapes = shapes or {array.field.path: array.shape for array in plan.arrays()}
        rows = np.arange(first_row, first_row + len(values))
        for error in spec.row_errors(values, rows, shapes.__getitem__):
            yield Problem(source, error, _CURE, "values", dataset=column)


def _specs(plan: Plan) -> ArraySpecs:
    specs: ArraySpecs = get_family(plan.family).part("specs")
    return specs


def _unchecked_columns(plan: Plan, specs: ArraySpecs) -> Iterator[Problem]:
    """Columns whose rule needs all rows at once, which no shard has."""
    paths = [array.field.path for array in plan.arrays()]
    for table in plan.tables:
        for array in table.arrays:
            spec = specs.of(array.field.path, paths)
            if spec.ascending or spec.offsets_of is not None:
                message = "has a rule over all rows, and is written shard by shard"
                yield Problem(array.field.path, message, "make it an index array", "schema")


def _broken_index(
    plan: Plan, specs: ArraySpecs, samples: int, index: Sequence[tuple[Field, IndexValues]]
) -> Iterator[Problem]:
    shapes = {array.field.path: array.shape for array in plan.arrays()}
    shapes[""] = (samples,)
    for field, values in index:
        spec = specs.of(field.path, shapes)
        if spec.bounds_values:
            for error in spec.value_errors(values[0 : len(values)], shapes.__getitem__):
                yield Problem(field.path, error, kind="schema")
