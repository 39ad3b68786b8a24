"""What an installed unistore must do outside of its checkout: ``make dist`` runs it in empty environments."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import unistore
from unistore.system.kernel import kernel


def main() -> None:
    """Run the commands and compare what is read with what was written."""
    values = np.random.default_rng(0).normal(size=(1000, 8)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "values.npz")
        store = Path(folder, "values.zarr")
        np.savez(source, values=values)
        _run("convert", source, store)
        _run("inspect", store)
        _run("verify", store, "--against", source)
        dataset = unistore.Dataset(store)
        read = dataset.read_batch(np.arange(len(values)))["values"].values
        np.testing.assert_array_equal(read, values)
        if importlib.util.find_spec("torch"):
            batches = [batch["values"].numpy() for batch in unistore.Loader(dataset, 100, num_workers=2)]
            np.testing.assert_array_equal(np.concatenate(batches), values)
    has_kernel = "with" if kernel() else "without"
    print(
        f"unistore {unistore.__version__} of {Path(unistore.__file__).parent} works, {has_kernel} its kernel"
    )


def _run(*arguments: object) -> None:
    command = [Path(sys.executable).with_name("unistore"), "-q", *arguments]
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
