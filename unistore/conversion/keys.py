"""Keys of steps: digests of what decides a step's result. A step with the same key is not repeated.

Keys change when sources are left out (sources are renumbered, rows move, columns may change dtype); steps
that this does not affect keep theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.conversion.fingerprint import Fingerprint, Fingerprints
from unistore.conversion.plan import Plan, json_digest
from unistore.converters.protocol import Scan

Keys = NDArray[np.bytes_]
"""Keys of all sources, (sources,) of 32 bytes."""

_SELECTING = ("exclude", "skipped")
"""Options that select sources, without effect on the rows of the others."""


def shared_key(scan: Scan) -> str:
    """Digest of what all sources share: family, options and tables."""
    options = {name: value for name, value in scan.options.items() if name not in _SELECTING}
    return json_digest([scan.family, options, [asdict(table) for table in scan.tables]])


def source_key(
    shared: str, name: str, rows: Mapping[str, int], detail: Mapping[str, Any], fingerprint: Fingerprint
) -> str:
    """Key of a source: its name, rows and detail, its fingerprint, and `shared` from `shared_key`.

    The fingerprint has the status change time, so that a file rewritten with its old size and modification
    time is read again.
    """
    return json_digest([shared, name, fingerprint, rows, detail])


def source_keys(scan: Scan, fingerprints: Fingerprints) -> Keys:
    """Key of every source, in order."""
    shared = shared_key(scan)
    sources = scan.sources
    columns = sources.names, sources.each_rows(), sources.details, fingerprints
    return np.fromiter(
        (source_key(shared, *each) for each in zip(*columns, strict=True)), "S32", len(fingerprints)
    )


def task_keys(plan: Plan, sources: Keys) -> dict[str, str]:
    """Key of every task by id: the form of its columns, and the pieces of sources that it consists of."""
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
            pieces = [[sources[p.source].decode(), p.lo, p.hi, p.at] for p in table.pieces(task.lo, task.hi)]
            keys[task.id] = json_digest([form, pieces])
    return keys
