"""`stoker run`: the pipeline in the foreground, from parquet to a trained run; `stoker train`; their ends.

The first test trains with the built-in trainer, the others with the small one.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.cli.main import exit_code
from stoker.cli.pipeline.run import LOG_BYTES
from stoker.kit.lock import read_holder
from stoker.kit.process import ProcessId, children_tree, processes_with_environment, signal_process
from stoker.store.layout import DAEMONS, DOWNLOAD_WATCHDOG, STAGE_SHARD, TRAIN_SUPERVISOR
from support.parquet import flip_page, write_fineweb
from support.pipelines import DataPipeline, make_pipeline
from support.processes import ENDING_S, kill_tree, wait_gone
from support.terminal import run_on_terminal
from support.training import SLOW_ENOUGH, TrainPipeline, make_training
from support.waiting import LONG_S, wait_until

MARK = "STOKER_TEST_RUN"
STOKER = str(Path(sys.executable).parent / "stoker")


class StokerRun:
    """`stoker run` (or train) as a process of its own; what it prints is kept in a file."""

    def __init__(self, pipeline: DataPipeline, *options: str, command: str = "run") -> None:
        self.training = TrainPipeline(pipeline)
        self.layout = pipeline.pipeline.layout
        self.mark = str(pipeline.home)
        self.printed = pipeline.home / "printed"
        with self.printed.open("ab") as stream, self.training.trainer():
            self.process = subprocess.Popen(
                [STOKER, command, str(pipeline.file), *options],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env={**os.environ, MARK: self.mark},
            )

    def said(self) -> str:
        return self.printed.read_text()

    def daemon(self, name: str) -> ProcessId | None:
        """The live daemon of that name."""
        holder = read_holder(self.layout.lock(name))
        try:
            return ProcessId.of(holder.pid) if holder and holder.pid else None
        except ProcessLookupError:
            return None

    def everyone(self) -> list[ProcessId]:
        """Every live process that was started below, whatever became of its parent."""
        return processes_with_environment(MARK, self.mark)

    def end(self) -> None:
        """Leave nothing behind, whatever the test found."""
        if self.process.poll() is None:
            kill_tree(self.process.pid)
            self.process.wait(LONG_S)
        for process in self.everyone():
            signal_process(process, signal.SIGKILL)


@pytest.fixture
def started() -> Iterator[Any]:
    runs: list[StokerRun] = []

    def start(pipeline: DataPipeline, *options: str, command: str = "run") -> StokerRun:
        runs.append(StokerRun(pipeline, *options, command=command))
        return runs[-1]

    yield start
    for run in runs:
        run.end()


SETTINGS: dict[str, Any] = {
    "train__steps": 40,
    "train__seq_len": 64,
    "train__global_batch": 4,
    "train__model": SLOW_ENOUGH,
    "train__start_when": {"tokens": "1000", "shard_sets": 1},
    "train__evaluate": {"every_steps": 20, "tokens": 512},
    "train__checkpoint": {"every": None, "every_steps": 20},
    "supervise__stop_time": "20s",
    "supervise__backoff": {"first": "0.1s", "most": "0.2s"},
}


def pipeline_of_text(home: Path, **changes: Any) -> DataPipeline:
    """Three files, the second damaged; a run of 40 small steps."""
    pipeline = make_pipeline(home, **{**SETTINGS, **changes})
    for number in range(3):
        write_fineweb(pipeline.source / f"{number}.parquet", rows=150, seed=number)
    flip_page(pipeline.source / "1.parquet", 1)
    return pipeline


def pipeline_of_sets(shard_sets: Path, home: Path, **changes: Any) -> DataPipeline:
    """Two files that are built; a run over them."""
    source = {"dataset__source__path": str(shard_sets / "source")}
    return make_training(shard_sets, home, **{**SETTINGS, **source, **changes}).data


def test_a_folder_of_parquet_becomes_a_finished_run(tmp_path: Path, started: Any) -> None:
    pipeline = pipeline_of_text(tmp_path / "done")
    command = [STOKER, "run", str(pipeline.file), "--until-done"]
    code, screen = run_on_terminal(command, columns=60, environ={MARK: str(pipeline.home)})
    assert code == 0, screen.lines
    training = TrainPipeline(pipeline)
    assert training.record()["finished"] == "steps"
    assert training.checkpoints() == ["step-000000020", "step-000000040"]
    assert pipeline.states() == {"0.parquet": "released", "1.parquet": "quarantined", "2.parquet": "released"}
    wait_gone(processes_with_environment(MARK, str(pipeline.home)), ENDING_S)
    audit = [STOKER, "audit", str(pipeline.file)]
    assert subprocess.run(audit, check=False, capture_output=True).returncode == 0

    told = [line for line in screen.lines if str(tmp_path) not in line]
    assert max(map(len, told)) < 60 > max(map(len, screen.footers))
    text = " ".join(line[9:].strip() for line in told)
    for words in (
        "0.parquet hashed, ",
        "1.parquet quarantined: page corrupt",
        "of step 40 is proven whole",
    ):
        assert words in text
    assert "=" not in text, "key=value is for files and pipes"
    for live in (
        r"download 3/3 files  100.0 %",
        r"shard    3/3 files",
        r"train    (training: step \d+ of 40  loss|finished: steps)",  # forty steps may be over in a second
    ):
        assert any(re.match(live, line) for line in screen.footers), screen.footers
    assert screen.styled

    again = started(pipeline, "--until-done", "--quiet")
    assert again.process.wait(LONG_S) == 0
    said = [line for line in again.said().splitlines() if not re.match(r"\d\d:\d\d:\d\d ", line)]  # warnings
    summary = {line.split()[0]: line.partition(" ")[2].strip() for line in said}
    assert list(summary) == ["finished", "step", "loss", "tokens", "checkpoint", "try"]
    assert (summary["step"], summary["tokens"]) == ("40 of 40", "10,240 trained on")
    assert re.fullmatch(r"training \d\.\d{4}, held-out \d\.\d{4} at step 40", summary["loss"])
    _, command, *words = shlex.split(summary["try"])  # by its name alone where it is on the path
    assert Path(command).name == "stoker"
    assert words[:2] == [
        "generate",
        str(training.run.checkpoints / "step-000000040"),
    ]


def test_a_healthy_life_has_no_warning_and_no_series_that_appears_later(tmp_path: Path, started: Any) -> None:
    """Another file, a changed one, a pause, a reload, a stop, a restart and the end of a run.

    An increase() misses a counter that is born at 1.
    """
    settings = SETTINGS | {"train__steps": 100_000, "train__schedule": {"warmup_steps": 10}}
    pipeline = make_pipeline(tmp_path, **settings)
    write_fineweb(pipeline.source / "0.parquet", rows=150)
    run = started(pipeline, "--quiet")
    wait_until(run.training.checkpoints, LONG_S, "a checkpoint")
    write_fineweb(pipeline.source / "1.parquet", rows=150, seed=2)
    wait_until(lambda: pipeline.states().get("1.parquet") == "released", LONG_S, "the other file's set")
    write_fineweb(pipeline.source / "1.parquet", rows=150, seed=3)
    wait_until(lambda: pipeline.events(DOWNLOAD_WATCHDOG, "source_changed"), LONG_S, "its new content")
    assert exit_code(["pause", str(pipeline.file)]) == 0
    wait_until(lambda: run.training.events("run_paused"), LONG_S, "the pause")
    assert exit_code(["resume", str(pipeline.file)]) == 0
    make_pipeline(tmp_path, **settings, supervise__hang_limit="17m")
    assert exit_code(["reload", str(pipeline.file)]) == 0
    run.process.send_signal(signal.SIGINT)
    assert run.process.wait(LONG_S) == 0
    make_pipeline(tmp_path, **settings | {"train__steps": run.training.last_step() + 20})
    run = started(pipeline, "--until-done", "--quiet")
    first: dict[str, str] = {}
    last: dict[str, str] = {}

    def is_over() -> bool:
        for daemon in DAEMONS:
            if page := scraped(run.layout.lock(daemon)):
                first.setdefault(daemon, page)
                last[daemon] = page
        return run.process.poll() is not None

    wait_until(is_over, LONG_S, "the end of the run")
    for daemon in DAEMONS:
        assert series(last[daemon]) == series(first[daemon]) != set()
        if promtool := shutil.which("promtool"):
            said = subprocess.run(
                [promtool, "check", "metrics"], check=False, input=last[daemon].encode(), capture_output=True
            )
            assert (said.returncode, said.stdout + said.stderr) == (0, b"")
    assert 'stoker_train_restarts_total{class="finished"} 1.0' in last[TRAIN_SUPERVISOR]
    count = re.search(r"^stoker_train_step_seconds_count (\d+)", last[TRAIN_SUPERVISOR], re.MULTILINE)
    assert count and int(count[1]) > 0

    told = [event for daemon in DAEMONS for event in pipeline.events(daemon) if event["level"] != "info"]
    assert told == [] == re.findall(r"^\d\d:\d\d:\d\d .*", run.said(), re.MULTILINE)
    for daemon in DAEMONS:
        log = (pipeline.pipeline.runtime.root / "log" / f"{daemon}.log").read_text()
        assert re.findall(r".* level=(?!info).*", log) == []


def scraped(lock: Path) -> str:
    """Returns the page of the daemon that holds a lock; "" while there is none."""
    holder = read_holder(lock)
    if holder is None or "metrics" not in holder.extra:
        return ""
    try:
        with urllib.request.urlopen(f"http://{holder.extra['metrics']}/metrics", timeout=LONG_S) as answer:
            page: bytes = answer.read()
    except OSError:  # it has just ended
        return ""
    return page.decode()


def series(page: str) -> set[str]:
    return {line.rsplit(" ", 1)[0] for line in page.splitlines() if not line.startswith("#")}


def test_a_second_one_names_the_first_and_a_killed_daemon_comes_back_and_ctrl_c_saves(
    tmp_path: Path, started: Any
) -> None:
    pipeline = pipeline_of_text(tmp_path / "held", train__steps=100_000)
    run = started(pipeline)
    run.training.wait_for_step(3, timeout_s=90)

    second = started(pipeline)
    assert second.process.wait(LONG_S) == 75
    assert f"pid {run.process.pid}" in second.said()

    log = pipeline.pipeline.runtime.root / "log" / f"{TRAIN_SUPERVISOR}.log"
    with log.open("ab") as stream:
        stream.write(b"a line of many\n" * (LOG_BYTES // 15 + 1))
    wait_until(lambda: log.stat().st_size < LOG_BYTES, what="the full log to be moved aside")
    assert log.with_suffix(".log.1").read_bytes().count(b"a line of many\n") > LOG_BYTES // 15

    killed = run.daemon(STAGE_SHARD)
    assert killed is not None
    signal_process(killed, signal.SIGKILL)
    wait_until(lambda: (back := run.daemon(STAGE_SHARD)) and back != killed, what="the daemon's return")

    everyone = [*children_tree(run.process.pid), *run.everyone()]
    run.process.send_signal(signal.SIGINT)
    assert run.process.wait(LONG_S) == 0
    wait_gone(everyone, ENDING_S)
    assert run.training.checkpoints()[-1] == f"step-{run.training.last_step():09d}"
    said = run.said()
    for words in (
        "file_verified path=0.parquet cached=false",
        "source_quarantined path=1.parquet reason=page_corrupt",
        "stage_shard was killed by SIGKILL\n",
        f"checkpoint  step {run.training.last_step()}: ",
    ):
        assert words in said
    assert "\x1b" not in said


def test_when_it_is_killed_nothing_outlives_it_and_the_trainer_saved(
    shard_sets: Path, tmp_path: Path, started: Any
) -> None:
    pipeline = pipeline_of_sets(shard_sets, tmp_path / "killed", train__steps=100_000)
    run = started(pipeline)
    run.training.wait_for_step(3, timeout_s=90)
    everyone = run.everyone()
    run.process.kill()
    run.process.wait(LONG_S)
    wait_gone(everyone)
    assert run.training.checkpoints()[-1] == f"step-{run.training.last_step():09d}"


def test_it_ends_after_what_a_killed_supervisor_left_and_kills_that_when_it_is_told_again(
    shard_sets: Path, tmp_path: Path, started: Any
) -> None:
    """As process 1 of a container it would take the rest with it."""
    pipeline = pipeline_of_sets(shard_sets, tmp_path / "left", train__steps=100_000)
    run = started(pipeline)
    run.training.wait_for_step(3, timeout_s=90)
    (guard,) = run.training.guards()
    os.kill(guard.pid, signal.SIGSTOP)
    supervisor = run.daemon(TRAIN_SUPERVISOR)
    signal_process(supervisor, signal.SIGKILL)
    run.process.send_signal(signal.SIGTERM)
    wait_until(lambda: not any(map(run.daemon, DAEMONS)), what="the daemons' end")
    with pytest.raises(subprocess.TimeoutExpired):
        run.process.wait(1.5)
    run.process.send_signal(signal.SIGTERM)
    assert run.process.wait(ENDING_S) == 0
    assert not run.everyone()


def test_a_daemon_that_runs_already_stops_all_with_75(tmp_path: Path, started: Any) -> None:
    pipeline = make_pipeline(tmp_path / "daemon")
    daemon = pipeline.start(TRAIN_SUPERVISOR)
    try:
        run = started(pipeline)
        assert run.process.wait(LONG_S) == 75
        assert f"pid {daemon.pid}" in run.said()
        assert [run.daemon(name) is not None for name in DAEMONS] == [False, False, True]
    finally:
        assert daemon.stop() == 0


def test_a_misspelt_key_exits_78_and_is_told_the_right_one(tmp_path: Path, started: Any) -> None:
    pipeline = make_pipeline(tmp_path / "misspelt")
    pipeline.file.write_text(pipeline.file.read_text().replace("global_batch", "globl_batch"))
    run = started(pipeline)
    assert run.process.wait(LONG_S) == 78
    assert "global_batch" in run.said()


def test_a_run_that_fails_ends_it_with_the_reason(shard_sets: Path, tmp_path: Path, started: Any) -> None:
    pipeline = pipeline_of_sets(shard_sets, tmp_path / "hopeless", train__seq_len=100_000)
    run = started(pipeline, "--until-done")
    assert run.process.wait(LONG_S) == 65, run.said()
    assert "fewer than one window" in run.said()
    wait_gone(run.everyone(), ENDING_S)


def test_training_by_hand_is_the_one_supervisor_and_ends_where_it_is_told(
    shard_sets: Path, tmp_path: Path, started: Any
) -> None:
    pipeline = pipeline_of_sets(shard_sets, tmp_path / "by-hand", train__steps=100_000)
    run = started(pipeline, command="train")
    run.training.wait_for_step(3, timeout_s=90)
    supervisor = run.daemon(TRAIN_SUPERVISOR)
    assert supervisor is not None

    second, daemon = started(pipeline, command="train"), run.training.once()
    assert second.process.wait(LONG_S) == daemon.returncode == 75
    assert f"train_supervisor (pid {supervisor.pid}, since" in second.said()
    assert f"train_supervisor (pid {supervisor.pid}, since" in daemon.stderr
    assert run.process.poll() is None

    run.process.send_signal(signal.SIGINT)
    assert run.process.wait(LONG_S) == 0
    reached = run.training.last_step()
    assert run.training.checkpoints()[-1] == f"step-{reached:09d}"
    for words in (f"step        {reached} of 100,000\n", f"checkpoint  step {reached}: ", "trainer_launched"):
        assert words in run.said()

    until = reached + 7
    again = started(pipeline, "--until", str(until), command="train")
    assert again.process.wait(LONG_S) == 0, again.said()
    assert run.training.checkpoints()[-1] == f"step-{until:09d}"
    assert [event["resume_step"] for event in run.training.events("trainer_launched")] == [0, reached]
    assert run.training.last_step() == until
    wait_gone(run.everyone(), ENDING_S)
