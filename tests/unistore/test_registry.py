"""One registry: core names no family, packages add their own, an option is declared once."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import click
import numpy as np
import pytest

import unistore
from tests.support.detection import detect
from unistore import plugin
from unistore.cli.convert import convert as unistore_convert
from unistore.cli.convert_options import SharedOption, add_family_options
from unistore.conversion.convert import make_converter
from unistore.conversion.settings import Settings
from unistore.converters import registry
from unistore.converters.checking import checked_family
from unistore.converters.families import converter_of, exporter_of, preview_of, specs_of
from unistore.converters.options import RESERVED, Options, declared, option
from unistore.converters.registry import families, get_family, own_families
from unistore.errors import InputError, StoreError
from unistore.report.suggestions import convert_command
from unistore.schemas.array_specs import SAMPLES, ArraySpec
from unistore.schemas.declared_rules import ArraySpecs

OURS = ("ct", "events", "point_cloud", "rows", "spike", "trajectory")


def test_every_family_has_its_specs_preview_exporters_and_converter() -> None:
    assert [*families()][-1] == "rows"
    assert sorted(families()) == sorted(OURS)
    for name, each in families().items():
        assert checked_family(each) is each
        assert each.name == name
        for to in ("", *each.exports):
            assert callable(exporter_of(each, to))
        assert exporter_of(each, "a format that it has not") is None
        assert isinstance(specs_of(each), ArraySpecs)
        assert callable(preview_of(each).view)
        assert converter_of(each).family == name


@dataclass(frozen=True, kw_only=True)
class PingOptions(Options):
    gain: float = option(1.0, "Multiply echoes by this.", least=0.0, most=10.0)
    count: int | None = option(None, "Pings to take.", metavar="N", least=1)
    name: str = option("a", "Name.")
    flip: bool = option(False, "Last beam first.")
    layout: Literal["auto", "raw"] = option("auto", "How samples are packed.")
    beams: tuple[int, ...] = option((), "Store these beams only.")
    tile: tuple[int, int] = option((4, 8), "Chunk.")
    map: Mapping[str, str] = option({}, "Where a field is.", metavar="NAME=DATASET")


ECHOES = ArraySpecs(arrays={"rows/echo": ArraySpec(dtypes=("uint16",), row_shape=(), rows=(SAMPLES, 0))})


@dataclass(frozen=True, kw_only=True)
class Sonar(PingOptions, plugin.Family):
    """Sonar pings in .bin files."""

    name = "sonar"
    summary = "Sonar pings: .bin."
    examples = ("unistore convert sonar pings/ pings.zarr --gain 2",)
    formats = ("npy",)
    schema = plugin.Schema(table="rows", columns={"echo": plugin.Column(kinds="u")})

    @classmethod
    def specs(cls) -> ArraySpecs:
        return ECHOES

    def claim(self, file: plugin.SourceFile) -> plugin.Claim | None:
        raise AttributeError(f"no sonar near {file.name}")


class Clashing(plugin.Family):
    """A family of a package with the name of one of ours."""

    name = "ct"
    summary = "Something else."
    formats = ("npy",)
    schema = plugin.Schema(table="rows", columns={"data": plugin.Column()})


class Half(plugin.Family):
    """A family without what every family has."""

    name = "half"


class Point:
    """An entry point of an installed package."""

    def __init__(self, name: str, found: Any) -> None:
        self.name, self.value, self._found = name, f"unistore_{name}:FAMILY", found

    def load(self) -> Any:
        if isinstance(self._found, Exception):
            raise self._found
        return self._found


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    points = [
        Point("bad", ImportError("no\nsonarlib")),
        Point("odd", object()),
        Point("half", Half),
        Point("ct", Clashing),
        Point("sonar", Sonar),
    ]
    real = metadata.entry_points
    monkeypatch.setattr(
        metadata,
        "entry_points",
        lambda **given: points if given == {"group": registry.ENTRY_POINTS} else real(**given),
    )
    families.cache_clear()
    yield
    families.cache_clear()


@pytest.mark.usefixtures("installed")
def test_a_family_that_cannot_be_imported_is_named_and_the_others_work(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert set(families()) == {*OURS, "sonar"}
    assert [*families()][-2:] == ["sonar", "rows"], "third parties before the general one"
    told = capsys.readouterr().err.splitlines()
    assert "is not a class that inherits unistore.plugin.Family" in told.pop(1)
    assert "Half: does not define summary, formats, schema" in told.pop(1)
    cannot_be_imported = "unistore_bad:FAMILY cannot be imported: ImportError: no sonarlib"
    assert told == [
        f"unistore: the family bad is skipped: {cannot_be_imported}",
        "unistore: the family ct is skipped: unistore_ct:FAMILY has the name of an existing family",
    ]
    assert get_family("ct").__module__ == "unistore.converters.ct"
    assert get_family("sonar") is Sonar
    np.save(tmp_path / "a.npy", np.arange(4))
    found = detect([tmp_path])
    assert found is not None
    assert found.family == "rows"
    (line,) = capsys.readouterr().err.splitlines()
    assert "family sonar is skipped" in line
    assert "Sonar failed: " in line


SPELLED: dict[str, Any] = {
    "gain": 2.5,
    "count": 3,
    "name": "b c",
    "flip": True,
    "layout": "raw",
    "beams": [1, 2],
    "tile": [2, 3],
    "map": {"x": "East"},
    "exclude": ["a b"],
}


@pytest.mark.usefixtures("installed")
def test_options_of_every_form_are_spelled_and_parsed_alike() -> None:
    made: Any = make_converter("sonar", {**SPELLED, "exclude": "a b"}).plugin
    assert made.recorded() == SPELLED
    assert (made.beams, made.tile, made.exclude) == ((1, 2), (2, 3), ("a b",))
    words = convert_command("sonar", [], "o", made.recorded())
    assert words == (
        "unistore convert sonar o --gain 2.5 --count 3 --name 'b c' --flip --layout raw --beams 1 --beams 2 "
        "--tile 2 3 --map x=East --exclude 'a b'"
    )
    assert convert_command("sonar", [], "o", PingOptions().recorded()) == "unistore convert sonar o"

    def run(**given: Any) -> None:
        parsed.update(given)

    parsed: dict[str, Any] = {}
    command = click.command()(add_family_options(PingOptions, run))
    arguments = [
        "--gain",
        "2.5",
        "--count",
        "3",
        "--name",
        "b c",
        "--flip",
        "--layout",
        "raw",
        "--beams",
        "1",
    ]
    arguments += ["--beams", "2", "--tile", "2", "3", "--map", "x=East"]
    command.main(arguments, standalone_mode=False)
    assert PingOptions(**parsed, exclude=["a b"]).recorded() == SPELLED  # type: ignore[arg-type]


def test_reserved_names_are_those_of_every_conversion() -> None:
    group: Any = unistore_convert
    parameters = group.get_command(click.Context(group), "rows").params
    shared = [each for each in parameters if isinstance(each, click.Argument | SharedOption)]
    flags = {flag.removeprefix("--").replace("-", "_") for each in shared for flag in each.opts}
    keywords = {"sources", "destination", "family", "progress", *(each.name for each in fields(Settings))}
    beside = {"help", "debug", "found", "skipped", "follow_links_to", "split_rule", "split_below"}
    assert flags | {each.name for each in shared} | keywords | beside == RESERVED | {"exclude"}


@dataclass(frozen=True, kw_only=True)
class Colliding(Options):
    exclude: tuple[str, ...] = option((), "Leave out a ping.")
    gain: float = option(1.0, "Multiply echoes by this.")
    dry_run: bool = option(False, "Without water.")


@dataclass(frozen=True, kw_only=True)
class Inheriting(Colliding):
    beams: int = option(1, "Beams.")


@pytest.mark.parametrize("options", [Colliding, Inheriting])
def test_an_option_named_like_one_of_every_conversion_is_an_error(options: type[Options]) -> None:
    for refusing in (lambda: declared(options), options):
        with pytest.raises(InputError) as refused:
            refusing()
        assert [(each.location, each.message, each.advice) for each in refused.value.problems] == [
            (
                f"{__name__}:{options.__name__}",
                f"declares {flag}, the name of an option of every conversion",
                f"give it another name in the package {__name__.partition('.')[0]}",
            )
            for flag in ("--dry-run", "--exclude")
        ]


def test_a_store_of_a_missing_family_is_read_but_not_exported(make_store: Any, tmp_path: Path) -> None:
    path = make_store("sonar", {"rows/echo": np.arange(6)}, count=6)
    assert unistore.Store(path).array("rows/echo").read(0, 6).tolist() == [*range(6)]
    assert unistore.Dataset(path)[5]["echo"] == 5
    found = unistore.inspect(path)
    assert (found.kind, found.details["family"]) == ("store", "sonar")
    from unistore import export

    with pytest.raises(StoreError, match="family sonar: is not installed; the store was written with"):
        export(path, tmp_path / "out")


@pytest.mark.usefixtures("installed")
def test_readers_hold_arrays_against_the_specs_of_a_family_from_outside(
    make_store: Any,
) -> None:
    good = make_store("sonar", {"rows/echo": np.arange(6, dtype=np.uint16)}, count=6)
    assert unistore.Store(good).array("rows/echo").read().tolist() == [*range(6)]
    wide = make_store("sonar", {"rows/echo": np.arange(6)}, count=6)
    with pytest.raises(StoreError, match="rows/echo: has dtype int64, expected uint16"):
        unistore.Store(wide).array("rows/echo")
    short = make_store("sonar", {"rows/echo": np.arange(6, dtype=np.uint16)}, count=7)
    with pytest.raises(StoreError, match="rows/echo: has 6 rows, expected 7"):
        unistore.Store(short).array("rows/echo")


@pytest.mark.usefixtures("installed")
def test_a_store_is_read_without_the_specs_of_its_family(
    make_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_store("sonar", {"rows/echo": np.arange(6, dtype=np.uint16)}, count=6)
    monkeypatch.delattr(Sonar, "specs")
    monkeypatch.delattr(Sonar, "schema")
    assert unistore.Store(path).array("rows/echo").read().tolist() == [*range(6)]


def test_the_overloads_of_convert_are_those_that_the_tool_writes() -> None:
    """``python tools/write_signatures.py`` after a change of options."""
    from tools.write_signatures import FILE, rendered

    text = rendered()
    assert FILE.read_text() == text
    for family in own_families():
        for declaration in declared(family):
            assert f"    {declaration.name}: " in text


def test_convert_has_the_settings_of_every_conversion_as_parameters() -> None:
    parameters = inspect.signature(unistore.convert).parameters.values()
    by_name = {entry.name: entry.default for entry in parameters if entry.kind is entry.KEYWORD_ONLY}
    assert by_name.pop("progress") is None
    shared = [*fields(Settings), *fields(Options)]
    assert by_name == {entry.name: entry.default for entry in shared}
