"""What an installed unistore must do outside of its checkout: ``make dist`` runs it in empty environments.

    python -P tools/smoke.py [with|without]

``with`` and ``without`` tell whether the installation must have the compiled kernel.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import unistore
from unistore.system.kernel import kernel

ROOT = Path(__file__).parents[1]
CLOUDS = ("thin_a.h5", "thin_b.h5")
# A line of README.md: ``print(…)  # its output: an explanation``
_PRINTED = re.compile(r"^ *print\(.*\) +# (.+?)(?:: .*)?$", re.MULTILINE)

_WITHOUT_TORCH = """
batch = dataset.read_batch(range(len(dataset)))
print(len(batch["xyz"].values) == batch["xyz"].offsets[-1] > 0)  # True
"""


def main(expected: str | None) -> None:
    """Run the commands and README's example, and compare what is read with what was written."""
    has_torch = importlib.util.find_spec("torch") is not None
    found = "with" if kernel() else "without"
    if found != (expected or found):
        sys.exit(f"unistore is installed {found} its kernel")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _commands(folder, has_torch=has_torch)
        _readme(folder, has_torch=has_torch)
    python = ".".join(map(str, sys.version_info[:3]))
    torch = "with" if has_torch else "without"
    print(f"unistore {unistore.__version__} of {Path(unistore.__file__).parent} works:", end=" ")
    print(f"Python {python}, {torch} torch, {found} its kernel")


def _commands(folder: Path, *, has_torch: bool) -> None:
    values = np.random.default_rng(0).normal(size=(1000, 8)).astype(np.float32)
    source = folder / "values.npz"
    store = folder / "values.zarr"
    np.savez(source, values=values)
    _run("convert", source, store)
    _run("inspect", store)
    _run("verify", store, "--against", source)
    dataset = unistore.Dataset(store)
    read = dataset.read_batch(np.arange(len(values)))["values"].values
    np.testing.assert_array_equal(read, values)
    if has_torch:
        batches = [batch["values"].numpy() for batch in unistore.Loader(dataset, 100, num_workers=2)]
        np.testing.assert_array_equal(np.concatenate(batches), values)


def _readme(folder: Path, *, has_torch: bool) -> None:
    """Run the code of README.md on its two clouds. Without torch, its first block and `read_batch`."""
    (folder / "clouds").mkdir()
    for cloud in CLOUDS:
        shutil.copy(ROOT / "tests/data/pointcloud" / cloud, folder / "clouds")
    opening, loading = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[:2]
    if not has_torch:
        loading = _WITHOUT_TORCH
    environment = {**os.environ, "UNISTORE_CACHE": str(folder / "cache")}
    command = [sys.executable, "-P", "-c", opening + loading]
    done = subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    expected = _PRINTED.findall(loading)
    if not expected or done.stdout.splitlines() != expected:
        sys.exit(f"README.md shows {expected}, and its code prints\n{done.stdout}")


def _run(*arguments: object) -> None:
    command = [Path(sys.executable).with_name("unistore"), "-q", *arguments]
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
