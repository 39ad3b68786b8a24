"""Command line, folder of the data, and the report of a benchmark script."""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import platform
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.memory import disk
from harness.race import Result, race
from harness.ways import Way


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Something to reach.

    Attributes
    ----------
    text
        What is compared.
    ours
        Patterns of keys of ways; the fastest of them counts.
    others
        Patterns of keys; the fastest of them counts.
    factor
        How many times the others' rate is to be reached.
    """

    text: str
    ours: tuple[str, ...]
    others: tuple[str, ...]
    factor: float


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says.

    Attributes
    ----------
    folder
        Where the data lies; made when missing, kept between runs.
    quick
        Fewer rounds, less data.
    rounds, seconds
        Of the race.
    only
        Patterns of keys of ways.
    json, markdown
        Files to write.
    flag
        Whether the benchmark's own option was given.
    megabytes
        Size of the sources, where the benchmark lets it be chosen; None: its own.
    """

    folder: Path
    quick: bool
    rounds: int
    seconds: float
    only: tuple[str, ...]
    json: Path | None
    markdown: Path | None
    flag: bool = False
    megabytes: int | None = None


def parse(about: str | None, name: str, *, sized: bool = False, **flag: str) -> Options:
    """Read the command line of the benchmark `name`.

    `flag` is one more option, with its description; `sized`: ``--megabytes`` is one, too.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="less data, three short rounds")
    parser.add_argument("--rounds", type=int, help="rounds (9; 3 when quick)")
    parser.add_argument("--seconds", type=float, help="of each way in each round (0.7; 0.3 when quick)")
    parser.add_argument("--only", nargs="+", default=(), metavar="PATTERN", help="ways to run: 'Loader*'")
    parser.add_argument("--json", type=Path, help="write what was measured there")
    parser.add_argument("--markdown", type=Path, help="write the tables there")
    parser.add_argument("--folder", type=Path, help="of the data (default: in the temporary folder, kept)")
    if sized:
        parser.add_argument("--megabytes", type=int, help="of sources (default: the benchmark's own size)")
    for extra, text in flag.items():
        parser.add_argument(f"--{extra}", dest="flag", action="store_true", help=text)
    given = parser.parse_args()
    root = given.folder or Path(tempfile.gettempdir()) / "unistore-benchmarks"
    folder = root / (f"{name}-quick" if given.quick else name)
    folder.mkdir(parents=True, exist_ok=True)
    return Options(
        folder=folder.resolve(),
        quick=given.quick,
        rounds=given.rounds or (3 if given.quick else 9),
        seconds=given.seconds or (0.3 if given.quick else 0.7),
        only=tuple(given.only),
        json=given.json,
        markdown=given.markdown,
        flag=getattr(given, "flag", False),
        megabytes=getattr(given, "megabytes", None),
    )


def run_ways(
    options: Options, title: str, ways: Sequence[Way], batch: int, targets: Sequence[Target], headline: str
) -> None:
    """Race ways and report.

    Parameters
    ----------
    options
        Of the command line.
    title
        Of the table.
    ways
        The contenders.
    batch
        Samples of a batch.
    targets
        What is to be reached.
    headline
        Pattern of the key of our way whose ratio to every other is shown.
    """
    chosen = [
        way for way in ways if not options.only or any(fnmatch.fnmatch(way.key, p) for p in options.only)
    ]
    if not chosen:
        known = ", ".join(way.key for way in ways)
        print(f"{title}: no way is called {' or '.join(options.only)}; they are {known}")
        return
    results = race(chosen, batch, options.rounds, options.seconds)
    text = markdown(title, results, targets, headline)
    print(text)
    if options.markdown:
        with options.markdown.open("a") as file:
            file.write(text + "\n")
    if options.json:
        known = json.loads(options.json.read_text()) if options.json.exists() else {}
        known[title] = [result.as_json() for result in results]
        options.json.write_text(json.dumps(known, indent=1))


def markdown(title: str, results: Sequence[Result], targets: Sequence[Target], headline: str) -> str:
    """Tables of ways and targets."""
    best = _best(results, (headline,))
    lines = [f"### {title}", "", machine(), ""]
    lines.append(
        "| way | setting | samples/s | range | CPU/sample | first batch | memory | disk | Loader is |"
    )
    lines.append("|---|---|--:|--:|--:|--:|--:|--:|--:|")
    lines += [_row(result, best) for result in results]
    sizes = [result.sample_bytes / 1e3 for result in results if result.sample_bytes]
    others = [each.others for result in results for each in result.slices.values()]
    load = f"median {statistics.median(others):.0%}, most {max(others):.0%}" if others else "unknown"
    lines.append("")
    lines.append(f"A delivered sample has {min(sizes):,.0f} to {max(sizes):,.0f} kB.")
    lines.append(f"Other load on the machine during the slices: {load}.")
    lines.append("")
    judged = [line for target in targets if (line := _judge(target, results))]
    if judged:
        lines += ["| target | to reach | reached | |", "|---|--:|--:|---|", *judged, ""]
    return "\n".join(lines)


def _row(result: Result, best: Result | None) -> str:
    """Row of a way in the table; `best` is compared with it."""
    way, rates = result.way, sorted(each.rate for each in result.slices.values())
    if result.failure or not rates:
        return f"| {way.name} | {way.setting} | failed: {result.failure} | | | | | | |"
    cells = [
        way.name,
        way.setting,
        _short(result.rate),
        f"{_short(rates[0])}–{_short(rates[-1])}",
        _time(result.cost),
        f"{result.first:.2f} s",
        f"{result.memory:,.0f} MiB",
        f"{disk(way.files) / 1e6:,.0f} MB",
        f"{best.over(result):.2f}×" if best is not None and best is not result else "",
    ]
    return f"| {' | '.join(cells)} |"


def machine() -> str:
    """What it ran on."""
    return (
        f"{len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}, page cache warm "
        "(first batch: files evicted before); memory: anonymous and shared, above the imports."
    )


def _judge(target: Target, results: Sequence[Result]) -> str | None:
    ours, theirs = _best(results, target.ours), _best(results, target.others)
    if ours is None or theirs is None:
        return None
    ratio = ours.over(theirs)
    verdict = "met" if ratio >= target.factor else "**missed**"
    text = f"{target.text} ({ours.way.key} over {theirs.way.key})"
    return f"| {text} | ≥ {target.factor:g}× | {ratio:.2f}× | {verdict} |"


def _best(results: Sequence[Result], patterns: Sequence[str]) -> Result | None:
    fitting = [
        result
        for result in results
        if result.slices and any(fnmatch.fnmatch(result.way.key, pattern) for pattern in patterns)
    ]
    return max(fitting, key=lambda result: result.rate, default=None)


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:,.0f} µs"


def _short(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"
