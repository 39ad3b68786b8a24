"""Arrays of records: fields are columns, mapped, left out and refused one by one, against h5py and NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import unistore
from unistore import convert, export, verify
from unistore.errors import InputError

ROWS = 6
FIXED = [("a", "i4"), ("b", "f8", (2,)), ("s", "S5")]


def table(fields: list[Any]) -> np.ndarray:
    """Return records of a number, a pair and a text each; synthetic."""
    records = np.zeros(ROWS, fields)
    records["a"] = range(ROWS)
    records["b"] = np.arange(2 * ROWS).reshape(ROWS, 2)
    records["s"] = [f"n{number}" * (number % 3) for number in range(ROWS)]
    return records


def write(folder: Path, records: np.ndarray, form: str) -> str:
    """Write a file with these records, and return what it calls them."""
    folder.mkdir(exist_ok=True)
    if form == "npy":
        np.save(folder / "t.npy", records)
        return "data"
    if form == "npz":
        np.savez(folder / "t.npz", t=records)
        return "t"
    with h5py.File(folder / "t.h5", "w") as file:
        options = {"chunks": (4,), "compression": "gzip"} if form == "h5 chunked" else {}
        file.create_dataset("t", data=records, **options)
    return "t"


def samples(store: Path) -> list[Any]:
    return list(unistore.Dataset(store))


@pytest.mark.parametrize(
    ("form", "text"),
    [
        *[(form, text) for form in ("h5", "h5 chunked") for text in ("S5", "vlen")],
        *[(form, text) for form in ("npy", "npz") for text in ("S5", "U5")],
    ],
)
def test_texts_of_records_are_columns(tmp_path: Path, form: str, text: str) -> None:
    kind: Any = h5py.string_dtype() if text == "vlen" else text
    records = table([*FIXED[:2], ("s", kind)])
    name = write(tmp_path / "in", records, form)
    convert(tmp_path / "in", tmp_path / "out.zarr")
    for number, sample in enumerate(samples(tmp_path / "out.zarr")):
        assert int(sample[f"{name}/a"]) == number
        assert np.asarray(sample[f"{name}/b"]).tolist() == [2 * number, 2 * number + 1]
        assert sample[f"{name}/s"] == f"n{number}" * (number % 3)
    receipt = verify(tmp_path / "out.zarr", against=tmp_path / "in").receipt
    assert receipt is not None
    assert receipt.left_out == ()
    export(tmp_path / "out.zarr", tmp_path / "back")
    assert verify(tmp_path / "out.zarr", against=tmp_path / "back").ok


@pytest.mark.parametrize("form", ["h5", "npy", "npz"])
def test_fields_are_mapped_one_by_one(tmp_path: Path, form: str) -> None:
    name = write(tmp_path / "in", table(FIXED), form)
    convert(tmp_path / "in", tmp_path / "out.zarr", map={"number": f"{name}/a", "word": f"{name}/s"})
    first = samples(tmp_path / "out.zarr")[1]
    assert {"number", "word"} <= first.keys()
    assert f"{name}/b" not in first
    assert (int(first["number"]), first["word"]) == (1, "n1")
    receipt = verify(tmp_path / "out.zarr", against=tmp_path / "in").receipt
    assert receipt is not None
    assert receipt.left_out == (f"{name}/b",)
    export(tmp_path / "out.zarr", tmp_path / "back")
    (path,) = (tmp_path / "back").iterdir()
    if form == "npz":
        written: Any = np.load(path)["t"]
    elif form == "h5":
        with h5py.File(path) as file:
            written = file["t"][()]
    else:
        written = np.load(path)
    assert written.dtype.names == ("a", "s")
    np.testing.assert_array_equal(written["a"], range(ROWS))
    np.testing.assert_array_equal(written["s"], table(FIXED)["s"])


def test_whole_records_are_mapped_with_their_texts(tmp_path: Path) -> None:
    write(tmp_path / "in", table(FIXED), "h5")
    convert(tmp_path / "in", tmp_path / "out.zarr", map={"n": "t"})
    assert {"n/a", "n/b", "n/s"} <= samples(tmp_path / "out.zarr")[0].keys()
    export(tmp_path / "out.zarr", tmp_path / "back")
    assert verify(tmp_path / "out.zarr", against=tmp_path / "back").ok


UNSTORED = {
    "complex": "c8",
    "nested": [("x", "f4"), ("y", "f4")],
    "texts": ("S3", (2,)),
    "void": "V4",
}


@pytest.mark.parametrize("kind", UNSTORED)
@pytest.mark.parametrize("form", ["h5", "npy"])
def test_a_field_that_is_not_stored_is_refused_by_its_name(tmp_path: Path, kind: str, form: str) -> None:
    bad: Any = ("bad", *UNSTORED[kind]) if kind == "texts" else ("bad", UNSTORED[kind])
    name = write(tmp_path / "in", table([*FIXED, bad]), form)
    with pytest.raises(InputError) as caught:
        convert(tmp_path / "in", tmp_path / "out.zarr")
    (problem,) = caught.value.problems
    assert problem.dataset == f"{name}/bad"
    (fix,) = problem.fixes
    mapping = dict(word.split("=") for word in fix.arguments[1::2])
    assert set(mapping.values()) == {f"{name}/{field}" for field in "abs"}
    convert(tmp_path / "in", tmp_path / "out.zarr", map=mapping)
    sample = samples(tmp_path / "out.zarr")[1]
    assert (int(sample[f"{name}/a"]), sample[f"{name}/s"]) == (1, "n1")


def test_a_mapped_field_that_is_not_there_is_named(tmp_path: Path) -> None:
    write(tmp_path / "in", table(FIXED), "h5")
    with pytest.raises(InputError, match=r"t/z: there is no such array; the arrays are t/a, t/b, t/s"):
        convert(tmp_path / "in", tmp_path / "out.zarr", map={"z": "t/z"})


def test_records_of_texts_alone_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "in", table(FIXED)[["s"]], "h5")
    with pytest.raises(InputError, match="only texts"):
        convert(tmp_path / "in", tmp_path / "out.zarr")


# Pictures as byte strings.


def pictures(kind: str) -> list[bytes]:
    cv2 = pytest.importorskip("cv2")
    frames = []
    for number in range(ROWS):
        frame = np.random.default_rng(number).integers(0, 255, (8, 10 + number, 3)).astype("u1")
        frames.append(cv2.imencode(f".{kind}", frame)[1].tobytes())
    return frames


@pytest.mark.parametrize("kind", ["jpg", "png"])
@pytest.mark.parametrize("form", ["S", "vlen", "field"])
def test_pictures_are_bytes_and_no_texts(tmp_path: Path, kind: str, form: str) -> None:
    frames = pictures(kind)
    longest = max(map(len, frames))
    name = "t/f" if form == "field" else "f"
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["n"] = np.arange(ROWS)
        if form == "S":
            file["f"] = np.array(frames, f"S{longest}")
        elif form == "field":
            records = np.zeros(ROWS, [("f", f"S{longest}"), ("g", "i4")])
            records["f"] = frames
            file["t"] = records
        else:
            dataset = file.create_dataset("f", (ROWS,), h5py.vlen_dtype("u1"))
            for number, frame in enumerate(frames):
                dataset[number] = np.frombuffer(frame, "u1")
        file["words"] = np.array([b"a", b"", b"bc"] * 2, "S2")
    report = convert(tmp_path / "a.h5", tmp_path / "out.zarr")
    assert any(f"{name}: JPEG or PNG frames" in note for note in report.notes)
    for number, sample in enumerate(samples(tmp_path / "out.zarr")):
        assert np.asarray(sample[name]).tobytes() == frames[number]
        assert sample["words"] == ["a", "", "bc"][number % 3], "a text stays one"
    assert verify(tmp_path / "out.zarr", against=tmp_path / "a.h5").ok
    export(tmp_path / "out.zarr", tmp_path / "back")
    with h5py.File(tmp_path / "back/a.h5") as file:
        rows = file["t"]["f"] if form == "field" else file["f"][()]
        assert [np.asarray(row).tobytes().rstrip(b"\0") for row in rows] == frames
