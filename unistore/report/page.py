"""The renderer that makes one self-contained page of HTML: no scripts, nothing loaded from a network."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unistore.errors import InputError, Problem, UnistoreError
from unistore.pictures import MARK, check_sample, facts_html, pictures_html, table_html, text_html
from unistore.report.sealed import StoreReport, describe_store
from unistore.report.sources import SourceReport
from unistore.report.text import Block
from unistore.report.values import sample_noun
from unistore.store.reader import Store
from unistore.system.sizes import size

_MAX_REQUESTED = 24
# Measures whose smallest and largest samples are shown
_MAX_MEASURES = 6
# Characters of code, or of a line
_MAX_TEXT = 20_000
# Larger sources are not converted for their pictures
_MAX_TRIAL_BYTES = 64 << 20
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
figcaption{color:#59636e;font-size:.85rem;overflow-wrap:anywhere}
pre{background:#f6f8fa;padding:.8rem;overflow-x:auto}
"""


def render_page(path: str, report: Any, blocks: Sequence[Block], samples: Sequence[int] = ()) -> str:
    """Render blocks, of a store with pictures of `samples`, and the first, middle, last and extreme ones."""
    if len(samples) > _MAX_REQUESTED:
        message = f"are {len(samples)}, at most {_MAX_REQUESTED} are shown"
        raise InputError(Problem("samples", message, kind="option"))
    if samples and not isinstance(report, StoreReport):
        raise InputError(Problem("samples", f"need a store, and {path} is not one", kind="option"))
    parts = list(map(_block, blocks))
    if isinstance(report, StoreReport):
        parts.insert(2 if report.remarks else 1, _samples(Store(path), report, samples))
    elif isinstance(report, SourceReport) and report.sources is not None:
        parts.insert(1, _trial(path, report, report.sources))
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
    if block.rows:
        inner += table_html(block.columns, block.rows)
    if block.lines:
        items = [f"<li>{text_html(line.removeprefix('- '), _MAX_TEXT)}</li>" for line in block.lines]
        inner += f"<ul>{''.join(items)}</ul>"
    if block.code:
        inner += f"<pre>{text_html(block.code, _MAX_TEXT)}</pre>"
    if block.collapsed:
        return f"<details><summary>{text_html(block.title)}</summary>{inner}</details>\n"
    return _section(block.title, inner) if block.title else inner


def _trial(path: str, report: SourceReport, sources: Mapping[str, Any]) -> str:
    nbytes = max(report.raw_bytes or 0, sources["bytes"] or 0)
    if nbytes > _MAX_TRIAL_BYTES:
        line = f"no pictures of {size(nbytes)} of sources: convert them, and inspect the store"
        return _block(Block(lines=[line]))
    from unistore.conversion.convert import convert

    with tempfile.TemporaryDirectory() as folder:
        trial = Path(folder, "trial.zarr")
        try:
            convert([path], trial, report.family)
        except UnistoreError as error:
            return _block(Block("a trial conversion fails", lines=[str(error)]))
        store = describe_store(trial)
        remarks = _block(Block("remarks", lines=store.remarks)) if store.remarks else ""
        origin = Block(lines=["from a trial conversion by the command below, into a temporary folder"])
        return remarks + _samples(Store(trial), store, ()) + _block(origin)


def _samples(store: Store, report: StoreReport, samples: Sequence[int]) -> str:
    for sample in samples:
        check_sample(store, sample)
    noun = sample_noun(store.sample_table)
    captions = []
    for sample, reasons in _chosen_samples(store.sample_count, report.measures, samples).items():
        reason = ", ".join(filter(None, reasons))
        caption = f"{noun} {sample}{_split(store, sample)}"
        captions.append((sample, f"{caption}: {reason}" if reason else caption))
    return _section("samples", pictures_html(store, captions) or "<p>none</p>")


def _chosen_samples(
    count: int, measures: Sequence[Mapping[str, Any]], requested: Sequence[int]
) -> dict[int, list[str]]:
    chosen: dict[int, list[str]] = {sample: [] for sample in requested}
    if count:
        for sample, position in ((0, "first"), (count // 2, "middle"), (count - 1, "last")):
            chosen.setdefault(sample, []).append(position)
    for measure in measures[:_MAX_MEASURES]:
        if measure["min"] < measure["max"]:
            for end, bound in (("largest", "max"), ("smallest", "min")):
                reason = f"{measure['name']}: {measure[bound]:,.4g}, the {end}"
                chosen.setdefault(measure[end], []).append(reason)
    return chosen


def _split(store: Store, sample: int) -> str:
    names = store.split_names() if store.has("splits/code") else ()
    if not names:
        return ""
    code = int(store.array("splits/code").read(sample, sample + 1)[0])
    return f" of {names[code]}" if code < len(names) else ""
