"""A minute in the life of a pipeline, as Prometheus sees it: a bad file, a killed trainer, a rollback.

The machine seems to have one GPU, which is well.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from stoker.kit.process import signal_process
from support.fake_nvml import FakeDriver
from support.parquet import flip_page, write_fineweb
from support.pipelines import make_pipeline
from support.processes import kill_tree
from support.prometheus import Prometheus, node_exporter
from support.training import SLOW_ENOUGH, TrainPipeline
from support.waiting import LONG_S, wait_until

STOKER = str(Path(sys.executable).parent / "stoker")
PIPELINE = "live"
BACK_TO = 20
SLOWLY = {
    "STOKER_TEST_STEP_S": "0.08"
}  # a checkpoint each 20 steps, and its copies, cost more than the steps
# Seen once the scenario is over: each fault is in what Prometheus keeps.
FAULTS = (
    'increase(stoker_events_total{event="source_quarantined"}[2m]) > 0',
    'increase(stoker_train_restarts_total{class="killed"}[2m]) > 0',
    "increase(stoker_train_rollbacks_total[2m]) > 0",
    "stoker_train_timeline == 1",
    "stoker_checkpoint_mirrored_step > 0",
    'stoker_shard_sources{state="released"} == 2',
)


def make_live_scenario(home: Path) -> None:
    """Run it below `home`: the data of its Prometheus in prometheus/data, the rest in scenario.json."""
    run, driver = _pipeline(home), FakeDriver(home / "nvml")
    driver.cards(1, clocks=0, ecc="0 0", remap=0)
    with tempfile.TemporaryDirectory(prefix="stoker-live-") as runtime:
        targets = Path(runtime) / "targets"
        exporter, pipeline = node_exporter(home / "node"), None
        try:
            with Prometheus(home / "prometheus", targets=targets, node=exporter.address) as prometheus:
                with run.trainer(), (home / "printed").open("wb") as printed:
                    pipeline = subprocess.Popen(
                        [STOKER, "run", str(run.data.file)],
                        stdin=subprocess.DEVNULL,
                        stdout=printed,
                        stderr=printed,
                        env={**os.environ, **driver.environ, "RUNTIME_DIRECTORY": runtime, **SLOWLY},
                    )
                prometheus.wait_for('count(up{job="stoker"} == 1) == 3')
                began = time.time()
                _faults(run)
                for expr in FAULTS:
                    prometheus.wait_for(expr)
                prometheus.wait_for(f"vector(time() - {began}) > 12")  # for what is a rate over some seconds
                told = {"began": began, "ended": time.time(), "rules": prometheus.rules()}
                told["names"] = sorted(prometheus.metric_names())
            # Prometheus has ended first: it never saw the daemons stop, and answers about them as of now.
            pipeline.send_signal(signal.SIGINT)
            assert pipeline.wait(LONG_S) == 0, (home / "printed").read_text()
        finally:
            exporter.end()
            if pipeline is not None and pipeline.poll() is None:
                kill_tree(pipeline.pid)
                pipeline.wait()
    (home / "scenario.json").write_text(json.dumps(told))


def _pipeline(home: Path) -> TrainPipeline:
    data = make_pipeline(
        home,
        PIPELINE,
        warm=str(home / "warm"),
        shard__release="after_sync",
        train__steps=100_000,
        train__seq_len=64,
        train__global_batch=4,
        train__model=SLOW_ENOUGH,
        train__evaluate={"every_steps": 50, "tokens": 512},
        train__checkpoint={"every": "30m", "every_steps": BACK_TO, "keep_every": BACK_TO},
        supervise__stop_time="20s",
        supervise__backoff={"first": "0.1s", "most": "0.2s"},
    )
    for number in range(2):
        write_fineweb(data.source / f"{number}.parquet", rows=150, seed=number)
    return TrainPipeline(data)


def _faults(run: TrainPipeline) -> None:
    bad = run.data.home / "bad.parquet"
    write_fineweb(bad, rows=150, seed=7)
    flip_page(bad, 1)
    bad.rename(run.data.source / "bad.parquet")
    signal_process(run.wait_for_step(3 * BACK_TO), signal.SIGKILL)
    run.wait_for_step(run.last_step() + BACK_TO)
    command = [STOKER, "rollback", str(run.data.file), str(BACK_TO)]
    subprocess.run(command, check=True, capture_output=True, timeout=LONG_S)
    wait_until(lambda: run.events("rolled_back"), what="the rollback")
    wait_until(lambda: run.data.states().get("bad.parquet") == "quarantined", what="the quarantine")
