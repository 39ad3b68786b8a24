"""What could be precomputed, and was not, is named with its option and a bound that holds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import unistore
from tests.support.cases import DATA
from unistore.cli.main import main

# Sources, the option that is offered, and the arrays that it adds
CASES = {
    "clouds": ("pointcloud/derived_pointsuite_thin-1.h5", "--voxel-size SIZE", "voxels/"),
    "stream": ("spike/spikezoo_data.dat", "--voxel-bins 5", "frames/voxel/"),
    "scan": ("ct/totalseg_ct_cropped.nii.gz", "--window lung", "windows/"),
}
pytestmark = pytest.mark.usefixtures("in_this_process")


def run(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    with pytest.raises(SystemExit) as ended:
        main([*map(str, words)])
    assert ended.value.code == 0
    return capsys.readouterr().out


def raw_bytes(store: Path, below: str) -> int:
    """Bytes of the values below a group, without offsets, as zarr-python counts them."""
    arrays = zarr.open_group(store, mode="r").members(max_depth=None)
    values = [node for path, node in arrays if path.startswith(below) and not path.endswith("/offsets")]
    return sum(node.nbytes for node in values if isinstance(node, zarr.Array))


@pytest.mark.parametrize("name", CASES)
def test_an_option_is_offered_until_it_is_given(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, option, below = CASES[name]
    words = option.replace("SIZE", "0.2").split()
    source = tmp_path / "in"
    source.mkdir()
    shutil.copy(DATA / "samples" / file, source)
    bare, full = tmp_path / "bare.zarr", tmp_path / "full.zarr"
    (planned,) = unistore.inspect(source).details["offers"]
    assert planned["option"] == option
    dry: dict[str, Any] = json.loads(run(capsys, "convert", source, bare, "--dry-run", "--json"))
    assert dry["offers"] == [planned]
    line = f"{planned['gives']} by {option}, up to about"
    assert line in run(capsys, "convert", source, bare, "--dry-run")
    assert line in " ".join(str(unistore.inspect(source)).split())
    family = dry["family"].replace("_", "-")
    assert line in run(capsys, "convert", family, source, bare)
    assert raw_bytes(bare, below) == 0
    report = json.loads(run(capsys, "convert", family, source, full, *words, "--json"))
    assert report["offers"] == []
    assert 0 < raw_bytes(full, below) <= planned["most_bytes"]
    given = json.loads(run(capsys, "convert", family, source, full, *words, "--dry-run", "--json"))
    assert given["offers"] == []


def test_what_cannot_be_precomputed_is_not_offered(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", x=np.arange(6.0), y=np.arange(6))
    assert unistore.inspect(tmp_path / "rows.npz").details["offers"] == []
    labels = tmp_path / "labels"
    labels.mkdir()
    np.save(labels / "a_hu.npy", np.zeros((8, 8, 8), np.uint8))
    inspection = unistore.inspect(labels)
    assert inspection.details["family"] == "ct"
    assert inspection.details["offers"] == []


def test_a_scan_without_air_is_offered_both_options_that_it_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "scans"
    source.mkdir()
    soft_tissue = np.random.default_rng(0).integers(-200, 256, (8, 16, 16)).astype(np.int16)
    np.save(source / "a_hu.npy", soft_tissue)
    (offer,) = unistore.inspect(source).details["offers"]
    assert offer["option"] == "--window lung"
    assert "add --values hu if all HU are in -200…255" in offer["gives"]
    words = ("--window", "soft:400:40")
    with pytest.raises(unistore.InputError, match="--values hu"):
        unistore.convert(source, tmp_path / "refused.zarr", family="ct", window=["soft:400:40"])
    run(capsys, "convert", "ct", source, tmp_path / "a.zarr", *words, "--values", "hu")
    assert raw_bytes(tmp_path / "a.zarr", "windows/") > 0
