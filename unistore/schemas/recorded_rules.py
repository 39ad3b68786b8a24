"""What a root records: tables, options, the seal, and the rule of each array, which readers keep to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, NamedTuple

from unistore.errors import CorruptionError, Problem
from unistore.schemas.array_specs import SAMPLES, ArrayInfo, ArraySpec, Limit, is_circular, rule_problems
from unistore.schemas.tables import name_problem
from unistore.system.types import Attributes, JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """The final checksum of a store, members in the order in which a root has them.

    Attributes
    ----------
    manifest : str
        Name of the manifest.
    digest : str
        Checksum of the manifest.
    files, bytes : int
        Number and size of the files in the manifest.
    content_digest : str
        Checksum of keys, rows and decoded content: the same if encoders differ.
    root : str
        Checksum of the root document.
    """

    manifest: str
    digest: str
    files: int
    bytes: int
    content_digest: str
    root: str

    def to_json(self) -> JsonObject:
        """Return the member ``seal`` of a root."""
        return asdict(self)


class Package(NamedTuple):
    """The installed package of the family of a store. The version is empty if it is unknown."""

    name: str
    version: str


class SkippedEntry(NamedTuple):
    """A problem for which a source, or an item of one, was skipped: an entry of the option ``skipped``.

    Attributes
    ----------
    file, dataset : str
        Place of the problem.
    reason, fix, kind : str
        The problem.
    left_out : str
        Name of what was skipped.
    row : int or None
        Row of the dataset. None: the problem is not of one row.
    """

    file: str
    dataset: str
    reason: str
    fix: str
    kind: str
    left_out: str
    row: int | None = None

    @classmethod
    def from_json(cls, entry: Attributes) -> SkippedEntry:
        """Return the entry of its JSON object."""
        return cls(
            file=entry.get("file", ""),
            dataset=entry.get("dataset", ""),
            reason=entry["reason"],
            fix=entry.get("fix", ""),
            kind=entry.get("kind", ""),
            left_out=entry["left_out"],
            row=entry.get("row"),
        )

    def is_among(self, sources: Collection[str]) -> bool:
        """Return whether it is one of the sources of these names, or an item of one."""
        return self.left_out in sources or self.left_out.partition(": ")[0] in sources

    def to_json(self) -> JsonObject:
        """Return the JSON object, which has a row only if the problem is of one."""
        entry = self._asdict()
        return entry if self.row is not None else {name: entry[name] for name in self._fields[:-1]}


def skipped_entries(options: Attributes) -> list[SkippedEntry]:
    """Return what was skipped, as the options of a conversion state it."""
    return list(map(SkippedEntry.from_json, options.get("skipped", ())))


class StatedFamily(NamedTuple):
    """What a root states about the family: code of its sample kinds, and its package."""

    kinds: Sequence[str]
    package: Package


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredField:
    """What a root states about an array.

    Attributes
    ----------
    axes : tuple of str
        Names of the axes.
    unit : str or None
        Unit of the values.
    description : str
        What the values are. Empty: it is not stated.
    members : mapping
        The JSON object itself. `StatedRules` parses its rule with the first use.
    """

    axes: tuple[str, ...]
    unit: str | None = None
    description: str = ""
    members: Attributes


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRoot:
    """The ``unistore`` object of a root, or what a version states about one of its parts.

    Attributes
    ----------
    family : str
        Name of the family.
    sample_table, main_table : str
        Tables of the samples, and of the values of the sources.
    sample_count : int
        Number of samples.
    fields : mapping of str to StoredField
        The arrays, by path.
    tables : mapping of str to sequence of str
        Names of the columns of each table.
    kinds : sequence of str
        Code of the sample kinds, the default one first.
    package : Package
        Package of the family.
    options, created_with, statistics : mapping
        Options of the conversion, versions of libraries, and moments of fields. Empty: not stated.
    skipped : int
        Number of skipped sources.
    seal : Seal
        The seal.
    document : mapping
        The JSON object itself, with members that only some readers need.
    """

    family: str
    sample_table: str
    main_table: str
    sample_count: int
    fields: Mapping[str, StoredField]
    tables: Mapping[str, Sequence[str]]
    kinds: Sequence[str]
    package: Package
    options: Attributes
    created_with: Attributes
    statistics: Attributes
    skipped: int
    seal: Seal
    document: Attributes

    def to_json(self) -> JsonObject:
        """Return the object as a root has it, with fields and tables of added columns."""
        return {
            **self.document,
            "samples": {"count": self.sample_count, "table": self.sample_table},
            "tables": {table: list(columns) for table, columns in self.tables.items()},
            "fields": {path: dict(field.members) for path, field in self.fields.items()},
            "seal": self.seal.to_json(),
        }


# Members of each object in the root's ``fields``
RULE = "rule"
ABSENT = "absent"  # what all rows have in stores that lack the array; not there if no store lacks it
MORE = "extends"  # of the member ``side`` of a side table's root: what it adds to rules of its store

_LIMITS = ("like", "limits")
_DEFAULTS = {member.name: member.default for member in fields(ArraySpec) if member.name != ABSENT}


class RuleError(CorruptionError):
    """A root states an invalid rule, or a rule that refers back to its own array."""

    def __init__(self, store: str, reason: str) -> None:
        super().__init__(f"{store}: zarr.json is damaged: {reason}. Fix: unistore verify {store}")
        self.store = store
        self.reason = reason

    def __reduce__(self) -> tuple[type[RuleError], tuple[str, str]]:
        return type(self), (self.store, self.reason)


def rule_of(spec: ArraySpec) -> JsonObject:
    """Return the JSON object of a rule, without the members that say nothing."""
    stated = {name: getattr(spec, name) for name in _DEFAULTS}
    return {name: _plain(value) for name, value in stated.items() if value != _DEFAULTS[name]}


def recorded(spec: ArraySpec) -> JsonObject:
    """Return the members of a root's ``fields`` that state a rule, and what rows have without the array."""
    absent = {} if spec.absent is None else {ABSENT: spec.absent}
    return {RULE: rule_of(spec), **absent}


def _plain(value: Any) -> Any:
    if isinstance(value, Limit):
        return {"array": value.path, "axes": list(value.axes), "scale": value.scale}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def parse_rule(document: object) -> ArraySpec:
    """Return the rule that `rule_of` made a JSON object of.

    Raises
    ------
    ValueError
        If a member is unknown, or has another form.
    """
    if not isinstance(document, dict):
        msg = f"is {document!r:.80}, expected an object"
        raise ValueError(msg)
    unknown = sorted(document.keys() - _PARSERS.keys())
    if unknown:
        msg = f"has the unknown member {unknown[0]!r:.80}"
        raise ValueError(msg)
    members = {}
    for name, value in document.items():
        try:
            members[name] = _PARSERS[name](value)
        except (TypeError, ValueError, KeyError) as error:
            msg = f"has an invalid member {name!r}: {value!r:.80}"
            raise ValueError(msg) from error
    return ArraySpec(**members)


def _rule_of_field(field: StoredField) -> ArraySpec:
    """Return the rule that `recorded` stated."""
    rule = parse_rule(field.members.get(RULE))
    absent = field.members.get(ABSENT)
    if absent is not None and type(absent) not in (bool, int, float, str):
        msg = f"has an invalid member {ABSENT!r}: {absent!r:.80}"
        raise ValueError(msg)
    return replace(rule, absent=absent)


def _of_type(kind: type) -> Callable[[Any], Any]:
    def parse(value: Any) -> Any:
        if type(value) is not kind:
            raise TypeError
        return value

    return parse


_text = _of_type(str)
_whole = _of_type(int)


def _several(parse: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    def parse_all(values: Any) -> tuple[Any, ...]:
        return tuple(map(parse, _of_type(list)(values)))

    return parse_all


def _path(value: Any) -> str:
    if _text(value) != SAMPLES and name_problem(value) is not None:
        raise ValueError
    return str(value)


def _length(value: Any) -> int | None:
    return None if value is None else int(_whole(value))


def _counted(value: Any) -> tuple[str, int]:
    path, more = _of_type(list)(value)
    return _path(path), int(_whole(more))


def _limit(value: Any) -> Limit:
    members = _of_type(dict)(value)
    if members.keys() != {"array", "axes", "scale"}:
        raise ValueError
    limit = Limit(_path(members["array"]), _several(_whole)(members["axes"]), int(_whole(members["scale"])))
    if not limit.axes or min(limit.axes) < 0 or limit.scale < 1:
        raise ValueError
    return limit


_PARSERS: Mapping[str, Callable[[Any], Any]] = {
    "dtypes": _several(_text),
    "kinds": _text,
    "row_shape": _several(_length),
    "rows": _counted,
    "beside": _several(_path),
    "like": _several(_limit),
    "offsets_of": lambda value: _path(value) if isinstance(value, str) else _limit(value),
    "repeated": _of_type(bool),
    "indexes": _counted,
    "ascending": _of_type(bool),
    "least": _whole,
    "most": _whole,
    "limits": _several(_limit),
    "text": _of_type(bool),
}


class StatedRules(Mapping[str, ArraySpec]):
    """The rules that a root states in its ``fields``, each parsed with its first use."""

    def __init__(self, stated: Mapping[str, StoredField], store: str) -> None:
        self._stated = stated
        self._store = store
        self._parsed: dict[str, ArraySpec] = {}

    def __getitem__(self, path: str) -> ArraySpec:
        """Return the rule of an array. `RuleError` if none can keep it."""
        rule = self._parsed.get(path)
        if rule is None:
            try:
                rule = _rule_of_field(self._stated[path])
            except ValueError as error:
                raise RuleError(self._store, f"the rule of {path!r} {error}") from error
            self._parsed[path] = rule  # found by the search for circles, and forgotten if there is one
            if self._is_circular(path):
                del self._parsed[path]
                raise RuleError(self._store, f"the rule of {path!r} refers back to its own array")
        return rule

    def _is_circular(self, path: str) -> bool:
        try:
            return is_circular(self, path)
        except RuleError:
            del self._parsed[path]
            raise

    def __iter__(self) -> Iterator[str]:
        return iter(self._stated)

    def __len__(self) -> int:
        return len(self._stated)


class RecordedSpecs:
    """The rules of the arrays of one store, by path.

    Parameters
    ----------
    rules
        Rule of each array, those of side tables included.
    """

    def __init__(self, rules: Mapping[str, ArraySpec]) -> None:
        self._rules = rules

    def of(self, path: str) -> ArraySpec:
        """Return the rule of an array."""
        return self._rules[path]

    def rules(self) -> Mapping[str, ArraySpec]:
        """Return the rules of all arrays by path."""
        return self._rules

    def texts(self) -> list[str]:
        """Return the paths of all text columns, which have ``data`` and ``offsets``."""
        return [path.removesuffix("/data") for path, rule in self._rules.items() if rule.text]

    def problems(self, arrays: Mapping[str, ArrayInfo], samples: int) -> list[Problem]:
        """Return the arrays that have other axes, dtype or rows than their rule."""
        return rule_problems(self._rules, arrays, samples)


def with_side_table(
    stated: Mapping[str, StoredField],
    of_side_table: Mapping[str, StoredField],
    more: Mapping[str, JsonObject],
    store: str,
) -> dict[str, StoredField]:
    """Return ``fields`` of a store and of a side table, with what that adds to rules of the store (`MORE`).

    Raises
    ------
    RuleError
        If a rule of the store, which is named, cannot be kept as it is.
    ValueError
        If the side table adds what no rule can have, or to an array that the store does not have.
    """
    rules = StatedRules(stated, store)
    fields = {**stated, **of_side_table}
    for path, added in more.items():
        if path not in stated:
            msg = f"adds to the rule of {path!r}, but {store} has no such array"
            raise ValueError(msg)
        rule = rule_of(rules[path])
        try:
            further = parse_rule(added)
        except ValueError as error:
            msg = f"adds to the rule of {path!r} a rule that {error}"
            raise ValueError(msg) from error
        if foreign := sorted(added.keys() - {*_LIMITS}):
            msg = f"adds {foreign[0]!r} to the rule of {path!r}, expected {' or '.join(_LIMITS)}"
            raise ValueError(msg)
        if missing := [need for need in further.needs if need not in fields]:
            msg = f"adds a limit to the rule of {path!r} by the array {missing[0]!r}, which does not exist"
            raise ValueError(msg)
        for name in added:
            rule[name] = [*rule.get(name, ()), *_plain(getattr(further, name))]
        fields[path] = replace(stated[path], members={**stated[path].members, RULE: rule})
    joined = StatedRules(fields, store)
    try:
        for path in more:
            joined[path]  # raises if it leads back to itself by now
    except RuleError as error:
        msg = f"makes a circle: {error.reason}"
        raise ValueError(msg) from error
    return fields


def extensions(before: RecordedSpecs, after: RecordedSpecs) -> dict[str, JsonObject]:
    """Return what rules of `before` gain with further arrays: limits, by the path of their array."""
    more: dict[str, JsonObject] = {}
    for path, rule in before.rules().items():
        further = after.of(path)
        for name in _LIMITS:
            known = getattr(rule, name)
            gained = [_plain(limit) for limit in getattr(further, name) if limit not in known]
            if gained:
                more.setdefault(path, {})[name] = gained
    return more
