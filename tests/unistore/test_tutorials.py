"""The tutorials: their files are written, their commands run, and what is printed is what the page shows.

``--record-tutorials`` writes what is printed into the pages.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^\$ (.*)$", re.MULTILINE)
PROGRAMS = {"python": [sys.executable], "unistore": [sys.executable, "-m", "unistore"]}
DECIMAL = re.compile(r"\d+\.\d+")
"""Sizes and losses, which another machine or torch gives a little differently."""
UNSTABLE = re.compile(r"\b[0-9a-f]{16,32}\b|(?<=^made with  ).*")
"""Hashes, of absolute paths in the names of cached stores, and versions of libraries."""
PROGRESS = re.compile(r"\w[\w ]*( [\d.,]+ k?M?B|: .*( left| so far| finished yet))")
"""Stages, which are bars in a terminal; the pages leave them out."""


def printed(command: str, home: Path) -> list[str]:
    """Return the lines that a command prints in the reader's folder."""
    program, *arguments = shlex.split(command)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("UNISTORE_")}
    environment |= {"HOME": str(home), "COLUMNS": "80", "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    environment["OMP_NUM_THREADS"] = "1"  # batches are small, and cores busy
    done = subprocess.run(
        [*PROGRAMS[program], *arguments],
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


def follow(page: str, home: Path) -> str:
    """Save the files of a page and run its commands, in their order; return it with what they print."""

    def done(block: re.Match[str]) -> str:
        language, title, text = block.groups()
        if title:
            (home / "project" / title).write_text(text)
        if language != "console":
            return block[0]
        lines: list[str] = []
        for command in COMMAND.findall(text):
            lines += [f"$ {command}", *printed(command, home)]
        return "\n".join(["```console", *lines, "```"])

    return BLOCK.sub(done, page)


def assert_alike(shown: str, followed: str) -> None:
    """Compare all but hashes, and decimals as numbers."""
    for lines in zip(shown.splitlines(), followed.splitlines(), strict=True):
        before, after = (UNSTABLE.sub("-", line) for line in lines)
        assert DECIMAL.sub("#", before) == DECIMAL.sub("#", after)
        numbers, found = ([float(number) for number in DECIMAL.findall(line)] for line in (before, after))
        assert found == pytest.approx(numbers, rel=0.1, abs=0.05)


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("document", TUTORIALS, ids=lambda path: path.stem)
def test_a_reader_sees_what_the_page_shows(
    document: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "project").mkdir()
    shown = document.read_text()
    followed = follow(shown, tmp_path)
    if request.config.getoption("--record-tutorials"):
        document.write_text(followed)
    else:
        assert_alike(shown, followed)


@pytest.mark.parametrize("document", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_runs_only_files_that_it_names_and_shows(document: Path) -> None:
    page = document.read_text()
    written: set[str] = set()
    commands = 0
    for language, title, text in BLOCK.findall(page):
        if title:
            compile(text, title, "exec")
            written.add(title)
            assert f"`{title}`" in page  # titles of blocks are not shown everywhere
        for command in COMMAND.findall(text) if language == "console" else ():
            program, argument, *_ = shlex.split(command)
            assert program in PROGRAMS
            assert program == "unistore" or argument in written
            commands += 1
    assert commands >= 3


def test_output_that_differs_from_the_page_is_noticed() -> None:
    shown = "loss 1.00, seal 0123456789abcdef"
    assert_alike(shown, "loss 1.01, seal fedcba9876543210")
    for followed in ("loss 1.50, seal 0123456789abcdef", "loss 1.00", f"{shown}\nmore"):
        with pytest.raises((AssertionError, ValueError)):
            assert_alike(shown, followed)
