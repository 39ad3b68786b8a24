"""What tests compare of a problem: its kind, its place and its fixes, never a sentence.

Wording is asserted once a message, in the tests of the module that writes it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable

from unistore.errors import Fix, InputError, Problem


def fix_of(fix: Fix) -> str:
    """Return the words of a fix to type, or ``"a sentence"``."""
    if isinstance(fix, str):
        return "a sentence"
    return f"{type(fix).__name__} {shlex.join(fix.arguments)}"


def facts_of(problem: Problem) -> str:
    """Return a line: ``"missing | a.npz: t | AddOptions --map t=time"``."""
    return " | ".join((problem.kind, problem.location, *map(fix_of, problem.fixes)))


def of_kind(kind: str, place: str = "") -> Callable[[InputError], bool]:
    """Return a check of ``pytest.raises``: all problems are of this kind, at a place with this text."""

    def check(error: InputError) -> bool:
        return bool(error.problems) and all(
            problem.kind == kind and place in problem.location for problem in error.problems
        )

    return check
