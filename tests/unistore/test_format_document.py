"""The format document against stores: its code runs, and it names every array and attribute there is."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import jsonschema
import numpy as np
import pytest
import xxhash

import unistore
from tests.support.cases import REAL, Case
from tests.support.golden_stores import SOURCES, STORES
from tests.support.programs import printed
from tests.support.store_files import attributes_of
from unistore.converters.trajectory.columns import Kind
from unistore.store.manifest import Entry
from unistore.zarr3.codecs import Blosc, codecs_document
from unistore.zarr3.writer import PRESETS, compressor_of

DOCUMENT = Path(__file__).parents[2] / "docs" / "format.md"
TEXT = DOCUMENT.read_text()
SCHEMA = json.loads((DOCUMENT.parent / "format" / "schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
MakeCase = Callable[[str], tuple[Case, Path]]
FAMILIES = dict(zip(("rows", "point_cloud", "ct", "spike", "trajectory"), REAL, strict=True))


@pytest.fixture(scope="module")
def stores(make_case: MakeCase) -> dict[str, Path]:
    return {family: make_case(name)[1] for family, name in FAMILIES.items()}


def section(number: int) -> str:
    return re.split(r"(?m)^## \d+\. ", TEXT)[number]


def block_after(sentence: str) -> str:
    """Return the code block that follows a sentence of the page."""
    _, found, rest = TEXT.partition(sentence)
    assert found, sentence
    return re.split(r"(?m)^```\w*\n", rest)[1]


def json_after(sentence: str) -> Any:
    """Return the document that follows a sentence. The key ``…`` marks objects with omitted members."""
    return json.loads(re.sub(r'…(?!")', '"…": null', block_after(sentence)))


def assert_shown(shown: Any, real: Any, where: str = "") -> None:
    """Every value that the page shows is real, and what it omits is marked."""
    if isinstance(shown, dict):
        names = shown.keys() - {"…"}
        assert names <= real.keys() if "…" in shown else names == real.keys(), where
        for name in names:
            assert_shown(shown[name], real[name], f"{where}/{name}")
    elif isinstance(shown, list):
        assert len(shown) == len(real), where
        for number, item in enumerate(shown):
            assert_shown(item, real[number], f"{where}/{number}")
    elif isinstance(shown, str) and shown.endswith("…"):
        assert real.startswith(shown[:-1]), where
    else:
        assert shown == real, where


RULE = ("attributes", "unistore", "fields", "segments/offsets", "rule")


@pytest.mark.parametrize(
    ("sentence", "document", "members"),
    [
        ("This is the root document of", "rows_split.zarr/zarr.json", ()),
        ("This is `rows/data/zarr.json` of", "rows_split.zarr/rows/data/zarr.json", ()),
        ("The `rule` of an array, in `fields`", "point_cloud_scaled.zarr/zarr.json", RULE),
        (
            "This is from `trajectory_streams.zarr`",
            "trajectory_streams.zarr/episodes/zarr.json",
            ("attributes", "clocks"),
        ),
        ("Version 3 of `tests/data/golden/grown.zarr`", "grown.zarr/versions/3.json", ()),
    ],
)
def test_documents_of_the_page_equal_those_of_golden_stores(
    sentence: str, document: str, members: tuple[str, ...]
) -> None:
    real = json.loads((STORES / document).read_text())
    for member in members:
        real = real[member]
    assert_shown(json_after(sentence), real)


def test_a_document_with_a_changed_value_is_noticed() -> None:
    real = {"a": {"b": [1, "abc"], "c": 2}}
    assert_shown({"a": {"b": [1, "ab…"], "…": None}}, real)
    for shown in ({"a": {"b": [1, "abd"], "…": None}}, {"a": {"b": [1, "abc"]}}, {"a": {"x": 1, "…": None}}):
        with pytest.raises(AssertionError):
            assert_shown(shown, real)


def test_manifest_lines_of_the_page_equal_those_of_the_golden_store() -> None:
    manifest = (STORES / "rows_split.zarr" / "unistore-manifest.jsonl").read_text().splitlines()
    lines = block_after("These are two lines of").splitlines()
    assert len(lines) == 2
    assert set(lines) <= set(manifest)


@pytest.mark.parametrize(
    ("sentence", "shard"),
    [("`splits/code/c/0` of", "splits/code"), ("The only chunk of", "sources/path/data")],
)
def test_bytes_on_the_page_equal_those_of_the_golden_store(sentence: str, shard: str) -> None:
    shown = bytes.fromhex(block_after(sentence))
    assert (STORES / "rows_split.zarr" / shard / "c" / "0").read_bytes().startswith(shown)


def test_hashes_of_short_inputs_on_the_page_are_right() -> None:
    found = dict(re.findall(r"(?m)^\| (none|`abc`) \| `(\w{32})` \|$", TEXT))
    assert found == {"none": xxhash.xxh3_128_hexdigest(b""), "`abc`": xxhash.xxh3_128_hexdigest(b"abc")}


class RowsOfSamples:
    """The rows of a sample by the steps of section 4.7, of the rules and nothing else."""

    def __init__(self, name: str) -> None:
        self.store = unistore.Store(STORES / name)
        about = self.store.attributes
        self.rules = {path: field["rule"] for path, field in about["fields"].items()}
        table = about["samples"]["table"]
        self.sample_columns = {f"{table}/{column}" for column in about["tables"][table]}

    def deciding(self, path: str) -> str:
        while path and "rows" in self.rules[path]:
            path = self.rules[path]["rows"][0]
        return path

    def find(self, sample: int, path: str) -> tuple[int, int] | None:
        deciding = self.deciding(path)
        if not deciding:
            return sample, sample + 1
        if deciding in self.sample_columns:
            column = self.store.array(deciding)
            row = int(np.flatnonzero(column.read() != column.attributes["no_sample"])[sample])
            return row, row + 1
        for offsets, rule in self.rules.items():
            divided = rule.get("offsets_of")
            if offsets.startswith("sources/") or not isinstance(divided, str):
                continue
            if self.deciding(divided) == deciding and rule.get("rows"):
                parent, more = rule["rows"]
                found = self.find(sample, parent) if more == 1 else None
                if found is None:
                    continue
                values = self.store.array(offsets).read()
                rows = len(self.store.array(parent)) if parent else self.store.sample_count
                times = (len(values) - 1) // rows if rule.get("repeated") else 1
                return int(values[found[0] * times]), int(values[found[1] * times])
        return None


@pytest.mark.parametrize(
    ("store", "sample", "path", "rows"),
    [
        ("point_cloud_scaled", 2, "points/intensity", (308, 462)),
        ("trajectory_ragged", 1, "clocks/lidar/observation/lidar/timestamps", (4, 8)),
        ("trajectory_ragged", 1, "clocks/lidar/observation/lidar/points_ragged/data", (10, 15)),
        ("ct_locations", 0, "foreground/labels/seg/coords", (0, 58)),
        ("ct", 1, "volumes/image", (1, 2)),
        ("spike_steps", 1, "spikes/bits", (23, 34)),
        ("spike_steps", 1, "sequences/name/data", None),
        ("events", 1, "marks/t", None),
    ],
)
def test_the_steps_of_the_page_find_the_rows_of_a_sample(
    store: str, sample: int, path: str, rows: tuple[int, int] | None
) -> None:
    assert RowsOfSamples(f"{store}.zarr").find(sample, path) == rows


def test_examples_of_offsets_equal_those_of_golden_stores() -> None:
    for name, sentence in (
        ("point_cloud_scaled", "*A segment that is no sample.*"),
        ("trajectory_ragged", "*Two offsets.*"),
    ):
        for line in block_after(sentence).splitlines():
            path, values = re.split(r" {2,}", line)
            assert json.loads(values) == unistore.Store(STORES / f"{name}.zarr").array(path).read().tolist()


def test_the_code_of_the_page_reads_a_store(stores: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "clouds.zarr").symlink_to(stores["point_cloud"])
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    (block,) = blocks
    output = printed("-c", block, cwd=tmp_path)
    assert "files intact" in output


def test_the_check_of_the_page_finds_damage(stores: dict[str, Path], tmp_path: Path) -> None:
    import shutil

    shutil.copytree(stores["point_cloud"], tmp_path / "clouds.zarr")
    (block,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    for name in ("zarr.json", "points/xyz/c/0/0"):
        path = tmp_path / "clouds.zarr" / name
        whole = path.read_bytes()
        path.write_bytes(whole[:100].replace(b"1", b"2") + whole[100:] if name == "zarr.json" else whole[:-1])
        if path.read_bytes() != whole:
            done = subprocess.run(
                [sys.executable, "-c", block], cwd=tmp_path, capture_output=True, check=False
            )
            assert done.returncode != 0, name
        path.write_bytes(whole)


def documented(path: str, family: str) -> bool:
    """Whether the tables of the family's section, or of what every store has, name an array."""
    places = {"rows": 6, "point_cloud": 7, "ct": 8, "spike": 9, "trajectory": 10}
    text = section(5) + section(places[family])
    names = {name for name in re.findall(r"`([^`]+)`", text) if re.match(r"[a-z]+/", name)}
    patterns = {
        re.escape(variant)
        .replace(r"<name>", "[^/]+(/[^/]+)*")
        .replace(r"<column>", "[^/]+")
        .replace(r"<other>", "[^/]+(/[^/]+)*")
        .replace(r"<key>", "[^/]+(/[^/]+)*")
        .replace(r"<size>", "[0-9.]+")
        .replace(r"<B>", "[0-9]+")
        .replace(r"<id>", "[^/]+")
        for name in names
        for variant in spread(name)
    }
    stem = re.sub(r"/(data|offsets)$", "", path)
    return any(re.fullmatch(pattern, path) or re.fullmatch(pattern, stem) for pattern in patterns)


def spread(name: str) -> list[str]:
    """``a/{b, c}`` as ``a/b`` and ``a/c``."""
    found = re.fullmatch(r"(.*)\{(.*)\}", name)
    return [name] if found is None else [found[1] + part.strip() for part in found[2].split(",")]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_page_names_every_array(stores: dict[str, Path], family: str) -> None:
    fields = attributes_of(stores[family])["fields"]
    assert [path for path in fields if not documented(path, family)] == []
    assert not documented("nonsense/x", family)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_page_names_every_member_of_the_root_and_every_attribute(
    stores: dict[str, Path], family: str
) -> None:
    about = attributes_of(stores[family])
    for member in (*about, *about["seal"], *about["samples"]):
        assert f"`{member}`" in TEXT or f'"{member}"' in TEXT, member
    for entry in about["fields"].values():
        assert set(entry) - {"absent"} == {"axes", "unit", "description", "rule", "amplification"}
    for path in stores[family].rglob("zarr.json"):
        document = json.loads(path.read_text())
        if path.parent != stores[family]:
            for name in document["attributes"]:
                assert f"`{name}`" in TEXT, f"{path.parent.name}: {name}"


def root_of(store: Path) -> Any:
    return json.loads((store / "zarr.json").read_text())


def assert_described(root: Any) -> None:
    """Every attribute is what the schema says, and none is unknown to it."""
    assert [error.message for error in VALIDATOR.iter_errors(root)] == []
    for path, document in root["consolidated_metadata"]["metadata"].items():
        known = SCHEMA["$defs"][document["node_type"]]["properties"]
        assert set(document["attributes"]) <= set(known), path
    assert set(root["attributes"]["unistore"]) <= set(SCHEMA["$defs"]["root"]["properties"])


def test_the_schema_is_a_valid_json_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_the_schema_and_the_page_have_every_form_of_a_source() -> None:
    forms = SCHEMA["$defs"]["array"]["properties"]["source_form"]["items"]["enum"]
    assert set(forms) == set(get_args(Kind))
    (row,) = [line for line in section(5).splitlines() if line.startswith("| `source_form`")]
    assert set(re.findall(r'`"(\w+)"`', row)) == set(forms)


@pytest.mark.parametrize("name", SOURCES)
def test_the_schema_describes_golden_stores(name: str) -> None:
    assert_described(root_of(STORES / f"{name}.zarr"))


def test_the_schema_describes_every_store(case_name: str, make_case: MakeCase) -> None:
    root = root_of(make_case(case_name)[1])
    assert_described(root)
    (convention,) = root["attributes"]["zarr_conventions"]
    project = DOCUMENT.parents[1]
    assert (project / convention["spec_url"]).samefile(DOCUMENT)
    assert json.loads((project / convention["schema_url"]).read_text()) == SCHEMA


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("attributes/unistore/seal/digest", "no digest"),
        ("attributes/unistore/format_version", 2),
        ("attributes/zarr_conventions", []),
        ("consolidated_metadata/metadata/points\\xyz/attributes/ragged", {"offset": "segments/offsets"}),
        ("consolidated_metadata/metadata/points\\xyz/attributes/quantised/rule", "q / scale"),
        ("consolidated_metadata/metadata/splits/attributes/names", ["train", "train"]),
    ],
)
def test_the_schema_rejects_a_wrong_root(stores: dict[str, Path], path: str, value: Any) -> None:
    root = root_of(stores["point_cloud"])
    *way, last = (part.replace("\\", "/") for part in path.split("/"))
    node = root
    for part in way:
        node = node[part]
    assert node[last] != value
    node[last] = value
    assert not VALIDATOR.is_valid(root)


def test_the_page_names_every_member_of_a_manifest_line() -> None:
    for member in Entry.__dataclass_fields__:
        assert f"| `{member}` |" in section(3)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(
    ("dtype", "chunk"),
    [("uint8", (4096,)), ("int32", (4096, 3)), ("float64", (1, 32, 32, 32)), ("bool", (4096, 3))],
)
def test_the_table_of_codecs_agrees_with_the_code(preset: str, dtype: str, chunk: tuple[int, ...]) -> None:
    import numpy as np

    row = next(line for line in section(4).splitlines() if line.startswith(f"| `{preset}`"))
    compressor = compressor_of(preset, np.dtype(dtype), chunk)
    names = [codec["name"] for codec in codecs_document(compressor, np.dtype(dtype).itemsize)]
    codec = {"none": [], "zstd": ["zstd"]}.get(preset, ["blosc"])
    assert names == ["bytes", *codec, "crc32c"]
    if not isinstance(compressor, Blosc):
        assert ("| none |" if compressor is None else f"`zstd`: level {compressor.level}, no shuffle") in row
        return
    assert f"`blosc`: {compressor.cname}, level {compressor.clevel}," in row
    words = {"shuffle": "byte shuffle", "bitshuffle": "bit shuffle", "noshuffle": "none for one-byte types"}
    assert words[compressor.shuffle] in row
    rows = dtype == "int32" and chunk == (4096, 3)
    assert compressor.typesize == np.dtype(dtype).itemsize * (3 if rows else 1)
