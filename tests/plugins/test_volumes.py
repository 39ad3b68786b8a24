"""Volumes by a schema: rows of any extent, found by arrays and not by names."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import unistore
from tests.plugins.conftest import check_schema
from unistore import plugin
from unistore.converters.checking import checked_family
from unistore.errors import InputError

pytestmark = pytest.mark.timeout(400)
EXTENTS = {"a.scan": (5, 40, 7), "b.scan": (9, 6, 50)}
Volumes = dict[str, tuple[np.ndarray, np.ndarray]]


@pytest.fixture(scope="module")
def scans(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Volumes]:
    folder = tmp_path_factory.mktemp("scans")
    rng = np.random.default_rng(5)
    found = {}
    for name, extent in EXTENTS.items():
        density = rng.integers(-1000, 1000, extent).astype("<i2")
        mask = rng.integers(0, 2, extent).astype("u1")
        head = b"SCAN" + np.array(extent, "<u4").tobytes()
        (folder / name).write_bytes(head + density.tobytes() + mask.tobytes())
        found[name] = density, mask
    return folder, found


@pytest.fixture
def store(scans: tuple[Path, Volumes]) -> Path:
    """Converted once the packages are installed, for all tests."""
    path = scans[0].with_name("scans.zarr")
    if not path.exists():
        unistore.convert(scans[0], path, "scans")
    return path


def padded(volumes: list[np.ndarray]) -> np.ndarray:
    largest = np.max([volume.shape for volume in volumes], axis=0)
    return np.stack([np.pad(v, [(0, n - m) for m, n in zip(v.shape, largest, strict=True)]) for v in volumes])


def test_the_scans_family_keeps_its_promises(scans: tuple[Path, Volumes], tmp_path: Path) -> None:
    folder, volumes = scans
    oracle = {
        "scans/density": padded([density for density, _ in volumes.values()]),
        "scans/mask": padded([mask for _, mask in volumes.values()]),
        "scans/extent": np.array(list(EXTENTS.values())),
    }
    check_schema("scans", folder, tmp_path, oracle)


def test_samples_are_volumes_of_their_extent(store: Path, scans: tuple[Path, Volumes]) -> None:
    dataset = unistore.Dataset(store)
    assert dataset.samples == unistore.Volumes()
    for number, (density, mask) in enumerate(scans[1].values()):
        sample = dataset[number]
        assert set(sample) == {"index", "density", "mask"}
        assert np.array_equal(sample["density"].numpy(), density)
        assert np.array_equal(sample["mask"].numpy(), mask)
    sized = unistore.Dataset(store, unistore.Volumes(size=(4, 6, 7), step=2, pad="zero"), fields=["density"])
    assert np.array_equal(
        sized[0]["density"].numpy()[:3, :6, :4], scans[1]["a.scan"][0][::2, ::2, ::2][:, :6]
    )


def test_patches_are_boxes_inside(store: Path, scans: tuple[Path, Volumes]) -> None:
    dataset = unistore.Dataset(store, unistore.Patches((4, 6, 5)), fields=["density", "mask", "corner"])
    for number, (density, mask) in enumerate(scans[1].values()):
        sample = dataset[number]
        box = tuple(
            slice(lo, lo + size) for lo, size in zip(sample["corner"].tolist(), (4, 6, 5), strict=True)
        )
        assert np.array_equal(sample["density"].numpy(), density[box])
        assert np.array_equal(sample["mask"].numpy(), mask[box])


def test_padded_volumes_record_the_array_of_their_extents(store: Path) -> None:
    documents = json.loads((store / "zarr.json").read_text())["consolidated_metadata"]["metadata"]
    (padding,) = documents["scans/density"]["attributes"]["padded"]
    assert padding == {
        "extent": "scans/extent",
        "axes": ["density_depth", "density_height", "density_width"],
    }


@pytest.mark.usefixtures("in_this_process")
def test_a_mask_of_another_extent_is_refused(
    scans: tuple[Path, Volumes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from unistore_scans import Scan

    whole = Scan.open.__wrapped__  # type: ignore[attr-defined]

    def cut(self: Scan, file: plugin.SourceFile):  # type: ignore[no-untyped-def]
        for opened in whole(self, file):
            mask = plugin.Array(opened.arrays["mask"][0:1][:, 1:])
            yield plugin.OpenFile({"density": opened.arrays["density"], "mask": mask})

    from contextlib import contextmanager

    monkeypatch.setattr(Scan, "open", contextmanager(cut))
    with pytest.raises(
        InputError, match=r"a\.scan: its volumes differ in extent: .*\(5, 40, 7\).*\(4, 40, 7\)"
    ):
        unistore.convert(scans[0], tmp_path / "s.zarr", "scans")


@pytest.mark.parametrize("change", [{"samples": "boxes"}, {"columns": {"v": plugin.Column(spatial=True)}}])
def test_a_schema_of_volumes_without_three_axes_is_an_error(change: dict[str, object]) -> None:
    from unistore_scans import Scans

    schema = replace(Scans.schema, **change)
    wrong = type("Wrong", (Scans,), {"schema": schema, "cut": lambda *_: ()})
    with pytest.raises(InputError, match=r"has volumes in '\w+', which need three axes"):
        checked_family(wrong)
