"""Scripts of 12 lines, from files to a training loop, beside the loaders that users have today.

    python benchmarks/from_files.py [--quick] [--only NAME …] [--rounds N] [--work FOLDER]

``examples/from_files`` has a script for each of five documents. A row of the table is one of them, on
synthetic files in the layout of its document. Times are wall seconds of whole processes, with their imports,
and in brackets processor seconds of these and their workers: medians of the rounds. Each process reads every
sample once, and takes a step of the same small model for each batch.

The columns: the document's own loader; ours, which converts first; ours again; ours that is killed in the
first conversion and started again (only the second process counts); ours as two ranks that start at once,
without a store; ours after files were added. Samples and stores are compared, and a difference is an error.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ct
import h5py
import numpy as np
import point_cloud
import spike
import torch
import trajectory
from torch.utils.data import DataLoader, Dataset

SCRIPTS = Path(__file__).resolve().parents[1] / "examples" / "from_files"
HELD = "held-back"
"""Folder of the files that are added later."""
TIMEOUT = 900
# Runs a script, and prints how many samples its loader delivered
_COUNTED = """
import runpy, sys, unistore
made, begin = [], unistore.Loader.__init__
def begin_and_keep(self, *arguments, **options):
    made.append(self)
    begin(self, *arguments, **options)
unistore.Loader.__init__ = begin_and_keep
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
print(made[0].stats()["samples"])
"""


def make_clouds(folder: Path, *, quick: bool) -> None:
    point_cloud.make_source(folder, quick=quick)
    (folder.parent / HELD).mkdir()
    point_cloud.make_file(folder.parent / HELD / "tile_x.h5", 4, 99)


def make_spikes(folder: Path, *, quick: bool) -> None:
    sequences, frames = spike.make_source(folder, quick=quick)
    held = folder.parent / HELD / sequences[0].relative_to(folder).with_name("sequence_x")
    spike.make_sequence(held, frames // 2, 99)


def make_robot(folder: Path, *, quick: bool) -> None:
    trajectory.make_source(folder, quick=quick)
    (folder.parent / HELD).mkdir()
    trajectory.make_file(folder.parent / HELD / "more.hdf5", 100, appended=False)


def make_ct(folder: Path, *, quick: bool) -> None:
    ct.make_source(folder, quick=quick)
    ct.make_case(folder.parent / HELD / "case_x", 96, 99)


def make_rows(folder: Path, *, quick: bool) -> None:
    rng = np.random.default_rng(0)
    held = folder.parent / HELD
    for parent in (folder, held):
        parent.mkdir()
    for path in [*(folder / f"part_{number}.h5" for number in range(4)), held / "part_x.h5"]:
        count = 1000 if quick or path.parent == held else 10_000
        with h5py.File(path, "w") as file:
            file["data"] = rng.standard_normal((count, 1024), np.float32)
            file["label"] = rng.integers(0, 10, count)


class RowFiles(Dataset[Any]):
    """The fifth document's MultiH5Dataset: a global index, and a file that is opened for each sample."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files
        self._ends: list[int] = []
        for path in files:
            with h5py.File(path, "r") as file:
                self._ends.append(len(file["data"]) + (self._ends[-1] if self._ends else 0))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        number = bisect_right(self._ends, index)
        row = index - (self._ends[number - 1] if number else 0)
        with h5py.File(self._files[number], "r") as file:
            return file["data"][row], file["label"][row]


class Trained:
    """A model, and what takes its steps, as the scripts do."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self._optimizer = torch.optim.Adam(model.parameters())

    def step(self, loss: torch.Tensor) -> torch.Tensor:
        """Take a step, and return the loss."""
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return loss.detach()


def clouds_before(folder: Path) -> Iterable[torch.Tensor]:
    files = sorted(folder.glob("*.h5"))
    dataset = point_cloud.Documents(files, len(files))
    trained = Trained(torch.nn.Linear(3, 32))
    for samples in DataLoader(dataset, 8, shuffle=True, collate_fn=list):
        xyz = torch.cat([torch.from_numpy(sample["xyz"]) for sample in samples])
        classes = torch.cat([torch.from_numpy(sample["classification"]) for sample in samples])
        yield trained.step(torch.nn.functional.cross_entropy(trained.model(xyz), classes.long()))


def spikes_before(folder: Path) -> Iterable[torch.Tensor]:
    sequences = sorted((folder / "train").iterdir())
    frames = len(list((sequences[0] / "spike").iterdir()))
    dataset = spike.Documents(sequences, frames, "on-the-fly")
    trained = Trained(torch.nn.ConvTranspose2d(5, 3, 2, stride=2))
    for clip in DataLoader(dataset, 1, shuffle=True, num_workers=2):
        sharp = clip["sharp"][0] / 255
        yield trained.step((trained.model(clip["voxel"][0].float()) - sharp).square().mean())


def robot_before(folder: Path) -> Iterable[torch.Tensor]:
    (path,) = folder.glob("*.hdf5")
    buffer = trajectory.LazyBuffer(path)
    with h5py.File(path) as file:
        batches = -(-len(file["actions"]) // 256)
    trained = Trained(torch.nn.Linear(16, 4))
    for _ in range(batches):
        _, _, _, joint, action, *_ = buffer.sample(256)
        yield trained.step((trained.model(joint) - action).square().mean())


def ct_before(folder: Path) -> Iterable[torch.Tensor]:
    dataset = ct.Documents([ct.window_file(case) for case in sorted(folder.iterdir())], "RAM")
    trained = Trained(torch.nn.Linear(3, 1))
    for samples in DataLoader(dataset, 2, shuffle=True, num_workers=2, collate_fn=list):
        coords = torch.cat([torch.from_numpy(sample["coords"]) for sample in samples])
        yield trained.step(trained.model(coords.float() / 256).square().mean())


def rows_before(folder: Path) -> Iterable[torch.Tensor]:
    dataset = RowFiles(sorted(folder.glob("*.h5")))
    trained = Trained(torch.nn.Linear(1024, 10))
    for data, labels in DataLoader(dataset, 64, shuffle=True, num_workers=2):
        yield trained.step(torch.nn.functional.cross_entropy(trained.model(data), labels))


@dataclass(frozen=True, slots=True)
class Document:
    """What one document's users have: how their files are made, and a training loop over them."""

    make: Callable[..., None]
    before: Callable[[Path], Iterable[torch.Tensor]]


DOCUMENTS = {
    "clouds": Document(make_clouds, clouds_before),
    "spikes": Document(make_spikes, spikes_before),
    "robot": Document(make_robot, robot_before),
    "ct": Document(make_ct, ct_before),
    "rows": Document(make_rows, rows_before),
}


@dataclass(frozen=True, slots=True)
class Run:
    """Seconds of one or several processes, samples that their loaders delivered, and their messages."""

    wall: float
    processor: float
    samples: int
    messages: str


def processor_seconds() -> float:
    """Processor seconds of all children that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def run(commands: Sequence[Sequence[str]], cache: Path, *, ranks: bool = False) -> Run:
    """Run commands at once, each a rank of its own if `ranks`. An exit status is an error."""
    before = processor_seconds()
    began = time.perf_counter()
    processes = []
    for rank, command in enumerate(commands):
        environment = {**os.environ, "UNISTORE_CACHE": str(cache)}
        if ranks:
            environment |= {"RANK": str(rank), "WORLD_SIZE": str(len(commands))}
            environment |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(len(commands))}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        processes.append(subprocess.Popen(command, env=environment, **pipes))
    done = [process.communicate(timeout=TIMEOUT) for process in processes]
    wall = time.perf_counter() - began
    messages = "".join(errors for _, errors in done)
    if any(process.returncode for process in processes):
        sys.exit(f"{commands[0]} failed:\n{messages}")
    samples = sum(int(output or 0) for output, _ in done)
    return Run(wall, processor_seconds() - before, samples, messages)


def ours(name: str, folder: Path) -> list[str]:
    """Return the command of a script, with a count of its samples."""
    return [sys.executable, "-c", _COUNTED, str(SCRIPTS / f"{name}.py"), str(folder)]


def kill_in_conversion(command: Sequence[str], cache: Path) -> None:
    """Start a script, and kill it once its conversion has done something."""
    environment = {**os.environ, "UNISTORE_CACHE": str(cache)}
    process = subprocess.Popen(
        command, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
    )
    while not any(cache.glob("stores/*.unistore-build/journal*")):
        if process.poll() is not None:
            sys.exit(f"{command}: ended before it could be killed")
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def digest(cache: Path) -> str:
    """Return the digest of the only store in a cache, which must be finished."""
    (store,) = cache.glob("stores/*.zarr")
    root: dict[str, Any] = json.loads((store / "zarr.json").read_text())
    return str(root["attributes"]["unistore"]["seal"]["digest"])


def check(what: str, *, holds: bool) -> None:
    """Exit if something does not hold."""
    if not holds:
        sys.exit(f"wrong: {what}")


def measure(name: str, work: Path) -> dict[str, Run]:
    """Run every way once on the files below `work`."""
    sources = work / "sources"
    before = [sys.executable, __file__, "--before", name, str(sources)]
    command = ours(name, sources)
    cache = work / "cache"
    runs = {"document": run([before], cache), "first start": run([command], cache)}
    runs["second start"] = run([command], cache)
    every = runs["first start"].samples
    check(f"{name}: the second start converts", holds="converting" not in runs["second start"].messages)
    check(f"{name}: samples of the second start", holds=runs["second start"].samples == every)
    whole = digest(cache)

    killed = work / "killed"
    kill_in_conversion(command, killed)
    runs["killed, then"] = run([command], killed)
    check(f"{name}: samples after a kill", holds=runs["killed, then"].samples == every)
    check(f"{name}: the store after a kill", holds=digest(killed) == whole)

    ranked = work / "ranked"
    runs["two ranks"] = run([command, command], ranked, ranks=True)
    check(f"{name}: ranks convert once", holds=runs["two ranks"].messages.count(": converted") == 1)
    check(f"{name}: the store of ranks", holds=digest(ranked) == whole)
    check(f"{name}: samples of ranks", holds=runs["two ranks"].samples == ranked_samples(name, every))

    grown = work / "grown"
    shutil.copytree(sources, grown)
    shutil.copytree(cache, work / "grown-cache")
    run([ours(name, grown)], work / "grown-cache")
    shutil.copytree(work / HELD, grown, dirs_exist_ok=True)
    runs["files added"] = run([ours(name, grown)], work / "grown-cache")
    check(f"{name}: added files", holds=runs["files added"].samples > every)
    check(f"{name}: a version", holds=": version 2" in runs["files added"].messages)
    for path in (cache, killed, ranked, grown, work / "grown-cache"):
        shutil.rmtree(path)
    return runs


def ranked_samples(name: str, samples: int) -> int:
    """Return how many of the samples two ranks read in whole batches."""
    batch = {"clouds": 8, "spikes": 1, "robot": 256, "ct": 2, "rows": 64}[name]
    return samples // (2 * batch) * 2 * batch


def shown(runs: Sequence[Run]) -> str:
    """Return medians of wall and processor seconds."""
    wall = statistics.median(each.wall for each in runs)
    processor = statistics.median(each.processor for each in runs)
    return f"{wall:.1f} ({processor:.1f})"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="less data")
    parser.add_argument("--only", nargs="+", choices=DOCUMENTS, default=list(DOCUMENTS))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--work", type=Path, help="where files and stores are made")
    parser.add_argument("--before", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.before:
        name, folder = given.before
        for _ in DOCUMENTS[name].before(Path(folder)):
            pass
        return
    is_begun = False
    for name in given.only:
        with tempfile.TemporaryDirectory(prefix="unistore-from-files-", dir=given.work) as folder:
            work = Path(folder)
            DOCUMENTS[name].make(work / "sources", quick=given.quick)
            rounds = [measure(name, work) for _ in range(given.rounds)]
        if not is_begun:
            print(f"| seconds | samples | {' | '.join(rounds[0])} |")
            print(f"|---|{'--:|' * (1 + len(rounds[0]))}")
            is_begun = True
        cells = [shown([each[way] for each in rounds]) for way in rounds[0]]
        print(f"| {name} | {rounds[0]['first start'].samples:,} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
