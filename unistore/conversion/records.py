"""Values and records as JSON, from which another process makes them again: nothing is unpickled or called."""

from __future__ import annotations

import io
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from unistore.converters.opened import Format

_PLAIN = (str, int, float, bool, type(None))
_COLLECTIONS: dict[str, Callable[[Any], Any]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "dict": dict,
}


def to_json(value: object) -> Any:
    """Return JSON from which `from_json` makes an equal value.

    Raises
    ------
    TypeError
        For a value that is no text, number, array, dtype, path, collection, or record of unistore.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, bytes):
        return {"bytes": b64encode(value).decode()}
    if isinstance(value, Path):
        return {"path": str(value)}
    if isinstance(value, np.dtype):
        return {"dtype": _npy(np.empty(0, value))}
    if isinstance(value, np.ndarray | np.generic):
        return {"scalar" if isinstance(value, np.generic) else "array": _npy(np.asarray(value))}
    if kind is list:
        return list(map(to_json, value))  # type: ignore[call-overload]
    if kind in _COLLECTIONS.values():
        items = value.items() if isinstance(value, dict) else value
        return {kind.__name__: list(map(to_json, items))}  # type: ignore[call-overload]
    if isinstance(value, Enum):
        return {"member": value.name, "of": _name(kind)}
    return {"record": _name(kind), "fields": [to_json(getattr(value, name)) for name in _field_names(kind)]}


def from_json(document: Any) -> Any:
    """Make the value of a document that `to_json` may have written.

    Raises
    ------
    TypeError, ValueError, LookupError, AttributeError, ImportError
        For any other document.
    """
    if isinstance(document, _PLAIN):
        return document
    if isinstance(document, list):
        return list(map(from_json, document))
    if "record" in document:
        return _record(document["record"], list(map(from_json, document["fields"])))
    if "member" in document:
        members = _class(document["of"])
        return members[document["member"]]  # type: ignore[index]
    ((kind, content),) = document.items()
    if kind in _COLLECTIONS:
        return _COLLECTIONS[kind](map(from_json, content))
    return _SCALARS[kind](content)


def _npy(array: np.ndarray[Any, Any]) -> str:
    file = io.BytesIO()
    try:
        np.save(file, array, allow_pickle=False)
    except ValueError as error:
        raise TypeError(error) from error
    return b64encode(file.getvalue()).decode()


def _array(text: str) -> Any:
    return np.load(io.BytesIO(b64decode(text)), allow_pickle=False)


_SCALARS: Mapping[str, Callable[[str], Any]] = {
    "bytes": b64decode,
    "path": Path,
    "array": _array,
    "scalar": lambda text: _array(text)[()],
    "dtype": lambda text: _array(text).dtype,
}


def _name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _class(name: str) -> type:
    """Return a record or an enumeration of unistore."""
    module, _, path = name.partition(":")
    if not module.startswith("unistore.") or module.endswith("__main__") or not path.isidentifier():
        msg = f"{name} is not a record of unistore"
        raise TypeError(msg)
    own_class = getattr(sys.modules.get(module) or import_module(module), path)
    if not isinstance(own_class, type) or own_class.__module__ != module:
        msg = f"{name} is not a class of this module"
        raise TypeError(msg)
    return own_class


def _field_names(kind: type) -> tuple[str, ...]:
    if not kind.__module__.startswith("unistore."):
        msg = f"{_name(kind)} is not a record of unistore"
        raise TypeError(msg)
    if issubclass(kind, Format):  # which has no state
        return ()
    if is_dataclass(kind):
        return tuple(field.name for field in fields(kind))
    if issubclass(kind, tuple):
        return kind._fields  # type: ignore[attr-defined, no-any-return]
    msg = f"{_name(kind)} is not a record"
    raise TypeError(msg)


def _record(name: str, values: list[Any]) -> Any:
    kind = _class(name)
    names = _field_names(kind)
    if len(names) != len(values):
        msg = f"{name} has other fields"
        raise TypeError(msg)
    if issubclass(kind, tuple):
        return tuple.__new__(kind, values)
    record = object.__new__(kind)
    for field, value in zip(names, values, strict=True):
        object.__setattr__(record, field, value)
    return record
