"""Check the class of a family that a package adds, and the columns that it chooses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import Field

from unistore.converters.family import API, Family
from unistore.converters.schema import MOST_CLASSES, Column, Schema, bare_name, is_derived
from unistore.errors import InputError, Problem
from unistore.schemas.ragged import RAGGED_SUFFIX, TEXT_SUFFIX

# Arrays of the sources of any store; `sources/<table>/offsets` and `sources/<number>` are beside them
_OF_SOURCES = ("path", "bytes", "hash", "facts", "format", "files", "hdf5_attributes")
# Groups of a store that are no tables
_GROUPS = ("sources", "splits")
_ENDINGS = (TEXT_SUFFIX, RAGGED_SUFFIX)


def checked_family(family: object) -> type[Family]:
    """Return the class of a family, or raise an `InputError` that says what it lacks."""
    if not isinstance(family, type) or not issubclass(family, Family):
        message = "is not a class that inherits unistore.plugin.Family"
        raise InputError(Problem(repr(family), message, "give a class that inherits it", "plugin"))
    missing = [name for name in ("name", "summary", "formats", "schema") if not hasattr(family, name)]
    if missing:
        raise _incomplete(family, f"does not define {', '.join(missing)}")
    if any(isinstance(value, Field) for value in vars(family).values()):
        message = "has options, but is not decorated with @dataclass(frozen=True, kw_only=True)"
        raise _incomplete(family, message)
    if family.schema.is_cut and family.cut is Family.cut:
        cut = family.schema.samples or family.schema.of_samples[0]
        raise _incomplete(family, f"has no method 'cut', which its table {cut!r} needs")
    if family.schema.derived and family.derive is Family.derive:
        derived = ", ".join(map(repr, family.schema.derived))
        raise _incomplete(family, f"has no method 'derive', which its derived tables need: {derived}")
    for name in family.schema.spatial:
        axes = family.schema.columns[name].axes
        if family.schema.samples or axes is None or len(axes) != 3:
            message = f"has volumes in {name!r}, which need three axes and no table of samples"
            raise _incomplete(family, message)
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
        return "in which only some columns have a dtype, but a derived table needs it for all"
    return ""


def _incomplete(family: type[Family], message: str) -> InputError:
    where = f"{family.__module__}:{family.__qualname__}"
    fix = f"correct the class; unistore.plugin has API version {API}"
    return InputError(Problem(where, message, fix, "plugin"))


def wrong_schema(schema: Schema) -> str:
    """Say which names of a schema a store has already (empty: none), and which columns cannot work."""
    names = [schema.table, *filter(None, [schema.samples]), *schema.tables]
    taken = (*_GROUPS, *_OF_SOURCES)
    tables = [name for name in names if name in taken or "/" in name or names.count(name) > 1]
    numbers = [name for name in schema.per_source if bare_name(name) in (*_OF_SOURCES, *names)]
    numbers += [name for name in schema.per_sample if bare_name(name) in ("offsets", "source")]
    if tables or numbers:
        kind = "table" if tables else "number"
        return f"a {kind} {[*tables, *numbers][0]!r}, whose name is already used"
    if schema.per_sample and not schema.samples:
        return "numbers per sample, but no table of samples"
    for table, per in schema.per.items():
        if table not in schema.tables or per not in ("source", "sample"):
            return f"rows of {table!r} per {per!r}; expected one of its tables, per 'source' or 'sample'"
    for of_one in (schema.per_sample, schema.per_source):
        reason = _wrong_names(of_one) or _wrong_classes(of_one)
        if reason:
            return reason
    further = {name: columns for name, columns in schema.tables.items() if columns}
    return wrong_columns(schema, schema.columns, further)


def wrong_columns(
    schema: Schema, columns: Mapping[str, Column], tables: Mapping[str, Mapping[str, Column]]
) -> str:
    """Say which columns a store cannot have (empty: it can have all)."""
    taken = (*_OF_SOURCES, *_GROUPS, *schema.per_source, schema.table, schema.samples)
    for table in tables:
        if table in taken or "/" in table:
            return f"a table {table!r}, whose name is already used"
    for table, of_table in {schema.table: columns, **tables}.items():
        reason = _wrong_names(of_table) or _wrong_classes(of_table)
        ragged = [name for name, column in of_table.items() if column.ragged]
        if not reason and ragged and len(ragged) == len(of_table):
            reason = f"only ragged columns, such as {ragged[0]!r}; at least one needs one value per row"
        if reason:
            return reason if table == schema.table else f"{reason} (in the table {table!r})"
    of_samples = [
        *columns,
        *schema.per_sample,
        *(name for name in tables if schema.per.get(name) == "sample"),
    ]
    for name, count in Counter(map(bare_name, of_samples)).items():
        if count > 1:
            return f"samples with two keys {name!r} among columns, numbers per sample and tables of samples"
    if schema.spatial and "extent" in columns:
        return "a column 'extent', a name that is reserved for the extents of volumes"
    return ""


def _wrong_names(columns: Mapping[str, Column]) -> str:
    """Say which columns have no name of their form, or the name of another form."""
    for name, column in columns.items():
        has_ending = name.endswith(_ENDINGS)
        if column.ragged and not has_ending:
            return f"a ragged column {name!r}, whose name must end in {TEXT_SUFFIX} or {RAGGED_SUFFIX}"
        if has_ending and not column.ragged:
            return f"a column {name!r} that is not ragged, but has the ending of ragged ones"
        if has_ending and sum(f"{bare_name(name)}{ending}" in columns for ending in ("", *_ENDINGS)) > 1:
            return f"two columns of the name {bare_name(name)!r}"
    return ""


def _wrong_classes(columns: Mapping[str, Column]) -> str:
    """Say which columns have classes that no number stands for."""
    for name, column in columns.items():
        classes = column.classes
        if classes and (column.ragged or len(classes) > MOST_CLASSES or len(set(classes)) < len(classes)):
            return (
                f"invalid classes of {name!r}: at most {MOST_CLASSES}, each once, and not for ragged columns"
            )
    return ""
