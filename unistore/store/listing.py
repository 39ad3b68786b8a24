"""The arrays of the parts of a version: a form that many parts have is written once, extents part by part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeAlias

import numpy as np

from unistore.errors import StoreError, UnsupportedError
from unistore.store.manifest import GrammarError, parse_object
from unistore.store.reader import Store
from unistore.system.types import Attributes, Int64s, JsonObject, Shape
from unistore.zarr3.array import StoredArray
from unistore.zarr3.documents import is_list_of
from unistore.zarr3.metadata import ArrayMetadata

ABSENT = -1


@dataclass(frozen=True, slots=True, eq=False)
class DescribedArray:
    """An array of one store. Equal ones have equal documents, in which NaN as a fill value equals NaN.

    Attributes
    ----------
    form : ArrayMetadata
        Its metadata, with the shape of one chunk.
    shape : tuple of int
        Its shape.
    """

    form: ArrayMetadata
    shape: Shape

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DescribedArray):
            return NotImplemented
        return self.shape == other.shape and self.form.to_json() == other.form.to_json()

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class ListedArray:
    """An array of the parts of a version."""

    forms: tuple[ArrayMetadata, ...]  # its metadata, with the shape of one chunk
    form_of: Int64s  # (parts,) number of the form of each, `ABSENT` where a part has no such array
    shapes: Int64s  # (parts, axes), 0 on axes that a part does not have

    def of(self, parts: Int64s) -> ListedArray:
        return ListedArray(self.forms, self.form_of[parts], self.shapes[parts])

    def in_part(self, part: int) -> DescribedArray | None:
        """Return the array of one part, None if it has none."""
        if self.form_of[part] == ABSENT:
            return None
        form = self.forms[self.form_of[part]]
        return DescribedArray(form, tuple(self.shapes[part, : len(form.shape)].tolist()))


Listing: TypeAlias = Mapping[str, ListedArray]  # by path


def describe_arrays(store: Store) -> dict[str, DescribedArray]:
    """Return form and shape of all arrays of a store, by path."""
    return {path: describe_array(array) for path, array in store.arrays().items()}


def describe_array(array: StoredArray) -> DescribedArray:
    """Return form and shape of an array."""
    one_chunk = replace(array.metadata, shape=array.chunk_shape, shard_shape=array.chunk_shape)
    return DescribedArray(one_chunk, array.shape)


def extended(
    listing: Listing,
    parts: int,  # that it has
    further: Sequence[Mapping[str, DescribedArray]],
) -> dict[str, ListedArray]:
    """Return a listing with further parts behind its own."""
    arrays = {}
    for path in dict.fromkeys(chain(listing, *further)):
        forms: list[ArrayMetadata] = []
        form_of = [ABSENT] * parts
        shapes: list[list[int]] = [[] for _ in range(parts)]
        if path in listing:
            forms += listing[path].forms
            form_of = listing[path].form_of.tolist()
            shapes = listing[path].shapes.tolist()
        documents = [form.to_json() for form in forms]
        for described in further:
            array = described.get(path)
            if array is None:
                form_of.append(ABSENT)
                shapes.append([])
                continue
            document = array.form.to_json()
            if document not in documents:
                forms.append(array.form)
                documents.append(document)
            form_of.append(documents.index(document))
            shapes.append([*array.shape])
        axes = max(map(len, shapes))
        padded = [shape + [0] * (axes - len(shape)) for shape in shapes]
        arrays[path] = ListedArray(tuple(forms), np.array(form_of), np.array(padded, np.int64))
    return arrays


def listing_document(listing: Listing) -> JsonObject:
    """Return a listing as a version has it: arrays name columns of numbers, one number a part."""
    number_of: dict[tuple[int, ...], int] = {}

    def number(column: Int64s) -> int:
        return number_of.setdefault(tuple(column.tolist()), len(number_of))

    arrays = {}
    for path, array in listing.items():
        shape = [number(extents) for extents in array.shapes.T]
        forms = [form.to_json() for form in array.forms]
        arrays[path] = {"forms": forms, "form": number(array.form_of), "shape": shape}
    return {"columns": [*number_of], "arrays": arrays}


def parse_listing(document: Attributes, parts: int) -> dict[str, ListedArray]:
    """Parse the listing in a version. Raises `GrammarError`."""
    try:
        columns = np.array(document.get("columns"))
    except ValueError as error:
        raise GrammarError("columns are not equally long") from error
    if columns.dtype != np.int64 or columns.shape[1:] != (parts,):
        raise GrammarError("columns are no lists of one whole number a part")
    listing = {}
    for path, value in parse_object(document.get("arrays"), "arrays").items():
        array = parse_object(value, path)
        forms = array.get("forms")
        shape = array.get("shape")
        numbers = [array.get("form"), *shape] if isinstance(shape, list) else []
        are_columns = is_list_of(numbers, int) and all(0 <= number < len(columns) for number in numbers)
        if not is_list_of(forms, dict) or len(numbers) < 2 or not are_columns:
            msg = f"array {path!r} names forms or columns that are not there"
            raise GrammarError(msg)
        form_of = columns[numbers[0]]
        shapes = columns[numbers[1:]].T
        if form_of.min() < ABSENT or form_of.max() >= len(forms) or shapes.min() < 0:
            msg = f"array {path!r} has forms or extents that no array has"
            raise GrammarError(msg)
        parsed = tuple(_parse_form(form, path) for form in forms)
        listing[path] = ListedArray(parsed, form_of, shapes)
        if any(len(form.shape) > shapes.shape[1] for form in parsed):
            msg = f"array {path!r} has a form with more axes than extents"
            raise GrammarError(msg)
    return listing


def _parse_form(form: JsonObject, path: str) -> ArrayMetadata:
    """Parse the document of an array. Raises `GrammarError` if it is none."""
    try:
        return ArrayMetadata.from_json(form, path)
    except (StoreError, UnsupportedError) as error:
        raise GrammarError(str(error)) from error
