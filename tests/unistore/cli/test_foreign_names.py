"""Names from files reach a terminal without control characters and without changing the text's direction."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import unistore
from unistore.cli.main import main
from unistore.cli.output import say, say_json
from unistore.progress import ProgressBar

NASTY = "\x1b]0;owned\x07\x1b[2J\u202egpj.exe\u2066\x9b31m\u200b"


def harmful(text: str) -> set[str]:
    return {char for char in text if unicodedata.category(char) in ("Cc", "Cf", "Cs") and char not in "\n\r"}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / f"in{NASTY}"
    folder.mkdir()
    with h5py.File(folder / f"a{NASTY}.h5", "w") as file:
        file["data"] = np.arange(40.0).reshape(10, 4)
        file["label"] = np.arange(10)
        file.attrs["note" + NASTY] = NASTY
    with h5py.File(folder / "b\nsealed everything.h5", "w") as file:
        file["data"] = np.arange(40.0).reshape(10, 4)
        file["label"] = np.arange(10)
    bad = tmp_path / f"bad{NASTY}"
    bad.mkdir()
    (bad / f"c{NASTY}.h5").write_bytes(NASTY.encode())
    with h5py.File(bad / f"d{NASTY}.h5", "w") as file:
        file[f"x{NASTY}"] = np.arange(10)
        file["y\u202e"] = np.arange(11)
    with monkeypatch.context() as patched:  # such names are refused now: a store that others made has them
        patched.setattr("unistore.conversion.skipping.file_name_problem", lambda _: None)
        unistore.convert(folder, tmp_path / f"out{NASTY}.zarr", "rows")
    return tmp_path


def commands(place: Path) -> list[list[str]]:
    good, bad, store = (
        str(place / f"{name}{NASTY}{end}") for name, end in (("in", ""), ("bad", ""), ("out", ".zarr"))
    )
    return [
        ["inspect", good],
        ["inspect", bad],
        ["inspect", store],
        ["inspect", f"nothing{NASTY}"],
        ["doctor", store],
        ["convert", good, str(place / f"again{NASTY}.zarr")],
        ["convert", "rows", bad, "x.zarr"],
        ["convert", "rows", good, bad, "x.zarr", "--on-error", "skip"],
        ["convert", "rows", good, "x.zarr", "--dry-run"],
        ["convert", "rows", good, "x.zarr", f"--{NASTY}"],
        ["convert", "rows", good, store],
        ["verify", store, "--against", good],
        ["verify", store, "--against", bad],
        ["export", store, str(place / f"back{NASTY}")],
        ["inspect", store, f"more{NASTY}"],
    ]


@pytest.mark.parametrize("form", [[], ["--json"], ["--debug"]], ids=["plain", "json", "debug"])
def test_no_command_prints_control_characters_of_file_names(place: Path, form: list[str], capfd: Any) -> None:
    for number, words in enumerate(commands(place)):
        with pytest.raises(SystemExit):
            main([*words, *form])
        printed = capfd.readouterr()
        assert printed.out + printed.err, words
        assert not harmful(printed.out + printed.err), words
        if form == ["--json"] and printed.out.startswith("{"):
            json.loads(printed.out)
        assert "\nsealed everything" not in printed.out + printed.err, number


def test_say_json_and_progress_print_no_control_characters(capfd: Any) -> None:
    say(f"a{NASTY}\nb")
    say_json({"a": NASTY})
    with ProgressBar() as bar:
        bar.tell(NASTY)
    printed = capfd.readouterr()
    assert not harmful(printed.out + printed.err)
    assert json.loads(printed.out.splitlines()[-1]) == {"a": NASTY}


def test_only_the_output_module_prints() -> None:
    folder = Path(unistore.__file__).parent / "cli"
    printing = {path.name for path in folder.glob("*.py") if "click.echo(" in path.read_text()}
    assert printing == {"output.py"}


def test_a_printed_command_quotes_hostile_paths(place: Path) -> None:
    build = place / "b.zarr.unistore-build"
    build.mkdir()
    identity = {"family": "rows", "options": {}, "sources": {}}
    begun = {"step": "begin", "identity": identity, "paths": ["--overwrite", f"; rm -rf ~ {NASTY}", "$(id)"]}
    (build / "journal.jsonl").write_text(json.dumps(begun) + "\n")
    found = unistore.inspect(build)
    assert "./--overwrite '; rm -rf ~ " in found.details["command"]
    assert "'$(id)'" in found.details["command"]
    assert not harmful(str(found))
