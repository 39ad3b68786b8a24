"""What user code finds in a worker."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.data import default_collate

from unistore.loader import Loader

pytestmark = pytest.mark.usefixtures("nothing_left")


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
