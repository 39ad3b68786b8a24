"""A self-contained HTML page with script and data, and the answers of the server of `view`."""

from __future__ import annotations

import base64
import hashlib
import json
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np

from unistore.converters.views import View, ViewLimits
from unistore.errors import InputError, StoreError, UnistoreError, printable
from unistore.html import (
    MARK,
    check_sample,
    draws_pictures,
    facts_html,
    image_html,
    sample_view,
    still_picture,
    table_html,
    text_html,
)
from unistore.remote.url import redact_urls
from unistore.report.blocks import number
from unistore.report.grown import GrownReport
from unistore.report.sealed import StoreReport, describe_store, with_attached
from unistore.report.sources import SourceReport
from unistore.report.text import Block
from unistore.report.values import sample_noun
from unistore.store.reader import Store
from unistore.store.versions import open_stores
from unistore.system.arguments import wrong_argument
from unistore.system.sizes import count_of, size
from unistore.system.types import AnyArray, JsonObject, UInt8s

# How a view of a sample travels to a page: JSON, then arrays, in one piece of bytes.

_ALIGN = 8
_VIEW_TEXT = 200  # characters
# What a script has typed arrays of
_DTYPES = frozenset(("uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "float64"))


def pack(view: View) -> bytes:
    """Return a view as bytes.

    They are the length of the JSON (4 bytes), the JSON, and little-endian arrays at multiples of 8.
    """
    arrays: dict[str, JsonObject] = {}
    parts = []
    place = 0
    for name, values in view.arrays.items():
        typed = _typed(values)
        data = typed.tobytes()
        arrays[name] = {"dtype": typed.dtype.name, "shape": list(typed.shape), "place": place}
        parts.append(data + bytes(-len(data) % _ALIGN))
        place += len(parts[-1])
    head = {"widget": view.widget, "title": view.title, **view.head, "arrays": arrays}
    text = json.dumps(clean(head), allow_nan=False).encode()
    text += b" " * (-(len(text) + 4) % _ALIGN)
    return len(text).to_bytes(4, "little") + text + b"".join(parts)


def pack_error(message: str) -> bytes:
    """Return the reason why a sample cannot be shown, as bytes like those of `pack`."""
    text = json.dumps({"widget": "error", "title": clean(message), "arrays": {}}).encode()
    return len(text).to_bytes(4, "little") + text


def clean(value: Any) -> Any:
    """Return JSON values with short printable texts without secrets, and None for NaN and infinities."""
    if isinstance(value, str):
        text = printable(redact_urls(value[: 4 * _VIEW_TEXT]))
        return text if len(text) <= _VIEW_TEXT else f"{text[:_VIEW_TEXT]}…"
    if isinstance(value, Mapping):
        return {key: clean(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return list(map(clean, value))
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value


def _typed(values: AnyArray) -> AnyArray:
    """Return values in a dtype of typed arrays. Integers of 64 bits become floats."""
    dtype = values.dtype
    if dtype.kind == "b":
        dtype = np.dtype(np.uint8)
    elif dtype == np.float16:
        dtype = np.dtype(np.float32)
    elif dtype.name not in _DTYPES:
        dtype = np.dtype(np.float64)
    return np.ascontiguousarray(values, dtype.newbyteorder("<"))


_MAX_REQUESTED = 24
_MAX_SAMPLES = 8
# Measures whose smallest and largest samples are shown
_MAX_MEASURES = 2
_MAX_SPLITS = 3
# Characters of code, or of a line
_MAX_TEXT = 20_000
# Larger sources are not converted for their pictures
_MAX_TRIAL_BYTES = 64 << 20
_PAGE_BYTES = 4_400_000  # of all samples together, as text
_READ_BYTES = 96 << 20  # of the store's files, for all samples
_TRIES = 4  # times that a sample is read, until it fits
_BAR_WIDTH = 10
_CHART_HEIGHT = 40


RowOf = Callable[[int], tuple[Store, int]]  # of a sample: its store and its row there


def render_page(
    path: str, report: Any, blocks: Sequence[Block], samples: Sequence[int] = (), *, live: bool = False
) -> str:
    """Return blocks as an HTML page.

    Parameters
    ----------
    path : str
        The path that is shown.
    report
        Its record.
    blocks : sequence of Block
        The text.
    samples : sequence of int, default ()
        Samples of a store to show in addition to some others.
    live : bool, default False
        Whether the script asks a server for samples.
    """
    if len(samples) > _MAX_REQUESTED:
        message = f"has {len(samples):,} numbers, but at most {_MAX_REQUESTED:,} are shown"
        raise wrong_argument("samples", message, "give fewer numbers")
    if samples and not isinstance(report, StoreReport):
        raise wrong_argument("samples", f"needs a store, but {path} is not one")
    parts = list(map(_block, blocks))
    if isinstance(report, StoreReport):
        parts = _store_parts(with_attached(Store(path), report), report, samples, parts, live=live)
    elif isinstance(report, SourceReport) and report.sources is not None:
        parts.insert(1, _trial(path, report, report.sources))
    elif isinstance(report, GrownReport):
        parts.insert(1, _samples_of_version(path, report, live=live))
    title = text_html(path.rstrip("/").rpartition("/")[2] or path)
    style = _resource("page.css")
    script = _resource("page.js")
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src data:"
    )
    if live:
        policy += "; connect-src 'self'"
    policy += "; base-uri 'none'; form-action 'none'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><meta name="referrer" content="no-referrer">'
        f'<meta name="generator" content="{MARK}"><title>{title}</title><style>{style}</style></head>\n'
        f"<body><h1>{title}</h1>\n{''.join(parts)}<script>{script}</script></body></html>\n"
    )


@cache
def _resource(name: str) -> str:
    return files("unistore.report").joinpath(name).read_text("utf-8")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


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


def _store_parts(
    store: Store, report: StoreReport, samples: Sequence[int], parts: list[str], *, live: bool
) -> list[str]:
    """Return what is shown of a store: remarks, samples, how they are spread, and everything else."""
    facts, *others = parts
    noun = sample_noun(store.sample_table)
    amounts = [
        count_of(store.sample_count, noun),
        count_of(report.sources.count, "source"),
        size(report.raw_bytes),
    ]
    lead = " · ".join([report.family.replace("_", " "), *amounts])
    first = [f'<p class="lead">{text_html(lead)}</p>\n']
    if report.remarks:
        first.append(others.pop(0))
    first += [_samples(store, report, samples, live=live), _distributions(report.measures, noun)]
    return [*first, _section("the store", facts), *others]


def _trial(path: str, report: SourceReport, sources: Mapping[str, Any]) -> str:
    nbytes = max(report.raw_bytes or 0, sources["bytes"] or 0)
    if nbytes > _MAX_TRIAL_BYTES:
        line = f"there are no pictures, because the sources have {size(nbytes)}; convert them to see samples"
        return _block(Block(lines=[line]))
    from unistore.conversion.signatures import convert

    with tempfile.TemporaryDirectory() as folder:
        trial = Path(folder, "trial.zarr")
        try:
            convert([path], trial, report.family)
        except UnistoreError as error:
            return _block(Block("the trial conversion failed", lines=[str(error)]))
        store = describe_store(trial)
        remarks = _block(Block("remarks", lines=store.remarks)) if store.remarks else ""
        origin = Block(lines=["from a trial conversion into a temporary folder, with the command below"])
        return remarks + _samples(Store(trial), store, ()) + _block(origin)


def _samples(store: Store, report: StoreReport, requested: Sequence[int], *, live: bool = False) -> str:
    """Return the viewer of a store: requested samples, those that stand out, and a random few."""
    for sample in requested:
        check_sample(store.path, store.sample_count, sample)
    noun = sample_noun(store.sample_table)
    codes, names = _splits(store)
    captions = {}
    for sample, reasons in _chosen_samples(store, report.measures, requested).items():
        split = f" of {names[codes[sample]]}" if codes[sample] < len(names) else ""
        caption = f"{noun} {sample:,}{split}"
        reason = ", ".join(reasons)
        captions[sample] = f"{caption}: {reason}" if reason else caption
    most_read = int(_READ_BYTES * max(1.0, report.ratio or 1.0))
    return _viewer(lambda sample: (store, sample), captions, noun, store.sample_count, most_read, live=live)


def _samples_of_version(path: str, report: GrownReport, *, live: bool) -> str:
    """Return the viewer of a grown store: its first and last sample, and some at random."""
    count = report.samples
    noun = sample_noun(report.sample_table)
    captions = {}
    if count:
        numbers = np.random.default_rng(0).integers(0, count, _MAX_SAMPLES - 2).tolist()
        captions = {sample: f"{noun} {sample:,}" for sample in (0, count - 1, *numbers)}
    opened = cache(lambda: open_stores(path, report.version))  # only where samples are read
    return _viewer(lambda sample: opened().row_of(sample), captions, noun, count, _READ_BYTES, live=live)


class _ShownSample(TypedDict):
    """A sample for the script. ``data`` is its packed view; without it, the script asks for it."""

    number: int
    caption: str
    data: NotRequired[str]


def _viewer(
    row_of: RowOf, captions: Mapping[int, str], noun: str, count: int, most_read: int, *, live: bool
) -> str:
    """Return the samples that the script shows, and still pictures for browsers without scripts."""
    if not captions:
        return _section("samples", "<p>none</p>")
    shown: list[_ShownSample] = [
        {"number": sample, "caption": clean(caption)} for sample, caption in captions.items()
    ]
    stills = "<p>The samples need a browser with scripts.</p>"
    note = ""
    if not live:
        stills, left_out = _add_views(row_of, shown, most_read)
        shown = shown[: len(shown) - left_out]
        if left_out:
            sentence = f"{count_of(left_out, noun)} more would take too long to read; use unistore view"
            note = f"<p>{text_html(sentence)}</p>"
    data = {"live": live, "noun": noun, "count": count, "samples": shown}
    text = json.dumps(data).replace("<", "\\u003c")
    data_block = f'<script type="application/json" id="samples">{text}</script>'
    return _section("samples", f'<div id="viewer"></div><noscript>{stills}</noscript>{note}{data_block}')


def _add_views(row_of: RowOf, shown: Sequence[_ShownSample], read_left: int) -> tuple[str, int]:
    """Add the packed view of each sample. Return still pictures, and how many samples were left out."""
    stills = ""
    room = _PAGE_BYTES
    enough = read_left // 8
    for position, entry in enumerate(shown):
        if read_left < enough:
            return stills, len(shown) - position
        remaining = len(shown) - position
        # The first sample is seen at once, and has the finest view
        share = room // min(2, remaining) if position == 0 else room // remaining
        caption = entry["caption"]
        try:
            still, text, read = _fitting(*row_of(entry["number"]), share, read_left)
            stills += image_html(still, caption) if still else ""
        except InputError as error:  # of all samples: the family is not installed
            entry["data"] = _encoded(pack_error(f"no pictures: {error}"))
            return f"<p>{text_html(f'no pictures: {error}')}</p>", remaining - 1
        except StoreError as error:
            message = f"{caption}: no picture: {error}"
            stills += f"<p>{text_html(message)}</p>"
            text = _encoded(pack_error(message))
            read = 0
        entry["data"] = text
        room -= len(text)
        read_left -= read
    return stills, 0


def _fitting(store: Store, sample: int, share: int, most_read: int) -> tuple[bytes, str, int]:
    """Return a still picture, the text of a view of at most `share` characters, and the bytes read.

    The picture is empty without OpenCV.
    """
    shown = share
    read = 0
    for _ in range(_TRIES):
        limits = ViewLimits(shown=shown, read=max(1 << 20, most_read - read))
        view = sample_view(store, sample, limits)
        read += view.read
        text = _encoded(pack(view))
        if len(text) <= share:
            return still_picture(view) if draws_pictures() else b"", text, read
        shown = max(1024, shown * share * 9 // (len(text) * 10))
    msg = f"{store.path}: sample {sample:,} does not fit into a page. Fix: use unistore view"
    raise StoreError(msg)


def _encoded(packed: bytes) -> str:
    return base64.b64encode(zlib.compress(packed, 6)).decode()


def _chosen_samples(
    store: Store, measures: Sequence[Mapping[str, Any]], requested: Sequence[int]
) -> dict[int, list[str]]:
    """Return samples with the reasons: requested ones, one of each split, extreme ones, and a random few."""
    chosen: dict[int, list[str]] = {sample: [] for sample in requested}
    if not store.sample_count:
        return chosen
    for sample in _split_samples(store):
        chosen.setdefault(sample, [])
    for measure in measures[:_MAX_MEASURES]:
        if measure["min"] < measure["max"]:
            for end, bound in (("largest", "max"), ("smallest", "min")):
                reason = f"{number(measure[bound])} {measure['name']}, the {end}"
                chosen.setdefault(measure[end], []).append(reason)
    most = max(_MAX_SAMPLES, len(requested))
    numbers = np.random.default_rng(0).integers(0, store.sample_count, 4 * _MAX_SAMPLES)
    for sample in numbers.tolist():
        if len(chosen) < most:
            chosen.setdefault(sample, ["at random"])
    return dict(list(chosen.items())[:most])


def _split_samples(store: Store) -> list[int]:
    """Return a sample of each of the first splits, or the first one."""
    samples = []
    codes, names = _splits(store)
    for code in range(min(_MAX_SPLITS, len(names))):
        positions = np.flatnonzero(codes == code)
        if len(positions):
            samples.append(int(positions[len(positions) // 2]))
    return samples or [0]


def _splits(store: Store) -> tuple[UInt8s, Sequence[str]]:
    return store.splits() if store.has("splits/code") else (np.zeros(store.sample_count, np.uint8), ())


def _distributions(measures: Sequence[Mapping[str, Any]], noun: str) -> str:
    """Return a chart of each measure, with a row of bars a split."""
    charts = ""
    for measure in measures:
        if len(measure["histogram"]) < 2:
            continue
        rows = ""
        histograms = measure["by_split"] or {f"all {noun}s": measure["histogram"]}
        for name, counts in histograms.items():
            bars = f"<td>{_bars(counts)}</td><td>{sum(counts):,}</td>"
            rows += f"<tr><th>{text_html(name)}</th>{bars}</tr>"
        bounds = f"<span>{number(measure['min'])}</span><span>{number(measure['max'])}</span>"
        axis = f'<tr><th></th><td class="axis">{bounds}</td><td></td></tr>'
        title = text_html(f"{measure['name']} per {noun}")
        charts += (
            f'<figure class="chart"><figcaption>{title}</figcaption><table>{rows}{axis}</table></figure>'
        )
    return _section("distributions", f'<div class="charts">{charts}</div>') if charts else ""


def _bars(counts: Sequence[int]) -> str:
    most = max(1, *counts)
    bars = ""
    for position, count in enumerate(counts):
        height = round(_CHART_HEIGHT * count / most, 1)
        if count:
            height = max(1, height)
        place = f'x="{position * _BAR_WIDTH}" y="{_CHART_HEIGHT - height:g}"'
        bars += f'<rect {place} width="{_BAR_WIDTH - 1}" height="{height:g}"/>'
    box = f"0 0 {_BAR_WIDTH * len(counts)} {_CHART_HEIGHT}"
    return f'<svg viewBox="{box}" preserveAspectRatio="none" role="img">{bars}</svg>'
