"""Without PyTorch, an extra: what works, and what is said where it is needed."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.support.programs import printed
from tests.support.waiting import patience

PROGRAM = """
import sys
import numpy as np

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import unistore
from unistore.cli.main import main

def code(*words):
    try:
        main(["-q", *words])
    except SystemExit as ended:
        return ended.code

source, folder = sys.argv[1:]
store = f"{folder}/a.zarr"
for command in (
    ["convert", source, store],
    ["inspect", store, "--html", f"{folder}/a.html"],
    ["verify", store, "--against", source],
    ["export", store, f"{folder}/files"],
    ["statistics", store],
):
    assert code(*command) == 0, command
dataset = unistore.Dataset(store)
np.testing.assert_array_equal(dataset.read_batch([3, 0])["values"].values, np.load(source)["values"][[3, 0]])
assert code("doctor", store) == 1
for name in ("Collate", "Loader", "Normalize", "ReplayBuffer", "collate", "stitch"):
    try:
        getattr(unistore, name)
    except unistore.MissingLibraryError as error:
        assert str(error).startswith(f"unistore.{name} needs PyTorch, which is not installed")
    else:
        raise AssertionError(name)
for read in (lambda: dataset[0], lambda: dataset.__getitems__([0]), lambda: dataset.class_weights("values")):
    try:
        read()
    except unistore.MissingLibraryError as error:
        assert "pip install 'unistore[torch]'" in str(error)
    else:
        raise AssertionError(read)
assert "torch" not in sys.modules
print("done")
"""


def test_everything_but_tensors_works_without_torch(tmp_path: Path) -> None:
    source = tmp_path / "a.npz"
    np.savez(source, values=np.arange(8).reshape(4, 2))
    assert printed("-c", PROGRAM, source, tmp_path, timeout=patience(100)).endswith("done\n")
