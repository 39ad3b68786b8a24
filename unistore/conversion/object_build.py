"""A conversion to an object store: journal and spilled rows in a local folder, shards in their final keys."""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unistore.conversion.build import Build
from unistore.conversion.object_target import ObjectTarget, commit, swap_in, writing_client
from unistore.errors import ConversionError, InputError, StoreError
from unistore.remote.url import BUCKETS, Location, parse_url
from unistore.store.names import BUILD_MARK, ROOT, build_folder
from unistore.store.reader import Store

__all__ = ["ObjectBuild"]


class ObjectBuild(Build):
    """Entered to convert to a URL; see `Build`.

    The local folder holds the journal, the spilled rows and, in the end, the root document. Shards go
    straight to their final keys, where nothing reads them: without its root a prefix is no store. A store
    that is to be replaced stays as it is while the new one grows beside it (``<prefix>.unistore-build/``);
    then it is swapped in by copies inside the object store.

    An object, `BUILD_MARK`, says whose conversion a prefix belongs to, so that two machines never mix theirs.

    Parameters
    ----------
    url
        Where the store will be.
    work
        Folder that holds the build folder; None: the current one.
    """

    overlap = "the build folder would lie in a source; choose another place with --work"

    def __init__(self, url: str, *, work: Path | None = None, restart: bool = False) -> None:
        location = parse_url(url)
        if location.scheme not in BUCKETS:
            places = ", ".join(f"{scheme}://" for scheme in BUCKETS)
            msg = f"{location}: stores are written to {places} or a folder"
            raise InputError(msg)
        if not location.prefix:
            msg = f"{location}: name a place in the bucket: {location}/name.zarr"
            raise InputError(msg)
        self.location = location
        self._client = writing_client(location)
        self._claimed = False
        self._begun: dict[str, Any] | None = None
        folder = build_folder((Path.cwd() if work is None else work.absolute()) / location.name)
        super().__init__(str(location), folder, local="root", restart=restart)
        self.ground = folder

    @property
    def target(self) -> ObjectTarget:
        """Where files are written, once the destination was claimed by `take_up`."""
        return ObjectTarget(self._written, self.local)

    def begin(
        self, identity: dict[str, Any], sources: Sequence[tuple[str, Any]], paths: Sequence[Path]
    ) -> None:
        """Record or compare what is converted, and where to; see `Build.begin`."""
        super().begin({**identity, "destination": str(self.location)}, sources, paths)

    def check(self, *, overwrite: bool) -> None:
        """Refuse a destination that is taken; see `Build.check`."""
        begun = self._begun
        if self._client.size(ROOT) is not None:
            if not self._is_store():
                msg = f"{self.location}: holds something that is not a unistore store: choose another place"
                raise InputError(msg)
            if begun is not None and not begun["staged"]:
                msg = (
                    f"{self.location}: another store was finished there meanwhile; add --restart --overwrite"
                )
                raise InputError(msg)
            if not overwrite:
                msg = f"{self.location}: a finished store stands there; --overwrite replaces it"
                raise InputError(msg)
        elif begun is None and self._client.size(BUILD_MARK) is None and self._client.list(limit=1):
            msg = f"{self.location}: holds objects that are no unistore store: choose another place"
            raise InputError(msg)

    def take_up(self) -> None:
        """Claim the destination: from here on objects are written.

        Raises
        ------
        ConversionError
            If another conversion to it was begun elsewhere.
        """
        if self._begun is None:
            staged = self._client.size(ROOT) is not None
            self._begun = {"step": "place", "staged": staged, "token": secrets.token_hex(16)}
            self.journal.append(self._begun)
        client = writing_client(self._written)
        if self._begun["staged"] and client.size(BUILD_MARK) is None and client.list(limit=1):
            msg = f"{self._written}: the new store is made there, but it holds other objects: remove them"
            raise InputError(msg)
        standing = client.create(BUILD_MARK, self._mark())
        if not self._is_mine(standing):
            if not self._restart:
                raise ConversionError(self._taken(standing))
            client.put(BUILD_MARK, [self._mark()])
            if not self._begun["staged"]:  # of a replacement that was given up
                self._clear(self._staging)
        self._claimed = True
        super().take_up()

    def move_into_place(self) -> None:
        """Put the root object, the last one; replace an older store first.

        Raises
        ------
        ConversionError
            If somebody else took the destination over meanwhile.
        """
        assert self._begun is not None
        standing = writing_client(self._written).get(BUILD_MARK)
        if not self._is_mine(standing):
            raise ConversionError(self._taken(standing))
        root = (self.local / ROOT).read_bytes()
        if self._begun["staged"]:
            swap_in(self._written, self.location, root, self._mark())
        else:
            commit(self.location, root)

    def remove(self) -> None:
        """Remove the folder, and what stands in the object store and is no part of a store."""
        if self._begun is not None and (
            self._claimed or self._is_mine(writing_client(self._written).get(BUILD_MARK))
        ):
            if self._client.size(ROOT) is None:
                self._clear(self.location)
            else:
                self._client.delete([BUILD_MARK])
            if self._begun["staged"]:
                self._clear(self._staging)
        super().remove()

    def _open(self) -> None:
        super()._open()
        self._begun = next(iter(self.journal.of("place")), None)

    @property
    def _staging(self) -> Location:
        """Where a store grows that replaces another."""
        return self.location.with_suffix(".unistore-build")

    @property
    def _written(self) -> Location:
        """Prefix of the objects that are written."""
        assert self._begun is not None
        return self._staging if self._begun["staged"] else self.location

    def _mark(self) -> bytes:
        assert self._begun is not None
        owner = {"token": self._begun["token"], "host": socket.gethostname(), "folder": str(self.folder)}
        return json.dumps(owner).encode()

    def _is_mine(self, mark: bytes | None) -> bool:
        assert self._begun is not None
        return bool(_parsed(mark).get("token") == self._begun["token"])

    def _taken(self, mark: bytes | None) -> str:
        owner = _parsed(mark)
        host, folder = owner.get("host", "another machine"), owner.get("folder", "another folder")
        return (
            f"{self.location}: another conversion to it was begun on {host} in {folder}: continue it there, "
            "or add --restart to take its place"
        )

    def _clear(self, location: Location) -> None:
        """Delete every object at a place that has a mark, the mark last."""
        client = writing_client(location)
        if client.size(BUILD_MARK) is not None:
            client.delete([key for key in client.list() if key != BUILD_MARK])
            client.delete([BUILD_MARK])

    def _is_store(self) -> bool:
        try:
            Store(str(self.location))
        except StoreError:
            return False
        return True

    def _standing(self) -> str | None:
        return None if self._client.size(ROOT) is None else super()._standing()


def _parsed(mark: bytes | None) -> dict[str, Any]:
    try:
        found = json.loads(mark or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
