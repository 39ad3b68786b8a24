"""Rules about values that few stores break: what they say, against arrays in memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from unistore.schemas.array_specs import SAMPLES, ArrayInfo, ArraySpec, Limit
from unistore.schemas.ct.rules import points, presence
from unistore.schemas.rules import Rule, parts_hold_all
from unistore.schemas.trajectory.rules import ends, success

Arrays = dict[str, np.ndarray]


class View:
    """Arrays in memory, as rules see those of a store."""

    def __init__(self, arrays: Arrays, **attributes: Any) -> None:
        self.arrays = arrays
        self.store = SimpleNamespace(
            has=arrays.__contains__, root=SimpleNamespace(sample_table="points", main_table="points")
        )
        self.attributes = attributes

    def under(self, prefix: str) -> list[str]:
        return [path for path in self.arrays if path.startswith(prefix)]

    def whole(self, path: str) -> np.ndarray:
        return self.arrays[path]

    def array(self, path: str) -> Any:
        return SimpleNamespace(attributes=self.attributes, shape=self.arrays[path].shape)


def said(rule: Rule, view: View) -> list[str]:
    return [f"{problem.file}: {problem.message}" for problem in rule(view)]  # type: ignore[arg-type]


def test_a_volume_without_a_window_has_no_points() -> None:
    arrays = {"windows/lung/present": np.array([True, False]), "windows/lung/offsets": np.array([0, 2, 2])}
    assert said(presence, View(arrays)) == []
    arrays["windows/lung/offsets"] = np.array([0, 2, 1_236])
    words = "windows/lung/present: is False for volume 1, but the volume has 1,234 points"
    assert said(presence, View(arrays)) == [words]


def test_locations_have_offsets_of_each_class_of_each_volume() -> None:
    group = "foreground/labels/seg"
    arrays = {
        "volumes/extent": np.full((3, 3), 8),
        f"{group}/coords": np.zeros((0, 3)),
        f"{group}/offsets": np.zeros(9),
    }
    words = "has 9 rows, expected 7: one for each of 3 volumes and of the classes [1, 2], and 1 more"
    assert said(points, View(arrays, class_numbers=[1, 2])) == [f"{group}/offsets: {words}"]


def test_success_must_be_1_0_or_minus_1() -> None:
    arrays = {"episodes/success": np.array([1, 0, -1, 5])}
    words = "episode 3 is 5, expected 1 (success), 0 (no success) or -1 (unknown)"
    assert said(success, View(arrays)) == [f"episodes/success: {words}"]
    arrays["episodes/success"] = np.array([1, 0, -1])
    assert said(success, View(arrays)) == []


def test_an_episode_without_next_observations_ends_without_one() -> None:
    arrays = {
        "episodes/offsets": np.array([0, 3, 5]),
        "steps/next_valid": np.ones(5, bool),
        "steps/terminated": np.array([False, False, True, False, True]),
        "steps/truncated": np.zeros(5, bool),
        "steps/next_observation/joint": np.zeros(5),
        "episodes/next_recorded/observation.joint": np.array([True, False]),
    }
    (words,) = said(ends, View(arrays))
    assert words.startswith(
        "steps/next_valid: is True for step 4, which ends an episode for which episodes/nex"
    )
    arrays["steps/next_valid"][4] = False
    assert said(ends, View(arrays)) == []


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, []),
        (
            {"segments/source": np.array([0, 5, 1])},
            ["segments/source: row 1 is 5, but there are only 2 sources, numbered from 0"],
        ),
        (
            {"segments/offsets": np.array([0, 3, 4, 9])},
            ["segments/offsets: the segments of source 0 have 4 points, expected 5"],
        ),
    ],
)
def test_the_parts_of_a_source_have_all_its_rows(changed: Arrays, words: list[str]) -> None:
    arrays = {
        "segments/offsets": np.array([0, 3, 5, 9]),
        "segments/source": np.array([0, 0, 1]),
        "sources/points/offsets": np.array([0, 5, 9]),
    }
    view: Any = View({**arrays, **changed})
    found = [f"{each.file}: {each.message}" for each in parts_hold_all(view, "segments", "points")]
    assert found == words


SHAPES = {
    SAMPLES: (3,),
    "points/xyz": (1_000, 3),
    "volumes/image": (3, 8, 9, 10),
    "windows/w/mask": (3, 8, 9, 2),
}
OFFSETS = ArraySpec(dtypes=("int64",), offsets_of="points/xyz")
NO_OFFSETS = "expected integers and shape (n), because its values are offsets"
BITS = ArraySpec(offsets_of=Limit("windows/w/mask", (1, 2, 3), 8))


@pytest.mark.parametrize(
    ("spec", "lo", "hi", "words"),
    [
        (OFFSETS, [0, 500], [500, 1_000], None),
        (
            *(OFFSETS, [0, 500], [500, 1_001]),
            "row 8 is 500 and the next row is 1,001, expected offsets from 0 to 1,000 that do not fall",
        ),
        (BITS, [0], [1_152], None),
        (BITS, [4], [2], "row 7 is 4 and the next row is 2, expected offsets from 0 on that do not fall"),
        (BITS, [0], [1_153], "row 0 counts 1,153 bits, but a row of windows/w/mask has only 1,152"),
    ],
)
def test_span_error_names_the_row_whose_range_does_not_fit(
    spec: ArraySpec, lo: list[int], hi: list[int], words: str | None
) -> None:
    rows = np.arange(7, 7 + len(lo))
    assert spec.span_error(np.array(lo), np.array(hi), rows, SHAPES.__getitem__) == words


@pytest.mark.parametrize(
    ("spec", "shape", "words"),
    [
        (ArraySpec(rows=(SAMPLES, -1)), (2,), None),
        (ArraySpec(rows=(SAMPLES, -1)), (3,), "has 3 rows, expected 2, one less than the number of samples"),
        (ArraySpec(rows=(SAMPLES, 1), repeated=True), (7,), None),
        (
            *(ArraySpec(rows=(SAMPLES, 1), repeated=True), (8,)),
            "has 8 rows, expected one more than a multiple of 3, the number of samples",
        ),
        (
            *(ArraySpec(limits=(Limit("volumes/image", (1, 2, 3)),)), (3, 2)),
            "has shape (3, 2), expected a last axis of 3, one value for each limiting axis of volumes/image",
        ),
        (OFFSETS, (4, 2), f"has dtype int64 and shape (4, 2), {NO_OFFSETS}"),
    ],
)
def test_array_error_names_a_wrong_number_of_rows_or_axes(
    spec: ArraySpec, shape: tuple[int, ...], words: str | None
) -> None:
    assert spec.array_error(ArrayInfo(shape, "int64"), SHAPES.__getitem__) == words


def test_empty_offsets_are_a_problem() -> None:
    assert list(OFFSETS.value_errors(np.zeros(0, np.int64), SHAPES.__getitem__)) == [
        "is empty, expected 0 first"
    ]
