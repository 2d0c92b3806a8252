"""The kit's small parts: lines, backoff, sd_notify, the log's forms, exit classes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.kit.event_types import message_id
from stoker.kit.events import Log, format_fields
from stoker.kit.loop import Backoff
from stoker.kit.process import ProcessId, children_tree, processes_with_environment, signal_process
from stoker.kit.workers.child import LineBuffer
from stoker.kit.workers.parent import WorkerExit
from stoker.systemd.journal import datagram
from stoker.systemd.notify import Notifier


@given(st.lists(st.binary(max_size=30), max_size=20), st.integers(1, 7))
def test_lines_come_out_the_same_however_the_stream_is_cut(pieces: list[bytes], width: int) -> None:
    stream = b"".join(pieces)
    buffer = LineBuffer(limit=1 << 20)
    found = [line for at in range(0, len(stream), width) for line in buffer.feed(stream[at : at + width])]
    assert found + buffer.finish() == [*stream.split(b"\n")[:-1], *filter(None, stream.split(b"\n")[-1:])]


def test_a_line_past_the_limit_is_cut_and_the_next_one_is_not() -> None:
    buffer = LineBuffer(limit=5)
    assert buffer.feed(b"ok\n123456") == [b"ok"]
    assert buffer.feed(b"789\nfine\n") == [b"12345", b"fine"]
    assert buffer.finish() == []


def test_backoff_doubles_to_its_most_and_keeps_half_of_each_step() -> None:
    backoff = Backoff(1.0, 8.0)
    delays = [backoff.next() for _ in range(6)]
    for delay, step in zip(delays, [1, 2, 4, 8, 8, 8], strict=True):
        assert step / 2 <= delay <= step
    backoff.reset()
    assert backoff.next() <= 1.0


def test_systemd_hears_ready_status_watchdog_and_stopping(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(path)
        environ = {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}
        notifier = Notifier(environ)
        assert notifier.watchdog_interval_s == 30
        notifier.ready()
        notifier.status("building\n3 of 7 " + "x" * 300)
        notifier.watchdog()
        notifier.stopping()
        heard = [server.recv(4096).decode() for _ in range(4)]
    assert heard[0] == "READY=1" and heard[2:] == ["WATCHDOG=1", "STOPPING=1"]
    assert heard[1].startswith("STATUS=building 3 of 7 x") and "\n" not in heard[1] and len(heard[1]) < 220


def test_an_abstract_notify_socket_is_reached() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        name = f"stoker-test-{os.getpid()}"
        server.bind("\0" + name)
        Notifier({"NOTIFY_SOCKET": "@" + name}).ready()
        assert server.recv(64) == b"READY=1"


def test_outside_systemd_notifying_does_nothing_and_another_process_watchdog_is_not_ours(
    tmp_path: Path,
) -> None:
    silent = Notifier({})
    silent.ready()
    silent.watchdog()
    other = Notifier(
        {"NOTIFY_SOCKET": str(tmp_path / "gone"), "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}
    )
    assert other.watchdog_interval_s is None
    other.ready()  # nobody listens: not an error


def test_a_full_notify_socket_never_blocks_the_daemon(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(path)
        notifier = Notifier({"NOTIFY_SOCKET": path})
        for _ in range(2000):
            notifier.status("nobody reads this")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("plain", "a=plain"),
        ("two words", 'a="two words"'),
        ("line\nbreak", 'a="line\\nbreak"'),
        ('quote"', 'a="quote\\""'),
        ("übel 🔥", 'a="übel 🔥"'),
        ("red\x1b[31m", 'a="red\\u001b[31m"'),
        ("\x7f \x9b1m \x85", 'a="\\u007f \\u009b1m \\u0085"'),
        ("ab\u2028cd \u202eba", 'a="ab\\u2028cd \\u202eba"'),
        ("", 'a=""'),
        (3, "a=3"),
        (0.25, "a=0.25"),
        (None, "a=null"),
        (True, "a=true"),
        (Path("/srv/x"), "a=/srv/x"),
        ([1, 2], "a=[1,2]"),
        ("a=b", "a=a=b"),
    ],
)
def test_a_field_is_one_word_on_one_line(value: object, shown: str) -> None:
    assert format_fields({"a": value}) == shown


def test_the_log_writes_one_line_for_one_fact(capfd: pytest.CaptureFixture[str]) -> None:
    Log("stage_shard", "demo", environ={}).warning(
        "source_quarantined", message="page 3 is rotten", path="a b"
    )
    line = capfd.readouterr().err
    assert line.count("\n") == 1
    assert " level=warning daemon=stage_shard pipeline=demo event=source_quarantined " in line
    assert line.endswith('message="page 3 is rotten" path="a b"\n')


def test_the_journal_gets_fields_when_stderr_is_connected_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "journal")
    monkeypatch.setattr("stoker.systemd.journal.SOCKET", path)
    stderr = os.fstat(2)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(path)
        log = Log(
            "stage_shard", "demo", "/f.yaml", environ={"JOURNAL_STREAM": f"{stderr.st_dev}:{stderr.st_ino}"}
        )
        log.error("daemon_failed", message="two\nlines", exit_code=70)
        fields = server.recv(1 << 16).decode().splitlines()
    assert {"PRIORITY=3", "STOKER_EVENT=daemon_failed", "STOKER_PIPELINE=demo", "STOKER_EXIT_CODE=70"} <= set(
        fields
    )
    assert {"SYSLOG_IDENTIFIER=stoker-stage-shard", "STOKER_PIPELINE_FILE=/f.yaml"} <= set(fields)
    assert "MESSAGE_ID=" + message_id("daemon_failed") in fields


def test_a_redirected_stderr_is_not_taken_for_the_journal(capfd: pytest.CaptureFixture[str]) -> None:
    Log("stage_shard", "demo", environ={"JOURNAL_STREAM": "1:2"}).info("here")
    assert "event=here" in capfd.readouterr().err


def test_a_journal_value_with_a_newline_is_preceded_by_its_length() -> None:
    assert datagram({"A": "b", "C": "d\ne"}) == b"A=b\nC\n\x03\0\0\0\0\0\0\0d\ne\n"


def test_an_exit_has_a_reason_in_words() -> None:
    def reason(kind: object, **fields: object) -> str:
        return WorkerExit(kind=kind, **fields).reason()  # type: ignore[arg-type]

    assert reason("killed", signal=9) == "killed by SIGKILL"
    assert reason("killed", signal=63) == "killed by signal 63"
    assert reason("failed", code=65, error={"message": "rotten"}) == "rotten"
    assert reason("failed", code=9) == "exit code 9"
    assert "deadline" in reason("silent", signal=9)


def test_a_process_is_its_pid_and_its_start_time() -> None:
    me = ProcessId.of(os.getpid())
    assert me.alive()
    impostor = ProcessId(me.pid, me.start_ticks + 1)
    assert not impostor.alive()
    assert not signal_process(impostor, 0) and signal_process(me, 0)
    with pytest.raises(ProcessLookupError):
        ProcessId.of(2**22 + 1)


def test_children_and_environments_are_found_and_the_dead_are_not() -> None:
    heard, said = os.pipe()
    reading, writing = os.pipe()
    pid = os.posix_spawn(
        "/bin/cat",
        ["cat"],
        {"STOKER_TEST_MARK": f"m{os.getpid()}"},
        file_actions=[(os.POSIX_SPAWN_DUP2, reading, 0), (os.POSIX_SPAWN_DUP2, said, 1)],
    )
    os.write(writing, b"up\n")
    child = ProcessId.of(pid)
    try:
        assert os.read(heard, 3) == b"up\n"  # only then is its environment surely its own
        assert child in children_tree(os.getpid())
        assert processes_with_environment("STOKER_TEST_MARK", f"m{os.getpid()}") == [child]
        assert processes_with_environment("STOKER_TEST_MARK", "m") == []
    finally:
        os.kill(pid, 9)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        for descriptor in (heard, said, reading, writing):
            os.close(descriptor)
    assert not child.alive() and child not in children_tree(os.getpid())  # a zombie
    os.waitpid(pid, 0)


def test_a_subreaper_reaps_the_orphans_it_inherits_and_leaves_its_own_children_to_their_owners() -> None:
    code = """
import os, subprocess, sys, time
from stoker.kit.exec import set_child_subreaper
from stoker.kit.process import children_tree, reap_strays
set_child_subreaper()
own = subprocess.Popen(["true"])
subprocess.run(["sh", "-c", "sleep 0.01 & echo $!"], check=True, stdout=open(sys.argv[1], "w"))
stray = int(open(sys.argv[1]).read())
os.waitid(os.P_PID, own.pid, os.WEXITED | os.WNOWAIT)
os.waitid(os.P_PID, stray, os.WEXITED | os.WNOWAIT)
assert reap_strays({own.pid}) == [stray]
assert own.wait() == 0
"""
    with tempfile.NamedTemporaryFile() as scratch:
        subprocess.run([sys.executable, "-c", code, scratch.name], check=True, timeout=30)


def test_a_daemon_starts_workers_and_imports_none() -> None:
    code = (
        "import sys, stokerd.download.loop, stokerd.sharding.loop, stokerd.supervision.loop\n"
        "print(*[name for name in sys.modules if name.endswith('_worker')])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == []
