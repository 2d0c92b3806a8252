"""Files that do not come while a run trains: they are waited for a time, then it goes on without them."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from stoker.corpus.records.sources import PUBLISHED
from stoker.plan.log import Segment, read_plan
from stoker.store.layout import DOWNLOAD_WATCHDOG, STAGE_SHARD
from stoker.supervise.audit.audit import audit_run
from support.downloads import urls_pipeline
from support.fetch_fixtures import hub_fixture, served_hub_fixture  # noqa: F401 - found by their names
from support.loopback_hub import LoopbackHub
from support.mischief import Mischief
from support.parquet import write_fineweb
from support.processes import RunningDaemon
from support.training import TrainPipeline, make_training
from support.waiting import wait_until

FILES = 4
NEVER, SLOW = "001.parquet", "003.parquet"


@pytest.fixture
def mischief(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mischief:
    """What becomes of builds."""
    made = Mischief(tmp_path / "mischief")
    monkeypatch.setenv("PYTHONPATH", str(made.directory))
    return made


@pytest.fixture
def run(
    hub: LoopbackHub, mischief: Mischief, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> TrainPipeline:
    """A run over four URLs: one answers 500 for ever, the build of another stands still until SIGCONT."""
    for name in ("HF_TOKEN", "CREDENTIALS_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("STOKER_TEST_STEP_S", "0.03")
    mischief.plan("die", SLOW.removesuffix(".parquet"), signal.SIGSTOP)
    hub.fault("status", on="url", path=NEVER, times=-1)
    names = [write_fineweb(hub.root / f"urls/{n:03d}.parquet", rows=60, seed=n).name for n in range(FILES)]
    home = tmp_path / "home"
    urls_pipeline(home, [hub.url(name) for name in names])
    for part in ("state", "hot"):
        (home / part).mkdir()
    return make_training(
        home,
        home,
        dataset__source={"kind": "urls", "urls_file": str(home / "urls.txt")},
        tokenizer__train__train_bytes="10KB",
        shard__workers=2,  # one of them stands still
        train__steps=100_000,
        train__model={"layers": 1, "width": 32, "heads": 2, "kv_heads": 2, "ffn_width": 32},
        plan__hold="3s",
    )


def named(run: TrainPipeline) -> list[Counter[str]]:
    """How often each epoch of the plan names which file's set."""
    paths = {source.key: path for path, source in run.data.sources().items() if source.key}
    epochs: dict[int, Counter[str]] = {}
    for entry in read_plan(run.run.plan).entries:
        if isinstance(entry, Segment):
            epochs.setdefault(entry.epoch, Counter()).update(paths[key] for key, _ in entry.sets)
    return [epochs[epoch] for epoch in sorted(epochs)]


@pytest.mark.long  # test_plan_growth proves when the plan waits for a source and when no longer
def test_a_file_that_never_comes_and_one_that_is_slow_hold_the_run_up_for_a_time_only(
    run: TrainPipeline, mischief: Mischief
) -> None:
    others = {f"{n:03d}.parquet" for n in range(FILES)} - {NEVER, SLOW}
    daemons: list[RunningDaemon] = []
    try:
        daemons += [run.data.start(DOWNLOAD_WATCHDOG), run.data.start(STAGE_SHARD)]
        wait_until(
            lambda: {path for path, state in run.data.states().items() if state in PUBLISHED} == others,
            what="the other sets",
        )
        supervisor = run.start()
        wait_until(run.run.waiting.exists, what="the record of what is waited for")
        supervisor.kill()
        daemons.append(run.start())
        wait_until(lambda: len(named(run)) > 1, what="another epoch")
        assert named(run)[0] == Counter(others)
        for _, builder in mischief.tries(SLOW.removesuffix(".parquet")):
            os.kill(builder, signal.SIGCONT)
        wait_until(lambda: SLOW in named(run)[-1], what="the slow one to join")
    finally:
        for daemon in reversed(daemons):
            daemon.stop()
    assert all(max(epoch.values()) == 1 and NEVER not in epoch for epoch in named(run))
    assert audit_run(run.data.pipeline).findings == ()
    assert [event["path"] for event in run.events("source_passed_over")] == [NEVER, SLOW]
