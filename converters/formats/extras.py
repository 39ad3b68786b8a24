"""Libraries that formats need and that not everybody installs."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from unistore.converters.plugin import SourceFile


def needed(module: str, extra: str, file: SourceFile) -> Any:
    """Import a library that reads a file.

    Raises
    ------
    InputError
        If it is not installed, with the command that installs it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        message = f"is read by {module}, which is not installed"
        raise file.problem(message, f"pip install 'unistore[{extra}]'", "library") from error
