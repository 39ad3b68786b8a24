"""Change one thing among the files of a folder and convert it: refused by name, or every value right.

Each case makes a folder of two or three sound sources of one family, every second time with a source of
another family and junk beside them. One thing is changed: an ending, two files are swapped, a foreign file is
put in, a dataset, member or folder renamed, a file damaged, removed, copied or moved. Then

- no other file's verdict may differ from before, but a partner's;
- the conversion, with the family named or not, refuses and names the file, or its store holds what h5py,
  numpy and OpenCV read in the sources, and its report accounts for the file;
- it ends within 10 s and 1 GB, without a crash or an error that nobody expected, and changes no source.

    python tools/faults/borders.py --count 2000 --seed 1
    python tools/faults/borders.py --seed 1 --only 471 --keep    one case again, its folder kept
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import h5py
import numpy as np
from fuzz_oracles import Wrong, compare
from fuzz_run import ACCEPTED, FAILED, REFUSED, Failure, entries, main, require
from fuzz_samples import SAMPLES
from numpy.random import Generator

from unistore.conversion.signatures import convert
from unistore.converters.detection import survey
from unistore.errors import InputError, printable

ASKED = "asked"
"""Refused, as there are sources of several families."""
JUNK = {
    "README.md": b"about",
    "a.csv.gz": b"\x1f\x8b",
    "t.csv": b"a,b\n",
    "m.mp4": bytes(9),
    "x.e57": b"ASTM",
}
SUFFIXES = (".h5", ".hdf5", ".npy", ".npz", ".dat", ".png", ".json", ".e57", ".txt", "")
SYNTHETIC = {
    family: {name: make for name, make in layouts.items() if name != "real"}
    for family, layouts in SAMPLES.items()
}

Mutation = Callable[[Path, list[Path], Random, Generator], list[Path] | None]
"""Changes a folder, given the files of its sources; returns the changed files, None if not applicable."""


def _renamed(path: Path, target: Path) -> list[Path] | None:
    if target.exists():
        return None
    target.parent.mkdir(parents=True, exist_ok=True)
    path.rename(target)
    return [path, target]


def _suffix(folder: Path, files: list[Path], rng: Random, _: Generator) -> list[Path] | None:
    path = rng.choice(files)
    return _renamed(path, path.with_suffix(rng.choice(SUFFIXES)))


def _swapped(folder: Path, files: list[Path], rng: Random, _: Generator) -> list[Path] | None:
    if len(files) < 2:
        return None
    one, two = rng.sample(files, 2)
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    return [one, two]


def _source(folder: Path, rng: Random, nrng: Generator, name: str) -> list[Path]:
    family = rng.choice(list(SYNTHETIC))
    return SYNTHETIC[family][rng.choice(list(SYNTHETIC[family]))](folder, name, nrng)


def _foreign(folder: Path, files: list[Path], rng: Random, nrng: Generator) -> list[Path] | None:
    return _source(folder, rng, nrng, rng.choice(("foreign", "0", "z_9")))


def _foreign_as(folder: Path, files: list[Path], rng: Random, nrng: Generator) -> list[Path] | None:
    """Another source's bytes under the name of a file."""
    path, apart = rng.choice(files), folder.parent / "apart"
    apart.mkdir()
    path.write_bytes(rng.choice(_source(apart, rng, nrng, "x")).read_bytes())
    return [path]


def _dataset(folder: Path, files: list[Path], rng: Random, _: Generator) -> list[Path] | None:
    """Rename a dataset, group or member."""
    path = rng.choice(files)
    if path.suffix in (".h5", ".hdf5"):
        with h5py.File(path, "r+") as file:
            names: list[str] = []
            file.visit(names.append)
            name = rng.choice(names)
            target = rng.choice((f"{name}_2", "other", "x", "data", "actions", name.upper()))
            if target in file:
                return None
            file.move(name, target)
        return [path]
    if path.suffix == ".npz":
        with np.load(path) as loaded:
            arrays = dict(loaded)
        name = rng.choice(list(arrays))
        arrays[rng.choice(("other", "x", "arr_0"))] = arrays.pop(name)
        np.savez(path, **arrays)
        return [path]
    return None


def _folder(folder: Path, files: list[Path], rng: Random, _: Generator) -> list[Path] | None:
    """Rename a folder; everything in it counts as changed."""
    inside = sorted({path.parent for path in files if path.parent != folder})
    if not inside:
        return None
    path = rng.choice(inside)
    within = [each for each in files if each.is_relative_to(path)]
    target = path.with_name(rng.choice(("other", "spike", "masks", "windows", "train", "images")))
    moved = _renamed(path, target)
    return None if moved is None else [*within, *(target / each.relative_to(path) for each in within), *moved]


def _damaged(folder: Path, files: list[Path], rng: Random, _: Generator) -> list[Path] | None:
    path = rng.choice(files)
    data = bytearray(path.read_bytes())
    how = rng.randrange(4)
    if how == 0:
        data = data[: rng.choice((0, 1, len(data) // 2, len(data) - 1))]
    elif how == 1:
        for _number in range(4):
            data[rng.randrange(min(len(data), 128))] = rng.randrange(256)
    elif how == 2:
        data = bytearray(rng.randbytes(300))
    else:
        data = bytearray(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    path.write_bytes(data)
    return [path]


def _removed(folder: Path, files: list[Path], rng: Random, _: Generator) -> list[Path] | None:
    path = rng.choice(files)
    path.unlink()
    return [path]


def _copied(folder: Path, files: list[Path], rng: Random, _: Generator) -> list[Path] | None:
    path = rng.choice(files)
    target = path.with_name(
        rng.choice((f"{path.stem}_2{path.suffix}", f"7{path.suffix}", f"copy_{path.name}"))
    )
    if target.exists():
        return None
    shutil.copy(path, target)
    return [target]


def _moved(folder: Path, files: list[Path], rng: Random, _: Generator) -> list[Path] | None:
    path = rng.choice(files)
    return _renamed(path, folder / rng.choice(("new", "train", "deep")) / path.name)


def _hidden(folder: Path, files: list[Path], rng: Random, _: Generator) -> list[Path] | None:
    path = rng.choice(files)
    return _renamed(path, path.with_name(f".{path.name}"))


MUTATIONS: Mapping[str, Mutation] = {
    "suffix": _suffix,
    "swapped": _swapped,
    "foreign": _foreign,
    "foreign_as": _foreign_as,
    "dataset": _dataset,
    "folder": _folder,
    "damaged": _damaged,
    "removed": _removed,
    "copied": _copied,
    "moved": _moved,
    "hidden": _hidden,
}


def make(folder: Path, family: str, rng: Random, nrng: Generator) -> list[list[Path]]:
    """Files of each source: two or three of one family, and sometimes one of another, and junk."""
    layout = SYNTHETIC[family][rng.choice(list(SYNTHETIC[family]))]
    sources = [layout(folder, name, nrng) for name in ("a_first", "b_second", "c_third")[: rng.randint(2, 3)]]
    if rng.random() < 0.5:
        other = rng.choice([each for each in SYNTHETIC if each != family])
        place = folder / rng.choice(("", "beside"))
        place.mkdir(exist_ok=True)
        sources.append(SYNTHETIC[other][rng.choice(list(SYNTHETIC[other]))](place, "n_other", nrng))
        for name in rng.sample(list(JUNK), 2):
            (folder / name).write_bytes(JUNK[name])
    return sources


def verdicts(folder: Path) -> dict[Path, Any]:
    """The verdict on every file of a folder."""
    return {path: answer._replace(refuser="") for path, answer in survey([folder])}


def case(seed: int, number: int, work: Path) -> dict[str, Any]:
    """Make a folder, change one thing and convert it."""
    rng, nrng = Random(f"{seed}/{number}"), np.random.default_rng([seed, number])
    family = list(SYNTHETIC)[number % len(SYNTHETIC)]
    folder = work / "sources"
    folder.mkdir()
    sources = make(folder, family, rng, nrng)
    files = [path for source in sources for path in source]
    before = verdicts(folder)
    touched: list[Path] | None = None
    while touched is None:
        mutation = rng.choice(list(MUTATIONS))
        touched = MUTATIONS[mutation](folder, files, rng, nrng)
    given = entries(folder)
    about = {"family": family, "mutation": mutation, "number": number}
    named = family if rng.random() < 0.5 else None
    try:
        _check_verdicts(folder, before, touched, sources)
        status, text = _convert(folder, work / "store.zarr", named, skip=rng.random() < 0.3)
        if status == ASKED:
            named = family
            status, text = _convert(folder, work / "store.zarr", named, skip=rng.random() < 0.3)
            about["asked"] = True
        require(entries(folder) == given, "a source was changed")
        if status == REFUSED:
            require(_is_named(text, touched, sources, folder), f"{_names(touched)} not named: {text[:600]}")
    except (Failure, Wrong) as error:
        return {**about, "status": FAILED, "why": str(error)}
    return {**about, "status": status}


def _check_verdicts(
    folder: Path, before: dict[Path, Any], touched: Sequence[Path], sources: Sequence[Sequence[Path]]
) -> None:
    may_change = set(touched)
    for source in sources:
        if may_change.intersection(source):
            may_change.update(source)
    beside = {path.parent for path in touched} - {folder}
    after = verdicts(folder)
    for path, verdict in before.items():
        if path not in may_change and not any(path.is_relative_to(each) for each in beside):
            require(after.get(path) == verdict, f"{path.name}: {after.get(path)}, before {verdict}")


def _convert(folder: Path, store: Path, family: str | None, *, skip: bool) -> tuple[str, str]:
    try:
        report = convert(folder, store, family, on_error="skip" if skip else "fail")
    except InputError as error:
        require(all(line.isprintable() for line in str(error).split("\n")), "control characters")
        asked = family is None and [problem.kind for problem in error.problems] == ["family"]
        return (ASKED if asked else REFUSED), str(error)
    except Exception as error:
        msg = f"{type(error).__name__}: {error}"
        raise Failure(msg) from error
    if not _grouped(store, folder):
        compare(store, folder)
    taken = sum(each["files"] for each in report.verdicts if each["verdict"] == "taken")
    require(taken > 0, "a report of nothing taken")
    if report.family != "spike":  # which names folders without frames alone
        there = sum(path.is_file() for path in folder.rglob("*"))
        counted = sum(each["files"] for each in report.verdicts)
        require(counted == there, f"{there} files, {counted} have a verdict")
    return ACCEPTED, "; ".join(report.notes)


def _grouped(store: Path, folder: Path) -> bool:
    """Compare arrays side by side, ``{a,b}_0.npy``, with their files; whether there are any."""
    from unistore.store.reader import Store

    opened = Store(store)
    names = opened.text("sources/path")
    if not any("{" in name for name in names):
        return False
    first = opened.array("sources/rows/offsets")[:-1].tolist()
    for name, start in zip(names, first, strict=True):
        if "{" not in name:
            continue
        above, _, rest = name.partition("{")
        bases, _, ending = rest.partition("}")
        for base in bases.split(","):
            file = next(folder.rglob(f"{above}{base}{ending}"))
            values = np.load(file)
            stored = opened.array(f"rows/{base}")[start : start + len(values)]
            if not np.array_equal(stored, values, equal_nan=values.dtype.kind == "f"):
                msg = f"{name}: {base} differs"
                raise Wrong(msg)
    return True


def _names(paths: Sequence[Path]) -> str:
    return ", ".join(path.name for path in paths)


def _is_named(text: str, touched: Sequence[Path], sources: Sequence[Sequence[Path]], folder: Path) -> bool:
    """Whether a refusal names a file that was touched, a partner of it, or a folder that it lies in.

    Beside sources of another family any file may be named: a general family takes what it can of all.
    """
    partners = [path for source in sources if set(source) & set(touched) for path in source]
    parts = {part for path in (*touched, *partners) for part in path.relative_to(folder).parts}
    parts |= {path.stem for path in touched}
    others = ("n_other", "foreign", "0.", "z_9")
    if any(path.name.startswith(others) for path in (*folder.rglob("n_other*"), *touched)):
        parts |= {path.name for source in sources for path in source} | {"n_other"}
    return any(printable(part) in text for part in parts)


if __name__ == "__main__":
    main(Path(__file__), __doc__, case, 2000)
