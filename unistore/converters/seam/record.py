"""The record of a family that a package adds as a class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass
from typing import Any

from unistore.converters.options import declared
from unistore.converters.plugin import API, Column, Family, is_derived
from unistore.converters.registry import FamilyRecord, resolve
from unistore.converters.seam.specs import specs_of, wrong_schema
from unistore.errors import InputError, Problem
from unistore.schemas.indices import StoreView


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginRecord(FamilyRecord):
    """What the core asks of a family, from its class."""

    kind_of_family: type[Family]

    def part(self, name: str, key: str | None = None) -> Any:
        family = self.kind_of_family
        # These are asked for by commands that read no store.
        kind = _volumes if family.schema.spatial else _kind
        light = {"options": family, "converter": ConverterOf(family), "rules": (), "kind": kind}
        if key is None and name in light:
            return light[name]
        if key is None and name == "specs":
            return specs_of(family.schema)
        of_stores = stored_parts(family)
        if key is None and name in of_stores:
            return of_stores[name]
        return FamilyRecord.part(self, name, key)  # which says that there is none


def stored_parts(family: type[Family]) -> dict[str, Any]:
    """Return what is made of a family's stores: ``export``, ``restore`` and ``preview`` of its record."""
    from unistore.converters.seam import stored

    def with_options(store: StoreView) -> Family:
        recorded = store.attributes.get("options", {})
        names = {option.name for option in declared(family)}
        return family(**{name: value for name, value in recorded.items() if name in names})

    return {
        "export": lambda store: stored.exported_files(with_options(store), store),
        "restore": lambda store, scan: stored.restore(with_options(store), store, scan),
        "preview": stored.preview_of(family()),
    }


def _kind(store: StoreView) -> Any:
    """Rows, or ragged samples where the samples are ranges of rows."""
    ragged = store.attributes["samples"]["table"] != store.attributes["main_table"]
    return resolve(f"unistore.data.kinds.named:{'ragged' if ragged else 'rows'}")(store)


def _volumes(store: StoreView) -> Any:
    """Volumes, where the rows are."""
    return resolve("unistore.data.kinds.named:volumes")(store)


@dataclass(frozen=True, slots=True)
class ConverterOf:
    """What makes the converter of a family: `by` names a subclass of `SeamConverter`."""

    family: type[Family]
    by: str = "unistore.converters.seam.converter:SeamConverter"

    @property
    def scan_identifies(self) -> bool:
        """See `Converter.scan_identifies`."""
        identifies: bool = resolve(self.by).scan_identifies
        return identifies

    def __call__(self, **options: Any) -> Any:
        return resolve(self.by)(self.family(**options))


def record_of(family: object) -> PluginRecord:
    """Return the record of a class, or an `InputError` that says what the class lacks."""
    if not isinstance(family, type) or not issubclass(family, Family):
        message = "is no class that inherits unistore.plugin.Family"
        raise InputError(Problem(repr(family), message, "see docs/write-a-family.md", "plugin"))
    missing = [name for name in ("name", "summary", "formats", "schema") if not hasattr(family, name)]
    if missing:
        raise _incomplete(family, f"has no {', '.join(missing)}")
    if any(isinstance(value, Field) for value in vars(family).values()):
        raise _incomplete(family, "has options and is no dataclass: @dataclass(frozen=True, kw_only=True)")
    if family.schema.samples and family.cut is Family.cut:
        raise _incomplete(family, f"has a table of {family.schema.samples}, and no method cut")
    if family.schema.derived and family.derive is Family.derive:
        raise _incomplete(family, f"has tables {', '.join(family.schema.derived)}, and no method derive")
    for name in family.schema.spatial:
        axes = family.schema.columns[name].axes
        if family.schema.samples or axes is None or len(axes) != 3:
            raise _incomplete(family, f"has volumes {name!r}: each is a sample, of three axes")
    reason = wrong_schema(family.schema)
    if reason:
        raise _incomplete(family, f"has {reason}")
    for table, columns in family.schema.tables.items():
        reason = _wrong_table(columns)
        if reason:
            raise _incomplete(family, f"has a table {table!r} {reason}")
    return PluginRecord(
        name=family.name,
        summary=family.summary,
        description=(family.__doc__ or family.summary).strip().splitlines()[0],
        examples=family.examples,
        options=f"{family.__module__}:{family.__qualname__}",
        converter=f"{family.__module__}:{family.__qualname__}",
        export="as its formats write",
        restore="as its formats read",
        preview="view",
        batch_size=family.batch_size,
        follows_links=family.follows_links,
        kind_of_family=family,
    )


def _wrong_table(columns: Mapping[str, Column]) -> str:
    """Say what is wrong with a further table (empty: nothing)."""
    if not columns:
        return "without columns"
    if is_derived(columns) and not all(column.dtype for column in columns.values()):
        return "of which some columns have a dtype: all are derived, or none"
    return ""


def _incomplete(family: type[Family], message: str) -> InputError:
    where = f"{family.__module__}:{family.__qualname__}"
    return InputError(Problem(where, message, f"it is written for API {API} of unistore.plugin", "plugin"))
