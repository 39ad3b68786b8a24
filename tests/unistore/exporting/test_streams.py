"""Files that a format writes as a stream, whose size nobody knows before they are written."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unistore import export
from unistore.converters.common.exported import File, row_blocks
from unistore.errors import ConversionError
from unistore.schemas.indices import StoreView

Make = Callable[[str], Any]


def streams(fails: bool = False) -> Callable[[StoreView], Iterator[File]]:
    def files(store: StoreView) -> Iterator[File]:
        array = store.array("rows/data")

        def write(path: Path) -> None:
            with gzip.open(path, "wb") as out:
                for block in row_blocks(array, 0, len(array)):
                    out.write(block.tobytes())
                    if fails:
                        raise OSError(28, "No space left on device")

        yield File(name="deep/a.gz", form="format", source=0, values={}, write=write)

    return files


def test_a_stream_is_written_whatever_its_size(
    make_case: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, store = make_case("rows_npz")
    monkeypatch.setattr("unistore.converters.rows.export.files", streams())
    done = export(store, tmp_path / "out")
    written = tmp_path / "out/deep/a.gz"
    parts = [np.load(case.sources[0] / f"{name}.npz")["data"] for name in "ab"]
    assert gzip.decompress(written.read_bytes()) == np.concatenate(parts).tobytes()
    assert (done.files, done.bytes) == (1, written.stat().st_size)


def test_a_stream_that_fails_leaves_nothing(
    make_case: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, store = make_case("rows_npz")
    monkeypatch.setattr("unistore.converters.rows.export.files", streams(fails=True))
    with pytest.raises(ConversionError, match="No space left on device"):
        export(store, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
