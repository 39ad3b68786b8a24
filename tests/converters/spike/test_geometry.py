"""Layout and resolution of headerless streams: what decides, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.converter_contract import convert_in_memory
from tests.support.family_converters import spike as spike_converter
from tests.support.spike_recordings import record, stream
from tests.support.spikes import stored_spikes
from unistore.converters.source_scan import scan_sources
from unistore.converters.spike.streams import CAMERAS, choose_resolutions
from unistore.errors import InputError, Problem


def scan_one(path: Path, **options: Any) -> tuple[list[int], str, str]:
    """Extent, layout and all notes of one file."""
    scan = scan_sources(spike_converter(**options), [path])
    return (
        list(scan.sources[0].detail.shapes["spike"]),
        scan.options["found"]["layout"],
        "\n".join(scan.notes),
    )


def refusal(path: Path, **options: Any) -> Problem:
    with pytest.raises(InputError) as error:
        scan_sources(spike_converter(**options), [path])
    (problem,) = error.value.problems
    return problem


@pytest.fixture
def gopro(tmp_path: Path) -> Path:
    """Packed bits that look like those of a camera, of a size that is described as 10 x 396 x 640 bytes."""
    file = tmp_path / "000.dat"
    file.write_bytes(stream(record(88, 360, 640)))
    assert file.stat().st_size == 2_534_400 == 10 * 396 * 640
    return file


def test_the_documented_size_in_packed_bits_is_recognised(gopro: Path) -> None:
    extent, layout, notes = scan_one(gopro)
    assert (extent, layout) == ([88, 360, 640], "packed")
    assert "000.dat contains bytes up to" in notes
    assert "2,534,400 bytes are 88 x 360 x 640 (Spk-GoPro) in packed bits" in notes
    assert "careful" not in notes


def test_the_documented_size_in_one_byte_per_pixel_is_recognised(tmp_path: Path) -> None:
    file = tmp_path / "000.dat"
    file.write_bytes(stream(record(10, 396, 640), "bytes"))
    extent, layout, notes = scan_one(file)
    assert (extent, layout) == ([10, 396, 640], "bytes")
    assert "all 2,534,400 bytes are 0 or 1" in notes
    assert "10 x 396 x 640 (GoPro, one byte a pixel) in one byte per pixel" in notes


def test_the_documented_resolution_is_an_error_for_packed_bits(gopro: Path) -> None:
    problem = refusal(gopro, height=396, width=640)
    assert problem.kind == "geometry"
    assert "396 x 640 fits only by chance; these are packed bits of 360 x 640" in problem.message
    assert "--height 360 --width 640" in problem.advice
    extent, _, notes = scan_one(gopro, height=396, width=640, layout="packed")
    assert extent == [80, 396, 640]
    assert "careful: neighbouring rows of 000.dat hardly correlate at 396 x 640" in notes


def test_cameras_may_differ_by_recording(tmp_path: Path) -> None:
    spikes = [record(88, 360, 640), record(3, 250, 400)]
    for name, each in zip("ab", spikes, strict=True):
        (tmp_path / f"{name}.dat").write_bytes(stream(each))
    converted = convert_in_memory(spike_converter(), [tmp_path])
    assert converted.arrays["frames/spike_extent"].tolist() == [[360, 640], [250, 400]]
    for path, values in stored_spikes(spikes).items():
        np.testing.assert_array_equal(converted.arrays[path], values)


def test_a_size_of_no_known_camera_is_a_problem(tmp_path: Path) -> None:
    file = tmp_path / "a.dat"
    file.write_bytes(np.arange(12_501, dtype=np.uint8).tobytes())
    problem = refusal(file)
    assert (problem.kind, problem.location) == ("unknown size", "a.dat")


def test_every_camera_is_found_by_its_typical_size_or_given_size() -> None:
    for camera in CAMERAS:
        for length in camera.lengths:
            size = camera.height * camera.width * length // (8 if camera.layout == "packed" else 1)
            chosen, problems = choose_resolutions({"a": [size]}, camera.layout)
            assert not problems
            assert (chosen["a"].height, chosen["a"].width) == (camera.height, camera.width)
        size = camera.height * camera.width * 7 // 8
        chosen, problems = choose_resolutions({"a": [size]}, "packed", camera.height, camera.width)
        assert bool(problems) == (camera.layout == "bytes"), (
            "a width and height of bytes are no packed camera"
        )
