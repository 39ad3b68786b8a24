"""Attributes that say to machines how the arrays of a store belong together, as their rules do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from unistore.schemas.array_specs import SAMPLES, SOURCE_BOUNDS, ArraySpec, Limit
from unistore.schemas.table_rows import counting_array
from unistore.system.types import JsonObject


def relations(axes: Mapping[str, Sequence[str]], rules: Mapping[str, ArraySpec]) -> dict[str, JsonObject]:
    """Return attributes by path: ``ragged``, ``offsets_of``, ``padded``, ``indexes``, ``encoding``."""
    of_same_rows = defaultdict(list)
    for path in axes:
        of_same_rows[counting_array(path, rules)].append(path)
    attributes: dict[str, JsonObject] = defaultdict(dict)
    # Rows are told by samples where they can be, else by sources
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
