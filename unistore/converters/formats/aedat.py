"""AEDAT 4 files of iniVation's event cameras, https://docs.inivation.com/software/software-advanced-usage/file-formats/aedat-4.0.html."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from unistore.converters.claims import Claim, no, sure
from unistore.converters.formats.aedat_packets import largest_packet
from unistore.converters.formats.lazy import ForwardRecords
from unistore.converters.opened import Array, Format, Opened, SourceFile
from unistore.system.hints import AnyArray

EVENTS = "events"  # name of the array of a recording
_EVENT = np.dtype([("t", "<u8"), ("x", "<u2"), ("y", "<u2"), ("on", "?")])
_MAGIC = b"#!AER-DAT4"


class Aedat4(Format):
    """A stream of events. Frames and inertial measurements beside it are left out."""

    name = "aedat4"
    suffixes = (".aedat4",)
    library = "aedat"

    def recognise(self, file: SourceFile) -> Claim:
        """Look at the first bytes: older versions have the same ones but for the number."""
        beginning = file.head(len(_MAGIC))
        if beginning == _MAGIC:
            return sure("begins with #!AER-DAT4")
        if beginning[:-1] == _MAGIC[:-1]:
            return no("is of another version than AEDAT 4, which is not read")
        raise file.wrong_beginning("with #!AER-DAT4")

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[Opened]:
        """List the streams. Events are decoded from the first to the last."""
        streams = file.library("aedat", "events").Decoder(file.path).id_to_stream()
        cameras = [number for number, stream in streams.items() if stream["type"] == "events"]
        if len(cameras) != 1:
            raise file.problem(
                f"has {len(cameras)} streams of events, expected 1",
                "export the events of each camera to a file of its own",
            )
        (camera,) = cameras
        facts = {"width": streams[camera]["width"], "height": streams[camera]["height"]}
        other_streams = [
            f"{stream['type']} {number}" for number, stream in streams.items() if number != camera
        ]
        left_out = dict.fromkeys(other_streams, "is no stream of events")
        # No header tells the number of events: the file is decoded to count them.
        packets = partial(_packets, file.path, camera)
        records = ForwardRecords(_EVENT, packets, lambda: sum(map(len, packets())))
        # The library grows what a packet decodes to by doubling, and makes an array of it
        memory = 4 * largest_packet(file)
        yield Opened({EVENTS: Array(records)}, facts, forward_only=True, memory=memory, left_out=left_out)


def _packets(path: Path, camera: int) -> Iterator[AnyArray]:
    from aedat import Decoder

    for packet in Decoder(path):
        if packet["stream_id"] == camera:
            yield packet["events"].astype(_EVENT)
