"""What is made of the files of every case and of mixtures, whichever family is named, stays as recorded.

A verdict that changes is a better one, and its commit says why::

    python -m pytest tests/test_verdicts.py -n 0 --record-verdicts
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.cases import DATA, MAKERS
from tests.mixtures import JUNK, SETS, Mixture, Shelf
from unistore.conversion.convert import detect_family, make_converter
from unistore.converters.detection import Answer, Claims, survey
from unistore.converters.registry import own_families
from unistore.converters.source_scan import scan_sources
from unistore.errors import InputError

RECORD = Path(__file__).with_suffix(".json")
READERS = ("h5py", "opencv-python-headless")
"""What words some problems: versions of foreign libraries."""
FAMILIES = [family.name for family in own_families()]
MIXTURES = 16
DAMAGED = 8
SAMPLES = "samples"

Verdicts = dict[str, Any]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    return Shelf(tmp_path_factory.mktemp("shelf"))


def mixture(shelf: Shelf, folder: Path, seed: int, *, damaged: bool) -> list[Path]:
    """Sets of some families and junk; of damaged mixtures, one file of each set is cut to half."""
    rng = Random(seed)
    mixed = Mixture(folder)
    places = rng.sample(["", "a", "b", "data/c", "train", "x y"], 3)
    for family in rng.sample(list(SETS), rng.randint(1, 3)):
        mixed.add(shelf, rng.choice(SETS[family]), rng.choice(places))
    for name in rng.sample(list(JUNK), rng.randint(0, 5)):
        mixed.add_junk(name, rng.choice(places))
    for files in mixed.sets.values() if damaged else ():
        path = rng.choice(files)
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data[: len(data) // 2])
    return [folder]


def first_file(sources: list[Path]) -> Path:
    files = [path for source in sources for path in (source, *sorted(source.rglob("*")))]
    return next(path for path in files if path.is_file())


SCENARIOS = (
    *MAKERS,
    *(f"a file of {name}" for name in MAKERS),
    *(f"mixture {seed}" for seed in range(MIXTURES)),
    *(f"damaged mixture {seed}" for seed in range(DAMAGED)),
    SAMPLES,
)


def make(name: str, shelf: Shelf, folder: Path) -> list[Path]:
    """Sources of a scenario."""
    if name == SAMPLES:
        return [DATA / "samples"]
    case = name.removeprefix("a file of ")
    if case in MAKERS:
        sources = shelf.get(case)[0].sources
        return sources if case == name else [first_file(sources)]
    return mixture(shelf, folder, int(name.rpartition(" ")[2]), damaged=name.startswith("damaged"))


def problems_of(error: InputError) -> list[str]:
    return sorted(f"{problem.kind}: {problem}" for problem in error.problems)


def by_reason(files: Iterable[tuple[str, Path]]) -> dict[str, list[str]]:
    """Paths of files for each reason."""
    found: dict[str, list[str]] = {}
    for reason, path in files:
        found.setdefault(reason, []).append(str(path))
    return found


def surveyed(found: Claims) -> Verdicts:
    """What every file is taken for."""

    def reason(answer: Answer) -> str:
        if answer.problem is not None:
            return f"refused by {answer.family}: {answer.problem.kind}: {answer.problem}"
        if not answer.family:
            return f"left out: {answer.reason}"
        return f"{answer.family} ({answer.layout}): {answer.reason}"

    files = by_reason((reason(answer), path) for path, answer in found)
    return {"files": files, "problems": [str(problem) for problem in found.problems]}


def detected(paths: list[Path]) -> Any:
    try:
        found = detect_family(paths)
    except InputError as error:
        return problems_of(error)
    return [found.family, found.layout, found.reason]


def converted(
    family: str, options: Mapping[str, Any], paths: list[Path], claims: Claims | None = None
) -> Any:
    """Sources of a family, and why other files are left out; or the problems."""
    try:
        scan = scan_sources(make_converter(family, options), paths, is_named=claims is None, claims=claims)
    except InputError as error:
        return problems_of(error)
    return {
        "sources": {source.name: [str(path) for path in source.files] for source in scan.sources},
        "left out": by_reason((why, path) for path, why in scan.left_out),
        "notes": list(scan.notes),
    }


def verdicts(paths: list[Path], options: Mapping[str, Mapping[str, Any]]) -> Verdicts:
    """Every verdict on these paths."""
    found = survey(paths)
    return {
        "survey": surveyed(found),
        "detected": detected(paths),
        **{name: converted(name, options.get(name, {}), paths) for name in FAMILIES},
        **{f"{name}, detected": converted(name, {}, paths, found) for name in FAMILIES},
    }


def without_repeats(found: Verdicts) -> Verdicts:
    """Leave out what a family says that was detected, if it says the same when it is named."""
    return {
        name: value
        for name, value in found.items()
        if not name.endswith(", detected") or value != found[name.removesuffix(", detected")]
    }


def relative(found: Verdicts, folders: Mapping[str, Path]) -> Verdicts:
    """Replace the folders of this run by names."""
    text = json.dumps(found)
    for name, folder in folders.items():
        text = text.replace(os.fspath(folder), name)
    plain: Verdicts = json.loads(text)
    return plain


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("name", SCENARIOS)
def test_files_are_what_they_were(
    name: str, shelf: Shelf, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    case = name.removeprefix("a file of ")
    folder = tmp_path / "mixed"
    paths = make(name, shelf, folder)
    options: dict[str, Mapping[str, Any]] = {}
    if case in MAKERS:
        made, folder = shelf.get(case)
        options = {made.family: made.options}
    found = relative(without_repeats(verdicts(paths, options)), {"SRC": folder, "DATA": DATA})
    recorded = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    versions = {each: version(each) for each in READERS}
    if request.config.getoption("--record-verdicts"):
        recorded = {**recorded, "versions": versions, name: found}
        RECORD.write_text(json.dumps(recorded, indent=0, sort_keys=True) + "\n")
        return
    if versions != recorded["versions"]:
        pytest.skip(f"verdicts were recorded with {recorded['versions']}, here are {versions}")
    for part in recorded[name].keys() | found.keys():
        assert found.get(part) == recorded[name].get(part), part


def test_every_record_has_its_scenario() -> None:
    assert set(json.loads(RECORD.read_text())) == {"versions", *SCENARIOS}
