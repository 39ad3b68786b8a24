"""Show pages of inspect as a browser does: the tops of those of the demo's stores, one a family.

Run by ``make pictures``; writes ``docs/images/report-<store>.webp``. Needs Chromium.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import chdir
from pathlib import Path

from demo import CONVERSIONS, ROOT, lay_out
from PIL import Image

import unistore

IMAGES = ROOT / "docs" / "images"
HEIGHTS = {"clouds": 815, "volumes": 795, "recordings": 930, "episodes": 1310, "arrays": 785}
"""Pixels of each page that are shown."""
WIDTH = 1200


def main() -> None:
    """Convert, inspect and draw."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("Chromium is not installed; make browser installs it where it can")
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        lay_out(Path())
        for conversion in CONVERSIONS:
            if conversion.name not in HEIGHTS:
                continue
            subprocess.run([sys.executable, "-m", "unistore", *conversion.words, "-q"], check=True)
            page = Path(f"{conversion.name}.html")
            page.write_text(unistore.inspect(f"{conversion.name}.zarr").to_html(), encoding="utf-8")
            height = HEIGHTS[conversion.name]
            options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
            options += [f"--user-data-dir={folder}/profile", f"--window-size={WIDTH},{height + 200}"]
            subprocess.run(
                [browser, *options, "--screenshot=page.png", page.absolute().as_uri()],
                env=os.environ | {"HOME": folder},
                check=True,
                capture_output=True,
            )
            target = IMAGES / f"report-{conversion.name}.webp"
            shown = Image.open("page.png").convert("RGB").crop((0, 0, WIDTH, height))
            shown.resize((900, height * 900 // WIDTH)).save(target, quality=70, method=6)
            print(f"{target.relative_to(ROOT)}: {target.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
