"""Conversion to an object store: journal and spilled rows in a local folder, shards at their final keys."""

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


class ObjectBuild(Build):
    """Build folder of a conversion to a URL; see `Build`.

    The local folder holds the journal, the spilled rows and, at the end, the root document. Shards are
    written at their final keys; without a root document the prefix is not a store. If a store is to be
    replaced, the new one is written beside it (``<prefix>.unistore-build/``), then copied to its place.

    The object `BUILD_MARK` records which conversion owns a prefix, so that two machines never mix theirs.

    Parameters
    ----------
    url
        URL of the store.
    work
        Folder that holds the build folder; None: the current one.
    """

    overlap_message = "the build folder would lie in a source; choose another place with --work"

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
        self.output_path = folder

    @property
    def target(self) -> ObjectTarget:
        """Where files are written; only after `discard_on_input_error` has claimed the destination."""
        return ObjectTarget(self._written, self.local)

    def begin(
        self, identity: dict[str, Any], sources: Sequence[tuple[str, Any]], paths: Sequence[Path]
    ) -> None:
        """Record or compare what is converted, and the destination; see `Build.begin`."""
        super().begin({**identity, "destination": str(self.location)}, sources, paths)

    def check(self, *, overwrite: bool) -> None:
        """Refuse a destination that exists already; see `Build.check`."""
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
                msg = f"{self.location}: a finished store is there already; --overwrite replaces it"
                raise InputError(msg)
        elif begun is None and self._client.size(BUILD_MARK) is None and self._client.list(limit=1):
            msg = f"{self.location}: holds objects that are not a unistore store: choose another place"
            raise InputError(msg)

    def discard_on_input_error(self) -> None:
        """Claim the destination, before objects are written; see `Build.discard_on_input_error`.

        Raises
        ------
        ConversionError
            If another conversion to it was started elsewhere.
        """
        if self._begun is None:
            staged = self._client.size(ROOT) is not None
            self._begun = {"step": "place", "staged": staged, "token": secrets.token_hex(16)}
            self.journal.append(self._begun)
        client = writing_client(self._written)
        if self._begun["staged"] and client.size(BUILD_MARK) is None and client.list(limit=1):
            msg = f"{self._written}: the new store is made there, but it holds other objects: remove them"
            raise InputError(msg)
        owner = client.create(BUILD_MARK, self._mark())
        if not self._is_mine(owner):
            if not self._restart:
                raise ConversionError(self._taken_message(owner))
            client.put(BUILD_MARK, [self._mark()])
            if not self._begun["staged"]:  # left by a replacement that was abandoned
                self._clear(self._staging)
        self._claimed = True
        super().discard_on_input_error()

    def move_into_place(self) -> None:
        """Write the root object last; an older store is replaced first.

        Raises
        ------
        ConversionError
            If somebody else took the destination over meanwhile.
        """
        assert self._begun is not None
        owner = writing_client(self._written).get(BUILD_MARK)
        if not self._is_mine(owner):
            raise ConversionError(self._taken_message(owner))
        root = (self.local / ROOT).read_bytes()
        if self._begun["staged"]:
            swap_in(self._written, self.location, root, self._mark())
        else:
            commit(self.location, root)

    def remove(self) -> None:
        """Remove the folder, and the objects that do not belong to a store."""
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
        """Prefix of a store that will replace another."""
        return self.location.with_suffix(".unistore-build")

    @property
    def _written(self) -> Location:
        """Prefix that objects are written to."""
        assert self._begun is not None
        return self._staging if self._begun["staged"] else self.location

    def _mark(self) -> bytes:
        assert self._begun is not None
        owner = {"token": self._begun["token"], "host": socket.gethostname(), "folder": str(self.folder)}
        return json.dumps(owner).encode()

    def _is_mine(self, mark: bytes | None) -> bool:
        assert self._begun is not None
        return bool(_parsed(mark).get("token") == self._begun["token"])

    def _taken_message(self, mark: bytes | None) -> str:
        owner = _parsed(mark)
        host, folder = owner.get("host", "another machine"), owner.get("folder", "another folder")
        return (
            f"{self.location}: another conversion to it was started on {host} in {folder}: continue it "
            "there, or add --restart to take its place"
        )

    def _clear(self, location: Location) -> None:
        """Delete every object below a prefix that has a mark, the mark last."""
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

    def _destination_digest(self) -> str | None:
        return None if self._client.size(ROOT) is None else super()._destination_digest()


def _parsed(mark: bytes | None) -> dict[str, Any]:
    try:
        found = json.loads(mark or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
