"""CT volumes as a family of the seam."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from unistore.converters.ct import names
from unistore.converters.ct.match import match
from unistore.converters.ct.options import CtOptions
from unistore.converters.plugin import Claim, Family, Format, Group, Head, Problem, Schema, SourceFile
from unistore.converters.seam.record import ConverterOf
from unistore.schemas.ct.fields import FAMILY_NAME, VOLUMES


@dataclass(frozen=True, kw_only=True)
class Ct(CtOptions, Family):
    """CT volumes; see `CtOptions`, and `unistore.converters.ct.group` for a volume's files."""

    name: ClassVar[str] = FAMILY_NAME
    summary: ClassVar[str] = "CT volumes: NIfTI, DICOM, MetaImage, .npy, HDF5, case folders."
    formats: ClassVar[tuple[type[Format] | str, ...]] = (*names.FORMATS, "npz")
    any_format: ClassVar[bool] = True
    schema: ClassVar[Schema] = Schema(table=VOLUMES)

    def match(self, head: Head) -> Claim:
        """See `unistore.converters.ct.match`."""
        return match(head)

    def group(self, files: Sequence[SourceFile]) -> Iterable[Group | tuple[SourceFile, str] | Problem | str]:
        """See `unistore.converters.ct.group`."""
        from unistore.converters.ct.group import group

        return group(files, self.window_names, keep_names=self.keep_names)


converter = ConverterOf(Ct, "unistore.converters.ct.converter:CtConverter")
