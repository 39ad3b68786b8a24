"""An inspection as one self-contained page of HTML: no scripts, nothing loaded from a network."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from unistore.errors import InputError, Problem, UnistoreError
from unistore.pictures import MARK, check_sample, facts_html, pictures_html, table_html, text_html
from unistore.report.blocks import Block
from unistore.report.measures import chosen_samples
from unistore.report.sealed import describe_store
from unistore.report.sealed_blocks import number
from unistore.report.values import MIN_SHOWN, sample_noun
from unistore.store.reader import Store
from unistore.system.sizes import size

_MAX_REQUESTED = 24
_MAX_CHARTS = 24
_MAX_TEXT = 20_000
"""Characters of code, or of a line."""
_MAX_TRIAL_BYTES = 64 << 20
"""Larger sources are not converted for their pictures."""
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#1b1f24;background:#fff;max-width:1120px;margin:0 auto;
  padding:1rem}
h1{font-size:1.4rem;overflow-wrap:anywhere}
h2{font-size:1.1rem;margin:2rem 0 .5rem;border-bottom:1px solid #d8dee4}
table{border-collapse:collapse}
th,td{text-align:left;vertical-align:top;padding:.15rem .8rem .15rem 0}
.wide{overflow-x:auto}
.wide td,.wide th{white-space:nowrap;font-size:.85rem}
.wide tr:nth-child(even){background:#f6f8fa}
.facts td,li{overflow-wrap:anywhere}
.facts th{white-space:nowrap}
li{white-space:pre-wrap}
figcaption,.note{color:#59636e;font-size:.85rem;overflow-wrap:anywhere}
pre{background:#f6f8fa;padding:.8rem;overflow-x:auto}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(240px,1fr));gap:1rem}
.chart b{display:block;font-size:.85rem;overflow-wrap:anywhere}
svg{display:block;width:100%;height:64px}
.ends{display:flex;justify-content:space-between;font-size:.8rem;color:#59636e}
.bar{display:grid;grid-template-columns:minmax(4rem,45%) 1fr auto;gap:.5rem;align-items:center}
.bar{font-size:.8rem}
.bar span{overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.bar i{height:.7rem;background:#4682b4;min-width:1px}
"""


def render_page(
    kind: str, path: str, details: Mapping[str, Any], blocks: Sequence[Block], samples: Sequence[int] = ()
) -> str:
    """The page of an `Inspection`, with pictures of `samples`, and the first, middle, last and extreme ones.

    Raises `InputError` if a sample does not exist, more than 24 are requested, or `path` is not a store.
    """
    if len(samples) > _MAX_REQUESTED:
        message = f"are {len(samples)}, at most {_MAX_REQUESTED} are shown"
        raise InputError(Problem("samples", message, kind="option"))
    if samples and kind != "store":
        raise InputError(Problem("samples", f"need a store, and {path} is not one", kind="option"))
    parts = [_block(block) for block in blocks]
    if kind == "store":
        first = 1 + any(block.title == "remarks" for block in blocks)
        parts[first:first] = _sample_sections(Store(path), details, samples)
    elif kind == "source" and "raw_bytes" in details:  # files of one family without problems
        parts[1:1] = _trial_sections(path, details)
    title = text_html(path.rstrip("/").rpartition("/")[2] or path)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="generator" content="{MARK}"><title>{title}</title><style>{_STYLE}</style></head>\n'
        f"<body><h1>{title}</h1>\n{''.join(parts)}</body></html>\n"
    )


def _section(title: str, inner: str) -> str:
    return f"<section><h2>{text_html(title)}</h2>{inner}</section>\n"


def _block(block: Block) -> str:
    inner = facts_html(block.facts) if block.facts else ""
    inner += table_html(block.columns, block.rows) if block.rows else ""
    if block.lines:
        items = (text_html(line.removeprefix("- "), _MAX_TEXT) for line in block.lines)
        inner += f"<ul>{''.join(f'<li>{item}</li>' for item in items)}</ul>"
    inner += f"<pre>{text_html(block.code, _MAX_TEXT)}</pre>" if block.code else ""
    if block.collapsed:
        return f"<details><summary>{text_html(block.title)}</summary>{inner}</details>\n"
    return _section(block.title, inner) if block.title else inner


def _trial_sections(path: str, about: Mapping[str, Any]) -> list[str]:
    """Convert small sources into a temporary store, and show that."""
    nbytes = max(about["raw_bytes"], about["sources"]["bytes"] or 0)
    if nbytes > _MAX_TRIAL_BYTES:
        line = f"no pictures of {size(nbytes)} of sources: convert them, and inspect the store"
        return [_block(Block(lines=[line]))]
    from unistore.conversion.convert import convert

    with tempfile.TemporaryDirectory() as folder:
        trial = Path(folder) / "trial.zarr"
        try:
            convert([path], trial, about["family"])
        except UnistoreError as error:
            return [_block(Block(title="a trial conversion fails", lines=[str(error)]))]
        described = describe_store(trial)
        remarks = [Block(title="remarks", lines=described["remarks"])] if described["remarks"] else []
        origin = Block(lines=["from a trial conversion by the command below, into a temporary folder"])
        return [*map(_block, remarks), *_sample_sections(Store(trial), described, ()), _block(origin)]


def _sample_sections(store: Store, about: Mapping[str, Any], samples: Sequence[int]) -> list[str]:
    """Pictures of samples, and distributions of values."""
    for sample in samples:
        check_sample(store, sample)
    noun = sample_noun(store.sample_table)
    chosen = chosen_samples(store.sample_count, about["measures"], samples)
    shown = [
        (sample, f"{noun} {sample}{_split(store, sample)}{reason and f': {reason}'}")
        for sample, reason in chosen.items()
    ]
    return [
        _section("samples", pictures_html(store, shown) or "<p>none</p>"),
        _section("distributions", f'<div class="charts">{"".join(_charts(about, noun))}</div>'),
    ]


def _split(store: Store, sample: int) -> str:
    if not store.has("splits/code") or not (names := store.split_names()):
        return ""
    code = int(store.array("splits/code").read(sample, sample + 1)[0])
    return f" of {names[code]}" if code < len(names) else ""


def _charts(about: Mapping[str, Any], noun: str) -> Iterable[str]:
    """Charts of splits, measures of samples, labels and values of arrays, and stored bytes."""
    if about["splits"]:
        yield _bars("splits", [(name, count, f"{count:,}") for name, count in about["splits"].items()])
    for each in about["measures"]:
        if each["samples"] >= MIN_SHOWN:
            yield _histogram(f"{each['name']} per {noun}", each["histogram"], each["min"], each["max"])
    valued = [array for array in about["arrays"] if array["values"] and array["values"]["read"] >= MIN_SHOWN]
    valued.sort(key=lambda array: (not array["values"]["labels"], -array["raw_bytes"]))
    for array in valued[:_MAX_CHARTS]:
        values = array["values"]
        if values["labels"]:
            share = 100 / values["read"]
            shares = [(str(value), count, f"{share * count:.3g} %") for value, count in values["labels"]]
            yield _bars(array["path"], shares)
        elif values["histogram"]:
            yield _histogram(array["path"], values["histogram"], values["min"], values["max"])
    stored = [(each["path"], each["stored_bytes"]) for each in about["arrays"] if each["stored_bytes"]]
    stored.sort(key=lambda each: -each[1])
    yield _bars("bytes in shards", [(path, nbytes, size(nbytes)) for path, nbytes in stored])


def _bars(title: str, shares: Sequence[tuple[str, int, str]], max_bars: int = 8) -> str:
    longest = max((count for _, count, _ in shares), default=0) or 1
    rows = "".join(
        f'<div class="bar"><span>{text_html(name)}</span><i style="width:{100 * count / longest:.1f}%"></i>'
        f"<span>{text_html(label)}</span></div>"
        for name, count, label in shares[:max_bars]
    )
    more = f'<div class="note">and {len(shares) - max_bars} more</div>' if len(shares) > max_bars else ""
    return f'<div class="chart"><b>{text_html(title)}</b>{rows}{more}</div>'


def _histogram(title: str, counts: Sequence[int], low: float, high: float) -> str:
    highest, width = max(counts), 100 / len(counts)
    bars = "".join(
        f'<rect x="{bin_ * width:.2f}" y="{60 - 58 * count / highest:.2f}" width="{0.9 * width:.2f}" '
        f'height="{58 * count / highest:.2f}" fill="#4682b4"/>'
        for bin_, count in enumerate(counts)
    )
    ends = f'<div class="ends"><span>{number(low)}</span><span>{number(high)}</span></div>'
    svg = f'<svg viewBox="0 0 100 60" preserveAspectRatio="none">{bars}</svg>'
    return f'<div class="chart"><b>{text_html(title)}</b>{svg}{ends}</div>'
