"""Every file under the given paths has one verdict, whatever lies beside it."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import h5py
import numpy as np
import pytest

from tests.support.mixtures import JUNK, SETS, Mixture, Shelf, damage
from unistore.conversion.convert import detect_family, make_converter
from unistore.converters.adapter.converter import Converter
from unistore.converters.claims import Claim
from unistore.converters.detection import Answer, Claims, counted_scan, survey
from unistore.converters.scan_types import Candidate
from unistore.converters.source_scan import scan_sources
from unistore.errors import InputError

MIXTURES = 20
HDF5_READ_ERROR = (
    "Unable to synchronously open object (file read failed: time = Mon Nov 23 06:36:57 2026\n, "
    "filename = 'robot.hdf5', file descriptor = 5, errno = 5, error message = 'Input/output error', ...)"
)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    return Shelf(tmp_path_factory.mktemp("shelf"))


def mixed(shelf: Shelf, folder: Path, rng: Random) -> Mixture:
    """Sets of some families, some of them in one folder, and junk among them."""
    mixture = Mixture(folder)
    places = rng.sample(["", "a", "b", "data/c", "train", "x y"], 3)
    for family in rng.sample(list(SETS), rng.randint(1, 3)):
        mixture.add(shelf, rng.choice(SETS[family]), rng.choice(places))
    for name in rng.sample(list(JUNK), rng.randint(0, 5)):
        mixture.add_junk(name, rng.choice(places))
    return mixture


def verdicts(folder: Path) -> dict[Path, Answer]:
    return {path: answer._replace(refuser="") for path, answer in survey([folder])}


def change(mixture: Mixture, shelf: Shelf, rng: Random) -> set[Path]:
    """Add, damage or remove one file; returns the files whose verdicts may be others then."""
    how = rng.choice(("add", "damage", "remove"))
    if how == "add":
        if rng.random() < 0.5:
            name = rng.choice([name for name in JUNK if "/" not in name])
            return {mixture.add_junk(name, rng.choice(["", "a", "new"]))}
        _, source = shelf.get(rng.choice([maker for makers in SETS.values() for maker in makers]))
        path = rng.choice([each for each in sorted(source.rglob("*")) if each.is_file()])
        target = mixture.folder / f"added_{path.name}"
        shutil.copy(path, target)
        return {target}
    path = rng.choice([each for files in mixture.sets.values() for each in files])
    if how == "damage":
        damage(path, rng)
    else:
        path.unlink()
    return mixture.partners(path)


def test_one_file_never_changes_the_verdict_of_another(shelf: Shelf, tmp_path: Path) -> None:
    """Random mixtures of the sources of all families, junk and damaged files; one file is changed."""
    kinds: set[tuple[bool, bool]] = set()
    for seed in range(MIXTURES):
        rng = Random(seed)
        folder = tmp_path / str(seed)
        mixture = mixed(shelf, folder, rng)
        before = verdicts(folder)
        kinds |= {(bool(answer.family), answer.problem is None) for answer in before.values()}
        may_change = change(mixture, shelf, rng)
        after = verdicts(folder)
        for path in before.keys() - may_change:
            assert after.get(path) == before[path], f"mixture {seed}: {path.relative_to(folder)}"
        assert after.keys() - before.keys() <= may_change, f"mixture {seed}"
        shutil.rmtree(folder)
    assert kinds == {(True, True), (False, True), (True, False)}, "taken, left out and refused"


def test_every_file_and_folder_has_a_verdict(shelf: Shelf, tmp_path: Path) -> None:
    for seed in range(6):
        folder = tmp_path / str(seed)
        mixed(shelf, folder, Random(seed))
        found = set(verdicts(folder))
        for path in folder.rglob("*"):
            if path.is_file():
                assert not found.isdisjoint({path, *path.parents}), path
        counts = survey([folder]).verdicts()
        assert sum(each.files for each in counts) == len(found)


@pytest.mark.parametrize("seed", range(3))
def test_each_printed_command_takes_the_files_of_its_family(shelf: Shelf, tmp_path: Path, seed: int) -> None:
    """Mixtures without damage, plain arrays among them: the scans share the files as the survey does."""
    rng = Random(seed)
    mixture = Mixture(tmp_path / "mixed")
    particular = [family for family in SETS if family != "rows"]
    for family in [*rng.sample(particular, rng.randint(2, 4)), "rows"]:
        mixture.add(shelf, rng.choice(SETS[family]), rng.choice(["", f"{family}_data", "data"]))
    for name in ("README.md", "table.csv", "array.zarr/.zgroup", ".hidden.npy", "photo.png"):
        mixture.add_junk(name, rng.choice(["", "ct"]))
    surveyed = survey([mixture.folder])
    detected = [each.family for each in surveyed.detected()]
    assert sorted([*detected, "rows"]) == sorted(case.family for case in mixture.cases.values())
    for case in mixture.cases.values():
        scan = scan_sources(make_converter(case.family, case.options), [mixture.folder])
        used = {path for source in scan.sources for path in source.files}
        assert {path for path in used if path.suffix != ".txt"} == taken_by(surveyed, case.family)
        left = {path for path, _ in scan.left_out}
        for other in mixture.cases.values():
            if other is not case:
                assert taken_by(surveyed, other.family) <= left
                assert any(f"unistore convert {other.family.replace('_', '-')}" in n for n in scan.notes)
        assert sum(each.files for each in counted_scan(scan)) == len(used) + len(left)


def taken_by(surveyed: Claims, family: str) -> set[Path]:
    return {path for path, answer in surveyed if answer.taker == family}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two volumes, spikes as arrays, a cloud, and episodes."""
    for number in range(2):
        np.save(tmp_path / f"ct_{number}.npy", np.full((4, 5, 6), number, "i2"))
    (tmp_path / "seq" / "spike").mkdir(parents=True)
    for number in range(2):
        np.save(tmp_path / "seq" / "spike" / f"{number}.npy", np.ones((4, 5, 6), "u1"))
    with h5py.File(tmp_path / "cloud.h5", "w") as file:
        for axis in "xyz":
            file[axis] = np.arange(5.0)
    with h5py.File(tmp_path / "robot.hdf5", "w") as file:
        file["data/demo_0/actions"] = np.zeros((5, 2))
        file["data/demo_0/obs/x"] = np.zeros((5, 2))
    return tmp_path


@pytest.mark.parametrize("family", ["ct", "point_cloud", "trajectory"])
def test_plain_arrays_beside_a_named_family_are_a_problem(folder: Path, family: str) -> None:
    converter = make_converter(family, {})
    endings = {"ct": "npy", "point_cloud": "h5", "trajectory": "hdf5"}
    plain = folder / f"plain.{endings[family]}"
    if family == "ct":
        np.save(plain, np.ones(5))
    else:
        with h5py.File(plain, "w") as file:
            file["numbers"] = np.ones(5)
    for name in ("README.md", "table.csv"):
        (folder / name).write_text("about")
    left_out = {path.name for path, _ in scan_sources(converter, [folder]).left_out}
    assert {plain.name, "README.md", "table.csv"} <= left_out, "of a family that was detected"
    with pytest.raises(InputError) as refused:
        scan_sources(converter, [folder], is_named=True)
    problems = {problem.source: problem for problem in refused.value.problems}
    assert plain.name in problems
    assert f"--exclude {plain.name}" in problems[plain.name].advice or "rows" in problems[plain.name].advice
    names = {path.name for path in folder.rglob("*") if path.is_file()}
    assert problems.keys() <= names - {"README.md", "table.csv"}
    apart = make_converter(family, {"exclude": tuple(problems)})
    assert len(scan_sources(apart, [folder], is_named=True).sources) >= 1


@pytest.mark.usefixtures("in_this_process")
def test_a_file_that_cannot_be_read_is_no_file_of_another_family(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The particular family cannot read it, the general one could: it is refused, not given to that."""
    (robot,) = folder.glob("robot.hdf5")
    look = Converter.look

    def unread(self: Converter, file: Candidate) -> Claim:
        if file.path == robot and self.family == "trajectory":
            raise KeyError(HDF5_READ_ERROR)
        return look(self, file)

    monkeypatch.setattr(Converter, "look", unread)
    problem = dict(survey([folder]))[robot].problem
    assert problem is not None
    assert problem.kind == "unreadable"
    assert problem.file == "robot.hdf5"
    assert problem.message == "cannot be read: KeyError: Input/output error"
    with pytest.raises(InputError, match=r"robot\.hdf5: cannot be read"):
        detect_family([folder])
    with pytest.raises(InputError) as refused:
        scan_sources(make_converter("spike", {}), [folder])
    assert [(each.kind, each.source) for each in refused.value.problems] == [("unreadable", "robot.hdf5")]
    apart = scan_sources(make_converter("ct", {"exclude": ("robot.hdf5",)}), [folder])
    assert dict(apart.left_out)[robot] == "excluded"


def test_files_that_are_given_are_never_left_out(folder: Path) -> None:
    spikes = sorted((folder / "seq" / "spike").iterdir())
    scan = scan_sources(make_converter("ct", {}), spikes)
    assert len(scan.sources) == 2
    assert not scan.left_out


def test_an_exclusion_that_matches_nothing_is_refused(folder: Path) -> None:
    with pytest.raises(
        InputError, match=r"--exclude ct_2\.npy: no file, folder or episode .*did you mean ct_1\.npy"
    ):
        scan_sources(make_converter("ct", {"exclude": ("ct_2.npy",)}), [folder])
    scan = scan_sources(make_converter("ct", {"exclude": ("ct_1.npy", "cloud.h5", "seq")}), [folder])
    assert [source.name for source in scan.sources] == ["ct_0.npy"]
    reasons = {path.relative_to(folder).as_posix(): why for path, why in scan.left_out}
    assert reasons["cloud.h5"] == "excluded"
    assert scan_sources(make_converter("ct", {"exclude": ("gone",)}), [folder], must_exclude=()).sources


def test_an_option_that_may_change_a_claim_needs_a_new_table(folder: Path) -> None:
    (folder / "frames").mkdir()
    path = folder / "frames" / "0.npy"
    np.save(path, np.ones((4, 5, 6), "u1"))
    claims = survey([folder])
    named = make_converter("spike", {"spike_dir": "frames"})
    assert claims.serves(make_converter("spike", {"exclude": ("cloud.h5",)}))
    assert not claims.serves(named)
    with_options = Claims([folder], named)
    with_options.ask()
    row = list(claims.paths).index(str(path))
    assert (claims.answer(row).taker, with_options.answer(row).taker) == ("rows", "spike")


def test_a_path_outside_of_the_table_has_no_family(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((3, 2)))
    for claims in (survey([tmp_path]), survey([tmp_path / "absent"])):
        (row,) = claims.rows(["/somewhere/else.npy"]).tolist()
        assert claims.answer(row).family == ""


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_folders_of_two_families_give_the_sources_that_their_parent_gives(
    tmp_path: Path, order: tuple[str, str]
) -> None:
    for name in order:
        (tmp_path / name).mkdir()
    with h5py.File(tmp_path / "a" / "run.h5", "w") as file:
        file["actions"] = np.zeros((5, 2))
        file["observations"] = np.zeros((5, 3))
    np.savez(tmp_path / "b" / "rows.npz", x=np.zeros((4, 3)))
    converter = make_converter("trajectory", {})
    of_folders = scan_sources(converter, [tmp_path / name for name in order], is_named=True)
    of_parent = scan_sources(converter, [tmp_path], is_named=True)
    assert list(of_folders.sources.files()) == list(of_parent.sources.files())
    assert [path.name for path, _ in of_folders.left_out] == ["rows.npz"]


def test_a_folder_of_no_family_beside_another_is_named(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with h5py.File(tmp_path / "a" / "run.h5", "w") as file:
        file["actions"] = np.zeros((5, 2))
        file["observations"] = np.zeros((5, 3))
    (tmp_path / "b" / "notes.txt").write_text("none")
    with pytest.raises(InputError) as caught:
        scan_sources(make_converter("trajectory", {}), [tmp_path / "a", tmp_path / "b"], is_named=True)
    assert [problem.file for problem in caught.value.problems] == [str(tmp_path / "b")]
