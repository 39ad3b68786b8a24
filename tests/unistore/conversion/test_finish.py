"""A converter whose arrays are not those of its family's schema: nothing is sealed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import unistore
from unistore.errors import ConversionError
from unistore.schemas.array_spec import SAMPLES, ArraySpec
from unistore.schemas.array_specs import ArraySpecs
from unistore.schemas.rows import fields as specs

OTHERS = ArraySpecs(
    arrays={
        "rows/data": ArraySpec(dtypes=("int8", "int16"), rows=(SAMPLES, 1)),
        "rows/other": ArraySpec(),
    }
)


def test_arrays_of_other_specs_are_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "a.npy", np.arange(12, dtype=np.float32))
    monkeypatch.setattr(specs, "SPECS", OTHERS)
    with pytest.raises(ConversionError) as refused:
        unistore.convert(tmp_path / "a.npy", tmp_path / "a.zarr", "rows")
    assert str(refused.value).splitlines() == [
        "the planned arrays do not match the schema of rows; please report it:",
        "  rows/other: is missing",
        "  rows/data: is float32, expected int8 or int16",
    ]
    assert not (tmp_path / "a.zarr").exists()
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and "/c/" in path.as_posix()]
