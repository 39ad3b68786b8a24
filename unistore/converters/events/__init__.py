"""Recordings of event cameras: what users say of them, and where the steps of a conversion are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from unistore.converters.events.options import SCHEMA, EventsOptions
from unistore.plugin import Family

if TYPE_CHECKING:
    from unistore.converters.preview import Preview
    from unistore.plugin import (
        Array,
        Chosen,
        Claim,
        Cut,
        FileSummary,
        Format,
        Grouping,
        Metadata,
        OpenFile,
        Restored,
        SourceFile,
    )
    from unistore.schemas.rules import Rule
    from unistore.system.types import AnyArray


@dataclass(frozen=True, kw_only=True)
class EventsFamily(EventsOptions, Family):
    """The family of recordings of event cameras. `EventsOptions` has its options."""

    name = "events"
    summary = "Event cameras: HDF5, Prophesee .dat and .raw, .aedat4, .npy, .npz."
    description = (
        "Event cameras: HDF5 with events/{x,y,t,p} (DSEC), Prophesee .dat and .raw, .aedat4, .npy and .npz."
    )
    examples = (
        "unistore convert events recordings/ events.zarr",
        "unistore convert events dsec/ events.zarr --sensor 640 480",
        "unistore convert events ros/ events.zarr --sensor 346 260 --unit ns",
    )
    kind = "Events"
    other_kinds = ('unistore.Events("50ms", voxel=5)',)
    any_format = True
    schema = SCHEMA

    @classmethod
    def rules(cls) -> Sequence[Rule]:
        """Check marks and times."""
        from unistore.schemas.events.rules import RULES

        return RULES

    @classmethod
    def preview(cls) -> Preview:
        """Show the first events of a recording, and the frames beside."""
        from unistore.converters.adapter.restore import preview_of
        from unistore.converters.events.restore import view

        return replace(preview_of(cls()), view=view)

    def typical_rows(self, head: FileSummary) -> int:
        """Return the events of a window of 33 ms at a million a second."""
        return 1 << 15

    @property
    def formats(self) -> tuple[type[Format] | str, ...]:  # type: ignore[override]  # others have one tuple
        """Arrays, and the files of Prophesee and iniVation, which no other family takes."""
        from unistore.converters.formats.aedat import Aedat4
        from unistore.converters.formats.event_text import EventText
        from unistore.converters.formats.frame_times import FrameTimes
        from unistore.converters.formats.prophesee import Dat, Evt

        return ("hdf5", "npy", "npz", Dat, Evt, Aedat4, FrameTimes, EventText, "atis_bin")

    def claim(self, file: SourceFile) -> Claim | None:
        """Open only those frames and boxes that lie beside a recording."""
        from unistore.converters.events.recordings import claim

        return claim(file)

    def match(self, head: FileSummary) -> Claim:
        """Take files with columns of times, places and polarities, and the maps of DSEC beside them."""
        from unistore.converters.events.recordings import match

        return match(self, head)

    def group(self, files: Sequence[SourceFile]) -> Grouping:
        """Take every recording, with the frames and boxes that DSEC has beside it. Leave out its maps."""
        from unistore.converters.events.recordings import group

        return group(files)

    def choose(self, head: FileSummary) -> Chosen:
        """Check what is known without the values: the size of the sensor, units, filters."""
        from unistore.converters.events.recordings import choose

        return choose(self, head)

    def cut(self, opened: OpenFile) -> Iterator[Cut]:
        """Take each recording as a whole. Readers choose windows."""
        from unistore.converters.events.recordings import cut

        return cut(self, opened)

    def derive(self, opened: OpenFile) -> Iterator[tuple[str, Mapping[str, AnyArray]]]:
        """Check that times do not fall and agree with the file's index, and mark some of them."""
        from unistore.converters.events.recordings import derive

        return derive(self, opened)

    def rows(self, opened: OpenFile, lo: int, hi: int) -> Mapping[str, AnyArray]:
        """Read events, with places inside the sensor and polarities of 0 and 1."""
        from unistore.converters.events.recordings import rows

        return rows(self, opened, lo, hi)

    def restore(self, columns: Mapping[str, Array], metadata: Metadata) -> Restored:
        """Return the arrays of a file in its unit, its dtypes and its polarities."""
        from unistore.converters.events.recordings import restore

        return restore(self, columns, metadata)
