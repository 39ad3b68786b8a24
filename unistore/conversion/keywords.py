"""Spell options of the command line as keyword arguments of `unistore.convert`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

from unistore.conversion.settings import Settings
from unistore.converters.family import Family
from unistore.converters.options import Option, declared
from unistore.errors import AddOptions, GiveOptions, InputError, printable

_FLAGS = ("overwrite", "restart", "seal")
_NUMBERS = ("split_seed", "workers", "wait")
_MOST = 4  # fixes that are spelled


def note_keywords(error: InputError, family: type[Family]) -> None:
    """Add a note to an error, which tracebacks show, that spells its options as keyword arguments.

    Nothing is added if no fix is options of the family or of every conversion.
    """
    fixes = dict.fromkeys(fix for problem in error.problems for fix in problem.fixes)
    spelled = [text for text in map(_Spelling(family), fixes) if text]
    if spelled:
        error.add_note(f"in Python: {', or '.join(spelled[:_MOST])}")


class _Spelling:
    """Spells fixes as keyword arguments of a family.

    Parameters
    ----------
    family
        The family, whose options say the type of each value.
    """

    def __init__(self, family: type[Family]) -> None:
        self._options = {option.flag: option for option in declared(family)}
        self._negative = {option.negative: option for option in declared(family) if option.kind is bool}

    def __call__(self, fix: object) -> str:
        """Return ``'columns="union" to fill what is missing'``, empty if the fix has no such spelling."""
        if isinstance(fix, GiveOptions):
            given = [f"{name.strip('-').replace('-', '_')}=…" for name in fix.names]
            return printable(f"{', '.join(given)} {fix.purpose}".rstrip())
        if not isinstance(fix, AddOptions):
            return ""
        values: dict[str, Any] = {}
        try:
            for name, value in self._values(fix.arguments):
                before = values.get(name)
                if isinstance(before, dict):
                    values[name] = {**before, **value}
                elif isinstance(before, tuple):
                    values[name] = (*before, *value)
                else:
                    values[name] = value
        except (LookupError, ValueError):  # of another command
            return ""
        spelled = ", ".join(f"{name}={_literal(value)}" for name, value in values.items())
        return printable(f"{spelled} {fix.purpose}".rstrip())

    def _values(self, arguments: Sequence[str]) -> Iterator[tuple[str, Any]]:
        """Yield name and value of each option. One that takes several is yielded as often as it is given."""
        words = iter(arguments)
        for word in words:
            if word in self._negative:
                yield self._negative[word].name, False
            elif word in self._options:
                option = self._options[word]
                yield option.name, _value(option, words)
            else:
                yield _setting(word, words)


def _value(option: Option, words: Iterator[str]) -> Any:
    if option.form == "mapping":
        name, _, value = _next(words).partition("=")
        return {name: value}
    if option.form == "one":
        return True if option.kind is bool else option.kind(_next(words))
    count = option.length if option.form == "fixed" else 1
    return tuple(option.kind(_next(words)) for _ in range(count))


def _setting(word: str, words: Iterator[str]) -> tuple[str, Any]:
    """Return name and value of an option of every conversion.

    Raises
    ------
    LookupError
        If there is no such option in Python.
    """
    name = word.removeprefix("--").replace("-", "_")
    if name not in {field.name for field in fields(Settings)}:
        raise LookupError(word)
    if name in _FLAGS:
        return name, True
    value = _next(words)
    return name, int(value) if name in _NUMBERS else value


def _next(words: Iterator[str]) -> str:
    word = next(words, None)
    if word is None:
        raise LookupError("no value")
    return word


def _literal(value: Any) -> str:
    """Return Python code of a value, with texts in double quotes."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_literal(key)}: {_literal(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_literal, value))}]"
    return repr(value)
