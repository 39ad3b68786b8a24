"""Prophesee's files, against the library faery, and against the events that were written."""

from __future__ import annotations

from pathlib import Path

import faery
import numpy as np
import pytest

from tests.support.event_recordings import HEADER2, HEADER3, made_up, words2, words3, write_dat
from unistore.converters.formats.arrays import Raw
from unistore.converters.formats.prophesee import Dat, Evt
from unistore.converters.opened import Format, Metadata, SourceFile
from unistore.errors import InputError


def read(path: Path, opening: Format) -> tuple[np.ndarray, Metadata]:
    with opening.open(SourceFile(path, path.name)) as opened:
        events = opened.arrays["events"]
        return events[0 : len(events)], opened.metadata


def by_faery(path: Path) -> np.ndarray:
    return np.concatenate(list(faery.events_stream_from_file(path)))


def assert_same(events: np.ndarray, others: np.ndarray, polarity: str = "p") -> None:
    assert len(events) == len(others)
    for name, other in zip("txyp", ("t", "x", "y", polarity), strict=True):
        assert np.array_equal(events[name].astype(np.int64), others[other].astype(np.int64)), name


def vectors(count: int, seed: int) -> np.ndarray:
    """Words of EVT 3.0 of every type, in an order that a sensor may send."""
    rng = np.random.default_rng(seed)
    words = [0x8000, 0x6000, 0x0000, 0x3000]
    high = 0
    for kind in rng.choice(4, count, p=[0.3, 0.3, 0.3, 0.1]):
        if kind == 0:
            high += 1
            words += [0x8000 | high & 0xFFF, 0x6000 | int(rng.integers(4096))]
        elif kind == 1:
            words += [int(rng.integers(480)), 0x2000 | int(rng.integers(2)) << 11 | int(rng.integers(640))]
        elif kind == 2:
            words.append(0x3000 | int(rng.integers(2)) << 11 | int(rng.integers(600)))
            words += [0x4000 | int(rng.integers(4096)), 0x4000 | int(rng.integers(4096))]
            words.append(0x5000 | int(rng.integers(256)))
        else:
            words += [0x7001, 0xA001, 0xE001]
    return np.array(words, "<u2")


def test_events_of_evt3_vectors_equal_those_of_faery_across_blocks_and_overflows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20,000 times of 4,096 us each go around the counter more than once."""
    path = tmp_path / "a.raw"
    path.write_bytes(b"% format EVT3;width=640;height=480\n% end\n" + vectors(20_000, 1).tobytes())
    events, metadata = read(path, Evt())
    assert (metadata["width"], metadata["height"]) == (640, 480)
    assert events["t"][-1] > 1 << 24
    assert_same(events, by_faery(path), "on")
    monkeypatch.setattr("unistore.converters.formats.prophesee._BLOCK", 1001)
    assert np.array_equal(read(path, Evt())[0], events), "blocks carry what words set"
    monkeypatch.delattr("unistore.converters.formats.prophesee._Evt3.decode")
    with Evt().open(SourceFile(path, path.name)) as opened:
        assert len(opened.arrays["events"]) == len(events), "counted without decoding"


def test_times_go_on_when_the_clock_overflows_between_distant_events(tmp_path: Path) -> None:
    """faery takes the overflow of EVT 3.0 for one only if no word is missing around it."""
    far = made_up(2_000, 100_000_000)
    (tmp_path / "a.raw").write_bytes(HEADER3 + words3(far).tobytes())
    assert_same(read(tmp_path / "a.raw", Evt())[0], far)
    farther = made_up(2_000, 1 << 36)
    (tmp_path / "b.raw").write_bytes(HEADER2 + words2(farther).tobytes())
    events, metadata = read(tmp_path / "b.raw", Evt())
    assert_same(events, farther)
    assert (metadata["width"], metadata["height"]) == (64, 48)


def test_events_of_evt2_equal_those_of_faery(tmp_path: Path) -> None:
    near = made_up()
    (tmp_path / "a.raw").write_bytes(HEADER2 + words2(near).tobytes())
    events, _ = read(tmp_path / "a.raw", Evt())
    assert_same(events, near)
    assert_same(events, by_faery(tmp_path / "a.raw"), "on")


def test_events_before_the_first_time_are_left_out(tmp_path: Path) -> None:
    words = np.array([0x0005, 0x2003, 0x8001, 0x2004], "<u2")
    (tmp_path / "a.raw").write_bytes(HEADER3 + words.tobytes())
    assert read(tmp_path / "a.raw", Evt())[0].tolist() == [(4096, 4, 5, 0)]


def test_rows_of_a_recording_are_read_in_any_order(tmp_path: Path) -> None:
    near = made_up(5_000)
    (tmp_path / "a.raw").write_bytes(HEADER2 + words2(near).tobytes())
    with Evt().open(SourceFile(tmp_path / "a.raw", "a.raw")) as opened:
        assert opened.forward_only
        events = opened.arrays["events"]
        for lo, hi in ((10, 20), (20, 3_000), (0, 5), (4_999, 5_000), (5_000, 5_000)):
            assert_same(events[lo:hi], near[lo:hi])


def test_events_of_dat_equal_those_of_faery_and_are_written_byte_for_byte(tmp_path: Path) -> None:
    near = made_up(1_000)
    write_dat(tmp_path / "a.dat", near)
    events, metadata = read(tmp_path / "a.dat", Dat())
    assert_same(events, near)
    assert_same(events, by_faery(tmp_path / "a.dat"), "on")
    assert (metadata["width"], metadata["height"]) == (64, 48)
    with Dat().open(SourceFile(tmp_path / "a.dat", "a.dat")) as opened:
        Dat().write(tmp_path / "b.dat", opened.arrays, opened.metadata)
    assert (tmp_path / "b.dat").read_bytes() == (tmp_path / "a.dat").read_bytes()


SIZE = b"% Width 64\n% Height 48\n"


@pytest.mark.parametrize(
    ("name", "content", "message", "kind"),
    [
        ("a.dat", b"% Version 2\n" + SIZE, "ends inside its header", "truncated"),
        (
            "a.dat",
            b"% Version 2\n" + SIZE + b"\x0c\x08" + bytes(20),
            "ends 4 bytes into an event",
            "truncated",
        ),
        ("a.dat", b"% Version 2\n" + SIZE + b"\x0c\x08", "contains no events", "empty"),
        ("a.dat", b"% Version 1\n" + SIZE + b"\x0c\x08" + bytes(8), "has version 1", "format"),
        ("a.dat", SIZE + b"\x0c\x08" + bytes(8), "has version unknown", "format"),
        ("a.dat", b"% Version 2\n" + SIZE + b"\x0e\x08" + bytes(8), "has events of type 14", "format"),
        ("a.raw", HEADER3 + b"\0\0\0", "ends 1 bytes into an event", "truncated"),
        ("a.raw", HEADER3, "contains no events", "empty"),
        (
            "a.raw",
            b"% evt 2.1\n% end\n" + bytes(8),
            "has the format 'EVT21', and only EVT2 and EVT3",
            "format",
        ),
        ("a.raw", b"% date today\n% end\n" + bytes(8), "has the format 'unknown'", "format"),
    ],
)
def test_a_truncated_or_unsupported_recording_is_an_error(
    name: str, content: bytes, message: str, kind: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    opening = Dat() if name == "a.dat" else Evt()
    assert opening.recognise(SourceFile(tmp_path / name, name)).certainty == "sure"
    with pytest.raises(InputError, match=message) as error:
        read(tmp_path / name, opening)
    assert error.value.problems[0].kind == kind


def test_files_without_a_header_are_of_others(tmp_path: Path) -> None:
    (tmp_path / "spikes.dat").write_bytes(bytes(range(64)))
    assert Dat().recognise(SourceFile(tmp_path / "spikes.dat", "spikes.dat")).certainty == "no"
    assert Raw().recognise(SourceFile(tmp_path / "spikes.dat", "spikes.dat")).certainty == "maybe"
    write_dat(tmp_path / "events.dat", made_up(10))
    assert Raw().recognise(SourceFile(tmp_path / "events.dat", "events.dat")).certainty == "no"
