"""A process in which a family cannot be imported: ``without_family.py FAMILY FOLDER OUT BROKEN…``.

It prints what verify, Dataset and export say of the stores of that family in the folder, as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

FAMILY, FOLDER, OUT, *BROKEN = sys.argv[1:]


class Without(MetaPathFinder):
    """Finds no package of the family."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if name in (f"unistore.converters.{FAMILY}", f"unistore.schemas.{FAMILY}"):
            msg = f"No module named {name!r}"
            raise ModuleNotFoundError(msg, name=name)


sys.meta_path.insert(0, Without())

import unistore  # noqa: E402  after the family is gone
from unistore.errors import UnistoreError  # noqa: E402


def last_sample(dataset: unistore.Dataset) -> list[Any]:
    """Return how many samples there are, and the last one as JSON."""
    sample = {key: np.asarray(value).tolist() for key, value in dataset[len(dataset) - 1].items()}
    return [len(dataset), sample]


def said(work: Any) -> Any:
    """Return what a function returns, or the message of its error."""
    try:
        return work()
    except UnistoreError as error:
        return str(error)


folder = Path(FOLDER)
found: dict[str, Any] = {"broken": {}, "warnings": {}, "rows": {}}
for name in BROKEN:
    verified = unistore.verify(Path(OUT, f"{name}.zarr"))
    problems = [problem for problem in verified.problems if problem.kind != "family"]
    found["broken"][name] = sorted({problem.file for problem in problems})
for store in ("one.zarr", "s.zarr"):
    verified = unistore.verify(folder / store)
    assert verified.ok, verified.problems
    found["warnings"][store] = [str(problem) for problem in verified.problems]
    found["rows"][store] = last_sample(unistore.Dataset(folder / store, unistore.Rows()))
found["exported"] = said(lambda: unistore.export(folder / "one.zarr", Path(OUT, "exported")))
found["compacted"] = said(lambda: unistore.compact(folder / "s.zarr", Path(OUT, "compacted.zarr")).samples)
found["default"] = said(lambda: len(unistore.Dataset(folder / "s.zarr")))
inspection = unistore.inspect(folder / "one.zarr")
Path(OUT, "page.html").write_text(inspection.to_html())
assert unistore.inspect(folder / "s.zarr").kind == "grown"
print(json.dumps(found))
