"""What a family's `group` says is sorted by what it is."""

from __future__ import annotations

from pathlib import Path

from unistore.converters.adapter.sources import Choices
from unistore.converters.family_types import Group, Grouping
from unistore.converters.opened import SourceFile
from unistore.errors import Problem


def test_a_grouping_is_sorted_into_sources_skipped_problems_and_unused_files() -> None:
    names = ("alone", "first", "second", "aside", "unsaid")
    alone, first, second, aside, unsaid = [SourceFile(Path(f"/in/{name}"), name) for name in names]
    choices = Choices((), [alone, first, second, aside, unsaid])
    problem = Problem("first", "is wrong")
    grouping = Grouping(
        sources=[alone, Group("pair", (first, second))],
        left_out=[(aside, "no use"), (first, "too late")],
        problems=[problem],
        notes=["so"],
    )
    assert choices.add(grouping) == ""
    assert [part.name for part in choices.parts] == ["alone", "pair"]
    assert [part.files for part in choices.parts] == [(alone.path,), (first.path, second.path)]
    assert choices.left_out == [(aside.path, "no use")]
    assert choices.problems == [problem]
    assert choices.notes == ["so"]
    assert list(choices.unused.values()) == [unsaid.path]
