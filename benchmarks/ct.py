"""CT volumes: sparse samples of 100,000 points of a window, and patches of 96³ voxels.

    python benchmarks/ct.py [--foreground] [--quick] [--only PATTERN …] [--json FILE] [--markdown FILE]

The cases are synthetic, laid out as CT preparation leaves them: ``ct_original_256.npy`` (int16, Hounsfield
units) and ``windows/bone_w600_l700.npy`` (uint8, 0 and 1; about 4.4 % of 256³ voxels, 734,000 points). A
sparse sample is 100,000 of the window's points, another subset each time; batches of 2.

``--foreground``: patches of image and labels (bone, lungs) of which a third is centred on a label, beside
MONAI, TorchIO and the way of nnU-Net. Needs monai, torchio and blosc2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
from harness.foreground import LOCATIONS, SHARE, Blosc2Patches, Pair, monai_feed, torchio_feed, write_blosc2
from harness.ours import our_ways
from harness.peers import litdata_feed, mosaic_feed, stacked, webdataset_feed, write_peers
from harness.plain import map_feed, open_tensorstore, write_tensorstore
from harness.script import Options, Target, parse, run_ways
from harness.ways import Way
from numpy.typing import NDArray

import unistore

BATCH = 2
MOST = 100_000
PATCH = 96
LOW, HIGH = 400, 1000


FOREGROUND_TARGETS = [
    Target(
        text="Loader over nnU-Net's way",
        ours=("Loader*",),
        others=("nnU-Net's way*",),
        factor=1,
    ),
    Target(
        text="Loader over MONAI's CacheDataset",
        ours=("Loader*",),
        others=("MONAI CacheDataset*",),
        factor=1,
    ),
]


def make_case(folder: Path, size: int, seed: int) -> None:
    """A trunk: air around soft tissue, lungs, ribs and a spine, with texture, blur and correlated noise."""
    rng = np.random.default_rng(seed)
    y, x = np.meshgrid(np.linspace(-1, 1, size), np.linspace(-1, 1, size), indexing="ij")
    grain = cv2.GaussianBlur(rng.normal(0, 45, (2 * size, 2 * size)).astype(np.float32), (0, 0), 0.7)
    textures = [
        cv2.resize(rng.normal(0, 22, (size // 8,) * 2), (size, size), interpolation=cv2.INTER_CUBIC)
        for _ in range(size // 8 + 2)
    ]
    image = np.empty((size, size, size), np.int16)
    body = (x / 0.86) ** 2 + (y / 0.62) ** 2
    lungs = ((np.abs(x) - 0.38) / 0.27) ** 2 + (y / 0.42) ** 2
    spine = x**2 + (y - 0.42) ** 2 < 0.135**2
    for z in range(size):
        key, part = z // 8, z % 8 / 8
        texture = (1 - part) * textures[key] + part * textures[key + 1]
        plane = np.full((size, size), -1000, np.float32)
        plane[body < 1] = (40 + texture)[body < 1]
        plane[lungs < 1] = (-820 + 3 * texture)[lungs < 1]
        rib = (np.abs(body - 0.86) < 0.085) & (np.sin(z / size * 60 + 3 * np.abs(x) + seed) > 0.35)
        bone = rib | spine
        plane[bone] = (690 + 4 * texture)[bone]
        at = rng.integers(0, size, 2)
        plane = cv2.GaussianBlur(plane, (0, 0), 0.8) + grain[at[0] : at[0] + size, at[1] : at[1] + size]
        image[z] = np.rint(np.maximum(plane, -1024))
    (folder / "windows").mkdir(parents=True)
    np.save(folder / f"ct_original_{size}.npy", image)
    window = ((image >= LOW) & (image <= HIGH)).view(np.uint8)
    np.save(folder / "windows" / f"bone_w{HIGH - LOW}_l{(LOW + HIGH) // 2}.npy", window)


def window_file(case: Path) -> Path:
    """The window of a case."""
    return next((case / "windows").glob("*.npy"))


def subset(coords: NDArray[Any]) -> NDArray[np.int32]:
    """100,000 points as the documents draw them."""
    if len(coords) > MOST:
        coords = coords[np.random.choice(len(coords), MOST, replace=False)]  # noqa: NPY002
    return coords.astype(np.int32)


GENERATOR = np.random.default_rng()


def quick_subset(coords: NDArray[Any]) -> NDArray[np.int32]:
    """100,000 points, drawn without shuffling them."""
    if len(coords) > MOST:
        coords = coords[np.sort(GENERATOR.choice(len(coords), MOST, replace=False, shuffle=False))]
    return coords.astype(np.int32)


class Documents:
    """The documents' CTWindowSparseSDF: ``argwhere`` of the window, its ``.npz``, or indices in RAM."""

    def __init__(self, files: Sequence[Path], mode: str) -> None:
        self._mode = mode
        self._files = files
        self._cache = {file: np.argwhere(np.load(file) > 0) for file in files} if mode == "RAM" else {}

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> dict[str, NDArray[Any]]:
        file = self._files[index]
        if self._mode == "argwhere":
            return {"coords": subset(np.argwhere(np.load(file) > 0))}
        if self._mode == "RAM":
            return {"coords": subset(self._cache[file])}
        with np.load(file) as archive:
            return {"coords": subset(archive["indices"])}


class Memmap:
    """Points of all windows in one raw array."""

    def __init__(self, folder: Path) -> None:
        self._offsets = np.load(folder / "offsets.npy")
        self._coords = np.load(folder / "coords.npy", mmap_mode="r")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> dict[str, NDArray[Any]]:
        return {"coords": quick_subset(self._coords[self._offsets[index] : self._offsets[index + 1]])}


class SortedHdf5:
    """Points of all windows in one HDF5 file, chunks of 64 KiB with lzf."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: h5py.File | None = None
        with h5py.File(path, "r") as file:
            self._offsets = file["offsets"][:]

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> dict[str, NDArray[Any]]:
        if self._file is None:
            self._file = h5py.File(self._path, "r")
        return {"coords": quick_subset(self._file["coords"][self._offsets[index] : self._offsets[index + 1]])}


class TensorstorePoints:
    """Points of all windows in a sharded array of tensorstore."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets = np.load(folder / "offsets.npy")
        self._coords: Any = None

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> dict[str, NDArray[Any]]:
        if self._coords is None:
            self._coords = open_tensorstore(self._folder / "coords")
        lo, hi = int(self._offsets[index]), int(self._offsets[index + 1])
        return {"coords": quick_subset(self._coords[lo:hi].read().result())}


class Patches:
    """Random 96³ boxes of volumes."""

    def __init__(self, places: Sequence[Path], how: str) -> None:
        self._places = places
        self._how = how
        self._open: dict[int, Any] = {}

    def __len__(self) -> int:
        return 1000 * len(self._places)

    def __getitem__(self, index: int) -> dict[str, NDArray[Any]]:
        number = index % len(self._places)
        if self._how in ("np.load", "mmap opened for each sample"):
            volume = np.load(self._places[number], mmap_mode=None if self._how == "np.load" else "r")
        else:
            if number not in self._open:
                self._open[number] = self._volume(self._places[number])
            volume = self._open[number]
        corner = [int(GENERATOR.integers(0, extent - PATCH + 1)) for extent in volume.shape]
        box = volume[tuple(slice(at, at + PATCH) for at in corner)]
        return {"image": np.ascontiguousarray(box.read().result() if self._how == "tensorstore" else box)}

    def _volume(self, place: Path) -> Any:
        if self._how == "RAM":
            return np.load(place)
        if self._how == "mmap":
            return np.load(place, mmap_mode="r")
        if self._how == "tensorstore":
            return open_tensorstore(place)
        return h5py.File(place, "r")["image"]


def subsampled(stored: Any) -> dict[str, NDArray[Any]]:
    """Sample of what a peer stores."""
    return {"coords": quick_subset(np.asarray(stored["coords"]))}


def make_source(folder: Path, *, quick: bool) -> list[Path]:
    """Cases of the benchmark, made where they are missing."""
    count, size = (3, 160) if quick else (6, 256)
    cases = [folder / f"case_{number}" for number in range(count)]
    for number, case in enumerate(cases):
        if not case.exists():
            make_case(case, size, number)
    return cases


def prepare(folder: Path, *, quick: bool) -> tuple[list[Path], dict[str, Path]]:
    """Source cases, and every form of them that is raced."""
    cases = make_source(folder / "source", quick=quick)
    made = {
        "store": folder / "store.zarr",
        "points": folder / "points.zarr",
        "plain": folder / "plain.zarr",
        "raw": folder / "raw",
        "tensorstore": folder / "tensorstore",
        "hdf5": folder / "sorted.h5",
        "volumes": folder / "volumes",
    }
    if not (folder / "done").exists():
        unistore.convert(folder / "source", made["store"], "ct", overwrite=True)
        unistore.convert(folder / "source", made["points"], "ct", sparse="coords", overwrite=True)
        unistore.convert(folder / "source", made["plain"], "ct", codec="none", overwrite=True)
        every = [np.argwhere(np.load(window_file(case)) > 0).astype(np.int16) for case in cases]
        joined, offsets = np.concatenate(every), np.cumsum([0, *map(len, every)])
        made["raw"].mkdir(exist_ok=True)
        np.save(made["raw"] / "coords.npy", joined)
        np.save(made["raw"] / "offsets.npy", offsets)
        write_tensorstore(made["tensorstore"] / "coords", joined, (16_384, 3), 64)
        np.save(made["tensorstore"] / "offsets.npy", offsets)
        with h5py.File(made["hdf5"], "w") as file:
            file.create_dataset("coords", data=joined, chunks=(16_384, 3), compression="lzf", shuffle=True)
            file["offsets"] = offsets
        derived = folder / "derived"
        made["volumes"].mkdir(exist_ok=True)
        for case, coords in zip(cases, every, strict=True):
            (derived / case.name).mkdir(parents=True, exist_ok=True)
            values = np.ones(len(coords), np.float16)
            np.savez(derived / case.name / "bone_sparse.npz", indices=coords, values=values)
            np.savez_compressed(
                derived / case.name / "bone_sparse_compressed.npz", indices=coords, values=values
            )
            volume = np.load(image_file(case))
            write_tensorstore(made["volumes"] / f"{case.name}.zarr", volume, (32, 32, 32), 1)
            with h5py.File(made["volumes"] / f"{case.name}.h5", "w") as file:
                file.create_dataset(
                    "image", data=volume, chunks=(32, 32, 32), compression="lzf", shuffle=True
                )
        (folder / "done").touch()

    def samples() -> Iterator[dict[str, NDArray[Any]]]:
        for case in cases:
            yield {"coords": np.argwhere(np.load(window_file(case)) > 0).astype(np.int16)}

    return cases, {**made, **write_peers(folder, samples)}


def image_file(case: Path) -> Path:
    """The volume of a case."""
    return next(case.glob("ct_original_*.npy"))


def ways(options: Options) -> tuple[list[Way], list[Way]]:
    """Contenders for sparse samples and for patches."""
    cases, made = prepare(options.folder, quick=options.quick)
    derived = [options.folder / "derived" / case.name for case in cases]
    windows, images = tuple(map(window_file, cases)), tuple(map(image_file, cases))
    sparse: list[Way] = []
    patches: list[Way] = []

    def mapped(to: list[Way], name: str, kind: Any, dataset: Any, files: Any, **more: Any) -> None:
        for workers in (0, 2):
            arguments = {"dataset": dataset, "batch": BATCH, "workers": workers, "collate": stacked}
            to.append(
                Way(
                    name=name,
                    setting=f"{workers} workers",
                    kind=kind,
                    make=map_feed,
                    arguments={**arguments, **more},
                    files=files,
                    imports=("torch", "h5py", "tensorstore") if "tensorstore" in name else ("torch", "h5py"),
                )
            )

    mapped(sparse, "np.load + argwhere", "documents", (Documents, (windows, "argwhere")), windows)
    for name in ("npz", "compressed npz"):
        suffix = "_compressed" if name.startswith("comp") else ""
        files = tuple(folder / f"bone_sparse{suffix}.npz" for folder in derived)
        mapped(sparse, f"precomputed {name}", "documents", (Documents, (files, "npz")), files)
    mapped(sparse, "indices in RAM", "documents", (Documents, (windows, "RAM")), windows)
    mapped(sparse, "memmap of indices", "plain", (Memmap, (made["raw"],)), (made["raw"],))
    mapped(sparse, "h5py of indices, lzf", "plain", (SortedHdf5, (made["hdf5"],)), (made["hdf5"],))
    mapped(
        sparse,
        "tensorstore of indices",
        "peer",
        (TensorstorePoints, (made["tensorstore"],)),
        (made["tensorstore"],),
        method="spawn",
    )
    for name, make, key in (
        ("LitData", litdata_feed, "litdata"),
        ("MosaicML Streaming", mosaic_feed, "streaming"),
        ("WebDataset", webdataset_feed, "webdataset"),
    ):
        for workers in (0, 2):
            shared = {"batch": BATCH, "workers": workers, "collate": stacked, "change": subsampled}
            sparse.append(
                Way(
                    name=name,
                    setting=f"{workers} workers",
                    kind="peer",
                    make=make,
                    arguments={"folder": made[key], **shared},
                    files=(made[key],),
                    imports=("torch", key) if key != "streaming" else ("torch",),
                )
            )
    kind = unistore.SparsePoints(max_points=MOST)
    sparse += our_ways(made["store"], BATCH, kind, ("coords",))
    sparse += our_ways(made["points"], BATCH, kind, ("coords",), label=" (sparse=coords)", workers=(2,))

    for how in ("np.load", "mmap opened for each sample", "mmap", "RAM"):
        mapped(patches, f".npy: {how}", "documents", (Patches, (images, how)), images)
    for how, suffix, name in (
        ("h5py", "h5", "h5py, 32³ lzf"),
        ("tensorstore", "zarr", "tensorstore, 32³ lz4"),
    ):
        places = tuple(made["volumes"] / f"{case.name}.{suffix}" for case in cases)
        more = {"method": "spawn"} if how == "tensorstore" else {}
        mapped(patches, name, "peer" if more else "plain", (Patches, (places, how)), places, **more)
    boxes = unistore.Patches(PATCH, per_volume=100_000)
    patches += our_ways(made["store"], BATCH, boxes, ("image",))
    patches += our_ways(made["plain"], BATCH, boxes, ("image",), label=" (codec=none)", workers=(1, 2))
    return sparse, patches


def make_labels(cases: Sequence[Path], folder: Path) -> list[Pair]:
    """Volumes with labels, 1 of bone and 2 of lungs, made where they are missing."""
    folder.mkdir(exist_ok=True)
    pairs = []
    for case in cases:
        pair = folder / f"{case.name}.npy", folder / f"{case.name}_seg.npy"
        if not pair[1].exists():
            volume = np.load(image_file(case))
            np.save(pair[0], volume)
            is_bone = (volume >= LOW) & (volume <= HIGH)
            is_lung = (volume >= -950) & (volume <= -650)
            np.save(pair[1], (is_bone + 2 * is_lung).astype(np.uint8))
        pairs.append(pair)
    return pairs


def foreground_ways(options: Options) -> list[Way]:
    """Contenders for patches of which a third is centred on a label."""
    import nibabel

    cases = make_source(options.folder / "source", quick=options.quick)
    pairs = make_labels(cases, options.folder / "labelled")
    store = options.folder / "labelled.zarr"
    blosc2 = options.folder / "blosc2"
    nifti = options.folder / "nifti"
    if not store.exists():
        folder = options.folder / "labelled"
        unistore.convert(folder, store, "ct", foreground_locations=LOCATIONS, overwrite=True)
        write_blosc2(blosc2, pairs)
        nifti.mkdir(exist_ok=True)
        for path in (path for pair in pairs for path in pair):
            image = nibabel.Nifti1Image(np.load(path), np.eye(4))
            nibabel.save(image, nifti / f"{path.stem}.nii")
    as_nifti = [(nifti / f"{one.stem}.nii", nifti / f"{two.stem}.nii") for one, two in pairs]
    files = tuple(path for pair in pairs for path in pair)
    ways: list[Way] = []

    def add(name: str, kind: Any, make: Any, places: Any, imports: tuple[str, ...], **arguments: Any) -> None:
        for workers in (0, 2):
            settings = {"batch": BATCH, "workers": workers, **arguments}
            setting = f"{workers} workers"
            ways.append(
                Way(
                    name=name,
                    setting=setting,
                    kind=kind,
                    make=make,
                    arguments=settings,
                    files=tuple(places),
                    imports=imports,
                )
            )

    monai = {"pairs": pairs, "size": PATCH}
    add("MONAI CacheDataset", "peer", monai_feed, files, ("torch", "monai"), indices=False, **monai)
    add("MONAI, indices cached", "peer", monai_feed, files, ("torch", "monai"), indices=True, **monai)
    places = tuple(path for pair in as_nifti for path in pair)
    add("TorchIO Queue", "peer", torchio_feed, places, ("torch", "torchio"), pairs=as_nifti, size=PATCH)
    dataset = (Blosc2Patches, (blosc2, len(pairs), PATCH))
    add("nnU-Net's way", "peer", map_feed, (blosc2,), ("torch", "blosc2"), dataset=dataset, collate=stacked)
    kind = unistore.Patches(PATCH, per_volume=100_000, foreground={"seg": SHARE})
    return ways + our_ways(store, BATCH, kind, ("image", "seg"))


def main() -> None:
    """Run the benchmark."""
    options = parse(__doc__, "ct", foreground="patches around labels, and nothing else")
    if options.flag:
        title = f"CT: patches of 96³ voxels with labels, {SHARE:.0%} centred on one"
        run_ways(options, title, foreground_ways(options), BATCH, FOREGROUND_TARGETS, "Loader, 2 workers")
        return
    sparse, patches = ways(options)
    run_ways(
        options,
        "CT: 100,000 points of a window",
        sparse,
        BATCH,
        [
            Target(
                text="Loader, 2 workers, over np.load + argwhere",
                ours=("Loader, 2 workers",),
                others=("np.load + argwhere*",),
                factor=10,
            ),
            Target(
                text="Loader, 2 workers, over precomputed npz",
                ours=("Loader, 2 workers",),
                others=("precomputed npz*",),
                factor=2.5,
            ),
        ],
        "Loader, 2 workers",
    )
    run_ways(
        options,
        "CT: patches of 96³ voxels",
        patches,
        BATCH,
        [
            Target(
                text="Loader over mmap of .npy, opened for each sample as the documents do",
                ours=("Loader*",),
                others=(".npy: mmap opened*",),
                factor=1,
            ),
            Target(
                text="Loader over mmap of .npy, every volume kept open and its pages mapped",
                ours=("Loader*",),
                others=(".npy: mmap, *",),
                factor=1,
            ),
        ],
        "Loader, 2 workers",
    )


if __name__ == "__main__":
    main()
