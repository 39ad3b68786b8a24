"""What every converter promises: `convert_in_memory` drives one, `check_contract` asserts the promises."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.programs import printed
from unistore.converters.adapter.converter import Converter
from unistore.converters.protocol import Finalized, Scan, SourceArrays
from unistore.converters.source_scan import scan_sources
from unistore.schemas.tables import Field, Table, name_problem

FORBIDDEN = (
    "torch",
    "dask",
    "distributed",
    "zarr",
    "unistore.store",
    "unistore.zarr3",
    "unistore.conversion",
)
GUARD = 3


@dataclass
class Converted:
    """Everything one conversion would write, by path of the array."""

    scan: Scan
    finalized: Finalized
    prepared: list[SourceArrays]
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    fields: dict[str, Field] = field(default_factory=dict)
    rows: dict[str, list[int]] = field(default_factory=dict)
    """Rows of each table, one entry a source."""


Spilled = dict[tuple[str, str], list[NDArray[Any]]]
"""Runs of rows of one dtype, by table and column."""


def _derive(converter: Converter, scan: Scan, source: int) -> tuple[SourceArrays, Spilled]:
    pieces: dict[tuple[str, str], list[NDArray[Any]]] = {}

    def emit(table: str, column: str, rows: NDArray[Any]) -> None:
        pieces.setdefault((table, column), []).append(np.array(rows))

    prepared = converter.derive(scan, source, emit, None)
    spilled = {}
    for key, blocks in pieces.items():
        shapes = {block.shape[1:] for block in blocks}
        assert len(shapes) == 1, f"{key} was emitted in several shapes: {shapes}"
        runs = groupby(blocks, lambda block: block.dtype.str)
        spilled[key] = [np.concatenate([*run]) for _, run in runs]
    buffer = io.BytesIO()
    np.savez(buffer, **{name: np.asarray(value) for name, value in prepared.items()})
    buffer.seek(0)
    with np.load(buffer, allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}, spilled


def _guarded(field: Field, rows: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """An output of `rows` rows inside a larger block whose rows around it must stay as they are."""
    whole = np.full((rows + 2 * GUARD, *field.row_shape), 77, dtype=field.dtype)
    out = whole[GUARD : GUARD + rows]
    out[...] = field.fill
    return whole, out


def _assert_guards(whole: NDArray[Any]) -> None:
    untouched = np.full_like(whole[:GUARD], 77)
    np.testing.assert_array_equal(whole[:GUARD], untouched, "rows before the output were written")
    np.testing.assert_array_equal(
        whole[len(whole) - GUARD :], untouched, "rows behind the output were written"
    )


def _read(
    converter: Converter, scan: Scan, table: Table, source: int, lo: int, hi: int
) -> dict[str, NDArray[Any]]:
    blocks = {column: _guarded(form, hi - lo) for column, form in table.columns().items()}
    converter.read(scan, table.name, source, lo, hi, {column: out for column, (_, out) in blocks.items()})
    for whole, _ in blocks.values():
        _assert_guards(whole)
    return {column: out for column, (_, out) in blocks.items()}


def _pack(
    converter: Converter, scan: Scan, table: Table, column: str, source: int, rows: NDArray[Any]
) -> NDArray[Any]:
    form = table.columns()[column]
    assert rows.shape[1:] == form.row_shape, (
        f"{form.path}: spilled {rows.shape[1:]}, finalized {form.row_shape}"
    )
    whole, out = _guarded(form, len(rows))
    converter.pack(scan, table, column, source, rows, out)
    _assert_guards(whole)
    return out


def _joined(form: Field, blocks: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate([np.empty((0, *form.row_shape), form.dtype), *blocks])


def convert_in_memory(converter: Converter, paths: Sequence[Path]) -> Converted:
    """Scan, derive, finalize, read or pack all rows."""
    scan = pickle.loads(pickle.dumps(scan_sources(converter, paths)))
    sources = range(len(scan.sources))
    derived = [_derive(converter, scan, source) for source in sources] if _is_derived(scan) else []
    prepared = [arrays for arrays, _ in derived]
    finalized = converter.finalize(scan, prepared)
    result = Converted(scan, finalized, prepared)
    for table in [*(table for table in scan.tables if not table.spilled), *finalized.direct]:
        rows = finalized.rows.get(table.name) or [source.rows.get(table.name, 0) for source in scan.sources]
        blocks = [_read(converter, scan, table, source, 0, rows[source]) for source in sources]
        result.rows[table.name] = list(rows)
        for column, form in table.columns().items():
            result.fields[form.path] = form
            result.arrays[form.path] = _joined(form, [block[column] for block in blocks])
    for table in finalized.spilled:
        for column, form in table.columns().items():
            spilled = [pieces[table.name, column] for _, pieces in derived]
            result.fields[form.path] = form
            counts = [sum(map(len, runs)) for runs in spilled]
            assert result.rows.setdefault(table.name, counts) == counts, f"{form.path}: ragged columns"
            packed = [
                _pack(converter, scan, table, column, source, rows)
                for source, runs in enumerate(spilled)
                for rows in runs
            ]
            result.arrays[form.path] = _joined(form, packed)
    for form, values in finalized.arrays:
        assert form.path not in result.arrays, f"{form.path} is given twice"
        result.fields[form.path], result.arrays[form.path] = form, values[:]
    return result


def _is_derived(scan: Scan) -> bool:
    return scan.needs_prepare or any(table.spilled for table in scan.tables)


def _check_json(scan: Scan) -> None:
    details = [source.detail for source in scan.sources]
    for what in (scan.options, *(detail for detail in details if isinstance(detail, Mapping))):
        assert json.loads(json.dumps(what)) == what, f"not plain JSON: {what!r}"
    for detail in details:
        assert json.dumps(pickle.loads(pickle.dumps(detail))) == json.dumps(detail)
    names = [source.name for source in scan.sources]
    assert len(set(names)) == len(names), f"source names are not unique: {names}"
    assert all(name and not name.startswith("/") and ".." not in name.split("/") for name in names), names
    assert all(isinstance(note, str) and "\n" not in note for note in scan.notes), scan.notes


def _check_fields(converted: Converted) -> None:
    for path, form in converted.fields.items():
        values = converted.arrays[path]
        assert np.dtype(form.dtype).name == form.dtype, f"{path}: dtype {form.dtype!r} is no native name"
        assert values.dtype == np.dtype(form.dtype), f"{path}: {values.dtype}, field says {form.dtype}"
        assert values.shape[1:] == form.row_shape, f"{path}: {values.shape[1:]}, field says {form.row_shape}"
        assert len(form.axes) == values.ndim, f"{path}: axes {form.axes} for {values.ndim} dimensions"
        assert name_problem(path) is None, f"{path}: {name_problem(path)}"
        assert form.description, f"{path} has no description"
        json.dumps(dict(form.attributes))
    scan = converted.scan
    tables = {*(table.name for table in scan.tables), *(table.name for table in converted.finalized.direct)}
    assert scan.main_table in tables


def _check_samples(converted: Converted) -> None:
    finalized = converted.finalized
    runs = finalized.sample_runs
    assert finalized.samples == (len(finalized.sample_source) if runs is None else runs.sum())
    assert runs is None or len(runs) == len(finalized.sample_source)
    if finalized.samples:
        assert 0 <= min(finalized.sample_source) <= max(finalized.sample_source) < len(converted.scan.sources)
    if finalized.splits is not None:
        assert finalized.splits.dtype == np.uint8
        assert len(finalized.splits) == finalized.samples
        assert finalized.samples == 0 or finalized.splits.max() < len(finalized.split_names)
    json.dumps({path: dict(attributes) for path, attributes in finalized.groups.items()})


def _check_ranges(converter: Converter, converted: Converted) -> None:
    scan, finalized = converted.scan, converted.finalized
    direct = [*(table for table in scan.tables if not table.spilled), *finalized.direct]
    random = np.random.default_rng(5)
    for table in direct:
        first = 0
        for source, rows in enumerate(converted.rows[table.name]):
            bounds = random.integers(0, rows + 1, (3, 2))
            for lo, hi in [(0, 0), (rows, rows), (0, min(1, rows)), *np.sort(bounds, axis=1).tolist()]:
                part = _read(converter, scan, table, source, lo, hi)
                for column, form in table.columns().items():
                    whole = converted.arrays[form.path][first + lo : first + hi]
                    np.testing.assert_array_equal(part[column], whole, f"{form.path} rows {lo}:{hi}")
            first += rows


def _check_again(converter: Converter, paths: Sequence[Path], converted: Converted) -> None:
    again = convert_in_memory(pickle.loads(pickle.dumps(converter)), paths)
    assert again.scan == converted.scan, "the scan differs from time to time"
    assert again.finalized.spilled == converted.finalized.spilled
    assert list(again.arrays) == list(converted.arrays)
    for path, values in converted.arrays.items():
        np.testing.assert_array_equal(again.arrays[path], values, f"{path} differs from time to time")


def _state(paths: Sequence[Path]) -> dict[Path, tuple[str, int]]:
    files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*"))]
    return {
        file: (hashlib.sha256(file.read_bytes()).hexdigest(), file.stat().st_mtime_ns)
        for file in files
        if file.is_file()
    }


def _open_files() -> list[str]:
    targets = []
    for number in range(256):
        with suppress(OSError):
            status = os.fstat(number)
            if stat.S_ISREG(status.st_mode):
                targets.append(f"{number}: inode {status.st_ino}")
    return targets


@cache
def _imports(module: str) -> tuple[str, ...]:
    code = f"import sys, {module}; print(*sys.modules, sep='\\n')"
    output = printed("-c", code)
    return tuple(output.split())


def _check_imports(module: str) -> None:
    loaded = [name for name in _imports(module) if name.startswith(tuple(f"{each}." for each in FORBIDDEN))]
    loaded += [name for name in _imports(module) if name in FORBIDDEN]
    assert not loaded, f"{module} imports {loaded}"


def check_contract(
    converter: Converter, paths: Sequence[Path], oracle: Mapping[str, NDArray[Any]] | None = None
) -> Converted:
    """Assert what is promised, and that arrays equal those of `oracle`, which were read by other means.

    Picklable; a deterministic scan of plain JSON; any row range equal to that slice of the whole; nothing
    written outside the output; tables, prepared and index arrays agreeing in rows, shapes and dtypes; no file
    left open, no source modified; nothing of the store, the engine, torch or dask imported.
    """
    before, handles = _state(paths), _open_files()
    assert pickle.loads(pickle.dumps(converter)) == converter
    converted = convert_in_memory(converter, paths)
    assert converted.scan.family == converter.family, f"scan of family {converted.scan.family}"
    _check_json(converted.scan)
    _check_fields(converted)
    _check_samples(converted)
    _check_ranges(converter, converted)
    _check_again(converter, paths, converted)
    _check_imports(type(converter).__module__)
    assert _state(paths) == before, "sources were modified"
    assert not set(_open_files()) - set(handles), "files were left open"
    for path, expected in (oracle or {}).items():
        actual = converted.arrays[path]
        assert actual.shape == expected.shape, f"{path}: {actual.shape}, expected {expected.shape}"
        np.testing.assert_array_equal(actual, expected, path)
    return converted
