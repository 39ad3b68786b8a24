"""Folders of links: followed inside the given paths, refused outside, every file taken once."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

import unistore
from tests.support.converter_contract import convert_in_memory
from tests.support.family_converters import spike as spike_converter
from tests.support.spike_recordings import record, sequences, stream
from unistore.cli.main import main
from unistore.converters.source_scan import scan_sources
from unistore.errors import InputError, Problem

SIZE = {"height": 24, "width": 40}


def names(*paths: Path) -> list[str]:
    return [source.name for source in scan_sources(spike_converter(**SIZE), paths).sources]


def problems(*paths: Path) -> list[Problem]:
    with pytest.raises(InputError) as error:
        scan_sources(spike_converter(**SIZE), paths)
    return list(error.value.problems)


def link_sequence(unified: Path, raw: Path, *, roles: tuple[str, ...] = ("spike", "blur", "sharp")) -> None:
    unified.mkdir(parents=True)
    for role in roles:
        (unified / role).symlink_to(raw / role, target_is_directory=True)


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Sequences a and b outside of the unified folder."""
    sequences(tmp_path / "raw", {"a": (8, 8), "b": (8,)})
    return tmp_path / "raw"


def test_links_that_leave_are_refused_with_the_fix(tmp_path: Path, raw: Path) -> None:
    link_sequence(tmp_path / "unified/train/a", raw / "a")
    found = problems(tmp_path / "unified")
    assert {problem.location for problem in found} == {f"train/a/{r}" for r in ("spike", "blur", "sharp")}
    assert {problem.kind for problem in found} == {"link"}
    assert all(f"{raw}/a/" in problem.message for problem in found)
    assert {problem.advice for problem in found} == {f"add --follow-links-to {raw}/a"}


def test_the_command_printed_by_inspect_converts_a_folder_of_links(
    tmp_path: Path, raw: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    link_sequence(tmp_path / "unified/train/a", raw / "a")
    link_sequence(tmp_path / "unified/test/b", raw / "b")
    monkeypatch.chdir(tmp_path)
    printed = str(unistore.inspect("unified"))
    command = next(line for line in printed.splitlines() if "--follow-links-to" in line)
    assert shlex.split(command)[:2] == ["unistore", "convert"]
    with pytest.raises(SystemExit) as ended:
        main([*shlex.split(command)[1:], "--height", "24", "--width", "40"])
    assert not ended.value.code
    assert len(unistore.Dataset("unified.zarr", unistore.Clips(1, crop=None), split="train")) == 2
    capsys.readouterr()


def test_links_are_followed_into_the_named_folder_alone(tmp_path: Path, raw: Path) -> None:
    link_sequence(tmp_path / "unified/a", raw / "a")
    (raw / "b").rename(tmp_path / "b")
    (raw / "a/spike/001.dat").unlink()
    (raw / "a/spike/001.dat").symlink_to(tmp_path / "b/spike/000.dat")
    (problem,) = [each for each in problems(tmp_path / "unified", raw) if each.kind == "link"]
    assert problem.location == "unified/a/spike/001.dat"
    assert problem.advice == f"add --follow-links-to {tmp_path}/b/spike"


def test_a_given_target_is_followed_and_not_searched(tmp_path: Path, raw: Path) -> None:
    link_sequence(tmp_path / "unified/train/a", raw / "a")
    scan = scan_sources(spike_converter(**SIZE), [tmp_path / "unified", raw])
    assert [source.name for source in scan.sources] == [
        "unified/train/a/spike/000.dat",
        "unified/train/a/spike/001.dat",
    ]
    assert {source.split for source in scan.sources} == {"train"}
    assert any("only followed from links" in note for note in scan.notes)


def test_recordings_reached_by_links_inside_one_folder_are_taken_once(tmp_path: Path, raw: Path) -> None:
    link_sequence(tmp_path / "unified/train/a", raw / "a")
    link_sequence(tmp_path / "unified/test/b", raw / "b")
    scan = scan_sources(spike_converter(**SIZE), [tmp_path])
    assert [source.name for source in scan.sources] == [
        "unified/test/b/spike/000.dat",
        "unified/train/a/spike/000.dat",
        "unified/train/a/spike/001.dat",
    ]
    assert "skipped, because other recordings contain the same files: raw/a, raw/b" in scan.notes


def test_a_broken_link_to_a_recording_is_a_problem(tmp_path: Path, raw: Path) -> None:
    (raw / "a/spike/002.dat").symlink_to(raw / "gone.dat")
    (raw / "notes.txt").symlink_to(raw / "gone.txt")
    found = problems(raw)
    assert [(problem.location, problem.kind) for problem in found] == [("a/spike/002.dat", "missing")]
    assert "link" in found[0].advice


def test_numbered_files_are_a_sequence_and_others_stand_alone(tmp_path: Path) -> None:
    for number, name in enumerate(("10.dat", "9.dat", "left.dat", "right.dat")):
        (tmp_path / name).write_bytes(stream(record(8, 24, 40, number)))
    converted = convert_in_memory(spike_converter(**SIZE), [tmp_path])
    assert [source.name for source in converted.scan.sources] == ["left.dat", "right.dat", "9.dat", "10.dat"]
    assert converted.arrays["sequences/offsets"].tolist() == [0, 1, 2, 4]
