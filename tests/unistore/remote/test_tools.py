"""Commands that look at a store take a URL, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.executors import Stopping
from tests.support.family_converters import rows as rows_converter
from unistore.conversion.run import run
from unistore.conversion.settings import Settings
from unistore.report.inspection import inspect


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
