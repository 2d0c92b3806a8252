"""`stoker doctor` on a real pipeline: nothing is found where nothing is wrong, else each planted fault.

Mounts that hang and disks that are full are in mounted_disks.py.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import subprocess
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from stoker.cli.main import exit_code
from stoker.store.layout import DOWNLOAD_WATCHDOG, STAGE_SHARD, TRAIN_SUPERVISOR
from stoker.store.log import ChainedLog
from stoker.store.record import utc_now
from support.audits import STOKER
from support.checkpoint_data import seal
from support.fake_nvml import FakeDriver
from support.pipelines import DataPipeline, Template

# In a user namespace of its own a limit holds for nobody else.
NAMESPACE = ["unshare", "--user", "--map-root-user", "sh", "-c"]
LOWERED = 'echo 2 > /proc/sys/user/max_inotify_instances && ulimit -n 200 && exec "$@"'
SECRETS = {
    "environment": "planted-in-environment",
    "url": "planted-in-url",
    "query": "planted-in-query",
    "bearer": "planted-as-bearer",
    "log": "planted-in-log",
    "status": "planted-in-status",
    "run": "planted-in-run",
    "person": "planted-person",
}


def test_a_healthy_pipeline_at_work_has_no_finding(
    drained: Template, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = drained.copy(tmp_path, train__schedule={"warmup_steps": 2})
    seal(data.pipeline.layout.run("main").checkpoints, 5)
    daemon = data.start(STAGE_SHARD)
    try:
        code = exit_code(["doctor", str(data.file)])
    finally:
        daemon.stop()
    lines = capsys.readouterr().out.splitlines()
    assert (code, [line for line in lines if not line.startswith("ok ")]) == (0, [])
    assert len(lines) == 13


def test_each_planted_fault_is_found_and_nothing_else_and_the_bundle_tells_no_secret(
    drained: Template, tmp_path: Path
) -> None:
    lowered = shutil.which("unshare") and subprocess.run(
        [*NAMESPACE, LOWERED, "sh", "true"], check=False, capture_output=True
    )
    if not lowered or lowered.returncode:
        pytest.skip("no user namespace here, in which a limit can be lowered: be root, or allow them")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        data = drained.copy(tmp_path, metrics__ports={"download": 0, "shard": port, "train": 0})
        plant(data)
        driver = FakeDriver(tmp_path / "nvml")
        driver.cards(1)
        bundle = tmp_path / "bundle.tar.gz"
        environ = {**os.environ, **driver.environ, "XDG_CONFIG_HOME": str(tmp_path / "units")}
        environ |= {"HF_TOKEN": "no token", "HOME": str(tmp_path), "SERVICE_TOKEN": SECRETS["environment"]}
        command = [STOKER, "doctor", str(data.file), "--json", "--bundle", str(bundle)]
        ended = subprocess.run(
            [*NAMESPACE, LOWERED, "sh", *command],
            capture_output=True,
            text=True,
            env=environ,
            timeout=60,
            check=False,
        )
    assert ended.returncode == 2, ended.stderr
    report = json.loads(ended.stdout)
    assert (report["v"], report["pipeline"]) == (1, "data")
    found: dict[tuple[str, str], list[str]] = {}
    for row in report["checks"]:
        if row["outcome"] != "ok":
            assert row["do"]
            found.setdefault((row["outcome"], row["name"]), []).append(row["what"])
    assert {key: len(what) for key, what in found.items()} == {
        ("broken", "clock"): 1,
        ("broken", "metrics"): 1,
        ("broken", "open files"): 1,
        ("warning", "config"): 1,
        ("warning", "gpus"): 1,
        ("warning", "inotify"): 1,
        ("warning", "logs"): 1,
        ("warning", "permissions"): 1,
        ("warning", "units"): 6,
    }
    assert f"port {port} on 127.0.0.1 is taken" in found["broken", "metrics"][0]
    assert "train_supervisor.json was written" in found["broken", "clock"][0]
    assert found["warning", "inotify"] == ["2 inotify instances of 2 are left for root"]
    assert "process 4000000 holds" in found["warning", "gpus"][0]
    assert "download_watchdog.jsonl: line 3" in found["warning", "logs"][0]
    assert "warmup_steps" in found["warning", "config"][0]
    outcomes = [row["outcome"] for row in report["checks"]]
    assert outcomes == sorted(outcomes, key=["broken", "warning", "ok"].index)
    told_in(bundle, data, ended.stderr)


def plant(data: DataPipeline) -> None:
    """What is wrong with the state, and what is to be kept secret."""
    layout, home = data.pipeline.layout, data.home
    log = ChainedLog(layout.events(STAGE_SHARD))
    event = {"event": "source_proven", "time": utc_now(), "seq": 10**6, "level": "info"}
    address = f"https://me:{SECRETS['url']}@host/x?sig={SECRETS['query']}"
    log.append({**event, "reason": f"{address} Bearer {SECRETS['bearer']} {SECRETS['environment']}"})
    log.close()
    log = ChainedLog(layout.events(DOWNLOAD_WATCHDOG))
    for number in range(3):
        log.append({**event, "seq": number})
    log.close()
    lines = layout.events(DOWNLOAD_WATCHDOG).read_text().replace('"seq":1,', '"seq":7,')
    layout.events(DOWNLOAD_WATCHDOG).write_text(lines)
    future = layout.ledger(TRAIN_SUPERVISOR)
    future.write_bytes(layout.ledger(STAGE_SHARD).read_bytes())
    os.utime(future, (time.time() + 10 * 86_400,) * 2)
    data.pipeline.state.chmod(0o757)
    files = home / "units" / "stoker"
    files.mkdir(parents=True)
    (files / data.file.name).symlink_to(data.file)
    runtime = home / "runtime"
    (runtime / "log").mkdir(parents=True)
    (runtime / "status").mkdir()
    (runtime / "log" / f"{STAGE_SHARD}.log").write_text(f"--password {SECRETS['log']}\n")
    status = {"text": f"/home/{SECRETS['person']}/x", "api_key": SECRETS["status"], "exit_code": 0}
    (runtime / "status" / f"{STAGE_SHARD}.json").write_text(json.dumps(status))
    layout.lock(STAGE_SHARD).write_text(json.dumps({"runtime": str(runtime), "since": utc_now()}) + "\n")
    run = layout.run(data.pipeline.train.run)
    run.create()
    (run.root / "run.json").write_text(f'{{"v": 1, "secret": "{SECRETS["run"]}"}}')


def told_in(bundle: Path, data: DataPipeline, said: str) -> None:
    """Look through the bundle: whole, without a secret, without a home directory."""
    assert stat.S_IMODE(bundle.stat().st_mode) == 0o600
    assert said.startswith(f"wrote {bundle}; ")
    with tarfile.open(bundle) as tar:
        members = {name: read(tar, name) for name in tar.getnames()}
    names = "doctor.json config.yaml versions.txt status.json events.jsonl logs.txt run.json"
    assert list(members) == [f"stoker-data/{name}" for name in names.split()]
    for name, text in members.items():
        leaked = [word for word in (*SECRETS.values(), str(data.home)) if word in text]
        assert leaked == [], f"{name}: {text}"
        assert text and not text.startswith("not to be had"), name
    assert members["stoker-data/events.jsonl"].count("********") == 4
    assert "~/x" in members["stoker-data/status.json"]
    for name in ("doctor.json", "status.json"):
        json.loads(members[f"stoker-data/{name}"])
    before = bundle.read_bytes()
    assert exit_code(["doctor", str(data.file), "--bundle", str(bundle)]) == 64
    assert bundle.read_bytes() == before


def read(tar: tarfile.TarFile, name: str) -> str:
    member: Any = tar.extractfile(name)
    return str(member.read().decode())
