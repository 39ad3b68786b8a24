"""Episodes, scanned and converted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import unistore
from tests.support.family_converters import trajectory
from unistore.converters.source_scan import scan_sources
from unistore.errors import InputError


def converted(path: Path, **options: Any) -> unistore.Store:
    """Convert a file of episodes into a store with its name and return the store."""
    unistore.convert(path, path.with_suffix(".zarr"), "trajectory", **options)
    return unistore.Store(path.with_suffix(".zarr"))


def problems_of(*paths: Path, **options: Any) -> str:
    """Scan files that have problems and return the text of the error."""
    with pytest.raises(InputError) as caught:
        scan_sources(trajectory(**options), paths)
    assert caught.value.exit_code == 2
    return str(caught.value)
