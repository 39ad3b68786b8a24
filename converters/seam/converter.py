"""Runs a family of `unistore.converters.plugin` as the core runs every converter."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.columns import Column as Form
from unistore.converters.common.columns import Merged, reconcile
from unistore.converters.common.exclusion import Exclusion
from unistore.converters.files.formats import has_ending, lfs_pointer_problem
from unistore.converters.files.paths import expanded, relative_names, split_of
from unistore.converters.parts import Candidate, Found, LeftOut, Part, Parts, Scanned, Taken, Verdict
from unistore.converters.plugin import (
    Claim,
    Cut,
    Facts,
    Family,
    Format,
    Head,
    Opened,
    Schema,
    SourceFile,
    maybe,
    no,
    sure,
)
from unistore.converters.protocol import Converter, Emit, Finalized, Scan, Sources
from unistore.converters.protocol import Facts as IndexFacts
from unistore.converters.seam.faults import calling
from unistore.converters.seam.formats import BLOCK_BYTES, formats_of
from unistore.converters.seam.specs import FACTS, FORMAT, field_of
from unistore.errors import InputError, Problem, first_few
from unistore.schemas.tables import Field, IndexValues, Table, bounds_field, offsets_of, text_arrays
from unistore.system.sizes import count_of

_MEMORY = 4 * BLOCK_BYTES
"""Bytes that a step takes beside the rows of a shard."""


@dataclass(frozen=True, kw_only=True)
class ScannedHead(Scanned):
    """What the header of one file says; `head` is None for a file that is none of the family's."""

    head: Head | None
    reason: str = ""
    further: tuple[Path, ...] = ()
    forward_only: bool = False
    memory: int = 0


class SeamConverter(Converter):
    """Converts the files of a family."""

    def __init__(self, plugin: Family) -> None:
        self.plugin = plugin
        self.exclude = plugin.exclude
        self.formats: tuple[Format, ...] = formats_of(plugin.formats)

    def __reduce__(self) -> tuple[Any, ...]:
        return SeamConverter, (self.plugin,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SeamConverter) and other.plugin == self.plugin

    def __hash__(self) -> int:
        return hash(type(self.plugin))

    def excluding(self, names: tuple[str, ...]) -> SeamConverter:
        """Return the same converter that leaves out these names."""
        return SeamConverter(replace(self.plugin, exclude=names))

    @property
    def family(self) -> str:  # type: ignore[override]  # a ClassVar of other converters
        """Name of the family."""
        return self.plugin.name

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Endings of its files."""
        return tuple(dict.fromkeys(suffix for one in self.formats for suffix in one.suffixes))

    def look(self, file: Candidate) -> Verdict:
        """Ask the formats, and of an opened file the family."""
        if not has_ending(file.path, self.suffixes):
            return LeftOut(f"is no {', '.join(self.suffixes)} file")
        claim = self._claim(SourceFile(file.path, file.path.name, file.roots))
        if claim.certainty == "sure":
            return Taken(self.plugin.name, claim.reason)
        return LeftOut(claim.reason)

    def _claim(self, file: SourceFile) -> Claim:
        opening, claim = self._recognised(file)
        if opening is None or claim.certainty == "no":
            return claim
        with self._open(opening, file) as opened, calling(self.plugin, file.name):
            matched = self.plugin.match(head_of(opening, file, opened))
        # A family is as sure of a file as its format.
        if matched.certainty == "no":
            return matched
        reason = f"{claim.reason} and {matched.reason}"
        is_sure = "maybe" not in (claim.certainty, matched.certainty)
        return sure(reason) if is_sure else maybe(reason)

    def _recognised(self, file: SourceFile) -> tuple[Format | None, Claim]:
        """The format that claims a file, and its claim; else the reason of the last that does not."""
        check_whole(file)
        claim = no(f"is of no format of {self.plugin.name}")
        for candidate in self.formats:
            if has_ending(file.path, candidate.suffixes):
                with calling(candidate, file.name):
                    claim = candidate.recognise(file)
                if claim.certainty != "no":
                    return candidate, claim
        return None, claim

    @contextmanager
    def _open(self, opening: Format, file: SourceFile) -> Iterator[Opened]:
        with calling(opening, file.name), opening.open(file) as opened:
            yield opened

    def find(self, paths: Sequence[Path], exclusion: Exclusion) -> Found:
        """Group the files into sources, by the family's `group`."""
        files = [path for path in expanded(paths, self.suffixes) if not exclusion.is_other_family(path)]
        roots = tuple(paths)
        named = zip(relative_names(files), files, strict=True)
        sources = [SourceFile(Path(path), name, roots) for name, path in named]
        with calling(self.plugin, ", ".join(map(str, paths))):
            chosen = list(self.plugin.group(sources))
        parts = Parts(roots=roots)
        for file in chosen:
            parts.add(file.name, (file.path,))
        grouped = {file.path for file in chosen}
        left_out = [(file.path, "in no source") for file in sources if file.path not in grouped]
        return Found(parts=parts, left_out=left_out)

    def scan(self, part: Part) -> ScannedHead:
        """Read the header of a file, and check its arrays against the schema."""
        file = SourceFile(part.files[0], part.name, part.roots)
        opening, claim = self._recognised(file)
        if opening is None:
            return self._not_ours(file, claim)
        with self._open(opening, file) as opened:
            head = head_of(opening, file, opened)
            with calling(self.plugin, file.name):
                matched = self.plugin.match(head)
            if matched.certainty == "no":
                return self._not_ours(file, matched)
            problems = list(_problems(self.plugin.schema, head))
            if problems:
                raise InputError(problems)
            return ScannedHead(
                head=head,
                further=tuple(other.path for other in opened.further),
                forward_only=opened.forward_only,
                memory=opened.memory,
                certain="maybe" not in (claim.certainty, matched.certainty),
            )

    def _not_ours(self, file: SourceFile, claim: Claim) -> ScannedHead:
        """Leave out a file of a folder; one that the user named is a problem."""
        if file.path in map(Path.resolve, file.roots):
            raise file.problem(claim.reason, "leave it out", "missing")
        return ScannedHead(head=None, reason=claim.reason)

    def gather(self, parts: Parts, scanned: Sequence[ScannedHead]) -> Scan:
        """Merge the columns of all files."""
        taken = [number for number, one in enumerate(scanned) if one.head is not None]
        if not taken:
            reasons = first_few([f"{one.reason}" for one in scanned])
            raise InputError(Problem("files", f"are none of {self.plugin.name}: {reasons}", kind="missing"))
        files_of = list(parts.files())
        heads = [one.head for one in scanned if one.head is not None]
        with calling(self.plugin, count_of(len(heads), "file")):
            run = max(1, self.plugin.typical_rows(heads))
        schema = self.plugin.schema
        forms = [(head.file.name, _forms(schema, head)) for head in heads]
        merged, problems = reconcile(forms, "exact")
        if problems:
            raise InputError(problems)
        spilled = any(one.forward_only for one in scanned)
        sources = Sources()
        for number, head in zip(taken, heads, strict=True):
            one, name = scanned[number], parts.names[number]
            rows = _row_count(schema, head)
            sources.add(
                name=name,
                files=(*files_of[number], *map(str, one.further)),
                rows={} if spilled else {schema.table: rows},
                split=split_of(name),
                detail={"format": head.format, "facts": dict(head.facts), "rows": rows},
                memory=one.memory + _MEMORY,
                reading=one.memory,
            )
        table = Table(name=schema.table, fields=_fields(schema, merged, run), spilled=spilled)
        total = sum(detail["rows"] for detail in sources.details)
        return Scan(
            family=self.plugin.name,
            sources=sources,
            tables=(table,),
            sample_table=schema.samples or schema.table,
            main_table=schema.table,
            options=self.plugin.recorded(),
            estimated_rows={schema.table: total} if spilled else {},
            needs_facts=bool(schema.samples),
            notes=(f"{total:,} {schema.table} of {count_of(len(heads), 'file')}", *_left_out(parts, scanned)),
        )

    def derive(self, scan: Scan, source: int, emit: Emit, folder: Path | None) -> IndexFacts:
        """Cut a file into samples; of a forward-only one, all rows are emitted meanwhile."""
        table = scan.tables[0]
        name, rows = scan.sources.names[source], scan.sources.details[source]["rows"]
        schema = self.plugin.schema
        facts: dict[str, NDArray[Any]] = {}
        with self._reopened(scan, source) as opened:
            if schema.samples:
                with calling(self.plugin, name):
                    cuts = list(self.plugin.cut(opened))
                facts = _facts_of(cuts, schema, name, rows)
            if table.spilled:
                self._emit(opened, name, rows, table, emit)
        return facts

    def _emit(self, opened: Opened, name: str, rows: int, table: Table, emit: Emit) -> None:
        row_bytes = sum(field.row_bytes for field in table.fields)
        step = max(1, BLOCK_BYTES // max(1, row_bytes))
        for lo in range(0, rows, step):
            hi = min(rows, lo + step)
            with calling(self.plugin, name):
                block = self.plugin.rows(opened, lo, hi)
            for column in table.columns():
                emit(table.name, column, self._checked(block, column, hi - lo, name))

    def finalize(self, scan: Scan, facts: Sequence[IndexFacts]) -> Finalized:
        """Offsets and numbers of the samples, and what files say."""
        schema = self.plugin.schema
        details = list(scan.sources.details)
        arrays: list[tuple[Field, IndexValues]] = []
        if schema.samples:
            counts = [np.asarray(one["rows"], np.int64) for one in facts]
            per_file = np.array([len(count) for count in counts], np.int64)
            arrays += _sample_arrays(schema, facts, counts, per_file)
            samples = int(per_file.sum())
        else:
            per_file = np.array([detail["rows"] for detail in details], np.int64)
            samples = int(per_file.sum())
        arrays += _source_arrays(schema, details)
        spilled = tuple(table for table in scan.tables if table.spilled)
        return Finalized(
            arrays=arrays,
            spilled=spilled,
            samples=samples,
            sample_source=np.arange(len(per_file)),
            sample_runs=per_file,
        )

    def read(
        self, scan: Scan, table: str, source: int, lo: int, hi: int, out: Mapping[str, NDArray[Any]]
    ) -> None:
        """Read rows of a file."""
        name = scan.sources.names[source]
        with self._reopened(scan, source) as opened, calling(self.plugin, name):
            block = self.plugin.rows(opened, lo, hi)
            for column, values in out.items():
                values[...] = self._checked(block, column, hi - lo, name)

    def _checked(self, block: Mapping[str, Any], column: str, rows: int, name: str) -> NDArray[Any]:
        """A column of a block; an author who forgets one, or rows of it, is told."""
        if column not in block or len(block[column]) != rows:
            found = "no rows" if column not in block else f"{len(block[column])} rows"
            message = f"{type(self.plugin).__qualname__}.rows gave {found} of {column}, expected {rows}"
            raise InputError(
                Problem(name, message, f"tell who wrote {type(self.plugin).__module__}", "plugin")
            )
        return np.asarray(block[column])

    @contextmanager
    def _reopened(self, scan: Scan, source: int) -> Iterator[Opened]:
        found = scan.sources[source]
        (opening,) = (one for one in self.formats if one.name == found.detail["format"])
        # The scan has named every file that it may read.
        with self._open(opening, SourceFile(found.path, found.name, found.files)) as opened:
            yield opened


def check_whole(file: SourceFile) -> None:
    """Refuse an empty file and a Git LFS pointer, which no format recognises."""
    if file.size == 0:
        message = "is empty (0 bytes)"
        raise file.problem(message, "copy or write it again", "empty")
    pointer = lfs_pointer_problem(file.head(64), file.name)
    if pointer is not None:
        raise InputError(pointer)


def _left_out(parts: Parts, scanned: Sequence[ScannedHead]) -> Iterator[str]:
    """A remark on files of the folder that are none of the family's."""
    left_out = [
        f"{name} {one.reason}" for name, one in zip(parts.names, scanned, strict=True) if one.head is None
    ]
    if left_out:
        yield f"left out: {first_few(left_out)}"


def head_of(opening: Format, file: SourceFile, opened: Opened) -> Head:
    """What an open file holds."""
    arrays = {name: (array.shape, array.dtype) for name, array in opened.arrays.items()}
    return Head(file, opening.name, arrays, opened.facts)


def _problems(schema: Schema, head: Head) -> Iterator[Problem]:
    """Arrays of a file that are missing, or are not what the schema says."""
    lengths = {}
    for name, column in schema.columns.items():
        key = schema.source_of(name)
        if key not in head.arrays:
            yield Problem(head.file.name, f"holds no {key}", "leave the file out", "missing")
            continue
        shape, dtype = head.arrays[key]
        axes = 1 + len(column.axes)
        if dtype.kind not in column.kinds or len(shape) != axes:
            message = f"is {dtype} {shape}, expected {axes} axes of kind {' or '.join(column.kinds)}"
            cure = "write it again, or leave it out"
            yield Problem(head.file.name, message, cure, "dtype", dataset=key)
            continue
        lengths[key] = shape[0]
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{key} {length}" for key, length in lengths.items())
        yield Problem(
            head.file.name, f"holds arrays of several lengths: {listed}", "write it again", "length"
        )
    for name, column in schema.per_source.items():
        key = column.source or name
        value = head.facts.get(key)
        if not isinstance(value, (int, float)):
            yield Problem(head.file.name, f"says no {key}, but {value!r}", "write it again", "missing")


def _forms(schema: Schema, head: Head) -> dict[str, Form]:
    forms = {}
    for name in schema.columns:
        shape, dtype = head.arrays[schema.source_of(name)]
        forms[name] = Form(dtype.str, shape[1:])
    return forms


def _row_count(schema: Schema, head: Head) -> int:
    first = next(iter(schema.columns))
    return head.arrays[schema.source_of(first)][0][0]


def _fields(schema: Schema, merged: Mapping[str, Merged], run: int) -> tuple[Field, ...]:
    axis = schema.table.removesuffix("s")
    return tuple(
        field_of(
            f"{schema.table}/{name}",
            column,
            axis,
            merged[name].dtype,
            merged[name].row_shape,
            run,
            merged[name].attributes,
        )
        for name, column in schema.columns.items()
    )


def _facts_of(cuts: Sequence[Cut], schema: Schema, name: str, rows: int) -> dict[str, NDArray[Any]]:
    """Rows and numbers of the samples of a file."""
    counts = np.array([cut.rows for cut in cuts], np.int64)
    if (counts < 0).any() or counts.sum() != rows:
        message = f"is cut into {counts.sum()} rows, and has {rows}"
        raise InputError(Problem(name, message, "tell who wrote its family", "plugin"))
    facts = {"rows": counts}
    for key, column in schema.per_sample.items():
        dtype = np.float64 if column.kinds == "f" else np.int64
        facts[f"number/{key}"] = np.array([cut.numbers[key] for cut in cuts], dtype)
    return facts


def _sample_arrays(
    schema: Schema,
    facts: Sequence[IndexFacts],
    counts: Sequence[NDArray[np.int64]],
    per_file: NDArray[np.int64],
) -> Iterator[tuple[Field, NDArray[Any]]]:
    axis = schema.samples.removesuffix("s")
    what = f"{schema.table} of {axis} i are rows offsets[i] to offsets[i + 1] - 1"
    lengths = np.concatenate([np.zeros(0, np.int64), *counts])
    yield bounds_field(f"{schema.samples}/offsets", axis, what), offsets_of(lengths)
    numbers = np.repeat(np.arange(len(per_file), dtype=np.int32), per_file)
    described = Field(
        path=f"{schema.samples}/source", dtype="int32", axes=(axis,), description="Source of the sample"
    )
    yield described, numbers
    for name, column in schema.per_sample.items():
        values = np.concatenate([np.asarray(one[f"number/{name}"]) for one in facts])
        yield field_of(f"{schema.samples}/{name}", column, axis, values.dtype.name), values


def _source_arrays(
    schema: Schema, details: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[Field, IndexValues]]:
    for name, column in schema.per_source.items():
        dtype = "float64" if column.kinds == "f" else "int64"
        values = np.array([detail["facts"][column.source or name] for detail in details], dtype)
        yield field_of(f"sources/{name}", column, "source", dtype), values
    facts: list[Facts] = [detail["facts"] for detail in details]
    texts = [json.dumps(one, sort_keys=True) for one in facts]
    yield from text_arrays(FACTS, texts, axis="source", description="What the file says beside its arrays")
    kinds = [detail["format"] for detail in details]
    yield from text_arrays(FORMAT, kinds, axis="source", description="Format of the file")
