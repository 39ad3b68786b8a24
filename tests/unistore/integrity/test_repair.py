"""What is damaged is made again, byte for byte; what is sound is not touched; other sources are refused."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from tests.conftest import maker
from tests.support.cases import Case
from tests.support.store_files import full_disk
from unistore import convert, inspect, repair, verify
from unistore.conversion.convert import make_converter
from unistore.conversion.run import run
from unistore.conversion.settings import Settings
from unistore.errors import ConversionError, InputError, StoreError
from unistore.integrity.repair import repaired_root

Copy = Callable[[str], Any]
Tree = Callable[[Path], dict[str, bytes]]

ROOT, MANIFEST = "zarr.json", "unistore-manifest.jsonl"


def damage(store: Path, key: str, rng: random.Random) -> None:
    path = store / key
    data = bytearray(path.read_bytes())
    if not data:
        return
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def test_a_damaged_file_of_every_kind_is_repaired_byte_for_byte(copy_case: Copy, tree: Tree) -> None:
    case, store = copy_case("cloud_indices")
    before = tree(store)
    rng = random.Random(2)  # flips no bit of the root that says how the store was made
    shard, document = "points/xyz/c/0/0", "points/rgb/zarr.json"
    for keys in ([ROOT], [MANIFEST], ["sources/hash/c/0/0"], [shard, document, MANIFEST, ROOT]):
        for key in keys:
            damage(store, key, rng)
        assert not verify(store).ok
        repaired = repair(store, case.sources)
        assert repaired.ok
        assert set(repaired.repaired) == set(keys)
        assert repaired.repaired[-2:] == tuple(keys[-2:]), "manifest and root last"
        assert tree(store) == before
    assert sorted(path.name for path in store.parent.iterdir()) == [store.name]


def test_a_store_of_which_only_the_root_is_sound_is_repaired(
    family_case: str, copy_case: Copy, tree: Tree
) -> None:
    """Every file but the root: damaged, emptied or gone."""
    case, store = copy_case(family_case)
    before = tree(store)
    rng = random.Random(1)
    for number, key in enumerate(sorted(before)):
        if key == ROOT:
            continue
        if number % 3 == 0:
            (store / key).unlink()
        elif number % 3 == 1:
            (store / key).write_bytes(b"")
        else:
            damage(store, key, rng)
    shutil.rmtree(store / "splits")
    assert repair(store, case.sources).ok
    assert tree(store) == before


def root_of_many_wrong_bytes(store: Path) -> Any:
    """Return the root as it still tells the options; no single byte could be tried without its signature."""
    root = json.loads((store / ROOT).read_bytes())
    root["attributes"]["unistore"]["statistics"] = {}
    root["attributes"]["unistore"]["seal"]["root"] = ""
    return root


SMALL_SHARD = 32 << 10


@pytest.fixture(scope="module")
def make_many_shards(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Case, Path]]:
    return maker(tmp_path_factory.mktemp("shards"))


@pytest.mark.parametrize("lost", ["shards", "digests of sources", "lines of the manifest", "root"])
def test_some_of_many_shards_are_repaired_and_the_others_kept(
    make_many_shards: Any, lost: str, tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sound shards keep their files, and what is known of their values is read from them."""
    monkeypatch.setattr("unistore.conversion.plan.SHARD", SMALL_SHARD)
    case, made = make_many_shards("cloud_real")
    store = shutil.copytree(made, tmp_path / "store.zarr")
    before = tree(store)
    rng = random.Random(lost)
    shards = sorted(key for key in before if "/c/" in key and before[key])
    damaged = {*rng.sample(shards, 3)}
    if lost == "digests of sources":
        damaged.add("sources/hash/c/0/0")
    for key in damaged:
        damage(store, key, rng)
    if lost == "lines of the manifest":
        damaged.add(MANIFEST)
        lines = before[MANIFEST].splitlines()
        lines[1::3] = [line.replace(b'"content":"', b'"content":"0')[:-1] for line in lines[1::3]]
        lines[2::3] = [re.sub(rb'"rows":\[\d+', b'"rows":[7', line) for line in lines[2::3]]
        (store / MANIFEST).write_bytes(b"\n".join(lines))
    if lost == "root":
        damaged.add(ROOT)
        root = root_of_many_wrong_bytes(store)
        root["attributes"]["unistore"]["fields"]["points/xyz"]["unit"] = "parsec"
        root["attributes"]["unistore"]["seal"]["content_digest"] = "0" * 32
        (store / ROOT).write_text(json.dumps(root, indent=1))
    inodes = {key: (store / key).stat().st_ino for key in before if key not in damaged}
    repaired = repair(store, case.sources)
    assert repaired.ok
    assert set(repaired.repaired) == damaged
    assert tree(store) == before
    assert {key: (store / key).stat().st_ino for key in inodes} == inodes


@pytest.mark.parametrize("lost", ["shard", "root"])
def test_a_repair_from_a_changed_source_is_an_error_and_changes_nothing(
    lost: str, tmp_path: Path, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values that became others are refused, whatever else of the store is damaged."""
    monkeypatch.setattr("unistore.conversion.plan.SHARD", SMALL_SHARD)
    values = np.random.default_rng(0).normal(size=(40_000, 3))
    np.save(tmp_path / "values.npy", values)
    store = tmp_path / "store.zarr"
    convert(tmp_path / "values.npy", store, "rows")
    (shards,) = [folder for folder in store.glob("rows/*/c") if len(list(folder.iterdir())) > 20]
    damage(store, f"{shards.relative_to(store).as_posix()}/7/0", random.Random(0))
    if lost == "root":
        (store / ROOT).write_text(json.dumps(root_of_many_wrong_bytes(store), indent=1))
    before = tree(store)
    rows = len(values) // len(list(shards.iterdir()))
    values[7 * rows + rows // 2, 0] += 1
    np.save(tmp_path / "values.npy", values)
    with pytest.raises(ConversionError, match="do not have the values any more"):
        repair(store, [tmp_path / "values.npy"])
    assert tree(store) == before


def test_a_root_beyond_repair_is_an_error_and_changes_nothing(copy_case: Copy, tree: Tree) -> None:
    case, store = copy_case("rows_real")
    (store / ROOT).write_bytes(b"\0" * 500)
    before = tree(store)
    with pytest.raises(StoreError, match="convert all sources of the store again with --overwrite"):
        repair(store, case.sources)
    assert tree(store) == before


@pytest.mark.parametrize("name", ["rows_real", "ct_real"])
def test_a_root_of_one_wrong_byte_is_repaired_from_the_documents(
    name: str, make_case: Callable[..., Any]
) -> None:
    _, store = make_case(name)
    document = (store / ROOT).read_bytes()
    documents = {path.relative_to(store).as_posix(): path.read_bytes() for path in store.rglob(f"*/{ROOT}")}
    own = document.index(b'\n "attributes"')
    rng = random.Random(0)
    tail = range(len(document) - 70, len(document), 4)
    for at in (rng.randrange(len(document)), rng.choice(tail)):
        changed = bytearray(document)
        changed[at] ^= 1 << rng.randrange(8)
        assert repaired_root(bytes(changed), documents) == document, at
    changed = bytearray(document)
    changed[200] ^= 0x55
    assert repaired_root(bytes(changed), documents) == document, "among what it repeats"
    if name == "rows_real":  # every bit is tried in vain first, and then every byte
        changed[own + 200] ^= 0x55
        assert repaired_root(bytes(changed), documents) == document, "more than one bit of the byte"
        changed[own + 900] ^= 1
        assert repaired_root(bytes(changed), documents) is None
        assert repaired_root(b"", {}) is None


def copied(case: Any, folder: Path) -> list[Path]:
    return [Path(shutil.copy2(source, folder / source.name)) for source in case.sources]


def test_sources_of_another_form_are_refused_and_named(copy_case: Copy, tmp_path: Path) -> None:
    case, store = copy_case("robot_d4rl")
    damage(store, "steps/action/c/0/0", random.Random(4))
    (source,) = copied(case, tmp_path)
    with h5py.File(source, "r+") as file:
        values = file["actions"][()]
        del file["actions"]
        file["actions"] = np.concatenate([values, values], axis=1)
    with pytest.raises(
        InputError, match=r"array steps/action: float32 \(20, 3\) in the store, .* \(20, 6\) now"
    ):
        repair(store, [source])
    (tmp_path / "renamed").mkdir()
    other = source.rename(tmp_path / "renamed" / "walker.hdf5")
    with pytest.raises(InputError, match=r"source hopper\.hdf5: in the store, but not given"):
        repair(store, [other])


def test_one_of_two_sources_does_not_advise_to_replace_the_store(copy_case: Copy) -> None:
    case, store = copy_case("cloud_real")
    first, second = case.sources
    damage(store, "points/xyz/c/0/0", random.Random(0))
    with pytest.raises(InputError, match=rf"source {second.name}: in the store, but not given") as raised:
        repair(store, [first])
    assert raised.value.problems[0].fix == f"give all sources of the store, {second.name} too"
    assert repair(store, case.sources).ok


def test_a_repair_with_another_encoder_version_is_an_error(
    copy_case: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, store = copy_case("rows_real")
    damage(store, "sources/rows/offsets/c/0", random.Random(0))
    now = {"unistore": "0.1.0", "numcodecs": "99.0"}
    monkeypatch.setattr("unistore.conversion.new_store.versions", lambda: now)
    monkeypatch.setattr("unistore.integrity.compare.versions", lambda: now)
    with pytest.raises(InputError, match=r"numcodecs: the store was made with .*, now 99\.0"):
        repair(store, case.sources)


def test_the_folder_of_a_killed_repair_is_named_and_removed_by_the_next(copy_case: Copy, tree: Tree) -> None:
    """What it left is told by inspect, and removed by the next repair."""
    case, store = copy_case("rows_real")
    before = tree(store)
    damage(store, "sources/rows/offsets/c/0", random.Random(0))
    code = (
        "import importlib, os, sys\n"
        "module = importlib.import_module('unistore.integrity.repair')\n"
        "original = module._Repair.run\n"
        "def run(self, sources):\n"
        "    original(self, sources)\n"
        "    os.kill(os.getpid(), 9)\n"
        "module._Repair.run = run\n"
        "module.repair(sys.argv[1], sys.argv[2:])\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(store), *map(str, case.sources)])
    assert killed.returncode == -9
    left = store.with_name(f"{store.name}.unistore-repair")
    assert verify(store).problems == ()
    assert f"{left.name}; repair again, or remove it" in "".join(inspect(store).details["remarks"])
    assert f"this is the folder of a repair of {store.name}" in str(inspect(left))
    again, sound = repair(store, case.sources), verify(store)
    assert again.to_json() == sound.to_json() | {"repaired": ()}
    assert tree(store) == before
    assert sorted(path.name for path in store.parent.iterdir()) == [store.name]


def test_a_repair_on_a_full_disk_is_an_error_and_can_be_repeated(
    copy_case: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, store = copy_case("rows_real")
    damage(store, "sources/rows/offsets/c/0", random.Random(0))

    with monkeypatch.context() as patch:
        patch.setattr(import_module("unistore.integrity.repair")._Repair, "run", full_disk)
        with pytest.raises(
            ConversionError, match=r"No space left on device. Fix: free space there, then repair"
        ):
            repair(store, case.sources)
    assert sorted(path.name for path in store.parent.iterdir()) == [store.name]
    assert repair(store, case.sources).ok


def test_a_repair_of_a_remote_store_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="only a store in a local folder"):
        repair("s3://bucket/store.zarr", [tmp_path])


def test_nothing_is_repaired_through_a_link(copy_case: Copy, tree: Tree, tmp_path: Path) -> None:
    case, store = copy_case("rows_real")
    outside = tmp_path / "outside"
    (store / "rows").rename(outside)
    (store / "rows").symlink_to(outside)
    (outside / "zarr.json").write_bytes(b"the user's own")
    before = tree(outside)
    with pytest.raises(StoreError, match=r"rows: is a link, but a store has only regular files"):
        repair(store, case.sources)
    assert tree(outside) == before


@pytest.mark.parametrize("key", [MANIFEST, "rows/zarr.json"])
@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_a_pipe_or_link_in_the_place_of_a_file_is_repaired(
    copy_case: Copy, tree: Tree, tmp_path: Path, key: str, kind: str
) -> None:
    case, store = copy_case("rows_real")
    before = tree(store)
    (tmp_path / "victim").write_bytes(b"the user's own")
    (store / key).unlink()
    if kind == "pipe":
        os.mkfifo(store / key)
    else:
        (store / key).symlink_to(tmp_path / "victim")
    assert repair(store, case.sources).ok
    assert tree(store) == before
    assert (tmp_path / "victim").read_bytes() == b"the user's own"


def test_folders_that_a_repair_moves_files_into_reach_the_disk_before_the_root(
    copy_case: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, store = copy_case("rows_npz")
    shards = [path for path in store.glob("rows/**/c/**/*") if path.is_file()]
    for folder in store.glob("rows/*/c"):
        shutil.rmtree(folder)
    damage(store, ROOT, random.Random(0))
    done: list[tuple[str, Path]] = []
    rename, fsync = os.replace, os.fsync

    def renaming(source: Any, target: Any) -> None:
        rename(source, target)
        done.append(("moved", Path(target)))

    def syncing(descriptor: int) -> None:
        fsync(descriptor)
        done.append(("synced", Path(f"/proc/self/fd/{descriptor}").readlink()))

    monkeypatch.setattr("os.replace", renaming)
    monkeypatch.setattr("unistore.zarr3.durable.rename", renaming)
    monkeypatch.setattr("os.fsync", syncing)
    monkeypatch.setattr("unistore.zarr3.durable.fsync", syncing)
    assert repair(store, case.sources).ok
    root_written = done.index(("moved", store / ROOT))
    for shard in shards:
        moved = done.index(("moved", shard))
        synced_later = {path for what, path in done[moved:root_written] if what == "synced"}
        assert {store / folder for folder in shard.relative_to(store).parents} <= synced_later


REPORT = "unistore-report.json"


def test_a_store_with_a_skipped_source_is_verified_and_repaired(
    tmp_path: Path, tree: Callable[[Path], dict[str, bytes]]
) -> None:
    sources = tmp_path / "sources"
    sources.mkdir()
    rng = np.random.default_rng(0)
    for number in range(3):
        np.savez(sources / f"part_{number}.npz", data=rng.normal(size=(20 + number, 3)))
    bad = sources / "part_1.npz"
    bad.write_bytes(bad.read_bytes()[:200])
    store = tmp_path / "store.zarr"
    run(make_converter("rows", {}), [sources], store, Settings(on_error="skip"))
    assert (store / REPORT).exists()
    verified = verify(store, against=[sources])
    assert verified.problems == ()
    assert verified.receipt is not None
    assert verified.receipt.line == (
        "All 126 values of 2 files are equal to the store (read with numpy). Not in the store: part_1.npz."
    )
    before = tree(store)
    for key in (REPORT, "rows/data/c/0/0", "unistore-manifest.jsonl"):
        data = bytearray(before[key])
        data[random.Random(key).randrange(len(data))] ^= 1
        (store / key).write_bytes(data)
        assert not verify(store).ok
        assert repair(store, [sources]).ok
        assert tree(store) == before
