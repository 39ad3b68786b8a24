"""Damage small sources of every family at random and convert them: refused by name, or every value right.

Each case makes a source, damages it in one way, and converts it, every second time beside a sound source with
``--on-error skip``. It must end within 10 s and 1 GB, without a crash or an error that nobody expected; touch
nothing outside; leave nothing behind but what resumes; name the file where it refuses or leaves it out; and
hold, where it accepts, what h5py, numpy and OpenCV read in the sources. Some accepted cases are converted
twice and must give the same bytes.

    python tools/faults/fuzz_sources.py --count 10000 --seed 1
    python tools/faults/fuzz_sources.py --seed 1 --only 4711 --keep    one case again, its folder kept
"""

from __future__ import annotations

import re
from pathlib import Path
from random import Random
from typing import Any

import h5py
import numpy as np
from fuzz_mutations import MUTATIONS
from fuzz_oracles import SECRET, Wrong, compare
from fuzz_run import ACCEPTED, FAILED, REFUSED, UNCHANGED, Failure, entries, main, require
from fuzz_samples import SAMPLES
from trials import tree

from unistore.conversion.signatures import convert
from unistore.errors import ConversionError, InputError, printable

SOUND = "a_sound_one"
DAMAGED = "b_damaged"


def outside_files(folder: Path) -> None:
    """Make files that no conversion may read, change or remove."""
    folder.mkdir()
    secret = np.full(1000, SECRET, "u8")
    secret.tofile(folder / "secret.bin")
    secret.tofile(folder / "secret.dat")
    np.save(folder / "secret.npy", secret)
    np.savez(folder / "secret.npz", spk=secret, secret=secret)
    for name in ("secret.h5", "secret.hdf5"):
        with h5py.File(folder / name, "w") as file:
            file["secret"] = secret
    (folder / "secret.json").write_text("{}")


def case(seed: int, number: int, work: Path) -> dict[str, Any]:
    """Make, damage and convert one source."""
    rng = Random(f"{seed}/{number}")
    family = list(SAMPLES)[number % len(SAMPLES)]
    layout = rng.choice(list(SAMPLES[family]))
    sources, outside, target = work / "sources", work / "outside", work / "out"
    sources.mkdir()
    outside_files(outside)
    target.mkdir()
    paths = SAMPLES[family][layout](sources, DAMAGED, np.random.default_rng([seed, number]))
    if skip := number % 2 == 1:
        SAMPLES[family][layout](sources, SOUND, np.random.default_rng([seed, number, 1]))
    before = entries(sources)
    while True:
        mutation = rng.choice(list(MUTATIONS))
        try:
            damaged = MUTATIONS[mutation](paths, outside, rng)
        except Exception:  # h5py cannot write it; the file stays half written
            damaged = paths[0]
        if damaged is not None:
            break
    about = {"family": family, "layout": layout, "mutation": mutation, "number": number}
    given = entries(sources)
    beside = entries(outside)
    explicit = family if rng.random() < 0.5 else None
    store = target / "store.zarr"
    try:
        status, text = _convert(sources, store, explicit, skip=skip, given=explicit is not None)
        require(entries(sources) == given, "a source was changed")
        require(entries(outside) == beside, "a file outside was changed")
        left = {path.name for path in target.iterdir()}
        if status == ACCEPTED:
            require(left == {"store.zarr"}, f"left behind: {sorted(left)}")
            names = compare(store, sources)
            report = store / "unistore-report.json"
            noted = re.search(rf"(left out|skipped).*{DAMAGED}", text)  # no step, or of another family
            text = report.read_text() if report.exists() else ""
            mine = [name for name in names if SOUND not in name]
            if not mine:
                status = REFUSED
                other = damaged.is_dir() or damaged.suffix not in {path.suffix for path in paths}
                require(text or other or noted, "the damaged source is missing without a report")
            elif rng.random() < 0.1:
                convert(sources, target / "again.zarr", explicit, on_error="skip" if skip else "fail")
                require(tree(store) == tree(target / "again.zarr"), "two conversions differ")
        else:
            require(left <= {"store.zarr.unistore-build"}, f"left behind: {sorted(left)}")
        if status == REFUSED and text:
            require(
                _is_named(text, damaged, sources), f"the file {damaged.name!r} is not named: {text[:500]}"
            )
    except (Failure, Wrong) as error:
        return {**about, "status": FAILED, "why": str(error)}
    unchanged = given == before
    return {**about, "status": UNCHANGED if unchanged else status}


def _convert(sources: Path, store: Path, family: str | None, *, skip: bool, given: bool) -> tuple[str, str]:
    try:
        report = convert(sources, store, family, on_error="skip" if skip else "fail")
    except InputError as error:
        sound = [problem for problem in error.problems if problem.source.startswith(SOUND)]
        require(not sound or not given, f"the sound source has problems: {sound}")
        alone = error.problems and all(problem.source for problem in error.problems)
        require(not (skip and alone), f"should have been left out: {error}")
        lines = str(error).split("\n")
        require(all(line.isprintable() for line in lines), f"control characters in {str(error)!r}")
        return REFUSED, f"{error} {sources}" if not error.problems else str(error)
    except ConversionError as error:
        msg = f"ConversionError: {error}"
        raise Failure(msg) from error
    except Exception as error:
        msg = f"{type(error).__name__}: {error}"
        raise Failure(msg) from error
    return ACCEPTED, "; ".join(report.notes)


def _is_named(text: str, damaged: Path, sources: Path) -> bool:
    parts = [*damaged.relative_to(sources).parts, damaged.stem]
    text = text.encode().decode("unicode_escape", "replace") + text
    return any(part in text or printable(part) in text for part in parts) or str(sources) in text


if __name__ == "__main__":
    main(Path(__file__), __doc__, case, 1000)
