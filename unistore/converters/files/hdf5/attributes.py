"""Read attributes and single values of HDF5 files as one JSON text per source."""

# A dataset without axes, or with one text, is such a value. It stands among the attributes, without a name.
# An attribute is left out if its name is not UTF-8, if its type has no meaning outside its file (references,
# values of variable length), if it cannot be read, or if a size limit is reached. A note says so.
# A store has one JSON text per source, ``sources/hdf5_attributes``: ``{path: {name: entry}}``, each entry as
# `encode` makes it.

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from operator import attrgetter
from typing import Any

import numpy as np

from unistore.converters.common.exported import VALUE
from unistore.converters.common.faults import is_out_of_memory, is_read_error, is_unreadable
from unistore.converters.files.hdf5 import library as h5py
from unistore.converters.files.hdf5.file import (
    FAILURES,
    check_dataset,
    file_of,
    names_in,
    read_objects,
)
from unistore.converters.files.hdf5.tree import Tree
from unistore.converters.files.libraries import objects_in
from unistore.errors import InputError, first_few, location_of, names_without_numbers, printable
from unistore.schemas.indices import StoreView
from unistore.schemas.tables import HDF5_ATTRIBUTES, Field, IndexValues, lazy_text_arrays
from unistore.system.foreign import begin_reading
from unistore.system.packed import view
from unistore.system.sizes import count_of
from unistore.system.types import AnyArray, Dtype, JsonObject

# Lossless JSON of one HDF5 attribute: dtype, shape and values.
#
# ::
#
#     {"dtype": "<f4", "value": 0.5}                        a number
#     {"dtype": ">i2", "shape": [2], "value": [1, 2]}       an array, its values in C order
#     {"dtype": "text", "encoding": "utf-8", "value": "m"}  text; "bytes": its length, if fixed
#     {"dtype": "<f4", "shape": null}                       empty (a null dataspace)
#     {"shape": [], "fields": {"a": …, "b": …}}             a compound value: its fields, each as above
#
# Floats that JSON lacks are strings, as in Zarr's fill values: "NaN", "Infinity", "-Infinity", and "0x" with
# the bits of any other NaN. Complex numbers are pairs. Bytes that are not UTF-8 are {"hex": "ff"}.

_TEXT = "text"
_SPECIAL_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def type_problem(dtype: Dtype) -> str | None:
    """Return why values of a dtype cannot be stored, or None if they can."""
    if dtype.fields is not None:
        inner = (type_problem(field) for field, *_ in dtype.fields.values())
        return next((problem for problem in inner if problem is not None), None)
    if dtype.subdtype is not None:
        return type_problem(dtype.base)
    if h5py.check_string_dtype(dtype) is not None:
        return None
    if h5py.check_ref_dtype(dtype) is not None:
        return "references"
    if dtype.kind == "O":
        return "values of variable length"
    if dtype.kind in "biufc" and dtype.itemsize <= (16 if dtype.kind == "c" else 8):
        return None
    return f"values of dtype {dtype}"


def encode(values: AnyArray | None, dtype: Dtype) -> JsonObject:
    """Return an attribute as JSON.

    Parameters
    ----------
    values : array or None
        As `h5py.h5a.AttrID.read` returns it, with text as bytes. None: the attribute is empty.
    dtype : numpy.dtype
        Its dtype, for which `type_problem` is None.
    """
    if values is None:
        return {**_describe_dtype(dtype)[0], "shape": None}
    if dtype.fields is not None:
        fields = {name: encode(values[name], field.base) for name, (field, *_) in dtype.fields.items()}
        return {"shape": list(values.shape), "fields": fields}
    kind, element = _describe_dtype(dtype)
    elements = [element(value) for value in values.reshape(-1)]
    if not values.shape:
        return {**kind, "value": elements[0]}
    return {**kind, "shape": list(values.shape), "value": elements}


def _describe_dtype(dtype: Dtype) -> tuple[JsonObject, Callable[[Any], Any]]:
    """JSON of a dtype, and the function that converts one value of it to JSON."""
    text = h5py.check_string_dtype(dtype)
    if text is not None:
        length = {} if text.length is None else {"bytes": text.length}
        return {"dtype": _TEXT, "encoding": text.encoding, **length}, _text_to_json
    described: JsonObject = {"dtype": dtype.str}
    if dtype.kind == "c":
        return described, _complex_to_json
    if dtype.kind == "f":
        return described, _float_to_json
    names = h5py.check_enum_dtype(dtype)
    if names is not None:
        described["enum"] = {str(name): int(number) for name, number in names.items()}
    return described, np.generic.item


def _complex_to_json(value: Any) -> Any:
    return [_float_to_json(value.real), _float_to_json(value.imag)]


def _text_to_json(value: bytes) -> Any:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return {"hex": value.hex()}


def _float_to_json(value: Any) -> Any:
    number = float(value)
    if math.isfinite(number):
        return number
    for name, special in _SPECIAL_FLOATS.items():
        if np.asarray(special, value.dtype).tobytes() == value.tobytes():
            return name
    return f"0x{int(value.view(f'u{value.itemsize}')):0{2 * value.itemsize}x}"


def is_plain(entry: Mapping[str, Any]) -> bool:
    """Return whether h5py writes the same attribute given the value alone: UTF-8 text or Python numbers."""
    value = entry.get("value")
    if entry.get("dtype") == _TEXT:
        return isinstance(value, str) and entry["encoding"] == "utf-8" and "bytes" not in entry
    values = value if isinstance(value, list) else [value]
    is_python = entry.get("dtype") in ("<i8", "<f8", "|b1") and "enum" not in entry
    return is_python and bool(values) and all(isinstance(item, int | float) for item in values)


def decode(entry: Mapping[str, Any]) -> Any:
    """Return the array of an attribute, with text as bytes, or `h5py.Empty`: the inverse of `encode`.

    Raises
    ------
    AttributeError, LookupError, TypeError, ValueError
        If the entry is not a result of `encode`.
    """
    if "fields" in entry:
        return _decode_compound(entry)
    dtype = _decode_dtype(entry)
    shape = entry.get("shape", ())
    if shape is None:
        return h5py.Empty(dtype)
    values = entry["value"] if "shape" in entry else [entry["value"]]
    out = np.empty(len(values), dtype)
    for number, value in enumerate(values):
        out[number] = _decode_value(value, dtype)
    return out.reshape(tuple(shape))


def _decode_compound(entry: Mapping[str, Any]) -> AnyArray:
    fields = {name: decode(field) for name, field in entry["fields"].items()}
    shape = tuple(entry["shape"])
    if any(values.shape[: len(shape)] != shape for values in fields.values()):
        raise ValueError(f"fields of a compound value of shape {shape} have another shape")
    forms = [(name, values.dtype, values.shape[len(shape) :]) for name, values in fields.items()]
    whole = np.empty(shape, np.dtype(forms))
    for name, values in fields.items():
        whole[name] = values
    return whole


def _decode_dtype(entry: Mapping[str, Any]) -> Dtype:
    if entry["dtype"] == _TEXT:
        text: Dtype = h5py.string_dtype(entry["encoding"], entry.get("bytes"))
        return text
    dtype: Dtype = np.dtype(entry["dtype"])
    if (problem := type_problem(dtype)) is not None or dtype.fields is not None:
        raise ValueError(f"attributes cannot have {problem or 'fields in their dtype'}")
    return h5py.enum_dtype(entry["enum"], dtype) if "enum" in entry else dtype


def _decode_value(value: Any, dtype: Dtype) -> Any:
    if dtype.kind == "c":
        part = np.dtype(f"{dtype.str[0]}f{dtype.itemsize // 2}")
        return np.array([_decode_value(number, part) for number in value], part).view(dtype)[0]
    if h5py.check_string_dtype(dtype) is not None:
        return bytes.fromhex(value["hex"]) if isinstance(value, Mapping) else value.encode()
    if not isinstance(value, str):
        return value
    if value in _SPECIAL_FLOATS:
        return _SPECIAL_FLOATS[value]
    bits = np.array(int(value, 16), f"u{dtype.itemsize}")
    return bits.view(dtype.newbyteorder("="))[()]


MAX_ATTRIBUTE_BYTES = 256 << 10
MAX_FILE_BYTES = 1 << 20
# Limits on the JSON of one attribute, of all attributes of a file, and of all files of a store
MAX_STORE_BYTES = 256 << 20

_TOO_LARGE = f"larger than {MAX_ATTRIBUTE_BYTES >> 10} KiB"
NO_ATTRIBUTES = "{}"
_LISTED = 5

Entry = JsonObject
# `(path, h5py object, name, entry)`: whether an export writes this attribute without its being stored
IsRewritten = Callable[[str, Any, str, Entry], bool]


@dataclass
class Attributes:
    """The attributes of one file.

    Attributes
    ----------
    kept : dict of str to (tuple of str, str)
        By path of the group or dataset (empty: the root), the names of its attributes, and their JSON.
    left_out : dict of str to (str, int)
        By reason, the first attribute that is not stored, and their number.
    """

    kept: dict[str, tuple[tuple[str, ...], str]] = field(default_factory=dict)
    left_out: dict[str, tuple[str, int]] = field(default_factory=dict)

    @property
    def single_values(self) -> set[str]:
        """Return the paths of the single values among them."""
        return {path for path, (names, _) in self.kept.items() if VALUE in names}


def objects_of(
    file: h5py.File, tree: Tree, wanted: Callable[[str], bool]
) -> Iterator[tuple[str, h5py.HLObject]]:
    """Yield path and object of the root, all groups, the wanted datasets and those of single values."""
    yield "", file
    for path in tree.groups:
        yield path, file[path]
    for path, dataset in tree.datasets.items():
        if wanted(path) or is_single_value(dataset):
            yield path, dataset


def is_single_value(dataset: h5py.Dataset) -> bool:
    """Return whether a dataset is no array: it has no axes, or holds one text."""
    if dataset.shape == ():
        return True
    return dataset.size == 1 and h5py.check_string_dtype(dataset.dtype) is not None


def read_attributes(
    objects: Iterable[tuple[str, h5py.HLObject]], is_rewritten: IsRewritten = lambda *_: False
) -> Attributes:
    """Read the attributes of groups and datasets, given with their paths, but those that are rewritten."""
    attributes = Attributes()
    bytes_left = MAX_FILE_BYTES
    for path, item in objects:
        begin_reading()
        kept: dict[str, Entry] = {}
        for name, entry in _entries(item):
            reason = entry
            if not isinstance(entry, str):
                if is_rewritten(path, item, name, entry):
                    continue
                size = len(json.dumps({name: entry, "" if kept else path: 0}))
                if size <= min(MAX_ATTRIBUTE_BYTES, bytes_left):
                    bytes_left -= size
                    kept[name] = entry
                    continue
                reason = f"more than {MAX_FILE_BYTES >> 20} MiB of attributes in one file"
                reason = _TOO_LARGE if size > MAX_ATTRIBUTE_BYTES else reason
            label = attribute_label(path, name).removeprefix("attribute ")
            first, count = attributes.left_out.get(str(reason), (label, 0))
            attributes.left_out[str(reason)] = first, count + 1
        if kept:
            attributes.kept[path] = tuple(kept), json.dumps(kept)
    return attributes


def _entries(item: h5py.HLObject) -> Iterator[tuple[str, Entry | str]]:
    """Names of the attributes of an object, and the entry of each or the reason why it is left out."""
    if isinstance(item, h5py.Dataset) and is_single_value(item):
        yield VALUE, _value_entry(item)
    for number in range(h5py.h5a.get_num_attrs(item.id)):
        yield _entry(item, {"index": number})


def _value_entry(dataset: h5py.Dataset) -> Entry | str:
    dtype = dataset.dtype
    location = location_of(file_of(dataset).name, dataset.name)
    problem = type_problem(dtype)
    if problem is None and check_dataset(dataset, location, allow_object=True):
        problem = "unreadable"
    if problem is not None:
        return problem
    try:
        return encode(np.array(read_objects(dataset, location), dtype), dtype)
    except InputError as error:
        if is_unreadable(error):
            raise
        return "unreadable"


def _entry(item: h5py.HLObject, key: Mapping[str, Any]) -> tuple[str, Entry | str]:
    """Name of an attribute, which has this name or index, and its entry or why it is left out."""
    name = f"number {key.get('index')}"
    try:
        attribute = h5py.h5a.open(item.id, **key)
        raw: bytes = attribute.name
        name = raw.decode("utf-8", "backslashreplace")
        if not raw or name.encode() != raw:
            return name, "without a name in UTF-8"
        shape = attribute.shape
        dtype = attribute.dtype
        if (problem := type_problem(dtype)) is not None:
            return name, problem
        if shape is None:
            return name, "no value of a compound type" if dtype.fields else encode(None, dtype)
        if prod(shape) * dtype.itemsize > MAX_ATTRIBUTE_BYTES:
            return name, _TOO_LARGE
        values = np.empty(shape, dtype)
        attribute.read(values)
        return name, encode(values, dtype)
    except (*FAILURES, AttributeError) as error:
        if is_read_error(error) or is_out_of_memory(error):
            raise
        return name, "unreadable"


def json_attributes(group: h5py.Group, as_json: Callable[[Any], Any]) -> JsonObject:
    """Return attributes of a group as JSON. Those that cannot be read have a text that says so."""
    values: JsonObject = {}
    for key in names_in(group.attrs, location_of(file_of(group).name, group.name)):
        try:
            value = group.attrs[key]
            values[key] = None if isinstance(value, h5py.Empty) else as_json(value)
        except (OSError, TypeError, ValueError) as error:
            if is_read_error(error) or is_out_of_memory(error):
                raise
            values[key] = f"unreadable: {error}"
    return values


def attribute_label(path: str, name: str) -> str:
    """Return the name of an attribute, or of a single value, for messages."""
    return path if name == VALUE else f"attribute {name} of {path or '/'}"


class AttributeCollector:
    """Collects the attributes of all sources of a conversion, as texts."""

    def __init__(self) -> None:
        self._names: Counter[str] = Counter()
        self._size = 0
        self._sources = 0
        self._left_out: dict[str, list[tuple[str, int]]] = {}

    def text(
        self, source: str, found: Attributes | None, stored: Callable[[str], bool] = lambda _: True
    ) -> str:
        """Return the attributes of a source as JSON.

        Parameters
        ----------
        source : str
            Name of the source, for notes.
        found : Attributes or None
            Its attributes. None: its format does not have any.
        stored : callable, optional
            Called with the path of a group or dataset; returns whether it is stored. By default all are.
        """
        if found is None:
            return NO_ATTRIBUTES
        for reason, (first, count) in found.left_out.items():
            self._left_out.setdefault(reason, []).append((f"{first} in {source}", count))
        names: list[str] = []
        texts: list[str] = []
        for path, (names_at_path, entries) in found.kept.items():
            if VALUE in names_at_path or stored(path):
                names += [name or path for name in names_at_path]
                texts.append(f"{json.dumps(path)}: {entries}")
        text = f"{{{', '.join(texts)}}}"
        if self._size + len(text) > MAX_STORE_BYTES:
            reason = f"more than {MAX_STORE_BYTES >> 20} MiB of attributes in one store"
            self._left_out.setdefault(reason, []).append((f"those in {source}", len(names)))
            return NO_ATTRIBUTES
        if names:
            self._size += len(text)
            self._sources += 1
            self._names.update(names)
        return text

    def notes(self) -> list[str]:
        """Return notes about attributes that are stored, and that are not."""
        notes = []
        if self._names:
            shown = first_few(list(self._names), _LISTED)
            files = count_of(self._sources, "file")
            notes.append(f"{count_of(self._names.total(), 'attribute')} of {files} stored: {shown}")
        for reason, places in self._left_out.items():
            unshown = sum(count for _, count in places) - 1
            further = f" and {unshown} more" if unshown else ""
            notes.append(f"attributes not stored ({reason}): {printable(places[0][0])}{further}")
        return notes

    @staticmethod
    def arrays(origins: Sequence[Any]) -> list[tuple[Field, IndexValues]]:
        """Return the column of texts with the attributes of every source. Empty: no source has any."""
        texts = view(origins, attrgetter("attributes"))
        if all(text == NO_ATTRIBUTES for text in texts):
            return []
        description = "attributes of the HDF5 file, its groups and datasets, JSON"
        return lazy_text_arrays(HDF5_ATTRIBUTES, texts, axis="source", description=description)


def attribute_texts(store: StoreView, sources: int) -> list[str]:
    """Return the attributes of each of the `sources` sources of a store, as JSON texts."""
    return store.text(HDF5_ATTRIBUTES) if store.has(f"{HDF5_ATTRIBUTES}/data") else ["{}"] * sources


def parse_attributes(text: str) -> dict[str, JsonObject]:
    """Return attributes by path and name, each as `decode` returns it, with its exceptions."""
    return {
        path: {name: decode(entry) for name, entry in entries.items()}
        for path, entries in json.loads(text).items()
    }


def kept_attributes(store: StoreView, source: int) -> dict[str, JsonObject]:
    """Return the attributes of the HDF5 file of a source, as the store has them.

    Parameters
    ----------
    store : StoreView
        The store.
    source : int
        Number of the source.

    Returns
    -------
    dict of str to dict
        Values by name, for each path of a group or dataset. A single value has an empty name.

    Raises
    ------
    AttributeError, LookupError, TypeError, ValueError
        If the store has something else in their place.
    """
    if not store.has(f"{HDF5_ATTRIBUTES}/data"):
        return {}
    start, stop = store.array(f"{HDF5_ATTRIBUTES}/offsets").read(source, source + 2).tolist()
    return parse_attributes(store.array(f"{HDF5_ATTRIBUTES}/data").read(start, stop).tobytes().decode())


# Comparison of stored attributes and single values with those of a file that h5py opened.


def attribute_differences(file: Any, text: str) -> Iterator[tuple[str, int, str | None]]:
    """Yield label, number of values and difference of all that a text of `attribute_texts` has of a file."""
    for path, entries in json.loads(text).items():
        item = file.get(path or "/")
        for name, stored in entries.items():
            shape = stored.get("shape", ())
            size = 0 if shape is None else prod(shape)
            yield attribute_label(path, name), size, _difference(item, name, stored)


def _difference(item: Any, name: str, stored: Entry) -> str | None:
    if item is None or (name != VALUE and name not in item.attrs):
        return "only the store has it"
    read = _value_entry(item) if name == VALUE else _entry(item, {"name": name.encode()})[1]
    if json.dumps(read) == json.dumps(stored):  # zeros of either sign are equal, their texts are not
        return None
    return f"{stored!s:.60} and {read!s:.60}"


def attributes_left_out(
    file: Any,
    text: str,
    stored: Callable[[str], bool],
    otherwise: Callable[[str, Any, Any], bool] = lambda *_: False,
) -> list[str]:
    """Return attributes of an open file that the store does not have."""
    kept = json.loads(text)
    left_out: list[str] = []
    for path, item in [("", file), *objects_in(file)]:
        if isinstance(item, h5py.Group) or stored(path):
            names = [name for name in item.attrs if name not in kept.get(path, ())]
            shown = [
                name if isinstance(name, str) else repr(name)
                for name in names
                if not (_can_be_stored(item, name) and otherwise(path, item, name))
            ]
            left_out += [attribute_label(path, name) for name in shown]
    return names_without_numbers(left_out)


def _can_be_stored(item: Any, name: Any) -> bool:
    """Return whether an attribute can be read and its values can be stored."""
    try:
        return type_problem(item.attrs.get_id(name).dtype) is None
    except (OSError, TypeError, ValueError):
        return False


def single_values(text: str) -> set[str]:
    """Return paths of the single values in a text of `attribute_texts`."""
    return {path for path, names in json.loads(text).items() if VALUE in names}
