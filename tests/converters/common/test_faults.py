"""What a library raises while a source is read is the source's Problem."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import h5py
import pytest

from unistore.converters.common.faults import CHECK_DISK, WRITE_AGAIN, as_problem
from unistore.converters.files.hdf5.attributes import json_attributes
from unistore.converters.formats.bag_files import damages
from unistore.converters.opened import SourceFile
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
def test_an_error_of_a_library_becomes_a_problem_that_names_the_file(error: Exception) -> None:
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


def test_errors_of_disk_and_memory_become_problems_with_their_own_kind_and_fix() -> None:
    for error, kind, fix in (
        (OSError(errno.EIO, "Input/output error"), "unreadable", CHECK_DISK),
        (KeyError("cannot open (file read failed: errno = 5, …)"), "unreadable", CHECK_DISK),
        (OSError("truncated file"), "unreadable", WRITE_AGAIN),
        (MemoryError("Unable to allocate 8 EiB"), "memory", "give more --memory"),
        (ValueError("(-4:Insufficient memory) Failed to allocate 9 bytes"), "memory", "give more --memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "memory", "give more --memory"),
        (RuntimeError("zstd decompress error: Allocation error : not enough memory"), "memory", "--memory"),
        (RuntimeError("LZ4F_decompress failed: ERROR_allocation_failed"), "memory", "give more --memory"),
    ):
        with pytest.raises(InputError) as caught, as_problem("a.h5"):
            raise error
        assert caught.value.problems[0].kind == kind
        assert fix in caught.value.problems[0].advice


@pytest.mark.parametrize(
    "error", [InputError(Problem("x", "y")), ConversionError("full"), StoreError("no"), KeyboardInterrupt()]
)
def test_errors_of_unistore_and_interrupts_pass_unchanged(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, as_problem("a.h5"):
        raise error
    assert caught.value is error


def test_a_bag_that_takes_more_memory_is_not_called_damaged() -> None:
    file = SourceFile(Path("a.bag"), "a.bag")
    for text, kind in (("Allocation error : not enough memory", "memory"), ("bad magic", "damaged")):
        with pytest.raises(InputError) as caught, as_problem("a.bag"), damages(file):
            raise RuntimeError(text)
        assert [problem.kind for problem in caught.value.problems] == [kind]


def test_attributes_that_take_more_memory_are_not_called_unreadable(tmp_path: Path) -> None:
    def without_memory(_: Any) -> Any:
        raise OSError("Can't allocate memory for an attribute")

    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.attrs["rate"] = 4
        assert json_attributes(file, int) == {"rate": 4}
        with pytest.raises(InputError) as caught, as_problem("a.h5"):
            json_attributes(file, without_memory)
    assert [problem.kind for problem in caught.value.problems] == ["memory"]
