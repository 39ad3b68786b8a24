"""The journal: whole lines only, whatever happened to the last one."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from unistore.conversion.build import Journal
from unistore.errors import ConversionError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def test_records_survive(path: Path) -> None:
    journal = Journal(path)
    for number in range(3):
        journal.append({"step": "shard", "task": f"höhe/{number}\n"})
    journal.append({"step": "plan"})
    journal.close()
    again = Journal(path)
    assert [record["task"] for record in again.of("shard")] == ["höhe/0\n", "höhe/1\n", "höhe/2\n"]
    assert again.of("plan") == [{"step": "plan"}]
    assert again.of("sealed") == []
    again.close()


@pytest.mark.parametrize("kept", range(1, 18))
def test_a_torn_line_is_cut_off_wherever_it_tears(path: Path, kept: int) -> None:
    journal = Journal(path)
    journal.append({"step": "a"})
    whole = path.read_bytes()
    journal.append({"step": "bcdefghi"})
    journal.close()
    path.write_bytes(path.read_bytes()[: len(whole) + kept])
    again = Journal(path)
    assert (again.of("a"), again.of("bcdefghi")) == ([{"step": "a"}], [])
    again.append({"step": "c"})
    again.close()
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == ["a", "c"]


@pytest.mark.parametrize("damage", [b"{\n", b"\n", b"\xff\xff\n"])
def test_a_damaged_line_is_named(path: Path, damage: bytes) -> None:
    path.write_bytes(b'{"step":"a"}\n' + damage + b'{"step":"b"}\n')
    with pytest.raises(ConversionError, match=r"journal\.jsonl: line 2 of the journal is damaged"):
        Journal(path)


def test_a_record_that_does_not_fit_leaves_no_trace(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(path)
    journal.append({"step": "a"})

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space left"):
            journal.append({"step": "b"})
    assert (journal.of("a"), journal.of("b")) == ([{"step": "a"}], [])
    journal.append({"step": "c"})
    journal.close()
    assert path.read_text() == '{"step":"a"}\n{"step":"c"}\n'
