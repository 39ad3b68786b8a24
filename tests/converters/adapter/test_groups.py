"""What a group of files says reaches the scan: roles, units, and names that links to folders give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from unistore.converters.adapter.converter import Converter
from unistore.converters.adapter.formats import group_of
from unistore.converters.common.exclusion import Exclusion
from unistore.converters.family import Family
from unistore.converters.family_types import Group, Grouping
from unistore.converters.files.paths import list_files
from unistore.converters.opened import SourceFile
from unistore.converters.scan_types import Found
from unistore.converters.schema import Column, Schema
from unistore.converters.source_scan import scan_sources
from unistore.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Walks(Family):
    """Steps of walks: ``<walk>_<number>.npy`` and, beside it, ``.npz`` with a weight."""

    name: ClassVar[str] = "walks"
    summary: ClassVar[str] = "Walks."
    formats: ClassVar[tuple[str, ...]] = ("npy", "npz")
    schema: ClassVar[Schema] = Schema(table="steps", columns={"data": Column(), "weight": Column(kinds="f")})

    def group(self, files: Sequence[SourceFile]) -> Grouping:
        found = Grouping()
        by_stem = {file.path.stem: file for file in files if file.format == "npz"}
        for file in files:
            stem = file.path.stem
            if file.format == "npy" and stem in by_stem:
                pair = file, by_stem.pop(stem)
                walk = stem.partition("_")[0]
                group = Group(file.name, pair, roles=("steps", "weights"), unit=walk, detail=len(stem))
                found.sources.append(group)
        found.left_out += [(file, "has no steps") for file in by_stem.values()]
        return found


@dataclass(frozen=True, kw_only=True)
class LinkedWalks(Walks):
    """The same behind links to folders."""

    follows_links: ClassVar[bool] = True


def write(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        np.save(folder / f"{name}.npy", np.arange(3) + number)
        np.savez(folder / f"{name}.npz", weight=np.ones(3) * number)


def find(family: Family, *paths: Path) -> Found:
    return Converter(family).find(list_files(paths), Exclusion(family.exclude))


def test_roles_and_details_reach_the_scan_of_a_source(tmp_path: Path) -> None:
    write(tmp_path, "a_1", "a_10")
    first, second = (group_of(part) for part in find(Walks(), tmp_path).parts)
    assert (first.name, first.unit, first.detail, second.detail) == ("a_1.npy", "a", 3, 4)
    assert [(file.name, role) for file, role in zip(first.files, first.roles, strict=True)] == [
        ("a_1.npy", "steps"),
        ("a_1.npz", "weights"),
    ]


def test_sources_of_one_unit_stay_in_one_split(tmp_path: Path) -> None:
    write(tmp_path, "a_1", "a_2", "b_1")
    scan = scan_sources(Converter(Walks()), [tmp_path])
    assert list(scan.units) == ["a", "a", "b"]


def test_a_file_in_no_source_has_the_reason_of_the_family(tmp_path: Path) -> None:
    write(tmp_path, "a_1", "a_2")
    (tmp_path / "a_1.npy").unlink()
    assert find(Walks(), tmp_path).left_out == [(tmp_path / "a_1.npz", "has no steps")]


def test_a_file_reached_by_a_link_has_the_path_of_the_link_as_its_name(tmp_path: Path) -> None:
    write(tmp_path / "kept/x", "a_1")
    write(tmp_path / "kept/y", "b_1")
    (tmp_path / "set/train").mkdir(parents=True)
    (tmp_path / "set/train/walk").symlink_to(tmp_path / "kept/x", target_is_directory=True)
    found = find(LinkedWalks(), tmp_path / "set", tmp_path / "kept")
    assert [part.name for part in found.parts] == ["set/train/walk/a_1.npy"]
    assert found.left_out == [(tmp_path / "kept/y", "no link leads to it")]
    assert [note.partition(": ")[2] for note in found.notes] == ["only followed from links, not searched"]
    assert find(Walks(), tmp_path / "kept").parts.names[0] == "x/a_1.npy"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("target", "kind"), [("outside/a_1.npy", "link"), ("gone/a_1.npy", "missing"), ("a_1.npy", "missing")]
)
def test_a_broken_link_or_one_out_of_the_folder_is_a_problem(tmp_path: Path, target: str, kind: str) -> None:
    write(tmp_path / "outside", "a_1")
    write(tmp_path / "set", "b_1")
    link = tmp_path / "set/a_1.npy"
    link.symlink_to(link if target == link.name else tmp_path / target)
    (problem,) = find(LinkedWalks(), tmp_path / "set").problems
    assert (problem.location, problem.kind) == ("a_1.npy", kind)
    assert ("--follow-links-to" in problem.advice) == (kind == "link")


def test_a_folder_without_any_file_of_the_formats_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    (problem,) = find(LinkedWalks(), tmp_path).problems
    assert problem.kind == "missing"
    with pytest.raises(InputError, match=r"contains no \.npy or \.npz file"):
        find(Walks(), tmp_path)
