"""Any history of training: iterate, hold batches, break off, save, resume with others, set the epoch.

The model is the order of one serial pass of each epoch, and values that follow from a sample's number.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.state_machines import run_machine
from unistore.loader import Loader

pytestmark = pytest.mark.usefixtures("nothing_left")
WIDTH = 16


def check_batch(batch: Any, samples: list[int], epoch: int) -> None:
    """Every value of a batch is that of its samples."""
    index = np.array(samples)
    assert batch["index"].tolist() == samples
    assert np.array_equal(batch["x"], index[:, None] * 1000 + np.arange(WIDTH))
    assert np.array_equal(batch["points"], np.repeat(index, index % 5)[:, None].repeat(3, 1))
    assert np.array_equal(batch["draw"], index * 31 + epoch)


class Training(RuleBasedStateMachine):
    """All ranks of a run, in one process.

    Attributes
    ----------
    epoch, done
        Where the run stands: the epoch, and samples delivered in it.
    begun
        Whether an iteration has delivered anything of that epoch, so that the next one begins another.
    running
        Epoch and position of the iteration that is alive.
    following
        The epoch that was set while an iteration was alive.
    held
        Batches, their samples and epoch.
    """

    make_dataset: Any

    def __init__(self) -> None:
        super().__init__()
        self.loaders: list[Loader] = []
        self.iterators: list[Any] = []
        self.held: list[tuple[Any, list[int], int]] = []
        self.states: list[dict[str, Any]] = []
        self.orders: dict[int, list[int]] = {}
        self.epoch = self.done = 0
        self.begun = False
        self.running: tuple[int, int] | None = None
        self.following: int | None = None

    def teardown(self) -> None:
        self.iterators.clear()
        self.held.clear()
        for loader in self.loaders:
            loader.close()

    @initialize(length=st.integers(1, 150), shuffle=st.sampled_from((False, True, "blocks")))
    def choose(self, length: int, shuffle: Any) -> None:
        self.dataset = self.make_dataset(length, WIDTH)
        self.options = {"shuffle": shuffle, "seed": length, "drop_last": False}
        self.start(None, 1, 8, 0, 2)

    def order(self, epoch: int) -> list[int]:
        """One serial pass."""
        if epoch not in self.orders:
            with Loader(self.dataset, 1, num_workers=0, **self.options) as loader:
                loader.set_epoch(epoch)
                self.orders[epoch] = [batch["index"].item() for batch in loader]
            assert sorted(self.orders[epoch]) == list(range(self.dataset.length))
        return self.orders[epoch]

    @rule(
        number=st.none() | st.integers(0, 100),
        world=st.sampled_from((1, 1, 2, 3)),
        batch_size=st.sampled_from((1, 4, 8, 32)),
        workers=st.sampled_from((0, 0, 0, 1, 2)),
        prefetch=st.integers(1, 4),
    )
    def start(self, number: int | None, world: int, batch_size: int, workers: int, prefetch: int) -> None:
        """Another run, from the beginning or from a state of this one or of an earlier one."""
        self.iterators.clear()
        for loader in self.loaders:
            loader.close()
        self.loaders = [
            Loader(
                self.dataset,
                batch_size,
                rank=rank,
                world_size=world,
                num_workers=workers if rank == 0 else 0,
                prefetch_factor=prefetch,
                **self.options,
            )
            for rank in range(world)
        ]
        self.batch_size = batch_size
        self.epoch = self.done = 0
        if number is not None and self.states:
            self._load(number)
        self._reset()

    @precondition(lambda self: self.states)
    @rule(number=st.integers(0, 100))
    def load(self, number: int) -> None:
        """A state into the loaders that are there: what they iterate is over."""
        self.iterators.clear()
        self._load(number)
        self._reset()

    def _load(self, number: int) -> None:
        state = self.states[number % len(self.states)]
        for loader in self.loaders:
            loader.load_state_dict(json.loads(json.dumps(state)))
        self.epoch, self.done = state["epoch"], state["delivered"]

    def _reset(self) -> None:
        self.begun, self.running, self.following = False, None, None

    @rule()
    def iterate(self) -> None:
        if self.begun:
            self._finish()
        self.iterators = [iter(loader) for loader in self.loaders]
        self.running, self.following = (self.epoch, self.done), None

    def _finish(self) -> None:
        self.epoch, self.done = self.epoch + 1 if self.following is None else self.following, 0
        self._reset()

    @rule(steps=st.integers(1, 12), hold=st.booleans())
    def take(self, steps: int, hold: bool) -> None:
        """Some steps on all ranks; batches are held or dropped."""
        if self.running is None:
            self.iterate()
        for _ in range(steps):
            assert self.running is not None
            epoch, done = self.running
            last = self.dataset.length - done < self.batch_size * len(self.loaders)
            batches = [next(iterator, None) for iterator in self.iterators]
            for batch in batches:
                if batch is None:
                    assert last
                    continue
                samples = self.order(epoch)[done : done + len(batch["index"])]
                assert len(samples) == self.batch_size or last
                check_batch(batch, samples, epoch)
                done += len(samples)
                if hold:
                    self.held.append((batch, samples, epoch))
            self.epoch, self.done, self.begun, self.running = epoch, done, True, (epoch, done)
            if batches[0] is None:
                assert done == self.dataset.length
                self._finish()
                break

    @rule(which=st.sets(st.integers(0, 40)))
    def drop(self, which: set[int]) -> None:
        """Let go of some of the batches that are held."""
        self.held = [each for number, each in enumerate(self.held) if number not in which]

    @precondition(lambda self: len(self.held) < 200)
    @rule()
    def save(self) -> None:
        self.states.append(self.loaders[0].state_dict())

    @rule()
    def break_off(self) -> None:
        self.iterators.clear()
        self.running = None

    @rule()
    def close(self) -> None:
        """What is held stays; iterating again starts workers anew."""
        self.break_off()
        for loader in self.loaders:
            loader.close()

    @rule(epoch=st.integers(0, 3))
    def set_epoch(self, epoch: int) -> None:
        """The next one to be iterated, whatever is iterated now."""
        for loader in self.loaders:
            loader.set_epoch(epoch)
        if epoch != self.epoch or self.begun:
            self.epoch, self.done, self.begun = epoch, 0, False
            self.following = epoch

    @invariant()
    def what_is_held_stays(self) -> None:
        for batch, samples, epoch in self.held:
            check_batch(batch, samples, epoch)

    @invariant()
    def the_state_is_where_the_run_stands(self) -> None:
        if self.loaders:
            state = self.loaders[0].state_dict()
            assert (state["epoch"], state["delivered"]) == (self.epoch, self.done)
            assert self.loaders[0].epoch == self.epoch


def test_any_history_delivers_what_serial_passes_do(data: Any) -> None:
    machine = type("Batches", (Training,), {"make_dataset": data.Batched})
    run_machine(machine, histories=30, steps=25)
