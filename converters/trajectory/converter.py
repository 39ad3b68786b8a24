"""Robot trajectories in HDF5: robomimic, LIBERO, MimicGen, robosuite; ACT/ALOHA; D4RL; flat files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from numpy.typing import NDArray

from unistore.converters.common.exclusion import Exclusion
from unistore.converters.detection import Detection
from unistore.converters.files.hdf5.file import SUFFIXES, open_hdf5
from unistore.converters.files.paths import expand, relative_names, split_of
from unistore.converters.protocol import Converter, Emit, Facts, Scan, Settled, Source
from unistore.converters.trajectory.derive import derive_memory, derive_source
from unistore.converters.trajectory.files import Found, inspect
from unistore.converters.trajectory.index import Index
from unistore.converters.trajectory.naming import Naming
from unistore.converters.trajectory.options import TrajectoryOptions
from unistore.converters.trajectory.read import Reader
from unistore.converters.trajectory.recognise import EVIDENCE, recognise
from unistore.converters.trajectory.settle import possible_tables, settle_episodes
from unistore.converters.trajectory.tables import Layout, lay_out, resized_columns
from unistore.errors import InputError, Problem
from unistore.schemas.trajectory.fields import EPISODES, FAMILY_NAME, STEPS

__all__ = ["TrajectoryConverter", "detect"]


class TrajectoryConverter(TrajectoryOptions, Converter):
    """Converts robot trajectories; see `TrajectoryOptions`."""

    family: ClassVar[str] = FAMILY_NAME

    def scan(self, paths: Sequence[Path]) -> Scan:
        """Look at every file's headers, its flags and its actions; see `Converter.scan`.

        Raises
        ------
        InputError
            With every problem of every file: unreadable, not a trajectory file, different lengths, never
            written, dtypes that are no numbers, columns that differ.
        """
        exclusion = Exclusion(self.exclude)
        found = expand(paths, SUFFIXES)
        listed = [
            each for each in zip(relative_names(found), found, strict=True) if not exclusion.covers(each[0])
        ]
        names, files = [name for name, _ in listed], [path for _, path in listed]
        naming = Naming(renamed=self.map, ignored=self.ignore)
        looks = [inspect(path, name, paths, naming, self.colour, exclusion) for name, path in listed]
        problems = [problem for look in looks for problem in look.problems]
        problems += _mixed(looks, names)
        kept = [
            (path, name, look) for path, name, look in zip(files, names, looks, strict=True) if look.parts
        ]
        indexed = [(name, Index.of(look.layout, look.parts, look.masks)) for _, name, look in kept]
        layout, differences = lay_out(
            indexed, self.columns, keep=self.images == "keep", image_size=self.image_size
        )
        problems += differences
        indexed = [(name, index.restricted(layout.merged)) for name, index in indexed]
        if not problems:
            problems += self._unused(looks) + _empty(looks, names)
        if problems:
            raise InputError(problems)
        remarks = [note for look in looks for note in look.notes] + exclusion.notes()
        return self._scanned(kept, indexed, layout, remarks)

    def _scanned(
        self,
        kept: Sequence[tuple[Path, str, Found]],
        indexed: Sequence[tuple[str, Index]],
        layout: Layout,
        remarks: Sequence[str],
    ) -> Scan:
        tables = layout.tables(self.colour)
        direct = [table.name for table in tables if not table.spilled]
        spilled = [table.name for table in tables if table.spilled]
        sources = tuple(
            Source(
                path=path,
                name=name,
                files=(path, *sorted(look.files)),
                rows=dict.fromkeys(direct, int(index.offsets[-1])),
                split=split_of(name),
                detail=index.to_json(),
                memory=derive_memory(index, keep=self.images == "keep"),
                reading=look.reading,
            )
            for (path, name, look), (_, index) in zip(kept, indexed, strict=True)
        )
        return Scan(
            family=FAMILY_NAME,
            sources=sources,
            tables=tables,
            sample_table=EPISODES,
            main_table=STEPS,
            options=self.recorded(),
            notes=(*self._notes(kept, indexed, layout), *remarks),
            estimated_rows={
                name: sum(path.stat().st_size for path, _, _ in kept) // len(spilled) for name in spilled
            },
            possible=possible_tables(
                layout,
                sum(len(index.names) for _, index in indexed),
                sum(int(index.offsets[-1]) for _, index in indexed),
            ),
            needs_facts=True,
        )

    def _notes(
        self, kept: Sequence[tuple[Path, str, Found]], indexed: Sequence[tuple[str, Index]], layout: Layout
    ) -> list[str]:
        looks = [look for _, _, look in kept]
        episodes = sum(len(look.parts) for look in looks)
        steps = sum(int(index.offsets[-1]) for _, index in indexed)
        notes = [f"{looks[0].layout}: {episodes} episode(s), {steps} steps from {len(kept)} file(s)"]
        notes += [
            f"no {role}: the sources name none; --map {role}=DATASET names it"
            for role in ("action", "reward")
            if role not in layout.merged
        ]
        found = [part.found for look in looks for part in look.parts]
        for what, per_episode in (
            ("(T, 0) datasets hold no values and are only named in attributes", [one.empty for one in found]),
            ("not per step and too large for attributes, not kept", [one.dropped for one in found]),
        ):
            counted = Counter(
                path for each in {id(one): one for one in per_episode}.values() for path in each
            )
            if counted:
                notes.append(f"{what}: {', '.join(counted)}")
        compressed = [
            column
            for _, index in indexed
            for variant in index.variants
            for column, feature in variant.features.items()
            if feature.encoded
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

    def _unused(self, looks: Sequence[Found]) -> list[Problem]:
        """Mapped datasets that no episode has."""
        used = {
            feature.dataset
            for look in looks
            for part in look.parts
            for feature in part.found.features.values()
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
        resized = resized_columns(scan.tables, table, out)
        with index.naming_episodes(origin.name):
            Reader(origin, index, self.colour, resized).read(table, lo, hi, out)

    def _layout(self, scan: Scan) -> Layout:
        found = [(source.name, Index.from_json(source.detail)) for source in scan.sources]
        layout, _ = lay_out(found, self.columns, keep=self.images == "keep", image_size=self.image_size)
        return layout

    def derive(self, scan: Scan, source: int, emit: Emit) -> Facts:
        """Compare next observations with following ones, keep compressed frames, collect attributes."""
        kept = [table.name for table in scan.tables if table.spilled]
        origin = scan.sources[source]
        index = Index.from_json(origin.detail)
        with index.naming_episodes(origin.name):
            return derive_source(origin, index, kept, emit)

    def settle(self, scan: Scan, facts: Sequence[Facts]) -> Settled:
        """Episodes, their names, attributes and masks; where next observations lie; kept frames."""
        return settle_episodes(scan, self._layout(scan), facts)


def _mixed(looks: Sequence[Found], names: Sequence[str]) -> list[Problem]:
    """One Problem if files of different layouts were given together."""
    first: dict[str, str] = {}
    for look, name in zip(looks, names, strict=True):
        if look.layout and look.parts:
            first.setdefault(look.layout, name)
    if len(first) < 2:
        return []
    listed = ", ".join(f"{name} is {layout}" for layout, name in first.items())
    message = f"hold different layouts: {listed}"
    return [Problem(f"{len(names)} files", message, "convert them apart", "layout")]


def _empty(looks: Sequence[Found], names: Sequence[str]) -> list[Problem]:
    if any(look.parts for look in looks):
        return []
    notes = [note for look in looks for note in look.notes][:20]
    return [Problem(f"{len(names)} file(s)", "; ".join(["no episode is left", *notes]), kind="empty")]


def detect(paths: Sequence[Path]) -> Detection | None:
    """Recognise trajectory files by the names at the top of the first HDF5 file that opens."""
    try:
        files = expand(paths, SUFFIXES)
    except InputError:
        return None
    for path in files[:8]:
        try:
            with open_hdf5(path) as file:
                layout = recognise(file)
        except InputError:
            continue
        return Detection(FAMILY_NAME, layout, f"{path.name} holds {EVIDENCE[layout]}") if layout else None
    return None
