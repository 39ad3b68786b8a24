"""Source files: their family and layout, problems, and the command that converts them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unistore.conversion.convert import exclude_words, make_converter
from unistore.conversion.preview import preview
from unistore.converters.files.paths import folders_of_targets
from unistore.converters.registry import families
from unistore.converters.survey import Survey
from unistore.converters.verdicts import verdict_counts
from unistore.errors import InputError, Problem
from unistore.report.blocks import Block, format_shape, sources_fact, verdict_blocks
from unistore.report.suggestions import convert_command
from unistore.system.sizes import count_of, size

SHOWN_SOURCES = 5
SHOWN_PROBLEMS = 50


def describe_sources(path: Path, surveyed: Survey) -> tuple[dict[str, Any], tuple[Problem, ...]]:
    """Scan and plan the sources at `path` without writing anything. JSON values, and every problem.

    With files of several families, the first family is described and ``families`` has all.
    """
    found, counts = surveyed.detected(), surveyed.counts()
    families = [
        {
            "family": each.family,
            "layout": each.layout,
            "reason": each.reason,
            "files": counts[each.family],
            "command": _command(
                each.family,
                path,
                alone=len(found) == 1,
                more=exclude_words(each.family, [path], surveyed),
            ),
        }
        for each in found
    ]
    about = {name: value for name, value in families[0].items() if name != "files"} | {"families": families}
    problems: tuple[Problem, ...] = ()
    if len(families) == 1:
        try:
            described = preview(make_converter(found[0].family, {}), [path]).to_json()
        except InputError as error:
            problems = error.problems_at(str(path))
        else:
            sources, nbytes = described["sources"], described["source_bytes"]
            about["sources"] = {"count": len(sources), "bytes": nbytes, "first": sources[:SHOWN_SOURCES]}
            for name in ("tables", "raw_bytes", "memory", "options", "notes"):
                about[name] = described[name]
    return about | {"verdicts": [each.to_json() for each in surveyed.verdicts(problems)]}, problems


def problem_blocks(facts: Sequence[tuple[str, str]], problems: Sequence[Problem]) -> list[Block]:
    """Blocks of facts and problems."""
    lines = [f"- {problem}" for problem in problems[:SHOWN_PROBLEMS]]
    if len(problems) > SHOWN_PROBLEMS:
        lines.append(f"and {len(problems) - SHOWN_PROBLEMS:,} more")
    title = f"{count_of(len(problems), 'problem')} to solve before converting"
    return [Block(facts=facts), Block(title=title, lines=lines)]


def link_blocks(path: Path, problems: Sequence[Problem]) -> list[Block]:
    """Commands that follow links out of a path; empty unless all problems are such links."""
    if any(each.kind != "link" for each in problems):
        return []
    folders = [str(each) for each in folders_of_targets((Path(each.file) for each in problems), [path])]
    more = [word for folder in folders for word in ("--follow-links-to", folder)]
    following = [each.name for each in families().values() if each.follows_links]
    commands = [(f"files of {name.replace('_', ' ')}", _command(name, path, more=more)) for name in following]
    commands.append(("others", f"unistore inspect {shlex.join(folders[:1])}"))
    return [Block(title=f"then convert it: {title}", code=code) for title, code in commands]


def _family_blocks(
    path: str, families: Sequence[Mapping[str, Any]], verdicts: Sequence[Mapping[str, Any]]
) -> list[Block]:
    """Blocks for a path with files of several families: each with its command."""
    rows = [
        (each["family"].replace("_", " "), str(each["files"]), each["layout"], each["reason"])
        for each in families
    ]
    facts = [
        ("sources", f"{path}: files of {len(families)} families"),
        ("files", verdict_counts(verdicts)),
    ]
    columns = ("family", "files", "layout", "because")
    return [
        Block(facts=facts),
        Block(title="families", columns=columns, rows=rows, optional_columns=("layout",)),
        *verdict_blocks(verdicts),
        Block(title="convert each by itself", code="\n".join(each["command"] for each in families)),
    ]


def _command(family: str, path: Path, *, alone: bool = True, more: Sequence[str] = ()) -> str:
    """A command that converts into the working directory, or beside the sources if these are in it.

    With several families, the name of the store ends with the family.
    """
    real, here = path.resolve(), Path.cwd().resolve()
    stem = real.name.split(".")[0] or real.name.strip(".") or "store"
    destination = Path(f"{stem}.zarr" if alone else f"{stem}-{family.replace('_', '-')}.zarr")
    if real.is_dir() and (here == real or real in here.parents):
        destination = real.parent / destination
    return convert_command(family, [str(path)], str(destination), more=more)


def source_blocks(path: str, about: dict[str, Any], problems: tuple[Problem, ...]) -> list[Block]:
    """Blocks of `describe_sources`'s result."""
    if len(about["families"]) > 1:
        return _family_blocks(path, about["families"], about["verdicts"])
    facts = [
        ("source", path),
        ("family", f"{about['family'].replace('_', ' ')} ({about['layout']})"),
        ("because", about["reason"]),
        ("files", verdict_counts(about["verdicts"])),
    ]
    others = verdict_blocks(about["verdicts"])
    if problems:
        ways = re.findall(r"--columns \w+", problems[0].cure) if len(problems) == 1 else []
        code = "\n".join(f"{about['command']} {way}" for way in ways) or about["command"]
        convert = Block(title="convert it in one of these ways" if ways else "then convert it", code=code)
        return [*problem_blocks(facts, problems), *others, convert]
    becomes = f"{size(about['raw_bytes'])} uncompressed, peak memory about {size(about['memory'])}"
    facts += [
        sources_fact(about["sources"], [source["name"] for source in about["sources"]["first"]]),
        ("becomes", becomes),
    ]
    rows = []
    for table in about["tables"]:
        nearly = "about " if table["estimated"] else ""
        for array in table["arrays"]:
            shape = f"{nearly}{format_shape(array['shape'])}"
            rows.append((array["path"], shape, array["dtype"], format_shape(array["chunk"])))
    notes = [each for each in about["notes"] if not each.startswith("left out, ")]
    return [
        Block(facts=facts),
        Block(title="arrays", columns=("array", "shape", "dtype", "chunks"), rows=rows),
        *others,
        *([Block(title="notes", lines=notes)] if notes else []),
        Block(title="convert it", code=about["command"]),
    ]
