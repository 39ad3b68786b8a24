"""Check the class of a family that a package adds, and the columns that it chooses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field

from unistore.converters.family import API, Family
from unistore.converters.schema import Column, Schema, is_derived
from unistore.errors import InputError, Problem
from unistore.schemas.ragged import RAGGED_SUFFIX, TEXT_SUFFIX

# Arrays of the sources of every store; `sources/<table>/offsets` and `sources/<number>` are beside them
_OF_SOURCES = ("path", "bytes", "digest", "first_row", "rows", "facts", "format", "files", "hdf5_attributes")
# Groups of a store that are no tables
_GROUPS = ("sources", "splits")


def checked_family(family: object) -> type[Family]:
    """Return the class of a family, or raise an `InputError` that says what it lacks."""
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
    return family


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


def wrong_schema(schema: Schema) -> str:
    """Say which names of a schema a store has already (empty: none), and which columns cannot work."""
    names = [schema.table, *filter(None, [schema.samples]), *schema.tables]
    tables = [name for name in names if name in _GROUPS or "/" in name or names.count(name) > 1]
    tables += [name for name in schema.tables if name in _OF_SOURCES]
    numbers = [name for name in schema.per_source if name in (*_OF_SOURCES, *schema.tables)]
    numbers += [name for name in schema.per_sample if name in ("offsets", "source")]
    if tables or numbers:
        kind = "table" if tables else "number"
        return f"a {kind} {[*tables, *numbers][0]!r} of a name that is taken"
    further = {name: columns for name, columns in schema.tables.items() if columns}
    if any(column.ragged for column in (*schema.per_sample.values(), *schema.per_source.values())):
        return "a number that is ragged"
    return wrong_columns(schema, schema.columns, further)


def wrong_columns(
    schema: Schema, columns: Mapping[str, Column], tables: Mapping[str, Mapping[str, Column]]
) -> str:
    """Say which columns a store cannot have (empty: it can have all)."""
    for table in tables:
        if table in (*_OF_SOURCES, *_GROUPS, schema.table, schema.samples) or "/" in table:
            return f"a table {table!r} of a name that is taken"
        if any(column.ragged for column in tables[table].values()):
            return f"ragged columns of the table {table!r}: only {schema.table!r} has some"
    ragged = [name for name, column in columns.items() if column.ragged]
    for name in ragged:
        if not name.endswith((TEXT_SUFFIX, RAGGED_SUFFIX)):
            return f"a ragged column {name!r}: its name is to end in {TEXT_SUFFIX} or {RAGGED_SUFFIX}"
    if ragged and schema.samples:
        return f"a ragged column {ragged[0]!r}: samples that are ranges of rows have none"
    if ragged and len(ragged) == len(columns):
        return f"only ragged columns ({ragged[0]!r}): one with a value a row says how many rows there are"
    unlike = [name for name in columns if name not in ragged and name.endswith((TEXT_SUFFIX, RAGGED_SUFFIX))]
    if unlike:
        return f"a column {unlike[0]!r} that is not ragged, by the name of one that is"
    if schema.spatial and "extent" in columns:
        return "a column 'extent', as that of volumes is called"
    return ""
