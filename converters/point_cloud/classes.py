"""Classes by folder: ``chair/train/0001.npy`` has class ``chair``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

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


def have_labels(layouts: Iterable[Layout]) -> bool:
    """Whether any layout has labels or segments of its own, so that no folder is a label."""
    return any(
        each.segmented is not None or any(map(is_label, (*each.columns, *each.segment_columns)))
        for each in layouts
    )


def with_folder_label(layout: Layout, of_class: tuple[int, str] | None) -> Layout:
    """The layout with the class of its folder as the label of its segment."""
    if of_class is None:
        return layout
    return replace(layout, segment_columns={**layout.segment_columns, LABEL: (of_class[1], Column(_DTYPE))})


def class_notes(names: Collection[str]) -> list[str]:
    """Remark that labels are the classes of folders, if they are."""
    if not names:
        return []
    classes = sorted(names)
    more = f", … ({len(classes)} in all)" if len(classes) > _SHOWN else ""
    listed = printable(", ".join(classes[:_SHOWN]))
    return [
        f"labels of segments are their folders, one a class: {listed}{more}; --map label= leaves them out"
    ]
