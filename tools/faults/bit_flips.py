"""Change single bytes of a store at random: verification must find every change, repair must undo it.

Each trial changes one byte of one file to another value, or one bit of it. Half of the trials choose among
all bytes of the store, half among its files (root and manifest among them), so that small documents get their
share. The whole of ``unistore verify`` must call the store damaged and name the changed file (changes of the
manifest may show as other files that differ from their lines); then the byte is put back, or, in the repair
trials, ``unistore verify --repair`` must bring back the very bytes of the whole store.

    python tools/faults/bit_flips.py --changes 1000 --repairs 50
    python tools/faults/bit_flips.py --family spike --changes 200
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from trials import FAMILIES, family, make_parser, tree

from unistore import repair, verify
from unistore.conversion.run import run
from unistore.store.names import MANIFEST, ROOT


def changes(files: dict[str, bytes], count: int, rng: random.Random) -> Iterator[tuple[str, int, int]]:
    """File, position and new value of each change."""
    keys = sorted(key for key in files if files[key])
    sizes = [len(files[key]) for key in keys]
    for number in range(count):
        (key,) = rng.choices(keys, sizes) if number % 2 else [rng.choice(keys)]
        at = rng.randrange(len(files[key]))
        before = files[key][at]
        one_bit = before ^ (1 << rng.randrange(8))
        other = (before + rng.randrange(1, 256)) % 256
        yield key, at, one_bit if number % 4 < 2 else other


def write(path: Path, data: bytes, at: int, value: int) -> None:
    """Write a file with one byte changed."""
    path.write_bytes(data[:at] + bytes([value]) + data[at + 1 :])


def finds(store: Path, key: str) -> bool:
    """Whether verification names the changed file, or says that the manifest is not the sealed one."""
    found = verify(store)
    return not found.ok and key in {problem.location for problem in found.problems}


def trials(name: str, work: Path, count: int, repairs: int, rng: random.Random) -> str:
    """Convert one family's sources and change bytes of the store; returns a line of figures."""
    converter, sources = family(name)
    store = work / f"{name}.zarr"
    run(converter, sources, store)
    sound = tree(store)
    kinds = {"root": 0, "manifest": 0, "documents": 0, "shards": 0}
    began = time.perf_counter()
    for key, at, value in changes(sound, count, rng):
        write(store / key, sound[key], at, value)
        if not finds(store, key):
            sys.exit(f"FAILED: {name}: byte {at} of {key} changed to {value} was not found")
        (store / key).write_bytes(sound[key])
        kind = {ROOT: "root", MANIFEST: "manifest"}.get(key, "documents" if key.endswith(ROOT) else "shards")
        kinds[kind] += 1
    searched = time.perf_counter() - began
    began = time.perf_counter()
    for key, at, value in changes(sound, repairs, rng):
        write(store / key, sound[key], at, value)
        if not repair(store, sources).ok or tree(store) != sound:
            sys.exit(f"FAILED: {name}: byte {at} of {key} changed to {value} was not repaired")
    repaired = time.perf_counter() - began
    if {path.name for path in work.iterdir()} != {store.name}:
        sys.exit(f"FAILED: {name}: left behind: {sorted(path.name for path in work.iterdir())}")
    shutil.rmtree(store)
    size = sum(map(len, sound.values()))
    listed = ", ".join(f"{number} in {kind}" for kind, number in kinds.items())
    return (
        f"{name}: {len(sound)} files of {size:,} bytes; {count} changes ({listed}), all found in "
        f"{searched:.1f} s; {repairs} repaired to the same bytes in {repaired:.1f} s"
    )


def main(arguments: list[str] | None = None) -> None:
    """Run the trials; exits with a message at the first that fails."""
    parser = make_parser(__doc__)
    parser.add_argument("--family", choices=list(FAMILIES), help="one family; all of them if not given")
    parser.add_argument("--changes", type=int, default=1000, help="changes to find, per family")
    parser.add_argument("--repairs", type=int, default=50, help="changes to repair, per family")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, help="folder to work in; a temporary one if not given")
    given = parser.parse_args(arguments)
    families = [given.family] if given.family else list(FAMILIES)
    with tempfile.TemporaryDirectory(dir=given.work) as work:
        for name in families:
            line = trials(name, Path(work), given.changes, given.repairs, random.Random(given.seed))
            print(line, flush=True)
    total = len(families) * given.changes
    print(f"{total} single-byte changes, {total} found; {len(families) * given.repairs} repaired")


if __name__ == "__main__":
    main()
