"""Why a library cannot be imported: it is not installed, or broken."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from unistore.converters.opened import SourceFile
from unistore.errors import InputError, import_fault

INSTALL = "pip install 'unistore[lidar]'"


def import_of(module: str) -> ImportError:
    """Return the error of importing a module, as Python raises it."""
    with pytest.raises(ImportError) as caught:
        __import__(module)
    return caught.value


def test_a_library_that_is_not_installed_is_installed_by_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = "no_such_library, which is not installed"
    assert import_fault("no_such_library", "lidar", import_of("no_such_library")) == (fault, INSTALL)
    inner = "no_such_library.inner"
    assert import_fault(inner, "lidar", import_of(inner)) == (fault, INSTALL)
    monkeypatch.setitem(sys.modules, "hidden_library", None)
    assert import_fault("hidden_library", "lidar", import_of("hidden_library"))[1] == INSTALL


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (
            "raise ImportError('libz.so.1: cannot open\\n  shared object')",
            "libz.so.1: cannot open shared object",
        ),
        ("import no_such_library", "No module named 'no_such_library'"),
        ("from math import no_such_name", "cannot import name 'no_such_name' from 'math'"),
    ],
)
def test_a_broken_library_gives_its_own_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, reason: str
) -> None:
    (tmp_path / "broken_library.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    file = SourceFile(tmp_path / "a.las", "a.las")
    with pytest.raises(InputError) as caught:
        file.library("broken_library", "lidar")
    (problem,) = caught.value.problems
    assert problem.kind == "library"
    assert problem.message.startswith(f"needs broken_library, which cannot be imported: {reason}")
    assert "not installed" not in problem.message
    # the command of the fix fails in the same way
    assert "python -c 'import broken_library'" in problem.advice
    command = [sys.executable, "-c", "import broken_library"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "Error" in done.stderr
    assert done.returncode == 1
