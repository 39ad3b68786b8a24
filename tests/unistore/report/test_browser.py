"""Pages of every family in headless Chromium, 1,280 and 400 pixels wide, no errors (``make browser``)."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import cv2
import pytest

import unistore
from tests.cases import MAKERS, REAL

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: make browser")
pytest.importorskip("matplotlib", reason="matplotlib draws the pictures: pip install 'unistore[plot]'")

WIDTHS = (1280, 400)
FRAME = '<iframe width={width} height=3000 srcdoc="{page}"></iframe>'
MEASURE = """<pre id="told"></pre><script>onload = () => {
told.textContent = JSON.stringify([...document.querySelectorAll("iframe")].map(frame => {
  const seen = frame.contentDocument, images = [...seen.images]
  return {width: seen.documentElement.scrollWidth, images: images.length,
    broken: images.filter(image => !image.complete || !image.naturalWidth).length,
    narrowest: Math.min(...images.map(image => image.width))}}))}</script>"""
"""A page in frames of some widths, and what the browser makes of them."""


def chromium(folder: Path, file: Path, *options: str) -> subprocess.CompletedProcess[str]:
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    command += [
        f"--user-data-dir={folder / 'profile'}",
        "--virtual-time-budget=5000",
        *options,
        file.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "CONSOLE" not in done.stderr
    return done


@pytest.mark.parametrize("name", REAL)
def test_a_page_in_a_browser(tmp_path: Path, name: str) -> None:
    store = MAKERS[name](tmp_path).convert(tmp_path / "a.zarr")
    text = unistore.inspect(store).to_html()
    frames = [FRAME.format(width=width, page=html.escape(text)) for width in WIDTHS]
    (tmp_path / "frames.html").write_text("".join(frames) + MEASURE)
    shown = chromium(tmp_path, tmp_path / "frames.html", "--dump-dom").stdout
    found = json.loads(html.unescape(re.findall(r'<pre id="told">(.*?)</pre>', shown)[0]))
    for width, told in zip(WIDTHS, found, strict=True):
        assert told["width"] <= width, "it is scrolled sideways"
        assert told["images"] == text.count("<img")
        assert not told["broken"]
        assert told["narrowest"] >= min(width, 560)
    (tmp_path / "a.html").write_text(text)
    chromium(tmp_path, tmp_path / "a.html", "--window-size=1280,2000", f"--screenshot={tmp_path / 'a.png'}")
    seen = cv2.imread(str(tmp_path / "a.png"))
    assert seen is not None
    assert seen.std() > 15
    assert (seen[0, 0] > 240).all(), "a light page"
