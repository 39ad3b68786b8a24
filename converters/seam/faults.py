"""Exceptions of an author's code: those of a bad file are the file's, all others name the plugin."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from traceback import format_exception, walk_tb

from unistore.converters.common.faults import as_problem
from unistore.converters.plugin import Array, Family
from unistore.errors import InputError, Problem, UnistoreError

# What damaged bytes do not raise by themselves
_FAULTS_OF_CODE = (
    AssertionError,
    AttributeError,
    ImportError,
    NameError,
    NotImplementedError,
    TypeError,
)
_FAULTS_OF_MACHINE = (OSError, MemoryError)
_SLICING = (Array.__getitem__.__code__, Array.read.__code__)
_OURS = __name__.partition(".")[0]


@contextmanager
def calling(plugin: object, location: str) -> Iterator[None]:
    """Run an author's code on a file, so that a fault of it is an `InputError` that names its package."""
    try:
        yield
    except UnistoreError:
        raise
    except Exception as error:
        author = plugin if isinstance(plugin, type) else type(plugin)
        package = author.__module__.partition(".")[0]
        if package == _OURS or not _is_fault_of_code(author, error):
            with as_problem(location):
                raise
        message = f"{author.__module__}.{author.__qualname__} failed: {type(error).__name__}: {error}"
        cure = f"tell who wrote the package {package}"
        text = "".join(format_exception(error))
        raise InputError(Problem(location, message, cure, "plugin", trace=text)) from error


def fault(plugin: object, method: str, location: str, message: str) -> InputError:
    """Return the error of a method that gave something wrong, which names the plugin."""
    author = type(plugin)
    cure = f"tell who wrote {author.__module__}"
    return InputError(Problem(location, f"{author.__qualname__}.{method} {message}", cure, "plugin"))


def _is_fault_of_code(author: type, error: Exception) -> bool:
    """Tell a bug from a bad file: a format parses bytes, a family meets them in values that it slices."""
    if isinstance(error, _FAULTS_OF_CODE):
        return True
    if not issubclass(author, Family) or isinstance(error, _FAULTS_OF_MACHINE):
        return False
    return all(frame.f_code not in _SLICING for frame, _ in walk_tb(error.__traceback__))
