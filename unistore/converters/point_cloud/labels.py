"""Labels of point clouds: columns of classes, and folders that are named after a class."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from unistore.converters.point_cloud.names import LABEL, ColumnPlace, Described, FileLayout, is_label
from unistore.plugin import split_of

# Names with numbers are scenes, areas or parts, not classes, except for the synset numbers of ShapeNet.
_CLASS = re.compile(r"[^\d]+|\d{8}")


def folder_classes(sources: Sequence[str]) -> list[tuple[int, str] | None]:
    """Return number and name of the class of each source, by the folder in its name.

    Classes are numbered in the order of their names. All are None unless there are at least two class
    folders, one of them with several files. Folders named after a split are skipped:
    ``chair/train/0001.npy`` is a chair.
    """
    class_of_source = [_class_of(source.rpartition("/")[0]) for source in sources]
    names = sorted({name for name in class_of_source if name is not None})
    if None in class_of_source or len(names) < 2 or max(Counter(class_of_source).values()) < 2:
        return [None] * len(sources)
    numbers = {name: number for number, name in enumerate(names)}
    return [(numbers[name], name) for name in class_of_source if name is not None]


@lru_cache(1024)
def _class_of(folder: str) -> str | None:
    folders = folder.split("/") if folder else ()
    name = next((name for name in folders if split_of(f"{name}/a") is None), None)
    return name if name is not None and _CLASS.fullmatch(name) else None


def have_labels(files: Iterable[Described]) -> bool:
    """Return whether any file has labels or segments of its own, so that no folder is a label."""
    return any(file.segmented is not None or any(map(is_label, file.layout.places)) for file in files)


def with_folder_label(file: Described, of_class: tuple[int, str] | None) -> Described:
    """Return what is known of a file with the class of its folder as the label of its segment."""
    if of_class is None:
        return file
    _, name = of_class
    columns = {**file.layout.segment_columns, LABEL: ColumnPlace(name, "<i4")}
    return replace(file, layout=file.layout._replace(segment_columns=columns), label=of_class)


def with_label_dtype(layout: FileLayout, dtype: str) -> FileLayout:
    """Return the same layout whose labels are stored in a dtype."""
    return layout._replace(
        columns=_with_label_dtype(layout.columns, dtype),
        segment_columns=_with_label_dtype(layout.segment_columns, dtype),
    )


def _with_label_dtype(places: Mapping[str, ColumnPlace], dtype: str) -> dict[str, ColumnPlace]:
    return {key: place._replace(dtype=dtype) if is_label(key) else place for key, place in places.items()}
