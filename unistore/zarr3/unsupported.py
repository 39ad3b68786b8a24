"""Error for valid Zarr features that the engine does not implement."""

from __future__ import annotations

from unistore.errors import UnsupportedError


def unsupported(where: str, feature: str, known: str = "") -> UnsupportedError:
    """Make the error.

    Parameters
    ----------
    where
        Store and array.
    feature
        What was found: ``"codec 'zfpy'"``.
    known
        What the engine does implement there.
    """
    instead = f" (it knows {known})" if known else ""
    return UnsupportedError(
        f"{where}: {feature} is not read by unistore's engine{instead}; use zarr: unistore.open_zarr"
    )
