"""Convert samples of every family, load batches by DataLoader and by Loader, write a page about each store.

Run by ``make demo``; everything it writes goes to ``demo-out/``, which is made anew: the sources, and the
stores that the guides and the training scripts open.
"""

from __future__ import annotations

import base64
import html
import io
import json
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from own_ways import BoxesByNibabel, OwnWay, SegmentsByH5py, WindowsByNumpy
from synthetic import event_recordings, plain_arrays, robot_episodes, spike_sequences
from torch.utils.data import DataLoader

import unistore
from unistore.cli.main import main as unistore_command
from unistore.html import sample_picture

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data"
OUT = ROOT / "demo-out"
INDEX = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>unistore: the demo</title>
<style>
body {{ font: 16px/1.6 system-ui; max-width: 60em; margin: 2em auto; padding: 0 1em }}
table {{ border-collapse: collapse; width: 100% }} td, th {{ padding: .2em .6em .2em 0; text-align: left }}
th {{ font-weight: 500 }} td:nth-child(2), td:nth-child(3) {{ font-size: 1.5em; font-weight: 600 }}
ul {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(16em, 1fr)); gap: 1.2em; padding: 0 }}
li {{ list-style: none; border: 1px solid #8886; border-radius: .5em; overflow: hidden }}
li a {{ display: block; color: inherit; text-decoration: none }}
li img {{ display: block; width: 100%; height: 11em; object-fit: contain; background: #fff }}
li b, li span {{ display: block; padding: 0 .8em }} li b {{ padding-top: .5em }}
li span {{ padding-bottom: .7em; font-size: .9em; opacity: .8 }}
</style>
<h1>Stores of the demo</h1>
<p>Measured a moment ago on this machine, {workers} workers each, equal values from both:</p>
<table>
<tr><th>samples<th>samples/s of Loader<th>ratio<th>sources' own way in a DataLoader
{rates}
</table>
<p>By the same Loader, from a store with the voxels and from one with only the points, equal values:</p>
<table>
<tr><th>samples<th>samples/s if stored<th>ratio<th>if computed in every epoch
{gain}
</table>
<p>Pages to turn, slice and play:</p>
<ul>
{pages}
</ul>
</html>
"""
VOXEL = 20
"""Size of the voxels of clouds, in metres."""
WORKERS = 2
BATCH = 4
SECONDS = 1.0
"""For which each way of loading is measured, in whole epochs, after a first one."""


@dataclass(frozen=True)
class Conversion:
    """One conversion in the folder of the demo: sources, options of the command, and the samples to load."""

    name: str
    about: str
    family: str
    sources: str
    options: Sequence[str] = ()
    samples: Any = None
    own: type[OwnWay] | None = None  # reads the same samples from the sources

    @property
    def words(self) -> list[str]:
        """Arguments of ``unistore``."""
        return ["convert", self.family, self.sources, f"{self.name}.zarr", *self.options]


REAL = {
    "clouds/thin_a.h5": "samples/pointcloud/derived_pointsuite_thin-1.h5",
    "clouds/thin_b.h5": "samples/pointcloud/derived_pointsuite_thin-2.h5",
    "scan/ct.nii.gz": "samples/ct/totalseg_ct_cropped.nii.gz",
    "volumes/totalseg_a_hu.npy": "ct/totalseg_a_hu.npy",
    "volumes/totalseg_b_hu.npy": "ct/totalseg_b_hu.npy",
    "stream/spikes.dat": "samples/spike/spikezoo_data.dat",
    "demos/robosuite100_lift_panda_demo.hdf5": "trajectory/robosuite100_lift_panda_demo.hdf5",
    "returns/autzen_returns.h5": "rows/autzen_returns.h5",
    "bags/robot.mcap": "mcap/robot.mcap",
}
"""Sources of conversions, and the files of tests/data that they are."""
CONVERSIONS = [
    Conversion(
        "clouds",
        "REAL airborne lidar (PDAL test data)",
        "point-cloud",
        "clouds/",
        ["--voxel-size", str(VOXEL)],
        unistore.Segments(coordinates="absolute"),
        SegmentsByH5py,
    ),
    Conversion(
        "more-clouds",
        "one of these files again, to be joined with the others",
        "point-cloud",
        "clouds/thin_b.h5",
        ["--voxel-size", str(VOXEL)],
    ),
    Conversion(
        "scan",
        "REAL computed tomography (a TotalSegmentator test volume, whole)",
        "ct",
        "scan/",
        ["--window", "bone"],
        unistore.Patches(64, random=False),
        BoxesByNibabel,
    ),
    Conversion(
        "volumes",
        "REAL computed tomography (crops of a TotalSegmentator test volume)",
        "ct",
        "volumes/",
        ["--window", "lung", "--window", "bone"],
        unistore.SparsePoints(window="bone", max_points=5000),
    ),
    Conversion(
        "stream",
        "REAL spike-camera stream (Spike-Zoo, scene from REDS)",
        "spike",
        "stream/",
        ["--voxel-bins", "5"],
        unistore.Steps(40, stride=10),
        WindowsByNumpy,
    ),
    Conversion(
        "recordings",
        "SYNTHETIC spike sequences with blurred and sharp frames",
        "spike",
        "recordings/",
        ["--height", "96", "--width", "160", "--voxel-bins", "5"],
        unistore.Clips(length=3, crop=64),
    ),
    Conversion(
        "flights",
        "SYNTHETIC recordings of an event camera",
        "events",
        "flights/",
        ["--sensor", "64", "48"],
        unistore.Events("10ms", voxel=5),
    ),
    Conversion(
        "demos",
        "REAL human teleoperation in simulation (robosuite)",
        "trajectory",
        "demos/",
        samples=unistore.Windows(history=2, horizon=8, pad="edge"),
    ),
    Conversion(
        "episodes",
        "SYNTHETIC episodes with three cameras",
        "trajectory",
        "episodes/",
        samples=unistore.Transitions(),
    ),
    Conversion("returns", "REAL plain arrays (PDAL test data)", "rows", "returns/"),
    Conversion(
        "arrays",
        "SYNTHETIC plain arrays",
        "rows",
        "arrays/",
        ["--split", "train=0.5,val=0.5", "--split-by", "row"],
    ),
]
"""What the demo shows, in order; the guides open these stores."""


def lay_out(folder: Path) -> None:
    """Put the sources of all conversions into a folder."""
    for name, source in REAL.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(DATA / source, folder / name)
    spike_sequences(folder / "recordings")
    event_recordings(folder / "flights")
    (folder / "episodes").mkdir()
    robot_episodes(folder / "episodes" / "run.hdf5")
    plain_arrays(folder / "arrays")


def convert(conversion: Conversion) -> None:
    """Show the command, run it, and say what it wrote."""
    print("$ unistore " + " ".join(conversion.words), flush=True)
    printed = io.StringIO()
    with chdir(OUT), redirect_stdout(printed):
        try:
            unistore_command([*conversion.words, "--json", "--quiet"])
        except SystemExit as ended:
            if ended.code:
                raise
    report = json.loads(printed.getvalue())
    kilobytes = [report[name] / 1000 for name in ("source_bytes", "stored_bytes")]
    print(
        "  samples: {:,}, {:,.0f} kB of sources → {:,.0f} kB".format(report["samples"], *kilobytes),
        flush=True,
    )


def load(conversion: Conversion, store: Path) -> None:
    """Load all batches by torch's DataLoader with 0 and 2 workers and by Loader; compare them."""
    dataset = unistore.Dataset(store, samples=conversion.samples)
    size = min(4, len(dataset)) if len(dataset) < 200 else 64
    with unistore.Loader(dataset, size, shuffle=False, num_workers=2) as loader:
        ways = {
            "DataLoader": DataLoader(dataset, size, collate_fn=unistore.collate),
            "DataLoader with workers": DataLoader(dataset, size, num_workers=2, collate_fn=unistore.collate),
            "Loader": loader,
        }
        first, *others = [list(batches) for batches in ways.values()]
    for other in others:
        for batch, same in zip(first, other, strict=True):
            differ = [key for key, value in tensors(batch).items() if not torch.equal(value, same[key])]
            if differ:
                sys.exit(f"{store}: {', '.join(differ)} differs between loaders")
    shapes = [f"{key} {tuple(value.shape)}" for key, value in tensors(first[0]).items() if key != "index"]
    print(f"  batches: {len(first)}, equal from {', '.join(ways)}: {', '.join(shapes[:3])}, …", flush=True)


def tensors(batch: dict[str, Any]) -> dict[str, torch.Tensor]:
    """What of a batch is no text."""
    return {key: value for key, value in batch.items() if isinstance(value, torch.Tensor)}


@dataclass(frozen=True)
class Race:
    """Samples a second of a Loader, and of the sources' own way in a DataLoader."""

    own: type[OwnWay]
    ours: float
    theirs: float

    def __str__(self) -> str:
        times = f"{self.ours / self.theirs:,.1f} times {self.own.reader}"
        return f"{self.own.samples:<28}{self.ours:>9,.0f} samples/s, {times} ({self.theirs:,.0f})"

    @property
    def html(self) -> str:
        """A row of the index."""
        cells = [self.own.samples, f"{self.ours:,.0f}", f"{self.ours / self.theirs:,.1f}×"]
        cells.append(f"{self.own.reader}, {self.theirs:,.0f} samples/s")
        return "<tr>" + "".join(f"<td>{html.escape(cell)}" for cell in cells)


def race(conversion: Conversion, own: type[OwnWay], store: Path) -> Race:
    """Compare the values of a Loader and of the sources' own way, then measure both."""
    peer = own(OUT / conversion.sources)
    dataset = unistore.Dataset(store, samples=conversion.samples, fields=[own.key])
    if len(peer) != len(dataset):
        sys.exit(f"{store}: {len(dataset)} samples, and {len(peer)} by {own.reader}")
    for number in range(0, len(peer), max(1, len(peer) // 8)):
        if not torch.equal(dataset[number][own.key], peer[number]):
            sys.exit(f"{store}: sample {number} differs from that by {own.reader}")
    peers = DataLoader(
        peer, BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True, collate_fn=own.collate
    )
    with unistore.Loader(dataset, BATCH, shuffle=True, num_workers=WORKERS) as loader:
        return Race(own, rate(loader, len(dataset)), rate(peers, len(peer)))


@dataclass(frozen=True)
class Gain:
    """Samples a second with the voxels of clouds, read from a store and computed in every epoch."""

    stored: float
    computed: float

    @property
    def samples(self) -> str:
        """What the samples are."""
        return f"voxels of {VOXEL} m of cloud segments"

    def __str__(self) -> str:
        times = f"{self.stored / self.computed:,.1f} times computing them in every epoch"
        return f"{self.samples}: {self.stored:,.0f} samples/s, {times} ({self.computed:,.0f})"

    @property
    def html(self) -> str:
        """A row of the index."""
        cells = [self.samples, f"{self.stored:,.0f}", f"{self.stored / self.computed:,.1f}×"]
        cells.append(f"{self.computed:,.0f} samples/s")
        return "<tr>" + "".join(f"<td>{html.escape(cell)}" for cell in cells)


def gain_of_voxels(store: Path) -> Gain:
    """Compare voxels that a store has with those computed of a store of the same sources without them."""
    kind = unistore.Segments(voxel=VOXEL)
    keys = ["voxel_coords", "voxel_counts"]
    with TemporaryDirectory() as folder:
        without = Path(folder, "without-voxels.zarr")
        unistore.convert(OUT / "clouds", without, "point_cloud")
        stored, computed = [unistore.Dataset(path, kind, fields=keys) for path in (store, without)]
        for number in range(len(stored)):
            if any(not torch.equal(stored[number][key], computed[number][key]) for key in keys):
                sys.exit(f"{store}: the voxels of sample {number} are not those of its points")
        with (
            unistore.Loader(stored, BATCH, shuffle=True, num_workers=WORKERS) as reading,
            unistore.Loader(computed, BATCH, shuffle=True, num_workers=WORKERS) as computing,
        ):
            # In turns, so that what else this machine does slows both down
            rates = [(rate(reading, len(stored)), rate(computing, len(stored))) for _ in range(3)]
    return Gain(*[sum(rounds) / len(rounds) for rounds in zip(*rates, strict=True)])


def card(conversion: Conversion, page: Path, store: Path) -> str:
    """Return an entry of the index: a picture of the middle sample, the store's name, and what it holds."""
    opened = unistore.Store(store)
    picture = sample_picture(opened, opened.sample_count // 2, "webp")
    image = f"data:image/webp;base64,{base64.b64encode(picture).decode()}"
    about = html.escape(conversion.about)
    inner = f'<img src="{image}" alt="a sample: {about}"><b>{conversion.name}</b><span>{about}</span>'
    return f'<li><a href="{page.name}">{inner}</a></li>'


def rate(batches: Iterable[Any], samples: int) -> float:
    """Return samples a second of whole epochs, after a first one."""
    epochs = -1
    start = end = time.perf_counter()
    while end - start < SECONDS:
        for _ in batches:
            pass
        epochs += 1
        end = time.perf_counter()
        if epochs == 0:
            start = end
    return epochs * samples / (end - start)


def main() -> None:
    """Run the demo."""
    shutil.rmtree(OUT, ignore_errors=True)
    lay_out(OUT)
    pages = []
    races = []
    for conversion in CONVERSIONS:
        store = OUT / f"{conversion.name}.zarr"
        print(f"\n{conversion.name}: {conversion.about}", flush=True)
        convert(conversion)
        load(conversion, store)
        if conversion.own is not None:
            races.append(race(conversion, conversion.own, store))
        page = store.with_suffix(".html")
        page.write_text(unistore.inspect(store).to_html(), encoding="utf-8")
        pages.append(card(conversion, page, store))
    gain = gain_of_voxels(OUT / "clouds.zarr")
    index = OUT / "index.html"
    rows = "\n".join(result.html for result in races)
    shown = INDEX.format(workers=WORKERS, rates=rows, gain=gain.html, pages="\n".join(pages))
    index.write_text(shown, encoding="utf-8")
    print(f"\nA Loader beside the sources' own way in a DataLoader, {WORKERS} workers each, equal values:")
    for result in races:
        print(f"  {result}")
    print(f"\nWhat is precomputed, by the same Loader, equal values:\n  {gain}")
    print(f"\nEvery example of the guides runs in {OUT.name}/. Open in a browser: {index.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
