"""CT volumes: images, windows as points or bit masks, masks, distance fields.

A source is one volume. The scan reads headers; `derive` reads every volume once, slab by slab, and only
counts and checks; `settle` then knows how many points each window has and chooses its form; `read` computes
the rows that a shard needs, or some planes of one. Of a volume nothing is kept but points a plane.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from numpy.typing import NDArray

from unistore.converters.common.exclusion import Collected, Exclusion, about
from unistore.converters.ct.headers import look
from unistore.converters.ct.layouts.cases import find_volumes
from unistore.converters.ct.notes import notes_of
from unistore.converters.ct.options import CtOptions
from unistore.converters.ct.scan import agree, make_source, make_tables, possible_tables
from unistore.converters.ct.settle import settle
from unistore.converters.ct.volume import VolumeReader
from unistore.converters.files.paths import common_root, relative_names
from unistore.converters.protocol import Converter, Emit, Facts, Scan, Settled
from unistore.errors import InputError, Problem, printable
from unistore.schemas.ct import fields as schema
from unistore.schemas.ct.windows import parse_window

__all__ = ["CtConverter"]


class CtConverter(CtOptions, Converter):
    """Converts CT volumes; see `CtOptions`, and `unistore.converters.ct.layouts` for a volume's files."""

    family: ClassVar[str] = schema.FAMILY_NAME

    def scan(self, paths: Sequence[Path]) -> Scan:
        """Group the files into volumes and read every header.

        Raises
        ------
        InputError
            With every problem of every file.
        """
        asked = [parse_window(each) for each in self.window]
        found = find_volumes(paths, [window.name for window in asked])
        places = [volume.path for volume in found.volumes]
        root = common_root(places) if places else Path()
        exclusion = Exclusion(self.exclude)
        kept = [
            (name, files)
            for name, files in zip(relative_names(places), found.volumes, strict=True)
            if not exclusion.covers(name)
        ]
        names = [name for name, _ in kept]
        problems, volumes = list(found.problems), []
        collected = Collected(problems)
        for name, files in kept:
            own = [replace(problem, location=name) for problem in files.problems]
            problems += about(name, own)
            with collected.attempt(name, name):
                volume, wrong = look(files, self.resolution, partial(_place, root))
                volumes.append(volume)
                problems += about(name, wrong)
        if not kept and not problems:
            problems.append(Problem(f"{len(places)} volume(s)", "are all left out", kind="empty"))
        if problems:
            raise InputError(problems)
        agreement = agree(volumes, asked, self.sparse, names)
        sources = tuple(
            make_source(volume, name, paths, agreement) for volume, name in zip(volumes, names, strict=True)
        )
        return Scan(
            family=schema.FAMILY_NAME,
            sources=sources,
            tables=make_tables(volumes, agreement, self.tile),
            sample_table=schema.VOLUMES,
            main_table=schema.VOLUMES,
            options={
                **self.recorded(),
                "found": {
                    "windows": [
                        {"name": w.name, "width": float(w.width), "level": float(w.level)}
                        for w in agreement.windows
                    ],
                    "values": dict(agreement.values),
                },
            },
            notes=(
                *found.notes,
                *notes_of(volumes, agreement, asked, self.sparse, found.left_out),
                *exclusion.notes(),
            ),
            possible=possible_tables(volumes, agreement, self.tile, self.sparse),
            needs_facts=True,
        )

    def derive(self, scan: Scan, source: int, emit: Emit) -> Facts:
        """Count the points of every window; check masks, window files and point files."""
        return VolumeReader.of(scan, source).facts()

    def settle(self, scan: Scan, facts: Sequence[Facts]) -> Settled:
        """Choose each window's form; give offsets, extents, names and geometry."""
        return settle(scan, facts)

    def read(
        self, scan: Scan, table: str, source: int, lo: int, hi: int, out: Mapping[str, NDArray[Any]]
    ) -> None:
        """Read rows of ``volumes``, ``masks``, ``windows`` (one a volume), or points of a window or field."""
        if hi <= lo:
            return
        volume = VolumeReader.of(scan, source)
        if table in (schema.VOLUMES, schema.MASKS, schema.WINDOWS):
            volume.read_planes(table, 0, None, out)
        elif table.startswith(f"{schema.SDF}/"):
            volume.read_sdf(table.removeprefix(f"{schema.SDF}/"), lo, hi, out)
        else:
            volume.read_window_points(table.removeprefix(f"{schema.WINDOWS}/"), lo, hi, out)

    def read_planes(
        self, scan: Scan, table: str, source: int, lo: int, hi: int, out: Mapping[str, NDArray[Any]]
    ) -> None:
        """Read planes of the one row of ``volumes``, ``masks`` or ``windows``; see `Planar.read_planes`."""
        VolumeReader.of(scan, source).read_planes(table, lo, hi, out)


def _place(root: Path, path: Path) -> str:
    """How messages name a file: relative to what all volumes share."""
    return printable(path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path))
