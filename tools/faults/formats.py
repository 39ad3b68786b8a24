"""Damage a file of every format in every way, and convert it alone, beside a sound one, and without it.

A cell of the matrix is a format and a fault: cut short, empty, another beginning, reads that fail from the
first on or from half of them on, bytes that are flipped, a size in the header that is one too large or huge,
the same file by two routes. In each the damaged file must be refused by name with the exit code 2, alone and
beside a sound one, or be converted with every value right; with ``--on-error skip`` the sound one must be
converted with the values that its own library wrote, and the exit code 3. No command may crash, hang, take
more than 1 GB, or print a traceback. What nothing in a file of a format shows is said by `Sample.blind`.

    python tools/faults/formats.py                      every cell
    python tools/faults/formats.py --only 47 --keep     one cell again, its folder kept
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import zarr
from format_samples import (
    BEGINNING,
    CUT,
    EMPTY,
    FLIPPED,
    HUGE,
    MORE,
    SAMPLES,
    TRUNCATED,
    Made,
    Sample,
    Values,
    registered,
)
from fuzz_run import ACCEPTED, FAILED, REFUSED, UNCHANGED, Failure, main, require
from read_errors import LIBRARY, NEVER, PLAN, shared_plan, start_with_faults

from unistore.cli.main import main as unistore

SOUND, DAMAGED = "a_sound", "b_damaged"
FIRST_READ, LATER_READ = "EIO while recognising", "EIO while reading"
LINKED, TWICE = "linked", "given twice"
FAULTS = (BEGINNING, TRUNCATED, FIRST_READ, CUT, LATER_READ, EMPTY, FLIPPED, LINKED, TWICE)
FLIPS = 12
MOST_PLACES = 6


class Cell(NamedTuple):
    """A format and what is done to a file of it: `size` and `form` are those of a header that lies."""

    format: str
    fault: str
    size: int = 0
    form: str = ""


def cells() -> list[Cell]:
    """All of them, those of each format apart, so that the first few are of many formats and faults."""
    names = list(SAMPLES)
    made = [
        Cell(name, FAULTS[(at + turn) % len(FAULTS)])
        for turn in range(len(FAULTS))
        for at, name in enumerate(names)
    ]
    for name, sample in SAMPLES.items():
        for size, forms in sample.sizes.items():
            made += [Cell(name, lie, size, form) for form in forms for lie in (MORE, HUGE)]
    return made


class Said(NamedTuple):
    """What a command said."""

    code: int
    document: Any
    errors: str

    @property
    def problems(self) -> Sequence[Any]:
        """Problems of an error, or those for which sources were left out."""
        found: Sequence[Any] = self.document.get("problems") or self.document.get("skipped") or ()
        return found


@contextmanager
def _captured() -> Iterator[tuple[Any, Any]]:
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        sys.stdout.flush()
        sys.stderr.flush()
        kept = os.dup(1), os.dup(2)
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        try:
            yield out, err
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, descriptor in enumerate(kept, 1):
                os.dup2(descriptor, number)
                os.close(descriptor)


def _run(*words: str) -> Said:
    with _captured() as (out, err):
        try:
            unistore([*words, "--json"])
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
        sys.stdout.flush()
        out.seek(0)
        err.seek(0)
        told, errors = out.read(), err.read()
    for sign in ("Traceback", "panicked", "(unexpected"):
        require(sign not in told + errors, f"{' '.join(words)}: {(told + errors)[-1500:]}")
    return Said(code, json.loads(told) if told.strip() else {}, errors)


def _values_differ(store: Path, values: Values) -> str:
    """Return what of a store is not as the library of the format wrote it."""
    root = zarr.open_group(store, mode="r")
    for path, expected in values.items():
        stored, wanted = np.asarray(root[path][...]), np.asarray(expected)
        if stored.size == wanted.size:
            stored = stored.reshape(wanted.shape)
            if path.startswith("points/"):  # whose order is not told
                stored, wanted = np.sort(stored, axis=0), np.sort(wanted, axis=0)
        if not np.array_equal(stored, wanted):
            return f"{path} differs: {stored.shape} {stored.dtype}, expected {wanted.shape} {wanted.dtype}"
    return ""


def _is_named(said: Said, names: tuple[str, ...]) -> bool:
    texts = [f"{each['file']} {each.get('source', '')} {each.get('left_out', '')}" for each in said.problems]
    return bool(texts) and all(any(name in text for name in names) for text in texts)


class Trial:
    """The commands of a cell."""

    def __init__(self, sample: Sample, work: Path, seed: int) -> None:
        self.sample = sample
        self.work = work
        self.alone = work / "alone"
        self.beside = work / "beside"
        self.alone.mkdir()
        self.made = sample.make(self.alone, DAMAGED, np.random.default_rng([seed, 1]))
        self.count = 0
        self.names = (DAMAGED, *sample.names)
        self.sound: Made | None = None

    @property
    def place(self) -> str:
        """Path of the damaged file below a folder."""
        return self.made.file.relative_to(self.alone).as_posix()

    @property
    def names_alone(self) -> tuple[str, ...]:
        """What names the file, or one that is read with it, where no other source is."""
        return *self.names, *(path.name for path in self.alone.rglob("*"))

    def put_beside(self, seed: int) -> None:
        """Copy the damaged source, and make a sound one there."""
        shutil.copytree(self.alone, self.beside, symlinks=True)
        self.sound = self.sample.make(self.beside, SOUND, np.random.default_rng([seed, 0]))

    def convert(self, *sources: Path, named: bool = True, skip: bool = False) -> tuple[Said, Path]:
        """Convert into a store of its own."""
        self.count += 1
        store = self.work / f"store_{self.count}.zarr"
        family = [self.sample.family.replace("_", "-")] if named or self.sample.is_named else []
        options = (*self.sample.options, *(("--on-error", "skip") if skip else ()))
        return _run("convert", *family, *map(str, sources), str(store), *options), store

    def check_alone(self) -> bool:
        """Return whether the file is refused, else require that its values are right."""
        said, store = self.convert(self.alone)
        if said.code == 0:
            wrong = _values_differ(store, self.made.values)
            require(not wrong, f"accepted, but {wrong}")
            return False
        require(said.code == 2, f"alone: exit code {said.code}: {said.document} {said.errors[-500:]}")
        require(_is_named(said, self.names_alone), f"alone: does not name the file: {said.document}")
        return True

    def check_beside(self) -> None:
        """Require that the file is refused beside a sound one, and left out where the user says so."""
        said, _ = self.convert(self.beside, named=False)
        require(said.code == 2, f"beside: exit code {said.code}: {str(said.document)[:1500]}")
        require(_is_named(said, self.names), f"beside: does not name the file: {said.document}")
        said, store = self.convert(self.beside, skip=True)
        require(said.code == 3, f"skip: exit code {said.code}: {str(said.document)[:1500]}")
        report = json.loads((store / "unistore-report.json").read_text())
        is_left = any(own in name for name in report["left_out"] for own in self.names)
        require(is_left, f"skip: leaves out {report['left_out']}")
        assert self.sound is not None
        wrong = _values_differ(store, self.sound.values)
        require(not wrong, f"skip: {wrong}")
        _run("inspect", str(self.beside))


def _damage(path: Path, fault: str) -> None:
    content = path.read_bytes()
    if fault == TRUNCATED:
        content = content[: len(content) // 2]
    elif fault == CUT:
        content = content[:10]
    elif fault == EMPTY:
        content = b""
    elif fault == BEGINNING:
        content = bytes(byte ^ 0xA5 for byte in content[:16]) + content[16:]
    path.write_bytes(content)


def _forms_of(size: int, form: str) -> bytes:
    """Return how a size stands in a header."""
    if form == "text":
        return str(size).encode()
    if form == "varint":  # of Thrift: zigzag, seven bits a byte
        rest, groups = 2 * size, []
        while rest > 127:
            groups.append(rest & 127 | 128)
            rest >>= 7
        return bytes([*groups, rest])
    if form == "US":
        return b"US\x02\x00" + size.to_bytes(2, "little")
    return np.array(size, form).tobytes()


def _lies(content: bytes, sample: Sample, cell: Cell) -> Iterator[bytes]:
    """Yield the content with another size in each place that states it."""
    stated = _forms_of(cell.size, cell.form)
    bits = {"text": 47, "varint": 12, "US": 16}.get(cell.form) or 8 * np.dtype(cell.form).itemsize - 1
    other = _forms_of(
        cell.size + 1 if cell.fault == MORE else (1 << bits) - 1 >> (cell.form == "US"), cell.form
    )
    header = sample.header(content)
    pattern = re.escape(stated)
    if cell.form == "text":
        pattern = rb"(?<![\d.])" + pattern + rb"(?![\d.])"
    places = [
        found.start()
        for found in re.compile(pattern, re.DOTALL).finditer(content, header.start or 0, header.stop)
    ]
    require(places, f"no {cell.size} as {cell.form} in the header: the sample does not say its sizes")
    for place in places[:MOST_PLACES]:
        yield content[:place] + other + content[place + len(stated) :]


def _check_reads(trial: Trial, fault: str, seed: int) -> bool:
    """Let reads of the file fail, from the first on or from half of those of a conversion on."""
    plan = shared_plan()

    def arm(folder: Path, first: int) -> None:
        plan.stop()
        plan.seen = plan.fired = plan.has_file = plan.is_short = plan.whole_file = 0
        plan.first, plan.last = first, NEVER
        plan.folder = os.fsencode(folder / trial.place)

    trial.put_beside(seed)
    first = 0
    if fault == LATER_READ:
        arm(trial.alone, NEVER)
        require(trial.convert(trial.alone)[0].code == 0, "the sound file is refused")
        first = plan.seen // 2
    arm(trial.alone, first)
    try:
        is_refused = trial.check_alone()
        require(is_refused or not plan.fired or fault == LATER_READ, "reads failed, and nothing is said")
        if is_refused:
            arm(trial.beside, first)
            trial.check_beside()
    finally:
        plan.stop()
    return is_refused


def _check_routes(trial: Trial, fault: str) -> None:
    """Require the values once, or a refusal, where a source is there by two routes."""
    sources = [trial.alone]
    entry = trial.alone / Path(trial.place).parts[0]
    if entry.name == "velodyne":
        entry = trial.made.file
    if fault == LINKED:
        (entry.parent / f"c_{entry.name}").symlink_to(entry.name)
    else:
        sources.append(entry)
    said, store = trial.convert(*sources)
    if said.code:
        require(said.code == 2, f"exit code {said.code}: {said.document}")
        return
    wrong = _values_differ(store, trial.made.values)
    require(not wrong, f"by two routes, {wrong}")


def _check(trial: Trial, sample: Sample, cell: Cell, seed: int) -> str:
    path = trial.made.file
    content = path.read_bytes()
    if cell.size:
        is_refused = False
        for lie in _lies(content, sample, cell):
            path.write_bytes(lie)
            if cell.fault in sample.blind:
                said, _ = trial.convert(trial.alone)
                require(said.code in (0, 2), f"exit code {said.code}: {said.document}")
            else:
                is_refused |= trial.check_alone()
        return REFUSED if is_refused else UNCHANGED
    if cell.fault == FLIPPED:
        for number in range(FLIPS):
            at = min(len(content) - 1, len(content) * number // FLIPS + number)
            path.write_bytes(content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :])
            said, _ = trial.convert(trial.alone)
            is_named = FLIPPED in sample.blind or _is_named(said, trial.names_alone)
            require(said.code == 0 or (said.code == 2 and is_named), f"byte {at}: {said}")
        return REFUSED
    if cell.fault in (LINKED, TWICE):
        _check_routes(trial, cell.fault)
        return ACCEPTED
    if cell.fault in (FIRST_READ, LATER_READ):
        return ACCEPTED if _check_reads(trial, cell.fault, seed) else UNCHANGED
    _damage(path, cell.fault)
    if cell.fault in sample.blind:
        said, _ = trial.convert(trial.alone)
        require(said.code in (0, 2), f"exit code {said.code}: {said.document}")
        return UNCHANGED
    is_refused = trial.check_alone()
    require(is_refused or cell.fault == BEGINNING, "accepted")
    if is_refused:
        trial.put_beside(seed)
        trial.check_beside()
    return ACCEPTED


def case(seed: int, number: int, work: Path) -> dict[str, Any]:
    """Check one cell."""
    cell = CELLS[number]
    sample = SAMPLES[cell.format]
    lie = f"{cell.size} as {cell.form}" if cell.size else ""
    about = {"family": cell.format, "mutation": cell.fault, "layout": lie, "number": number}
    try:
        return {**about, "status": _check(Trial(sample, work, seed), sample, cell, seed)}
    except Failure as error:
        return {**about, "status": FAILED, "why": str(error)}


CELLS = cells()

if __name__ == "__main__":
    missing = registered().keys() - {name.split()[0] for name in SAMPLES}
    if missing:
        sys.exit(f"formats without a sample in format_samples.py: {', '.join(sorted(missing))}")
    is_ready = PLAN in os.environ if {"--child", "--only"} & set(sys.argv) else LIBRARY in os.environ
    if not is_ready:
        start_with_faults()
    main(Path(__file__), __doc__, case, len(CELLS))
