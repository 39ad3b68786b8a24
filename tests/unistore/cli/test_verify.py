"""``unistore verify`` on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from unistore.cli.main import main

Copy = Callable[[str], Any]


def left_with(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(["verify", *map(str, arguments)])
    out, err = capsys.readouterr()
    return left.value.code, out, err  # type: ignore[return-value]


def test_verify_of_a_sound_store_exits_with_0_and_prints_a_receipt(
    make_case: Copy, capsys: pytest.CaptureFixture[str]
) -> None:
    case, store = make_case("rows_real")
    code, out, err = left_with(capsys, store)
    assert code == 0
    assert "unchanged since the store was sealed" in out
    assert err.startswith("checking ")
    code, out, _ = left_with(capsys, store, "--against", *case.sources)
    assert code == 0
    line = "lossless: all 7,455 values of 1 file are equal to the store (read with h5py)."
    assert out.splitlines()[-1] == line
    code, out, _ = left_with(capsys, store, "--against", "--sample", "50%", *case.sources)
    assert code == 0
    assert out.splitlines()[-1].startswith("lossless: in a sample of 50 %, ")


def test_verify_of_a_damaged_store_exits_with_1_until_it_is_repaired(
    copy_case: Copy, capsys: pytest.CaptureFixture[str]
) -> None:
    case, store = copy_case("rows_real")
    (store / "rows" / "zarr.json").unlink()
    code, out, _ = left_with(capsys, store)
    assert code == 1
    assert "missing  rows/zarr.json  is missing" in out
    assert "--repair" in out
    code, out, _ = left_with(capsys, store, "--json")
    assert code == 1
    found = json.loads(out)
    assert not found["ok"]
    assert found["problems"][0]["kind"] == "missing"
    code, out, _ = left_with(capsys, store, "--json", "--repair", *case.sources)
    assert code == 0
    assert json.loads(out)["repaired"] == ["rows/zarr.json"]
    code, out, _ = left_with(capsys, store, "--json", "--against", *case.sources)
    receipt = json.loads(out)["receipt"]
    assert receipt["line"] == "lossless: all 7,455 values of 1 file are equal to the store (read with h5py)."
    assert receipt["values"] == 7455


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--against"], "give SRC"),
        (["--repair"], "give SRC"),
        (["a", "--against", "--repair"], "give SRC"),
        (["a"], "give SRC"),
        (["--sample", "1%"], "--sample needs --against"),
        (["a", "--against", "--sample", "0"], "is not a share"),
        (["a", "--against", "--sample", "120%"], "is not a share"),
        (["a", "--against", "--sample", "some"], "is not a share"),
    ],
)
def test_verify_with_contradicting_arguments_exits_with_2(
    arguments: list[str], message: str, make_case: Copy, capsys: pytest.CaptureFixture[str]
) -> None:
    _, store = make_case("rows_real")
    code, _, err = left_with(capsys, store, *arguments)
    assert code == 2
    assert message in err


def test_equal_problems_are_one_row_with_their_places(
    copy_case: Copy, capsys: pytest.CaptureFixture[str]
) -> None:
    _, store = copy_case("rows_real")
    gone = sorted(path for path in store.rglob("zarr.json") if path.parent != store)
    for path in gone:
        path.unlink()
    code, out, _ = left_with(capsys, store, "--json")
    assert code == 1
    missing = [problem for problem in json.loads(out)["problems"] if problem["kind"] == "missing"]
    assert len(missing) == len(gone) > 4
    code, out, _ = left_with(capsys, store)
    assert code == 1
    assert f"and {len(gone) - 4} more" in " ".join(out.split())
    assert out.count("is missing") == 1
