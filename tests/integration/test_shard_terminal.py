"""`stoker-stage-shard FILE --once` by hand: a stop before the end, its progress on a terminal."""

from __future__ import annotations

import re
from pathlib import Path

from stoker.corpus.records.sources import PUBLISHED
from support.parquet import write_fineweb
from support.pipelines import DataPipeline, Template, make_pipeline
from support.processes import daemon_command, start_daemon
from support.terminal import run_on_terminal
from support.waiting import wait_until

LOGGED = re.compile(r"\d\d:\d\d:\d\d \w|         \S")


def received(drained: Template, home: Path) -> DataPipeline:
    """Files, a bad one among them, and the tokenizer of another pipeline."""
    data = make_pipeline(home, tokenizer=drained.tokenizer)
    for number in range(2):
        write_fineweb(data.source / f"{number}.parquet", 150, seed=number)
    (data.source / "bad.parquet").write_text("not parquet")
    data.receive()
    return data


def test_a_stop_before_all_is_built_is_no_success_and_then_a_terminal_shows_progress_and_is_left_clean(
    drained: Template, tmp_path: Path
) -> None:
    """Below whole log lines; nothing of it goes into a file."""
    data = received(drained, tmp_path)
    command = daemon_command("stage_shard", data.file, "--once")
    daemon = start_daemon(command, tmp_path / "once.err")
    wait_until(data.states, what="the first records")
    assert daemon.stop() == 75
    said = daemon.said()
    assert ("start it again" in said, "\r" in said, "\x1b" in said) == (True, False, False)

    code, screen = run_on_terminal(command, columns=60, environ={"NO_COLOR": "1"})
    assert code == 0
    assert screen.last == "", "nothing is left of the line"
    assert all(LOGGED.match(line) for line in screen.lines), screen.lines
    assert screen.lines[-1].endswith(" the daemon stopped in order")
    assert not screen.styled
    assert max(map(len, screen.footers)) < 60
    counted = [line for line in screen.footers if not line.startswith("looking for files")]
    told = [re.match(r"(\d+)/(\d+) files", line) for line in counted]
    done = [int(found.group(1)) for found in told if found is not None]
    assert len(done) == len(counted), screen.footers
    assert "0/0 files" not in screen.footers
    assert done == sorted(done)
    assert any(re.match(r"\d/3 files  .* %.*  build \d", line) for line in screen.footers), screen.footers
    assert data.states().pop("bad.parquet") == "quarantined"
    assert {state for path, state in data.states().items() if path != "bad.parquet"} <= PUBLISHED
