"""What a library raises while a source is read is the source's Problem."""

from __future__ import annotations

import errno

import pytest

from unistore.converters.common.faults import as_problem
from unistore.errors import ConversionError, InputError, Problem, StoreError


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("bad heap\nfree list"),
        OverflowError("too large"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        RecursionError("maximum recursion depth exceeded"),
        NotImplementedError(),
        AssertionError("\x1b[2J"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_it_names_the_file_and_keeps_the_error(error: Exception) -> None:
    with pytest.raises(InputError) as caught, as_problem("a\x1b.h5", "a.h5"):
        raise error
    (problem,) = caught.value.problems
    assert str(problem).isprintable()
    assert problem.location == "a\\x1b.h5"
    assert type(error).__name__ in problem.message
    assert (problem.kind, problem.source) == ("damaged", "a.h5")
    assert problem.advice
    assert caught.value.__cause__ is error
    assert "test_faults.py" in problem.trace, "--debug shows where"
    assert "trace" not in problem.to_json()


def test_what_the_system_and_the_memory_refuse() -> None:
    for error, kind, fix in (
        (OSError(errno.EIO, "Input/output error"), "unreadable", "check its disk"),
        (KeyError("cannot open (file read failed: errno = 5, …)"), "unreadable", "check its disk"),
        (OSError("truncated file"), "unreadable", "get or write it again"),
        (MemoryError("Unable to allocate 8 EiB"), "memory", "give more --memory"),
        (ValueError("(-4:Insufficient memory) Failed to allocate 9 bytes"), "memory", "give more --memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "memory", "give more --memory"),
    ):
        with pytest.raises(InputError) as caught, as_problem("a.h5"):
            raise error
        assert caught.value.problems[0].kind == kind
        assert fix in caught.value.problems[0].advice


@pytest.mark.parametrize(
    "error", [InputError(Problem("x", "y")), ConversionError("full"), StoreError("no"), KeyboardInterrupt()]
)
def test_what_is_raised_on_purpose_passes(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, as_problem("a.h5"):
        raise error
    assert caught.value is error
