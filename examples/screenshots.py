"""Show pages of inspect as a browser does: the tops of those of six stores, one for each widget.

Run by ``make pictures``, or with the names of stores; writes ``docs/images/report-<store>.webp``. Needs
Chromium.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path

from demo import DATA, ROOT
from PIL import Image
from synthetic import event_recordings, plain_arrays, robot_episodes, spike_sequences

import unistore

IMAGES = ROOT / "docs" / "images"
WIDTH = 1200
NARROW = 500
"""Widths of pages in pixels, NARROW as of phones."""
SAMPLES = DATA / "samples"


@dataclass(frozen=True)
class Shot:
    """One page: the store that it is about, and how much of it is shown."""

    name: str
    family: str
    sources: Path
    height: int
    options: Sequence[str] = ()
    width: int = WIDTH
    dark: bool = False


SHOTS = [
    Shot("clouds", "point-cloud", DATA / "pointcloud" / "pdal_autzen.h5", 900),
    Shot("volumes", "ct", SAMPLES / "ct" / "totalseg_ct_cropped.nii.gz", 790, ["--window", "bone"]),
    Shot("stream", "spike", SAMPLES / "spike" / "spikezoo_data.dat", 640, dark=True),
    Shot("recordings", "spike", Path("recordings"), 760, ["--height", "96", "--width", "160"]),
    Shot("flights", "events", Path("flights"), 760, ["--sensor", "64", "48"]),
    Shot("episodes", "trajectory", Path("episodes"), 960),
    Shot("arrays", "rows", Path("arrays"), 700, ["--split", "train=0.5,val=0.5", "--split-by", "row"]),
    Shot("narrow", "ct", SAMPLES / "ct" / "totalseg_ct_cropped.nii.gz", 900, width=NARROW, dark=True),
]


def main() -> None:
    """Convert, inspect and draw."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("Chromium is not installed; make browser installs it where it can")
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        spike_sequences(Path("recordings"))
        event_recordings(Path("flights"))
        Path("episodes").mkdir()
        robot_episodes(Path("episodes") / "run.hdf5")
        plain_arrays(Path("arrays"))
        for shot in SHOTS:
            if shot.name in sys.argv[1:] or len(sys.argv) == 1:
                draw(shot, browser)


def draw(shot: Shot, browser: str) -> None:
    """Write the top of one page."""
    store = Path(f"{shot.name}.zarr")
    words = ["convert", shot.family, str(shot.sources), str(store), *shot.options, "-q"]
    subprocess.run([sys.executable, "-m", "unistore", *words], check=True)
    page = store.with_suffix(".html")
    page.write_text(unistore.inspect(store).to_html(), encoding="utf-8")
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    options += ["--user-data-dir=profile", "--virtual-time-budget=5000"]
    options += [f"--window-size={shot.width},{shot.height + 200}", "--screenshot=page.png"]
    if shot.dark:
        options.append("--blink-settings=preferredColorScheme=0")
    address = page.absolute().as_uri()
    subprocess.run([browser, *options, address], check=True, capture_output=True)
    target = IMAGES / f"report-{shot.name}.webp"
    shown = Image.open("page.png").convert("RGB").crop((0, 0, shot.width, shot.height))
    shown.save(target, quality=78, method=6)
    print(f"{target.relative_to(ROOT)}: {target.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
