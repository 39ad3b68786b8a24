"""What it costs that a transform draws the same in every process: microseconds of processor time a sample.

    python benchmarks/random_functions.py [--batch 64]

In this process the global generators are saved and restored around every batch, in a worker they are not.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import torch  # noqa: F401  one of the generators that are seeded

import unistore
from unistore.order.permutation import RandomFunction

ROUNDS, BATCHES = 20, 50


def plain(sample: Any) -> Any:
    """A transform that may draw from the global generators."""
    return sample


def with_rng(sample: Any, rng: np.random.Generator) -> Any:
    """A transform that is given a generator."""
    del rng
    return sample


def microseconds(function: Any, batch: int) -> float:
    """Processor time of a sample beyond calling the function, the least of some rounds."""
    numbers, samples = np.arange(batch), [None] * batch
    random_function = RandomFunction(function)
    spent = []
    for _ in range(ROUNDS):
        started = time.process_time()
        for epoch in range(BATCHES):
            random_function.map(samples, 0, np.full(batch, epoch), numbers)
        between = time.process_time()
        for _ in range(BATCHES):
            list(map(plain, samples))
        calling = time.process_time() - between
        spent.append(between - started - calling)
    return min(spent) / (BATCHES * batch) * 1e6


def measure(place: str, batch: int) -> None:
    """Print a line a kind of transform."""
    for name, function in (("seeded global generators", plain), ("rng", with_rng)):
        print(f"{place:<14} {name:<26} {microseconds(function, batch):6.2f}", flush=True)


def main() -> None:
    """Measure here and in a worker of a Loader."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=64)
    batch = parser.parse_args().batch
    measure("this process", batch)

    def measure_worker(_: int) -> None:
        measure("a worker", batch)

    with unistore.Loader([0, 1], num_workers=1, worker_init_fn=measure_worker) as loader:
        next(iter(loader))


if __name__ == "__main__":
    main()
