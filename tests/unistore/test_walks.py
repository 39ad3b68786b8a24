"""The nouns of docs/design.md, and how many files a conversion, a shard and a batch enter: upper bounds."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unistore
from tests.support.needs_torch import WITHOUT_TORCH
from tests.support.programs import printed
from unistore.system.extras import is_installed

ROOT = Path(unistore.__file__).parent.parent
DESIGN = (ROOT / "docs" / "design.md").read_text()

MOST_NOUNS = 60

MOST_LOADED = 161
"""Modules that a process holds after it converted one ``.npy`` file."""
MOST_ENTERED = 91
"""Files whose functions are called by that conversion, the classes of the six families among them."""
MOST_OF_SHARD = 18
"""Files that the rows of a source enter on their way into a shard, beyond the format and the family."""
FORMAT_AND_FAMILY = tuple(f"unistore/converters/{name}/" for name in ("files", "formats", "rows"))
MOST_OF_BATCH = 6
"""Files that a batch of a dataset enters, once it was read from before."""
MOST_OF_LOADER = 9
"""Files that the next batch of a Loader with a worker enters in the training process."""

SCRIPT = '''
import json, os, sys, threading

FUNCTION = 0x2  # CO_NEWLOCALS: bodies of modules and classes lack it
SOURCE, STORE, ROOT = sys.argv[1:]
PACKAGE = os.path.join(ROOT, "unistore", "")
paths = {}


class Walk:
    """Files whose functions are called, all or only within one function."""

    def __init__(self, within=None):
        self.within = within
        self.files = set()
        self.depth = 0

    def see(self, frame, event, argument):
        code = frame.f_code
        if code.co_qualname == self.within:
            self.depth += (event == "call") - (event == "return")
        if event != "call" or not code.co_flags & FUNCTION:
            return
        if self.within is not None and not self.depth:
            return
        path = code.co_filename
        if path not in paths:
            paths[path] = os.path.realpath(path)
        if paths[path].startswith(PACKAGE):
            self.files.add(os.path.relpath(paths[path], ROOT))

    def follow(self, action, *arguments):
        threading.setprofile(self.see)
        sys.setprofile(self.see)
        try:
            return action(*arguments)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


import unistore

conversion, shard, batch, next_batch = Walk(), Walk("ShardJob._write"), Walk(), Walk()
unistore.convert(SOURCE, STORE + ".first")  # what is imported and found once
conversion.follow(unistore.convert, SOURCE, STORE)
loaded = [name for name in sys.modules if name.split(".")[0] == "unistore"]
# with a codec that is named, rows are not read before by a trial
shard.follow(lambda: unistore.convert(SOURCE, STORE + ".again", codec="fast"))

dataset = unistore.Dataset(STORE)
dataset.__getitems__([0, 5])
batch.follow(dataset.__getitems__, [1, 7])

loader = unistore.Loader(dataset, batch_size=4, num_workers=1)
batches = iter(loader)
next(batches)
next_batch.follow(next, batches)

walks = {"conversion": conversion, "shard": shard, "batch": batch, "loader": next_batch}
print(json.dumps({"loaded": loaded, **{name: sorted(walk.files) for name, walk in walks.items()}}))
'''


@pytest.fixture(scope="module")
def walks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    if not is_installed("torch"):
        pytest.skip(WITHOUT_TORCH)
    folder = tmp_path_factory.mktemp("walks")
    np.save(folder / "rows.npy", np.arange(400, dtype=np.float32).reshape(100, 4))
    arguments = [str(folder / "rows.npy"), str(folder / "rows.zarr"), str(ROOT)]
    output = printed("-c", SCRIPT, *arguments, cwd=ROOT)
    found: dict[str, Any] = json.loads(output)
    return found


def check_listed(files: list[str]) -> None:
    """The walks of docs/design.md name these files of the core."""
    walks_listed = DESIGN.partition("### Walks")[2].partition("\n##")[0]
    core = [file for file in files if not file.startswith(("unistore/converters/", "unistore/schemas/"))]
    missing = [file for file in core if f"`{file}`" not in walks_listed]
    assert not missing


def classes_of(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)}


def test_nouns_are_defined_where_the_design_says() -> None:
    table = DESIGN.partition("### Nouns")[2].partition("\n### ")[0]
    nouns = re.findall(r"^\| ([^|]+) \| [^|]+ \| `([^`]+)` `([^`]+)` \|$", table, re.MULTILINE)
    assert len(nouns) == table.count("\n| ") - 1, "a row that is not read"
    assert 50 <= len(nouns) <= MOST_NOUNS
    names = [name for name, _, _ in nouns]
    assert len(set(names)) == len(names)
    missing = [name for name, file, defined in nouns if defined not in classes_of(ROOT / file)]
    assert not missing


def names_of(path: Path) -> set[str]:
    """Classes, functions and values that a module defines at its top."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        for target in getattr(node, "targets", [getattr(node, "target", None)]):
            if isinstance(target, ast.Name):
                names.add(target.id)
    return names


def test_files_and_names_in_the_table_of_the_design_exist() -> None:
    table = DESIGN.partition("### Where is …")[2].partition("\n## ")[0]
    questions = re.findall(r"^\| (?!question|-)[^|]+\|(.+)\|$", table, re.MULTILINE)
    assert len(questions) >= 20
    missing = []
    for answer in questions:
        file = ""
        for word in re.findall(r"`([^`]+)`", answer):
            if "/" in word:
                file = word
            elif "<family>" not in file and word not in names_of(ROOT / file):
                missing.append((file, word))
    assert not missing


def test_a_conversion_loads_few_modules(walks: dict[str, list[str]]) -> None:
    assert len(walks["loaded"]) <= MOST_LOADED


def test_a_conversion_enters_few_files(walks: dict[str, list[str]]) -> None:
    assert "unistore/conversion/job.py" in walks["conversion"]
    assert len(walks["conversion"]) <= MOST_ENTERED, walks["conversion"]


def test_rows_enter_few_files_on_their_way_into_a_shard(walks: dict[str, list[str]]) -> None:
    beyond = [file for file in walks["shard"] if not file.startswith(FORMAT_AND_FAMILY)]
    assert "unistore/zarr3/writer.py" in beyond
    assert len(beyond) < len(walks["shard"])
    assert len(beyond) <= MOST_OF_SHARD, beyond
    check_listed(beyond)


def test_a_batch_enters_few_files(walks: dict[str, list[str]]) -> None:
    assert "unistore/zarr3/array.py" in walks["batch"]
    assert len(walks["batch"]) <= MOST_OF_BATCH, walks["batch"]
    check_listed(walks["batch"])


def test_a_batch_of_a_loader_enters_few_files(walks: dict[str, list[str]]) -> None:
    assert "unistore/loader/iteration.py" in walks["loader"]
    assert len(walks["loader"]) <= MOST_OF_LOADER, walks["loader"]
