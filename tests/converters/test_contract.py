"""The contract notices a converter that breaks it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.detection import detect
from unistore.converters.protocol import Scan
from unistore.converters.rows.family import RowsFamily
from unistore.converters.scan import Parts
from unistore.converters.seam.converter import SeamConverter

COUNT = count()
HELD: list[Any] = []


@pytest.fixture
def path(tmp_path: Path) -> Path:
    np.savez(tmp_path / "a.npz", data=np.arange(40.0).reshape(20, 2), label=np.arange(20))
    return tmp_path / "a.npz"


class Broken(SeamConverter):
    """A converter with one fault."""

    def __init__(self, fault: str = "") -> None:
        super().__init__(RowsFamily())
        self.fault = fault

    def __reduce__(self) -> tuple[Any, ...]:
        return Broken, (self.fault,)

    def gather(self, parts: Parts, scanned: Sequence[Any]) -> Scan:
        scan = super().gather(parts, scanned)
        path = parts[0].files[0]
        if self.fault == "open":
            HELD.append(path.open("rb"))
        if self.fault == "modified":
            path.write_bytes(path.read_bytes() + b" ")
        if self.fault == "changing":
            return replace(scan, notes=(str(next(COUNT)),))
        if self.fault == "json":
            return replace(scan, options={"map": (1, 2)})
        if self.fault == "family":
            return replace(scan, family="other")
        if self.fault == "fields":
            table = scan.tables[0]
            return replace(scan, tables=(replace(table, fields=(replace(table.fields[0], axes=("row",)),)),))
        return scan

    def read(
        self, scan: Scan, table: str, source: int, lo: int, hi: int, out: Mapping[str, NDArray[Any]]
    ) -> None:
        super().read(scan, table, source, lo, hi, out)
        if self.fault == "outside":
            block = out["data"].base
            assert block is not None
            block[0] = 0
        if self.fault == "ranges" and lo:
            out["data"][...] = 0
        if self.fault == "values":
            out["label"][...] = 1


def test_a_sound_converter_passes(path: Path, check_contract) -> None:
    check_contract(Broken(), [path], {"rows/label": np.arange(20)})


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("open", "files were left open"),
        ("modified", "sources were modified"),
        ("changing", "the scan differs"),
        ("json", "not plain JSON"),
        ("family", "family"),
        ("fields", "axes"),
        ("outside", "rows before the output"),
        ("ranges", "rows/data rows"),
        ("values", "rows/label"),
    ],
)
def test_a_fault_is_noticed(path: Path, check_contract, fault: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_contract(Broken(fault=fault), [path], {"rows/label": np.arange(20)})
    while HELD:
        HELD.pop().close()


@pytest.mark.parametrize(
    ("path", "family"),
    [
        ("pointcloud/thin_a.h5", "point_cloud"),
        ("pointcloud", "point_cloud"),
        ("rows", "rows"),
        ("ct", "ct"),
        ("spike", "spike"),
        ("trajectory", "trajectory"),
    ],
)
def test_each_family_is_recognised(bundled: Path, path: str, family: str) -> None:
    found = detect([bundled / path])
    assert found is not None
    assert found.family == family, found.reason
    json.dumps(found.reason)


def test_what_no_family_knows(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    assert detect([tmp_path]) is None
    assert detect([tmp_path / "absent"]) is None
