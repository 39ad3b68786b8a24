"""Interrupt training at random, resume with other workers and ranks: samples are those of one serial pass.

A run writes the samples of every step to a log and, every few steps, a checkpoint: the loader's state and the
length of the log. It drives all its ranks step by step, and ends at a random moment: killed with SIGKILL from
outside, or by itself in the middle of a step, leaving without a word, or closing its loaders. Its workers
must end by themselves then. The next run, a process of its own, cuts the log back to the checkpoint and goes
on with other numbers of workers (0 to 3) and ranks (1 to 3), another batch size and prefetch.

In the end the log must hold, epoch after epoch, what one serial pass gives: the order from the sampler or the
sequence, without a Loader; the samples from the source file, or read one at a time where they are random.

    python tools/faults/resume.py                       # 200 interruptions of every case
    python tools/faults/resume.py --interruptions 20 --case blocks
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray

import unistore
from unistore.order.permutation import EpochIndex
from unistore.order.sequences import BlockShuffle, Weighted

DATA = Path(__file__).parents[2] / "tests" / "data"
SEED, ROWS, FIRST_BATCH = 11, 701, 8
TIMEOUT = 60
"""Seconds that one run, or the end of its workers, may take."""
ENDS = ("killed", "killed", "killed itself", "closed", "left")
PR_SET_CHILD_SUBREAPER = 36


@dataclass
class Case:
    """A dataset, the Loader's options for its order, and the expected order."""

    dataset: unistore.Dataset
    options: dict[str, Any]
    labels: NDArray[np.int64] | None
    order: Any = field(repr=False)
    drawn: str = ""
    """Key of what is random in a sample, where there are no labels."""

    def serial(self, epoch: int) -> NDArray[np.int64]:
        """Marks (n,) of the samples of an epoch, in order."""
        indices = self.order(epoch)
        if self.labels is not None:
            return self.labels[indices]
        samples = (self.dataset[EpochIndex(index, epoch)] for index in indices)
        return np.array([_mark(sample[self.drawn]) for sample in samples], np.int64)

    def marks(self, batch: Any) -> NDArray[np.int64]:
        """Marks (B,) of the samples of a batch."""
        if self.labels is not None:
            found: NDArray[np.int64] = batch["label"].numpy()
            return found
        return np.array([_mark(values) for values in batch[self.drawn]], np.int64)


def _mark(values: torch.Tensor) -> int:
    """Hash of a sample."""
    return xxhash.xxh3_64_intdigest(values.numpy().tobytes()) >> 1


def draw_globally(sample: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Draw from the three global generators."""
    numbers = [float(sample["label"]), random.random(), np.random.random(), float(torch.rand(()))]  # noqa: NPY002
    return {"drawn": torch.tensor(numbers, dtype=torch.float64)}


def draw_from(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """Draw from the generator of the sample."""
    return {"drawn": torch.tensor([float(sample["label"]), rng.random()], dtype=torch.float64)}


def _sampler(dataset: unistore.Dataset) -> Any:
    def order(epoch: int) -> list[int]:
        sampler = unistore.Shuffle(dataset, SEED)
        sampler.set_epoch(epoch)
        return [at.index for at in sampler]

    return order


def make_cases(folder: Path) -> dict[str, Case]:
    """Stores of rows whose labels the sources hold, and of volumes that random patches are drawn from."""
    labels = np.random.default_rng(SEED).permutation(10**6)[: 2 * ROWS].astype(np.int64)
    (folder / "sources").mkdir()
    stores = []
    for number in range(2):
        part = labels[number * ROWS : (number + 1) * ROWS]
        source = folder / "sources" / f"{number}.npz"
        np.savez(source, label=part, data=np.repeat(part[:, None], 600, 1))
        stores.append(folder / f"{number}.zarr")
        unistore.convert([source], stores[-1], "rows")
    volumes = folder / "volumes.zarr"
    unistore.convert([DATA / "ct" / f"totalseg_{name}_hu.npy" for name in "ab"], volumes, "ct")
    rows, both = unistore.Dataset(stores[0]), unistore.Dataset(stores)
    shares = unistore.Dataset(stores, weights=[3, 1])
    globally = unistore.Dataset(stores[0], transform=draw_globally, seed=SEED)
    by_rng = unistore.Dataset(stores[0], transform=draw_from, seed=SEED)
    patches = unistore.Dataset(volumes, unistore.Patches(8, per_volume=150), fields=["image"], seed=SEED)
    weights = np.random.default_rng(SEED).random(ROWS)
    offsets = both.block_offsets()
    blocks = BlockShuffle.within(offsets, both.open_blocks, SEED, deal=FIRST_BATCH)
    draws = Weighted(weights, seed=SEED)
    return {
        "full": Case(rows, {"shuffle": True}, labels, _sampler(rows)),
        "blocks": Case(
            both, {"shuffle": "blocks"}, labels, lambda epoch: blocks.indices(epoch, 0, len(blocks))
        ),
        "weighted": Case(
            rows,
            {"shuffle": True, "weights": weights},
            labels,
            lambda epoch: draws.indices(epoch, 0, len(draws)),
        ),
        "stores": Case(both, {"shuffle": True}, labels, _sampler(both)),
        "shares": Case(shares, {"shuffle": True}, labels, _sampler(shares)),
        "random patches": Case(patches, {"shuffle": True}, None, _sampler(patches), "image"),
        "random transform": Case(globally, {"shuffle": True}, None, _sampler(globally), "drawn"),
        "transform with rng": Case(by_rng, {"shuffle": True}, None, _sampler(by_rng), "drawn"),
    }


class Run:
    """One process of training: all ranks, step by step.

    Parameters
    ----------
    case
        What is trained on.
    folder
        Where log and checkpoint are.
    rng
        Of this run's circumstances.
    """

    def __init__(self, case: Case, folder: Path, rng: random.Random) -> None:
        self.case, self.folder, self.rng = case, folder, rng
        self.saved: dict[str, Any] = {"log": 0, "loader": None}
        if (folder / "checkpoint.json").exists():
            self.saved = json.loads((folder / "checkpoint.json").read_text())
        self.log = os.open(folder / "log", os.O_RDWR | os.O_CREAT | os.O_APPEND)
        os.ftruncate(self.log, self.saved["log"])

    def delivered(self) -> bool:
        """Whether the log holds more than the checkpoint that this run began with."""
        return os.fstat(self.log).st_size > self.saved["log"]

    def close(self) -> None:
        os.close(self.log)

    def train(self, steps: int, end: str) -> None:
        """Run so many steps, then end in the given way."""
        world = self.rng.randrange(1, 4)
        batch = FIRST_BATCH if self.saved["loader"] is None else self.rng.choice((3, 4, 8, 16))
        loaders = [
            unistore.Loader(
                self.case.dataset,
                batch,
                seed=SEED,
                drop_last=False,
                rank=rank,
                world_size=world,
                num_workers=self.rng.randrange(4) if rank == 0 else self.rng.choice((0, 0, 1)),
                prefetch_factor=self.rng.randrange(1, 5),
                **self.case.options,
            )
            for rank in range(world)
        ]
        for loader in loaders:
            if self.saved["loader"] is not None:
                loader.load_state_dict(self.saved["loader"])
        for number, (epoch, found) in enumerate(self._steps(loaders)):
            entries = np.stack([np.full(len(found), epoch), found], 1).astype(np.int64)
            os.write(self.log, entries.tobytes())
            if number >= steps and end == "killed itself":
                os.kill(os.getpid(), signal.SIGKILL)
            if number == 0 or self.rng.random() < 0.5:
                self._save(loaders[0].state_dict())
            if number >= steps and end != "killed":
                break
        for loader in loaders if end == "closed" else ():
            loader.close()

    def _steps(self, loaders: list[unistore.Loader]) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Epoch and marks of every step of all ranks, without end."""
        while True:
            epoch = loaders[0].epoch
            iterators = [iter(loader) for loader in loaders]
            for first in iterators[0]:
                others = [next(iterator, None) for iterator in iterators[1:]]
                batches = [first, *(batch for batch in others if batch is not None)]
                yield epoch, np.concatenate([self.case.marks(batch) for batch in batches])
            for iterator in iterators[1:]:
                assert next(iterator, None) is None, "a rank has more steps than the first"

    def _save(self, state: dict[str, Any]) -> None:
        part = self.folder / "checkpoint.part"
        part.write_text(json.dumps({"log": os.fstat(self.log).st_size, "loader": state}))
        part.replace(self.folder / "checkpoint.json")


def interrupt(case: Case, folder: Path, seed: str) -> tuple[str, bool]:
    """One run in a process of its own; how it ended, and whether it delivered anything."""
    rng = random.Random(seed)
    end = rng.choice(ENDS)
    run = Run(case, folder, rng)
    pid = os.fork()
    if pid == 0:
        try:
            os.setpgid(0, 0)
            run.train(rng.randrange(1, 25), end)
        except BaseException:
            sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    faulthandler.dump_traceback_later(TIMEOUT, exit=True)
    if end == "killed":
        while not run.delivered() and not os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.1))
        os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code != (-signal.SIGKILL if end in ("killed", "killed itself") else 0):
        sys.exit(f"FAILED: a run that was to be {end} ended with {code}")
    while True:  # its workers are children of this process now, and must end by themselves
        try:
            os.waitpid(-pid, 0)
        except ChildProcessError:
            break
    faulthandler.cancel_dump_traceback_later()
    delivered = run.delivered()
    run.close()
    return end, delivered


def run_trials(case: Case, folder: Path, interruptions: int, seed: int) -> str:
    """Interrupt so many times, then compare; returns a line of figures."""
    ends: Counter[str] = Counter()
    inside = runs = 0
    while ends.total() < interruptions:
        runs += 1
        end, delivered = interrupt(case, folder, f"{seed} {folder.name} {runs}")
        ends[end] += delivered
        saved = json.loads((folder / "checkpoint.json").read_text())["loader"]
        inside += delivered and saved["delivered"] > 0
    epoch, found = np.fromfile(folder / "log", np.int64).reshape(-1, 2).T
    last = int(epoch[-1])
    if np.any(np.diff(epoch) < 0):
        sys.exit("FAILED: epochs do not follow each other")
    for number in range(last + 1):
        expected, had = case.serial(number), found[epoch == number]
        if not np.array_equal(had, expected[: len(had)]) or (number < last and len(had) < len(expected)):
            sys.exit(f"FAILED: epoch {number} is not what one serial pass gives")
    listed = ", ".join(f"{count} {end}" for end, count in sorted(ends.items()))
    return (
        f"{ends.total()} interruptions ({listed}), {inside} in the middle of an epoch; "
        f"{len(found):,} samples of {last + 1} epochs as in one serial pass"
    )


def main() -> None:
    """Run the cases; exits with a message at the first difference."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--interruptions", type=int, default=200)
    parser.add_argument("--case", action="append", help="one of those that are printed; may be repeated")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    with tempfile.TemporaryDirectory(prefix="resume-") as name:
        cases = make_cases(Path(name))
        for number, case in enumerate(options.case or cases):
            folder = Path(name) / f"run-{number}"
            folder.mkdir()
            print(
                f"{case}: {run_trials(cases[case], folder, options.interruptions, options.seed)}", flush=True
            )


if __name__ == "__main__":
    main()
