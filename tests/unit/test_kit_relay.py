"""What a guarded tree prints: kept from both ends, passed on only where there is room."""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path

import pytest

from stoker.kit.relay import HEAD_BYTES, TAIL_BYTES, KeptOutput, PassedOutput


def test_a_long_output_keeps_its_beginning_and_its_end_and_tells_what_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "output.txt"
    kept, printed = KeptOutput(str(file)), bytearray()
    for number in range(120_000):
        line = b"line %07d of what a trainer prints\n" % number
        kept.write(line)
        printed += line
    found = file.read_bytes()
    assert len(found) <= HEAD_BYTES + 2 * TAIL_BYTES
    assert found[:HEAD_BYTES] == printed[:HEAD_BYTES]
    assert found[-TAIL_BYTES:] == printed[-TAIL_BYTES:]
    (note,) = [line for line in found.split(b"\n") if b"left out" in line]
    left_out = int(note.split()[1])
    assert left_out + len(found) - len(b"\n" + note + b"\n") == len(printed)


def test_a_short_output_is_kept_as_it_is_whatever_its_bytes(tmp_path: Path) -> None:
    file, printed = tmp_path / "output.txt", bytes(range(256)) + b"\r50 %\r60 %"
    KeptOutput(str(file)).write(printed)
    assert file.read_bytes() == printed


def test_where_no_file_can_be_made_the_output_is_passed_on_all_the_same(tmp_path: Path) -> None:
    KeptOutput(str(tmp_path / "gone" / "output.txt")).write(b"text")


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_what_a_full_reader_has_no_room_for_is_dropped_with_a_count(kind: str) -> None:
    reading, writing = os.pipe() if kind == "pipe" else (end.detach() for end in socket.socketpair())
    passed = PassedOutput(writing, "/run/log/output-l1.txt")
    for _ in range(1000):
        passed.write(b"x" * 1000)
    assert not fcntl.fcntl(writing, fcntl.F_GETFL) & os.O_NONBLOCK, "others write to it too"
    os.set_blocking(reading, False)
    taken = 0
    while taken < 1_000_000:
        try:
            taken += len(os.read(reading, 1 << 16))
        except BlockingIOError:
            break
    assert 0 < taken < 1_000_000
    passed.write(b"and on\n")
    dropped = 1_000_000 - taken
    assert os.read(reading, 4096).decode() == (
        f"\n[stoker: {dropped} bytes are only in /run/log/output-l1.txt]\nand on\n"
    )
    passed.write(b"x" * 100)
    os.close(reading)
    passed.write(b"nobody reads this")


def test_a_closed_reader_is_none() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    os.close(writing)
    PassedOutput(writing, "x").write(b"nobody reads this")
