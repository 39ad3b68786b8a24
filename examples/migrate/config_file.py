"""Keys of a YAML or JSON file, which may be anyone's: it is small, and means no more than it says."""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

import unistore
from unistore.system.workers import plan

MOST_BYTES = 1 << 16
WORKERS = int | str
NUMBER = int | float
TYPES = {
    int: "an integer",
    NUMBER: "a number",
    bool: "true or false",
    str: "text",
    WORKERS: "'auto', 'cpu*0.9' or a number",
}
# group 1 stays: a string, in which "//" starts no comment, and a comment without end
JSON_PARTS = re.compile(r'("(?:\\.|[^"\\])*"?|/\*(?:(?!\*/).)*\Z)|//[^\n]*|/\*.*?\*/', re.DOTALL)


class Keys:
    """Values of a file by dotted key.

    Raises `unistore.InputError` if the file cannot be read or parsed. Wrong values become `problems`, at most
    one of each key.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.values: dict[str, Any] = {}
        self.used: set[str] = set()
        self.problems: dict[str, unistore.Problem] = {}
        try:
            pairs = _parse(path)
            for key, value in pairs.flat():
                self._add(key, value)
        # PyYAML raises IndexError, AttributeError and more where a value does not fit its tag
        except Exception as error:  # noqa: BLE001
            # PyYAML's messages have several lines, and quote names of any length
            words = str(error).split()
            reason = " ".join(words)[:200]
            self.refuse("", f"cannot be read as a configuration: {reason}")
            self.raise_problems()

    def _add(self, key: str, value: Any) -> None:
        # raises for an integer too long to print, before a message needs it
        reprlib.repr(value)
        if key in self.values and self.values[key] != value:
            self.refuse(key, "is given twice with different values")
        self.values[key] = value

    @property
    def unused(self) -> list[str]:
        """Keys that were not taken, in the file's order."""
        return [key for key in self.values if key not in self.used]

    def has(self, *keys: str) -> bool:
        """Return whether any of the keys is there."""
        return any(key in self.values for key in keys)

    def refuse(self, key: str, message: str) -> None:
        """Add a problem of a key, or of the whole file."""
        self.problems[key] = unistore.Problem(str(self.path), message, dataset=key)

    def raise_problems(self) -> None:
        """Raise an InputError with all problems, if there are any."""
        if self.problems:
            raise unistore.InputError(list(self.problems.values()))

    def take(
        self,
        key: str,
        kind: Any,
        default: Any = None,
        *,
        least: int = 0,
        most: int = 2**31 - 1,
    ) -> Any:
        """Return a value, or `default` where it is absent, null or wrong."""
        self.used.add(key)
        section, _, _ = key.rpartition(".")
        if self.values.get(section) is not None:
            self.refuse(section, "is a value, expected keys and values")
        value = self.values.get(key)
        if value is None:
            return default
        fits = isinstance(value, kind)
        # True is an int to Python
        if isinstance(value, bool) and kind is not bool:
            fits = False
        expected = TYPES[kind]
        if fits and isinstance(value, NUMBER):
            fits = least <= value <= most
            expected = f"{least} to {most}"
        if fits:
            return value
        self.refuse(key, f"is {reprlib.repr(value)}, expected {expected}")
        return default

    def some(self, kind: Any, least: int = 0, **keys: str) -> dict[str, Any]:
        """Return the values of keys under other names, without those that are absent."""
        values = {}
        for name, key in keys.items():
            value = self.take(key, kind, least=least)
            if value is not None:
                values[name] = value
        return values

    def workers(self, key: str) -> str | None:
        """Return a number of workers, "auto" or "cpu*0.9", None where it is absent or wrong."""
        workers = self.take(key, WORKERS)
        if workers is None:
            return None
        try:
            plan(workers)
        except unistore.InputError:
            self.refuse(key, f"is {reprlib.repr(workers)}, expected {TYPES[WORKERS]}")
            return None
        return str(workers).strip().lower()


class _Pairs(list[tuple[Any, Any]]):
    """Keys and values of a mapping, in which a key may stand twice."""

    def flat(self, prefix: str = "") -> Iterator[tuple[str, Any]]:
        """Yield dotted keys and values."""
        for key, value in self:
            if isinstance(value, _Pairs):
                yield from value.flat(f"{prefix}{key}.")
            else:
                yield f"{prefix}{key}", value


class _YamlLoader(yaml.SafeLoader):
    """Reads mappings as pairs."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Refuse aliases of lists and mappings: a few lines of them may stand for a billion values."""
        is_alias = self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        if is_alias and not isinstance(node, yaml.ScalarNode):
            raise yaml.YAMLError("an alias repeats a list or a mapping: write it out")
        return node

    def construct_mapping_pairs(self, node: Any) -> _Pairs:
        """Read a mapping."""
        return _Pairs(self.construct_pairs(node, deep=True))


_YamlLoader.add_constructor("tag:yaml.org,2002:map", _YamlLoader.construct_mapping_pairs)


def _parse(path: Path) -> _Pairs:
    """Parse a YAML file, or a JSON file with comments and maybe without its outer braces."""
    text = _read(path)
    if path.suffix.lower() == ".json":
        text = JSON_PARTS.sub(lambda part: part[1] or " ", text).strip()
        if text.startswith('"'):
            text = "{" + text.rstrip(",") + "}"
        pairs = json.loads(text, object_pairs_hook=_Pairs)
    else:
        pairs = yaml.load(text, _YamlLoader)
    if not isinstance(pairs, _Pairs):
        message = f"it holds {type(pairs).__name__}, expected keys and values"
        raise TypeError(message)
    return pairs


def _read(path: Path) -> str:
    # opening a pipe waits for its writer, and a device has no end
    if path.exists() and not path.is_file():
        raise ValueError("it is no regular file")
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        message = f"it has more than {MOST_BYTES:,} bytes"
        raise ValueError(message)
    return content.decode("utf-8-sig")
