"""Arrays and values of another form than a family declares are refused by name, never stored as they fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import unistore
from tests.support.store_files import attributes_of, forge
from unistore import plugin
from unistore.converters.adapter.values import stored_value, value_arrays
from unistore.converters.checking import checked_family
from unistore.converters.options import declared
from unistore.converters.registry import get_family
from unistore.errors import InputError

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("in_this_process")]
KINDS = ("low", "high")
X = np.arange(3.0)
TEXT = plugin.Column(ragged=True)
COLUMNS = {"x": plugin.Column(kinds="f"), "note_utf8": TEXT, "marks_ragged": plugin.Column(ragged=True)}
SOUND: Mapping[str, Any] = {
    "x": X,
    "note": ["a", "", "é"],
    "marks": [np.arange(n, dtype="i4") for n in (2, 0, 300)],
}


def write(path: Path, arrays: Mapping[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            if isinstance(values, np.ndarray):
                file[name] = values
                continue
            is_text = isinstance(values[0], (str, bytes))
            dtype = h5py.string_dtype() if is_text else h5py.vlen_dtype(values[0].dtype)
            dataset = file.create_dataset(name, (len(values),), dtype)
            for row, value in enumerate(values):
                dataset[row] = value
    return path


def family_of(
    monkeypatch: pytest.MonkeyPatch, columns: Mapping[str, plugin.Column], **schema: Any
) -> type[plugin.Family]:
    """The family ``boxes`` with another schema."""
    family = get_family("boxes")
    monkeypatch.setattr(family, "schema", plugin.Schema(table="rows", columns=columns, **schema))
    monkeypatch.setattr(family, "match", lambda *_: plugin.sure("holds rows"))
    return family


def test_columns_of_the_declared_forms_are_stored_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family_of(monkeypatch, COLUMNS)
    source = write(tmp_path / "in" / "a.h5", SOUND)
    unistore.convert(source, tmp_path / "o.zarr", "boxes")
    store = unistore.Store(tmp_path / "o.zarr")
    assert store.text("rows/note_utf8") == SOUND["note"]
    marks = store.array("rows/marks_ragged/data")
    assert marks.dtype == np.int32
    assert marks.read().tolist() == np.concatenate(SOUND["marks"]).tolist()
    assert unistore.verify(store.path, against=source).problems == ()


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("note", np.arange(3), r"a\.h5: note: has int64 rows of one length, but texts"),
        ("marks", np.zeros((3, 2)), r"marks: has float64 rows of one length, but rows of any length"),
        ("x", ["1", "2", "3"], r"x: contains objects or values of variable length"),
        ("note", SOUND["marks"], r"note: has int32 in its rows, but 'note_utf8' needs texts"),
        ("marks", SOUND["note"], r"marks: has text in its rows, but 'marks_ragged' needs numbers"),
    ],
)
def test_arrays_of_other_forms_are_refused(
    name: str, values: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family_of(monkeypatch, COLUMNS)
    source = write(tmp_path / "in" / "a.h5", {**SOUND, name: values})
    with pytest.raises(InputError, match=message):
        unistore.convert(source, tmp_path / "o.zarr", "boxes")
    assert not (tmp_path / "o.zarr").exists()


@pytest.mark.parametrize(("kinds", "is_sound"), [("f", False), ("i", True)])
def test_kinds_are_checked_for_ragged_columns_and_any_number_of_axes(
    kinds: str, is_sound: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = {
        "n": plugin.Column(kinds=kinds, axes=None),
        "marks_ragged": plugin.Column(kinds=kinds, ragged=True),
    }
    family_of(monkeypatch, columns)
    source = write(tmp_path / "in" / "a.h5", {"n": np.arange(3), "marks": SOUND["marks"]})
    if is_sound:
        unistore.convert(source, tmp_path / "o.zarr", "boxes")
        assert unistore.verify(tmp_path / "o.zarr", against=source).problems == ()
        return
    with pytest.raises(InputError, match="axis of float") as caught:
        unistore.convert(source, tmp_path / "o.zarr", "boxes")
    assert {problem.dataset for problem in caught.value.problems} == {"n", "marks"}


def test_pictures_are_kept_as_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    family_of(monkeypatch, {"x": COLUMNS["x"], "png_ragged": plugin.Column(kinds="S", ragged=True)})
    pictures = [b"\x89PNG\r\n\x1a\n1", b"", b"\x89PNG\r\n\x1a\n\xff"]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = X
        file.create_dataset("png", (3,), h5py.string_dtype("ascii"))[...] = pictures
    unistore.convert(tmp_path / "a.h5", tmp_path / "o.zarr", "boxes")
    stored = unistore.Store(tmp_path / "o.zarr").array("rows/png_ragged/data").read()
    assert stored.tobytes() == b"".join(pictures)


def records(names: list[str]) -> np.ndarray:
    rows = np.zeros(len(names), [("x", "f8"), ("kind", "U4")])
    rows["x"], rows["kind"] = np.arange(len(names)), names
    return rows


@pytest.mark.parametrize(
    ("names", "message"),
    [(["low", "high", "low"], ""), (["low", "odd", "low"], "is 'odd', which is not one of the cl")],
)
def test_classes_in_fields_of_records_are_stored_and_unknown_ones_an_error(
    names: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = {
        "x": plugin.Column(kinds="f", source="points", field="x"),
        "kind": plugin.Column(classes=KINDS, source="points", field="kind"),
    }
    monkeypatch.setattr(family_of(monkeypatch, columns), "formats", ("npz",))
    np.savez(tmp_path / "a.npz", points=records(names))
    if message:
        with pytest.raises(InputError, match=message):
            unistore.convert(tmp_path / "a.npz", tmp_path / "o.zarr", "boxes")
        return
    unistore.convert(tmp_path / "a.npz", tmp_path / "o.zarr", "boxes")
    assert unistore.Store(tmp_path / "o.zarr").array("rows/kind").read().tolist() == [0, 1, 0]
    assert unistore.verify(tmp_path / "o.zarr", against=tmp_path / "a.npz").problems == ()
    unistore.export(tmp_path / "o.zarr", tmp_path / "out")
    assert np.load(tmp_path / "out/a.npz")["points"].tolist() == records(names).tolist()


@pytest.mark.parametrize(
    ("codes", "message"), [([0, 1, 1], ""), ([0, 2, 1], "row 1: is 2"), ([0, 1, -1], "-1")]
)
def test_numbers_beyond_the_classes_are_an_error_of_convert_and_verify(
    codes: list[int], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = {"x": COLUMNS["x"], "kind": plugin.Column(classes=KINDS)}
    family = family_of(monkeypatch, {})
    monkeypatch.setattr(family, "choose", lambda *_: plugin.Chosen(columns))
    source = write(tmp_path / "a.h5", {"x": X, "kind": np.array(codes, "i2")})
    if message:
        with pytest.raises(InputError, match=f"kind.*{message}.*low, high have the numbers 0 to 1"):
            unistore.convert(source, tmp_path / "o.zarr", "boxes")
        return
    store = tmp_path / "o.zarr"
    unistore.convert(source, store, "boxes")
    assert unistore.Store(store).array("rows/kind").read().tolist() == codes
    assert attributes_of(store)["fields"]["rows/kind"]["rule"]["most"] == 1
    assert unistore.verify(store).problems == ()
    forge(store, {"rows/kind": np.array([0, 2, 1])})
    (problem,) = unistore.verify(store).problems
    assert str(problem).startswith("rows/kind: row 1 is 2, expected at most 1")


@pytest.mark.parametrize("first", ["a.h5", "b.h5"])
def test_classes_that_differ_between_sources_are_an_error(
    first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = family_of(monkeypatch, {})

    def choose(_: Any, head: plugin.FileSummary) -> plugin.Chosen:
        kind = plugin.Column(classes=KINDS if head.file.name == first else ())
        return plugin.Chosen({"x": COLUMNS["x"], "kind": kind})

    monkeypatch.setattr(family, "choose", choose)
    for name in ("a.h5", "b.h5"):
        write(tmp_path / "in" / name, {"x": X, "kind": np.zeros(3, "u1")})
    with pytest.raises(InputError, match=r"b\.h5: its classes of kind differ"):
        unistore.convert(tmp_path / "in", tmp_path / "o.zarr", "boxes")


@pytest.mark.parametrize(
    ("kinds", "values", "dtype", "wrong"),
    [
        ("u", [0, (1 << 64) - 1], "uint64", [-1, 1 << 64, 0.5]),
        ("b", [True, 0, 1.0], "bool", [2, -1, 0.5]),
        ("i", [-(1 << 63), True, 2.0], "int64", [1 << 63, 0.5, "1", float("nan")]),
        ("f", [1, 0.5, float("inf")], "float64", ["1", None]),
        ("biuf", [-1], "int64", [0.5]),
    ],
)
def test_numbers_have_a_dtype_of_their_kinds(
    kinds: str, values: list[Any], dtype: str, wrong: list[Any]
) -> None:
    column = plugin.Column(kinds=kinds)
    stored = [stored_value("n", column, value) for value in values]
    ((field, joined),) = value_arrays(
        "sources", "n", column, filter(None, []), np.zeros(0, np.int64), "source"
    )
    assert field.dtype == dtype == joined[:].dtype
    assert [one.tolist() for one in stored if one is not None] == [[value] for value in values]
    assert [stored_value("n", column, value) for value in wrong] == [None] * len(wrong)


@pytest.mark.parametrize("value", [1, 1.0, True, np.int8(1), np.float32(1), "high"])
def test_numbers_of_classes_may_be_any_numbers(value: Any) -> None:
    column = plugin.Column(classes=KINDS)
    stored = stored_value("kind", column, value)
    assert stored is not None
    assert stored.tolist() == [1]
    assert stored.dtype == np.uint8
    for wrong in (2, -1, 0.5, "1", None):
        assert stored_value("kind", column, wrong) is None


def test_numbers_of_sources_and_samples_keep_their_kinds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_each = {"count": plugin.Column(kinds="u"), "good": plugin.Column(kinds="b")}
    family = family_of(
        monkeypatch, {"x": COLUMNS["x"]}, samples="clips", per_sample=of_each, per_source=of_each
    )
    metadata = {"count": 1 << 63, "good": True}
    monkeypatch.setattr(family, "choose", lambda *_: plugin.Chosen({"x": COLUMNS["x"]}, metadata=metadata))
    monkeypatch.setattr(family, "cut", lambda *_: iter([plugin.Cut(3, {"count": 7, "good": False})]))
    unistore.convert(write(tmp_path / "a.h5", {"x": X}), tmp_path / "o.zarr", "boxes")
    store = unistore.Store(tmp_path / "o.zarr")
    for path, expected in {"sources/count": 1 << 63, "sources/good": True, "clips/count": 7}.items():
        assert store.array(path).read().tolist() == [expected]
    assert unistore.verify(store.path).problems == ()


def test_ragged_columns_have_units_and_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marks = plugin.Column(ragged=True, unit="mm", description="Depths of the marks", codec="none")
    spans = replace(marks, unit="s", description="Spans of the clip", kinds="f")
    family = family_of(
        monkeypatch, {"x": COLUMNS["x"], "marks_ragged": marks}, per_source={"spans_ragged": spans}
    )
    chosen = plugin.Chosen(family.schema.columns, metadata={"spans": [0.5]})
    monkeypatch.setattr(family, "choose", lambda *_: chosen)
    source = write(tmp_path / "a.h5", {"x": X, "marks": SOUND["marks"]})
    unistore.convert(source, tmp_path / "o.zarr", "boxes")
    fields = unistore.Store(tmp_path / "o.zarr").attributes["fields"]
    for path, column in {"rows/marks_ragged/data": marks, "sources/spans_ragged/data": spans}.items():
        assert (fields[path]["unit"], fields[path]["description"]) == (column.unit, column.description)


@pytest.mark.parametrize(
    ("mode", "fix"), [("union", "add a file that contains them"), ("intersection", "union")]
)
def test_a_declared_column_that_no_source_has_is_an_error(
    mode: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared_columns = {"x": COLUMNS["x"], "y": COLUMNS["x"]}
    family = family_of(monkeypatch, declared_columns)
    monkeypatch.setattr(family, "columns", mode, raising=False)

    def choose(_: Any, head: plugin.FileSummary) -> plugin.Chosen:
        return plugin.Chosen({name: declared_columns[name] for name in ("x", "y") if name in head.arrays})

    monkeypatch.setattr(family, "choose", choose)
    write(tmp_path / "in/a.h5", {"x": X})
    if mode == "intersection":
        write(tmp_path / "in/b.h5", {"x": X, "y": X})
    with pytest.raises(InputError, match=f"not all of them contain y.* in rows.*{fix}"):
        unistore.convert(tmp_path / "in", tmp_path / "o.zarr", "boxes")
    write(tmp_path / "in/b.h5", {"x": X, "y": X})
    monkeypatch.setattr(family, "columns", "union", raising=False)
    unistore.convert(tmp_path / "in", tmp_path / "o.zarr", "boxes")
    y = unistore.Store(tmp_path / "o.zarr").array("rows/y").read()
    assert np.isnan(y).tolist() == [True] * 3 + [False] * 3


@pytest.mark.parametrize("lacks", [True, False])
def test_a_table_without_rows_is_stored_and_a_missing_one_is_an_error(
    lacks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = {"notes": {"at": plugin.Column(kinds="f")}}
    family = family_of(monkeypatch, {"x": COLUMNS["x"]}, tables=tables, per={"notes": "sample"})
    monkeypatch.setattr(
        family, "choose", lambda *_: plugin.Chosen({"x": COLUMNS["x"]}, tables={} if lacks else tables)
    )
    monkeypatch.setattr(family, "cut", lambda *_: iter([plugin.Cut(1, tables={"notes": 0})] * 3))
    source = write(tmp_path / "a.h5", {"x": X, "at": np.zeros(0)})
    if lacks:
        with pytest.raises(InputError, match=r"not all of them contain at.* in notes\."):
            unistore.convert(source, tmp_path / "o.zarr", "boxes")
        return
    unistore.convert(source, tmp_path / "o.zarr", "boxes")
    assert unistore.Store(tmp_path / "o.zarr").array("rows/notes/offsets").read().tolist() == [0] * 4


@pytest.mark.parametrize("rows", [[4, -1], [1, 1], [1, 2]])
def test_samples_with_negative_or_too_few_rows_are_an_error(
    rows: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = family_of(monkeypatch, {"x": COLUMNS["x"]}, samples="clips")
    monkeypatch.setattr(family, "cut", lambda *_: iter(map(plugin.Cut, rows)))
    source = write(tmp_path / "a.h5", {"x": X})
    if rows == [1, 2]:
        unistore.convert(source, tmp_path / "o.zarr", "boxes")
        assert len(unistore.Dataset(tmp_path / "o.zarr")) == 2
        return
    message = "its sample 1 has -1 rows" if -1 in rows else "its samples have 2 rows together, but it has 3"
    with pytest.raises(InputError, match=message):
        unistore.convert(source, tmp_path / "o.zarr", "boxes")


NUMBER = plugin.Column()


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"samples": "clips", "per_sample": {"x": NUMBER}}, "samples with two keys 'x'"),
        ({"samples": "clips", "per_sample": {"note_utf8": TEXT}}, "samples with two keys 'note'"),
        ({"tables": {"note": {"n": NUMBER}}, "per": {"note": "sample"}}, "samples with two keys 'note'"),
        ({"tables": {"note_utf8": {"n": NUMBER}}, "per": {"note_utf8": "sample"}}, "two keys 'note'"),
        (
            {
                "samples": "clips",
                "per_sample": {"t": NUMBER},
                "tables": {"t": {"n": NUMBER}},
                "per": {"t": "sample"},
            },
            "samples with two keys 't'",
        ),
        ({"samples": "clips", "per_sample": {"source_utf8": TEXT}}, "a number 'source_utf8'"),
        ({"per_source": {"path_utf8": TEXT}}, "a number 'path_utf8'"),
        ({"samples": "clips", "per_sample": {"y": NUMBER}}, ""),
        ({"tables": {"t": {"x": NUMBER}}, "per": {"t": "sample"}}, ""),
        ({"tables": {"t": {"x": NUMBER}}}, ""),
    ],
)
def test_a_schema_with_two_equal_keys_is_an_error(schema: dict[str, Any], message: str) -> None:
    columns = {"x": NUMBER, "note_utf8": TEXT}
    whole = plugin.Schema(table="rows", columns=columns, **schema)
    kind = type("Odd", (get_family("boxes"),), {"name": "odd", "schema": whole})
    if message:
        with pytest.raises(InputError, match=message):
            checked_family(kind)
    else:
        assert checked_family(kind) is kind


def test_an_option_without_help_is_named() -> None:
    from dataclasses import make_dataclass

    def options(help: str) -> Any:
        entry = ("gain", float, plugin.option(1.0, help))
        return make_dataclass("Ping", [entry], bases=(plugin.Options,), frozen=True, kw_only=True)

    assert declared(options("Multiply by this."))[0].help == "Multiply by this."
    with pytest.raises(TypeError, match=r"Ping\.gain: an option needs help"):
        declared(options(""))
