"""The EEG of the guide: texts, classes, ragged columns and tables of samples, compared with h5py and zarr."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

import unistore
from tests.plugins.conftest import EEG, EEG_PAGE
from tests.support.programs import printed
from unistore import plugin
from unistore.converters.families import preview_of_store
from unistore.converters.registry import get_family
from unistore.converters.views import ViewLimits
from unistore.errors import InputError
from unistore.testing import check_family

pytestmark = [pytest.mark.timeout(400), pytest.mark.usefixtures("in_this_process")]
STAGES = ("wake", "n1", "n2", "n3", "rem")
KINDS = ("arousal", "apnea", "artefact")
EEG_RATE, EMG_RATE, EPOCH = 4, 10, 30
NIGHTS = {"a.h5": (100, 7), "b.h5": (20, 0), "c.h5": (65, 1)}
"""Seconds and notes of each night."""


@dataclass
class Night:
    """What a file was made of."""

    eeg: np.ndarray
    emg: np.ndarray
    times: np.ndarray
    kinds: list[str]
    texts: list[str]
    channels: list[np.ndarray]
    stages: list[str]

    def epoch(self, number: int) -> dict[str, Any]:
        """What a sample is to be, by arithmetic on the times."""
        start, stop = number * EPOCH, (number + 1) * EPOCH
        notes = [note for note, time in enumerate(self.times) if start <= time < stop]
        return {
            "value": self.eeg[start * EEG_RATE : stop * EEG_RATE],
            "emg.value": self.emg[start * EMG_RATE : stop * EMG_RATE],
            "notes.time": self.times[notes],
            "notes.kind": np.array([KINDS.index(self.kinds[note]) for note in notes]),
            "notes.text": [self.texts[note] for note in notes],
            "notes.channels": np.concatenate([np.empty(0), *[self.channels[note] for note in notes]]),
            "notes.channels_counts": np.array([len(self.channels[note]) for note in notes]),
            "stages.stage": np.array([STAGES.index(self.stages[number])]),
            "start": np.array(start),
        }


def night(path: Path, seed: int, seconds: int, notes: int) -> Night:
    rng = np.random.default_rng(seed)
    made = Night(
        eeg=rng.normal(0, 20, (seconds * EEG_RATE, 3)).astype("f4"),
        emg=rng.normal(0, 5, seconds * EMG_RATE).astype("f4"),
        times=np.sort(rng.uniform(0, seconds, notes)),
        kinds=[KINDS[kind] for kind in rng.integers(0, 3, notes)],
        texts=["", "Lärm", "a\nb", "über 75 µV "][seed % 4 :] * notes,
        channels=[np.arange(count, dtype="u1") for count in rng.integers(0, 4, notes)],
        stages=[STAGES[stage] for stage in rng.integers(0, 5, -(-seconds // EPOCH))],
    )
    made.texts = made.texts[:notes]
    with h5py.File(path, "w") as file:
        file["eeg/value"], file["emg/value"], file["notes/time"] = made.eeg, made.emg, made.times
        file["eeg/rate"], file["emg/rate"] = EEG_RATE, EMG_RATE
        file.create_dataset("notes/kind", (notes,), "S8")[...] = np.array(made.kinds, "S8")
        file.create_dataset("notes/text", (notes,), h5py.string_dtype())[...] = made.texts
        channels = file.create_dataset("notes/channels", (notes,), h5py.vlen_dtype("u1"))
        for number, own in enumerate(made.channels):
            channels[number] = own
        file.create_dataset("stages", data=made.stages, dtype=h5py.string_dtype())
    return made


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Night]]:
    folder = tmp_path_factory.mktemp("eeg") / "nights"
    folder.mkdir()
    return folder, [night(folder / name, seed, *NIGHTS[name]) for seed, name in enumerate(NIGHTS)]


@pytest.fixture
def store(nights: tuple[Path, list[Night]]) -> Path:
    path = nights[0].parent / "nights.zarr"
    if not path.exists():
        unistore.convert(nights[0], path, "eeg")
    return path


def epochs(found: Sequence[Night]) -> Iterator[dict[str, Any]]:
    for one in found:
        yield from (one.epoch(number) for number in range(len(one.stages)))


def assert_samples(dataset: unistore.Dataset, expected: Sequence[Mapping[str, Any]]) -> None:
    assert len(dataset) == len(expected)
    for number, sample in enumerate(expected):
        found = dict(dataset[number])
        assert found.keys() == {"index", *sample}
        for key, values in sample.items():
            if isinstance(values, list):
                assert found[key] == values, (number, key)
            else:
                np.testing.assert_array_equal(found[key].numpy(), values, f"{key} of {number}")


def test_the_default_kind_delivers_every_table(store: Path, nights: tuple[Path, list[Night]]) -> None:
    dataset = unistore.Dataset(store)
    expected = list(epochs(nights[1]))
    assert_samples(dataset, expected)
    (batch,) = unistore.Loader(dataset, batch_size=len(expected), num_workers=1)
    for key in ("value", "emg.value", "notes.time", "notes.channels", "stages.stage"):
        np.testing.assert_array_equal(batch[key].numpy(), np.concatenate([one[key] for one in expected]))
    assert batch["notes.text"] == [text for one in expected for text in one["notes.text"]]
    for group, key in (("", "value"), ("emg_", "emg.value"), ("notes_", "notes.text")):
        assert batch[f"{group}offsets"].diff().tolist() == [len(one[key]) for one in expected]
    some = unistore.Dataset(store, fields=["notes.text", "source", "sources.rate"])
    assert (some[1]["source"], int(some[1]["sources.rate"])) == ("a.h5", EEG_RATE)
    assert set(some[1]) == {"index", "notes.text", "source", "sources.rate"}
    few = unistore.Dataset(store, unistore.Ragged(max_rows=5))[0]
    assert (len(few["value"]), few["notes.text"]) == (5, expected[0]["notes.text"])


def test_texts_classes_and_offsets_equal_what_zarr_reads(
    store: Path, nights: tuple[Path, list[Night]]
) -> None:
    arrays = zarr.open_group(store, mode="r")
    found = nights[1]
    texts = [text.encode() for one in found for text in one.texts]
    assert arrays["notes/text_utf8/data"][:].tobytes() == b"".join(texts)
    assert arrays["notes/text_utf8/offsets"][:].tolist() == np.cumsum([0, *map(len, texts)]).tolist()
    kinds = [KINDS.index(kind) for one in found for kind in one.kinds]
    assert arrays["notes/kind"][:].tolist() == kinds
    assert arrays["notes/kind"].attrs["classes"] == {"0": "arousal", "1": "apnea", "2": "artefact"}
    lengths = [len(one["notes.time"]) for one in epochs(found)]
    assert arrays["epochs/notes/offsets"][:].tolist() == np.cumsum([0, *lengths]).tolist()
    assert arrays["notes/time"].attrs["ragged"] == {"offsets": "epochs/notes/offsets"}
    rules = arrays.attrs["unistore"]["fields"]
    assert rules["notes/kind"]["rule"]["most"] == 2
    assert rules["epochs/notes/offsets"]["rule"]["offsets_of"] == "notes/time"


def test_verify_and_export_give_the_files_back(
    store: Path, nights: tuple[Path, list[Night]], tmp_path: Path
) -> None:
    folder, _ = nights
    verified = unistore.verify(store, against=folder)
    assert (verified.ok, verified.problems) == (True, ())
    unistore.export(store, tmp_path / "again")
    for name in NIGHTS:
        with h5py.File(folder / name) as one, h5py.File(tmp_path / "again" / name) as other:
            for path in ("eeg/value", "emg/value", "notes/time", "notes/kind", "notes/text", "stages"):
                assert one[path].dtype == other[path].dtype
                assert one[path][:].tolist() == other[path][:].tolist()
            own, written = one["notes/channels"], other["notes/channels"]
            assert list(map(list, own)) == list(map(list, written))
            assert other["emg/rate"][()] == EMG_RATE
    shutil.copytree(folder, tmp_path / "changed")
    file = tmp_path / "changed" / "a.h5"
    file.write_bytes(file.read_bytes().replace("Lärm".encode(), "Lürm".encode()))
    wrong = unistore.verify(store, against=tmp_path / "changed").problems
    assert "notes/text_utf8/data" in {problem.file for problem in wrong}


def test_a_store_that_grew_equals_one_conversion(
    store: Path, nights: tuple[Path, list[Night]], tmp_path: Path
) -> None:
    folder, found = nights
    grown = tmp_path / "grown.zarr"
    unistore.convert([folder / "a.h5"], grown, "eeg")
    unistore.append([folder / "b.h5", folder / "c.h5"], grown)
    assert_samples(unistore.Dataset(grown), list(epochs(found)))
    unistore.compact(grown, tmp_path / "whole.zarr")
    assert_samples(unistore.Dataset(tmp_path / "whole.zarr"), list(epochs(found)))
    assert unistore.verify(tmp_path / "whole.zarr").problems == ()
    one, other = unistore.Store(tmp_path / "whole.zarr"), unistore.Store(store)
    assert one.paths() == other.paths()
    for path in other.paths():
        np.testing.assert_array_equal(one.array(path).read(), other.array(path).read(), path)
        assert one.specs.of(path) == other.specs.of(path), path
    assert one.array("notes/kind").attributes == other.array("notes/kind").attributes


def test_texts_of_several_stores_are_whole(nights: tuple[Path, list[Night]], tmp_path: Path) -> None:
    folder, (first, _, last) = nights
    assert max(map(len, last.texts)) < max(map(len, first.texts)), "the first store has the narrower ones"
    for name in ("c", "a"):
        unistore.convert(folder / f"{name}.h5", tmp_path / f"{name}.zarr", "eeg")
    dataset = unistore.Dataset([tmp_path / "c.zarr", tmp_path / "a.zarr"])
    expected = list(epochs([last, first]))
    for cache in (None, "16MB"):
        loader = unistore.Loader(dataset, batch_size=len(expected), num_workers=1, cache=cache)
        for _ in range(2):
            (batch,) = loader
            assert batch["notes.text"] == [text for one in expected for text in one["notes.text"]]


def test_appending_other_classes_is_an_error_and_more_classes_are_not(
    nights: tuple[Path, list[Night]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    eeg = get_family("eeg")
    unistore.convert(nights[0] / "a.h5", tmp_path / "a.zarr", "eeg")
    tables = eeg.schema.tables
    for stages, is_refused in ((STAGES[::-1], True), ((*STAGES, "movement"), False)):
        stage = replace(tables["stages"]["stage"], classes=stages)
        schema = replace(eeg.schema, tables={**tables, "stages": {"stage": stage}})
        monkeypatch.setattr(eeg, "schema", schema)
        if is_refused:
            with pytest.raises(InputError, match=r"stages/stage: has other attributes .*compact"):
                unistore.append(nights[0] / "c.h5", tmp_path / "a.zarr")
        else:
            unistore.append(nights[0] / "c.h5", tmp_path / "a.zarr")
    assert len(unistore.Dataset(tmp_path / "a.zarr")) == len(nights[1][0].stages) + len(nights[1][2].stages)


def test_pages_and_statistics_show_the_values_of_epochs(
    store: Path, nights: tuple[Path, list[Night]]
) -> None:
    page = unistore.inspect(store).to_html()
    assert "<img" in page
    view = preview_of_store(unistore.Store(store)).view
    shown = view(unistore.Store(store), 0, ViewLimits(shown=1 << 20, read=1 << 20))
    by_name = {column["name"]: column for column in shown.head["columns"]}
    first = nights[1][0].epoch(0)
    assert by_name["notes.text"]["text"] == "; ".join(first["notes.text"])
    assert by_name["emg.value"]["shape"] == list(first["emg.value"].shape)
    joined = np.concatenate([one.emg for one in nights[1]]).astype("f8")
    statistics = unistore.Dataset(store).statistics("emg.value")
    assert statistics.mean == pytest.approx(joined.mean(), rel=1e-6)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            "notes/kind",
            b"yawn",
            r"a\.h5: notes/kind row 3: is 'yawn', which is not one of the classes arousal",
        ),
        ("stages", b"n4", r"a\.h5: stages row 0: is 'n4', which is not one of the classes wake"),
    ],
)
def test_a_class_that_is_not_declared_names_its_row(
    path: str, value: bytes, message: str, nights: tuple[Path, list[Night]], tmp_path: Path
) -> None:
    shutil.copy(nights[0] / "a.h5", tmp_path)
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        file[path][3 if path == "notes/kind" else 0] = value
    with pytest.raises(InputError, match=message):
        unistore.convert(tmp_path / "a.h5", tmp_path / "a.zarr", "eeg")
    assert not (tmp_path / "a.zarr").exists()


def test_verify_finds_numbers_beyond_the_classes(nights: tuple[Path, list[Night]], tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file, h5py.File(nights[0] / "a.h5") as own:
        for name in own:
            own.copy(name, file)
        del file["stages"]
        file["stages"] = np.array([0, 4, 2, 5], "i2")
    with pytest.raises(InputError, match=r"a\.h5: stage: row 3 is 5, expected at most 4"):
        unistore.convert(tmp_path / "a.h5", tmp_path / "a.zarr", "eeg")


def test_samples_must_have_all_rows_of_their_tables(
    nights: tuple[Path, list[Night]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    eeg = get_family("eeg")
    whole = eeg.cut

    def cut(family: Any, opened: plugin.OpenFile) -> Iterator[plugin.Cut]:
        for one in whole(family, opened):
            yield one._replace(tables={**one.tables, "notes": 0})

    monkeypatch.setattr(eeg, "cut", cut)
    with pytest.raises(InputError, match=r"a\.h5: notes: its samples have 0 rows together, but it has 7"):
        unistore.convert(nights[0] / "a.h5", tmp_path / "a.zarr", "eeg")
    monkeypatch.setattr(eeg, "cut", lambda *_: iter([plugin.Cut(400, {"start": 0.0}, {"emg": 1000})]))
    with pytest.raises(
        InputError, match=r"returned emg for sample 0, but Schema\.per has emg, notes, stages"
    ):
        unistore.convert(nights[0] / "a.h5", tmp_path / "a.zarr", "eeg")


def test_the_page_is_short_and_its_code_runs(
    store: Path, nights: tuple[Path, list[Night]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(EEG.splitlines()) <= 80
    modules = {node.module for node in ast.walk(ast.parse(EEG)) if isinstance(node, ast.ImportFrom)}
    assert {name for name in modules if name.startswith("unistore")} == {"unistore.plugin"}
    (use,) = re.findall(r"```python\n(import unistore\n.*?)```", EEG_PAGE, re.DOTALL)
    with chdir(store.parent):
        exec(compile(use, "eeg-as-a-package.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    first, second = list(epochs(nights[1]))[:2]
    assert lines[0] == f"torch.Size([{EPOCH * EEG_RATE}, 3]) [0.0, 30.0]"
    assert lines[1] == f"{first['notes.text']} {first['notes.kind'].tolist()}"
    assert json.loads(lines[2].replace("'", '"')) == [
        STAGES[int(one["stages.stage"][0])] for one in (first, second)
    ]


@pytest.mark.nightly
def test_the_family_keeps_every_promise(nights: tuple[Path, list[Night]], tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    code = re.findall(r"```python\n(.*?)```", EEG_PAGE, re.DOTALL)[-1]
    with chdir(nights[0].parent):
        exec(compile(code, "eeg-as-a-package.md", "exec"), names)
        names["test_eeg"](tmp_path)
    assert names["check_family"] is check_family
    shutil.copytree(nights[0], tmp_path / "use" / "nights")
    (commands,) = re.findall(r"```console\n(.*?)```", EEG_PAGE, re.DOTALL)
    for line in commands.splitlines():
        printed("-m", *line.removeprefix("$ ").split(), cwd=tmp_path / "use", env=dict(os.environ))
    assert "<img" in (tmp_path / "use" / "nights.html").read_text()
    assert sorted(path.name for path in (tmp_path / "use" / "again").iterdir()) == sorted(NIGHTS)
