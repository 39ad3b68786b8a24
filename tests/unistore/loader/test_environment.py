"""What user code finds in a worker."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

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
