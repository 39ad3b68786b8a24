"""Options that help, spelled as keyword arguments: each call is made, and works."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unistore
from unistore.conversion.keywords import note_keywords
from unistore.converters.registry import get_family
from unistore.errors import AddOptions, Fixes, GiveOptions, InputError, Problem, RunCommand


def note_of(fix: Fixes, family: str) -> str:
    error = InputError(Problem("a.h5", "is wrong", fix))
    note_keywords(error, get_family(family))
    return "\n".join(getattr(error, "__notes__", ()))


SPELLED: dict[str, tuple[str, Fixes, str]] = {
    "a word": ("rows", AddOptions(("--columns", "union"), "to fill"), 'columns="union" to fill'),
    "a mapping": (
        "rows",
        AddOptions(("--map", "x=a b", "--map", 'y="q"')),
        'map={"x": "a b", "y": "\\"q\\""}',
    ),
    "several": ("rows", AddOptions(("--exclude", "a", "--exclude", "b")), 'exclude=["a", "b"]'),
    "a flag": ("rows", AddOptions(("--reverse-axes",), "if so"), "reverse_axes=True if so"),
    "a negative flag": ("spike", AddOptions(("--no-flip",)), "flip=False"),
    "numbers": ("spike", AddOptions(("--height", "250", "--width", "400")), "height=250, width=400"),
    "a fixed number": ("events", AddOptions(("--sensor", "640", "480")), "sensor=[640, 480]"),
    "of every conversion": (
        "rows",
        AddOptions(("--split-seed", "3", "--split", "a=0.5,b=0.5", "--overwrite")),
        'split_seed=3, split="a=0.5,b=0.5", overwrite=True',
    ),
    "two fixes": (
        "ct",
        (AddOptions(("--window", "lung")), "ask", AddOptions(("--values", "hu"))),
        'window=["lung"], or values="hu"',
    ),
    "values that the user knows": ("spike", GiveOptions(("--height", "--width")), "height=…, width=…"),
}


@pytest.mark.parametrize("case", SPELLED)
def test_options_are_spelled_as_keywords(case: str) -> None:
    family, fix, expected = SPELLED[case]
    assert note_of(fix, family) == f"in Python: {expected}"


@pytest.mark.parametrize(
    "fix", ["write it again", RunCommand(("inspect", "a")), AddOptions(("--append",)), AddOptions(("--map",))]
)
def test_what_python_has_no_keyword_for_is_not_spelled(fix: Fixes) -> None:
    assert note_of(fix, "rows") == ""


def test_a_traceback_spells_the_fix_as_keyword_arguments(tmp_path: Path) -> None:
    source, store = tmp_path / "in", tmp_path / "out.zarr"
    source.mkdir()
    np.savez(source / "a.npz", x=np.zeros((4, 3)), y=np.arange(4))
    np.savez(source / "b.npz", x=np.zeros((5, 3)))
    with pytest.raises(InputError) as caught:
        unistore.convert(source, store, "rows")
    shown = "".join(traceback.format_exception(caught.value)).splitlines()
    assert 'in Python: columns="union" to fill what is missing, or columns="intersection"' in shown[-1]
    assert "in Python" not in str(caught.value)
    unistore.convert(source, store, "rows", columns="union")
    assert unistore.Store(store).sample_count == 9


def test_a_traceback_names_an_unknown_family_once(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones(3))
    with pytest.raises(InputError, match="family nosuch: does not exist") as refused:
        unistore.convert(tmp_path / "a.npy", tmp_path / "a.zarr", "nosuch")
    lines = "".join(traceback.format_exception(refused.value)).splitlines()
    assert sum("family nosuch: does not exist" in line for line in lines) == 1


@pytest.mark.parametrize("family", [5, ["rows"]])
def test_a_family_that_is_no_name_is_refused(tmp_path: Path, family: Any) -> None:
    np.save(tmp_path / "a.npy", np.ones(3))
    with pytest.raises(InputError, match=r"^family: "):
        unistore.convert(tmp_path / "a.npy", tmp_path / "a.zarr", family)
    assert not (tmp_path / "a.zarr").exists()
