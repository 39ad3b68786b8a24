"""Draw the chart of the README: how many times as fast as people's own ways, from the figures in RESULTS.md.

Run by ``make pictures``; writes ``docs/images/speed.svg``.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "RESULTS.md"
CHART = ROOT / "docs" / "images" / "speed.svg"

# What is read, what reads it today, and the line of RESULTS.md, in which the figure is the first group.
BARS = (
    ("spike clips", "files decoded on the fly", r"^\| clips: Dataset under .* 25\.96×; ([\d.]+)×"),
    ("robot cameras", "LeRobot 0.4.4, equal disk", r"^\| ratio at equal disk \| ([\d.]+)× \|"),
    ("LAZ tiles", "laspy, a tile a sample", r"^\| segments: Loader over laspy.*?\| – \| ([\d.]+)×"),
    ("CT points", "np.load and argwhere", r"^\| sparse CT: Loader over .*?\| ([\d.]+)×;"),
    ("robot transitions", "lazy HDF5", r"^\| transitions: Loader over the same; .*?\| ([\d.]+)×;"),
    ("CT patches", "MONAI CacheDataset", r"^\| MONAI, `CacheDataset` .*\| ([\d.]+)× \|$"),
    ("event windows", "h5py with ms_to_idx", r'^\| Loader, `codec="auto"` \| .*?× \(.*?\) \| ([\d.]+)×'),
    ("CT patches", "nnU-Net's blosc2", r"^\| nnU-Net's way .*\| ([\d.]+)× \|$"),
    (
        "cloud segments",
        "all preloaded into RAM",
        r"^\| segments: Loader over preload-all's best .*?\| ([\d.]+)×",
    ),
)
WIDTH = 760
ROW = 26
TOP = 40
LEFT = 290
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #24292f }
.peer { fill: #57606a }
.title { font-weight: 600 }
.bar { fill: #2f81f7 }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .peer { fill: #9198a1 } }
"""


def figures(results: str) -> list[float]:
    """Return the figure of each bar. Raises ValueError if RESULTS.md has no such line, or several."""
    values = []
    for name, peer, pattern in BARS:
        lines = re.findall(pattern, results, re.MULTILINE)
        if len(lines) != 1:
            msg = f"{len(lines)} lines of RESULTS.md are that of {name} over {peer}, expected one"
            raise ValueError(msg)
        values.append(float(lines[0]))
    return values


def chart(results: str) -> str:
    """Return the chart as SVG, readable on light and dark pages."""
    bars = sorted(zip(figures(results), BARS, strict=True), reverse=True)
    scale = (WIDTH - LEFT - 60) / bars[0][0]
    title = "Samples per second of unistore's Loader with two workers, relative to …"
    height = TOP + ROW * len(BARS) + 8
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>{title}</title>",
        f"<style>{STYLE}</style>",
        f'<text class="title" x="8" y="22">{title}</text>',
    ]
    for number, (value, (name, peer, _)) in enumerate(bars):
        top = TOP + ROW * number
        width = max(2, value * scale)
        shown = f"{value:.0f}×" if value >= 10 else f"{value:.2g}×"
        label = f'{escape(name)} <tspan class="peer">/ {escape(peer)}</tspan>'
        lines += [
            f'<text x="{LEFT - 8}" y="{top + 14}" text-anchor="end">{label}</text>',
            f'<rect class="bar" x="{LEFT}" y="{top}" width="{width:.1f}" height="18" rx="3"/>',
            f'<text x="{LEFT + width + 6:.1f}" y="{top + 14}">{shown}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    CHART.write_text(chart(RESULTS.read_text()))
    print(CHART.relative_to(ROOT))
