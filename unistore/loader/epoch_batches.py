"""The batches of an epoch as sample indices, from which torch's ``DataLoader`` makes the same batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from unistore.errors import LoaderError
from unistore.loader.iteration import PlannedEpoch
from unistore.order.permutation import EpochIndex, takes_rng


class EpochBatches:
    """The batch sampler of a Loader: the sample indices of each batch of this rank.

    ``accelerate.skip_first_batches``, with which the Trainer of transformers resumes, makes a
    ``DataLoader`` from it and from the dataset, the collate function and the workers of the Loader. An
    iteration is the next epoch of the Loader, from its first batch, even if the Loader has delivered some
    of it. The last batch ends that epoch.

    Parameters
    ----------
    loader : Loader
        The Loader whose epochs it follows.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self.batch_size = loader.batch_size
        self.drop_last = loader.drop_last

    def __len__(self) -> int:
        return len(self._loader)

    def set_epoch(self, epoch: int) -> None:
        """Make ``epoch`` the next one."""
        self._loader.set_epoch(epoch)

    def __iter__(self) -> Iterator[list[EpochIndex]]:
        loader = self._loader
        if difference := _difference(loader):
            msg = (
                f"a DataLoader cannot produce the batches of this Loader, because {difference}. "
                "Fix: iterate the Loader itself, and resume with loader.load_state_dict(state)"
            )
            raise LoaderError(msg)
        epoch = loader.upcoming_epoch()
        planned = PlannedEpoch(loader.sequence, epoch, loader.share(), 0)
        for number in range(len(self)):
            yield [EpochIndex(index, epoch) for index in planned.request(number).indices.tolist()]
        loader.set_epoch(epoch + 1)


def _difference(loader: Any) -> str:
    """Return what batches would lose without the Loader, empty if they would be the same."""
    if not hasattr(loader.dataset, "read_batch"):
        return "it seeds the samples of a dataset without read_batch"
    if loader.finishes_batches:
        return "device or batch_transform is set"
    if takes_rng(loader.collate_fn):
        return "it passes rng to collate_fn"
    return ""
