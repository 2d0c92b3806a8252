"""`stoker run`: the pipeline in the foreground, from parquet to a trained run; `stoker train`; their ends."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.cli.main import exit_code
from stoker.cli.pipeline.run import LOG_BYTES
from stoker.kit.lock import read_holder
from stoker.kit.process import ProcessId, signal_process
from stoker.store.layout import DAEMONS, DOWNLOAD_WATCHDOG, STAGE_SHARD, TRAIN_SUPERVISOR
from support.external_trainer import make_external
from support.halting import halts_at, wait_halted
from support.parquet import flip_page, write_fineweb
from support.pipelines import DataPipeline, make_pipeline
from support.processes import ENDING_S, wait_gone
from support.stoker_command import MARK, STOKER, StokerCommand
from support.terminal import Screen, run_on_terminal
from support.training import SLOW_ENOUGH, TrainPipeline, make_training, meanwhile
from support.waiting import LONG_S, wait_until


class StokerRun(StokerCommand):
    """`stoker run` or `train` of a pipeline."""

    def __init__(self, pipeline: DataPipeline, *options: str, command: str = "run") -> None:
        self.training = TrainPipeline(pipeline)
        self.layout = pipeline.pipeline.layout
        with self.training.trainer():
            super().__init__(pipeline.home / "printed", command, str(pipeline.file), *options)

    def daemon(self, name: str) -> ProcessId | None:
        """The live daemon of that name."""
        holder = read_holder(self.layout.lock(name))
        try:
            return ProcessId.of(holder.pid) if holder and holder.pid else None
        except ProcessLookupError:
            return None


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
    "train__steps": 100_000,
    "train__seq_len": 64,
    "train__global_batch": 4,
    "train__model": SLOW_ENOUGH,
    "train__schedule": {"warmup_steps": 10},
    "train__start_when": {"tokens": "1000", "shard_sets": 1},
    "train__evaluate": {"every_steps": 20, "tokens": 512},
    "train__checkpoint": {"every": None, "every_steps": 20},
    "supervise__stop_time": "20s",
    "supervise__backoff": {"first": "0.1s", "most": "0.2s"},
}


@pytest.fixture(autouse=True)
def slow_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that nobody waits for makes few checkpoints."""
    monkeypatch.setenv("STOKER_TEST_STEP_S", "0.05")


def test_a_folder_of_parquet_becomes_a_finished_run_without_a_warning_or_a_series_that_appears_later(
    tmp_path: Path, started: Any
) -> None:
    """Another file, a changed one, a pause, a stop, a restart and the run's end, on a terminal.

    An increase() misses a counter that is born at 1.
    """
    pipeline = make_pipeline(tmp_path, **SETTINGS)
    write_fineweb(pipeline.source / "0.parquet", rows=150)
    run = started(pipeline, "--quiet")
    training = run.training
    wait_until(training.checkpoints, LONG_S, "a checkpoint")
    write_fineweb(pipeline.source / "1.parquet", rows=150, seed=2)
    wait_until(lambda: pipeline.states().get("1.parquet") == "released", LONG_S, "the other file's set")
    write_fineweb(pipeline.source / "1.parquet", rows=150, seed=3)
    wait_until(lambda: pipeline.events(DOWNLOAD_WATCHDOG, "source_changed"), LONG_S, "its new content")
    assert exit_code(["pause", str(pipeline.file)]) == 0
    wait_until(lambda: training.events("run_paused"), LONG_S, "the pause")
    assert exit_code(["resume", str(pipeline.file)]) == 0
    run.process.send_signal(signal.SIGINT)
    assert run.process.wait(LONG_S) == 0
    reached = training.last_step()
    assert f"step        {reached} of 100,000\n" in run.said()
    assert re.findall(r"^\d\d:\d\d:\d\d .*", run.said(), re.MULTILINE) == [], "warnings"

    last_step = reached + 20
    make_pipeline(tmp_path, **SETTINGS | {"train__steps": last_step})
    first: dict[str, str] = {}
    last: dict[str, str] = {}

    def scrape() -> None:
        for daemon in DAEMONS if len(first) < len(DAEMONS) or training.record().get("finished") else ():
            if page := scraped(run.layout.lock(daemon)):
                first.setdefault(daemon, page)
                last[daemon] = page

    with training.trainer(), meanwhile(scrape, 0.05):
        command = [STOKER, "run", str(pipeline.file), "--until-done"]
        code, screen = run_on_terminal(command, columns=60, environ={MARK: run.mark})
    assert code == 0, screen.lines
    are_of_the_same_series(first, last)
    assert [e for daemon in DAEMONS for e in pipeline.events(daemon) if e["level"] != "info"] == []
    for daemon in DAEMONS:
        log = (pipeline.pipeline.runtime.root / "log" / f"{daemon}.log").read_text()
        assert re.findall(r".* level=(?!info).*", log) == []
    assert training.record()["finished"] == "steps"
    assert training.checkpoints()[-1] == f"step-{last_step:09d}"
    assert set(pipeline.states().values()) == {"released"}
    wait_gone(run.everyone(), ENDING_S)
    assert exit_code(["audit", str(pipeline.file)]) == 0
    shows_the_run(screen, training, last_step)


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


def are_of_the_same_series(first: dict[str, str], last: dict[str, str]) -> None:
    """The first page and the last one of each daemon of a run that is over."""
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


def shows_the_run(screen: Screen, training: TrainPipeline, last_step: int) -> None:
    """Sentences, the live lines below them, and at the end the summary."""
    told = [line for line in screen.lines if str(training.data.home) not in line]
    assert max(map(len, told)) < 60 > max(map(len, screen.footers))
    assert f"of step {last_step} is proven whole" in " ".join(line[9:].strip() for line in told)
    assert not any("=" in line for line in told), "key=value is for files and pipes"
    for live in (
        r"download 2/2 files  100.0 %",
        r"shard    2/2 files",
        rf"train    (training: step \d+ of {last_step}  loss|finished: steps)",  # it may be over in a second
    ):
        assert any(re.match(live, line) for line in screen.footers), screen.footers
    assert screen.styled
    summary = {line.split()[0]: line.partition(" ")[2].strip() for line in screen.lines[-6:]}
    assert list(summary) == ["finished", "step", "loss", "tokens", "checkpoint", "try"]
    assert (summary["step"], summary["tokens"]) == (
        f"{last_step} of {last_step}",
        f"{last_step * 4 * 64:,} trained on",
    )
    assert re.fullmatch(rf"training \d\.\d{{4}}, held-out \d\.\d{{4}} at step {last_step}", summary["loss"])
    _, program, *words = shlex.split(summary["try"])  # by its name alone where it is on the path
    assert Path(program).name == "stoker"
    newest = training.run.checkpoints / f"step-{last_step:09d}"
    assert words[:3] == ["checkpoint", "generate", str(newest)]


def test_a_second_one_names_the_first_and_a_killed_daemon_comes_back_and_nothing_outlives_its_own_kill(
    shard_sets: Path, tmp_path: Path, started: Any
) -> None:
    pipeline = make_training(shard_sets, tmp_path, **SETTINGS).data
    shutil.copytree(shard_sets / "source", pipeline.source, dirs_exist_ok=True)
    pipeline.receive()
    shutil.copy(pipeline.source / "0.parquet", pipeline.source / "2.parquet")
    flip_page(pipeline.source / "2.parquet", 1)
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
    for words in (
        "file_verified path=2.parquet cached=false",
        "stage_shard was killed by SIGKILL\n",
        "source_quarantined path=2.parquet reason=page_corrupt",
    ):
        wait_until(lambda words=words: words in run.said(), what=words)
    assert "\x1b" not in run.said()

    everyone = run.everyone()
    run.process.kill()
    run.process.wait(LONG_S)
    wait_gone(everyone)
    assert run.training.checkpoints()[-1] == f"step-{run.training.last_step():09d}"


def test_what_a_killed_supervisor_left_is_awaited_and_then_killed(tmp_path: Path, started: Any) -> None:
    """As process 1 of a container it would take the rest with it."""
    run = started(make_external(tmp_path, "import time; time.sleep(600)").data)
    (guard,) = wait_until(lambda: run.training.processes()[1:] and run.training.guards(), what="a trainer")
    os.kill(guard.pid, signal.SIGSTOP)
    signal_process(run.daemon(TRAIN_SUPERVISOR), signal.SIGKILL)
    run.process.send_signal(signal.SIGTERM)
    wait_until(lambda: run.daemon(TRAIN_SUPERVISOR) is None, what="the daemon's end")
    with pytest.raises(subprocess.TimeoutExpired):
        run.process.wait(1.5)
    run.process.send_signal(signal.SIGTERM)
    assert run.process.wait(ENDING_S) == 0
    assert not run.everyone()


def test_a_misspelt_key_exits_78_and_is_told_the_right_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline = make_pipeline(tmp_path)
    pipeline.file.write_text(pipeline.file.read_text().replace("global_batch", "globl_batch"))
    assert exit_code(["run", str(pipeline.file)]) == 78
    assert "global_batch" in capsys.readouterr().err


def test_training_by_hand_is_the_one_supervisor_and_ends_where_it_is_told(
    shard_sets: Path, tmp_path: Path, started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = {"dataset__source__path": str(shard_sets / "source")}
    pipeline = make_training(shard_sets, tmp_path, **SETTINGS, **source).data
    for name, value in halts_at(tmp_path / "halts", [5]).items():
        monkeypatch.setenv(name, value)
    run = started(pipeline, "--until", "27", command="train")
    trainer = run.training.wait_for_step(5, timeout_s=90)
    wait_halted(trainer.pid)
    supervisor = run.daemon(TRAIN_SUPERVISOR)
    assert supervisor is not None
    for number, command in enumerate(("train", "run")):  # the other daemons of the latter end with it
        other = started(pipeline, command=command)
        assert other.process.wait(LONG_S) == 75
        assert other.said().count(f"(pid {supervisor.pid}, since") == number + 1
    assert [run.daemon(name) for name in DAEMONS] == [None, None, supervisor]
    signal_process(trainer, signal.SIGCONT)

    assert run.process.wait(LONG_S) == 0, run.said()
    assert run.training.checkpoints()[-1] == "step-000000027"
    assert run.training.last_step() == 27
    for words in ("step        27 of 100,000\n", "checkpoint  step 27: ", "trainer_launched"):
        assert words in run.said()
    assert len(run.training.events("trainer_launched")) == 1
    wait_gone(run.everyone(), ENDING_S)
