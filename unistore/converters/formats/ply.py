"""PLY: vertices of meshes, of scans, and splats (G. Turk, "The PLY Polygon File Format", 1994)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unistore.converters.array import Array
from unistore.converters.claims import Claim, sure
from unistore.converters.common.faults import COPY_AGAIN, WRITE_AGAIN
from unistore.converters.formats.lazy import TextRows, mapped_records
from unistore.converters.opened import Format, OpenFile, SourceFile

_SHORT = {"char": "i1", "uchar": "u1", "short": "i2", "ushort": "u2", "int": "i4", "uint": "u4"}
_LONG = {"int8": "i1", "uint8": "u1", "int16": "i2", "uint16": "u2", "int32": "i4", "uint32": "u4"}
_TYPES = {**_SHORT, **_LONG, "float": "f4", "float32": "f4", "double": "f8", "float64": "f8"}
_ORDERS = {"binary_little_endian": "<", "binary_big_endian": ">", "ascii": "="}
_MAGIC = b"ply"
_MOST_HEADER = 1 << 20
_VERTEX = "vertex"
_LABELS = ".labels.ply"  # ending of the file beside a scan of ScanNet that holds the label of each vertex


class Element(NamedTuple):
    """An element of a file: its properties, and those of them that are lists."""

    name: str
    rows: int
    properties: list[tuple[str, str]]
    lists: list[str]


class Ply(Format):
    """Properties of the vertices by their names."""

    name = "ply"
    suffixes = (".ply",)

    def recognise(self, file: SourceFile) -> Claim:
        if file.head(5).split()[:1] == [_MAGIC]:
            return sure("begins with ply")
        raise file.wrong_beginning("with ply")

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[OpenFile]:
        opened = _opened(file)
        labels = file.path.name.removesuffix(".ply") + _LABELS
        if file.path.name.endswith(_LABELS) or not (file.path.parent / labels).is_file():
            yield opened
            return
        beside = file.beside(labels)
        of_labels = _opened(beside)
        label = of_labels.arrays["label"]
        if label.shape != opened.arrays["x"].shape:
            vertices = len(opened.arrays["x"])
            message = f"has {len(label):,} vertices, but {file.name} has {vertices:,}"
            raise beside.problem(message, COPY_AGAIN)
        yield replace(
            opened,
            arrays={**opened.arrays, "label": label},
            further=(beside,),
            memory=opened.memory + of_labels.memory,
        )


def labels_of(path: Path) -> Path | None:
    """Return the scan whose labels a file holds, by its name, or None."""
    name = path.name
    return path.with_name(f"{name.removesuffix(_LABELS)}.ply") if name.endswith(_LABELS) else None


def _opened(file: SourceFile) -> OpenFile:
    lines, start = _header(file)
    order = _order(file, lines)
    elements = _elements(file, lines)
    vertex_number = _vertex_number(file, elements)
    vertices = elements[vertex_number]
    names = [name for name, _ in vertices.properties]
    if len(set(names)) < len(names):
        raise file.problem("has two vertex properties with the same name", "rename one of them", "name")
    if not names and vertices.rows:
        raise file.problem("has vertices without properties", WRITE_AGAIN, "damaged")
    dtype = np.dtype([(name, order + form) for name, form in vertices.properties])
    other_elements = [element for element in elements if element is not vertices and element.rows]
    left_out = {element.name: "because only vertices are stored" for element in other_elements}
    metadata = {"comments": [" ".join(line[1:]) for line in lines if line[0] in ("comment", "obj_info")]}
    memory = 0
    columns: Mapping[str, Any]
    if order == "=":
        first = len(lines) + sum(element.rows for element in elements[:vertex_number])
        others = sum(element.rows for element in elements[vertex_number + 1 :])
        rows = TextRows(file, dtype, first, stated=vertices.rows, others=others)
        rows.check_size()
        memory = rows.memory
        columns = rows.columns()
    else:
        sizes = [element.rows * _size(element) for element in elements]
        file.check_size(start + sum(sizes))
        start += sum(sizes[:vertex_number])
        columns = mapped_records(file, dtype, start, vertices.rows)
    arrays = {name: Array(values) for name, values in columns.items()}
    return OpenFile(arrays, metadata, memory=memory, left_out=left_out)


def _vertex_number(file: SourceFile, elements: Sequence[Element]) -> int:
    """Return which element holds the vertices, and refuse those that cannot be read."""
    kinds = [element.name for element in elements]
    if _VERTEX not in kinds:
        raise file.problem("has no vertices", "skip it with --exclude", "missing")
    number = kinds.index(_VERTEX)
    lists = elements[number].lists
    if lists:
        message = f"has vertex properties that are lists, which are not supported: {', '.join(lists)}"
        raise file.problem(message, "write the file again without these properties")
    for element in elements[:number]:
        if element.lists:
            message = f"has the element '{element.name}', with lists, before its vertices"
            raise file.problem(message, "write the vertices first")
    return number


def _size(element: Element) -> int:
    """Return the bytes of one of an element, at least: a list may be empty."""
    return sum(np.dtype(form).itemsize for _, form in element.properties)


def _header(file: SourceFile) -> tuple[list[list[str]], int]:
    """Return the words of each line, and the byte after the line ``end_header``."""
    head = file.head(_MOST_HEADER)
    # Lines end as the first one does: some end with a carriage return alone
    has_line_feed = head[len(_MAGIC) :].lstrip(b" \t\r").startswith(b"\n")
    ending = b"\n" if has_line_feed else b"\r"
    lines: list[list[str]] = []
    start = 0
    while (stop := head.find(ending, start)) >= 0:
        lines.append(head[start:stop].decode("utf-8", "backslashreplace").split() or [""])
        start = stop + 1
        if lines[-1] == ["end_header"]:
            if ending == b"\r" and ["format", "ascii", "1.0"] in lines:
                message = "is text whose lines end with a carriage return alone, which is not supported"
                raise file.problem(message, "save it with line feeds")
            return lines, start
    raise file.problem("is truncated: its header has no end_header", COPY_AGAIN, "truncated")


def _order(file: SourceFile, lines: Sequence[Sequence[str]]) -> str:
    form = next((line[1:] for line in lines if line[0] == "format"), [])
    if list(form[1:]) != ["1.0"] or form[0] not in _ORDERS:
        raise file.problem(
            f"has the format {' '.join(form)!r}, but {', '.join(_ORDERS)} 1.0 are supported", WRITE_AGAIN
        )
    return _ORDERS[form[0]]


def _elements(file: SourceFile, lines: Sequence[Sequence[str]]) -> list[Element]:
    elements: list[Element] = []
    for number, line in enumerate(lines, 1):
        match line:
            case ["element", name, count] if count.isdecimal():
                elements.append(Element(name, int(count), [], []))
            case ["property", "list", size, _, name] if elements and size in _TYPES:
                elements[-1].properties.append((name, _TYPES[size]))
                elements[-1].lists.append(name)
            case ["property", form, name] if elements and form in _TYPES:
                elements[-1].properties.append((name, _TYPES[form]))
            case ["element" | "property", *_]:
                message = f"line {number} of its header, {' '.join(line)!r}, is not valid"
                raise file.problem(message, WRITE_AGAIN)
    return elements
