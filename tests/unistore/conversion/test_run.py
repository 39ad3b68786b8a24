"""A conversion, read back by independent readers; what is written beside the values, refused or warned of."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorstore
import xxhash
import zarr
from numpy.typing import NDArray

import unistore
from tests.support.store_files import attributes_of
from unistore.conversion.convert import make_converter
from unistore.conversion.report import Report
from unistore.conversion.run import run
from unistore.converters.adapter.converter import Converter
from unistore.converters.rows import RowsFamily
from unistore.errors import ConversionError
from unistore.schemas.array_specs import SAMPLES, ArraySpec
from unistore.schemas.declared_rules import ArraySpecs

Arrays = dict[str, NDArray[Any]]
Truth = Callable[[Path], Arrays]

# zarr-python remarks on the manifest beside the arrays when it lists a group
pytestmark = pytest.mark.filterwarnings("ignore:Object at unistore-manifest.jsonl")


def stored(store: Path) -> dict[str, zarr.Array]:
    """Every array of a store by path, found by zarr-python."""
    group = zarr.open_group(store, mode="r")
    return {path: node for path, node in group.members(max_depth=None) if isinstance(node, zarr.Array)}


def manifest(store: Path) -> list[dict[str, Any]]:
    lines = (store / "unistore-manifest.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@dataclass
class Converted:
    """Toys, their store, which no test changes, what it must hold and what zarr-python finds."""

    toys: Path
    store: Path
    report: Report
    truth: Arrays
    arrays: dict[str, zarr.Array]


@pytest.fixture(scope="module")
def converted(
    tmp_path_factory: pytest.TempPathFactory, toy: Any, make_toys: Callable[[Path], Path], truth: Truth
) -> Converted:
    folder = tmp_path_factory.mktemp("converted")
    toys, store = make_toys(folder / "sources"), folder / "out.zarr"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unistore.conversion.plan.SHARD", 16 << 10)  # as in every test
        report = run(toy(), [toys], store)
    return Converted(toys, store, report, truth(toys), stored(store))


def test_every_array_equals_the_truth(converted: Converted) -> None:
    assert set(converted.arrays) == {*converted.truth, "sources/hash"}
    for path, values in converted.truth.items():
        read = converted.arrays[path][...]
        assert read.dtype == values.dtype, path
        np.testing.assert_array_equal(read, values, err_msg=path)
        place = {"driver": "file", "path": f"{converted.store / path}/"}
        other = tensorstore.open({"driver": "zarr3", "kvstore": place}, open=True).result()
        np.testing.assert_array_equal(other.read().result(), values, err_msg=path)
    assert converted.report.samples == len(converted.truth["rows/value"])
    assert converted.report.tasks > 5, "the toy must fill several shards to be a test of anything"


def test_root_attributes_record_format_family_options_and_fields(converted: Converted) -> None:
    attributes = attributes_of(converted.store)
    rows = len(converted.truth["rows/value"])
    assert attributes["format_version"] == 1
    assert attributes["family"] == "rows"
    assert attributes["samples"] == {"count": rows, "table": "rows"}
    assert set(attributes["options"].pop("found")["codecs"]) == {
        path for path in attributes["fields"] if path.startswith(("rows/", "points/", "windows/low/"))
    } - {"points/offsets", "windows/low/offsets"}
    assert attributes["options"] == {
        "tables": ["rows", "points", "windows/low"],
        "brightness": 0,
        "exclude": [],
        "codec": "auto",
        "split": None,
    }
    assert set(attributes["fields"]) == {*converted.truth, "sources/hash"}
    assert attributes["fields"]["rows/value"]["axes"] == ["row", "component"]
    assert attributes["fields"]["rows/value"]["unit"] == "m"
    assert set(attributes["created_with"]) == {"unistore", "numcodecs"}
    group = zarr.open_group(converted.store, mode="r")
    assert dict(group["windows/low"].attrs) == {"level": -1}
    assert dict(group["splits"].attrs) == {"names": ["train", "val"]}


def test_the_manifest_holds_rows_and_content_of_every_shard(converted: Converted) -> None:
    shards = [line for line in manifest(converted.store) if "/c/" in line["key"]]
    assert shards
    for line in shards:
        lo, hi = line["rows"]
        values = converted.arrays[line["key"].split("/c/")[0]][lo:hi]
        plain = np.ascontiguousarray(values, values.dtype.newbyteorder("<")).tobytes()
        assert line["content"] == xxhash.xxh3_128_hexdigest(plain), line["key"]


def test_the_seal_agrees_with_the_manifest(converted: Converted) -> None:
    store, report = converted.store, converted.report
    seal = attributes_of(store)["seal"]
    lines = manifest(store)
    assert seal["digest"] == report.digest
    assert seal["digest"] == xxhash.xxh3_128_hexdigest((store / seal["manifest"]).read_bytes())
    assert seal["files"] == len(lines) == report.files - 2
    assert seal["bytes"] == sum(line["bytes"] for line in lines) == report.stored_bytes
    content = "".join(
        f"{line['key']} {tuple(line['rows'])} {line['content']}\n" for line in lines if "content" in line
    )
    assert seal["content_digest"] == xxhash.xxh3_128_hexdigest(content.encode())


def test_source_digests_tell_sources_apart(
    tmp_path: Path, converted: Converted, toys: Path, toy: Any
) -> None:
    """A changed value changes the digest of its own source and of no other."""
    path = toys / "train/s0.npz"
    arrays = dict(np.load(path))
    arrays["value"][5, 1] += 1
    np.savez(path, **arrays)
    run(toy(), [toys], tmp_path / "b")
    before = converted.arrays["sources/hash"][...]
    after = stored(tmp_path / "b")["sources/hash"][...]
    assert (before != after).any(axis=1).tolist() == [True, False, False, False]
    assert before.shape == (4, 16)


def test_statistics_are_those_of_numpy(converted: Converted) -> None:
    statistics = attributes_of(converted.store)["statistics"]
    values = converted.truth["rows/value"]
    assert list(statistics) == ["rows/value"]
    found = statistics["rows/value"]
    assert found["count"] == [len(values)] * 3
    np.testing.assert_allclose(found["mean"], values.mean(axis=0), rtol=1e-13)
    np.testing.assert_allclose(found["std"], values.std(axis=0), rtol=1e-13)
    np.testing.assert_array_equal(found["min"], values.min(axis=0))
    np.testing.assert_array_equal(found["max"], values.max(axis=0))
    assert (found["ddof"], found["accumulator"]) == (0, "float64")


def test_sources_without_rows_give_arrays_without_shards(tmp_path: Path, toy: Any) -> None:
    """No row anywhere: every array is there, with no shard."""
    folder = tmp_path / "sources/train"
    folder.mkdir(parents=True)
    np.savez(
        folder / "none.npz", value=np.zeros((0, 3)), image=np.zeros((0, 4, 4), np.uint8), label=np.zeros(0)
    )
    run(toy(), [folder], tmp_path / "out.zarr")
    found = stored(tmp_path / "out.zarr")
    assert found["rows/value"].shape == (0, 3)
    assert found["points/xyz"].shape == (0, 3)
    np.testing.assert_array_equal(found["points/offsets"][...], [0, 0])
    assert attributes_of(tmp_path / "out.zarr")["statistics"] == {}


def test_rows_without_extent_are_kept(tmp_path: Path, toy: Any) -> None:
    """Images of zero width (robot recordings hold such columns) have a shape and no shard."""
    folder = tmp_path / "sources"
    folder.mkdir()
    np.savez(
        folder / "flat.npz",
        value=np.ones((9, 3)),
        image=np.zeros((9, 4, 0), np.uint8),
        label=np.zeros(9, int),
    )

    class Flat(toy):  # type: ignore[misc]
        def _rows(self, height: int, width: int) -> Any:
            return super()._rows(height, 0)

    run(Flat(), [folder], tmp_path / "out.zarr")
    image = stored(tmp_path / "out.zarr")["rows/image"]
    assert image.shape == (9, 4, 0)
    assert image[...].shape == (9, 4, 0)


def test_a_store_that_its_schema_refuses_is_never_written(
    tmp_path: Path, toys: Path, toy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = ArraySpecs(arrays={"rows/value": ArraySpec(rows=(SAMPLES, 0))})
    monkeypatch.setattr(RowsFamily, "specs", lambda: declared)

    class Miscounting(toy):  # type: ignore[misc]
        def finalize(self, scan: Any, metadata: Any) -> Any:
            finalized = super().finalize(scan, metadata)
            object.__setattr__(finalized, "samples", 7)
            object.__setattr__(finalized, "sample_source", np.zeros(7, np.int64))
            return finalized

    with pytest.raises(ConversionError, match=r"expected 7, the number of samples") as caught:
        run(Miscounting(undeclared=False), [toys], tmp_path / "out.zarr")
    assert "report" in str(caught.value)
    assert not (tmp_path / "out.zarr").exists()
    assert not list(tmp_path.rglob("zarr.json"))


@pytest.fixture
def array(tmp_path: Path) -> Path:
    np.save(tmp_path / "a.npy", np.arange(20).reshape(10, 2))
    return tmp_path / "a.npy"


def test_invalid_options_are_reported_together_and_leave_nothing_behind(array: Path) -> None:
    with pytest.raises(unistore.InputError) as refused:
        unistore.convert(array, array.with_name("out.zarr"), "rows", codec="lz", workers=-1)
    assert [problem.location for problem in refused.value.problems] == ["--codec", "--workers"]
    assert list(array.parent.iterdir()) == [array]


@pytest.mark.parametrize("sources", [[], "", ["a", ""]])
@pytest.mark.parametrize("family", [None, "rows"])
def test_a_conversion_without_sources_is_an_error(sources: Any, family: str | None, tmp_path: Path) -> None:
    with pytest.raises(unistore.InputError, match="no source was given"):
        unistore.convert(sources, tmp_path / "out.zarr", family)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("family", "option", "value"),
    [("point_cloud", "voxel_size", 20.0), ("ct", "window", "lung"), ("spike", "voxel_bins", 5)],
)
def test_one_value_of_an_option_equals_a_list_of_it(family: str, option: str, value: Any) -> None:
    assert make_converter(family, {option: value}) == make_converter(family, {option: [value]})


def test_an_option_that_a_family_does_not_have_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        unistore.InputError, match=r"bogus: .* use one of map, columns, reverse_axes, exclude, or"
    ):
        make_converter("rows", {"bogus": 1})
    np.save(tmp_path / "a.npy", np.zeros(4))
    with pytest.raises(unistore.InputError, match=r"codecs: .* Fix: use codec, or ") as error:
        unistore.convert(tmp_path / "a.npy", tmp_path / "a.zarr", codecs="none")
    keywords = {"codec", "split", "overwrite", "restart", "work", "workers", "memory", "on_error"}
    assert keywords < set(str(error.value).partition("or one of every conversion: ")[2].split(", "))


class Usage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.fixture
def source(tmp_path: Path) -> Path:
    np.save(tmp_path / "a.npy", np.zeros((100_000, 4)))
    return tmp_path / "a.npy"


def with_room(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage(1 << 40, 0, free))


def test_less_than_the_prediction_is_warned_of_before_anything_is_read(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_room(monkeypatch, 1_000_000)
    told: list[str] = []
    read = Converter.read

    def reading(*given: Any) -> None:
        told.append("read")
        read(*given)

    monkeypatch.setattr(Converter, "read", reading)

    class Listener:
        def begin(self, stage: str, total: int) -> None: ...

        def advance(self, amount: int) -> None: ...

        def tell(self, line: str) -> None:
            told.append(line)

    unistore.convert(source, source.with_name("out.zarr"), "rows", progress=Listener())
    assert told[0].startswith("warning: ")
    assert "has 1.0 MB free, but an uncompressed store takes 3.2 MB" in told[0]
    assert set(told[1:]) == {"read"}


def test_too_little_free_space_is_a_python_warning_without_progress(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_room(monkeypatch, 1_000_000)
    with pytest.warns(UserWarning, match=r"has 1.0 MB free"):
        unistore.convert(source, source.with_name("out.zarr"), "rows", progress=False)


@pytest.mark.filterwarnings("error")
def test_enough_free_space_gives_no_warning(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_room(monkeypatch, 3_200_000)
    assert unistore.convert(source, source.with_name("out.zarr"), "rows").samples == 100_000
