"""What the journal gets: routine work once a minute, a trainer's lines with launch and rank, bars in few."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.kit import events
from stoker.kit.event_types import register
from stoker.kit.events import Log
from stoker.kit.relay import KeptOutput, Relay
from stoker.systemd import journal
from stoker.systemd.journal import BAR_S, VALUE_BYTES, JournalOutput

Entry = dict[str, str]
LAUNCH = {"STOKER_PIPELINE": "demo", "STOKER_LAUNCH": "l-7", "STOKER_RANK": "0"}


class Server:
    """The journal's end of its socket."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.open()

    def open(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self._path)
        self._socket.setblocking(False)

    def close(self) -> None:
        self._socket.close()
        Path(self._path).unlink(missing_ok=True)

    def entries(self) -> Iterator[Entry]:
        while True:
            try:
                data = self._socket.recv(1 << 18)
            except BlockingIOError:
                return
            yield dict(line.split("=", 1) for line in data.decode().splitlines())

    def messages(self) -> list[str]:
        return [entry["MESSAGE"] for entry in self.entries()]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    path = str(tmp_path / "socket")
    monkeypatch.setattr(journal, "SOCKET", path)
    started = Server(path)
    yield started
    started.close()


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_trainers_line_has_its_launch_and_the_rank_that_wrote_it(server: Server) -> None:
    output = JournalOutput("kept", LAUNCH, Clock())
    output.write(b"step 1 lo")
    output.write(b"ss 2.5\r\n\n[default3]:\x1b[31mred\x1b[0m\nno end")
    first, third = server.entries()
    assert first["MESSAGE"] == "step 1 loss 2.5"
    assert (first["STOKER_LAUNCH"], first["STOKER_RANK"], first["PRIORITY"]) == ("l-7", "0", "6")
    assert first["STOKER_PIPELINE"] == "demo"
    assert (third["MESSAGE"], third["STOKER_RANK"]) == ("[default3]:red", "3")
    output.end()
    assert server.messages() == ["no end"]


def test_the_rank_of_a_line_that_any_may_have_written_is_left_out(server: Server) -> None:
    JournalOutput("kept", {"STOKER_LAUNCH": "l-7"}, Clock()).write(b"x\n")
    (entry,) = server.entries()
    assert "STOKER_RANK" not in entry


def test_progress_bars_are_a_line_a_minute_and_other_lines_pass(server: Server) -> None:
    clock = Clock()
    output = JournalOutput("kept", LAUNCH, clock)
    for second in range(180):
        output.write(b"\r%d %%|##" % second)
        if second == 90:
            output.write(b"\nsaved\n")
        clock.now += 1
    found = server.messages()
    assert "saved" in found
    assert [text for text in found if "%" in text] == ["0 %|##", "60 %|##", "120 %|##"]


def test_a_bar_below_another_one_is_none_of_its_own(server: Server) -> None:
    output = JournalOutput("kept", LAUNCH, Clock())
    for number in range(50):
        output.write(b"\router %d\n\rinner %d\x1b[A" % (number, number))
    assert server.messages() == ["outer 0"]


def test_a_line_longer_than_an_entry_is_passed_on_whole_in_parts(server: Server) -> None:
    output, sign = JournalOutput("kept", LAUNCH, Clock()), "\N{GRINNING FACE}"
    output.write(b"\xff" * VALUE_BYTES + b"\n")
    assert "".join(server.messages()) == "\ufffd" * VALUE_BYTES, "each byte takes three in the entry"
    output.write(b"x" * (VALUE_BYTES + 1))
    assert "".join(server.messages()) == "x" * (VALUE_BYTES + 1), "it does not wait for an end"
    for byte in f"{sign}\n".encode():
        output.write(bytes([byte]))
    assert server.messages() == [sign]


def test_what_no_terminal_prints_is_left_out(server: Server) -> None:
    line = b"\x1b]0;a title\x07a\0b\bc\x1b[2Kd\te\n"
    JournalOutput("kept", LAUNCH, Clock()).write(line)
    assert server.messages() == ["abcd\te"]


def test_what_a_journal_that_is_away_missed_is_counted(server: Server) -> None:
    output = JournalOutput("/log/output.txt", LAUNCH, Clock())
    server.close()
    output.write(b"12345\n")
    server.open()
    output.write(b"and on\n")
    assert server.messages() == ["[stoker: 5 bytes are only in /log/output.txt]", "and on"]


def test_a_trainer_that_floods_leaves_room_for_the_supervisors_own_lines(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "BURST_LINES", 3)
    clock = Clock()
    output = JournalOutput("kept", LAUNCH, clock)
    output.write(b"flood\n" * 100)
    assert server.messages() == ["flood"] * 3
    clock.now += journal.BURST_S
    output.write(b"calm\n")
    assert server.messages() == ["[stoker: 485 bytes are only in kept]", "calm"]


def test_a_relay_to_the_journal_sends_entries(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = socket.socketpair()
    found = os.fstat(ours.fileno())
    monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino}")
    monkeypatch.setenv("STOKER_LAUNCH", "l-7")
    relay = Relay(KeptOutput(str(tmp_path / "output")), ours.fileno())
    writing = os.dup(relay.writing)
    relay.begin()
    os.write(writing, b"a line\nand the last")
    os.close(writing)
    relay.finish(60)
    assert [(entry["MESSAGE"], entry["STOKER_LAUNCH"]) for entry in server.entries()] == [
        ("a line", "l-7"), ("and the last", "l-7"),
    ]  # fmt: skip
    theirs.setblocking(False)
    with pytest.raises(BlockingIOError):
        theirs.recv(1)


def to_journal(daemon: str) -> Log:
    """A log whose standard error is the journal's."""
    found = os.fstat(2)
    return Log(daemon, "demo", environ={"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"})


def test_an_event_is_the_sentence_of_a_terminal_with_its_fields_beside_it(server: Server) -> None:
    log = to_journal("stage_shard")
    log.info("source_proven", path="a.parquet", tokens=150_551, documents=374, dropped=26)
    log.warning("sync_failed", message="the disk is full", path="b")
    proven, failed = server.entries()
    assert proven["MESSAGE"] == "a.parquet built: 150,551 tokens of 374 documents, 26 rows dropped"
    assert (proven["STOKER_EVENT"], proven["STOKER_TOKENS"]) == ("source_proven", "150551")
    assert failed["MESSAGE"].endswith("b: the disk is full")
    assert failed["STOKER_MESSAGE"] == "the disk is full"


def test_routine_work_is_a_line_a_minute_after_the_first_of_each_word(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = to_journal("download_watchdog")
    growing = ("file_verified", "listing_complete", "source_proven", "dataset_complete", "plan_grown")
    for number in range(100):  # a file more in the folder
        for word in growing:
            log.info(word, files=number)
    assert [entry["STOKER_EVENT"] for entry in server.entries()] == [*growing]
    log.warning("download_failed", path="x")
    log.info("daemon_stopped")
    log.info("file_verified", path="y")
    assert server.messages() == [
        "an attempt to fetch a file failed: x",
        f"the daemon stopped in order (besides: {', '.join(f'99 {word}' for word in growing)})",
    ]
    monkeypatch.setattr(events, "ROUTINE_S", 0.0)
    log.info("source_proven", path="z")
    assert server.messages() == [f"{register()['source_proven'].headline}: z (besides: 1 file_verified)"]


def test_the_bars_limit_is_a_minute() -> None:
    assert BAR_S == events.ROUTINE_S == 60.0
