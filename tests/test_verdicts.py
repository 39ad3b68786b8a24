"""What is made of the files of every case and of mixtures, whichever family is named, stays as recorded.

Each case has a file in ``tests/verdicts``: what each file is taken for, and of a problem its kind, place and
fix. Sentences are not in it, so that better ones break nothing. A verdict that changes is a better one, and
its commit says why::

    python -m pytest tests/test_verdicts.py -n 0 --record-verdicts
    git diff tests/verdicts
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.support.cases import DATA, MAKERS
from tests.support.mixtures import JUNK, SETS, Mixture, Shelf
from tests.support.problems import facts_of
from unistore.conversion.convert import detect_family, make_converter
from unistore.converters.detection import Answer, Claims, survey
from unistore.converters.registry import own_families
from unistore.converters.source_scan import scan_sources
from unistore.errors import InputError, Problem

RECORDS = Path(__file__).with_name("verdicts")
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


def record_of(name: str) -> Path:
    return RECORDS / f"{name.replace(' ', '-')}.json"


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


def problems_of(problems: Iterable[Problem]) -> list[str]:
    return sorted(map(facts_of, problems))


def surveyed(found: Claims) -> Verdicts:
    """What every file is taken for."""

    def verdict(answer: Answer) -> str:
        if answer.problem is not None:
            return f"refused by {answer.family}: {facts_of(answer.problem)}"
        return f"{answer.family} ({answer.layout})" if answer.family else "left out"

    files = {str(path): verdict(answer) for path, answer in found}
    return {"files": files, "problems": problems_of(found.problems)}


def detected(paths: list[Path]) -> list[str]:
    try:
        found = detect_family(paths)
    except InputError as error:
        return problems_of(error.problems)
    return [found.family, found.layout]


def converted(
    family: str, options: Mapping[str, Any], paths: list[Path], claims: Claims | None = None
) -> Any:
    """Sources of a family, other files, and how many notes there are; or the problems."""
    try:
        scan = scan_sources(make_converter(family, options), paths, is_named=claims is None, claims=claims)
    except InputError as error:
        return problems_of(error.problems)
    return {
        "sources": {source.name: [str(path) for path in source.files] for source in scan.sources},
        "left out": sorted(str(path) for path, _ in scan.left_out),
        "notes": len(scan.notes),
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
def test_the_verdicts_of_files_are_those_recorded(
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
    record = record_of(name)
    if request.config.getoption("--record-verdicts"):
        record.parent.mkdir(exist_ok=True)
        record.write_text(json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
        return
    recorded = json.loads(record.read_text())
    for part in recorded.keys() | found.keys():
        assert found.get(part) == recorded.get(part), part


def test_every_record_has_its_scenario() -> None:
    assert set(RECORDS.iterdir()) == {record_of(name) for name in SCENARIOS}
