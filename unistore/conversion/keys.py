"""Keys of steps: digests of what decides a step's result. A step with the same key is not repeated.

Keys change when sources are left out (sources are renumbered, rows move, columns may change dtype); steps
that this does not affect keep theirs.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.conversion.fingerprint import Fingerprints
from unistore.conversion.plan import Piece, Plan, json_digest, long_json_digest
from unistore.converters.protocol import Scan
from unistore.system.packed import view

CONTENT = 1
"""Raised by every change of the bytes that a source's derived rows or a shard hold.

An unfinished conversion begun under another number is done again: its shards are those of older code."""

Keys = NDArray[np.bytes_]
"""Keys of all sources, (sources,) of 32 bytes."""

_SELECTING = ("exclude", "skipped")
"""Options that select sources, without effect on the rows of the others."""


def source_keys(scan: Scan, fingerprints: Fingerprints) -> Keys:
    """Key of every source: `CONTENT`, family, options and tables, and its name, fingerprint, rows and detail.

    The fingerprint has the status change time, so that a file rewritten with its old size and modification
    time is read again.
    """
    options = {name: value for name, value in scan.options.items() if name not in _SELECTING}
    shared = json_digest([CONTENT, scan.family, options, [asdict(table) for table in scan.tables]])
    sources = scan.sources
    columns = sources.names, fingerprints, sources.each_rows(), sources.details
    keys = (json_digest([shared, *each]) for each in zip(*columns, strict=True))
    return np.fromiter(keys, "S32", len(fingerprints))


def task_keys(plan: Plan, sources: Keys) -> dict[str, str]:
    """Key of every task by id: the form of its columns, and the pieces of sources, by their keys."""
    keys = {}
    for table in plan.tables:
        form = json_digest(
            [
                dict(plan.versions),
                [
                    [asdict(array.field), array.column, array.chunk, array.shard, array.codec]
                    for array in table.arrays
                ],
            ]
        )
        for task in table.tasks():
            pieces = view(table.pieces(task.lo, task.hi), partial(_key_of_piece, sources))
            keys[task.id] = long_json_digest([form, pieces])
    return keys


def _key_of_piece(sources: Keys, piece: Piece) -> list[Any]:
    return [sources[piece.source].decode(), piece.lo, piece.hi, piece.at]
