"""LitData, MosaicML Streaming and WebDataset: samples written in their formats, and read back.

They are no dependencies of this project; ``benchmarks/requirements.txt`` names them. One that cannot be
imported is listed as such.
"""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.utils.data
from numpy.typing import NDArray

from harness.ways import Feed, endless

Arrays = Mapping[str, NDArray[Any]]
ALL = ("litdata", "streaming", "webdataset")
CHUNK = 16 << 20
"""Bytes of a peer's file."""


def mosaic() -> ModuleType:
    """MosaicML Streaming; its text and image parts, which need further libraries, are left out."""
    for name in ("streaming.text", "streaming.vision"):
        sys.modules.setdefault(name, ModuleType(name))
    for name, contents in (
        ("transformers.feature_extraction_utils", {"BatchFeature": dict}),
        ("transformers.tokenization_utils_base", {"BatchEncoding": dict}),
    ):
        try:
            importlib.import_module(name)
        except ImportError:
            stand_in = ModuleType(name)
            stand_in.__dict__.update(contents)
            sys.modules.setdefault("transformers", ModuleType("transformers"))
            sys.modules[name] = stand_in
    return importlib.import_module("streaming")


def available(name: str) -> bool:
    """Whether a peer can be imported."""
    try:
        if name == "streaming":
            mosaic()
        else:
            importlib.import_module(name)
    except (ImportError, RuntimeError) as error:
        print(f"{name} cannot be imported: {error}", file=sys.stderr)
        return False
    return True


def write_peers(
    folder: Path, samples: Callable[[], Iterable[Arrays]], only: Sequence[str] = ALL
) -> dict[str, Path]:
    """Write samples for every peer that is there.

    Parameters
    ----------
    folder
        Where to; what is there already is kept.
    samples
        Gives the samples, anew each time it is called.
    only
        Peers to write for.

    Returns
    -------
    Folder by name: ``litdata``, ``streaming``, ``webdataset``.
    """
    writers = {"litdata": _write_litdata, "streaming": _write_mosaic, "webdataset": _write_webdataset}
    found = {name: folder / name for name in only}
    for name in only:
        if not found[name].exists() and available(name):
            unfinished = folder / f"{name}.unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            writers[name](unfinished, samples())
            unfinished.rename(found[name])
    return found


def _write_litdata(folder: Path, samples: Iterable[Arrays]) -> None:
    from litdata.streaming.cache import Cache

    cache = Cache(str(folder), chunk_bytes=CHUNK)
    for number, sample in enumerate(samples):
        cache[number] = dict(sample)
    cache.done()
    cache.merge()


def _write_mosaic(folder: Path, samples: Iterable[Arrays]) -> None:
    writer_class = mosaic().MDSWriter
    remaining = iter(samples)
    first = next(remaining)
    columns = {key: f"ndarray:{value.dtype.name}" for key, value in first.items()}
    with writer_class(out=str(folder), columns=columns, size_limit=CHUNK) as writer:
        writer.write(dict(first))
        for sample in remaining:
            writer.write(dict(sample))


def _write_webdataset(folder: Path, samples: Iterable[Arrays]) -> None:
    from webdataset import ShardWriter

    with ShardWriter(f"{folder}/%05d.tar", maxsize=CHUNK, verbose=0) as writer:
        for number, sample in enumerate(samples):
            named = {f"{key.replace('.', '-')}.npy": np.asarray(value) for key, value in sample.items()}
            writer.write({"__key__": f"{number:08d}", **named})


def packed(samples: Sequence[Arrays]) -> dict[str, Any]:
    """Ragged samples behind one another, and their offsets."""
    found: dict[str, Any] = {
        key: torch.from_numpy(np.concatenate([np.asarray(sample[key]) for sample in samples]))
        for key in samples[0]
        if not key.startswith("__")
    }
    lengths = [len(sample[next(iter(found))]) for sample in samples]
    found["offsets"] = torch.from_numpy(np.cumsum([0, *lengths]))
    return found


def listed(samples: Sequence[Arrays]) -> dict[str, Any]:
    """Ragged samples as lists of tensors."""
    return {
        key: [torch.from_numpy(_writable(sample[key])) for sample in samples]
        for key in samples[0]
        if not key.startswith("__")
    }


def _writable(value: Any) -> NDArray[Any]:
    array = np.asarray(value)
    return array if array.flags.writeable else array.copy()


def stacked(samples: Sequence[Arrays]) -> dict[str, Any]:
    """Samples of one shape, stacked."""
    return {
        key: torch.from_numpy(np.stack([np.asarray(sample[key]) for sample in samples]))
        for key in samples[0]
        if not key.startswith("__")
    }


def iterable_feed(dataset: Any, batch: int, workers: int, collate: Any, method: str | None = None) -> Feed:
    """Batches of an endless iterable dataset, by torch's DataLoader."""
    loader = torch.utils.data.DataLoader(
        dataset,
        batch_size=batch,
        num_workers=workers,
        collate_fn=collate,
        drop_last=True,
        persistent_workers=workers > 0,
        multiprocessing_context=method if workers else None,
    )
    return Feed(endless(loader), ahead=2 * workers)


class _Changed(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    """An iterable dataset whose samples are changed in the worker; `endlessly`: that starts again there."""

    def __init__(self, dataset: Any, change: Callable[[Any], Any] | None, *, endlessly: bool = False) -> None:
        self._dataset = dataset
        self._change = change
        self._endlessly = endlessly

    def __iter__(self) -> Iterator[Any]:
        for sample in endless(self._dataset) if self._endlessly else self._dataset:
            yield sample if self._change is None else self._change(sample)


def litdata_feed(
    folder: Path,
    batch: int,
    workers: int,
    collate: Any,
    change: Callable[[Any], Any] | None = None,
    **options: Any,
) -> Feed:
    """LitData's StreamingDataset, shuffled; `change` makes a sample of a stored one, in the worker.

    It starts again inside the worker, so that no end of an epoch is timed.
    """
    from litdata import StreamingDataset

    dataset = StreamingDataset(str(folder), shuffle=True, **options)
    return iterable_feed(_Changed(dataset, change, endlessly=True), batch, workers, collate)


def mosaic_feed(
    folder: Path, batch: int, workers: int, collate: Any, change: Callable[[Any], Any] | None = None
) -> Feed:
    """MosaicML's StreamingDataset, shuffled."""
    # an epoch's end inside a worker would wait for the other workers: the epoch is made long instead
    dataset = mosaic().StreamingDataset(local=str(folder), shuffle=True, batch_size=batch, epoch_size=100_000)
    return iterable_feed(dataset if change is None else _Changed(dataset, change), batch, workers, collate)


def webdataset_feed(
    folder: Path, batch: int, workers: int, collate: Any, change: Callable[[Any], Any] | None = None
) -> Feed:
    """WebDataset, shuffled shards and a shuffle buffer of 100 samples."""
    from webdataset import WebDataset

    shards = sorted(str(shard) for shard in folder.glob("*.tar"))
    dataset = WebDataset(shards, shardshuffle=len(shards), nodesplitter=None).shuffle(100).decode()
    names = dataset.map(_without_suffix).repeat()
    return iterable_feed(names if change is None else names.map(change), batch, workers, collate)


def _without_suffix(sample: Mapping[str, Any]) -> dict[str, Any]:
    return {key.removesuffix(".npy"): value for key, value in sample.items() if key.endswith(".npy")}
