"""Export small stores as LeRobot and robomimic datasets, for their own classes to read (`read_exports.py`).

python tools/oracles/exports.py build/exports
"""

import shutil
import sys
from pathlib import Path

import cv2
import h5py
import numpy as np

import unistore

DATA = Path(__file__).resolve().parents[2] / "tests/data"
LENGTHS = (6, 9)
FPS = 20


def write_source(path: Path) -> None:
    """Write demonstrations with a camera, 16-bit depth, JPEG frames, next observations, and splits."""
    random = np.random.default_rng(3)
    with h5py.File(path, "w") as file:
        file["mask/train"] = np.array([b"demo_0"])
        file["mask/valid"] = np.array([b"demo_1"])
        file.create_group("data").attrs["env_args"] = '{"env_name": "Lift", "type": 1, "env_kwargs": {}}'
        for number, length in enumerate(LENGTHS):
            demo = file.create_group(f"data/demo_{number}")
            demo.attrs["num_samples"] = length
            demo.attrs["task"] = f"lift cube {number}"
            demo["actions"] = random.normal(size=(length, 7))
            demo["rewards"] = random.normal(size=length)
            demo["dones"] = (np.arange(length) == length - 1).astype("i8")
            state = random.normal(size=(length + 1, 4)).astype("f4")
            demo["obs/state"] = state[:-1]
            demo["next_obs/state"] = state[1:]
            demo["obs/depth"] = random.integers(0, 65535, (length, 6, 8)).astype("u2")
            frames = np.stack([slope(step + number * 40) for step in range(length)])
            demo["obs/front"] = frames
            files = demo.create_dataset("obs/wrist", length, h5py.vlen_dtype(np.uint8))
            for step, frame in enumerate(frames):
                files[step] = cv2.imencode(".jpg", frame)[1]


def slope(step: int) -> np.ndarray:
    """Draw an image (32, 48, 3) of slow changes, as cameras see."""
    values = np.add.outer(np.arange(32) * 2, np.arange(48)) + step
    return np.stack([values, values // 2, 255 - values], axis=-1).astype(np.uint8)


def dump(store: Path, path: Path) -> None:
    """Write all steps as `unistore.Dataset` gives them."""
    dataset = unistore.Dataset(store, unistore.Transitions())
    steps = [dataset[step] for step in range(len(dataset))]
    np.savez(path, **{name: np.stack([step[name].numpy() for step in steps]) for name in steps[0]})


def main() -> None:
    folder = Path(sys.argv[1])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_source(folder / "demo.hdf5")
    kept = folder / "demos.zarr"
    unistore.convert(folder / "demo.hdf5", kept, family="trajectory", images="keep")
    toy = folder / "toy.zarr"
    unistore.convert(DATA / "lerobot/v3", toy, family="trajectory")
    for store, fps in ((kept, FPS), (toy, None)):
        dump(store, folder / f"{store.stem}.npz")
        unistore.export(store, folder / f"{store.stem}-lerobot", to="lerobot", fps=fps)
        unistore.export(store, folder / f"{store.stem}-video", to="lerobot", fps=fps, video=True)
        unistore.export(store, folder / f"{store.stem}-robomimic", to="robomimic")


if __name__ == "__main__":
    main()
