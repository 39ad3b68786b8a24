"""Without what only Linux has, as macOS is: five families, Dataset and a Loader whose workers are spawned."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.programs import printed
from tests.support.waiting import patience

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests/data"

# Runs at the start of every process
TAKEN_AWAY = """
import multiprocessing
import os
import sys

for name in ("memfd_create", "posix_fadvise", "posix_fallocate", "sched_getaffinity", "fork"):
    delattr(os, name)
multiprocessing.set_start_method("spawn")

def hook(event, arguments):
    is_file = event in ("open", "os.listdir", "os.scandir")
    if is_file and str(arguments[0]).startswith(("/proc", "/sys/fs/cgroup")):
        raise FileNotFoundError(2, "taken away", arguments[0])
    if event == "ctypes.dlsym" and arguments[1] in ("prctl", "mallopt"):
        raise AttributeError(arguments[1])

sys.addaudithook(hook)
"""

PROGRAM = """
import os
import sys
import numpy as np
import unistore
from unistore.cli.main import main

if __name__ == "__main__":
    assert not hasattr(os, "fork") and not hasattr(os, "memfd_create")
    family, source, folder = sys.argv[1:]
    store = f"{folder}/{family}.zarr"
    commands = ["convert", family, source, store, "--workers", "2"], ["verify", store, "--against", source]
    for words in commands:
        try:
            main(["-q", *words])
        except SystemExit as ended:
            assert ended.code == 0, words
    dataset = unistore.Dataset(store)
    expected = [dataset[number] for number in range(len(dataset))]
    loader = unistore.Loader(dataset, batch_size=1, num_workers=2, multiprocessing_context="spawn")
    count = 0
    for batch, sample in zip(loader, expected, strict=True):
        for name, values in sample.items():
            if hasattr(values, "numpy"):
                found = np.asarray(batch[name])
                assert np.array_equal(found.reshape(-1), np.asarray(values).reshape(-1), equal_nan=True), name
                count += 1
    print(count)
"""

SOURCES = {
    "rows": DATA / "rows",
    "point-cloud": DATA / "pointcloud/thin_a.h5",
    "ct": DATA / "ct",
    "spike": DATA / "samples/spike/spikezoo_uhsr.npz",
    "trajectory": DATA / "trajectory/robosuite100_lift_panda_demo.hdf5",
}


@pytest.mark.nightly
@pytest.mark.parametrize("family", SOURCES)
def test_every_family_works_without_features_of_linux(tmp_path: Path, family: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(TAKEN_AWAY)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path}
    said = printed(program, family, SOURCES[family], tmp_path, env=environment, timeout=patience(240))
    assert int(said) > 0
