"""Robot trajectories in HDF5: robomimic, LIBERO, MimicGen, robosuite; ACT/ALOHA; D4RL; flat files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from numpy.typing import NDArray

from unistore.converters.common.exclusion import Exclusion
from unistore.converters.files.formats import has_ending
from unistore.converters.files.hdf5.attributes import AttributeCollector
from unistore.converters.files.paths import split_of
from unistore.converters.parts import Candidate, LeftOut, Part, Parts, Taken, Verdict
from unistore.converters.protocol import Converter, Emit, Facts, Finalized, Scan, Sources
from unistore.converters.trajectory import layouts
from unistore.converters.trajectory.derive import SUMMARY, derive_memory, derive_source
from unistore.converters.trajectory.episode_index import EpisodeIndex
from unistore.converters.trajectory.finalize import finalize_episodes, possible_tables
from unistore.converters.trajectory.naming import Naming
from unistore.converters.trajectory.options import TrajectoryOptions
from unistore.converters.trajectory.read import Reader
from unistore.converters.trajectory.scan import ScannedFile, scan_file
from unistore.converters.trajectory.source import SourceFile
from unistore.converters.trajectory.tables import MergedColumns, merge_columns, resized_columns
from unistore.errors import InputError, Problem
from unistore.schemas.trajectory.fields import EPISODES, FAMILY_NAME, STEPS
from unistore.system.sizes import count_of


class TrajectoryConverter(TrajectoryOptions, Converter):
    """Converts robot trajectories; see `TrajectoryOptions`."""

    family: ClassVar[str] = FAMILY_NAME
    suffixes: ClassVar[tuple[str, ...]] = layouts.suffixes()
    scan_identifies: ClassVar[bool] = True

    def look(self, file: Candidate) -> Verdict:
        """Recognise files by their content."""
        if not has_ending(file.path, self.suffixes):
            return LeftOut(f"is no {', '.join(self.suffixes)} file")
        found = layouts.recognise(SourceFile(file))
        if found is None:
            formats = layouts.formats_for(file.path)
            return LeftOut(f"holds no {', no '.join(each.evidence for each in formats)}")
        return Taken(found.name, f"holds {found.evidence}")

    def scan(self, part: Part) -> ScannedFile:
        """Read a file's headers, flags and actions; see `Converter.scan`.

        Raises
        ------
        InputError
            With every problem of a file without a sound episode: unreadable, not a trajectory file, different
            lengths, never written, dtypes that are not numeric.
        """
        naming = Naming(renamed=self.map, ignored=self.ignore)
        found = scan_file(part, naming, self.colour, Exclusion(self.exclude))
        return replace(found, certain=not self.map)  # without a map, what is not recognised is refused

    def gather(self, parts: Parts, scanned: Sequence[ScannedFile]) -> Scan:
        """Merge the columns of all episodes; of files without episodes, only notes are used.

        Raises
        ------
        InputError
            If files have different layouts, columns differ, a mapped dataset is missing, or no episode is
            left.
        """
        formats: dict[str, str] = {}

        def indexes() -> Iterator[tuple[str, EpisodeIndex]]:
            for name, each in zip(parts.names, scanned, strict=True):
                if each.index.names:
                    formats.setdefault(each.index.layout, name)
                    yield name, each.index

        layout, differences = merge_columns(
            indexes(), self.columns, images=self.images, image_size=self.image_size
        )
        problems = _mixed_layouts(formats, len(parts)) + differences
        if not problems:
            problems += self._unused(layout) + ([] if formats else _no_episodes(scanned))
        if problems:
            raise InputError(problems)
        tables = layout.tables(self.colour)
        spilled = [table.name for table in tables if table.spilled]
        texts, sources, seen = AttributeCollector(), Sources(), _Seen(next(iter(formats)))
        for name, files, each in zip(parts.names, parts.files(), scanned, strict=True):
            if each.index.names:
                index = each.index.restricted(layout.merged)
                sources.add(
                    name=name,
                    files=(*files, *each.files),
                    rows={table.name: sum(index.lengths) for table in tables if not table.spilled},
                    split=split_of(name),
                    detail={
                        **index.to_json(),
                        **texts.detail(name, each.attributes, _is_stored(index)),
                        **({} if each.summary is None else {SUMMARY: each.summary}),
                    },
                    memory=derive_memory(index, keep=self.images == "keep"),
                    reading=each.reading,
                )
                seen.add(each)
        nbytes = sum(Path(files[0]).stat().st_size for files in sources.files()) if spilled else 0
        return Scan(
            family=FAMILY_NAME,
            sources=sources,
            tables=tables,
            sample_table=EPISODES,
            main_table=STEPS,
            options=self.recorded(),
            notes=(
                *self._notes(seen, len(sources), layout),
                *texts.notes(),
                *(note for each in scanned for note in each.notes),
            ),
            estimated_rows={name: nbytes // len(spilled) for name in spilled},
            possible=possible_tables(layout, seen.episodes, seen.steps),
            needs_facts=seen.needs_facts,
            shared={"columns": layout},
        )

    def _notes(self, seen: _Seen, files: int, layout: MergedColumns) -> list[str]:
        counted = f"{count_of(seen.episodes, 'episode')}, {count_of(seen.steps, 'step')}"
        notes = [f"{seen.format}: {counted} from {count_of(files, 'file')}"]
        notes += [
            f"no {role}: the sources name none; --map {role}=DATASET names it"
            for role in ("action", "reward")
            if role not in layout.merged
        ]
        for what, datasets in (
            ("(T, 0) datasets hold no values and are only named in attributes", layout.empty),
            ("not per step and too large for attributes, not kept", seen.dropped),
        ):
            if datasets:
                notes.append(f"{what}: {', '.join(datasets)}")
        if listed := ", ".join(column for column in seen.encoded if column in layout.merged):
            notes.append(
                f"compressed frames ({listed}) taken as {self.colour}; if red and blue are exchanged, "
                "choose the other --colour (standard, swapped)"
            )
        elif self.images == "keep":
            notes.append("--images keep: no image is compressed in the sources, all are stored as arrays")
        return notes

    def _unused(self, layout: MergedColumns) -> list[Problem]:
        """Problems of mapped datasets that no episode has."""
        used = {dataset for datasets in layout.datasets.values() for dataset in datasets}
        message = "no episode has a per-step dataset of this name"
        return [
            Problem(f"--map {column}={dataset}", message, kind="missing")
            for column, dataset in self.map.items()
            if dataset.strip("/") not in used
        ]

    def read(
        self, scan: Scan, table: str, source: int, lo: int, hi: int, out: Mapping[str, NDArray[Any]]
    ) -> None:
        """Read rows ``lo:hi`` of a source; see `Converter.read`."""
        origin = scan.sources[source]
        index = EpisodeIndex.from_json(origin.detail)
        resized = resized_columns(scan.tables, table, out, alone=self.images == "resized")
        with index.episodes_in_problems(origin.name):
            Reader(origin, index, self.colour, resized).read(table, lo, hi, out)

    def derive(self, scan: Scan, source: int, emit: Emit, folder: Path | None) -> Facts:
        """Compare next with following observations, emit compressed frames, read attributes."""
        kept = [table.name for table in scan.tables if table.spilled]
        origin = scan.sources[source]
        index = EpisodeIndex.from_json(origin.detail)
        with index.episodes_in_problems(origin.name):
            return derive_source(origin, index, kept, emit)

    def finalize(self, scan: Scan, facts: Sequence[Facts]) -> Finalized:
        """Index arrays of episodes and kept frames, attributes, masks, tables of next observations."""
        return finalize_episodes(scan, scan.shared["columns"], facts)


@dataclass(slots=True)
class _Seen:
    """What a scan counts and remarks on, over all sources."""

    format: str
    episodes: int = 0
    steps: int = 0
    needs_facts: bool = False
    dropped: dict[str, None] = field(default_factory=dict)
    encoded: dict[str, None] = field(default_factory=dict)

    def add(self, each: ScannedFile) -> None:
        """Add a source."""
        self.episodes += len(each.index.names)
        self.steps += sum(each.index.lengths)
        self.needs_facts = self.needs_facts or each.summary is None
        self.dropped |= dict.fromkeys(each.dropped)
        for variant in each.index.variants:
            self.encoded |= dict.fromkeys(name for name, one in variant.features.items() if one.encoded)


def _is_stored(index: EpisodeIndex) -> Callable[[str], bool]:
    """Function that tells whether the store has a dataset, or any dataset in a group; true for the root."""
    datasets = index.datasets()
    groups = {path.rsplit("/", depth)[0] for path in datasets for depth in range(1, path.count("/") + 1)}
    return lambda path: not path or path in datasets or path in groups


def _mixed_layouts(first: Mapping[str, str], files: int) -> list[Problem]:
    """One Problem if files of different layouts were given together; `first` names a file of each."""
    if len(first) < 2:
        return []
    listed = ", ".join(f"{name} is {layout}" for layout, name in first.items())
    message = f"hold different layouts: {listed}"
    return [Problem(f"{files} files", message, "convert them apart", "layout")]


def _no_episodes(scanned: Sequence[ScannedFile]) -> list[Problem]:
    notes = [note for each in scanned for note in each.notes][:20]
    return [
        Problem(f"{count_of(len(scanned), 'file')}", "; ".join(["no episode is left", *notes]), kind="empty")
    ]
