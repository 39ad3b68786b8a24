"""The tutorials: their files are written, their commands run, and what is printed is what the page shows."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
DECIMAL = re.compile(r"\d+\.\d+")
"""Sizes and losses, which another machine or torch gives a little differently."""
UNSTABLE = re.compile(r"\b[0-9a-f]{16,32}\b|(?<=^made with  ).*")
"""Hashes, of absolute paths in the names of cached stores, and versions of libraries."""
PROGRESS = re.compile(r"\w+(: \d+ %| [\d.,]+ k?M?B).*")
"""Stages, which are bars in a terminal; the pages leave them out."""


class Step(NamedTuple):
    """A file that the reader saves, or a command with the output that the page shows."""

    file: str
    text: str
    command: tuple[str, ...] = ()


def steps(document: Path) -> Iterator[Step]:
    """Return the steps of a tutorial in their order."""
    for language, title, text in BLOCK.findall(document.read_text()):
        if title:
            yield Step(title, text)
        elif language == "console":
            for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                command, _, output = part.partition("\n")
                yield Step("", output, tuple(shlex.split(command)))


def run(command: tuple[str, ...], home: Path) -> list[str]:
    """Return the lines that a command prints in the reader's folder, which is as good as empty at first."""
    programs = {"python": [sys.executable], "unistore": [sys.executable, "-m", "unistore"]}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("UNISTORE_")}
    environment |= {"HOME": str(home), "COLUMNS": "80", "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    environment["OMP_NUM_THREADS"] = "1"  # batches are small, and cores busy
    done = subprocess.run(
        [*programs[command[0]], *command[1:]],
        cwd=home / "project",
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    lines = done.stdout.replace(str(home), "/home/you").splitlines()
    return [line for line in lines if not PROGRESS.fullmatch(line)]


def assert_alike(shown: list[str], printed: list[str]) -> None:
    """Compare all but decimals as text; a line of the page that is ``…`` stands for any lines."""
    if "…" in shown:
        at = shown.index("…")
        tail = len(shown) - at - 1
        assert len(printed) > at + tail
        shown = shown[:at] + shown[at + 1 :]
        printed = printed[:at] + printed[len(printed) - tail :]
    for text, line in zip(shown, printed, strict=True):
        text, line = UNSTABLE.sub("-", text), UNSTABLE.sub("-", line)
        assert DECIMAL.sub("#", text) == DECIMAL.sub("#", line)
        numbers = [float(number) for number in DECIMAL.findall(text)]
        assert [float(number) for number in DECIMAL.findall(line)] == pytest.approx(
            numbers, rel=0.1, abs=0.05
        )


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("document", TUTORIALS, ids=lambda path: path.stem)
def test_a_reader_sees_what_the_page_shows(document: Path, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    for step in steps(document):
        if step.file:
            (tmp_path / "project" / step.file).write_text(step.text)
        else:
            assert_alike(step.text.splitlines(), run(step.command, tmp_path))


@pytest.mark.parametrize("document", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_runs_only_files_that_it_shows(document: Path) -> None:
    text = document.read_text()
    written: set[str] = set()
    commands = 0
    for step in steps(document):
        if step.file:
            compile(step.text, step.file, "exec")
            assert f"`{step.file}`" in text  # titles of blocks are not shown everywhere
            written.add(step.file)
        else:
            commands += 1
            assert step.command[0] in {"python", "unistore"}
            assert step.command[0] == "unistore" or step.command[1] in written
    assert commands >= 3


def test_output_of_another_kind_is_noticed() -> None:
    assert_alike(["a 1.00", "…", "b"], ["a 1.01", "x", "y", "b"])
    for printed in (["a 1.50", "x", "b"], ["a 1.00", "x", "c"], ["a 1.00"]):
        with pytest.raises(AssertionError):
            assert_alike(["a 1.00", "…", "b"], printed)
