"""PyTorch, which is installed by an extra: ``pip install 'unistore[torch]'``."""

from __future__ import annotations

from importlib import import_module

from unistore.errors import MissingLibraryError


def require_torch(what: str) -> None:
    """Import torch, or say which command installs it.

    Raises
    ------
    MissingLibraryError
        If torch is not installed. The message begins with `what`.
    """
    try:
        import_module("torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        msg = f"{what} PyTorch, which is not installed: pip install 'unistore[torch]'"
        raise MissingLibraryError(msg) from error
