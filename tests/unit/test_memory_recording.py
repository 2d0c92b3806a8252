"""The recorder's parts: rows, what /proc says of a tree, the reader, the picture, the verdict on patterns."""

from __future__ import annotations

import csv
import re
import threading
from pathlib import Path

import pytest

from stoker.cli.main import exit_code
from stoker.memory.drawing import as_text
from stoker.memory.inside import PythonReports
from stoker.memory.memory_patterns import PATTERNS, PatternRun, judge
from stoker.memory.memory_picture import (
    MOST_POINTS,
    Curve,
    growth_bytes_per_min,
    picture_of_recording,
    picture_of_samples,
)
from stoker.memory.recording import COLUMNS, NOTE_CHARS, RecordingFile, Row, csv_line, read_table
from stoker.memory.tree_memory import PssWatch, tree_memory
from stoker.store.errors import DataError, StorageError, UsageError
from stoker.store.layout import StateLayout
from support.config_files import write_pipeline
from support.waiting import wait_until

MB = 1 << 20


def row(elapsed_s: float, kind: str = "sample", rss: int | None = None, **more: object) -> bytes:
    return csv_line(Row("2026-11-20T12:00:00Z", elapsed_s, kind, rss_bytes=rss, **more))  # type: ignore[arg-type]


def recording(path: Path, *rows: bytes) -> Path:
    path.write_bytes((",".join(COLUMNS) + "\n").encode() + b"".join(rows))
    return path


def test_a_row_is_one_line_whatever_its_note_holds() -> None:
    line = row(1.5, "mark", 7, note='a,"b"\x1b[31m\r\x00' + "x" * (1 << 20)).decode()
    assert line.count("\n") == 1
    (cells,) = csv.reader([line])
    found = dict(zip(COLUMNS, cells, strict=True))
    assert (found["kind"], found["elapsed_s"], found["rss_bytes"]) == ("mark", "1.500", "7")
    assert found["pss_bytes"] == ""
    assert found["note"].startswith('a,"b"\\x1b[31m\\r\\x00xxx')
    assert len(found["note"]) < NOTE_CHARS + 20


def test_a_recording_is_a_new_file_that_can_be_written(tmp_path: Path) -> None:
    old = tmp_path / "old.csv"
    old.write_text("mine")
    with pytest.raises(UsageError, match=r"old\.csv exists; name a new file"):
        RecordingFile(old, print)
    assert old.read_text() == "mine"
    with pytest.raises(StorageError, match="cannot write /dev/full: No space left on device; free space"):
        RecordingFile(Path("/dev/full"), print)
    with pytest.raises(FileNotFoundError):
        RecordingFile(tmp_path / "away" / "x.csv", print)


def process(proc: Path, pid: int, **kilobytes: int) -> None:
    (proc / str(pid)).mkdir(parents=True)
    lines = [f"{name}:\t {size} kB\n" for name, size in kilobytes.items()]
    (proc / str(pid) / "status").write_text("Name:\tx\n" + "".join(lines) + "Threads:\t1\n")


def test_a_tree_is_summed_without_those_that_are_gone(tmp_path: Path) -> None:
    process(tmp_path, 1, VmHWM=300, VmRSS=100, VmSwap=7)
    process(tmp_path, 2, VmHWM=60, VmRSS=60)
    found = tree_memory([1, 2, 3], tmp_path)
    assert (found.processes, found.rss_bytes, found.swap_bytes) == (2, 160 << 10, 7 << 10)
    assert found.largest_bytes == 300 << 10


def test_a_process_that_hangs_delays_no_sample() -> None:
    free = threading.Event()

    def measure(_: object) -> int:
        free.wait()
        return 5

    watch = PssWatch(measure)
    assert watch.look([1]) is None
    assert watch.look([1]) is None
    free.set()
    assert wait_until(lambda: watch.look([1])) == 5


def test_pss_that_takes_long_is_measured_seldom() -> None:
    now = [0.0]

    def measure(_: object) -> int:
        now[0] += 0.5
        return 7

    watch = PssWatch(measure, clock=lambda: now[0])
    assert watch.look([1]) == 7
    now[0] += 49.0
    assert watch.look([1]) is None
    now[0] += 2.0
    assert watch.look([1]) == 7


def test_reports_count_for_processes_that_are_there() -> None:
    reports = PythonReports()
    assert reports.of({1}) == {"arrow_bytes": None, "traced_bytes": None}
    reports.take(
        [b'{"pid":1,"traced":5,"arrow":7,"top":[["a.py:3",2048]]}', b'{"pid":2,"traced":1}', b"{torn"]
    )
    assert reports.of({1, 2}) == {"arrow_bytes": 7, "traced_bytes": 6}
    assert reports.of({2}) == {"arrow_bytes": None, "traced_bytes": 1}
    assert (reports.new_top(), reports.new_top(), reports.top) == ("a.py:3 2.0 KiB", "", "a.py:3 2.0 KiB")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no column 'elapsed_s' in its first line"),
        ("a,b\n1,2\n", "no column 'elapsed_s' in its first line"),
        ("elapsed_s,kind,rss_bytes\n", "no sample in it yet"),
        ("elapsed_s,kind,rss_bytes\n1,sample,much\n", ":2: rss_bytes holds 'much', which is no number"),
        ("elapsed_s,kind,rss_bytes\n1,sample,nan\n", ":2: rss_bytes holds 'nan', which is no number"),
        ("elapsed_s,kind,rss_bytes\n,sample,5\n", ":2: no elapsed_s"),
    ],
)
def test_a_file_that_is_no_recording_is_refused(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=told):
        picture_of_recording(path)


def test_a_torn_line_is_left_out(tmp_path: Path) -> None:
    path = recording(tmp_path / "x.csv", row(0, rss=1), b"2026-11\n", row(1, rss=2), row(2, rss=3)[:-9])
    assert [found["rss_bytes"] for _, found in read_table(path, COLUMNS)] == ["1", "2"]


def test_growth_is_that_of_the_later_half() -> None:
    load = [(float(at), 100.0 * MB * min(at, 5)) for at in range(10)]
    leak = [(10.0 + at, 500.0 * MB + at * MB) for at in range(11)]
    assert growth_bytes_per_min(load + leak) == pytest.approx(60 * MB)
    assert growth_bytes_per_min(load[:2]) is None
    assert growth_bytes_per_min([(0.0, 1.0)] * 5) is None


def test_a_curve_of_any_length_keeps_its_peak() -> None:
    curve = Curve("RSS")
    for at in range(5 * MOST_POINTS):
        curve.add(at, 9.0 if at == 12345 else 1.0)
    assert len(curve.points) <= MOST_POINTS
    assert curve.peak == (12345.0, 9.0)
    assert curve.points[-1][0] > 5 * MOST_POINTS - 16


def test_a_recording_is_drawn(tmp_path: Path) -> None:
    path = recording(
        tmp_path / "leak.csv",
        *(row(at, rss=at * MB, peak_rss_bytes=9 * MB, pss_bytes=MB) for at in range(5)),
        row(4, "mark", 4 * MB, note="epoch \x1b2"),
        row(5, "signal", 5 * MB, signal="SIGTERM"),
        row(6, "exit", exit_code=143, signal="SIGTERM", note="a.py:3 2.0 KiB"),
    )
    lines = list(as_text(picture_of_recording(path), 60))
    assert lines[0] == "leak.csv"
    assert lines[1].startswith("    5.0 MiB|")
    assert lines[1].endswith("█")
    assert re.fullmatch(r" +a +!", lines[11])
    told = "\n".join(lines)
    assert "RSS: peak 5.0 MiB at 5 s, last 5.0 MiB, +60.0 MiB a minute over the last 2 s" in told
    assert "PSS: peak 1.0 MiB" in told
    assert "peak between two samples: 9.0 MiB" in told
    assert "ended: SIGTERM" in told
    assert "most memory at the end: a.py:3 2.0 KiB" in told
    assert lines[-1] == "! 5 s: SIGTERM"
    assert lines[-2] == "a 4 s: epoch \\x1b2"


HEADER = "time,elapsed_s,daemon_rss_bytes,trainer_rss_bytes,gpu_memory_used_bytes\n"


def samples(layout: StateLayout) -> None:
    """Two daemons' samples: one rotated and torn, one without a GPU."""
    folder = layout.state / "samples"
    folder.mkdir(parents=True)
    (folder / "train_supervisor.csv.1").write_text(f"{HEADER}2026-11-20T12:00:00Z,60,100,200,5000\n2026-\n")
    (folder / "train_supervisor.csv").write_text(f"{HEADER}2026-11-20T12:02:00Z,180,100,400,\n")
    (folder / "stage_shard.csv").write_text(f"{HEADER}2026-11-20T12:01:00Z,60,50,,\n")
    (layout.state / "events").mkdir()
    at = '"prev":"x","level":"info","seq"'
    (layout.state / "events" / "train_supervisor.jsonl").write_text(
        f'{{"time":"2026-11-20T11:00:00Z","event":"trainer_launched",{at}:1}}\n'
        f'{{"time":"2026-11-20T12:00:30Z","event":"trainer_launched",{at}:2}}\n'
        f'{{"time":"2026-11-20T12:01:30Z","event":"checkpoint_proven",{at}:3}}\n'
    )
    metrics = layout.run("main").metrics
    metrics.parent.mkdir(parents=True)
    metrics.write_text('{"step":5,"val_loss":3.0,"time":"2026-11-20T12:01:00Z"}\n{"step":6,"val_loss":')


def test_samples_of_a_pipeline_are_a_panel_a_daemon_with_marks(tmp_path: Path) -> None:
    layout = StateLayout(tmp_path)
    with pytest.raises(DataError, match="no samples yet"):
        picture_of_samples(layout, "main")
    samples(layout)
    picture = picture_of_samples(layout, "main")
    assert [panel.title for panel in picture.panels] == ["stage shard", "train supervisor"]
    trainer = {curve.name: curve.points for curve in picture.panels[1].curves}
    assert trainer == {
        "RSS": [(0.0, 300.0), (120.0, 500.0)],
        "daemon": [(0.0, 100.0), (120.0, 100.0)],
        "trainer": [(0.0, 200.0), (120.0, 400.0)],
        "GPU": [(0.0, 5000.0)],
    }
    marks = [(mark.at_s, mark.kind) for mark in picture.marks]
    assert marks == [(30.0, "launch"), (60.0, "evaluation"), (90.0, "checkpoint")]


@pytest.mark.parametrize(("suffix", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_show_draws_a_pipeline_and_writes_a_picture(
    suffix: str, magic: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_pipeline(tmp_path)
    samples(StateLayout(tmp_path / "state"))
    plot = tmp_path / f"plot.{suffix}"
    assert exit_code(["memory", "show", str(file), "--plot", str(plot)]) == 0
    assert plot.read_bytes().startswith(magic)
    told = capsys.readouterr().out
    assert "2026-11-20 12:00" in told
    assert "L launch  C checkpoint  E evaluation" in told


@pytest.mark.parametrize(
    ("grown", "culprit", "told"),
    [
        ((0, 1, 2, 2), None, "No culprit: nothing grows by 4.0 MiB"),
        ((1, 2, 50, 49), "accumulating", "Accumulating is what grows: 49,283 bytes a document"),
        ((1, 2, 60, 10), "allocators", r"gave back 50.0 MiB of 60.0 MiB \(83 %\)"),
        ((1, 40, 42, 42), "tokenizing", "Tokenizing is what grows"),
        ((30, 31, 33, 33), "reading", "Reading is what grows"),
    ],
)
def test_the_largest_step_between_patterns_is_the_culprit(
    grown: tuple[int, ...], culprit: str | None, told: str
) -> None:
    runs = {
        name: PatternRun(1000, 50_000, 90 * MB, (90 + size) * MB)
        for name, size in zip(PATTERNS, grown, strict=True)
    }
    found = judge(runs)
    assert found.culprit == culprit
    assert re.search(told, found.sentence)
    few = {name: PatternRun(10, 500, run.begin_bytes, run.end_bytes) for name, run in runs.items()}
    assert judge(few).culprit is None
