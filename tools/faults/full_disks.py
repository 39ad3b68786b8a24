"""Fill the disk at every stage of conversion, repair, verification, export and caching.

Every trial gives a command a file system of its own (tmpfs) with less room than it needs: anything from none
to a page too little. The command must end by itself with exit code 1 and one line that names the file and
says what to free, and leave nothing but what the same command resumes; with room, the same command must end
in the same bytes as on a roomy disk. Caches must do without room: the values are those of the store. Other
trials let the n-th fsync of a conversion fail as a dying disk or a full quota does.

    python tools/faults/full_disks.py --trials 300 --seed 1
    python tools/faults/full_disks.py --seed 1 --only 17              # one trial of them

File systems are mounted in a mount namespace of the script's own: it needs Linux, and root or user
namespaces. Where they are refused it says so and leaves with code 77.
"""

from __future__ import annotations

import argparse
import errno
import itertools
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from trials import DATA, FAMILIES, tree

from unistore import Dataset, Loader
from unistore.cli.main import main as command
from unistore.errors import UnistoreError
from unistore.report.suggestions import convert_command

PAGE = 4096
ROOMY = 1 << 30
LIMIT = 60.0
REFUSED = 77
INSIDE = "UNISTORE_TEST_NAMESPACE"
STAGES = (
    ("journal", r"journal\.jsonl"),
    ("lock", r"/lock"),
    ("spill", r"/spill"),
    ("manifest", r"manifest\.jsonl"),
    ("metadata and root", r"zarr\.json"),
    ("shards", r"/c/\d"),
    ("exported file", r"unistore-export/work/files/"),
    ("folder for temporary files", r"unistore-verify|TMPDIR"),
)


class FailedError(Exception):
    """A trial did not end as it must."""


@dataclass(frozen=True)
class Ended:
    """How a command ended: exit code (negative: by a signal), and its output."""

    code: int
    text: str


@dataclass
class Kind:
    """One command, and its expected result.

    Attributes
    ----------
    run
        ``run(disk)``: the command, writing to a folder on the small disk; leaves by its exit code.
    prepare
        ``prepare(disk)``: makes the files that are there before.
    resumes
        Names that a failed command may leave.
    required
        Whether it fails without room, and is done with it; caches may do without.
    expected
        Files that it leaves on the disk, all of them; None: what it leaves on a roomy one.
    enough
        Pages with which it ends well; 0: not measured yet.
    """

    name: str
    run: Callable[[Path], None]
    prepare: Callable[[Path], None] = lambda disk: None
    resumes: tuple[str, ...] = ()
    required: bool = True
    expected: dict[str, bytes] | None = None
    enough: int = 0


def child(job: Callable[[], None], output: Path) -> Ended:
    """Run a job in a forked process, its output in a file."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, 1)
            os.dup2(file, 2)
            job()
            code = 0
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    until = time.monotonic() + LIMIT
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return Ended(os.waitstatus_to_exitcode(status), output.read_text(errors="replace"))
        if time.monotonic() > until:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            raise FailedError(f"hangs: {output.read_text(errors='replace')}")
        time.sleep(0.005)


class Disk:
    """A file system of a given size, with a folder ``disk``, and a page in use: size=0 would be no limit."""

    def __init__(self, place: Path, size: int) -> None:
        self.place = place
        self._mount(f"size={size}")
        (place / "ballast").write_bytes(bytes(PAGE))
        (place / "disk").mkdir()

    def _mount(self, options: str) -> None:
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "unistore-test", self.place], check=True)

    def resize(self, size: int) -> None:
        self._mount(f"remount,size={size}")

    def used(self) -> int:
        state = os.statvfs(self.place)
        return (state.f_blocks - state.f_bfree) * state.f_frsize

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "-l", self.place], check=True)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def convert_words(family: str, disk: Path, workers: int = 0) -> list[str]:
    """The command that converts a family's sources to ``out.zarr`` on a disk."""
    files, options = FAMILIES[family]
    options = {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}
    more = ["--workers", str(workers)]
    line = convert_command(
        family, [str(DATA / file) for file in files], str(disk / "out.zarr"), options, more
    )
    return shlex.split(line)[1:]


def damaged(store: Path, disk: Path) -> None:
    """A copy of a store on the disk with shards missing or changed."""
    target = disk / "out.zarr"
    shutil.copytree(store, target)
    shards = sorted(path for path in target.rglob("c/*") if path.is_file())
    shards += sorted(path for path in target.rglob("c/*/*") if path.is_file())
    for number, shard in enumerate(shards[::2]):
        if number % 2:
            shard.unlink()
        else:
            data = bytearray(shard.read_bytes())
            data[len(data) // 2] ^= 1
            shard.write_bytes(data)


def epoch(store: Path, expected: list[bytes], **options: Any) -> None:
    """Read a store through a cache, twice; the values must be the store's."""
    warnings.simplefilter("ignore")
    try:
        compare(store, expected, **options)
    except UnistoreError as error:
        print(f"error: {error}")
        sys.exit(1)


def compare(store: Path, expected: list[bytes], **options: Any) -> None:
    """Leave with 98 unless all batches are those expected."""
    cache = {name: options.pop(name) for name in ("cache",) if name in options}
    dataset = Dataset(store, **options)
    with Loader(dataset, batch_size=4, shuffle=False, num_workers=0, **cache) as loader:
        for _ in range(2):
            if [pieces(batch) for batch in loader] != expected:
                sys.exit(98)


def pieces(batch: Any) -> bytes:
    """The values of a batch as bytes."""
    return b"".join(np.ascontiguousarray(np.asarray(batch[name])).tobytes() for name in sorted(batch))


def convert(family: str, workers: int, disk: Path) -> None:
    command(convert_words(family, disk, workers))


def export(store: Path, disk: Path) -> None:
    command(["export", str(store), str(disk / "files")])


def repair(sources: list[str], disk: Path) -> None:
    command(["verify", str(disk / "out.zarr"), "--repair", *sources])


def compare_on(store: Path, sources: list[str], disk: Path) -> None:
    """The disk is the place of temporary files."""
    os.environ["TMPDIR"] = tempfile.tempdir = str(disk)
    command(["verify", str(store), "--against", *sources])


def kinds_of(stores: Path, families: Sequence[str]) -> list[Kind]:
    """Every command, for the sources in ``tests/data``."""
    kinds = []
    for family in families:
        (stores / family).mkdir()
        files = FAMILIES[family][0]
        store, sources = stores / f"{family}.zarr", [str(DATA / file) for file in files]
        made = child(partial(convert, family, 0, stores / family), stores / "log")
        if made.code:
            sys.exit(f"FAILED: {family} on a roomy disk: {made.text}")
        (stores / family / "out.zarr").rename(store)
        resumes = ("out.zarr.unistore-build",)
        kinds.append(
            Kind(
                f"convert {family}",
                partial(convert, family, 0),
                resumes=resumes,
                expected={f"out.zarr/{key}": data for key, data in tree(store).items()},
            )
        )
        kinds.append(Kind(f"export {family}", partial(export, store)))
        if family in ("point_cloud", "rows"):
            kinds.append(
                Kind(
                    f"repair {family}",
                    partial(repair, sources),
                    partial(damaged, store),
                    resumes=("out.zarr",),
                    expected={f"out.zarr/{key}": data for key, data in tree(store).items()},
                )
            )
        if family == "point_cloud":
            kinds.append(
                Kind(
                    f"convert {family}, 2 workers",
                    partial(convert, family, 2),
                    resumes=resumes,
                    expected=kinds[-3].expected,
                )
            )
            against = partial(compare_on, store, sources)
            kinds.append(Kind(f"verify {family} --against", against, expected={}))
    store = stores / f"{families[0]}.zarr"
    with Loader(Dataset(store), batch_size=4, shuffle=False, num_workers=0) as loader:
        values = [pieces(batch) for batch in loader]

    def shared(disk: Path) -> None:
        os.environ["TMPDIR"] = tempfile.tempdir = str(disk)
        epoch(store, values, cache="all")

    kinds.append(Kind("Loader's cache", shared, required=False))
    kinds.append(
        Kind("cache_dir", lambda disk: epoch(store, values, cache_dir=disk / "cache"), required=False)
    )
    return kinds


class Trials:
    """Runs trials in a folder, and counts them."""

    def __init__(self, work: Path, seed: int, families: Sequence[str]) -> None:
        self.seed = seed
        self.work = work
        self.mount = work / "mount"
        self.mount.mkdir()
        self.disk = self.mount / "disk"
        stores = work / "stores"
        stores.mkdir()
        self.families = families
        self.kinds = kinds_of(stores, families)
        self.counts: Counter[tuple[str, str]] = Counter()

    def fits(self, kind: Kind, size: int) -> bool:
        """Whether a command ends well with so many bytes of disk."""
        with Disk(self.mount, ROOMY) as disk:
            kind.prepare(self.disk)
            disk.resize(disk.used() + size)
            return child(lambda: kind.run(self.disk), self.work / "log").code == 0

    def measure(self, kind: Kind) -> None:
        """Measure the pages that a command needs, and keep the files that it writes."""
        with Disk(self.mount, ROOMY) as disk:
            kind.prepare(self.disk)
            before = disk.used()
            ended = child(lambda: kind.run(self.disk), self.work / "log")
            if ended.code:
                raise FailedError(f"on a roomy disk: {ended}")
            found = tree(self.disk)
            written = (disk.used() - before) // PAGE  # with a page less, the files themselves have no room
        if kind.expected is None:
            kind.expected = found
        if kind.required and found != kind.expected:
            raise FailedError(f"differs on a roomy disk: {sorted(found)}")
        least = max(1, written - 1)
        pages = least + 1
        while kind.required and not self.fits(kind, pages * PAGE):
            pages *= 2
        low, high = max(least, pages // 2), pages
        while kind.required and high - low > 1 + high // 32:
            middle = (low + high) // 2
            low, high = (low, middle) if self.fits(kind, middle * PAGE) else (middle, high)
        kind.enough = high if kind.required else 64

    def trial(self, number: int) -> None:
        """One trial; raises `FailedError`."""
        rng = random.Random(f"{self.seed}:{number}")
        kind = self.kinds[number % len(self.kinds)]
        if not kind.enough:
            self.measure(kind)
        share, pages = rng.random(), rng.randrange(kind.enough)
        if share < 0.25:  # the last steps need hardly any room, as the first do
            pages = rng.randrange(kind.enough * 9 // 10, kind.enough + 1)
        elif share < 0.5:
            pages = rng.randrange(4)
        with Disk(self.mount, ROOMY) as disk:
            kind.prepare(self.disk)
            disk.resize(disk.used() + pages * PAGE)
            ended = child(lambda: kind.run(self.disk), self.work / "log")
            if ended.code == 0:
                stage = "there was room" if kind.required else "did without room"
            else:
                stage = self.refused(kind, ended)
            disk.resize(ROOMY)
            if ended.code:
                again = child(lambda: kind.run(self.disk), self.work / "log")
                if again.code:
                    raise FailedError(f"with room, the same command ends with {again.code}: {again.text}")
            if kind.required and tree(self.disk) != kind.expected:
                raise FailedError(f"with room, other files: {sorted(tree(self.disk))}")
            if kind.name.startswith(("convert", "repair")) and names(self.disk) != ["out.zarr"]:
                raise FailedError(f"left beside the store: {names(self.disk)}")
        self.counts[kind.name, stage] += 1

    def refused(self, kind: Kind, ended: Ended) -> str:
        """Check how a command failed; returns its stage."""
        if ended.code == 2 and "any store of these sources takes" in ended.text:
            return "refused beforehand"
        if ended.code != 1:
            raise FailedError(f"ended with {ended.code}: {ended.text}")
        lines = [line for line in re.split(r"[\r\n]+", ended.text) if line]
        errors = [line for line in lines if line.startswith("error: ")]
        said = re.search(r"(No space left on device|disk is full).*(free|room)", ended.text)
        if len(errors) != 1 or lines[-1] != errors[0] or not said or "Traceback" in ended.text:
            raise FailedError(f"not one line that says what to free: {ended.text}")
        left = [name for name in names(self.disk) if name not in kind.resumes]
        if left:
            raise FailedError(f"left on the disk: {left}")
        return next((name for name, form in STAGES if re.search(form, errors[0])), "destination")

    def fsync_trial(self, number: int) -> None:
        """A conversion whose n-th fsync fails, and the same command again."""
        rng = random.Random(f"{self.seed}:fsync:{number}")
        family = rng.choice(self.families)
        code, text = rng.choice([(errno.EIO, "Input/output error"), (errno.EDQUOT, "Disk quota exceeded")])
        wanted = rng.randrange(60)
        calls = itertools.count()

        original = os.fsync

        def fsync(fd: Any) -> None:
            if next(calls) == wanted:
                raise OSError(code, os.strerror(code))
            original(fd)

        def failing() -> None:
            import unistore.zarr3.durable

            os.fsync = unistore.zarr3.durable.fsync = fsync
            command(convert_words(family, self.disk))

        with Disk(self.mount, ROOMY):
            ended = child(failing, self.work / "log")
            stage = f"fsync: {text}"
            if ended.code == 0:
                stage = "fsync: not so many of them"
            elif ended.code != 1 or not re.search(rf"\({text}\)|: {text}; ", ended.text):
                raise FailedError(f"{family}, fsync {wanted}: ended with {ended.code}: {ended.text}")
            elif "same command" not in ended.text and "is finished" not in ended.text:
                raise FailedError(f"{family}, fsync {wanted}: no fix: {ended.text}")
            again = child(lambda: command(convert_words(family, self.disk)), self.work / "log")
            if again.code and "finished store is there already" not in again.text:
                raise FailedError(f"{family}, fsync {wanted}: the same command fails: {again.text}")
            kind = next(kind for kind in self.kinds if kind.name == f"convert {family}")
            if tree(self.disk) != kind.expected:
                raise FailedError(f"{family}, fsync {wanted}: other files: {sorted(tree(self.disk))}")
        self.counts["convert", stage] += 1

    def all(self, trials: range) -> int:
        """Run trials; returns how many failed."""
        failed = 0
        for number in trials:
            name = self.kinds[number % len(self.kinds)].name
            try:
                if number % 10 == 9:
                    name = "convert, fsync"
                    self.fsync_trial(number)
                else:
                    self.trial(number)
            except FailedError as error:
                failed += 1
                print(f"FAILED: {name}: {error}", flush=True)
                families = " ".join(self.families)
                print(f"again: full_disks.py --seed {self.seed} --families {families} --only {number}")
        return failed


def enter_namespace() -> None:
    """Restart in a mount namespace, or exit with the reason."""
    if INSIDE in os.environ:
        return
    unshare = shutil.which("unshare")
    for option in ("-m", "-rm") if unshare else ():
        assert unshare
        words = [unshare, option]
        probe = [*words, "mount", "-t", "tmpfs", "none", "/mnt"]
        if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
            os.environ[INSIDE] = "1"
            os.execv(unshare, [*words, sys.executable, *sys.argv])
    print("no small file systems here: unshare and mount are refused or missing")
    sys.exit(REFUSED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="number of one trial to run")
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--work", type=Path, help="folder to work in (default: the one for temporary files)")
    given = parser.parse_args()
    enter_namespace()
    with tempfile.TemporaryDirectory(prefix="unistore-full-", dir=given.work) as work:
        trials = Trials(Path(work), given.seed, given.families)
        numbers = range(given.trials) if given.only is None else range(given.only, given.only + 1)
        failed = trials.all(numbers)
    print("| command | stage | trials |\n|---|---|---|")
    for (name, stage), count in sorted(trials.counts.items()):
        print(f"| {name} | {stage} | {count} |")
    print(f"{len(numbers)} trials, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
