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

SECTION = "## Beside the usual readers"
# Rows of the table: what is read, its usual reader, three figures of which the third is the ratio
ROW_OF_TABLE = re.compile(r"^\| ([^|]+) \| ([^|]+) \| [^|]+ \| [^|]+ \| ([\d.]+)× \|", re.MULTILINE)
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


def bars_of(results: str) -> list[tuple[float, str, str]]:
    """Return ratio, what is read and its usual reader of each row of the table, the largest ratio first.

    Raises ValueError if RESULTS.md has no such table.
    """
    section = results.partition(SECTION)[2].partition("\n## ")[0]
    bars = [(float(ratio), name, peer) for name, peer, ratio in ROW_OF_TABLE.findall(section)]
    if not bars:
        msg = f"RESULTS.md has no table with ratios under {SECTION!r}"
        raise ValueError(msg)
    return sorted(bars, reverse=True)


def chart(results: str) -> str:
    """Return the chart as SVG, readable on light and dark pages."""
    bars = bars_of(results)
    scale = (WIDTH - LEFT - 60) / bars[0][0]
    title = "Samples per second of unistore's Loader with two workers, relative to …"
    height = TOP + ROW * len(bars) + 8
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>{title}</title>",
        f"<style>{STYLE}</style>",
        f'<text class="title" x="8" y="22">{title}</text>',
    ]
    for number, (value, name, peer) in enumerate(bars):
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
