"""A trainer of the user's own under the supervisor, without data: launched, restarted, stopped, finished."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from stoker.store.layout import DAEMONS
from stoker.store.record import read_record
from stoker.supervise.audit.audit import audit_run
from support.external_trainer import make_external
from support.pipelines import make_pipeline
from support.training import TrainPipeline, make_training
from support.waiting import wait_until

# Tells in a file how each launch was started; prints steps, and ends as the next of its words says.
TELLS = """
import json, os, sys
import beside
with open("launches.jsonl", "a") as told:
    told.write(json.dumps({"argv": sys.argv[1:], "cwd": os.getcwd(), "environ": dict(os.environ)}) + "\\n")
launches = len(open("launches.jsonl").readlines())
for n in range(0, 50, 10):
    print(f"iter {n}: loss {4.0 - n / 50 + launches}, time 5.00ms, mfu -100.00%")
    if n == 20:
        print(f"step {n}: train loss 3.1, val loss {3.2 + launches}")
    if n == 30 and launches == 1:
        sys.exit(1)
if (word := sys.argv[1:][launches - 1]) == "piped":
    try:
        raise ValueError("its exit code is lost")
    except ValueError:
        import traceback
        traceback.print_exc()
        sys.exit(0)
sys.exit(int(word))
"""
STOKER = (sys.executable, "-c", "from stoker.cli.main import main; main()")
OURS = {"STOKER_NOTIFY_SOCKET", "STOKER_LAUNCH", "STOKER_RUN_DIR", "STOKER_MICRO_BATCH"}
OURS |= {"STOKER_PIPELINE", "STOKER_RESUME_FROM", "STOKER_RESUME_STEP", "PYTHONUNBUFFERED"}


def told(home: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (home / "launches.jsonl").read_text().splitlines()]


def test_it_runs_beside_its_modules_with_its_steps_and_losses_in_the_log_until_it_ends_with_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    monkeypatch.setenv("WATCHDOG_USEC", "1000000000")
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    home = tmp_path / "home"
    run = make_external(home, TELLS, "1", "piped", "0", train__external={"resume": ["--resume", "{path}"]})
    (home / "beside.py").touch()
    monkeypatch.chdir(tmp_path)
    ended = run.once()
    assert ended.returncode == 0, ended.stderr
    first, second, third = told(home)
    assert first["argv"] == second["argv"] == third["argv"] == ["1", "piped", "0"]
    assert first["cwd"] == str(home)
    environ = first["environ"]
    assert isinstance(environ, dict)
    assert {name for name in set(environ) - set(os.environ) if name.startswith(("STOKER", "PYTHON"))} == OURS
    assert not {"PYTHONSAFEPATH", "WATCHDOG_USEC"} & set(environ)
    assert environ["STOKER_RESUME_FROM"] == environ["STOKER_MICRO_BATCH"] == ""
    assert [one["exit_class"] for one in run.events("trainer_exited")] == [
        "crashed",
        "finished_short",
        "finished",
    ]
    record = run.record()
    assert (record["state"], record["finished"], record["launches"]) == ("finished", "trainer", 3)
    assert "command" not in read_record(run.run.launch)
    assert [one["step"] for one in run.events("trainer_exited")] == [30, 40, 40]
    rows = [json.loads(line) for line in run.run.metrics.read_text().splitlines()]
    assert all(row.pop("time") and row.pop("timeline") == 0 for row in rows)
    # Each launch began again: the last one's rows replace the others'.
    assert rows == [
        *({"step": n, "loss": 7.0 - n / 50} for n in (0, 10, 20)),
        {"step": 20, "val_loss": 6.2},
        *({"step": n, "loss": 7.0 - n / 50} for n in (30, 40)),
    ]

    stoker = subprocess.run(
        [*STOKER, "run", str(run.data.file), "--until-done"], capture_output=True, text=True, check=False
    )
    assert stoker.returncode == 0, stoker.stderr
    assert stoker.stdout.endswith("ended by itself, without an error\nno checkpoint yet\n")
    started = [len(run.data.events(daemon, "daemon_started")) for daemon in DAEMONS]
    assert started == [0, 0, 2], "what has no work is not started by it"
    assert len(told(home)) == 3  # it stays finished


# Tells by the socket, as a client does, what each launch has in `launches`; ends as it says there.
SPEAKS = """
import json, os, signal, socket, sys, time
with open("launches.jsonl", "a") as told:
    told.write(json.dumps(os.environ["STOKER_MICRO_BATCH"]) + "\\n")
launch = len(open("launches.jsonl").readlines())
words, printed, code = json.load(open("launches.json"))[launch - 1]
words = "\\n".join([f"LAUNCH={os.environ['STOKER_LAUNCH']}", "PHASE=train", *words])
for more in ("", *(f"\\nWORD{n}=1" for n in range(30 * (launch == 1)))):
    told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    told.sendto((words + more).encode(), os.environ["STOKER_NOTIFY_SOCKET"])
print(printed, flush=True)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
if code is None:
    open("waits", "w").close()
    time.sleep(1e6)
sys.exit(code)
"""


def test_its_end_is_judged_by_its_words_and_its_output_and_a_finished_run_can_go_on(tmp_path: Path) -> None:
    home = tmp_path / "home"
    run = make_external(home, SPEAKS, train__steps=10)
    launches = [
        (["STEP=2", "MICRO_BATCH=8"], "torch.OutOfMemoryError: CUDA out of memory. Tried", 1),
        (["STEP=5", "MICRO_BATCH=4"], "", 0),
        (["STEP=10"], "", 0),
        (["STEP=10"], "", None),
    ]
    (home / "launches.json").write_text(json.dumps(launches))
    assert run.once().returncode == 0
    assert [one["exit_class"] for one in run.events("trainer_exited")] == [
        "gpu_memory",
        "finished_short",
        "finished",
    ]
    assert [one["words"] for one in run.events("words_unknown")] == [["WORD0"]], "one of thirty"
    assert [json.loads(line) for line in (home / "launches.jsonl").read_text().splitlines()] == ["", "4", "4"]

    run.data.file.write_text(run.data.file.read_text() + "quarantine: {keep_checkpoints: 7}\n")
    supervisor = run.start()  # a changed file begins it again, and a stop does not finish it
    wait_until((home / "waits").exists, what="the fourth launch")
    assert supervisor.stop() == 0
    assert [one["exit_class"] for one in run.events("trainer_exited")][3:] == ["stopped_as_asked"]
    assert (run.record()["state"], run.record()["fruitless"]) == ("running", 0)


def test_with_the_whole_protocol_the_built_in_trainer_itself_may_be_the_command(
    shard_sets: Path, finished: TrainPipeline, tmp_path: Path
) -> None:
    own = {"command": [sys.executable, "-m", "stoker.training.trainer"], "external": {"protocol": "full"}}
    keys = {f"train__{key}": value for key, value in own.items()}
    run = make_training(shard_sets, tmp_path / "home", train__steps=20, **keys)
    ended = run.once()
    assert ended.returncode == 0, ended.stderr
    assert run.checkpoints() == ["step-000000010", "step-000000020"]
    assert run.rows() == [row for row in finished.rows() if row["step"] <= 20]
    assert audit_run(run.data.pipeline).findings == ()


def test_with_a_dataset_it_waits_for_the_start_gate_and_is_told_where_the_shard_sets_are(
    shard_sets: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    for part in ("state", "hot"):
        shutil.copytree(shard_sets / part, home / part, symlinks=True)
    like = make_pipeline(tmp_path / "like").file.read_text()
    data = {
        key: value for key, value in yaml.safe_load(like).items() if key in ("dataset", "tokenizer", "shard")
    }
    sets = sorted(path.name for path in (home / "hot/shards/prose").iterdir())
    script = "import os; print(sorted(os.listdir(os.environ['STOKER_SHARDS'])))"
    run = make_external(home, script, name="data", hot="hot", train__start_when={"tokens": "1000"}, **data)
    supervisor = run.once()
    assert supervisor.returncode == 0, supervisor.stderr
    assert str(sets) in supervisor.stdout
    assert [one["message"] for one in run.events("start_gate_open")]
    assert audit_run(run.data.pipeline).findings == ()
