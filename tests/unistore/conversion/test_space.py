"""A disk with too little room is told of before the first value is read."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import unistore
from unistore.converters.seam.converter import SeamConverter


class Usage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.fixture
def source(tmp_path: Path) -> Path:
    np.save(tmp_path / "a.npy", np.zeros((100_000, 4)))
    return tmp_path / "a.npy"


def with_room(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage(1 << 40, 0, free))


def test_less_than_the_prediction_is_warned_of_before_anything_is_read(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_room(monkeypatch, 1_000_000)
    told: list[str] = []
    read = SeamConverter.read

    def reading(*given: Any) -> None:
        told.append("read")
        read(*given)

    monkeypatch.setattr(SeamConverter, "read", reading)

    class Listener:
        def begin(self, stage: str, total: int) -> None: ...

        def advance(self, amount: int) -> None: ...

        def tell(self, line: str) -> None:
            told.append(line)

    unistore.convert(source, source.with_name("out.zarr"), "rows", progress=Listener())
    assert told[0].startswith("warning: ")
    assert "room for 1.0 MB; uncompressed, this takes up to 3.2 MB" in told[0]
    assert set(told[1:]) == {"read"}


@pytest.mark.filterwarnings("error")
def test_enough_room_is_not_spoken_of(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_room(monkeypatch, 3_200_000)
    assert unistore.convert(source, source.with_name("out.zarr"), "rows").samples == 100_000
