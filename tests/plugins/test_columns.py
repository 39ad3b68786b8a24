"""Columns of every form in every table of a package's family, and tables of samples that are rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

import unistore
from unistore import plugin
from unistore.converters.registry import get_family
from unistore.errors import InputError

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("in_this_process")]
XS = {"a.h5": [1.0, -1.0, 2.0, 3.0, -4.0], "b.h5": [-1.0], "c.h5": [5.0, 6.0]}
KINDS = ("low", "high")


def labels(x: Sequence[float]) -> list[str]:
    return ["ß" * number for number in range(len(x))]


def marks(x: Sequence[float]) -> list[np.ndarray]:
    return [np.arange(number % 3, dtype="i4") for number in range(len(x))]


def write_frames(path: Path, x: Sequence[float]) -> None:
    with h5py.File(path, "w") as file:
        file["x"] = np.array(x)
        file.create_dataset("label", (len(x),), h5py.string_dtype())[...] = labels(x)
        file["mode"] = np.array([value > 2 for value in x], "i2")
        uneven = file.create_dataset("marks", (len(x),), h5py.vlen_dtype("i4"))
        for number, own in enumerate(marks(x)):
            uneven[number] = own
        file.attrs["site"] = f"site of {path.stem}"
        file.attrs["grade"] = KINDS[len(x) % 2]
        file.attrs["bounds"] = np.arange(len(x))


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("every")
    for name, x in XS.items():
        write_frames(folder / name, x)
    return folder


def expected_clips() -> list[dict[str, Any]]:
    clips = []
    for name, x in XS.items():
        for first in range(0, len(x), 2):
            own = np.array(x[first : first + 2])
            rows = range(first, first + len(own))
            peaks = [row for row in rows if x[row] > 0]
            clips.append(
                {
                    "x": own,
                    "label": [labels(x)[row] for row in rows],
                    "mode": own > 2,
                    "marks": np.concatenate([marks(x)[row] for row in rows]),
                    "marks_counts": [len(marks(x)[row]) for row in rows],
                    "title": f"clip {first}",
                    "kind": int(own[0] > 0),
                    "spans": own,
                    "peaks.at": peaks,
                    "peaks.word": ["é" * peak for peak in peaks],
                    "peaks.kind": [peak % 2 for peak in peaks],
                    "peaks.near": np.concatenate([[], *[x[max(0, peak - 1) : peak + 2] for peak in peaks]]),
                    "peaks.near_counts": [len(x[max(0, peak - 1) : peak + 2]) for peak in peaks],
                    "sources.site": f"site of {name[0]}",
                    "sources.grade": len(x) % 2,
                    "sources.bounds": np.arange(len(x)),
                }
            )
    return clips


def assert_clips(path: Path) -> None:
    expected = expected_clips()
    natural = set(unistore.Dataset(path)[0]) - {"index"}
    assert natural == {key for key in expected[0] if not key.startswith("sources.")}
    dataset = unistore.Dataset(path, fields=list(expected[0]))
    assert len(dataset) == len(expected)
    for number, clip in enumerate(expected):
        for key, values in clip.items():
            found = dataset[number][key]
            if isinstance(found, (str, list)):
                assert found == values, (number, key)
            else:
                np.testing.assert_array_equal(found.numpy(), values, f"{key} of {number}")
    (batch,) = unistore.Loader(dataset, batch_size=len(expected))
    assert batch["peaks.word"] == [word for clip in expected for word in clip["peaks.word"]]
    assert batch["spans_offsets"].diff().tolist() == [len(clip["spans"]) for clip in expected]


def test_columns_of_every_form_are_stored_grown_and_compacted(frames: Path, tmp_path: Path) -> None:
    store = tmp_path / "every.zarr"
    unistore.convert(frames, store, "every")
    assert_clips(store)
    arrays = zarr.open_group(store, mode="r")
    assert arrays["sources/site_utf8/data"][:].tobytes() == b"site of asite of bsite of c"
    assert arrays["sources/bounds_ragged/offsets"][:].tolist() == [0, 5, 6, 8]
    assert arrays["clips/kind"].attrs["classes"] == {"0": "low", "1": "high"}
    assert unistore.verify(store, against=frames).problems == ()
    assert "<img" in unistore.inspect(store).to_html()
    some = unistore.Dataset(store, where={"clip.title": "clip 2", "sources.site": "site of a"})
    assert [sample["title"] for sample in (some[0],)] == ["clip 2"]
    grown, whole = tmp_path / "grown.zarr", tmp_path / "whole.zarr"
    unistore.convert(frames / "a.h5", grown, "every")
    unistore.append([frames / "b.h5", frames / "c.h5"], grown)
    assert_clips(grown)
    unistore.compact(grown, whole)
    assert_clips(whole)
    for path in arrays_of(store):
        np.testing.assert_array_equal(unistore.Store(whole).array(path).read(), arrays[path][...], path)


def arrays_of(store: Path) -> list[str]:
    return unistore.Store(store).paths()


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"title_utf8": 5}, "returned the title_utf8 5 for sample 0, not a text"),
        ({"kind": "middle"}, "returned the kind 'middle' for sample 0"),
        ({"kind": 2}, "returned the kind 2 for sample 0, not one of low, high"),
        ({"spans_ragged": ["a"]}, r"returned the spans_ragged \['a'\] for sample 0, not a list"),
    ],
)
def test_a_value_of_a_sample_that_is_not_as_declared_is_an_error(
    numbers: dict[str, Any], message: str, frames: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = get_family("every")
    right = {"title_utf8": "", "kind": 1, "spans_ragged": []}
    cut = [plugin.Cut(1, right | numbers, {"peaks": 0})]
    monkeypatch.setattr(every, "cut", lambda *_: iter(cut))
    with pytest.raises(InputError, match=message):
        unistore.convert(frames / "b.h5", tmp_path / "b.zarr", "every")


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"site": 5}, "states site as 5, not as a text"),
        ({"site": None}, "does not state site"),
        ({"grade": "middle"}, "states grade as 'middle', not as one of low, high"),
        ({"bounds": [0.5]}, r"states bounds as \[0\.5\], not as a list of whole numbers"),
    ],
)
def test_a_value_of_a_source_that_is_not_as_declared_is_an_error(
    metadata: dict[str, Any], message: str, frames: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = get_family("every")
    right = {"site": "s", "grade": 1, "bounds": []}
    chosen = plugin.Chosen(every.schema.columns, metadata=right | metadata)
    monkeypatch.setattr(every, "choose", lambda *_: chosen)
    with pytest.raises(InputError, match=message):
        unistore.convert(frames / "b.h5", tmp_path / "b.zarr", "every")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"near_ragged": [np.array([0.1])]}, r"TypeError: array\(\[0\.1\]\) is not a row of float32"),
        ({"kind": ["middle"]}, "is 'middle', which is not one of the classes low, high"),
        ({"word_utf8": ["a", "b"]}, "that differ in length"),
        ({"kind": np.array([2], "u1")}, "kind: row 0 is 2, expected at most 1"),
    ],
)
def test_computed_rows_that_are_not_as_declared_are_an_error(
    rows: dict[str, Any], message: str, frames: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = get_family("every")
    right = {"at": np.array([0]), "word_utf8": ["a"], "kind": ["low"], "near_ragged": [np.ones(2)]}
    monkeypatch.setattr(every, "derive", lambda *_: iter([("peaks", right | rows)]))
    cut = plugin.Cut(1, {"title_utf8": "", "kind": 1, "spans_ragged": []}, {"peaks": 1})
    monkeypatch.setattr(every, "cut", lambda *_: iter([cut]))
    with pytest.raises(InputError, match=message):
        unistore.convert(frames / "b.h5", tmp_path / "b.zarr", "every")


def test_sources_whose_classes_differ_are_an_error(
    frames: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = get_family("every")
    choose = every.choose

    def turned(family: Any, head: plugin.FileSummary) -> plugin.Chosen:
        chosen = choose(family, head)
        mode = plugin.Column(classes=KINDS if head.file.name == "a.h5" else KINDS[::-1])
        return chosen._replace(columns={**chosen.columns, "mode": mode})

    monkeypatch.setattr(every, "choose", turned)
    with pytest.raises(InputError, match=r"b\.h5: its classes of mode differ"):
        unistore.convert(frames, tmp_path / "m.zarr", "every")


def test_samples_that_are_rows_have_the_rows_of_their_tables(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    counts = [[2, 0, 3], [0], [1, 1]]
    every: list[tuple[np.ndarray, np.ndarray, list[str]]] = []
    (tmp_path / "in").mkdir()
    for number, of_file in enumerate(counts):
        images = rng.integers(0, 255, (len(of_file), 3, 4)).astype("u1")
        xyxy = rng.normal(0, 1, (sum(of_file), 4)).astype("f4")
        names = [f"box {number}.{box}" for box in range(sum(of_file))]
        with h5py.File(tmp_path / "in" / f"{number}.h5", "w") as file:
            file["image"], file["count"], file["xyxy"] = images, np.array(of_file), xyxy
            file.create_dataset("name", (len(names),), h5py.string_dtype())[...] = names
        bounds = np.cumsum([0, *of_file])
        for row, image in enumerate(images):
            span = slice(bounds[row], bounds[row + 1])
            every.append((image, xyxy[span], names[span]))
    unistore.convert(tmp_path / "in", tmp_path / "boxes.zarr", "boxes")
    dataset = unistore.Dataset(tmp_path / "boxes.zarr")
    assert len(dataset) == len(every)
    for number, (image, xyxy, names) in enumerate(every):
        sample = dataset[number]
        assert np.array_equal(sample["image"].numpy(), image)
        assert np.array_equal(sample["boxes.xyxy"].numpy(), xyxy)
        assert sample["boxes.name"] == names
    (batch,) = unistore.Loader(dataset, batch_size=6, num_workers=1)
    assert batch["boxes_offsets"].diff().tolist() == [len(names) for _, _, names in every]
    assert unistore.verify(tmp_path / "boxes.zarr", against=tmp_path / "in").problems == ()
    val = unistore.Dataset(tmp_path / "boxes.zarr", unistore.Rows(), fields=["boxes.name"])
    assert val[2]["boxes.name"] == every[2][2]


@pytest.mark.parametrize("form", ["h5", "npz"])
def test_texts_are_read_from_any_file_of_a_group(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boxes = get_family("boxes")

    def group(_: Any, files: Sequence[plugin.SourceFile]) -> plugin.Grouping:
        return plugin.Grouping(sources=[plugin.Group("both", tuple(files))])

    monkeypatch.setattr(boxes, "formats", ("hdf5", "npz"))
    monkeypatch.setattr(boxes, "group", group)
    monkeypatch.setattr(boxes, "match", lambda *_: plugin.sure("holds boxes"))
    names, counts = ["cat", "é", "a long name"], np.array([2, 1])
    folder = tmp_path / "in"
    folder.mkdir()
    with h5py.File(folder / "a.h5", "w") as file:
        file["image"], file["count"] = np.zeros((2, 3, 4), "u1"), counts
    if form == "npz":
        np.savez(folder / "b.npz", xyxy=np.ones((3, 4), "f4"), name=np.array(names))
    else:
        with h5py.File(folder / "b.h5", "w") as file:
            file["xyxy"] = np.ones((3, 4), "f4")
            file.create_dataset("name", data=names, dtype=h5py.string_dtype())
    unistore.convert(folder, tmp_path / "b.zarr", "boxes")
    dataset = unistore.Dataset(tmp_path / "b.zarr")
    assert [dataset[number]["boxes.name"] for number in range(2)] == [names[:2], names[2:]]
    assert unistore.verify(tmp_path / "b.zarr", against=folder).problems == ()


def test_classes_and_texts_of_npz_files_are_stored_and_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boxes = get_family("boxes")
    columns = {"xyxy": plugin.Column(kinds="f", axes=None), "name": plugin.Column(classes=KINDS)}
    schema = plugin.Schema(table="boxes", columns=columns | {"note_utf8": plugin.Column(ragged=True)})
    monkeypatch.setattr(boxes, "schema", schema)
    monkeypatch.setattr(boxes, "formats", ("npz",))
    folder = tmp_path / "in"
    folder.mkdir()
    rows = {
        "xyxy": np.ones(3, "f4"),
        "name": np.array(["high", "low", "high"]),
        "note": np.array(["é", "", "b"]),
    }
    np.savez(folder / "a.npz", **rows)
    np.savez(folder / "b.npz", **rows | {"name": rows["name"].astype("S4")})
    unistore.convert(folder, tmp_path / "b.zarr", "boxes")
    store = unistore.Store(tmp_path / "b.zarr")
    assert store.array("boxes/name").read().tolist() == [1, 0, 1] * 2
    assert unistore.Dataset(store.path)[3]["note"] == "é"
    assert unistore.verify(store.path, against=folder).problems == ()
    unistore.export(store.path, tmp_path / "out")
    for name in ("a.npz", "b.npz"):
        one, other = np.load(folder / name), np.load(tmp_path / "out" / name)
        assert one.files == other.files or set(one.files) == set(other.files)
        for key in one.files:
            assert one[key].dtype == other[key].dtype
            assert one[key].tolist() == other[key].tolist()
