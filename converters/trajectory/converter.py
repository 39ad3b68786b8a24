"""Robot trajectories in HDF5: robomimic, LIBERO, MimicGen, robosuite; ACT/ALOHA; D4RL; flat files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from numpy.typing import NDArray

from unistore.converters.common.exclusion import Exclusion
from unistore.converters.files.formats import has_ending
from unistore.converters.files.hdf5.attribute_texts import AttributeTexts
from unistore.converters.files.paths import split_of
from unistore.converters.parts import Candidate, LeftOut, Part, Taken, Verdict
from unistore.converters.protocol import Converter, Emit, Facts, Scan, Settled, Source
from unistore.converters.trajectory import layouts
from unistore.converters.trajectory.derive import derive_memory, derive_source
from unistore.converters.trajectory.index import Index
from unistore.converters.trajectory.naming import Naming
from unistore.converters.trajectory.options import TrajectoryOptions
from unistore.converters.trajectory.read import Reader
from unistore.converters.trajectory.recognise import recognise
from unistore.converters.trajectory.scan import ScannedFile, scan_file
from unistore.converters.trajectory.settle import possible_tables, settle_episodes
from unistore.converters.trajectory.source import Look
from unistore.converters.trajectory.tables import Layout, lay_out, resized_columns
from unistore.errors import InputError, Problem
from unistore.schemas.trajectory.fields import EPISODES, FAMILY_NAME, STEPS

__all__ = ["TrajectoryConverter"]


class TrajectoryConverter(TrajectoryOptions, Converter):
    """Converts robot trajectories; see `TrajectoryOptions`."""

    family: ClassVar[str] = FAMILY_NAME
    suffixes: ClassVar[tuple[str, ...]] = layouts.suffixes()
    by_content: ClassVar[bool] = True

    def look(self, file: Candidate) -> Verdict:
        """Take files by what they hold."""
        if not has_ending(file.path, self.suffixes):
            return LeftOut(f"is no {', '.join(self.suffixes)} file")
        found = recognise(Look(file))
        if found is None:
            asked = layouts.formats_for(file.path)
            return LeftOut(f"holds no {', no '.join(each.evidence for each in asked)}")
        return Taken(found.name, f"holds {found.evidence}")

    def scan(self, part: Part) -> ScannedFile:
        """Look at a file's headers, its flags and its actions; see `Converter.scan`.

        Raises
        ------
        InputError
            With every problem of a file that has no sound episode: unreadable, not a trajectory file,
            different lengths, never written, dtypes that are no numbers.
        """
        naming = Naming(renamed=self.map, ignored=self.ignore)
        found = scan_file(part, naming, self.colour, Exclusion(self.exclude))
        return replace(found, certain=not self.map)  # without a map, what is not recognised is refused

    def gather(self, parts: Sequence[Part], scanned: Sequence[ScannedFile]) -> Scan:
        """Bring the columns of all episodes to one form; files without episodes give remarks alone.

        Raises
        ------
        InputError
            If files have different layouts, columns differ, a mapped dataset is nowhere, or no episode is
            left.
        """
        kept = [(part, each) for part, each in zip(parts, scanned, strict=True) if each.index.names]
        indexed = [(part.name, each.index) for part, each in kept]
        layout, differences = lay_out(indexed, self.columns, images=self.images, image_size=self.image_size)
        problems = _mixed(kept) + differences
        if not problems:
            problems += self._unused(scanned) + _empty(scanned)
        if problems:
            raise InputError(problems)
        indexed = [(name, index.restricted(layout.merged)) for name, index in indexed]
        tables = layout.tables(self.colour)
        direct = [table.name for table in tables if not table.spilled]
        spilled = [table.name for table in tables if table.spilled]
        texts = AttributeTexts()
        sources = tuple(
            Source(
                path=part.files[0],
                name=part.name,
                files=(*part.files, *each.files),
                rows=dict.fromkeys(direct, int(index.offsets[-1])),
                split=split_of(part.name),
                detail={
                    **index.to_json(),
                    **texts.detail(part.name, each.attributes, _stored(index)),
                },
                memory=derive_memory(index, keep=self.images == "keep"),
                reading=each.reading,
            )
            for (part, each), (_, index) in zip(kept, indexed, strict=True)
        )
        return Scan(
            family=FAMILY_NAME,
            sources=sources,
            tables=tables,
            sample_table=EPISODES,
            main_table=STEPS,
            options=self.recorded(),
            notes=(
                *self._notes(kept, layout),
                *texts.notes(),
                *(note for each in scanned for note in each.notes),
            ),
            estimated_rows={
                name: sum(source.path.stat().st_size for source in sources) // len(spilled)
                for name in spilled
            },
            possible=possible_tables(
                layout,
                sum(len(index.names) for _, index in indexed),
                sum(int(index.offsets[-1]) for _, index in indexed),
            ),
            needs_facts=True,
        )

    def _notes(self, kept: Sequence[tuple[Part, ScannedFile]], layout: Layout) -> list[str]:
        indexes = [each.index for _, each in kept]
        variants = [variant for index in indexes for variant in index.variants]
        episodes = sum(len(index.names) for index in indexes)
        steps = sum(int(index.offsets[-1]) for index in indexes)
        notes = [f"{indexes[0].layout}: {episodes} episode(s), {steps} steps from {len(kept)} file(s)"]
        notes += [
            f"no {role}: the sources name none; --map {role}=DATASET names it"
            for role in ("action", "reward")
            if role not in layout.merged
        ]
        for what, datasets in (
            (
                "(T, 0) datasets hold no values and are only named in attributes",
                [path for variant in variants for path in variant.empty],
            ),
            (
                "not per step and too large for attributes, not kept",
                [path for _, each in kept for path in each.dropped],
            ),
        ):
            if datasets:
                notes.append(f"{what}: {', '.join(dict.fromkeys(datasets))}")
        compressed = [
            column
            for variant in variants
            for column, feature in variant.features.items()
            if feature.encoded and column in layout.merged
        ]
        if compressed:
            listed = ", ".join(dict.fromkeys(compressed))
            notes.append(
                f"compressed frames ({listed}) taken as {self.colour}; if red and blue are exchanged, "
                "choose the other --colour (standard, swapped)"
            )
        elif self.images == "keep":
            notes.append("--images keep: no image is compressed in the sources, all are stored as arrays")
        return notes

    def _unused(self, scanned: Sequence[ScannedFile]) -> list[Problem]:
        """Mapped datasets that no episode has."""
        used = {
            feature.dataset
            for each in scanned
            for variant in each.index.variants
            for feature in variant.features.values()
        }
        return [
            Problem(
                f"--map {column}={dataset}", "no episode has a per-step dataset of this name", kind="missing"
            )
            for column, dataset in self.map.items()
            if dataset.strip("/") not in used
        ]

    def read(
        self, scan: Scan, table: str, source: int, lo: int, hi: int, out: Mapping[str, NDArray[Any]]
    ) -> None:
        """Read rows ``lo:hi`` of a source; see `Converter.read`."""
        origin = scan.sources[source]
        index = Index.from_json(origin.detail)
        resized = resized_columns(scan.tables, table, out, alone=self.images == "resized")
        with index.naming_episodes(origin.name):
            Reader(origin, index, self.colour, resized).read(table, lo, hi, out)

    def _layout(self, scan: Scan) -> Layout:
        found = [(source.name, Index.from_json(source.detail)) for source in scan.sources]
        layout, _ = lay_out(found, self.columns, images=self.images, image_size=self.image_size)
        return layout

    def derive(self, scan: Scan, source: int, emit: Emit, folder: Path | None) -> Facts:
        """Compare next observations with following ones, keep compressed frames, collect attributes."""
        kept = [table.name for table in scan.tables if table.spilled]
        origin = scan.sources[source]
        index = Index.from_json(origin.detail)
        with index.naming_episodes(origin.name):
            return derive_source(origin, index, kept, emit)

    def settle(self, scan: Scan, facts: Sequence[Facts]) -> Settled:
        """Episodes, their names, attributes and masks; where next observations lie; kept frames."""
        return settle_episodes(scan, self._layout(scan), facts)


def _stored(index: Index) -> Callable[[str], bool]:
    """Tells whether a store of these episodes has a dataset, or something inside a group or the root."""
    datasets = index.datasets()
    groups = {path.rsplit("/", depth)[0] for path in datasets for depth in range(1, path.count("/") + 1)}
    return lambda path: not path or path in datasets or path in groups


def _mixed(kept: Sequence[tuple[Part, ScannedFile]]) -> list[Problem]:
    """One Problem if files of different layouts were given together."""
    first: dict[str, str] = {}
    for part, each in kept:
        first.setdefault(each.index.layout, part.name)
    if len(first) < 2:
        return []
    listed = ", ".join(f"{name} is {layout}" for layout, name in first.items())
    message = f"hold different layouts: {listed}"
    return [Problem(f"{len(kept)} files", message, "convert them apart", "layout")]


def _empty(scanned: Sequence[ScannedFile]) -> list[Problem]:
    if any(each.index.names for each in scanned):
        return []
    notes = [note for each in scanned for note in each.notes][:20]
    return [Problem(f"{len(scanned)} file(s)", "; ".join(["no episode is left", *notes]), kind="empty")]
