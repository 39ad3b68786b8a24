"""Installs the packages of this folder: their modules, and the entry points by which unistore finds them."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

import unistore
from unistore import testing
from unistore.converters import registry
from unistore.converters.adapter import formats
from unistore.converters.ct import names
from unistore.data.kinds import named

ENTRY_POINTS = """\
[unistore.families]
audio = unistore_audio:Audio
bytes = unistore_native:Bytes
dvs = unistore_events:Events
boxes = unistore_every:Boxes
eeg = unistore_eeg:Eeg
every = unistore_every:Every
robot = unistore_robot:Robot
scans = unistore_scans:Scans
sensors = unistore_sensors:Sensors
tracks = unistore_records:Tracks

[unistore.formats]
pack = unistore_pack:Pack
wav = unistore_audio:Wav

[unistore.kinds]
broken = unistore_native:Missing
window = unistore_window:Window
"""


EEG_PAGE = (Path(__file__).parents[2] / "docs" / "eeg-as-a-package.md").read_text()
EEG = EEG_PAGE.split("**`unistore_eeg.py`**\n\n```python\n")[1].split("```")[0]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of installed packages."""
    folder = tmp_path_factory.mktemp("site")
    for module in Path(__file__).parent.glob("unistore_*.py"):
        shutil.copy(module, folder)
    (folder / "unistore_eeg.py").write_text(EEG)
    about = folder / "unistore_plugins-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: unistore-plugins\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRY_POINTS)
    return folder


def forget_installed() -> None:
    """Have packages be looked for again."""
    for found in (registry.families, formats.formats, names._suffixes_of, named.installed_kinds):
        found.cache_clear()


@pytest.fixture(autouse=True)
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    root = Path(registry.__file__).parents[2]
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", f"{site}:{root}")
    importlib.invalidate_caches()
    forget_installed()
    yield
    forget_installed()


def check_schema(
    family: str, sources: Path, work: Path, oracle: Mapping[str, np.ndarray], **options: float
) -> None:
    """Assert the promises of `unistore.testing.check_family` that depend on the schema of a family."""
    store = work / "store.zarr"
    unistore.convert(sources, store, family, **options)
    for path, expected in oracle.items():
        np.testing.assert_array_equal(unistore.Store(store).array(path).read(), expected, path)
    testing._check_verify(sources, store, work)
    testing._check_repair(sources, store, work / "damaged.zarr")
    testing._check_export(family, store, work, options)
    testing._check_truncated(family, sources, work / "truncated", options)
    assert "<img" in unistore.inspect(store).to_html()
