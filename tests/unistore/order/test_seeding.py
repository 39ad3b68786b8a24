"""Global generators are seeded before each call of a user's function, and restored after it."""

from __future__ import annotations

import functools
import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import unistore
from unistore.order.permutation import EpochIndex, seed_worker, takes_rng

SAMPLES = 64
SEED = 5
MASK = (1 << 64) - 1


def by_torch(sample):
    return {**sample, "r": torch.rand((), dtype=torch.float64)}


def by_rng(sample, rng):
    return {**sample, "r": rng.random()}


class ByKeyword:
    def __call__(self, sample, *, rng=None):
        return {**sample, "r": rng.random()}


@pytest.fixture
def path(make_store):
    return make_store("rows", {"rows/label": np.arange(SAMPLES) * 3}, count=SAMPLES)


def test_rng_is_philox_of_seed_epoch_and_index(path):
    dataset = unistore.Dataset(path, transform=by_rng, seed=-3)
    key = np.array([(-3 ^ 0x6A09E667F3BCC908) & MASK, 0], np.uint64)
    for epoch, index in ((0, 0), (0, 5), (7, 63)):
        counter = np.array([0, 0, epoch, index], np.uint64)
        expected = np.random.Generator(np.random.Philox(key=key, counter=counter)).random()
        assert dataset[EpochIndex(index, epoch)]["r"] == expected


def split_mix(seed: int, epoch: int, index: int) -> list[int]:
    """Three words of SplitMix64, in whole numbers of Python."""

    def mix(z: int) -> int:
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
        return z ^ z >> 31

    golden = 0x9E3779B97F4A7C15
    state = mix(epoch + mix(seed) & MASK)
    state = mix(state + golden + index * golden & MASK)
    return [mix(state + step * golden & MASK) for step in (1, 2, 3)]


def test_global_generators_are_seeded_as_their_own_seed_functions_do(path):
    states = {}

    def transform(sample):
        states["python"] = random.getstate()
        states["numpy"] = np.random.get_state()  # noqa: NPY002 - the global generator is what is tested
        states["torch"] = torch.default_generator.get_state()
        return sample

    unistore.Dataset(path, transform=transform, seed=SEED)[EpochIndex(9, 4)]

    seeds = split_mix(SEED ^ 0x6A09E667F3BCC908, 4, 9)
    assert states["python"] == random.Random(seeds[0]).getstate()
    expected = np.random.RandomState(seeds[1] & 0xFFFFFFFF).get_state()
    assert np.array_equal(states["numpy"][1], expected[1])
    assert torch.equal(states["torch"], torch.Generator().manual_seed(seeds[2]).get_state())


def test_threads_do_not_mix_their_draws(path):
    dataset = unistore.Dataset(path, transform=by_torch)
    indices = [EpochIndex(number % SAMPLES, number % 3) for number in range(600)]
    expected = [float(dataset[at]["r"]) for at in indices]
    with ThreadPoolExecutor(4) as threads:
        assert [float(sample["r"]) for sample in threads.map(dataset.__getitem__, indices)] == expected


def test_a_child_forked_while_a_transform_runs_reads_too(path):
    running, forked = threading.Event(), threading.Event()

    def transform(sample):
        running.set()
        forked.wait(0.5)
        return by_torch(sample)

    dataset = unistore.Dataset(path, transform=transform)
    before = torch.default_generator.get_state()
    with ThreadPoolExecutor(1) as thread:
        job = thread.submit(dataset.__getitem__, EpochIndex(3, 1))
        running.wait()
        pid = os.fork()
        if pid == 0:
            same = torch.equal(torch.default_generator.get_state(), before)
            os._exit(0 if same and dataset[EpochIndex(4, 1)]["index"] == 4 else 1)
        forked.set()
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert job.result()["r"] == dataset[EpochIndex(3, 1)]["r"]


def test_takes_rng_finds_functions_with_a_parameter_rng():
    assert takes_rng(by_rng)
    assert takes_rng(ByKeyword())
    assert takes_rng(functools.partial(by_rng, {}))
    assert not takes_rng(by_torch)
    assert not takes_rng(functools.partial)
    assert not takes_rng(dict)
    assert not takes_rng(lambda rng, /: rng)
    assert not takes_rng(lambda sample, **rng: rng)


def test_workers_are_seeded_by_their_number(monkeypatch):
    seeded = []
    monkeypatch.setattr("unistore.order.permutation.seed_generators", seeded.append)
    seed_worker(SEED, 2)
    assert seeded == [split_mix(SEED ^ 0x3C6EF372FE94F82B, 0, 2)]
