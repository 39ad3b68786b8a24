"""Write small Minari datasets by Minari's own class, and what it returns of them.

Run by ``make oracles`` in LeRobot's environment, with minari.

    python tools/oracles/minari_samples.py tests/data/minari
"""

import os
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

_scratch = TemporaryDirectory()
os.environ["MINARI_DATASETS_PATH"] = _scratch.name

import gymnasium as gym  # noqa: E402
import minari  # noqa: E402
import numpy as np  # noqa: E402
from gymnasium import spaces  # noqa: E402
from minari.data_collector import EpisodeBuffer  # noqa: E402

LENGTHS = (4, 7, 1)
NESTED = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (8, 12, 3), np.uint8),
        "pair": spaces.Tuple((spaces.Box(-9, 9, (3,), np.float32), spaces.Discrete(5))),
        "mission": spaces.Text(40),
    }
)
FLAT = spaces.Box(-9, 9, (5,), np.float64)
ACTION = spaces.Box(-1, 1, (2,), np.float32)


def observations(space: gym.Space, length: int):
    """Draw the observations of an episode as Minari keeps them, nested as the space is."""
    if isinstance(space, spaces.Dict):
        return {name: observations(own, length) for name, own in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(observations(own, length) for own in space.spaces)
    if isinstance(space, spaces.Text):
        return [f"go to door {step % 2}" for step in range(length)]
    if space.shape == (8, 12, 3):
        slopes = np.add.outer(np.arange(8) * 3, np.arange(12) * 2)
        return [np.stack([slopes + step] * 3, axis=-1).astype(np.uint8) for step in range(length)]
    return [space.sample() for _ in range(length)]


def write(name: str, space: gym.Space) -> minari.MinariDataset:
    space.seed(1)
    ACTION.seed(2)
    buffers = []
    for number, length in enumerate(LENGTHS):
        last = np.arange(length) == length - 1
        buffers.append(
            EpisodeBuffer(
                id=number,
                seed=number,
                observations=observations(space, length + 1),
                actions=[ACTION.sample() for _ in range(length)],
                rewards=[float(step) for step in range(length)],
                terminations=list(last & (number != 1)),
                truncations=list(last & (number == 1)),
                infos={"progress": np.linspace(0, 1, length + 1)},
            )
        )
    return minari.create_dataset_from_buffers(
        f"toy/{name}-v0", buffers, observation_space=space, action_space=ACTION, data_format="hdf5"
    )


def leaves(value, path: str = "observations"):
    """Yield the arrays of nested observations by path."""
    if isinstance(value, dict):
        for name, own in value.items():
            yield from leaves(own, f"{path}/{name}")
    elif isinstance(value, tuple):
        for number, own in enumerate(value):
            yield from leaves(own, f"{path}/_index_{number}")
    else:
        yield path, np.asarray(value)


def dump(dataset: minari.MinariDataset, path: Path) -> None:
    arrays = {}
    for episode in dataset.iterate_episodes():
        own = dict(leaves(episode.observations))
        for name in ("actions", "rewards", "terminations", "truncations"):
            own[name] = getattr(episode, name)
        arrays |= {f"episode_{episode.id}/{name}": values for name, values in own.items()}
    np.savez_compressed(path, **arrays)


def main() -> None:
    folder = Path(sys.argv[1])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, space in (("flat", FLAT), ("nested", NESTED)):
        dataset = write(name, space)
        shutil.copytree(Path(_scratch.name, f"toy/{name}-v0"), folder / name)
        dump(dataset, folder / f"{name}.npz")


if __name__ == "__main__":
    main()
