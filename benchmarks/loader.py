"""Dense samples of 64 KiB, batches of 8 and of 64: what loading costs where decoding costs little.

    python benchmarks/loader.py [--quick] [--only PATTERN …] [--json FILE] [--markdown FILE]

A sample is one float32 row of 16,384: waves with noise, rounded to 12 bits behind the point, which blosc-lz4
makes 1.8 times smaller. The consumer sums every byte of every batch, 8 bytes at a time, and does nothing
else: what is shown is the most that a way can deliver. Samples are drawn at random, with replacement.

All of it is in memory. *RAM* is an array of the samples in the process that consumes, which its workers
inherit; memmap and h5py read files in the page cache, and so does unistore: a store as ``unistore convert``
writes it (codec ``fast``) and one that is not compressed (codec ``none``), both with a checksum a sample that
every read verifies. Nothing else that takes part verifies anything. The cache of decoded chunks is off.

* DataLoader over RAM: a row a sample and torch's own collation. *Batched*: the dataset gathers the whole
  batch (``__getitems__``), in workers straight into the shared memory that torch sends.
* Loader over RAM: a dataset that gathers the whole batch where it is told to (``read_batch``).
* Loader, cache="all": the compressed store, decoded once into a file that workers map.
* Limit: gather a batch from RAM into the same memory each time. One process; nothing is collated or sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from harness.ours import dataloader_feed, feed_of, loader_feed
from harness.peers import available
from harness.plain import map_feed
from harness.script import Options, Target, parse, run_ways
from harness.ways import Feed, Kind, Way
from numpy.typing import NDArray

import unistore
from unistore.data.packed import Allocate, Batch, Packed

BATCHES = (8, 64)
WORKERS = (0, 1, 2)
WIDTH = 16_384


def make_source(file: Path, samples: int) -> None:
    """Waves with noise, (samples, 16384) float32."""
    rng = np.random.default_rng(0)
    wave = np.sin(np.linspace(0, 40, WIDTH, dtype=np.float32))
    values = np.empty((samples, WIDTH), np.float32)
    for row in values:
        row[:] = wave + rng.normal() + rng.normal(size=WIDTH) * 0.1
    file.parent.mkdir(parents=True, exist_ok=True)
    np.save(file, np.round(values * 4096) / 4096)


def prepare(folder: Path, *, quick: bool) -> dict[str, Path]:
    """The samples in every form."""
    made = {
        "npy": folder / "source" / "data.npy",
        "hdf5": folder / "data.h5",
        "fast": folder / "fast.zarr",
        "none": folder / "none.zarr",
    }
    if not (folder / "done").exists():
        make_source(made["npy"], 1024 if quick else 4096)
        with h5py.File(made["hdf5"], "w") as file:
            file["data"] = np.load(made["npy"])
        for codec in ("fast", "none"):
            unistore.convert(
                made["npy"].parent, made[codec], "rows", codec=codec, overwrite=True, restart=True
            )
        (folder / "done").touch()
    if available("lance"):
        made["lance"] = folder / "data.lance"
        if not made["lance"].exists():
            write_lance(made["npy"], made["lance"])
    return made


class Rows:
    """Rows of an array as tensors: in RAM, or mapped (``mode="c"``)."""

    def __init__(self, file: Path, mode: Any = None) -> None:
        self.values: NDArray[np.float32] = np.asarray(np.load(file, mmap_mode=mode))

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> Any:
        import torch

        return torch.from_numpy(self.values[index])


class BatchedRows(Rows):
    """Whole batches of an array in RAM, for torch's DataLoader."""

    def __getitems__(self, indices: list[int]) -> Any:
        import torch
        from torch.utils.data import get_worker_info

        shape = (len(indices), WIDTH)
        if get_worker_info() is None:
            return torch.from_numpy(np.take(self.values, indices, axis=0))
        storage = torch.UntypedStorage._new_shared(4 * len(indices) * WIDTH)  # type: ignore[no-untyped-call]
        out = torch.empty(0, dtype=torch.float32).set_(storage).view(shape)
        np.take(self.values, indices, axis=0, out=out.numpy(), mode="clip")
        return out


def unchanged(batch: Any) -> Any:
    """Collation of batches that are whole already."""
    return batch


class Hdf5Rows:
    """Rows of a contiguous HDF5 dataset, opened in each worker."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._values: Any = None
        with h5py.File(file, "r") as opened:
            self._length = len(opened["data"])

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        import torch

        if self._values is None:
            self._values = h5py.File(self._file, "r")["data"]
        return torch.from_numpy(self._values[index])


class LanceRows:
    """Rows of a Lance dataset, whole batches at a time, opened in each worker."""

    def __init__(self, folder: Path) -> None:
        import lance

        self._folder = folder
        self._dataset: Any = None
        self._length = lance.dataset(folder).count_rows()

    def __len__(self) -> int:
        return self._length

    def __getitems__(self, indices: list[int]) -> Any:
        import lance
        import torch

        if self._dataset is None:
            self._dataset = lance.dataset(self._folder)
        column = self._dataset.take(indices, columns=["data"]).column("data").combine_chunks()
        values = np.asarray(column.flatten()).reshape(len(indices), WIDTH)
        return torch.from_numpy(values.copy())


def write_lance(file: Path, folder: Path) -> None:
    """Write the samples as lists of one length."""
    import lance
    import pyarrow as pa

    values = pa.array(np.load(file).reshape(-1))
    lance.write_dataset(pa.table({"data": pa.FixedSizeListArray.from_arrays(values, WIDTH)}), folder)


class RowsInPlace(Rows):
    """Whole batches of an array in RAM, for the Loader."""

    def read_batch(self, indices: Sequence[tuple[int, int]], allocate: Allocate) -> Batch:
        """Gather rows into the memory of the batch."""
        out = allocate((len(indices), WIDTH), self.values.dtype)
        np.take(self.values, [index for index, _ in indices], axis=0, out=out, mode="clip")
        return {"data": Packed(out)}


def over_ram_feed(file: Path, batch: int, workers: int) -> Feed:
    """`unistore.Loader` over an array in RAM."""
    return feed_of(RowsInPlace(file), batch, workers)


def gather_feed(file: Path, batch: int) -> Feed:
    """The limit."""
    rows = Rows(file).values
    rng = np.random.default_rng(0)
    out = np.empty((batch, WIDTH), rows.dtype)

    def batches() -> Iterator[Any]:
        while True:
            for drawn in rng.integers(0, len(rows), (512, batch)):
                np.take(rows, drawn, axis=0, out=out, mode="clip")
                yield out

    return Feed(batches())


def ways(made: dict[str, Path], batch: int) -> list[Way]:
    """Every contender."""
    found: list[Way] = []

    def add(
        name: str, kind: Kind, make: Callable[..., Feed], reads: Path, workers: Sequence[int], **more: Any
    ) -> None:
        found.extend(
            Way(
                name=name,
                setting=f"{count} worker{'s' * (count != 1)}",
                kind=kind,
                make=make,
                arguments={**more, "batch": batch, "workers": count},
                files=(reads,),
                imports=("torch", "h5py", "unistore"),
            )
            for count in workers
        )

    npy, hdf5 = made["npy"], made["hdf5"]
    limit = {"file": npy, "batch": batch}
    found.append(Way(name="limit: gather", kind="plain", make=gather_feed, arguments=limit, files=(npy,)))
    add("DataLoader over RAM", "documents", map_feed, npy, WORKERS, dataset=(Rows, (npy,)))
    batched = {"dataset": (BatchedRows, (npy,)), "collate": unchanged}
    add("DataLoader over RAM, batched", "plain", map_feed, npy, WORKERS, **batched)
    add("DataLoader over memmap", "plain", map_feed, npy, WORKERS, dataset=(Rows, (npy, "c")))
    add("DataLoader over h5py", "plain", map_feed, hdf5, WORKERS, dataset=(Hdf5Rows, (hdf5,)))
    if "lance" in made:  # it runs threads, which do not survive a fork
        lance_rows = {"dataset": (LanceRows, (made["lance"],)), "collate": unchanged, "method": "spawn"}
        add("DataLoader over Lance, spawned", "peer", map_feed, made["lance"], WORKERS, **lance_rows)
    for codec in ("fast", "none"):
        rows = {"store": made[codec], "samples": None, "fields": None}
        label = f"codec {codec}"
        add(f"Dataset under DataLoader, {label}", "unistore", dataloader_feed, made[codec], WORKERS, **rows)
        add(f"Loader, {label}", "unistore", loader_feed, made[codec], WORKERS, **rows)
    rows = {"store": made["fast"], "samples": None, "fields": None, "options": {"cache": "all"}}
    add('Loader, cache="all"', "unistore", loader_feed, made["fast"], WORKERS, **rows)
    add("Loader over RAM", "unistore", over_ram_feed, npy, WORKERS, file=npy)
    return found


def targets() -> list[Target]:
    """What is to be reached."""
    forms = ("Loader over RAM", 'Loader, cache="all"', "Loader, codec none", "Loader, codec fast")
    in_ram = ("DataLoader over RAM*",)
    found = [
        Target(
            text=f"{form}, over the best DataLoader over RAM", ours=(f"{form}, *",), others=in_ram, factor=1.5
        )
        for form in forms
    ]
    found += [
        Target(
            text="Loader over our Dataset under DataLoader",
            ours=(f"Loader, codec {codec}, 2 workers",),
            others=(f"Dataset under DataLoader, codec {codec}, 2 workers",),
            factor=3,
        )
        for codec in ("fast", "none")
    ]
    settings = ("0 workers", "1 worker", "2 workers")
    found += [
        Target(text="more workers", ours=(f"{form}, {more}",), others=(f"{form}, {fewer}",), factor=1)
        for form in forms
        for fewer, more in pairwise(settings)
    ]
    return found


def main() -> None:
    """Run the benchmark."""
    options: Options = parse(__doc__, "loader")
    made = prepare(options.folder, quick=options.quick)
    for batch in BATCHES:
        title = f"Dense samples of 64 KiB, batches of {batch}"
        run_ways(options, title, ways(made, batch), batch, targets(), "Loader, codec fast, 2 workers")


if __name__ == "__main__":
    main()
