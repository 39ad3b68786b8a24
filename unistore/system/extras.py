"""Libraries that are installed by an extra: ``pip install 'unistore[torch]'``."""

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
    require("torch", f"{what} PyTorch,", "torch")


def require(module: str, what: str, extra: str) -> None:
    """Import a library, or say which command installs it: `what` begins the sentence."""
    try:
        import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        msg = f"{what} which is not installed: pip install 'unistore[{extra}]'"
        raise MissingLibraryError(msg) from error
