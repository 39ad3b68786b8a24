"""What decides the result of a step, as a digest: a step whose key is the same need not be done again.

Within one run the plan stays and so do all keys. They change where sources are left out: sources are
numbered anew, rows move, columns may lose a dtype; what none of this touches keeps its key.
"""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray

from unistore.conversion.guard import Guard, Guards
from unistore.conversion.plan import Plan, json_digest
from unistore.converters.protocol import Scan, Source

__all__ = ["Keys", "shared_key", "source_key", "source_keys", "task_keys"]

Keys = NDArray[np.bytes_]
"""Keys of all sources, (sources,) of 32 bytes."""

_OF_ALL = ("exclude", "skipped")
"""Options that say which sources there are: they decide nothing about any other source."""


def shared_key(scan: Scan) -> str:
    """What the scan decided for all sources, as part of the key of each."""
    options = {name: value for name, value in scan.options.items() if name not in _OF_ALL}
    return json_digest([scan.family, options, [asdict(table) for table in scan.tables]])


def source_key(shared: str, source: Source, guard: Guard) -> str:
    """Key of a source: itself, its files, and what the scan decided for all.

    A file's status change time counts, so that a later run reads anew what may have been rewritten with its
    size and modification time restored.
    """
    return json_digest([shared, source.name, guard, source.rows, source.detail])


def source_keys(scan: Scan, guards: Guards) -> Keys:
    """Key of every source, in order."""
    shared = shared_key(scan)
    pairs = zip(scan.sources, guards, strict=True)
    return np.fromiter((source_key(shared, *pair) for pair in pairs), "S32", len(guards))


def task_keys(plan: Plan, sources: Keys) -> dict[str, str]:
    """Key of every task by its id: the form of its columns, and the pieces of sources that it is made of."""
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
