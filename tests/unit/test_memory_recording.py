"""The recorder's parts: rows, PSS in a thread, the reader, the picture, the verdicts."""

from __future__ import annotations

import csv
import os
import re
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

from stoker.cli.main import exit_code
from stoker.kit.process import ProcessId
from stoker.memory.diagnose import PATTERNS, judge
from stoker.memory.drawing import as_text, highest
from stoker.memory.figures import SharedWatch
from stoker.memory.picture import (
    growth_bytes_per_min,
    panel_of_recording,
    panels_of_samples,
    what_grows,
)
from stoker.memory.recorder import Recorder
from stoker.memory.recording import COLUMNS, NOTE_CHARS, RecordingFile, csv_line
from stoker.store.errors import DataError, UsageError
from stoker.store.layout import StateLayout
from support.config_files import write_pipeline
from support.waiting import wait_until

MB = 1 << 20
OLDER = Path(__file__).parents[1] / "data" / "memory-recording.csv"  # made before Arrow's column went


def row(elapsed_s: float, kind: str = "sample", rss: int | None = None, **more: object) -> bytes:
    cells = {"time": "2026-11-20T12:00:00Z", "elapsed_s": elapsed_s, "kind": kind, "rss_bytes": rss}
    return csv_line({**cells, **more})


def recording(path: Path, *rows: bytes) -> Path:
    path.write_bytes(",".join(COLUMNS).encode() + b"\n" + b"".join(rows))
    return path


def test_a_row_is_one_line_whatever_its_note_holds() -> None:
    line = row(1.5, "mark", 7, note='a,"b"\x1b[31m\r\x00' + "x" * (1 << 20)).decode()
    assert line.count("\n") == 1
    (cells,) = csv.reader([line])
    found = dict(zip(COLUMNS, cells, strict=True))
    assert (found["kind"], found["elapsed_s"], found["rss_bytes"]) == ("mark", "1.5", "7")
    assert found["pss_bytes"] == ""
    assert found["note"].startswith('a,"b"\\x1b[31m\\r\\x00xxx')
    assert len(found["note"]) < NOTE_CHARS + 20


def test_a_recording_is_a_new_file_that_can_be_written(tmp_path: Path) -> None:
    old = tmp_path / "old.csv"
    old.write_text("mine")
    with pytest.raises(UsageError, match=r"old\.csv exists; name a new file"):
        RecordingFile(old, print)
    assert old.read_text() == "mine"
    with pytest.raises(FileNotFoundError):
        RecordingFile(tmp_path / "away" / "x.csv", print)


def test_another_process_with_the_same_pid_is_not_recorded() -> None:
    recorder = Recorder.__new__(Recorder)  # its making blocks signals
    own = recorder._process = ProcessId.of(os.getpid())
    assert recorder._tree()[0] == own
    recorder._process = own._replace(start_ticks=own.start_ticks - 1)
    assert recorder._tree() == []


def test_a_process_that_hangs_delays_no_sample() -> None:
    free = threading.Event()

    def measure(pids: object) -> dict[str, int]:
        free.wait()
        return {"pss_bytes": 5} if pids == {1} else {}

    watch = SharedWatch(measure)
    assert watch.take([1]) == {}
    assert watch.take([1]) == {}
    free.set()
    assert wait_until(lambda: watch.take([1])) == {"pss_bytes": 5}


HEAD = "elapsed_s,kind,rss_bytes,peak_rss_bytes,exit_code,signal,note\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no column 'elapsed_s' in its first line"),
        ("a,b\n1,2\n", "no column 'elapsed_s' in its first line"),
        (HEAD, "no sample in it yet"),
        (f"{HEAD},sample,5,,,,\n", "a row has no elapsed_s"),
        (f"{HEAD}1,sample,much,,,,\n", "conversion error to double: invalid value 'much'"),
    ],
)
def test_a_file_that_is_no_recording_is_refused(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=told):
        panel_of_recording(path)


def test_a_torn_line_is_left_out(tmp_path: Path) -> None:
    rows = (row(0, rss=1), b"2026-11\n", row(1, rss=2), row(2, rss=3)[:-1])
    _, sizes = panel_of_recording(recording(tmp_path / "x.csv", *rows)).curves["RSS"]
    assert sizes.tolist() == [1, 2]


def test_growth_is_that_of_the_later_half() -> None:
    times = np.arange(21.0)
    sizes = np.where(times < 10, 100.0 * MB * np.minimum(times, 5), 490.0 * MB + times * MB)
    assert growth_bytes_per_min((times, sizes)) == pytest.approx(60 * MB)
    assert growth_bytes_per_min((times[:2], sizes[:2])) is None
    assert highest((times, sizes), 3)[1].tolist() == [500 * MB, 503 * MB, 510 * MB]


def test_a_recording_is_shown_and_what_grows_is_named(tmp_path: Path) -> None:
    path = recording(
        tmp_path / "leak.csv",
        *(row(at, rss=(at + 5) * MB, pss_bytes=1, by_name=f"a b {at * MB}; sh {5 * MB}") for at in range(11)),
        row(10, "mark", 15 * MB, by_name=f"sh {15 * MB}", note="epoch \x1b2"),
        row(11, "signal", 16 * MB, by_name=f"a b {11 * MB}; sh {5 * MB}", signal="SIGTERM"),
        row(12, "exit", peak_rss_bytes=20 * MB, exit_code=143, signal="SIGTERM"),
    )  # fmt: skip
    panel = panel_of_recording(path)
    assert list(panel.curves) == ["RSS", "PSS", "sh", "a b"]
    assert panel.curves["a b"][1].tolist()[-3:] == [10 * MB, 0, 11 * MB]
    lines = list(as_text(panel))
    assert lines[0] == "leak.csv"
    assert re.search(r"RSS .*█ +peak 16.0 MiB at 11 s, last 16.0 MiB, \+.* MiB a minute over the", lines[1])
    told = ["  mark 10 s: epoch \\x1b2", "  signal 11 s: SIGTERM", "  ended: SIGTERM"]
    assert lines[5:] == [*told, "  peak, between two samples too: 20.0 MiB"]


@pytest.mark.parametrize(
    ("sizes", "culprit"),
    [
        ({"rss_bytes": 1, "gpu_bytes": 1}, None),
        ({"rss_bytes": 100, "pss_bytes": 200}, "PSS"),
        ({"rss_bytes": 100, "gpu_bytes": 50}, "GPU"),
        ({"rss_bytes": 0, "gpu_bytes": 50}, "GPU"),
    ],
)
def test_the_part_that_grows_most_is_named(
    sizes: dict[str, int], culprit: str | None, tmp_path: Path
) -> None:
    rows = (row(at, **{name: MB + size * at * MB // 100 for name, size in sizes.items()}) for at in range(99))
    assert what_grows(panel_of_recording(recording(tmp_path / "x.csv", *rows)))["culprit"] == culprit


HEADER = "time,elapsed_s,daemon_rss_bytes,trainer_rss_bytes,gpu_memory_used_bytes\n"


def samples(layout: StateLayout) -> None:
    """Two daemons' samples: one rotated and torn, one without a GPU."""
    folder = layout.state / "samples"
    folder.mkdir(parents=True)
    (folder / "train_supervisor.csv.1").write_text(f"{HEADER}2026-11-20T12:00:00Z,60,100,200,5000\n2026-\n")
    (folder / "train_supervisor.csv").write_text(f"{HEADER}2026-11-20T12:02:00Z,180,100,400,\n")
    (folder / "stage_shard.csv").write_text(
        f"{HEADER.replace('trainer', 'build')}2026-11-20T12:01:00Z,60,50,,\n"
    )
    (layout.state / "events").mkdir()
    at = '"prev":"x","level":"info","seq"'
    (layout.state / "events" / "train_supervisor.jsonl").write_text(
        f'{{"time":"2026-11-20T11:00:00Z","event":"trainer_launched",{at}:1}}\n'
        f'{{"time":"2026-11-20T12:00:30Z","event":"trainer_launched",{at}:2}}\n'
        f'{{"time":"2026-11-20T12:01:30Z","event":"checkpoint_proven",{at}:3}}\n'
    )
    metrics = layout.run("main").metrics
    metrics.parent.mkdir(parents=True)
    whole = '{"step":5,"timeline":0,"val_loss":3.0,"time":"2026-11-20T12:01:00Z"}'
    metrics.write_text(f'{whole}\n{{"step":6,"val_loss":')


def test_samples_of_a_pipeline_are_a_panel_a_daemon_with_marks(tmp_path: Path) -> None:
    layout = StateLayout(tmp_path)
    with pytest.raises(DataError, match="no samples yet"):
        panels_of_samples(layout, "main")
    samples(layout)
    first, second = panels_of_samples(layout, "main")
    assert first.title == "stage shard from 2026-11-20 12:00 UTC"
    trainer = {name: list(zip(*map(list, points), strict=True)) for name, points in second.curves.items()}
    assert trainer == {
        "RSS": [(0.0, 300.0), (120.0, 500.0)],
        "GPU": [(0.0, 5000.0)],
        "daemon": [(0.0, 100.0), (120.0, 100.0)],
        "trainer": [(0.0, 200.0), (120.0, 400.0)],
    }
    assert [(mark.at_s, mark.kind) for mark in second.marks] == [
        *((30.0, "launch"), (60.0, "evaluation"), (90.0, "checkpoint")),
    ]


@pytest.mark.parametrize(("suffix", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_show_draws_a_pipeline_and_writes_a_picture(
    suffix: str, magic: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_pipeline(tmp_path)
    samples(StateLayout(tmp_path / "state"))
    plot = tmp_path / f"plot.{suffix}"
    assert exit_code(["memory", "show", str(file), "--plot", str(plot)]) == 0
    assert plot.read_bytes().startswith(magic)
    assert "1 launch, 1 evaluation, 1 checkpoint" in capsys.readouterr().out


def test_a_recording_of_an_older_version_is_shown_drawn_and_diagnosed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(shutil.copy(OLDER, tmp_path))
    plot = tmp_path / "plot.svg"
    assert exit_code(["memory", "show", str(path), "--plot", str(plot)]) == 0
    told = capsys.readouterr().out
    assert re.search(r"RSS .* peak 161.5 MiB at 4 s, last 161.5 MiB, \+1,821.0 MiB a minute", told)
    assert re.search(r"Arrow pool .* peak 29.0 MiB", told)
    assert "mark 1 s: epoch 2" in told
    assert "ended: SIGTERM" in told
    assert {"RSS", "Arrow pool", "Python objects", "epoch 2"} <= {*re.findall(">([^<]+)<", plot.read_text())}
    assert exit_code(["memory", "diagnose", str(path)]) == 0
    assert "Python objects is what grows most in the later half" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("grown", "culprit", "told"),
    [
        ((0, 1, 2, 2), None, "No culprit: nothing grows by 4.0 MiB"),
        ((1, 2, 49, 50), "accumulating", "Accumulating: this is what grows, by 49,283 bytes a document"),
        ((1, 2, 10, 60), "allocators", "free and not given back: release"),
        ((1, 40, 42, 42), "tokenizing", "Tokenizing: this is what grows"),
        ((30, 31, 33, 33), "reading", "Reading: this is what grows"),
    ],
)
def test_the_largest_step_between_patterns_is_the_culprit(
    grown: tuple[int, ...], culprit: str | None, told: str
) -> None:
    counts = {"documents": 1000, "tokens": 50_000}
    runs = {name: {**counts, "grown_bytes": size * MB} for name, size in zip(PATTERNS, grown, strict=True)}
    found = judge(runs)
    assert found["culprit"] == culprit
    assert told in found["sentence"]
    assert judge({name: {**run, "documents": 10} for name, run in runs.items()})["culprit"] is None
