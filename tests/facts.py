"""What tests compare of a problem: its kind, its place and its fixes, never a sentence.

Wording is asserted once a message, in the tests of the module that writes it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from unistore.errors import Fix, InputError, Problem


def fix_of(fix: Fix) -> str:
    """Return the words of a fix to type, or ``"a sentence"``."""
    if isinstance(fix, str):
        return "a sentence"
    return f"{type(fix).__name__} {shlex.join(fix.arguments)}"


def facts_of(problem: Problem) -> str:
    """Return a line: ``"missing | a.npz: t | AddOptions --map t=time"``."""
    return " | ".join((problem.kind, problem.location, *map(fix_of, problem.fixes)))


@contextmanager
def refused(kind: str, place: str, *fixes: str) -> Iterator[None]:
    """Expect an `InputError` with a problem of a kind, at a place, which has these fixes among its own.

    Parameters
    ----------
    kind, place
        `Problem.kind`, and `Problem.location`.
    fixes
        Lines of `fix_of`.
    """
    with pytest.raises(InputError) as caught:
        yield
    problems = caught.value.problems
    here = [problem for problem in problems if (problem.kind, problem.location) == (kind, place)]
    offered = [{fix_of(fix) for fix in problem.fixes} for problem in here]
    assert any(set(fixes) <= known for known in offered), list(map(facts_of, problems))
