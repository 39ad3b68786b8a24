"""Exceptions of an author's code: those of a bad file are the file's, all others name the plugin."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from traceback import format_exception

from unistore.converters.common.faults import as_problem
from unistore.errors import InputError, Problem, printable

_FAULTS_OF_CODE = (
    AssertionError,
    AttributeError,
    ImportError,
    NameError,
    NotImplementedError,
    TypeError,
)
"""What damaged bytes do not raise by themselves."""


@contextmanager
def calling(plugin: object, location: str) -> Iterator[None]:
    """Run an author's code that works on a file.

    Parameters
    ----------
    plugin
        The format or family.
    location
        The file, for messages.

    Raises
    ------
    InputError
        From any exception but our own. A fault of the code names the plugin and its package.
    """
    with as_problem(location):
        try:
            yield
        except _FAULTS_OF_CODE as error:
            kind = plugin if isinstance(plugin, type) else type(plugin)
            message = f"{kind.__module__}.{kind.__qualname__} failed: {type(error).__name__}: {error}"
            cure = f"tell who wrote the package {kind.__module__.partition('.')[0]}"
            trace = "".join(format_exception(error))
            problem = Problem(printable(location), message, cure, "plugin", trace=trace)
            raise InputError(problem) from error
