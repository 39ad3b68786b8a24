"""Commands work wherever Python runs: without a main guard, in a notebook, in pools, on dask workers."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.programs import printed

SCRIPT = """
import unistore

def work(workers):
    report = unistore.convert("a.h5", f"{workers}.zarr", workers=workers)
    assert unistore.verify(f"{workers}.zarr", against="a.h5", workers=workers).receipt
    assert unistore.inspect("a.h5").kind == "source"
    return report.digest
"""
IN_A_POOL = """
import multiprocessing

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(*pool.map(work, (0, 2)))
"""
ENDS = {
    "a pool": IN_A_POOL,
}


@pytest.fixture(autouse=True)
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(30.0)
    monkeypatch.chdir(tmp_path)


def digests(*command: str) -> list[str]:
    output = printed("-W", "error::ResourceWarning", *command)
    return output.split()


@pytest.mark.parametrize("place", ENDS)
def test_in_a_script(tmp_path: Path, place: str) -> None:
    (tmp_path / "script.py").write_text(f"{SCRIPT}\n{ENDS[place]}\n")
    one, two = digests("script.py")
    assert one == two
