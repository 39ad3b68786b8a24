"""Classes by folder: ``chair/train/0001.npy`` has class ``chair``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from unistore.converters.common.columns import Column
from unistore.converters.files.paths import split_of
from unistore.converters.parts import Part
from unistore.converters.point_cloud.derive import is_label
from unistore.converters.point_cloud.source import LABEL, Layout
from unistore.errors import printable

_CLASS = re.compile(r"[^\d]+|\d{8}")
"""Names with numbers are scenes, areas or parts, not classes, except for the synset numbers of ShapeNet."""
_DTYPE = "<i4"
_SHOWN = 8


def folder_classes(parts: Sequence[Part]) -> list[tuple[int, str] | None]:
    """Number and name of the class of each part; numbers follow the sorted names.

    None for all parts unless there are at least two class folders, one of them with several files. Folders
    named after a split are skipped.
    """
    named = [_class_of(part) for part in parts]
    names = sorted({name for name in named if name is not None})
    if None in named or len(names) < 2 or max(Counter(named).values()) < 2:
        return [None] * len(parts)
    return [(names.index(name), name) for name in named if name is not None]


def _class_of(part: Part) -> str | None:
    *folders, _ = part.name.split("/")
    found = next((each for each in folders if split_of(f"{each}/a") is None), None)
    return found if found is not None and _CLASS.fullmatch(found) else None


def with_folder_labels(
    layouts: Sequence[Layout], classes: Sequence[tuple[int, str] | None], mapping: Mapping[str, str]
) -> list[Layout]:
    """Add the class of its folder to each layout as the label of its segment.

    Not if any layout has labels or segments, or ``--map label=`` leaves the label out.
    """
    own = {key for each in layouts for key in (*each.columns, *each.segment_columns)}
    segmented = any(each.segmented is not None for each in layouts)
    if segmented or LABEL in mapping or any(map(is_label, own)):
        return list(layouts)
    return [
        each
        if of_class is None
        else replace(each, segment_columns={**each.segment_columns, LABEL: (of_class[1], Column(_DTYPE))})
        for each, of_class in zip(layouts, classes, strict=True)
    ]


def class_notes(details: Sequence[Mapping[str, Any]]) -> list[str]:
    """Remark that labels are the classes of folders, if they are."""
    names = [detail["class"][1] for detail in details if "class" in detail]
    if not names:
        return []
    classes = sorted(set(names))
    more = f", … ({len(classes)} in all)" if len(classes) > _SHOWN else ""
    listed = printable(", ".join(classes[:_SHOWN]))
    return [
        f"labels of segments are their folders, one a class: {listed}{more}; --map label= leaves them out"
    ]
