"""The documents' own configuration files, verbatim, as Dataset and loader arguments, and hostile ones."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import unistore

RECIPES = Path(__file__).parents[2] / "examples" / "migrate"

FULL = """\
SEED: 123

DATA:
  ROOT: data/processed/gopro_spike_unified
  TRAIN_SPLIT: train
  VAL_SPLIT: test
  CROP_SIZE: 256
  CLIP_LEN: 5
  K: 32

  # voxels made on reading
  USE_PRECOMPUTED_VOXELS: false
  NUM_VOXEL_BINS: 5
  SPIKE_DIR: spike

  # cache in memory ✓
  USE_RAM_CACHE: true
  CACHE_SIZE_GB: 4.0

DATALOADER:
  TOTAL_WORKERS: "auto"          # 🎯
  TRAIN_PREFETCH_FACTOR: 4
  VAL_PREFETCH_FACTOR: 2
  PIN_MEMORY: true
  PERSISTENT_WORKERS: true

TRAIN:
  EPOCHS: 40
  BATCH_SIZE: 1
  VAL_BATCH_SIZE: 1
  GRADIENT_ACCUMULATION_STEPS: 6
  MAX_GRAD_NORM: 1.0
  OPTIM:
    LR: 0.0002
"""

CT = """\
"dataset": {
    "name": "CTWindowSparseSDF",
    "args": {
        "resolution": 512,
        "window_type": "lung",
        "min_points": 100,
        "max_points": 100000,
        "cache_data": true,          // 🆕 cache
        "precompute_sparse": true    // 🆕 "indices"
    }
}
"""


@pytest.fixture(scope="module")
def load() -> Callable[..., Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(RECIPES)
        return importlib.import_module("training_config").load


@pytest.fixture
def read(load, tmp_path: Path):
    def read(text: str, name: str = "config.yaml", **options) -> Any:
        (tmp_path / name).write_bytes(text.encode("utf-8", "surrogatepass"))
        return load(tmp_path / name, **{"cores": 40, "ranks": 1, **options})

    return read


def problems_of(read, text: str, name: str = "config.yaml", **options) -> str:
    with pytest.raises(unistore.InputError) as caught:
        read(text, name, **options)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_the_complete_spike_document_becomes_dataset_and_loader_arguments(read) -> None:
    config = read(FULL, ranks=3)
    assert config.train.dataset == {
        "path": "data/processed/gopro_spike_unified",
        "samples": unistore.Clips(length=5, crop=256, voxel_bins=5, random=True),
        "names": {"voxel": "spike_vox"},
        "split": "train",
        "seed": 123,
    }
    assert config.validation is not None
    assert config.validation.dataset["samples"] == unistore.Clips(
        length=5, crop=256, voxel_bins=5, random=False
    )
    assert config.validation.dataset["split"] == "test"
    assert config.train.dataloader == {
        "batch_size": 1,
        "shuffle": True,
        "pin_memory": True,
        "num_workers": 10,
        "prefetch_factor": 4,
        "persistent_workers": True,
    }
    assert config.train.loader == {
        "batch_size": 1,
        "shuffle": True,
        "pin_memory": True,
        "seed": 123,
        "num_workers": 10,
        "prefetch_factor": 4,
        "cache": 4 << 30,
    }
    assert config.validation.dataloader["prefetch_factor"] == 2
    assert config.validation.loader["shuffle"] is False
    assert config.validation.loader["num_workers"] == 2
    assert config.conversion == {"spike_dir": "spike", "voxel_dir": "none"}
    assert config.unused == [
        "DATA.K",
        "TRAIN.EPOCHS",
        "TRAIN.GRADIENT_ACCUMULATION_STEPS",
        "TRAIN.MAX_GRAD_NORM",
        "TRAIN.OPTIM.LR",
    ]


@pytest.mark.parametrize(
    ("total", "workers", "prefetch"),
    [('"cpu*0.9"   # 90 %', 36, 6), ('"auto"', 32, 4), ("24", 24, 2), ('"24"', 24, 2)],
)
def test_total_workers_and_prefetch_are_computed_from_the_spike_document(
    read, total: str, workers: int, prefetch: int
) -> None:
    config = read(f"DATALOADER:\n  TOTAL_WORKERS: {total}\n  TRAIN_PREFETCH_FACTOR: {prefetch}\n")
    assert config.train.dataloader["num_workers"] == workers
    assert config.train.dataloader["prefetch_factor"] == prefetch
    assert config.train.dataset == {"seed": 0}
    assert config.validation is None


def test_precomputed_voxels_name_the_column_and_the_voxel_dir(read) -> None:
    config = read(
        "DATA:\n  USE_PRECOMPUTED_VOXELS: true\n  VOXEL_CACHE_DIRNAME: spike_vox\n", store="gopro.zarr"
    )
    assert config.train.dataset == {
        "path": "gopro.zarr",
        "samples": unistore.Clips(),
        "names": {"voxel": "spike_vox"},
        "seed": 0,
    }
    assert config.conversion == {"voxel_dir": "spike_vox"}
    assert config.unused == []


@pytest.mark.parametrize("text", [CT, f"{{{CT}}}", f"/* stage 1 */ {CT.replace('100000', '500000')}"])
def test_the_ct_document_becomes_dataset_and_loader_arguments(read, text: str) -> None:
    config = read(text, "ct_vqvae_stage1.json", store="ct.zarr", samples=20)
    most = 500_000 if "500000" in text else 100_000
    assert config.train.dataset == {
        "path": "ct.zarr",
        "samples": unistore.SparsePoints(window="lung", min_points=100, max_points=most),
        "seed": 0,
    }
    assert config.train.loader["cache"] == "all"
    assert config.train.loader["num_workers"] == 2
    assert config.conversion == {"window": ("lung",), "resolution": 512}
    assert config.unused == ["dataset.args.precompute_sparse"]


@pytest.mark.parametrize(("samples", "workers"), [(49, 2), (50, 4), (200, 4), (201, 8)])
def test_workers_follow_from_the_size_of_a_ct_set(read, samples: int, workers: int) -> None:
    config = read(CT, "c.json", samples=samples)
    assert config.train.loader["num_workers"] == workers


@pytest.mark.parametrize(
    ("train", "validation", "workers"),
    [
        ('"auto"', '"auto"', (10, 2)),
        ('"cpu*0.9"', "2", (12, 2)),
        ('"6"', '"cpu*0.3"', (6, 4)),
        ("10", '"0"', (10, 0)),
    ],
)
def test_workers_in_words_are_divided_among_training_and_validation(
    read, train: str, validation: str, workers: tuple[int, int]
) -> None:
    text = f"DATALOADER:\n  TOTAL_WORKERS: 32\n  TRAIN_WORKERS: {train}\n  VAL_WORKERS: {validation}\n"
    if "0.9" in train:
        text = text.replace("TOTAL_WORKERS: 32", "TOTAL_WORKERS: auto")
    config = read(text, ranks=3)
    assert config.validation is not None
    assert (config.train.loader["num_workers"], config.validation.loader["num_workers"]) == workers


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("DATALOADER: {TOTAL_WORKERS: 4, TRAIN_WORKERS: 6}", "TOTAL_WORKERS: is 4, less than 1 × 6 training"),
        (
            "DATALOADER: {VAL_WORKERS: few}",
            "DATALOADER.VAL_WORKERS: is 'few', expected 'auto', 'cpu*0.9' or a number",
        ),
        ("DATALOADER: {TRAIN_WORKERS: 5000}", "TRAIN_WORKERS: is 5000, expected 'auto', 'cpu*0.9'"),
        (
            "DATALOADER: {NUM_WORKERS: 8, TOTAL_WORKERS: auto}",
            "NUM_WORKERS: is given together with newer keys",
        ),
        ("DATALOADER: {TRAIN_WORKERS: 0, PERSISTENT_WORKERS: true}", "no training workers to persist"),
        ("DATA: {TRAIN_SPLIT: train, VAL_SPLIT: train}", "VAL_SPLIT: is the same as DATA.TRAIN_SPLIT"),
        ("SEED: 1\nDATA: {ROOT: a}\nSEED: 2", "SEED: is given twice with different values"),
        ("DATA: {ROOT: a}\nTRAIN: 5", "TRAIN: is a value, expected keys and values"),
        ("DATA: {CLIP_LEN: five}", "DATA.CLIP_LEN: is 'five', expected an integer"),
        ("DATA: {CLIP_LEN: 0}", "DATA.CLIP_LEN: is 0, expected 1 to 2147483647"),
        ("DATA: {ROOT: 2026-01-01}", "DATA.ROOT: is datetime.date(2026, 1, 1), expected text"),
        ("DATA: {CACHE_SIZE_GB: .inf, USE_RAM_CACHE: true}", "CACHE_SIZE_GB: is inf, expected"),
        ("DATALOADER: {PIN_MEMORY: 1}", "PIN_MEMORY: is 1, expected true or false"),
        ("DATALOADER: {TOTAL_WORKERS: many}", "is 'many', expected 'auto', 'cpu*0.9' or a number"),
    ],
)
def test_an_invalid_value_is_one_line_that_names_the_key(read, text: str, said: str) -> None:
    lines = problems_of(read, text).splitlines()
    assert len(lines) == 1
    assert "config.yaml" in lines[0]
    assert said in lines[0]


BOMB = "a: &a [x, x]\n" + "".join(
    f"{b}: &{b} [*{a}, *{a}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{b}: &{b} {{<<: [*{a}, *{a}]}}\n" for a, b in zip("abcd", "bcde", strict=True)
)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("c.yaml", "- 1\n- 2", "holds list, expected keys and values"),
        ("c.yaml", "", "holds NoneType, expected keys and values"),
        ("c.yaml", "DATA: [", "while parsing a flow node"),
        ("c.yaml", "DATA: !!python/object/apply:os.system ['true']", "could not determine a constructor"),
        ("c.yaml", BOMB, "an alias repeats a list or a mapping: write it out"),
        ("c.yaml", MERGES, "an alias repeats a list or a mapping: write it out"),
        ("c.yaml", "DATA: &d {ROOT: *d}", "an alias repeats a list or a mapping: write it out"),
        ("c.yaml", "DATA: {<<: {ROOT: a}}", "could not determine a constructor for the tag"),
        ("c.yaml", "SEED: 1\n---\nSEED: 2", "expected a single document"),
        ("c.yaml", "SEED: 2026-99-99", "month must be in 1..12"),
        ("c.yaml", "SEED: !!int ''", "index out of range"),
        ("c.yaml", f"SEED: {'9' * 5000}", "limit (4300 digits)"),
        ("c.yaml", f"SEED: [0x{'f' * 5000}]", "limit (4300"),
        ("c.yaml", "[" * 5000, "recursion"),
        ("c.yaml", "#" * 65_537, "more than 65,536 bytes"),
        ("c.yaml", "DATA: \x00", "special characters are not allowed"),
        ("c.json", '{"dataset": ', "Expecting value"),
        ("c.json", '{"a":' + "[" * 60_000, "recursion"),
        ("c.json", f'{{"a": {"9" * 5000}}}', "limit (4300 digits)"),
        ("c.json", '{"a": 1} /* the end', "Extra data"),
    ],
)
def test_a_hostile_text_is_a_short_error_within_seconds(read, name: str, text: str, said: str) -> None:
    began = time.process_time()
    (line,) = problems_of(read, text, name).splitlines()
    assert time.process_time() - began < 5
    assert f"{name}: cannot be read as a configuration: " in line
    assert said in line
    assert len(line) < 500


def refusal(load, path: Path) -> str:
    with pytest.raises(unistore.InputError) as caught:
        load(path)
    return str(caught.value)


def test_a_path_that_is_not_a_readable_regular_file_is_an_error(load, tmp_path: Path) -> None:
    said = refusal(load, tmp_path / "none.yaml")
    assert "none.yaml: cannot be read as a configuration: [Errno 2] No such file" in said
    for path in (tmp_path, Path("/dev/zero"), Path("/dev/tty")):
        assert refusal(load, path).endswith("it is no regular file")
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "link.json").symlink_to("pipe.yaml")
    for name in ("pipe.yaml", "link.json"):
        assert refusal(load, tmp_path / name).endswith("it is no regular file")
    (tmp_path / "latin.yaml").write_bytes("ROOT: é".encode("latin-1"))
    assert "can't decode byte 0xe9" in refusal(load, tmp_path / "latin.yaml")


def test_the_resulting_settings_are_printed_once_and_without_secrets(
    read, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = read(CT, "c.json", store="s3://me:secret@here/printed.zarr", samples=20)
    workers, training, *others = capsys.readouterr().err.splitlines()
    assert workers.endswith("2 because there are only 20 samples, at most 8: 2 train")
    assert "'num_workers': 2, 'prefetch_factor': 4, 'cache': 'all'}" in training
    assert others[-1] == "not used here: ['dataset.args.precompute_sparse']"
    assert "secret" not in "".join((workers, training, *others))
    assert config.train.dataset["path"] == "s3://me:secret@here/printed.zarr"
    monkeypatch.setenv("RANK", "1")
    read(CT, "c.json", samples=20)
    assert capsys.readouterr().err == ""
