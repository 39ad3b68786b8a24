"""Samples of a store in an object store through loaders: none, spawned and forkserver workers agree."""

from __future__ import annotations

from pathlib import Path

from tests.programs import printed

SCRIPT = """
import sys
import numpy as np
import unistore
from torch.utils.data import DataLoader

def batches(loader):
    return [{key: np.array(values) for key, values in batch.items()} for batch in loader]

def same(found, expected, what):
    assert len(found) == len(expected) > 5, what
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.keys() == theirs.keys()
        for key in ours:
            assert np.array_equal(ours[key], theirs[key]), (what, key)
    print(what)

if __name__ == "__main__":
    far, near = unistore.Dataset(sys.argv[1]), unistore.Dataset(sys.argv[2])
    expected = batches(DataLoader(near, 64, collate_fn=unistore.collate))
    same(batches(DataLoader(far, 64, collate_fn=unistore.collate)), expected, "DataLoader 0")
    workers = DataLoader(
        far, 64, collate_fn=unistore.collate, num_workers=1, multiprocessing_context="forkserver"
    )
    same(batches(workers), expected, "DataLoader 1 forkserver")
    for count in (0, 1):
        with unistore.Loader(far, 64, shuffle=False, num_workers=count, drop_last=False) as loader:
            same(batches(loader), expected, f"Loader {count} {loader.start_method}")
"""


def test_workers_give_what_the_local_store_gives(uploaded: str, local: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    output = printed("-W", "ignore", script, uploaded, local)
    assert output.splitlines() == [
        "DataLoader 0",
        "DataLoader 1 forkserver",
        "Loader 0 spawn",
        "Loader 1 spawn",
    ]
