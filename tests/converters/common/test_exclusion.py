"""Sources left out by name: problems say which name that is, and what is left equals the good ones alone."""

from __future__ import annotations

import pytest

from unistore.converters.common.exclusion import Exclusion, ProblemCollector
from unistore.errors import InputError, Problem


def test_an_exclusion_covers_exact_names_and_everything_in_its_folders() -> None:
    exclusion = Exclusion(["a.h5", "train/x/", "b.h5: data/demo_1", "absent.h5"])
    covered = ["a.h5", "train/x", "train/x/1.dat", "train/x/y/1.dat", "b.h5: data/demo_1"]
    assert [name for name in covered if not exclusion.covers(name)] == []
    others = ["A.h5", "b.h5", "train", "train/xx/1.dat", "b.h5: data/demo_10", "sub/a.h5"]
    assert [name for name in others if exclusion.covers(name)] == []
    assert exclusion.notes() == ["skipped: a.h5, train/x, b.h5: data/demo_1"]


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("spike_vox", "seq/spike_vox"),
        ("seq/spike_vos", "seq/spike_vox"),
        ("a.npy", "clouds/a.h5"),
        ("nothing_like_it", ""),
    ],
)
def test_an_exclude_that_matches_nothing_is_a_problem_with_the_nearest_name(name: str, near: str) -> None:
    there = ["clouds/a.h5", "seq/spike_vox/0.npy"]
    exclusion = Exclusion(["clouds/", name])
    assert exclusion.covers("clouds/a.h5")
    (problem,) = exclusion.not_found(["clouds/", name], there)
    assert problem.location == f"--exclude {name}"
    assert (near in problem.advice) if near else ("is it" not in problem.advice)
    assert exclusion.not_found(["clouds"], there) == []
    assert Exclusion([]).notes() == []


def test_problems_of_several_attempts_are_raised_together() -> None:
    collected = ProblemCollector()
    collected.check()
    for number in range(3):
        with collected.attempt("somewhere"):
            if number != 1:
                raise InputError(Problem(str(number), "bad"))
    with pytest.raises(InputError) as caught:
        collected.check()
    assert [problem.location for problem in caught.value.problems] == ["0", "2"]
