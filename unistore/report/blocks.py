"""Show the record of a path as blocks of text."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from unistore.converters.detection import SHOWN_VERDICTS, TAKEN, verdict_counts
from unistore.converters.families import Offer
from unistore.errors import AddOptions, GiveOptions, Problem, merged, printable
from unistore.report.suggestions import format_options
from unistore.report.text import Block, shortened
from unistore.report.values import QUANTILES, ValueReport, sample_noun, sparkline
from unistore.system.sizes import count_of, size

if TYPE_CHECKING:
    from unistore.converters.detection import CountReport
    from unistore.report.sealed import ArrayReport, SampleReport, SideTableReport, StoreReport
    from unistore.report.sources import SourceReport, UnfinishedReport, ZarrReport

SHOWN_ATTRIBUTES = 8
SHOWN_PROBLEMS = 50
SHOWN_COMPONENTS = 8  # Components of a key whose statistics are shown
_MAX_REASONS = 8
# Characters of a reason and of an example: the table fits 80 columns
_REASON_WIDTH = 45
_EXAMPLE_WIDTH = 14


def format_shape(shape: Iterable[int] | None) -> str:
    """Return a shape as text: ``"120 × 126 × 164"``, ``"scalar"``, or ``"-"`` for None."""
    if shape is None:
        return "-"
    return " × ".join(map(str, shape)) or "scalar"


def number(value: float | None) -> str:
    """Return a value as text: ``"1,200"``, ``"0.125"``, or ``"-"`` for None."""
    if value is None:
        return "-"
    whole = float(value).is_integer() or abs(value) >= 1e4
    whole = whole and abs(value) < 1e9
    return f"{value:,.0f}" if whole else f"{value:,.4g}"


def store_blocks(path: str, store: StoreReport) -> list[Block]:
    """Show a sealed store."""
    count = store.samples["count"]
    table = store.samples["table"]
    splits = []
    for name, samples in store.splits.items():
        percent = 100 * samples / max(1, count)
        splits.append(f"{name} {samples:,} ({percent:.3g} %)")
    attributes = list(map(printable, store.sources.attributes[:SHOWN_ATTRIBUTES]))
    if len(store.sources.attributes) > SHOWN_ATTRIBUTES:
        attributes.append("…")
    nbytes = f"{size(store.stored_bytes)} in shards, {size(store.raw_bytes)} uncompressed"
    agrees = "DAMAGED: seal, manifest and root contradict each other"
    if store.seal["agrees"]:
        agrees = "matches manifest and root; 'unistore verify' also reads the files"
    files = count_of(store.seal["files"], "file")
    names = [source["path"] for source in store.sources.first]
    versions = [f"{name} {version}" for name, version in store.created_with.items()]
    facts = [
        ("store", path),
        ("family", store.family.replace("_", " ")),
        (table.rpartition("/")[2], f"{count:,}"),
        ("splits", ", ".join(splits) or "none"),
        ("sources", _sources(store.sources.count, store.sources.bytes, names)),
        ("attributes", ", ".join(attributes)),
        ("size", nbytes if store.ratio is None else f"{nbytes}, ratio {store.ratio:.2f}"),
        ("seal", f"{store.seal['digest']} over {files}: {agrees}"),
        ("made with", ", ".join(versions)),
        ("options", format_options(store.family, store.options)),
    ]
    shares = [(array.path, array.values.shares()) for array in store.arrays if array.values is not None]
    labels = [(name, labels) for name, labels in shares if labels]
    blocks = [
        Block(facts=facts),
        Block("remarks", lines=store.remarks),
        _measure_table(store.measures, table),
        array_table([array for array in store.arrays if not array.bookkeeping], store.main_table),
        statistics_table(store.samples_statistics),
        Block("labels", columns=("array", "how often"), rows=labels),
        Block("side tables", lines=list(map(_side_line, store.side_tables))),
        storage_table(store.arrays),
        Block("load it", code=store.snippet),
    ]
    return [block for block in blocks if block.has_content]


def _side_line(side: SideTableReport) -> str:
    if side["problem"] is not None:
        return f"{side['name']}: {side['problem']}"
    if side["table"]:
        return f"{side['name']}: a column of {side['table']}, read with fields=[…, {side['name']!r}]"
    return f"{side['name']}: {', '.join(side['arrays'])}, derived from the store"


def _sources(count: int, nbytes: int | None, names: Sequence[str]) -> str:
    about = f"{count_of(count, 'source')}, {size(nbytes)}: {', '.join(names)}"
    further = count - len(names)
    return f"{about} and {further:,} more" if further > 0 else about


def _measure_table(measures: Sequence[Mapping[str, Any]], table: str) -> Block:
    rows = []
    for measure in measures:
        quantiles = [number(measure[name]) for name in QUANTILES]
        spread = sparkline(measure["histogram"])
        rows.append((measure["name"], *quantiles, spread, f"{measure['samples']:,}"))
    columns = (f"per {sample_noun(table)}", *QUANTILES, "spread", "of")
    return Block(table, columns=columns, rows=rows, optional_columns=("spread", "5%", "95%"))


def array_table(arrays: Sequence[ArrayReport], main: str) -> Block:
    """Show arrays and their values, those of the table `main` first."""
    largest_first = sorted(arrays, key=lambda array: -array.raw_bytes)
    main_first = sorted(largest_first, key=lambda array: not array.path.startswith(f"{main}/"))
    rows = [(*_name_cells(array), *_value_cells(array.values), *_size_cells(array)) for array in main_first]
    columns = ("array", "shape", "dtype", "min", "mean", "max", "spread", "stored", "ratio")
    sampled = any("~" in row[3] for row in rows)
    lines = ["~: from some chunks, evenly spread; includes padding of rows"] if sampled else []
    optional = ("ratio", "spread", "stored", "mean")
    return Block("arrays", columns=columns, rows=rows, optional_columns=optional, lines=lines)


def statistics_table(by_key: Mapping[str, Mapping[str, Any]]) -> Block:
    """Show statistics of the values of each key, component by component."""
    rows: list[tuple[str, ...]] = []
    for key, values in by_key.items():
        names = ("mean", "std", "min", "q01", "q50", "q99", "max")
        if not isinstance(values["count"], list):
            rows.append((key, "", *(number(values[name]) for name in names)))
            continue
        axis = str(values["axis"])
        axis += f" ({values['axis_name']})" if values["axis_name"] else ""
        components = len(values["count"])
        for component in range(min(components, SHOWN_COMPONENTS)):
            numbers = [number(values[name][component]) for name in names]
            rows.append((f"{key}[{component}]", axis, *numbers))
        if components > SHOWN_COMPONENTS:
            empty_cells = [""] * (1 + len(names))
            rows.append((f"… {components:,} components", *empty_cells))
    columns = ("values of", "axis", "mean", "std", "min", "1%", "median", "99%", "max")
    return Block("statistics", columns=columns, rows=rows, optional_columns=("1%", "99%", "median"))


def _value_cells(values: ValueReport | None) -> tuple[str, str, str, str]:
    if values is None:
        return "-", "-", "-", ""
    part = "~" if values.read < values.of else ""
    shown = [
        "-" if value is None else part + number(value) for value in (values.min, values.mean, values.max)
    ]
    return shown[0], shown[1], shown[2], sparkline(values.histogram or ())


def _name_cells(array: ArrayReport) -> tuple[str, str, str]:
    return array.path, format_shape(array.shape), array.dtype


def _size_cells(array: ArrayReport) -> tuple[str, str]:
    return size(array.stored_bytes), "-" if array.ratio is None else f"{array.ratio:.2f}"


def storage_table(arrays: Sequence[ArrayReport]) -> Block:
    """Show how arrays are stored: chunks, shards, codecs and bytes."""
    rows = []
    for array in arrays:
        layout = format_shape(array.chunks), format_shape(array.shards)
        codec = array.codec.removeprefix("bytes, "), array.why or ""
        rows.append((*_name_cells(array), *layout, *codec, size(array.raw_bytes), *_size_cells(array)))
    columns = ("array", "shape", "dtype", "chunks", "shards", "codec", "why", "raw", "stored", "ratio")
    optional = ("shards", "raw", "chunks", "codec", "ratio", "dtype", "why")
    title = f"storage of all {count_of(len(arrays), 'array')}"
    return Block(title, columns=columns, rows=rows, optional_columns=optional, collapsed=True)


def sample_blocks(sample: SampleReport) -> list[Block]:
    """Show the result of `describe_sample`."""
    several = ""
    if sample["samples"] != 1:
        several = f", the first {sample['read']} of {sample['samples']:,}"
    facts = [
        (sample["of"], str(sample["sample"])),
        ("from", sample["source"]),
        ("samples", f"{sample['kind']}{several}"),
    ]
    rows = []
    for key in sample["keys"]:
        bounds = number(key["min"]), number(key["max"])
        rows.append((key["key"], format_shape(key["shape"]), key["dtype"], *bounds))
    return [Block(facts=facts), Block("keys", columns=("key", "shape", "dtype", "min", "max"), rows=rows)]


def source_blocks(path: str, sources: SourceReport, problems: Sequence[Problem]) -> list[Block]:
    """Show source files."""
    verdicts = verdict_table(sources.verdicts)
    files = ("files", verdict_counts(sources.verdicts))
    families = sources.families or []
    if len(families) > 1:
        rows = [
            (family.family.replace("_", " "), str(family.files), family.layout, family.reason)
            for family in families
        ]
        columns = ("family", "files", "layout", "because")
        commands = "\n".join(family.command for family in families)
        return [
            Block(facts=[("sources", f"{path}: files of {len(rows)} families"), files]),
            Block("families", columns=columns, rows=rows, optional_columns=("layout",)),
            *verdicts,
            Block("convert each family separately", code=commands),
        ]
    facts = [("source", path)]
    if sources.family is not None:
        family = f"{sources.family.replace('_', ' ')} ({sources.layout})"
        facts += [("family", family), ("because", sources.reason or ""), files]
    if problems:
        return [Block(facts=facts), _problem_list(problems), *_next_commands(sources, problems, verdicts)]
    return [*_planned_blocks(facts, sources, verdicts), Block("convert it", code=sources.command or "")]


def _problem_list(problems: Sequence[Problem]) -> Block:
    alike = merged(problems)
    lines = [f"- {problem.paragraph}" for problem in alike[:SHOWN_PROBLEMS]]
    if len(alike) > SHOWN_PROBLEMS:
        lines.append(f"and {len(alike) - SHOWN_PROBLEMS:,} more")
    return Block(f"{count_of(len(problems), 'problem')} to solve before converting", lines=lines)


def _next_commands(sources: SourceReport, problems: Sequence[Problem], verdicts: list[Block]) -> list[Block]:
    if sources.command is None:
        return []
    # options that help with each problem; the command alone would end in the same problems
    options = AddOptions | GiveOptions
    of_problems = [[fix for fix in problem.fixes if isinstance(fix, options)] for problem in problems]
    alike = [fix for fix in of_problems[0] if all(fix in fixes for fixes in of_problems)]
    ways = [shlex.join(fix.arguments) for fix in alike]
    code = "\n".join(f"{sources.command} {way}" for way in ways) or sources.command
    title = "convert it in one of these ways" if len(ways) > 1 else "then convert it"
    return [*verdicts, Block(title, code=code)]


def _planned_blocks(
    facts: list[tuple[str, str]], sources: SourceReport, verdicts: list[Block]
) -> list[Block]:
    assert sources.sources is not None  # of one family without problems
    first = sources.sources
    names = [source["name"] for source in first["first"]]
    becomes = f"{size(sources.raw_bytes)} uncompressed, peak memory about {size(sources.memory)}"
    facts += [("sources", _sources(first["count"], first["bytes"], names)), ("becomes", becomes)]
    rows = []
    for table in sources.tables or ():
        nearly = "about " if table["estimated"] else ""
        for array in table["arrays"]:
            shape = f"{nearly}{format_shape(array['shape'])}"
            rows.append((array["path"], shape, array["dtype"], format_shape(array["chunk"])))
    notes = [
        note
        for note in sources.notes or ()
        if not note.startswith(("not stored, ", "skipped, ", "left out, "))
    ]
    arrays = Block("arrays", columns=("array", "shape", "dtype", "chunks"), rows=rows)
    notes += [str(Offer(**offer)) for offer in sources.offers or ()]
    blocks = [Block(facts=facts), arrays, *verdicts, Block("notes", lines=notes)]
    return [block for block in blocks if block.has_content]


def verdict_table(verdicts: Sequence[CountReport]) -> list[Block]:
    """Show files that are not converted, the most frequent reasons first. Empty: all are converted."""
    counts = [count for count in verdicts if count["verdict"] != TAKEN]
    counts.sort(key=lambda count: -count["files"])
    rows = []
    for count in counts[:_MAX_REASONS]:
        example = shortened(count["examples"][0], _EXAMPLE_WIDTH)
        if count["files"] > 1:
            example += ", …"
        reason = shortened(count["why"], _REASON_WIDTH)
        rows.append((f"{count['files']:,}", SHOWN_VERDICTS[count["verdict"]], reason, example))
    if further := counts[_MAX_REASONS:]:
        files = sum(count["files"] for count in further)
        rows.append((f"{files:,}", "", f"for {len(further)} more reasons", ""))
    columns = ("files", "result", "because", "such as")
    return [Block("files that are not converted", columns=columns, rows=rows)] if rows else []


def unfinished_blocks(path: str, build: UnfinishedReport) -> list[Block]:
    """Show a conversion that is running or was stopped."""
    total = "" if build.tasks is None else f" of {build.tasks:,}"
    done = f"{build.tasks_done:,}{total} shards written"
    if build.sources_read:
        sources = count_of(build.sources["count"], "source")
        done = f"{build.sources_read:,} of {sources} read, {done}"
    if build.sealed:
        done = "all shards written and sealed; the store must only be moved to its destination"
    facts = [
        ("unfinished", path),
        ("leads to", build.destination),
        ("family", (build.family or "not known yet").replace("_", " ")),
        ("sources", ", ".join(build.sources["given"])),
        ("done", done),
        ("at work", build.at_work or "nobody"),
        ("replaces", build.replaces or ""),
    ]
    if build.at_work or not build.command:
        return [Block(facts=facts)]
    hint = "Run the same command to continue. To start over, add --restart. To give up, remove the folder."
    return [Block(facts=facts), Block("go on", code=build.command), Block(lines=[hint])]


def zarr_blocks(path: str, zarr: ZarrReport) -> list[Block]:
    """Show a Zarr hierarchy that is not a store."""
    lines = ["This is a Zarr hierarchy, but not a unistore store: it has no samples and no seal."]
    if zarr.zarr_format == 3:
        lines.append("Read it with unistore.open_zarr(path), a zarr.Group, or with any Zarr reader.")
    return [Block(facts=[("zarr", f"{path} (format {zarr.zarr_format})")]), Block(lines=lines)]
