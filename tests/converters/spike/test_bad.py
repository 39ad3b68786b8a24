"""Bad recordings: each its own Problem, the problems of all files together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from tests.support.family_converters import spike as spike_converter
from tests.support.spike_recordings import record, sequences, stream
from unistore.converters.source_scan import scan_sources
from unistore.errors import InputError, Problem


def problems(paths: Path | list[Path], **options: Any) -> dict[str, Problem]:
    with pytest.raises(InputError) as error:
        scan_sources(spike_converter(**options), [paths] if isinstance(paths, Path) else paths)
    assert error.value.problems, "problems are listed"
    return {problem.location: problem for problem in error.value.problems}


def test_every_bad_file_is_reported_at_once(tmp_path: Path) -> None:
    made = sequences(tmp_path, {"train/good": (16,), "train/bad": (16,) * 7, "train/less": (16,) * 3})
    bad = tmp_path / "train/bad"
    (bad / "spike/000.dat").write_bytes((bad / "spike/000.dat").read_bytes()[:-1])
    (bad / "spike/001.dat").write_bytes(b"")
    (bad / "spike/002.dat").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n")
    (bad / "blur/000.png").write_bytes((bad / "blur/000.png").read_bytes()[:-30])
    (bad / "blur/001.png").write_bytes(b"")
    (bad / "blur/002.png").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n")
    (bad / "blur/003.png").write_bytes(b"<html>not found</html>")
    cv2.imwrite(str(bad / "sharp/004.png"), np.zeros((48, 80), np.uint8))
    cv2.imwrite(str(bad / "sharp/005.png"), np.zeros((48, 80, 3), np.uint16))
    cv2.imwrite(str(bad / "sharp/006.png"), np.zeros((40, 80, 3), np.uint8))
    (tmp_path / "train/less/sharp/001.png").unlink()
    (tmp_path / "train/less/blur/003.png").write_bytes(b"x")
    (tmp_path / "train/none/spike").mkdir(parents=True)
    (tmp_path / "train/none/spike/000.raw").write_bytes(b"\0")
    found = problems(made.root, height=24, width=40)
    expected = {
        "train/bad/spike/000.dat": ("size", "15 frames of 120 bytes (packed bits) leave 119 bytes"),
        "train/bad/spike/001.dat": ("empty", "is empty (0 bytes)"),
        "train/bad/spike/002.dat": ("format", "Git LFS pointer"),
        "train/bad/blur/000.png": ("truncated", "is truncated"),
        "train/bad/blur/001.png": ("empty", "is empty (0 bytes)"),
        "train/bad/blur/002.png": ("format", "Git LFS pointer"),
        "train/bad/blur/003.png": ("format", "is not a PNG or JPEG image: it begins with b'<html>no'"),
        "train/bad/sharp/004.png": ("colour", "is gray, but 8-bit rgb is expected"),
        "train/bad/sharp/005.png": ("colour", "is 16-bit rgb"),
        "train/bad/sharp/006.png": ("shape", "has 40 x 80 pixels, but its blurred frame has 48 x 80"),
        "train/less/spike/001.dat": ("count", "there is no file of this name in train/less/sharp"),
        "train/less/blur/003.png": ("count", "in train/less/spike and train/less/sharp"),
        "train/none/spike": ("missing", "contains no file of spikes"),
    }
    assert {place: problem.kind for place, problem in found.items()} == {
        place: kind for place, (kind, _) in expected.items()
    }
    for place, (_, message) in expected.items():
        assert message in found[place].message, found[place]
    assert "leave 119 bytes" in found["train/bad/spike/000.dat"].message


def test_each_array_that_is_not_spikes_is_a_problem_of_its_kind(tmp_path: Path) -> None:
    good = np.zeros((4, 6, 8), np.uint8)
    np.savez(tmp_path / "counts.npz", spk=good + 2)
    np.savez(tmp_path / "float.npz", spk=good.astype(np.float32))
    np.savez(tmp_path / "flat.npz", spk=good[0])
    np.savez(tmp_path / "names.npz", a=good, b=good)
    np.savez(tmp_path / "object.npz", spk=np.array([good, None], dtype=object))
    np.save(tmp_path / "cut.npy", good)
    (tmp_path / "cut.npy").write_bytes((tmp_path / "cut.npy").read_bytes()[:-9])
    found = problems(sorted(tmp_path.iterdir()))
    assert {place.split(":")[0]: problem.kind for place, problem in found.items()} == {
        "counts.npz": "values",
        "float.npz": "dtype",
        "flat.npz": "shape",
        "names.npz": "missing",
        "object.npz": "object",
        "cut.npy": "truncated",
    }
    assert "values up to 2" in found["counts.npz"].message
    assert "contains a, b, expected spk" in found["names.npz"].message


def test_a_second_layout_in_one_conversion_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "000.dat").write_bytes(stream(record(8, 6, 16, 1), "packed"))
    (tmp_path / "001.dat").write_bytes(stream(record(8, 6, 16, 2), "bytes"))
    found = problems(tmp_path, height=6, width=16)
    assert {place: problem.kind for place, problem in found.items()} == {"001.dat": "layout"}


def test_a_dark_recording_alone_needs_the_layout_option(tmp_path: Path) -> None:
    (tmp_path / "dark.dat").write_bytes(bytes(4 * 6 * 16))
    found = problems(tmp_path, height=6, width=16)
    assert {place: problem.kind for place, problem in found.items()} == {"dark.dat": "dark"}
    assert "add --layout packed, or add --layout bytes" in found["dark.dat"].advice
    scan = scan_sources(spike_converter(height=6, width=16, layout="packed"), [tmp_path])
    assert scan.sources[0].detail.shapes["spike"][0] == 32


def test_a_dark_recording_takes_the_layout_of_the_others(tmp_path: Path) -> None:
    (tmp_path / "000.dat").write_bytes(bytes(96))
    (tmp_path / "001.dat").write_bytes(stream(record(8, 6, 16), "packed"))
    scan = scan_sources(spike_converter(height=6, width=16), [tmp_path])
    assert [source.detail.shapes["spike"][0] for source in scan.sources] == [8, 8]


def test_images_that_only_some_sequences_have_are_a_problem(tmp_path: Path) -> None:
    sequences(tmp_path, {"a": (8,)})
    sequences(tmp_path, {"b": (8,)}, images=None)
    (problem,) = problems(tmp_path, height=24, width=40).values()
    assert problem.kind == "columns"
    assert "blur/" in problem.message
    scan = scan_sources(spike_converter(height=24, width=40, columns="intersection"), [tmp_path])
    assert [field.path for field in scan.tables[0].fields] == ["spikes/bits"]


def test_two_files_for_one_frame_are_a_problem(tmp_path: Path) -> None:
    sequences(tmp_path, {"a": (8,)}, images=None)
    np.save(tmp_path / "a/spike/000.npy", record(8, 24, 40))
    (problem,) = problems(tmp_path, height=24, width=40).values()
    assert (problem.kind, problem.location) == ("count", "a/spike/000.npy")
