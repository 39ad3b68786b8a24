"""The one module to import from if you add a format, a family or a sample kind.

A package registers its classes as entry points::

    [project.entry-points."unistore.formats"]
    wav = "unistore_audio:Wav"

    [project.entry-points."unistore.families"]
    audio = "unistore_audio:Audio"

    [project.entry-points."unistore.kinds"]
    window = "unistore_audio:Window"

A `Format` opens a file as named arrays. A `Family` decides which arrays make a sample, and its `Schema`
describes the stores that are made of them. A `Kind` decides what a sample is when a store is read.
unistore does the rest: detection, conversion with many workers, checks, resuming, ``verify``, ``export``,
pages, and reading.

`unistore.testing` has checks for the test suite of such a package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unistore.converters.adapter.formats import formats_of
    from unistore.converters.claims import Claim, maybe, no, sure
    from unistore.converters.common.columns import (
        Merged,
        SourceColumn,
        missing_value,
        promote,
        promotion_note,
        reconcile,
        storable,
    )
    from unistore.converters.common.exclusion import ProblemCollector
    from unistore.converters.common.exported import ExportedArray, File, Form, StoredRagged, array_values
    from unistore.converters.common.left_out import left_out_notes
    from unistore.converters.family import (
        Chosen,
        Cut,
        Exporter,
        Family,
        Group,
        Grouping,
        Openable,
        Restored,
    )
    from unistore.converters.files.comparison import Restore, RestoredArray, RestoredFile, RestoredFiles
    from unistore.converters.files.hdf5.attributes import AttributeCollector, kept_attributes
    from unistore.converters.files.libraries import OpenedByLibrary, open_image
    from unistore.converters.files.links import real_files
    from unistore.converters.files.paths import is_inside, natural_key, split_of
    from unistore.converters.opened import (
        Array,
        FileSummary,
        Format,
        Metadata,
        OpenFile,
        Origin,
        SourceFile,
        as_json,
    )
    from unistore.converters.options import Columns, LabelOptions, Options, option
    from unistore.converters.preview import Measure, Preview, evenly, parts_of
    from unistore.converters.protocol import Emit, SourceArrays
    from unistore.converters.registry import conversion_of
    from unistore.converters.scan_types import Finalized, Parts, Scan, Scanned, Source, Sources
    from unistore.converters.schema import Column, Schema
    from unistore.converters.views import View, ViewLimits, limits, stride
    from unistore.data.kinds.protocol import Kind, SampleRows
    from unistore.data.packed import Packed
    from unistore.errors import InputError, Problem
    from unistore.schemas.declared_rules import ArraySpecs
    from unistore.schemas.indices import ArrayView, IndexColumn, StoreView, whole
    from unistore.schemas.rules import Rule
    from unistore.schemas.tables import (
        Field,
        OwnForm,
        Table,
        little_endian,
        name_problem,
        offsets_of,
        text_arrays,
    )
    from unistore.system.progress import Progress, advanced
    from unistore.system.sizes import count_of

__all__ = [
    "Array",
    "ArraySpecs",
    "ArrayView",
    "AttributeCollector",
    "Chosen",
    "Claim",
    "Column",
    "Columns",
    "Cut",
    "Emit",
    "ExportedArray",
    "Exporter",
    "Family",
    "Field",
    "File",
    "FileSummary",
    "Finalized",
    "Form",
    "Format",
    "Group",
    "Grouping",
    "IndexColumn",
    "InputError",
    "Kind",
    "LabelOptions",
    "Measure",
    "Merged",
    "Metadata",
    "OpenFile",
    "Openable",
    "OpenedByLibrary",
    "Options",
    "Origin",
    "OwnForm",
    "Packed",
    "Parts",
    "Preview",
    "Problem",
    "ProblemCollector",
    "Progress",
    "Restore",
    "Restored",
    "RestoredArray",
    "RestoredFile",
    "RestoredFiles",
    "Rule",
    "SampleRows",
    "Scan",
    "Scanned",
    "Schema",
    "Source",
    "SourceArrays",
    "SourceColumn",
    "SourceFile",
    "Sources",
    "StoreView",
    "StoredRagged",
    "Table",
    "View",
    "ViewLimits",
    "advanced",
    "array_values",
    "as_json",
    "conversion_of",
    "count_of",
    "evenly",
    "formats_of",
    "is_inside",
    "kept_attributes",
    "left_out_notes",
    "limits",
    "little_endian",
    "maybe",
    "missing_value",
    "name_problem",
    "natural_key",
    "no",
    "offsets_of",
    "open_image",
    "option",
    "parts_of",
    "promote",
    "promotion_note",
    "real_files",
    "reconcile",
    "split_of",
    "storable",
    "stride",
    "sure",
    "text_arrays",
    "whole",
]

# Names by the module that has them. It is imported with the first use of one: help needs few
_NAMES = {
    "unistore.converters.claims": (
        "Claim",
        "maybe",
        "no",
        "sure",
    ),
    "unistore.converters.common.columns": (
        "Merged",
        "SourceColumn",
        "missing_value",
        "promote",
        "promotion_note",
        "reconcile",
        "storable",
    ),
    "unistore.converters.common.exclusion": ("ProblemCollector",),
    "unistore.converters.common.exported": (
        "ExportedArray",
        "File",
        "Form",
        "StoredRagged",
        "array_values",
    ),
    "unistore.converters.common.left_out": ("left_out_notes",),
    "unistore.converters.family": (
        "Chosen",
        "Cut",
        "Exporter",
        "Family",
        "Group",
        "Grouping",
        "Openable",
        "Restored",
    ),
    "unistore.converters.files.comparison": (
        "Restore",
        "RestoredArray",
        "RestoredFile",
        "RestoredFiles",
    ),
    "unistore.converters.files.hdf5.attributes": (
        "AttributeCollector",
        "kept_attributes",
    ),
    "unistore.converters.files.libraries": (
        "OpenedByLibrary",
        "open_image",
    ),
    "unistore.converters.files.links": ("real_files",),
    "unistore.converters.files.paths": (
        "is_inside",
        "natural_key",
        "split_of",
    ),
    "unistore.converters.opened": (
        "Array",
        "Metadata",
        "Format",
        "FileSummary",
        "OpenFile",
        "Origin",
        "SourceFile",
        "as_json",
    ),
    "unistore.converters.options": (
        "Columns",
        "LabelOptions",
        "Options",
        "option",
    ),
    "unistore.converters.preview": (
        "Measure",
        "Preview",
        "evenly",
        "parts_of",
    ),
    "unistore.converters.protocol": (
        "Emit",
        "SourceArrays",
    ),
    "unistore.converters.registry": ("conversion_of",),
    "unistore.converters.scan_types": (
        "Finalized",
        "Parts",
        "Scan",
        "Scanned",
        "Source",
        "Sources",
    ),
    "unistore.converters.schema": (
        "Column",
        "Schema",
    ),
    "unistore.converters.adapter.formats": ("formats_of",),
    "unistore.converters.views": (
        "View",
        "ViewLimits",
        "limits",
        "stride",
    ),
    "unistore.data.kinds.protocol": (
        "Kind",
        "SampleRows",
    ),
    "unistore.data.packed": ("Packed",),
    "unistore.errors": (
        "InputError",
        "Problem",
    ),
    "unistore.schemas.declared_rules": ("ArraySpecs",),
    "unistore.schemas.indices": (
        "ArrayView",
        "IndexColumn",
        "StoreView",
        "whole",
    ),
    "unistore.schemas.rules": ("Rule",),
    "unistore.schemas.tables": (
        "Field",
        "OwnForm",
        "Table",
        "little_endian",
        "name_problem",
        "offsets_of",
        "text_arrays",
    ),
    "unistore.system.progress": ("Progress", "advanced"),
    "unistore.system.sizes": ("count_of",),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}


if not TYPE_CHECKING:  # or every misspelt name would pass for one of ours

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            msg = f"module 'unistore.plugin' has no attribute {name!r}"
            raise AttributeError(msg)
        value = getattr(import_module(_MODULES[name]), name)
        globals()[name] = value
        return value
