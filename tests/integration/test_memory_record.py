"""The memory recorder with real processes: it passes on ends and signals, and nothing stops its rows."""

from __future__ import annotations

import csv
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.cli.main import exit_code
from stoker.kit.process import children_tree
from support.fake_nvml import GIB, FakeDriver
from support.mounts import WHY_NOT, apart
from support.parquet import write_fineweb
from support.processes import kill_tree, wait_gone
from support.waiting import LONG_S, wait_until

# The command line; the time that a stubborn command gets is short.
MAIN = "from stoker.memory import recorder; recorder.KILL_S = 0.5; from stoker.cli.main import main; main()"
STOKER = [sys.executable, "-P", "-c", MAIN, "memory"]
Rows = list[dict[str, str]]


def rows_of(path: Path) -> Rows:
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def record(path: Path, *words: str, timeout_s: float = LONG_S) -> subprocess.CompletedProcess[str]:
    """Runs `stoker memory record` to its end."""
    command = [*STOKER, "record", "-o", str(path), "--every", "0.1", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout_s)


class Recording:
    """A recorder that runs, and what it wrote so far."""

    def __init__(self, path: Path, *words: str) -> None:
        self.path = path
        command = [*STOKER, "record", "-o", str(path), "--every", "0.05", *words]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.await_rows(1)

    def await_rows(self, more: int) -> Rows:
        """Waits for so many further rows; returns all."""
        before = len(rows_of(self.path)) if self.path.exists() else 0
        wait_until(lambda: self.path.exists() and len(rows_of(self.path)) >= before + more, what="rows")
        return rows_of(self.path)

    def end(self, *signums: int) -> tuple[int, Rows]:
        """Sends signals, a signal row apart; returns the exit code and all rows."""
        for number, signum in enumerate(signums, 1):
            self.process.send_signal(signum)
            wait_until(
                lambda number=number: (
                    self.process.poll() is not None
                    or sum(row["kind"] == "signal" for row in rows_of(self.path)) >= number
                )
            )
        code = self.process.wait(LONG_S)
        return code, rows_of(self.path)


def sleepers(pid: int) -> list[int]:
    """The descendants that are a sleep(1)."""
    tree = children_tree(pid)
    return [one.pid for one in tree if Path(f"/proc/{one.pid}/comm").read_text() == "sleep\n"]


@pytest.fixture
def started() -> Iterator[list[Recording]]:
    """Recordings of a test, which end with it."""
    recordings: list[Recording] = []
    yield recordings
    for one in recordings:
        kill_tree(one.process.pid)
        one.process.wait(LONG_S)


def test_an_end_is_passed_on_and_marks_are_kept(tmp_path: Path) -> None:
    # Until a sample has seen the second process, which the wait is, and PSS, which is measured beside it.
    seen = 'until grep -qE ",sample,2,[0-9]+,[0-9]+,.*sleep [0-9]+; sh" $0; do sleep 0.2; done'
    script = f'echo one >&$STOKER_MARK_FD; printf "\\377 two" >&$STOKER_MARK_FD; {seen}; exit 7'
    ended = record(tmp_path / "x.csv", "--", "sh", "-c", script, str(tmp_path / "x.csv"))
    assert ended.returncode == 7
    rows = rows_of(tmp_path / "x.csv")
    assert rows[0]["kind"] == "sample"
    assert rows[0]["note"].startswith("sh -c echo one")
    assert [row["note"] for row in rows if row["kind"] == "mark"] == ["one", "\ufffd two"]
    last = rows[-1]
    assert (last["kind"], last["exit_code"], last["signal"]) == ("exit", "7", "")
    assert [row["kind"] for row in rows].count("exit") == 1
    samples = [row for row in rows if row["kind"] == "sample"]
    assert all(int(row["rss_bytes"]) > 0 and int(row["available_bytes"]) > 0 for row in samples)
    assert any(0 < int(row["uss_bytes"] or 0) <= int(row["pss_bytes"]) for row in samples)
    assert int(last["peak_rss_bytes"]) >= max(int(row["rss_bytes"]) for row in samples)


def test_a_killed_command_ends_in_128_and_its_signal(tmp_path: Path) -> None:
    ended = record(tmp_path / "x.csv", "sh", "-c", "kill -9 $$")
    assert ended.returncode == 128 + signal.SIGKILL
    assert rows_of(tmp_path / "x.csv")[-1]["signal"] == "SIGKILL"
    ended = record(tmp_path / "y.csv", "--", str(tmp_path / "absent"))
    assert ended.returncode == 127
    assert "cannot start" in ended.stderr


def test_an_end_is_passed_on_also_where_nobody_reads(tmp_path: Path) -> None:
    command = [*STOKER, "record", "-o", str(tmp_path / "x.csv"), "--", "sh", "-c", "exit 5"]
    closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command]
    assert subprocess.run(closed, check=False, timeout=LONG_S).returncode == 5


def test_a_mark_of_a_mebibyte_is_cut_and_the_next_one_is_whole(tmp_path: Path) -> None:
    program = (
        "import os; fd = int(os.environ['STOKER_MARK_FD']);"
        "data = b'm' * (1 << 20) + b'\\nnext\\n'\n"
        "while data: data = data[os.write(fd, data):]"
    )
    ended = record(tmp_path / "x.csv", "--", sys.executable, "-S", "-c", program)
    assert ended.returncode == 0
    marks = [row["note"] for row in rows_of(tmp_path / "x.csv") if row["kind"] == "mark"]
    assert [set(marks[0]), marks[1]] == [{"m"}, "next"]
    assert len(marks[0]) == 4096


# Two processes, the second in a session of its own: each says on TERM that it had it, the second one late.
TREE = """
trap 'echo outer >> $0; exit 3' TERM
setsid sh -c 'trap "sleep 0.3; echo inner >> $0; exit" TERM; echo up >> $0; while :; do sleep 0.05; done' $0 &
while :; do sleep 0.05; done
"""


def test_a_signal_goes_to_the_whole_tree_whose_end_is_waited_for(
    tmp_path: Path, started: list[Recording]
) -> None:
    said = tmp_path / "said"
    said.touch()
    started.append(Recording(tmp_path / "x.csv", "--", "sh", "-c", TREE, str(said)))
    wait_until(lambda: "up" in said.read_text())
    tree = children_tree(started[0].process.pid)
    code, rows = started[0].end(signal.SIGTERM)
    assert code == 3
    assert sorted(said.read_text().split()) == ["inner", "outer", "up"]
    assert not any(process.alive() for process in tree)
    assert [row["signal"] for row in rows if row["kind"] == "signal"] == ["SIGTERM"]
    assert (rows[-1]["kind"], rows[-1]["exit_code"], rows[-1]["signal"]) == ("exit", "3", "")


def test_a_command_that_ignores_signals_is_killed_after_the_second(
    tmp_path: Path, started: list[Recording]
) -> None:
    stubborn = "trap '' TERM INT; echo up >&$STOKER_MARK_FD; while :; do sleep 0.05; done"
    started.append(Recording(tmp_path / "x.csv", "--", "sh", "-c", stubborn))
    wait_until(lambda: any(row["kind"] == "mark" for row in rows_of(tmp_path / "x.csv")))
    code, rows = started[0].end(signal.SIGINT, signal.SIGTERM)
    assert code == 128 + signal.SIGKILL
    assert [row["signal"] for row in rows if row["signal"]] == ["SIGINT", "SIGTERM", "SIGKILL"]
    assert rows[-1]["kind"] == "exit"


def test_a_killed_recorder_leaves_whole_rows_and_asks_the_command_to_end(
    tmp_path: Path, started: list[Recording]
) -> None:
    started.append(Recording(tmp_path / "x.csv", "--", "sleep", "100"))
    started[0].await_rows(2)
    tree = children_tree(started[0].process.pid)
    assert tree
    started[0].process.kill()
    wait_gone(tree)
    assert (tmp_path / "x.csv").read_bytes().endswith(b"\n")


def test_a_process_is_watched_until_it_ends(tmp_path: Path, started: list[Recording]) -> None:
    watched = subprocess.Popen(["sleep", "100"])
    try:
        started.append(Recording(tmp_path / "x.csv", "--pid", str(watched.pid)))
        code, rows = started[0].end(signal.SIGTERM)  # ends the recording alone
        assert code == 128 + signal.SIGTERM
        assert (rows[-1]["kind"], rows[-1]["exit_code"], rows[-1]["signal"]) == ("exit", "", "SIGTERM")
        assert watched.poll() is None
        started.append(Recording(tmp_path / "y.csv", "--pid", str(watched.pid)))
    finally:
        watched.kill()
        watched.wait(LONG_S)
    assert started[1].process.wait(LONG_S) == 0
    assert rows_of(tmp_path / "y.csv")[-1]["note"] == "the process has ended"
    assert record(tmp_path / "z.csv", "--pid", str(watched.pid)).returncode == 69
    assert not (tmp_path / "z.csv").exists()


def test_a_csv_that_cannot_be_written_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = record(Path("/dev/full"), "--", "touch", str(tmp_path / "ran"))
    assert ended.returncode == 74
    assert ended.stderr.startswith("stoker: cannot write /dev/full: No space left on device; free space")
    assert not (tmp_path / "ran").exists()
    refusals = {
        "name either a process": [],
        "--memray is for a command; `python -m memray attach 1`": ["--pid", "1", "--memray"],
        "--python has gone; --memray records": ["--python", "--", "true"],
    }
    for told, words in refusals.items():
        assert exit_code(["memory", "record", "-o", str(tmp_path / "x.csv"), *words]) == 64
        assert told in capsys.readouterr().err


@pytest.mark.root
def test_a_disk_that_fills_is_said_once_and_the_command_goes_on(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    path = disk / "x.csv"
    # The command fills the disk with marks until rows are lost, then makes room for the last one.
    errors = tmp_path / "errors"
    command = (
        f"until grep -q 'cannot write' {errors}; do {'echo mark >&$STOKER_MARK_FD;' * 50} done;"
        f"cp {path} {tmp_path}/full.csv; mount -o remount,size=64m {disk}; exit 5"
    )
    words = [*STOKER, "record", "-o", str(path), "--every", "0.1", "--", "sh", "-c", command]
    script = (
        f'mount -t tmpfs -o size=64k none {disk}; "$@" 2>{errors}; code=$?; cp {path} {tmp_path}/; exit $code'
    )
    apart_command = apart(["sh", "-c", script, "sh", *words])
    if apart_command is None:
        pytest.skip(WHY_NOT)
    ended = subprocess.run(apart_command, check=False, timeout=LONG_S)
    said = errors.read_text()
    assert ended.returncode == 5, said
    assert said.count("cannot write") == 1
    assert re.search(r"samples? in .* rows? lost$", said.rstrip())
    full = (tmp_path / "full.csv").read_bytes()
    assert len(full) > 32 << 10
    # A row that was cut short at the moment of the copy is taken back.
    assert (tmp_path / "x.csv").read_bytes().startswith(full[: full.rfind(b"\n") + 1])
    rows = rows_of(tmp_path / "x.csv")
    assert rows[-1]["kind"] == "exit"
    assert all(row["note"] is not None for row in rows)


def test_memray_tells_what_the_lines_of_a_program_held(tmp_path: Path) -> None:
    text = "import sys; keep = [bytes(1 << 20) for _ in range(9)]; sys.exit(len(sys.argv))"
    program = tmp_path / "program.py"
    program.write_text(text)
    for name, words in {"file": [str(program)], "word": ["-c", text]}.items():
        ended = record(tmp_path / name, "--memray", "--", sys.executable, "-u", *words, "-m", "word")
        assert ended.returncode == 3, ended.stderr
        assert rows_of(tmp_path / name)[-1]["exit_code"] == "3"
        inside = tmp_path / f"{name}.memray"
        assert f"-m memray flamegraph {inside}` shows which lines held memory" in ended.stderr
        assert inside.exists()
    stats = [sys.executable, "-m", "memray", "stats", str(inside)]
    told = subprocess.run(stats, capture_output=True, text=True, check=True).stdout
    assert re.search(r"9\.437MB total \| 9 allocations", told)
    lacking = record(tmp_path / "y.csv", "--memray", "--", "sh", "-c", f"touch {tmp_path}/ran")
    assert lacking.returncode == 69
    assert "sh is no Python with memray: install it there" in lacking.stderr
    assert not {tmp_path / "y.csv", tmp_path / "ran"} & {*tmp_path.iterdir()}


def test_the_memory_on_gpus_is_that_of_the_tree_and_a_driver_that_hangs_holds_up_nothing(
    tmp_path: Path, started: list[Recording], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = FakeDriver(tmp_path / "nvml")
    driver.cards(2)
    for name, value in driver.environ.items():
        monkeypatch.setenv(name, value)
    started.append(Recording(tmp_path / "x.csv", "--", "sleep", "100"))
    path = tmp_path / "x.csv"
    tree = wait_until(lambda: sleepers(started[0].process.pid))
    driver.cards(2, processes=f"{tree[0]} {2 * GIB}")
    wait_until(lambda: any(row["gpu_bytes"] == str(4 * GIB) for row in rows_of(path)))
    assert {row["processes"] for row in rows_of(path)} == {"1"}  # the sampler is not of the tree
    driver.says("hang nvmlDeviceGetMemoryInfo")
    wait_until(driver.hangs.exists)
    started[0].await_rows(3)
    code, rows = started[0].end(signal.SIGTERM)
    assert code == 128 + signal.SIGTERM
    assert rows[-1]["kind"] == "exit"


def test_diagnose_names_the_pattern_that_accumulates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parquet = write_fineweb(tmp_path / "some.parquet", 3000, row_group=500)
    words = [*STOKER, "diagnose", str(parquet), "--json"]
    ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=LONG_S)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["culprit"] == "accumulating"
    assert 20 < found["bytes_per_token"] < 60
    assert found["sentence"].startswith("Accumulating: this is what grows, by ")
    grown = {name: one["grown_bytes"] for name, one in found["patterns"].items()}
    # A reader's buffers stay, whatever the file's size; what accumulates may find room that the round before
    # has left, where nothing was given back.
    assert 4 * max(grown["read"], grown["tokenize"]) < grown["release"]
    documents = {one["documents"] for one in found["patterns"].values()}
    assert documents == {3000 - len(range(11, 3000, 29))}
    assert exit_code(["memory", "diagnose", str(parquet), "--text-column", "none"]) == 65
    assert "no single column 'none'" in capsys.readouterr().err
