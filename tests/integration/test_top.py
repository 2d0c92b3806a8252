"""`stoker top` on a terminal: its pages at three sizes, and what is left of it, however it ends."""

from __future__ import annotations

import os
import re
import signal
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.cli.top.pages import BARS
from stoker.config.load import load_pipeline
from stoker.store.log import ChainedLog
from support.config_files import write_pipeline
from support.terminal import FullScreen
from support.training import TrainPipeline
from support.waiting import LONG_S, wait_until

TOP = [sys.executable, "-P", "-c", "from stoker.cli.main import main; main()", "top"]
COLOUR = re.compile(rb"\x1b\[(?:\d+;)*(?:3[0-7]|4[0-7]|9\d|38;[\d;]+|48;[\d;]+)(?:;\d+)*m")
PAGES = {
    "Overview": "run main is finished",
    "Data": "420 to train on",
    "Training": "steps 1 to 60",
    "Launches": "finished: exit code 0",
    "Events": "the run is finished at",
    "Memory": "no daemon runs",
}
Start = Callable[..., FullScreen]


@pytest.fixture
def start() -> Iterator[Start]:
    screens: list[FullScreen] = []

    def begin(file: Path, columns: int = 80, rows: int = 24, **how: Any) -> FullScreen:
        screens.append(FullScreen([*TOP, str(file)], columns, rows, **how))
        screens[-1].wait_for("verdict")
        return screens[-1]

    yield begin
    for screen in screens:
        screen.process.kill()
        screen.process.wait(LONG_S)


def is_clean(terminal: FullScreen) -> bool:
    """Whether the terminal is as it was before."""
    terminal.look()
    return terminal.screen.mode == terminal.modes and termios.tcgetattr(terminal.its) == terminal.stty


@pytest.mark.parametrize(("columns", "rows"), [(60, 20), (80, 24), (200, 50)])
def test_every_page_fits_and_tells_its_keys(
    columns: int, rows: int, finished: TrainPipeline, start: Start
) -> None:
    environ = {"NO_COLOR": "1"} if columns == 60 else {}
    top = start(finished.data.file, columns, rows, **environ)
    assert not is_clean(top)
    for number, (name, text) in enumerate(PAGES.items(), start=1):
        top.press(f"{number}" if columns < 200 or number == 1 else "\x1b[C")
        shown = re.sub(r"\s+", " ", top.wait_for(text)).strip()
        assert shown.startswith("1 Overview 2 Data 3 Training 4 Launches 5 Events 6 Memory ")
        assert shown.endswith("↑↓ Scroll 1-6 ←→ Page ^z Suspend q Quit"), name
        assert sum(cell.reverse for cell in top.screen.buffer[0].values()) == len(f"1 {name}")
        assert bool(COLOUR.search(top.taken)) is not bool(environ)
        if name == "Training":
            assert sum(cell.data in BARS for cell in top.screen.buffer[1].values()) == min(60, columns - 23)
    top.press("q")
    assert top.process.wait(LONG_S) == 0
    assert is_clean(top)


def test_stopped_and_resumed_it_draws_itself_again_and_only_what_changed(
    tmp_path: Path, start: Start
) -> None:
    pipeline = load_pipeline(write_pipeline(tmp_path), {})
    pipeline.layout.create()
    top = start(pipeline.file)
    threads = Path(f"/proc/{top.process.pid}/task")
    began_with = len([*threads.iterdir()])
    for keys, number in (("\x1a", signal.SIGCONT), ("", signal.SIGSTOP)):  # Ctrl-Z; from outside
        top.press(keys) if keys else os.kill(top.process.pid, number)
        _, how = os.waitpid(top.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(how)
        assert is_clean(top) is bool(keys)
        top.screen.reset()
        os.kill(top.process.pid, signal.SIGCONT)
        top.wait_for("verdict")
        assert len([*threads.iterdir()]) == began_with, "it reads and writes once"
    top.resize(60, 20)
    wait_until(lambda: "q Quit" in top.look().splitlines()[19], what="the keys on the new last line")
    top.press("5")
    top.wait_for("none is kept")
    before = len(top.taken)
    log = ChainedLog(pipeline.layout.events("stage_shard"))
    log.append(
        {"event": "source_staged", "level": "info", "path": "new.parquet", "time": "2026-11-20T12:00Z"}
    )
    log.close()
    top.wait_for("new.parquet")
    assert len(top.taken) - before < 300, "bytes for one line"
    top.press("\x03")
    assert top.process.wait(LONG_S) == 130
    assert is_clean(top)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_signal_ends_it_and_leaves_the_terminal_clean(number: int, tmp_path: Path, start: Start) -> None:
    top = start(write_pipeline(tmp_path))
    os.kill(top.process.pid, number)
    assert top.process.wait(LONG_S) == 128 + number
    assert is_clean(top)


@pytest.mark.parametrize("is_told", [True, False], ids=["by SIGHUP", "by EIO"])
def test_a_terminal_that_is_gone_ends_it(is_told: bool, tmp_path: Path, start: Start) -> None:
    top = start(write_pipeline(tmp_path), is_its_own=is_told)
    top.close()
    assert top.process.wait(LONG_S) == 128 + signal.SIGHUP
