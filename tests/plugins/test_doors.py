"""What packages return is checked where it enters, and named: nothing wrong of it is stored."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unistore
from unistore import plugin
from unistore.converters.checking import checked_family
from unistore.errors import InputError
from unistore.system.types import AnyArray

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("in_this_process")]
ROWS = np.arange(24, dtype="f4").reshape(8, 3)


def pack(path: Path, metadata: Mapping[str, Any] | None = None, **arrays: AnyArray) -> Path:
    from unistore_pack import Pack

    path.parent.mkdir(parents=True, exist_ok=True)
    Pack().write(path, {name: plugin.Array(values) for name, values in arrays.items()}, metadata or {})
    return path


@pytest.fixture
def packs(tmp_path: Path) -> Path:
    for number in range(2):
        pack(tmp_path / "in" / f"{number}.pack", {"rate": 5}, x=ROWS + number)
    return tmp_path / "in"


def kinds_and_text(sources: Path, family: str | None = None) -> tuple[set[str], str]:
    """Kinds of the problems of a conversion, and their text."""
    with pytest.raises(InputError) as caught:
        unistore.convert(sources, sources.parent / "o.zarr", family)
    assert not (sources.parent / "o.zarr").exists()
    return {problem.kind for problem in caught.value.problems}, str(caught.value)


# Exports


def track(path: Path, name: str, seed: int, *, text: bool) -> dict[str, AnyArray]:
    random = np.random.default_rng(seed)
    points = np.zeros(4 + seed, [("x", "<f4"), ("y", "<f8", (2,)), ("hit", "?")])
    points["x"] = random.random(4 + seed)
    points["y"] = random.random((4 + seed, 2))
    points["hit"] = random.random(4 + seed) < 0.5
    arrays: dict[str, AnyArray] = {name: points, "v": random.random(4 + seed)}
    if text:
        arrays["label"] = np.array([f"né {number}" for number in range(4 + seed)])
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return arrays


@pytest.mark.parametrize("text", [False, True])
def test_columns_of_one_record_are_exported_as_that_record(text: bool, tmp_path: Path) -> None:
    names = {"a.npz": "points", "b.npz": "POINTS", "c.npz": "points"}
    tracks = {
        file: track(tmp_path / "in" / file, name, seed, text=text)
        for seed, (file, name) in enumerate(names.items())
    }
    store = tmp_path / "o.zarr"
    unistore.convert(tmp_path / "in", store, "tracks")
    assert unistore.Store(store).array("sources/count").read().tolist() == [4, 5, 6]
    assert unistore.verify(store, against=tmp_path / "in").ok
    unistore.export(store, tmp_path / "out")
    for file, arrays in tracks.items():
        with np.load(tmp_path / "out" / file) as exported:
            assert set(exported.files) == set(arrays)
            for name, values in arrays.items():
                assert exported[name].dtype == values.dtype
                np.testing.assert_array_equal(exported[name], values)


def check_tracks(exported: Path, tracks: Mapping[str, Mapping[str, AnyArray]]) -> None:
    assert {file.name for file in exported.iterdir()} == {*tracks}
    for file, arrays in tracks.items():
        with np.load(exported / file) as written:
            assert set(written.files) == set(arrays)
            for name, values in arrays.items():
                assert written[name].dtype == values.dtype
                np.testing.assert_array_equal(written[name], values)


@pytest.mark.parametrize("names", [("points", "POINTS", "points"), ("POINTS", "points", "Points")])
def test_each_source_keeps_its_names_where_stores_are_made_one(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    """A store of one source, one of which a source is removed, and a grown one that removes a source."""
    tracks = {}
    for seed, name in enumerate((*names, *names[::-1])):
        file = f"{seed}.npz"
        tracks[file] = track(tmp_path / "in" / file, name, seed, text=True)
    folder = tmp_path / "in"
    unistore.convert([folder / "0.npz"], tmp_path / "one.zarr", "tracks")
    unistore.convert([folder / f"{number}.npz" for number in (1, 2)], tmp_path / "two.zarr", "tracks")
    unistore.convert([folder / "3.npz"], tmp_path / "three.zarr", "tracks")
    unistore.append([folder / "4.npz", folder / "5.npz"], tmp_path / "three.zarr")
    unistore.remove(tmp_path / "two.zarr", "1.npz")
    unistore.remove(tmp_path / "three.zarr", "4.npz")
    unistore.compact([tmp_path / f"{name}.zarr" for name in ("three", "two", "one")], tmp_path / "all.zarr")
    unistore.export(tmp_path / "all.zarr", tmp_path / "out")
    left = {file: arrays for file, arrays in tracks.items() if file not in ("1.npz", "4.npz")}
    check_tracks(tmp_path / "out", left)
    assert unistore.verify(tmp_path / "all.zarr").ok


def test_records_of_plain_arrays_are_exported_as_records(tmp_path: Path) -> None:
    records = np.zeros(5, [("y", "<i8"), ("x", "<f4")])
    records["x"], records["y"] = np.arange(5) / 2, np.arange(5)
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in/a.npy", records)
    unistore.convert(tmp_path / "in", tmp_path / "o.zarr", "rows")
    unistore.export(tmp_path / "o.zarr", tmp_path / "out")
    exported = np.load(tmp_path / "out/a.npy")
    assert exported.dtype == records.dtype
    np.testing.assert_array_equal(exported, records)


def _loses_an_array(self: Any, path: Path, arrays: Any, metadata: Any) -> None:
    pack(path, metadata, **{name: array[:] for name, array in list(arrays.items())[1:]})


def _changes_a_value(self: Any, path: Path, arrays: Any, metadata: Any) -> None:
    pack(
        path,
        metadata,
        **{name: array[:] + (np.arange(len(array)) == 7)[:, None] for name, array in arrays.items()},
    )


def _widens(self: Any, path: Path, arrays: Any, metadata: Any) -> None:
    pack(path, metadata, **{name: array[:].astype("f8") for name, array in arrays.items()})


def _forgets_metadata(self: Any, path: Path, arrays: Any, metadata: Any) -> None:
    pack(path, {}, **{name: array[:] for name, array in arrays.items()})


def _writes_nothing(self: Any, path: Path, arrays: Any, metadata: Any) -> None: ...


def _fails(self: Any, path: Path, arrays: Any, metadata: Any) -> None:
    raise ValueError("no")


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (_loses_an_array, "it has no arrays, not x"),
        (_changes_a_value, r"x: row 7: 21.0 and 22.0"),
        (_widens, r"x is float64 \(8, 3\), not float32 \(8, 3\)"),
        (_forgets_metadata, r"its metadata are {}, not {\"rate\": 5}"),
        (_writes_nothing, "did not write a file"),
        (_fails, "failed: ValueError: no"),
    ],
)
def test_a_file_that_a_format_writes_is_opened_again(
    write: Callable[..., None], message: str, packs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from unistore_pack import Pack

    unistore.convert(packs, tmp_path / "o.zarr", "rows")
    unistore.export(tmp_path / "o.zarr", tmp_path / "sound")
    assert {path.name: path.read_bytes() for path in (tmp_path / "sound").iterdir()} == {
        path.name: path.read_bytes() for path in packs.iterdir()
    }
    right = Pack.write
    monkeypatch.setattr(Pack, "write", lambda *args: write(*args) if "out" in str(args[1]) else right(*args))
    monkeypatch.setattr("tests.plugins.test_doors.pack", _packed(right))
    with pytest.raises(InputError, match=f"Pack.write .*{message}.*unistore_pack"):
        unistore.export(tmp_path / "o.zarr", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def _packed(write: Callable[..., None]) -> Callable[..., None]:
    from unistore_pack import Pack

    def packed(path: Path, metadata: Any, **arrays: AnyArray) -> None:
        write(Pack(), path, {name: plugin.Array(values) for name, values in arrays.items()}, metadata)

    return packed


# Formats


def _opening(change: Callable[[plugin.OpenFile], Any]) -> Any:
    from unistore_pack import Pack

    right = Pack.open

    @contextmanager
    def open_changed(self: Any, file: plugin.SourceFile) -> Iterator[Any]:
        with right(self, file) as opened:
            yield change(opened)

    return open_changed


class _Short:
    """Gives a row less than asked for."""

    shape, dtype = ROWS.shape, ROWS.dtype

    def __getitem__(self, rows: slice) -> AnyArray:
        return ROWS[rows.start : rows.stop - 1]


class _Failing(_Short):
    def __getitem__(self, rows: slice) -> AnyArray:
        raise ValueError("no such block")


OPENED: list[tuple[Callable[[plugin.OpenFile], Any], str]] = [
    (lambda opened: None, r"Pack\.open returned None, not an OpenFile"),
    (lambda opened: replace(opened, arrays={"x": ROWS}), r"Pack\.open returned .* values an Array"),
    (
        lambda opened: replace(opened, metadata={"a": {1, 2}}),
        r"Pack\.open returned the fact 'a': \{1, 2\}, which is not JSON",
    ),
    (lambda opened: replace(opened, metadata={"a": np.zeros(2)}), "which is not JSON"),
    (lambda opened: replace(opened, metadata={1: "a"}), "which is not JSON"),
    (lambda opened: replace(opened, metadata=[1]), "not a mapping"),
    (
        lambda opened: replace(opened, arrays={"x": plugin.Array(_Short())}),
        r"test_doors\._Short returned rows of",
    ),
    (lambda opened: replace(opened, arrays={"x": plugin.Array(_Failing())}), "no such block"),
]


@pytest.mark.parametrize(("change", "message"), OPENED)
def test_a_malformed_open_file_of_a_format_is_an_error_that_names_its_package(
    change: Callable[[plugin.OpenFile], Any], message: str, packs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from unistore_pack import Pack

    monkeypatch.setattr(Pack, "open", _opening(change))
    _, said = kinds_and_text(packs, "rows")
    assert re.search(message, said)
    assert "unistore_pack" in said


def test_numbers_of_numpy_in_metadata_are_stored_as_json(
    packs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from unistore_pack import Pack

    metadata = {
        "rate": np.int64(5),
        "gain": np.float32(0.5),
        "on": np.True_,
        "list": (np.uint8(1), 2),
        "in": {"a": np.int8(3)},
    }
    monkeypatch.setattr(Pack, "open", _opening(lambda opened: replace(opened, metadata=metadata)))
    unistore.convert(packs, tmp_path / "o.zarr", "rows")
    said = json.loads(unistore.Store(tmp_path / "o.zarr").text("sources/facts")[0])
    assert said == {"rate": 5, "gain": 0.5, "on": True, "list": [1, 2], "in": {"a": 3}}


def _raises_in(when: str, error: Exception) -> dict[str, Any]:
    from unistore_pack import Pack

    @contextmanager
    def opening(self: Any, file: plugin.SourceFile) -> Iterator[Any]:
        if when == "opening":
            raise error
        with right(self, file) as opened:
            yield opened
        if when == "closing":
            raise error

    def recognise(self: Any, file: plugin.SourceFile) -> Any:
        if when == "recognising":
            raise error
        return plugin.sure("is a pack")

    right = Pack.open
    return {"open": opening, "recognise": recognise}


@pytest.mark.parametrize("when", ["recognising", "opening", "closing"])
@pytest.mark.parametrize(
    "error", [ValueError("no"), KeyError("speed"), AttributeError("x"), ZeroDivisionError("0")]
)
@pytest.mark.parametrize("family", ["rows", None])
def test_whatever_a_format_raises_names_its_package(
    when: str,
    error: Exception,
    family: str | None,
    packs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from unistore_pack import Pack

    for name, method in _raises_in(when, error).items():
        monkeypatch.setattr(Pack, name, method)
    _, said = kinds_and_text(packs, family)
    assert "unistore_pack" in said
    # and sound files beside are converted
    np.save(packs / "a.npy", ROWS)
    unistore.convert(packs, tmp_path / "o.zarr", "rows", on_error="skip")
    assert len(unistore.Dataset(tmp_path / "o.zarr")) == 8


@pytest.mark.parametrize("claim", [None, True, "is a pack"])
def test_a_recognise_that_returns_no_claim_is_named(
    claim: Any, packs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from unistore_pack import Pack

    monkeypatch.setattr(Pack, "recognise", lambda *_: claim)
    kinds, said = kinds_and_text(packs, "rows")
    assert kinds == {"plugin"}
    assert f"Pack.recognise returned {claim!r}, not a value of the type Claim" in said


# Families


@pytest.mark.parametrize(
    ("method", "given", "message"),
    [
        ("match", None, "Tracks.match returned None, not a value of the type Claim"),
        ("choose", {"x": 1}, r"Tracks.choose returned \{'x': 1\}, not"),
        ("typical_rows", 1.5, "Tracks.typical_rows returned 1.5, not"),
        ("memory", None, "Tracks.memory returned None, not"),
        ("group", ["a.npz", 5], r"Tracks.group returned \['a.npz', 5\], not a value of the type Grouping"),
        ("group", plugin.Grouping(sources=[5]), "Tracks.group returned the source 5"),
        (
            "group",
            plugin.Grouping(left_out=["a"]),
            "Tracks.group leaves out 'a', which is not",
        ),
        ("group", plugin.Grouping(notes=[5]), "Tracks.group returned 5, which is not a note"),
        ("choose", plugin.Chosen({"v": plugin.Column()}, metadata={"count": {1}}), "which is not JSON"),
        (
            "choose",
            plugin.Chosen({"v": plugin.Column()}, metadata={"count": 1 << 70}),
            "states count as 1180591620717411303424",
        ),
        (
            "choose",
            plugin.Chosen({"v": plugin.Column()}, tables={"path": {}}),
            "a table 'path', whose name is already used",
        ),
        (
            "choose",
            plugin.Chosen({"v": plugin.Column(), "label": plugin.Column(ragged=True)}),
            "must end in",
        ),
        (
            "choose",
            plugin.Chosen({"label_utf8": plugin.Column(source="label", ragged=True)}),
            "only ragged columns",
        ),
    ],
)
def test_a_malformed_result_of_a_family_is_an_error_before_the_conversion(
    method: str, given: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from unistore_records import Tracks

    track(tmp_path / "in/a.npz", "points", 0, text=True)
    monkeypatch.setattr(Tracks, method, lambda *_: given)
    _, said = kinds_and_text(tmp_path / "in" / "a.npz" if method == "match" else tmp_path / "in", "tracks")
    assert re.search(message, said)


TEXT = plugin.Column(ragged=True)
NUMBER = plugin.Column()


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"tables": {"path": {"t": NUMBER}}}, "a table 'path', whose name is already used"),
        ({"tables": {"bytes": {"t": NUMBER}}}, "a table 'bytes'"),
        ({"tables": {"hash": {"t": NUMBER}}}, "a table 'hash'"),
        ({"tables": {"facts": {"t": NUMBER}}}, "a table 'facts'"),
        ({"table": "sources"}, "a table 'sources'"),
        ({"table": "path"}, "a table 'path'"),
        ({"per_source": {"points": NUMBER}}, "a number 'points'"),
        ({"per_source": {"bytes": NUMBER}}, "a number 'bytes'"),
        ({"tables": {"t": {"n": NUMBER}}, "per_source": {"t": NUMBER}}, "a number 't'"),
        ({"columns": {"x": NUMBER, "note": TEXT}}, "a ragged column 'note'"),
        ({"columns": {"note_utf8": TEXT}}, "only ragged columns"),
        ({"columns": {"x": NUMBER, "note_utf8": NUMBER}}, "that is not ragged"),
        ({"tables": {"t": {"note_utf8": TEXT}}}, "only ragged columns.* \\(in the table 't'\\)"),
        ({"per_source": {"note": TEXT}}, "a ragged column 'note'"),
        ({"columns": {"x": NUMBER, "note": NUMBER, "note_utf8": TEXT}}, "two columns of the name 'note'"),
        ({"columns": {"x": plugin.Column(classes=("a", "a"))}}, "classes of 'x'"),
        ({"per": {"t": "sample"}}, "rows of 't' per 'sample'; expected one of its tables"),
        (
            {"tables": {"t": {"n": NUMBER}}, "per": {"t": "sample"}},
            "no method 'cut', which its table 't' needs",
        ),
        ({"per_sample": {"n": NUMBER}}, "numbers per sample, but no table of samples"),
    ],
)
def test_a_schema_that_no_store_can_have_is_an_error(schema: dict[str, Any], message: str) -> None:
    from unistore_records import Tracks

    whole = replace(plugin.Schema(table="points", columns={"x": NUMBER}), **schema)
    kind = type("Wrong", (Tracks,), {"name": "wrong", "schema": whole})
    with pytest.raises(InputError, match=message):
        checked_family(kind)


@pytest.mark.parametrize(
    ("restored", "message"),
    [
        (None, "returned None, not arrays and metadata"),
        (({"x": ROWS}, {}), "values an Array"),
        (({"v": plugin.Array(ROWS)}, {"a": {1}}), "which is not JSON"),
    ],
)
def test_a_malformed_result_of_restore_is_an_error(
    restored: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from unistore_records import Tracks

    track(tmp_path / "in/a.npz", "points", 0, text=False)
    unistore.convert(tmp_path / "in", tmp_path / "o.zarr", "tracks")
    monkeypatch.setattr(Tracks, "restore", lambda *_: restored)
    with pytest.raises(InputError, match=f"Tracks.restore .*{message}"):
        unistore.export(tmp_path / "o.zarr", tmp_path / "out")


# Kinds of samples


def _packed_of(*ends: int, values: int = 4) -> plugin.Packed:
    return plugin.Packed(np.arange(values), np.array(ends))


@pytest.mark.parametrize(
    ("pcm", "start", "message"),
    [
        (np.zeros(3), np.zeros(2), "returned pcm of 3 samples, expected 2"),
        (np.zeros(()), np.zeros(2), "expected an array of numbers or texts with an axis of samples"),
        ([1, 2], np.zeros(2), "expected an array"),
        (np.array([None, None]), np.zeros(2), "expected an array"),
        (_packed_of(0, 2, 9), np.zeros(2), "offsets from 0 to 9 that do not divide 4 values"),
        (_packed_of(1, 2, 4), np.zeros(2), "offsets from 1 to 4"),
        (_packed_of(0, 6, 4), np.zeros(2), "offsets from 0 to 4 that do not divide"),
        (
            _packed_of(0, 4),
            np.zeros(2),
            r"with int64 offsets of shape \(2,\), expected int64",
        ),
        (plugin.Packed(np.arange(4), np.array([0.0, 2, 4])), np.zeros(2), "with float64 offsets"),
        (_packed_of(0, 2, 4), _packed_of(0, 1, 4), "returned start and pcm of one group"),
    ],
)
def test_a_malformed_batch_of_a_kind_is_an_error(
    pcm: Any, start: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from unistore_window import Window

    np.save(tmp_path / "a.npy", ROWS)
    unistore.convert(tmp_path / "a.npy", tmp_path / "o.zarr")
    monkeypatch.setattr(Window, "keys", lambda *_: ("pcm", "start"))
    monkeypatch.setattr(Window, "counts", lambda *_: None)
    empty = plugin.Packed(np.zeros(0), np.zeros(1, np.int64))

    def read(self: Any, store: Any, keys: Any, picks: Any) -> dict[str, Any]:
        return {"pcm": pcm, "start": start} if len(picks) else {"pcm": empty, "start": np.zeros(0)}

    monkeypatch.setattr(Window, "read", read)
    data = unistore.Dataset(tmp_path / "o.zarr", "Window")
    with pytest.raises(
        InputError,
        match=f"unistore_window.Window.read {message}|unistore_window.Window.read returned pcm .*{message}",
    ):
        data.__getitems__([0, 1])
    right = {"pcm": _packed_of(0, 1, 4), "start": _packed_of(0, 1, 4)}
    monkeypatch.setattr(
        Window, "read", lambda *args: right if len(args[3]) else {"pcm": empty, "start": empty}
    )
    np.testing.assert_array_equal(
        unistore.Dataset(tmp_path / "o.zarr", "Window").__getitems__([0, 1])[1]["pcm"], [1, 2, 3]
    )


@pytest.mark.parametrize("counts", [[1, 2], np.ones(8), np.full(8, -1), np.ones(3, int)])
def test_malformed_counts_of_a_kind_are_an_error(
    counts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from unistore_window import Window

    np.save(tmp_path / "a.npy", ROWS)
    unistore.convert(tmp_path / "a.npy", tmp_path / "o.zarr")
    monkeypatch.setattr(Window, "keys", lambda *_: ("pcm",))
    monkeypatch.setattr(Window, "counts", lambda *_: counts)
    with pytest.raises(InputError, match=r"Window.counts returned .* expected .* one for each row"):
        len(unistore.Dataset(tmp_path / "o.zarr", "Window"))
