"""Side tables that contradict the store they belong to are refused by name; sound ones are read."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unistore
from unistore.errors import StoreError
from unistore.store.manifest import sign_root
from unistore.store.side_tables import side_names

GOLDEN = Path(__file__).parents[2] / "data" / "golden"
MASK = {"array": "windows/mine/mask", "axes": [1, 2, 3], "scale": 8}


@pytest.fixture(scope="module")
def derived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a store and its side table."""
    folder = tmp_path_factory.mktemp("derived")
    unistore.derive(shutil.copytree(GOLDEN / "ct.zarr", folder / "ct.zarr"), window="mine:300:40")
    return folder


@pytest.fixture
def store(tmp_path: Path, derived: Path) -> Path:
    return shutil.copytree(derived, tmp_path / "copy") / "ct.zarr"


def change_extends(store: Path, extends: Any) -> Path:
    """Write what the side table adds to rules of the store, with a digest that is right."""
    (side,) = Path(f"{store}.unistore-side").glob("*.zarr")
    root = json.loads((side / "zarr.json").read_text())
    assert "volumes/extent" in root["attributes"]["unistore"]["side"]["extends"]
    root["attributes"]["unistore"]["side"]["extends"] = extends
    root["attributes"]["unistore"]["seal"]["root"] = "0" * 32
    (side / "zarr.json").write_bytes(sign_root(json.dumps(root).encode()))
    return side


def is_broken(extends: Any) -> bool:
    """Return whether a limit has other axes than the three of an extent."""
    (limit,) = extends["volumes/extent"]["limits"]
    return limit["axes"] != [1, 2, 3]


@pytest.mark.parametrize(
    ("extends", "message"),
    [
        ({"volumes/none": {"limits": [MASK]}}, "'volumes/none', but .* has no such array"),
        ({"volumes/extent": {"rows": ["", 0]}}, "adds 'rows' to the rule of 'volumes/extent'"),
        ({"volumes/extent": {"limits": {"array": "x"}}}, "member 'limits'"),
        ({"volumes/extent": {"limits": ["x"]}}, "member 'limits'"),
        ({"volumes/extent": {"limits": [{**MASK, "axes": [2**63]}]}}, None),
        ({"volumes/extent": {"limits": [{**MASK, "axes": [1, 2]}]}}, None),
        ({"volumes/extent": {"limits": [{**MASK, "scale": 2**64 - 1}]}}, None),
        (
            {"volumes/extent": {"limits": [{**MASK, "array": "windows/x/mask"}]}},
            "'windows/x/mask', which does not exist",
        ),
        (
            {"volumes/extent": {"like": [{**MASK, "array": "volumes/extent"}]}},
            "makes a circle: the rule of 'volumes/extent'",
        ),
        ({"volumes/extent": ["limits"]}, "expected an object"),
        (["volumes/extent"], "expected an object"),
    ],
)
def test_a_side_table_that_extends_rules_wrongly_is_an_error(
    store: Path, extends: Any, message: str | None
) -> None:
    """`None`: a limit that can be stated, and that the values of a sound store keep or break."""
    expected = unistore.Store(store).array("volumes/extent").read()
    side = change_extends(store, extends)
    assert side_names(unistore.Store(store)) == ["window-mine_300.0_40.0"]
    if message is not None:
        with pytest.raises(
            StoreError,
            match=rf"{side}.*added column is damaged.*{message}.*remove .*window-mine_300.0_40.0\.json",
        ):
            unistore.Store(store, beside=[side])
        assert not unistore.verify(store).ok
    else:
        joined = unistore.Store(store, beside=[side])
        with pytest.raises(StoreError, match="volumes/extent") if is_broken(extends) else nullcontext():
            values = joined.index_values("volumes/extent")[np.arange(len(expected))]
            np.testing.assert_array_equal(values, expected)
    np.testing.assert_array_equal(unistore.Store(store).array("volumes/extent").read(), expected)


def test_a_sound_side_table_is_read(store: Path) -> None:
    (side,) = Path(f"{store}.unistore-side").glob("*.zarr")
    change_extends(store, {"volumes/extent": {"limits": [MASK], "like": []}})
    joined = unistore.Store(store, beside=[side])
    expected = unistore.Store(store).array("volumes/extent").read()
    np.testing.assert_array_equal(joined.index_values("volumes/extent")[:], expected)
