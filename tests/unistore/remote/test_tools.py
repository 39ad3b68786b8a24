"""Commands that look at a store take a URL, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unistore
from tests.steps import Stopping
from unistore.conversion.run import run
from unistore.conversion.settings import Settings
from unistore.converters.rows.family import converter as rows_converter
from unistore.errors import StoreError
from unistore.report.inspection import inspect


def test_inspect_shows_what_it_shows_of_the_local_store(uploaded: str, local: Path) -> None:
    far, near = inspect(uploaded), inspect(local)
    assert far.kind == near.kind == "store"
    assert far.path == uploaded
    assert {k: v for k, v in far.details.items() if k != "snippet"} == {
        k: v for k, v in near.details.items() if k != "snippet"
    }
    assert f"unistore.Dataset({uploaded!r}".replace("'", '"') in far.details["snippet"].replace("'", '"')
    assert "unistore.Loader(" in far.details["snippet"]  # which starts its workers by spawn
    compile(far.details["snippet"], "snippet", "exec")
    with pytest.raises(StoreError, match="no such store"):
        inspect(f"{uploaded}-not")


@pytest.mark.parametrize("replaced", [False, True])
def test_inspect_tells_how_an_unfinished_conversion_goes_on(
    uploaded: str, bucket: Any, sources: Path, tmp_path: Path, replaced: bool
) -> None:
    url = uploaded if replaced else bucket.url("store.zarr")
    with pytest.raises(KeyboardInterrupt):
        run(
            rows_converter(),
            [sources],
            url,
            Settings(work=tmp_path, overwrite=replaced),
            executor=Stopping(2),
        )
    found = inspect(tmp_path / "store.zarr.unistore-build")
    assert found.kind == "unfinished"
    assert found.details["destination"] == url
    assert found.details["replaces"] == (url if replaced else None)
    assert found.details["written_bytes"] > 10_000
    overwrite = " --overwrite" if replaced else ""
    assert found.details["command"] == f"unistore convert rows {sources} {url} --work {tmp_path}{overwrite}"


def test_zarr_python_reads_what_was_converted_to_a_bucket(
    bucket: Any, sources: Path, truth: Any, tmp_path: Path
) -> None:
    unistore.convert(sources, bucket.url("x.zarr"), work=tmp_path)
    group = unistore.open_zarr(bucket.url("x.zarr"))
    expected = truth(sources)
    assert np.array_equal(group["rows/data"][...], expected["data"])
    assert np.array_equal(group["rows/label"][...], expected["label"])
    assert group.read_only
