"""The manifest (a line per file), the seal with its digest, and what the root document repeats."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import xxhash

from unistore.errors import CorruptionError
from unistore.schemas.recorded_rules import MORE, Package, Seal, StoredField, StoreRoot
from unistore.schemas.tables import name_problem
from unistore.store.names import MANIFEST, ROOT
from unistore.system.types import Attributes, JsonObject
from unistore.zarr3.documents import DocumentError, is_list_of, parse_document, parse_json, shown

# Parsers of the members of a store's root document and manifest; `GrammarError` names rule and value.

_DIGEST = re.compile(r"[0-9a-f]{32}")
_FAMILY = re.compile(r"[a-z][a-z0-9_]{0,63}")
_DRIVE = re.compile(r"[A-Za-z]:")
_MAX_COUNT = 2**63 - 1
_MAX_KEY_LENGTH = 4096
_MAX_SPLITS = 256
OF_SCHEMA = ("tables", "kinds", "package")  # members of a root, besides what stores made before 0.1.0 have


class GrammarError(ValueError):
    """A member of a document violates the store format."""


def parse_digest(value: object, member: str) -> str:
    """Parse xxh3-128: 32 lower-case hexadecimal digits."""
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        raise _violation(member, value, "32 lower-case hexadecimal digits")
    return value


def parse_count(value: object, member: str) -> int:
    """Parse a number of bytes, files, rows or samples."""
    if type(value) is not int or not 0 <= value <= _MAX_COUNT:
        raise _violation(member, value, "an integer from 0 to 2**63 - 1")
    return value


def parse_rows(value: object, member: str) -> tuple[int, int]:
    """Parse ``[lo, hi]``: rows of axis 0, ``lo <= row < hi``."""
    pair = list(value) if isinstance(value, list | tuple) else None
    if not is_list_of(pair, int) or len(pair) != 2 or not 0 <= pair[0] <= pair[1] <= _MAX_COUNT:
        raise _violation(member, value, "two integers, 0 <= lo <= hi < 2**63")
    return pair[0], pair[1]


def parse_path(value: object, member: str) -> str:
    """Parse the path of an array or group: valid names joined by ``/``."""
    if not isinstance(value, str) or len(value) > _MAX_KEY_LENGTH or _DRIVE.match(value):
        raise _violation(member, value, f"a relative path of at most {_MAX_KEY_LENGTH} characters")
    if (reason := name_problem(value)) is not None:
        raise _violation(member, value, f"a path inside the store: {reason}")
    return value


def parse_key(value: object, member: str) -> str:
    """Parse the path of a file of the store: a valid path, with or without ``/zarr.json``."""
    if not isinstance(value, str):
        raise _violation(member, value, "a path inside the store")
    parse_path(value.removesuffix(f"/{ROOT}"), member)
    if value == MANIFEST:
        raise _violation(member, value, "a file that the manifest lists; it does not list itself")
    return value


def parse_object(value: object, member: str) -> JsonObject:
    """Parse a JSON object."""
    if not isinstance(value, dict):
        raise _violation(member, value, "an object")
    return value


def parse_split_names(value: object, member: str) -> list[str]:
    """Parse different names of splits, by code."""
    if not is_list_of(value, str) or len(value) > _MAX_SPLITS or len(set(value)) != len(value):
        raise _violation(member, value, f"at most {_MAX_SPLITS} different names")
    return value


def parse_root(attributes: JsonObject) -> StoreRoot:
    """Parse the ``unistore`` attribute of a sealed store's root. Unknown members are allowed."""
    if missing := {"family", "samples", "fields", *OF_SCHEMA, "seal"} - set(attributes):
        msg = f"the attribute 'unistore' has no {', '.join(sorted(missing))}"
        raise GrammarError(msg)
    family = attributes["family"]
    if not isinstance(family, str) or not _FAMILY.fullmatch(family):
        rule = "the name of a family: at most 64 lower-case letters, digits and '_'"
        raise _violation("'family'", family, rule)
    samples = parse_object(attributes["samples"], "'samples'")
    sample_count = parse_count(samples.get("count"), "'samples' count")
    sample_table = parse_path(samples.get("table"), "'samples' table")
    fields = {}
    for path, field in parse_object(attributes["fields"], "'fields'").items():
        fields[parse_path(path, "a path in 'fields'")] = _parse_field(field, path)
    tables = {}
    for table, columns in parse_object(attributes["tables"], "'tables'").items():
        tables[table] = _parse_columns(table, columns, fields)
    kinds = attributes["kinds"]
    if not is_list_of(kinds, str):
        raise _violation("'kinds'", kinds, "a list of kinds of samples")
    package = _parse_package(attributes["package"])
    statistics = parse_object(attributes.get("statistics", {}), "'statistics'")
    for path, moments in statistics.items():
        parse_object(moments, f"statistics of {shown(path)}")
    return StoreRoot(
        family=family,
        sample_table=sample_table,
        sample_count=sample_count,
        fields=fields,
        tables=tables,
        kinds=kinds,
        package=package,
        statistics=statistics,
        options=parse_object(attributes.get("options", {}), "'options'"),
        created_with=parse_object(attributes.get("created_with", {}), "'created_with'"),
        main_table=parse_path(attributes.get("main_table", sample_table), "'main_table'"),
        skipped=parse_count(attributes.get("skipped", 0), "'skipped'"),
        seal=parse_seal(attributes["seal"]),
        document=attributes,
    )


def _parse_package(value: object) -> Package:
    package = parse_object(value, "'package'")
    name, version = package.get("name"), package.get("version")
    if not isinstance(name, str) or not isinstance(version, str):
        raise _violation("'package'", package, "a name and a version")
    return Package(name, version)


def _parse_columns(table: str, columns: object, fields: Mapping[str, object]) -> list[str]:
    """Parse the names of the columns of a table, arrays in ``fields``."""
    parse_path(table, "a path in 'tables'")
    member = f"table {shown(table)}"
    if not is_list_of(columns, str):
        raise _violation(member, columns, "a list of names of columns")
    for name in columns:
        if f"{table}/{name}" not in fields:
            raise _violation(member, name, "the name of an array in 'fields'")
    return columns


@dataclass(frozen=True, slots=True, kw_only=True)
class SideRoot:
    """The member ``side`` of the root of an added column.

    Attributes
    ----------
    store : str
        Checksum of the seal of the store to which the column belongs.
    table : str
        Table whose rows the column has. Empty for a result of ``unistore derive``.
    groups : list of str
        Paths of the groups of a result of ``unistore derive``.
    extends : mapping of str to mapping
        What it adds to rules of the store, by the path of their array. `with_side_table` parses it.
    """

    store: str
    table: str
    groups: Sequence[str]
    extends: Mapping[str, JsonObject]


def parse_side(value: object) -> SideRoot:
    """Parse the member ``side`` of a side table's root."""
    side = parse_object(value, "'side'")
    store = parse_digest(side.get("store"), "'side' store")
    table = side.get("table")
    if not isinstance(table, str):
        raise _violation("'side' table", table, "a text")
    groups = side.get("groups")
    if not is_list_of(groups, str):
        raise _violation("'side' groups", groups, "a list of paths")
    extends = parse_object(side.get(MORE, {}), f"'side' {MORE}")
    for path, rule in extends.items():
        parse_path(path, f"a path in 'side' {MORE}")
        parse_object(rule, f"'side' {MORE} {shown(path)}")
    return SideRoot(store=store, table=table, groups=groups, extends=extends)


def _parse_field(value: object, path: str) -> StoredField:
    if not isinstance(value, dict):
        raise _wrong_field(path, value, "an object")
    axes = value.get("axes", [])
    unit = value.get("unit")
    description = value.get("description")
    if not is_list_of(axes, str):
        raise _wrong_field(path, axes, "a list of names as its axes")
    if not isinstance(unit, str | None):
        raise _wrong_field(path, unit, "a text as its unit")
    if not isinstance(description, str | None):
        raise _wrong_field(path, description, "a text as its description")
    return StoredField(axes=tuple(axes), unit=unit, description=description or "", members=value)


def _wrong_field(path: str, value: object, rule: str) -> GrammarError:
    return _violation(f"field {shown(path)}", value, rule)


def parse_seal(value: object) -> Seal:
    """Parse the seal of a store."""
    seal = parse_object(value, "'seal'")
    if seal.get("manifest") != MANIFEST:
        raise _violation("seal manifest", seal.get("manifest"), MANIFEST)
    return Seal(
        manifest=MANIFEST,
        digest=parse_digest(seal.get("digest"), "seal digest"),
        content_digest=parse_digest(seal.get("content_digest"), "seal content_digest"),
        root=parse_digest(seal.get("root"), "seal root"),
        files=parse_count(seal.get("files"), "seal files"),
        bytes=parse_count(seal.get("bytes"), "seal bytes"),
    )


def _violation(member: str, value: object, rule: str) -> GrammarError:
    return GrammarError(f"{member} is {shown(value)}, expected {rule}")


# Largest manifest in bytes: about five million files.
MANIFEST_LIMIT = 1 << 30

_UNSIGNED = "0" * 32
_ROOT_MEMBER = b'"root": "%b"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file of a store."""

    key: str  # path in the store, with ``/``
    bytes: int
    checksum: str  # xxh3-128 of the file, hexadecimal
    rows: tuple[int, int] | None = None  # of a shard: its rows ``[lo, hi)`` of the table
    # of a shard: xxh3-128 of its decoded values (C order, little-endian), the same on every machine
    content: str | None = None

    @classmethod
    def from_json(cls, line: object) -> Entry:
        """Parse the object of one line. Raises `GrammarError`, but ignores unknown members."""
        members = parse_object(line, "the line")
        rows = members.get("rows")
        content = members.get("content")
        return cls(
            key=parse_key(members.get("key"), "'key'"),
            bytes=parse_count(members.get("bytes"), "'bytes'"),
            checksum=parse_digest(members.get("checksum"), "'checksum'"),
            rows=None if rows is None else parse_rows(rows, "'rows'"),
            content=None if content is None else parse_digest(content, "'content'"),
        )

    def to_json(self) -> JsonObject:
        """Return the object of one line, without members that are None."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def manifest_bytes(entries: Iterable[Entry]) -> bytes:
    """Return the content of the manifest: one JSON object per line, sorted by key."""
    lines = (
        json.dumps(entry.to_json(), separators=(",", ":"), ensure_ascii=True)
        for entry in sorted(entries, key=lambda entry: entry.key)
    )
    return "".join(f"{line}\n" for line in lines).encode()


def parse_manifest(data: bytes, where: str) -> list[Entry]:
    """Parse a manifest file. `CorruptionError` names the first line that is invalid or repeats a key."""
    entries = []
    for number, entry in parse_lines(data):
        if isinstance(entry, str):
            msg = f"{where}/{MANIFEST}: line {number} is damaged: {entry}. Fix: unistore verify {where}"
            raise CorruptionError(msg)
        entries.append(entry)
    return entries


def parse_lines(data: bytes) -> Iterator[tuple[int, Entry | str]]:
    """Yield the number of each line of a manifest, and its entry, or the reason why the line is invalid."""
    keys: set[str] = set()
    for number, line in enumerate(data.splitlines(), 1):
        try:
            entry = Entry.from_json(parse_json(line))
        except (DocumentError, GrammarError) as error:
            yield number, str(error)
            continue
        yield number, f"the key {shown(entry.key)} occurs twice" if entry.key in keys else entry
        keys.add(entry.key)


def make_seal(entries: Iterable[Entry], manifest: bytes) -> Seal:
    """Return the seal for the root's attributes, whose ``root`` `sign_root` fills in.

    ``content_digest`` covers only keys, rows and decoded content: it is the same if encoders differ.
    """
    entries = sorted(entries, key=lambda entry: entry.key)
    content = xxhash.xxh3_128()
    for entry in entries:
        if entry.content is not None:
            content.update(f"{entry.key} {entry.rows} {entry.content}\n".encode())
    return Seal(
        manifest=MANIFEST,
        digest=xxhash.xxh3_128_hexdigest(manifest),
        files=len(entries),
        bytes=sum(entry.bytes for entry in entries),
        content_digest=content.hexdigest(),
        root=_UNSIGNED,
    )


def sign_root(document: bytes) -> bytes:
    """Put into the root's seal the xxh3-128 of the document with 32 zeros there."""
    # The seal comes last in the document, so its ``root`` is the last member of that name
    digest = xxhash.xxh3_128_hexdigest(document).encode()
    before, _, after = document.rpartition(_ROOT_MEMBER % _UNSIGNED.encode())
    return before + _ROOT_MEMBER % digest + after


def root_digest(document: bytes) -> str:
    """Return the digest in a root document, empty if it is not byte for byte the one that was signed."""
    root_members = list(re.finditer(_ROOT_MEMBER % b"([0-9a-f]{32})", document))
    if not root_members:
        return ""
    start, end = root_members[-1].span(1)
    unsigned = document[:start] + _UNSIGNED.encode() + document[end:]
    digest: str = xxhash.xxh3_128_hexdigest(unsigned)
    return digest if digest.encode() == document[start:end] else ""


_MEMBER = "consolidated_metadata"


def repeated_documents(root: Attributes) -> dict[str, JsonObject]:
    """Return the documents below the root that a root document repeats, by path. Empty: it has none."""
    consolidated = root.get(_MEMBER)
    documents = consolidated.get("metadata") if isinstance(consolidated, dict) else None
    return documents if isinstance(documents, dict) else {}


def root_head(documents: Mapping[str, bytes]) -> bytes:
    """Return the beginning of the root document, up to its attributes.

    It repeats all documents below the root, for zarr-python and xarray.
    """
    metadata = {
        key.removesuffix(f"/{ROOT}"): parse_document(documents[key])
        for key in sorted(documents)
        if key.endswith(f"/{ROOT}")
    }
    repeated = {"kind": "inline", "must_understand": False, "metadata": metadata}
    text = json.dumps(repeated, separators=(",", ":"), allow_nan=False)
    return f'{{\n "zarr_format": 3,\n "node_type": "group",\n "{_MEMBER}": {text},\n'.encode()
