"""The format document against stores: its code runs, and it names every array and attribute there is."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.cases import REAL, Case
from tests.golden import SOURCES, STORES
from tests.programs import printed
from tests.stores import attributes_of
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


def test_its_code_runs(stores: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "clouds.zarr").symlink_to(stores["point_cloud"])
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    (block,) = blocks
    output = printed("-c", block, cwd=tmp_path)
    assert "files intact" in output


def test_its_check_finds_damage(stores: dict[str, Path], tmp_path: Path) -> None:
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
def test_it_names_every_array(stores: dict[str, Path], family: str) -> None:
    fields = attributes_of(stores[family])["fields"]
    assert [path for path in fields if not documented(path, family)] == []
    assert not documented("nonsense/x", family)


@pytest.mark.parametrize("family", FAMILIES)
def test_it_names_every_member_of_the_root_and_every_attribute(stores: dict[str, Path], family: str) -> None:
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


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


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
def test_the_schema_refuses(stores: dict[str, Path], path: str, value: Any) -> None:
    root = root_of(stores["point_cloud"])
    *way, last = (part.replace("\\", "/") for part in path.split("/"))
    node = root
    for part in way:
        node = node[part]
    assert node[last] != value
    node[last] = value
    assert not VALIDATOR.is_valid(root)


def test_it_names_every_member_of_a_manifest_line() -> None:
    for member in Entry.__dataclass_fields__:
        assert f"| `{member}` |" in section(3)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(
    ("dtype", "chunk"),
    [("uint8", (4096,)), ("int32", (4096, 3)), ("float64", (1, 32, 32, 32)), ("bool", (4096, 3))],
)
def test_its_table_of_codecs(preset: str, dtype: str, chunk: tuple[int, ...]) -> None:
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
