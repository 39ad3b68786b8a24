"""What tests compare of a problem: its kind, its place and its fixes, never a sentence.

Wording is asserted once a message, in the tests of the module that writes it.
"""

from __future__ import annotations

import shlex

from unistore.errors import Fix, Problem


def fix_of(fix: Fix) -> str:
    """Return the words of a fix to type, or ``"a sentence"``."""
    if isinstance(fix, str):
        return "a sentence"
    return f"{type(fix).__name__} {shlex.join(fix.arguments)}"


def facts_of(problem: Problem) -> str:
    """Return a line: ``"missing | a.npz: t | AddOptions --map t=time"``."""
    return " | ".join((problem.kind, problem.location, *map(fix_of, problem.fixes)))
