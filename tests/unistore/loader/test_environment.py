"""What user code finds in a worker."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from unistore.loader import Loader

pytestmark = pytest.mark.usefixtures("nothing_left")


def drawn(loader):
    found = {}
    for batch in loader:
        rows = zip(*(batch[key].tolist() for key in ("index", "python", "numpy", "torch")), strict=True)
        found.update({row[0]: row[1:] for row in rows})
    return found


def test_generators_depend_on_seed_epoch_and_sample_alone(data):
    runs = []
    for workers, prefetch, batch_size in ((1, 1, 6), (2, 4, 6), (3, 2, 7)):
        with Loader(
            data.Random(60), batch_size, shuffle=True, seed=5, num_workers=workers, prefetch_factor=prefetch
        ) as loader:
            runs.append([drawn(loader), drawn(loader)])
    assert runs[0] == runs[1] == runs[2]
    first, second = runs[0]
    assert len({value for values in first.values() for value in values}) == 180
    assert all(first[index] != second[index] for index in first)
    with Loader(data.Random(60), 6, shuffle=True, seed=6, num_workers=1) as loader:
        assert drawn(loader) != first


def test_resumed_samples_draw_the_same(data):
    with Loader(data.Random(60), 6, shuffle=True, seed=5, num_workers=1) as loader:
        whole = drawn(loader)
    with Loader(data.Random(60), 6, shuffle=True, seed=5, num_workers=1) as loader:
        batches = iter(loader)
        early = {i for _ in range(4) for i in next(batches)["index"].tolist()}
        state = loader.state_dict()
    with Loader(data.Random(60), 9, shuffle=True, seed=5, num_workers=2) as loader:
        loader.load_state_dict(state)
        rest = drawn(loader)
    assert rest == {index: values for index, values in whole.items() if index not in early}


def test_the_parents_generators_are_left_alone(data):
    def draws():
        return random.random(), np.random.random(), torch.rand(()).item()  # noqa: NPY002 - the global one

    def reseed():
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002 - the global one
        torch.manual_seed(1)

    reseed()
    expected = draws()
    reseed()
    with Loader(data.Batched(), 10, shuffle=True, num_workers=1) as loader:
        list(loader)
    with Loader(data.Batched(), 10, shuffle=True, num_workers=0) as loader:
        list(loader)
    assert draws() == expected


def test_worker_info_threads_and_init_function(data, tmp_path):
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


def test_collations_that_ask_for_shared_memory_get_the_slab(data):
    def collate(samples):
        images = default_collate([sample["image"] for sample in samples])
        assert not images.untyped_storage().is_shared()
        return {"image": images, "label": default_collate([sample["label"] for sample in samples])}

    with Loader(data.Plain(200, (64, 64)), 10, shuffle=False, num_workers=1, collate_fn=collate) as loader:
        for _ in range(2):
            for number, batch in enumerate(loader):
                assert batch["image"].shape == (10, 64, 64)
                assert torch.equal(batch["image"][:, 0, 0], torch.arange(10.0) + 10 * number)
        assert loader.stats()["bytes"] < 40 * (10 * 64 * 64 * 4 + 4096)  # each counted once


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
