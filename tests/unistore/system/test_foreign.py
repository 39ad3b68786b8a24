"""The note in which a worker names the file that a foreign library reads."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from unistore.system import foreign


def test_a_file_that_is_closed_leaves_the_note_of_one_that_is_being_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "first.h5", tmp_path / "second.h5"
    for path in (first, second):
        path.touch()
    with (tmp_path / "note").open("w+b") as note:
        worker = foreign._OpenWorker(note.fileno())
        monkeypatch.setattr(worker, "_limit", lambda seconds: None)
        worker.open(str(first), "first.h5", "a library")
        opening = threading.Thread(target=worker.open, args=(str(second), "second.h5", "a library"))
        write = os.pwrite

        def while_it_is_blanked(descriptor: int, data: bytes, offset: int) -> Any:
            if not any(data) and not opening.is_alive():
                opening.start()
                opening.join(0.2)  # the other thread opens its file now, or waits
            return write(descriptor, data, offset)

        monkeypatch.setattr(os, "pwrite", while_it_is_blanked)
        worker.close(str(first))
        opening.join(10)
        assert str(second).encode() in foreign.last_note(note.fileno())
