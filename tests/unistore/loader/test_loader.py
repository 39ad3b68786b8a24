"""Loader: what is delivered, in which order, whatever makes it and when; states; what workers find."""

from __future__ import annotations

import itertools
import multiprocessing.util
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from tests.support.waiting import wait_until
from unistore.data.packed import Packed
from unistore.errors import InputError, SampleError
from unistore.loader import Loader, LoaderError
from unistore.loader.iteration import Arrival, Producer, Request, Requests, Stats
from unistore.order.sequences import InOrder, RankShare

pytestmark = pytest.mark.usefixtures("nothing_left")


def indices(loader):
    return [batch["index"].tolist() for batch in loader]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_batches_contain_the_samples_of_the_dataset(data, workers):
    with Loader(data.Batched(), 8, shuffle=False, num_workers=workers) as loader:
        batches = list(loader)
    assert len(batches) == len(loader) == 25
    assert [i for batch in batches for i in batch["index"].tolist()] == list(range(200))
    for batch in batches:
        index = batch["index"]
        assert torch.equal(batch["x"], index[:, None] * 1000 + torch.arange(64))
        assert torch.equal(batch["offsets"].diff(), index % 5)
        assert torch.equal(batch["points"][:, 0], torch.repeat_interleave(index, index % 5).float())


def test_without_workers_nothing_but_the_consumer_reads(data):
    made_by = set()

    class Recording(data.Batched):
        def read_batch(self, indices, allocate=np.empty):
            made_by.add(threading.get_ident())
            return super().read_batch(indices, allocate)

    before = threading.active_count()
    with Loader(Recording(40), 4, num_workers=0) as loader:
        for _ in loader:
            assert threading.active_count() == before
    assert made_by == {threading.get_ident()}


def test_order_does_not_depend_on_who_makes_batches(data):
    runs = []
    for workers, prefetch in ((0, 1), (0, 5), (1, 2), (2, 1), (3, 4)):
        with Loader(
            data.Batched(), 8, shuffle=True, seed=3, num_workers=workers, prefetch_factor=prefetch
        ) as loader:
            runs.append([indices(loader) for _ in range(2)])
    assert all(run == runs[0] for run in runs)
    first, second = runs[0]
    assert first != second
    assert sorted(itertools.chain(*first)) == sorted(itertools.chain(*second)) == list(range(200))


@pytest.mark.parametrize("workers", [0, 2])
def test_plain_datasets_are_collated_as_torch_does(data, workers):
    dataset = data.Plain()
    expected = list(DataLoader(dataset, 8))
    with Loader(dataset, 8, shuffle=False, num_workers=workers) as loader:
        found = list(loader)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.keys() == theirs.keys()
        for key in ("image", "array", "label"):
            assert torch.equal(ours[key], theirs[key])
            assert ours[key].dtype == theirs[key].dtype
        assert ours["name"] == theirs["name"]
        assert all(torch.equal(a, b) for a, b in zip(ours["pair"], theirs["pair"], strict=True))


def test_permuted_images_keep_their_strides(data):
    class Images(data.Batched):
        def read_batch(self, indices, allocate=np.empty):
            out = allocate((len(indices), 4, 5, 3), np.dtype(np.uint8))
            out[:] = np.array([each[0] for each in indices])[:, None, None, None]
            return {"image": Packed(out.transpose(0, 3, 1, 2))}

    with Loader(Images(), 10, shuffle=True, num_workers=1) as loader:
        for batch in loader:
            assert batch["image"].shape == (10, 3, 4, 5)
            assert batch["image"].is_contiguous(memory_format=torch.channels_last)


def test_an_iterator_that_was_replaced_by_a_newer_one_raises_an_error(data):
    with Loader(data.Batched(), 8, shuffle=True, num_workers=1) as loader:
        old = iter(loader)
        next(old)
        new = iter(loader)
        next(new)
        with pytest.raises(LoaderError, match="iterated again"):
            next(old)
        next(new)
    with pytest.raises(LoaderError, match="closed"):
        next(new)


def test_batches_of_very_different_sizes_are_delivered_and_slabs_used_again(data):
    class Growing(data.Batched):
        def read_batch(self, indices, allocate=np.empty):
            index = np.array([each[0] for each in indices])
            out = allocate((int(index.max()) ** 2 * 40 + 1,), np.dtype(np.uint8))
            out[:] = index.max() % 251
            more = allocate((7,), np.dtype(np.int16))
            more[:] = 3
            return {
                "index": Packed(index),
                "out": Packed(out[:, None]),
            }

    with Loader(Growing(100), 1, shuffle=True, num_workers=2, prefetch_factor=3) as loader:
        for _ in range(2):
            for batch in loader:
                index = int(batch["index"][0])
                assert batch["out"].shape[0] == index**2 * 40 + 1
                assert int(batch["out"].min()) == int(batch["out"].max()) == index % 251
        assert loader.stats()["slab_misses"] < 60


def test_stats_count_batches_and_log_every_prints_a_line(data, capsys):
    with Loader(data.Batched(), 10, shuffle=True, num_workers=1, log_every=5) as loader:
        list(loader)
        stats = loader.stats()
    assert stats["batches"] == 20
    assert stats["samples"] == 200
    assert stats["bytes"] > 200 * 64 * 8
    assert stats["decode_seconds"] > 0
    assert stats["wait_seconds"] > 0
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4
    assert "data_time" in lines[0]
    assert "epoch 0 batch 20" in lines[-1]


def test_an_empty_dataset_gives_no_batch_and_a_short_one_a_partial_batch(data):
    for workers in (0, 1):
        with Loader(data.Batched(0), 8, shuffle=True, num_workers=workers) as loader:
            assert [list(loader) for _ in range(3)] == [[], [], []]
        with Loader(data.Batched(3), 8, shuffle=True, num_workers=workers) as loader:
            assert [len(batch["x"]) for batch in loader] == [3]
        with Loader(data.Batched(3), 8, shuffle=True, drop_last=True, num_workers=workers) as loader:
            assert [list(loader) for _ in range(3)] == [[], [], []]


def test_pinning_without_an_accelerator_is_ignored_and_said(data):
    if torch.cuda.is_available():
        pytest.skip("this machine has an accelerator")
    with pytest.warns(UserWarning, match="pin_memory"):
        loader = Loader(data.Batched(), 10, shuffle=True, num_workers=0, pin_memory=True)
    with loader:
        assert len(list(loader)) == 20


def test_pinning_copies_every_tensor_of_a_batch(data, monkeypatch):
    monkeypatch.setattr("unistore.loader.loader._can_pin", lambda: True)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor, device=None: tensor + 1)
    with Loader(data.Batched(), 10, False, num_workers=1, pin_memory=True) as loader:
        batch = next(iter(loader))
    assert batch["index"].tolist() == list(range(1, 11))
    assert batch["offsets"][0] == 1


def test_options_that_contradict_each_other_are_an_error(data):
    dataset = data.Batched()
    with pytest.raises(InputError, match="does not work with a sampler") as caught:
        Loader(dataset, 8, shuffle=True, sampler=InOrder(200), subset=[1], weights=[1], samples_per_epoch=3)
    assert [problem.location for problem in caught.value.problems] == [
        "shuffle", "subset", "weights", "samples_per_epoch",
    ]  # fmt: skip
    with pytest.raises(InputError, match="works only with weights"):
        Loader(dataset, 8, shuffle=True, samples_per_epoch=10)
    with pytest.raises(InputError, match="200 numbers, one for each sample"):
        Loader(dataset, 8, shuffle=True, weights=[1, 2, 3])
    with pytest.raises(InputError, match="values of True or False, got float64"):
        Loader(dataset, 8, shuffle=True, subset=[0.5])
    with pytest.raises(InputError, match="ascending order"):
        Loader(dataset, 8, "blocks", subset=[5, 3])
    with pytest.raises(InputError, match="num_workers: must be"):
        Loader(dataset, 8, shuffle=True, num_workers=-1)


def test_workers_have_worker_info_one_thread_and_run_the_init_function(data, tmp_path):
    def start(worker):
        (tmp_path / str(worker)).write_text(str(torch.utils.data.get_worker_info().id))

    with Loader(data.Informed(), 10, shuffle=True, num_workers=2, worker_init_fn=start) as loader:
        rows = torch.cat([torch.stack(batch, 1) for batch in loader])
    assert sorted(Path(tmp_path).iterdir()) == [tmp_path / "0", tmp_path / "1"]
    assert (tmp_path / "1").read_text() == "1"
    _, worker, workers, threads, pids, length = rows.T
    assert set(worker.tolist()) == {0, 1}
    assert set(workers.tolist()) == {2}
    assert set(threads.tolist()) == {1}
    assert len(set(pids.tolist())) == 2
    assert set(length.tolist()) == {200}
    assert torch.utils.data.get_worker_info() is None


def test_set_epoch_reaches_plain_datasets(data):
    class Aware(data.Plain):
        epoch = -1

        def set_epoch(self, epoch):
            self.epoch = epoch

        def __getitem__(self, index):
            return self.epoch

    for workers in (0, 1):
        with Loader(Aware(20), 10, shuffle=True, num_workers=workers) as loader:
            assert [batch.tolist() for _ in range(3) for batch in loader] == [
                [epoch] * 10 for epoch in (0, 0, 1, 1, 2, 2)
            ]


def ranks(dataset, world, **options):
    return [Loader(dataset, rank=rank, world_size=world, **options) for rank in range(world)]


def test_states_of_other_runs_are_refused_with_the_difference(data):
    dataset = data.Batched()
    state = Loader(dataset, 8, shuffle=True, seed=1, num_workers=0).state_dict()
    with pytest.raises(LoaderError, match="seed was 1, and is now 2"):
        Loader(dataset, 8, shuffle=True, seed=2, num_workers=0).load_state_dict(state)
    with pytest.raises(LoaderError, match="kind was 'shuffled', and is now 'in order'"):
        Loader(dataset, 8, False, seed=1, num_workers=0).load_state_dict(state)
    with pytest.raises(LoaderError, match="subset was None, and is now"):
        Loader(dataset, 8, shuffle=True, seed=1, num_workers=0, subset=range(200)).load_state_dict(state)
    with pytest.raises(LoaderError, match=r"length was 200, and is now 199.*other samples"):
        Loader(data.Batched(199), 8, shuffle=True, seed=1, num_workers=0).load_state_dict(state)
    for wrong in (None, "state", {**state, "delivered": "40"}, {**state, "order": 3}):
        with pytest.raises(LoaderError, match="not a Loader state of version 1: it has"):
            Loader(dataset, 8, shuffle=True, seed=1, num_workers=0).load_state_dict(wrong)
    with pytest.raises(LoaderError, match="201 of 200 samples delivered"):
        Loader(dataset, 8, shuffle=True, seed=1, num_workers=0).load_state_dict({**state, "delivered": 201})


def test_evaluation_is_uneven_and_training_even_by_default(data):
    dataset = data.Batched(101)
    train = ranks(dataset, 2, batch_size=10, num_workers=0, shuffle=True)
    assert [len(loader) for loader in train] == [5, 5]
    assert [len(list(loader)) for loader in train] == [5, 5]
    evaluation = ranks(dataset, 2, batch_size=10, num_workers=0)
    found = [[batch["index"].tolist() for batch in loader] for loader in evaluation]
    assert [len(batches) for batches in found] == [6, 5]
    assert sorted(i for batches in found for batch in batches for i in batch) == list(range(101))
    for loader in train + evaluation:
        loader.close()


def test_ranks_come_from_the_environment(data, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    where = Loader(data.Batched(), 8, shuffle=True, num_workers=0)
    assert (where.rank, where.world_size) == (1, 4)
    assert Loader(data.Batched(), 8, shuffle=True, num_workers=0, rank=0, world_size=1).world_size == 1


def initialise_distributed(monkeypatch, rank, world_size):
    """As ``torch.distributed.init_process_group`` does, without other processes."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: world_size)


def indices_of(loader):
    return [batch["index"].tolist() for batch in loader]


@pytest.mark.parametrize("workers", [0, 1])
def test_ranks_that_are_initialised_after_the_loader_divide_the_next_epoch(data, monkeypatch, workers):
    """Trainers that start the processes themselves do so after the loaders were made."""
    dataset = data.Batched(101)
    options = {"batch_size": 10, "num_workers": workers, "shuffle": True, "seed": 3}
    with Loader(dataset, **options) as loader:
        whole = indices_of(loader)
        assert (len(whole), loader.drop_last) == (11, False)
        initialise_distributed(monkeypatch, 1, 2)
        assert len(loader) == 5
        batches = indices_of(loader)
        assert (loader.rank, loader.world_size, loader.drop_last) == (1, 2, True)
    with Loader(dataset, **options, rank=1, world_size=2) as stated:
        stated.set_epoch(1)
        assert batches == indices_of(stated)


def test_stated_ranks_stay_whatever_is_initialised(data, monkeypatch):
    loaders = [Loader(data.Batched(101), 10, num_workers=0, rank=0, world_size=1)]
    sampler = torch.utils.data.DistributedSampler(data.Batched(101), num_replicas=1, rank=0)
    loaders.append(Loader(data.Batched(101), 10, num_workers=0, sampler=sampler))
    initialise_distributed(monkeypatch, 1, 2)
    for loader in loaders:
        assert len(indices_of(loader)) == len(loader) == 11


class Counted:
    """Rows that count how often they are read, by any process; one of them cannot be read twice."""

    def __init__(self, folder: Path, rows: int, bad: int = -1) -> None:
        self.folder, self.rows, self.bad = folder, rows, bad

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> int:
        file = self.folder / str(index)
        if index == self.bad and file.exists():
            msg = "read once too often"
            raise ValueError(msg)
        with file.open("ab") as stream:
            stream.write(b".")
        return index

    def total(self) -> int:
        return sum(file.stat().st_size for file in self.folder.iterdir())

    def wait_for(self, reads: int) -> None:
        """Until so many samples were read in all."""
        wait_until(lambda: self.total() >= reads, f"fewer than {reads} samples were read")


def epoch_of(loader: Loader) -> list[list[int]]:
    return [np.asarray(batch).tolist() for batch in loader]


def epochs(count: int, length: int = 6, **options: int) -> list[list[list[int]]]:
    """What a loader without workers delivers."""
    with Loader(range(length), 2, shuffle=True, num_workers=0, **options) as loader:
        return [epoch_of(loader) for _ in range(count)]


@pytest.mark.parametrize("workers", [1, 2])
def test_the_next_epoch_is_made_while_this_one_ends(workers: int, tmp_path: Path, nothing_left: None) -> None:
    dataset, expected = Counted(tmp_path, 6), epochs(4)
    with Loader(dataset, 2, shuffle=True, num_workers=workers, prefetch_factor=4) as loader:
        assert epoch_of(loader) == expected[0]
        dataset.wait_for(6 + 4 * workers)  # half of what may be made ahead, of several epochs
        assert dataset.total() <= 6 + 8 * workers
        assert loader.state_dict()["epoch"] == 1
        assert loader.state_dict()["delivered"] == 0
        assert [epoch_of(loader) for _ in range(3)] == expected[1:]
        dataset.wait_for(24 + 4 * workers)  # quick batches are asked for when half may be, together
        assert dataset.total() <= 24 + 8 * workers, "batches made ahead were thrown away"


def test_errors_of_batches_that_nobody_asks_for_are_not_raised(tmp_path: Path, nothing_left: None) -> None:
    dataset = Counted(tmp_path, 6, bad=3)
    with Loader(dataset, 2, num_workers=1) as loader:
        assert epoch_of(loader) == [[0, 1], [2, 3], [4, 5]]
        dataset.wait_for(9)  # all but the bad one again
        iteration = iter(loader)
        assert np.asarray(next(iteration)).tolist() == [0, 1]
        with pytest.raises(SampleError, match="read once too often"):
            next(iteration)
        assert np.asarray(next(iteration)).tolist() == [4, 5]


def test_the_report_has_the_share_that_the_cache_had():
    stats = Stats(batches=4, samples=8, cache_hits=3, cache_misses=1)
    assert stats.line(epoch=0, batch=4, seconds=1.0).endswith(", cache 75%")


def test_a_notebook_shows_the_options_of_a_loader():
    html = Loader(range(10), 2, shuffle=False, num_workers=0)._repr_html_()
    assert "batch_size=2, num_workers=0, InOrder, epoch 0, 5 batches" in html


def test_options_of_a_conversion_without_a_path_are_refused_by_name():
    with pytest.raises(InputError, match=r"^voxel_size: .*the dataset is not a path"):
        Loader([1, 2, 3], voxel_size=0.5)


def test_workers_end_by_themselves_before_they_are_killed(data, tmp_path):
    def at_exit():
        time.sleep(0.2)
        (tmp_path / "ended").touch()

    def register(worker):
        multiprocessing.util.Finalize(None, at_exit, exitpriority=0)

    with Loader(data.Batched(), 8, num_workers=1, worker_init_fn=register) as loader:
        list(loader)
    assert (tmp_path / "ended").exists()


def test_memory_of_iterations_that_were_left_is_used_again(data):
    with Loader(data.Batched(), 8, shuffle=True, num_workers=1, prefetch_factor=4) as loader:
        list(loader)
        missed = loader.stats()["slab_misses"]
        for _ in range(20):
            iteration = iter(loader)
            time.sleep(0.02)  # further batches come, which nobody takes
            next(iteration)
        del iteration
        list(loader)
        assert loader.stats()["slab_misses"] == missed


class Answering(Producer):
    """Makes batches at once, in any number of seconds as it says, and counts those of each message."""

    capacity = 4

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.messages: list[int] = []
        self.open = 0

    def begin(self) -> None:
        self.open = 0

    def room(self) -> int:
        return self.capacity - self.open

    def submit(self, requests: Sequence[Request]) -> int:
        self.messages.append(len(requests))
        self.open += len(requests)
        return len(requests)

    def take(self, number: int) -> Arrival:
        self.open -= 1
        return Arrival(number, samples=1, needed=0, seconds=self.seconds)

    def close(self) -> None: ...


@pytest.mark.parametrize(("seconds", "messages"), [(0.0, [4, 2, 2, 2]), (1.0, [4, 1, 1, 1, 1, 1, 1])])
def test_quick_batches_are_requested_together_and_slow_ones_one_by_one(
    seconds: float, messages: list[int]
) -> None:
    producer = Answering(seconds)
    share = RankShare(length=10, batch_size=1)
    requests = Requests(producer, InOrder(10), share, across_epochs=False)
    requests.begin(0, 0)
    assert [requests.take().batch for _ in range(10)] == list(range(10))
    assert producer.messages == messages
