"""unistore converts research data into sharded Zarr stores and reads them with one fork-safe Dataset.

>>> import unistore  # doctest: +SKIP
>>> unistore.convert("recordings/", "train.zarr")  # doctest: +SKIP
>>> dataset = unistore.Dataset("train.zarr")  # doctest: +SKIP
>>> loader = unistore.Loader(dataset, batch_size=8, shuffle=True)  # doctest: +SKIP

PyTorch's own loader works, too:

>>> loader = DataLoader(dataset, 8, collate_fn=unistore.collate, num_workers=2)  # doctest: +SKIP

Importing this package is fast: each name is loaded when it is first used.
"""

from __future__ import annotations

from unistore.system.lazy import lazy_names

# Names that are of no use without PyTorch, an extra
_OF_TORCH = ("Collate", "Loader", "Normalize", "ReplayBuffer", "collate", "stitch")

_imported, _listed, __all__ = lazy_names(__name__, __file__)


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("unistore")
    if name in _OF_TORCH:
        from unistore.system.extras import require_torch

        require_torch(f"unistore.{name} needs")
    return _imported(name)


def __dir__() -> list[str]:
    return sorted(["__version__", *_listed()])
