"""What a family's `group` says is sorted by what it is."""

from __future__ import annotations

from pathlib import Path

from unistore.converters.family import Group
from unistore.converters.opened import SourceFile
from unistore.converters.seam.sources import Choices
from unistore.errors import Problem


def test_each_choice_has_its_list() -> None:
    names = ("alone", "first", "second", "aside", "unsaid")
    alone, first, second, aside, unsaid = [SourceFile(Path(f"/in/{name}"), name) for name in names]
    choices = Choices((), [alone, first, second, aside, unsaid])
    problem = Problem("first", "is wrong")
    for choice in (
        alone,
        Group("pair", (first, second)),
        (aside, "no use"),
        (first, "too late"),
        problem,
        "so",
    ):
        choices.add(choice)
    assert [part.name for part in choices.parts] == ["alone", "pair"]
    assert [part.files for part in choices.parts] == [(alone.path,), (first.path, second.path)]
    assert choices.left_out == [(aside.path, "no use")]
    assert choices.problems == [problem]
    assert choices.notes == ["so"]
    assert list(choices.unused.values()) == [unsaid.path]
