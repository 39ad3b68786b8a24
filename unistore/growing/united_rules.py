"""The rules of the arrays of several stores together, from the rules that their roots record."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

from unistore.errors import InputError, Problem
from unistore.schemas.array_specs import ArraySpec
from unistore.schemas.declared_rules import stated
from unistore.schemas.table_rows import table_of_offsets
from unistore.store.joined import FIX

Rules = Mapping[str, ArraySpec]
RowShape = tuple[int | str | None, ...]


def united_rules(of_stores: Sequence[Rules]) -> dict[str, ArraySpec]:
    """Return the rule of each array that any of several stores has.

    A rule has the `beside`, `like` and `limits` of all stores, and allows the kinds, values and shapes that
    any of them allows: files may name a column with other bounds. One column counts rows of a table.

    Raises
    ------
    InputError
        If rules of an array differ in anything else. The problems name all of them.
    """
    by_path: dict[str, list[ArraySpec]] = defaultdict(list)
    counting = _counting_columns(of_stores)
    for of_store in of_stores:
        for path in of_store:
            by_path[path].append(_counted_by(counting, of_store, path))
    united = {path: _united(rules) for path, rules in by_path.items()}
    problems = []
    for path, rules in by_path.items():
        differing = _differing(rules)
        if differing:
            message = f"its rules differ between the parts: {', '.join(differing)}"
            problems.append(Problem(path, message, FIX, "compact"))
    if problems:
        raise InputError(problems)
    return united


def _counting_columns(of_stores: Sequence[Rules]) -> dict[str, str]:
    """Return the column that counts the rows of a table in all stores, by that which counts them in one."""
    columns: dict[str, str] = {}
    for path in {path for rules in of_stores for path in rules if table_of_offsets(path, rules)}:
        divided = {rules[path].offsets_of for rules in of_stores if path in rules}
        names = [column for column in divided if isinstance(column, str)]
        columns |= dict.fromkeys(names, min(names, default=""))
    return columns


def _counted_by(counting: Mapping[str, str], rules: Rules, path: str) -> ArraySpec:
    """Return the rule of an array in a store, which names the columns that count rows in all stores."""
    rule = rules[path]
    rows = rule.rows
    if rows is not None:
        rows = counting.get(rows[0], rows[0]), rows[1]
    elif counting.get(path, path) != path:
        rows = counting[path], 0
    divided = rule.offsets_of
    # other offsets divide a column of samples as it is
    if isinstance(divided, str) and (table_of_offsets(path, rules) or rules[divided].rows is None):
        divided = counting.get(divided, divided)
    return replace(rule, rows=rows, offsets_of=divided)


def _united(rules: Sequence[ArraySpec]) -> ArraySpec:
    """Return the first rule, with what the others list, and what they allow."""
    kinds = ""
    if all(rule.kinds for rule in rules):
        kinds = "".join(dict.fromkeys(chain.from_iterable(rule.kinds for rule in rules)))
    lowest = [rule.least for rule in rules if rule.least is not None]
    highest = [rule.most for rule in rules if rule.most is not None]
    return replace(
        rules[0],
        kinds=kinds,
        row_shape=_row_shape([rule.row_shape for rule in rules]),
        least=min(lowest) if len(lowest) == len(rules) else None,
        most=max(highest) if len(highest) == len(rules) else None,
        beside=tuple(dict.fromkeys(chain.from_iterable(rule.beside for rule in rules))),
        like=tuple(dict.fromkeys(chain.from_iterable(rule.like for rule in rules))),
        limits=tuple(dict.fromkeys(chain.from_iterable(rule.limits for rule in rules))),
    )


def _row_shape(shapes: Sequence[RowShape | None]) -> RowShape | None:
    """Return the extents that all shapes have, None for others. None: of any number of axes."""
    stated = [shape for shape in shapes if shape is not None]
    if len(stated) < len(shapes) or len(set(map(len, stated))) > 1:
        return None
    return tuple([axis[0] if len(set(axis)) == 1 else None for axis in zip(*stated, strict=True)])


def _differing(rules: Sequence[ArraySpec]) -> list[str]:
    """Return the names of the members in which rules of an array differ, and must not."""
    first, *others = [
        stated(replace(rule, kinds="", row_shape=None, least=None, most=None, beside=(), like=(), limits=()))
        for rule in rules
    ]
    names = {name for other in others for name in {**first, **other} if first.get(name) != other.get(name)}
    return sorted(names)
