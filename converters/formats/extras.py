"""What formats refuse alike: a library that is not installed, a file that ends too early."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from unistore.converters.plugin import SourceFile


def needed(module: str, extra: str, file: SourceFile) -> Any:
    """Import a library that reads a file, or say which command installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        message = f"is read by {module}, which is not installed"
        raise file.problem(message, f"pip install 'unistore[{extra}]'", "library") from error


def check_size(file: SourceFile, end: int) -> None:
    """Refuse a file that ends before a byte, where its header tells of more."""
    if file.size < end:
        message = f"has {file.size} bytes, its header tells of {end}"
        raise file.problem(message, "copy it again", "truncated")
