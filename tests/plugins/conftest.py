"""Installs the packages of this folder: their modules, and the entry points by which unistore finds them."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from unistore.converters import registry
from unistore.converters.seam import formats
from unistore.data.kinds import named

ENTRY_POINTS = """\
[unistore.families]
audio = unistore_audio:Audio
bytes = unistore_native:Bytes
dvs = unistore_events:Events
robot = unistore_robot:Robot
scans = unistore_scans:Scans
sensors = unistore_sensors:Sensors

[unistore.formats]
pack = unistore_pack:Pack
wav = unistore_audio:Wav

[unistore.kinds]
broken = unistore_native:Missing
window = unistore_window:Window
"""


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of installed packages."""
    folder = tmp_path_factory.mktemp("site")
    for module in Path(__file__).parent.glob("unistore_*.py"):
        shutil.copy(module, folder)
    about = folder / "unistore_plugins-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: unistore-plugins\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRY_POINTS)
    return folder


@pytest.fixture(autouse=True)
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    root = Path(registry.__file__).parents[2]
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", f"{site}:{root}")
    importlib.invalidate_caches()
    registry.families.cache_clear()
    formats.formats.cache_clear()
    formats.offered_suffixes.cache_clear()
    named.installed_kinds.cache_clear()
    yield
    registry.families.cache_clear()
    formats.formats.cache_clear()
    formats.offered_suffixes.cache_clear()
    named.installed_kinds.cache_clear()
