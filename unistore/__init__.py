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

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unistore.conversion.clean import Leftover as Leftover
    from unistore.conversion.clean import clean as clean
    from unistore.conversion.run import Report as Report
    from unistore.conversion.signatures import convert as convert
    from unistore.data.collate import Collate as Collate
    from unistore.data.collate import collate as collate
    from unistore.data.dataset import Dataset as Dataset
    from unistore.data.kinds.clips import Clips as Clips
    from unistore.data.kinds.clips import Steps as Steps
    from unistore.data.kinds.episodes import Episodes as Episodes
    from unistore.data.kinds.episodes import Transitions as Transitions
    from unistore.data.kinds.events import Events as Events
    from unistore.data.kinds.replay import ReplayBuffer as ReplayBuffer
    from unistore.data.kinds.rows import Ragged as Ragged
    from unistore.data.kinds.rows import Rows as Rows
    from unistore.data.kinds.segments import Segments as Segments
    from unistore.data.kinds.sparse_points import SparsePoints as SparsePoints
    from unistore.data.kinds.volumes import Patches as Patches
    from unistore.data.kinds.volumes import Volumes as Volumes
    from unistore.data.kinds.windows import Windows as Windows
    from unistore.data.normalize import Normalize as Normalize
    from unistore.data.statistics import Statistics as Statistics
    from unistore.data.statistics import keep_statistics as keep_statistics
    from unistore.data.stitch import stitch as stitch
    from unistore.errors import ConversionError as ConversionError
    from unistore.errors import CorruptionError as CorruptionError
    from unistore.errors import InputError as InputError
    from unistore.errors import MissingLibraryError as MissingLibraryError
    from unistore.errors import NoStoreError as NoStoreError
    from unistore.errors import Problem as Problem
    from unistore.errors import StoreError as StoreError
    from unistore.errors import UnistoreError as UnistoreError
    from unistore.errors import UnsupportedError as UnsupportedError
    from unistore.exporting.run import Exported as Exported
    from unistore.exporting.run import export as export
    from unistore.growing.append import Appended as Appended
    from unistore.growing.append import append as append
    from unistore.growing.compact import compact as compact
    from unistore.growing.history import Removed as Removed
    from unistore.growing.history import VersionSummary as VersionSummary
    from unistore.growing.history import remove as remove
    from unistore.growing.history import versions as versions
    from unistore.integrity.compare import Receipt as Receipt
    from unistore.integrity.repair import Repaired as Repaired
    from unistore.integrity.repair import repair as repair
    from unistore.integrity.verify import Verified as Verified
    from unistore.integrity.verify import verify as verify
    from unistore.loader import Loader as Loader
    from unistore.loader import LoaderError as LoaderError
    from unistore.loader import SampleError as SampleError
    from unistore.loader import WorkerDiedError as WorkerDiedError
    from unistore.loader.replay import Replayed as Replayed
    from unistore.loader.replay import replay as replay
    from unistore.order.permutation import EpochIndex as EpochIndex
    from unistore.order.sampler import Shuffle as Shuffle
    from unistore.report.doctor import DoctorReport as DoctorReport
    from unistore.report.doctor import doctor as doctor
    from unistore.report.inspection import Inspection as Inspection
    from unistore.report.inspection import inspect as inspect
    from unistore.report.serve import view as view
    from unistore.side.attach import attach as attach
    from unistore.side.derive import derive as derive
    from unistore.store.reader import Store as Store
    from unistore.store.reader import open_zarr as open_zarr
    from unistore.store.warming import CacheReport as CacheReport
    from unistore.store.warming import warm_cache as warm_cache

    __version__: str


_NAMES = {
    "conversion.clean": "Leftover clean",
    "conversion.signatures": "convert",
    "conversion.run": "Report",
    "data.collate": "Collate collate",
    "data.dataset": "Dataset",
    "data.kinds.clips": "Clips Steps",
    "data.kinds.episodes": "Episodes Transitions",
    "data.kinds.events": "Events",
    "data.kinds.replay": "ReplayBuffer",
    "data.kinds.rows": "Ragged Rows",
    "data.kinds.segments": "Segments",
    "data.kinds.sparse_points": "SparsePoints",
    "data.kinds.volumes": "Patches Volumes",
    "data.kinds.windows": "Windows",
    "data.normalize": "Normalize",
    "data.statistics": "Statistics keep_statistics",
    "data.stitch": "stitch",
    "errors": "ConversionError CorruptionError InputError MissingLibraryError NoStoreError Problem "
    "StoreError UnistoreError UnsupportedError",
    "exporting.run": "Exported export",
    "growing.append": "Appended append",
    "growing.compact": "compact",
    "growing.history": "Removed VersionSummary remove versions",
    "integrity.compare": "Receipt",
    "integrity.repair": "Repaired repair",
    "integrity.verify": "Verified verify",
    "loader": "Loader LoaderError SampleError WorkerDiedError",
    "loader.replay": "Replayed replay",
    "order.permutation": "EpochIndex",
    "order.sampler": "Shuffle",
    "report.doctor": "DoctorReport doctor",
    "report.inspection": "Inspection inspect",
    "report.serve": "view",
    "side.attach": "attach",
    "side.derive": "derive",
    "store.reader": "Store open_zarr",
    "store.warming": "CacheReport warm_cache",
}
# Module of each public name; the imports above say the same to type checkers, and a test compares both
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

# Names that are of no use without PyTorch, an extra
_OF_TORCH = {"Collate", "Loader", "Normalize", "ReplayBuffer", "collate", "stitch"}

__all__ = sorted(_HOME)  # noqa: PLE0605


if not TYPE_CHECKING:  # or every misspelt name would pass for one of ours

    def __getattr__(name: str) -> object:
        if name == "__version__":
            from importlib.metadata import version

            return version("unistore")
        if name not in _HOME:
            msg = f"module 'unistore' has no attribute {name!r}"
            raise AttributeError(msg)
        from importlib import import_module

        if name in _OF_TORCH:
            import_module("unistore.system.extras").require_torch(f"unistore.{name} needs")
        value = getattr(import_module(f"unistore.{_HOME[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(
        {
            "__version__",
            *__all__,
            *(name for name in globals() if name.startswith("__") and name.endswith("__")),
        }
    )
