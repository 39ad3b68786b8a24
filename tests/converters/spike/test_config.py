"""The ``config.yaml`` of SpikeCV says the size of streams; one without both sides is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.family_converters import spike as spike_converter
from tests.support.spike_recordings import record, stream
from unistore.converters.source_scan import scan_sources
from unistore.errors import InputError

PUBLISHED = """filename: rotation_digits
spike_w: 16
spike_h: 30
is_labeled: true
labeled_data_type: [4, 5]
labeled_data_suffix: txt
"""
"""As SpikeCV publishes them, but for the size."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data set whose streams have no known size."""
    (tmp_path / "in/train").mkdir(parents=True)
    for name in ("a", "b"):
        (tmp_path / f"in/train/{name}.dat").write_bytes(stream(record(9, 30, 16)))
    return tmp_path / "in"


@pytest.mark.parametrize("place", ["", "train"])
def test_the_size_is_that_of_the_nearest_file(folder: Path, place: str) -> None:
    (folder / "config.yaml").write_text(PUBLISHED if not place else PUBLISHED.replace("30", "15"))
    (folder / place / "config.yaml").write_text(PUBLISHED)
    scan = scan_sources(spike_converter(), [folder])
    assert [source.detail.shapes["spike"] for source in scan.sources] == [(9, 30, 16)] * 2
    name = f"{place}/config.yaml" if place else "config.yaml"
    assert f"streams have 30 x 16 pixels, as {name} states" in scan.notes


def test_a_file_outside_the_given_paths_is_not_read(folder: Path) -> None:
    (folder / "config.yaml").write_text(PUBLISHED)
    with pytest.raises(InputError, match="of any known camera"):
        scan_sources(spike_converter(), [folder / "train"])


def test_options_win_over_config_yaml_and_an_unrelated_one_is_ignored(folder: Path) -> None:
    (folder / "config.yaml").write_text("spike_h: eight\nfps: 20000\n")
    scan = scan_sources(spike_converter(height=15, width=16), [folder])
    assert [source.detail.shapes["spike"] for source in scan.sources] == [(18, 15, 16)] * 2
    (folder / "config.yaml").write_text("DATA:\n  ROOT: x\n")
    with pytest.raises(InputError, match="of any known camera"):
        scan_sources(spike_converter(), [folder])


@pytest.mark.parametrize(
    "text", [PUBLISHED.replace("30", "thirty"), PUBLISHED.replace("30", "0"), "spike_h: 30\n"]
)
def test_a_config_without_both_sides_as_numbers_is_an_error(folder: Path, text: str) -> None:
    (folder / "config.yaml").write_text(text)
    with pytest.raises(InputError) as refused:
        scan_sources(spike_converter(), [folder])
    problem = refused.value.problems[0]
    assert problem.location == "config.yaml"
    assert problem.message == "does not state spike_h and spike_w as whole numbers"
    assert "--height" in problem.advice


def test_a_config_that_contradicts_options_or_covers_some_streams_is_an_error(folder: Path) -> None:
    (folder / "train/config.yaml").write_text(PUBLISHED)
    with pytest.raises(InputError, match=r"states 30 x 16 pixels, which contradicts --"):
        scan_sources(spike_converter(height=15), [folder])
    (folder / "c.dat").write_bytes((folder / "train/a.dat").read_bytes())
    with pytest.raises(InputError, match="states the size of only some streams"):
        scan_sources(spike_converter(), [folder])
