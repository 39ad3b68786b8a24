"""Types of samples and batches, for type checkers and editors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import TypeVar

    class Tensors(dict[str, Any]):
        """A sample or batch: tensors by key, and texts. Texts of one's own, too, are taken for tensors."""

        @overload
        def __getitem__(self, key: Literal["source", "sequence", "name"]) -> Any: ...
        @overload
        def __getitem__(self, key: str) -> Tensor: ...
        def __getitem__(self, key: str) -> Any: ...

    # What a Dataset gives, which its transform may change
    SampleT = TypeVar("SampleT", default=Tensors)
    # What a Loader reads, and what its function makes of the samples of a batch, if it has one
    DatasetT = TypeVar("DatasetT", default=Any)
    CollatedT = TypeVar("CollatedT", default=None)
else:
    from typing import TypeVar

    SampleT = TypeVar("SampleT")
    DatasetT = TypeVar("DatasetT")
    CollatedT = TypeVar("CollatedT")
