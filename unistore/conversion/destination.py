"""`open_build`: the build folder for a destination."""

from __future__ import annotations

import os
from pathlib import Path

from unistore.conversion.build import Build
from unistore.conversion.folder_build import FolderBuild
from unistore.errors import InputError
from unistore.remote.storage import local_path
from unistore.remote.url import require_local_path


def open_build(
    destination: str | os.PathLike[str], *, work: Path | None = None, restart: bool = False
) -> Build:
    """Build for a folder (or ``file://`` URL), or for a URL of an object store; not entered yet.

    Parameters
    ----------
    destination
        Path or URL.
    work
        For an object store: folder that holds the build folder; None: the current one.
    restart
        Discard an unfinished conversion.

    Raises
    ------
    InputError
        If the destination is a URL that cannot be written to, or `work` is given for a folder.
    """
    if work is not None:
        require_local_path(work, "the folder of --work")
    folder = local_path(destination)
    if folder is None:
        from unistore.conversion.object_build import ObjectBuild

        return ObjectBuild(os.fspath(destination), work=work, restart=restart)
    if work is not None:
        msg = f"--work {work}: only for an object store; beside {folder} the store can be renamed when done"
        raise InputError(msg)
    return FolderBuild(Path(os.path.abspath(folder)), restart=restart)  # noqa: PTH100  links stay links
