"""Sources left out by name: problems say which name that is, and what is left equals the good ones alone."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from tests.converters.contract import convert_in_memory
from unistore.conversion.convert import make_converter
from unistore.converters.common.exclusion import Exclusion, ProblemCollector
from unistore.errors import InputError, Problem

RNG = np.random.default_rng(0)


def test_names_and_folders_are_covered() -> None:
    exclusion = Exclusion(["a.h5", "train/x/", "b.h5: data/demo_1", "absent.h5"])
    covered = ["a.h5", "train/x", "train/x/1.dat", "train/x/y/1.dat", "b.h5: data/demo_1"]
    assert [name for name in covered if not exclusion.covers(name)] == []
    others = ["A.h5", "b.h5", "train", "train/xx/1.dat", "b.h5: data/demo_10", "sub/a.h5"]
    assert [name for name in others if exclusion.covers(name)] == []
    assert exclusion.notes() == ["left out: a.h5, train/x, b.h5: data/demo_1"]


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("spike_vox", "seq/spike_vox"),
        ("seq/spike_vos", "seq/spike_vox"),
        ("a.npy", "clouds/a.h5"),
        ("nothing_like_it", ""),
    ],
)
def test_a_name_that_leaves_nothing_out_is_a_problem(name: str, near: str) -> None:
    there = ["clouds/a.h5", "seq/spike_vox/0.npy"]
    exclusion = Exclusion(["clouds/", name])
    assert exclusion.covers("clouds/a.h5")
    (problem,) = exclusion.not_found(["clouds/", name], there)
    assert problem.location == f"--exclude {name}"
    assert (near in problem.cure) if near else ("is it" not in problem.cure)
    assert exclusion.not_found(["clouds"], there) == []
    assert Exclusion([]).notes() == []


def test_attempts_are_told_together() -> None:
    collected = ProblemCollector()
    collected.check()
    for number in range(3):
        with collected.attempt("somewhere"):
            if number != 1:
                raise InputError(Problem(str(number), "bad"))
    with pytest.raises(InputError) as caught:
        collected.check()
    assert [problem.location for problem in caught.value.problems] == ["0", "2"]


def write_sequence(folder: Path, frames: int) -> None:
    (folder / "spike").mkdir(parents=True)
    for number in range(frames):
        (folder / f"spike/{number:03d}.dat").write_bytes(RNG.integers(1, 255, 250 * 50 * 2, "u1").tobytes())
    for role in ("blur", "sharp"):
        (folder / role).mkdir()
        for number in range(frames):
            image = RNG.integers(0, 255, (20, 30, 3), "u1")
            cv2.imwrite(str(folder / role / f"{number:03d}.png"), image)


SPIKE = {"height": 250, "width": 400, "layout": "packed"}


def test_a_sequence_goes_on_behind_a_gap_under_a_name_of_its_own(tmp_path: Path) -> None:
    """No clip may jump over a frame that was left out."""
    write_sequence(tmp_path / "train/a", 9)
    write_sequence(tmp_path / "train/b", 3)
    exclude = [f"a/spike/{number:03d}.dat" for number in (0, 3, 4, 7)]
    converted = convert_in_memory(
        make_converter("spike", {**SPIKE, "exclude": exclude}), [tmp_path / "train"]
    )
    names = [source.name for source in converted.scan.sources]
    assert names == [
        *(f"a/spike/{number:03d}.dat" for number in (1, 2, 5, 6, 8)),
        *(f"b/spike/{number:03d}.dat" for number in range(3)),
    ]
    assert converted.arrays["sequences/offsets"].tolist() == [0, 2, 4, 5, 8]
    assert converted.arrays["sequences/name/data"].tobytes() == b"aa~2a~3b"
    assert converted.scan.units == [*"aaaaabbb"], "one sequence is in one split"
    for source in converted.scan.sources:
        numbers = {"".join(filter(str.isdigit, file.stem)).lstrip("0") for file in source.files}
        assert len(numbers) == 1, "blur and sharp belong to the spikes"
