"""The rows of tables and of their sources, and the attributes that relate arrays, all from the rules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence

from unistore.schemas.array_specs import SAMPLES, SOURCE_BOUNDS, ArraySpec, Limit
from unistore.system.types import JsonObject


def counting_array(path: str, rules: Mapping[str, ArraySpec]) -> str:
    """Follow rules from an array to the one that decides how many rows it has, or to `SAMPLES`."""
    while path in rules:
        rows = rules[path].rows
        if rows is None or rows[1] != 0:
            break
        path = rows[0]
    return path


def source_offsets(table: str) -> str:
    """Return the path of the offsets that divide the rows of a table by source."""
    return f"sources/{table}/offsets"


def table_of_offsets(path: str, paths: Collection[str]) -> str:
    """Return the table whose rows an array divides by source. Empty: the array is something else."""
    table = path.removeprefix("sources/").removesuffix("/offsets")
    is_text = path == SOURCE_BOUNDS or f"sources/{table}/data" in paths
    return "" if path != source_offsets(table) or is_text else table


def first_column(table: str, paths: Collection[str], rule_of: Callable[[str], ArraySpec]) -> str:
    """Return the path of the column that says how many rows a table has. Empty: it has no column.

    Parameters
    ----------
    table
        Name of the table.
    paths
        Paths of all arrays.
    rule_of
        Returns the rule of an array, which may have as many rows as its table, ``"clips/"``.
    """
    undecided = ""  # which has as many rows as the table has
    for path in _in_group(table, paths, rule_of):
        column = path
        rule = rule_of(column)
        while _is_column(rule):
            if rule.rows is None or not rule.rows[0].startswith(f"{table}/"):
                return column
            if rule.rows[0] == f"{table}/":
                undecided = undecided or column
                break
            column = rule.rows[0]
            rule = rule_of(column)
    return undecided


def columns_of(table: str, rules: Mapping[str, ArraySpec]) -> list[str]:
    """Return the paths of the columns of a table: the arrays in its group with a row for each of its rows."""
    first = first_column(table, rules, rules.__getitem__)
    counting = counting_array(first, rules)
    return [
        path
        for path in _in_group(table, rules, rules.__getitem__)
        if first and _is_column(rules[path]) and counting_array(path, rules) == counting
    ]


def relations(axes: Mapping[str, Sequence[str]], rules: Mapping[str, ArraySpec]) -> dict[str, JsonObject]:
    """Return attributes by path: ``ragged``, ``offsets_of``, ``padded``, ``indexes``, ``encoding``."""
    of_same_rows = defaultdict(list)
    for path in axes:
        of_same_rows[counting_array(path, rules)].append(path)
    attributes: dict[str, JsonObject] = defaultdict(dict)
    # Offsets of samples come before offsets of sources: the first ones that divide an array are named
    for path in sorted(axes, key=lambda path: path.startswith("sources/")):
        spec = rules[path]
        if isinstance(spec.offsets_of, Limit):
            attributes[path]["set_bits_of"] = spec.offsets_of.path
        elif spec.offsets_of is not None:
            attributes[path]["offsets_of"] = spec.offsets_of
            counting = counting_array(spec.offsets_of, rules)
            if counting == SAMPLES and spec.rows == (SOURCE_BOUNDS, 0):
                continue
            for divided in of_same_rows[counting]:
                attributes[divided].setdefault("ragged", {"offsets": path})
        if spec.indexes is not None:
            attributes[path]["indexes"] = spec.indexes[0].removesuffix("/offsets")
        for limit in spec.limits:
            if limit.path not in axes:  # of the store of a side table
                continue
            padded_axes = [axes[limit.path][axis] for axis in limit.axes]
            extents = attributes[limit.path].setdefault("padded", [])
            extents.append({"extent": path, "axes": padded_axes})
        if spec.text:
            attributes[path]["encoding"] = "utf-8"
    return attributes


def _is_column(rule: ArraySpec) -> bool:
    counts_others = rule.offsets_of is not None or rule.text
    return not counts_others and (rule.rows is None or rule.rows[1] == 0)


def _in_group(table: str, paths: Collection[str], rule_of: Callable[[str], ArraySpec]) -> list[str]:
    """Return the arrays in the group of a table, without those of tables, texts and ragged columns in it."""
    inside = sorted([path for path in paths if path.startswith(f"{table}/")])
    others = {
        f"{path.removeprefix('sources/').removesuffix('offsets')}"
        for path in paths
        if path.startswith(f"sources/{table}/")
    }
    for path in inside:
        group = path.removesuffix("data")
        if group != path and f"{group}offsets" in paths and rule_of(f"{group}offsets").offsets_of == path:
            others.add(group)
    groups = tuple(others.difference([f"{table}/"]))
    return [path for path in inside if not path.startswith(groups)]
