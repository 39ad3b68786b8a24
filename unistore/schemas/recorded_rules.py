"""What a root records: the rule of each array as a JSON object, which readers keep to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from unistore.errors import CorruptionError, Problem
from unistore.schemas.array_specs import SAMPLES, ArrayInfo, ArraySpec, Limit, is_circular, rule_problems
from unistore.schemas.tables import name_problem
from unistore.system.types import JsonObject

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


def _parse_field(document: JsonObject) -> ArraySpec:
    """Return the rule that `recorded` stated."""
    rule = parse_rule(document.get(RULE))
    absent = document.get(ABSENT)
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

    def __init__(self, documents: Mapping[str, JsonObject], store: str) -> None:
        self._documents = documents
        self._store = store
        self._parsed: dict[str, ArraySpec] = {}

    def __getitem__(self, path: str) -> ArraySpec:
        """Return the rule of an array. `RuleError` if none can keep it."""
        rule = self._parsed.get(path)
        if rule is None:
            try:
                rule = _parse_field(self._documents[path])
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
        return iter(self._documents)

    def __len__(self) -> int:
        return len(self._documents)


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
    documents: Mapping[str, JsonObject],
    side_documents: Mapping[str, JsonObject],
    more: Mapping[str, JsonObject],
    store: str,
) -> dict[str, JsonObject]:
    """Return ``fields`` of a store and of a side table, with what that adds to rules of the store (`MORE`).

    Raises
    ------
    RuleError
        If a rule of the store, which is named, cannot be kept as it is.
    ValueError
        If the side table adds what no rule can have, or to an array that the store does not have.
    """
    stated = StatedRules(documents, store)
    fields = {**documents, **side_documents}
    for path, added in more.items():
        if path not in documents:
            msg = f"adds to the rule of {path!r}, but {store} has no such array"
            raise ValueError(msg)
        rule = rule_of(stated[path])
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
        fields[path] = {**documents[path], RULE: rule}
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
