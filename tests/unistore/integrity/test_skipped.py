"""Stores that left bad sources out are verified, compared and repaired with the same sources."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np

from unistore import repair, verify
from unistore.conversion.convert import make_converter
from unistore.conversion.run import run
from unistore.conversion.settings import Settings

REPORT = "unistore-report.json"


def test_a_store_that_left_a_source_out(tmp_path: Path, tree: Callable[[Path], dict[str, bytes]]) -> None:
    sources = tmp_path / "sources"
    sources.mkdir()
    rng = np.random.default_rng(0)
    for number in range(3):
        np.savez(sources / f"part_{number}.npz", data=rng.normal(size=(20 + number, 3)))
    bad = sources / "part_1.npz"
    bad.write_bytes(bad.read_bytes()[:200])
    store = tmp_path / "store.zarr"
    run(make_converter("rows", {}), [sources], store, Settings(on_error="skip"))
    assert (store / REPORT).exists()
    verified = verify(store, against=[sources])
    assert verified.problems == ()
    assert verified.receipt is not None
    assert verified.receipt.line == (
        "126 values of 2 files equal, as numpy reads them; in the sources and not in the store: part_1.npz"
    )
    before = tree(store)
    for key in (REPORT, "rows/data/c/0/0", "unistore-manifest.jsonl"):
        data = bytearray(before[key])
        data[random.Random(key).randrange(len(data))] ^= 1
        (store / key).write_bytes(data)
        assert not verify(store).ok
        assert repair(store, [sources]).ok
        assert tree(store) == before
