"""The train supervisor as a process: a run to its end, its refusals, its stop, bad checkpoints."""

from __future__ import annotations

import hashlib
import math
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from stoker.cli.main import exit_code
from stoker.cli.pipeline.status import report_lines
from stoker.kit.process import signal_process
from stoker.observe.status import read_status
from stoker.observe.verdict import Facts
from stoker.store.layout import DOWNLOAD_WATCHDOG, STAGE_SHARD, TRAIN_SUPERVISOR, StateLayout
from stoker.store.record import read_record, write_record
from stoker.supervise.run.launch_ends import read_ends
from support.checkpoint_data import DEEP, with_body
from support.processes import ENDING_S, wait_gone
from support.training import TrainPipeline, make_training
from support.waiting import wait_until


def test_a_run_left_in_peace_ends_with_its_horizon_and_its_books(finished: TrainPipeline) -> None:
    record, books = finished.record(), read_record(finished.run.consumed)
    assert (record["state"], record["finished"], record["launches"]) == ("finished", "steps", 1)
    assert finished.checkpoints() == ["step-000000040", "step-000000050", "step-000000060"]
    assert (books["step"], books["applied"], books["tokens"]) == (60, 240, 240 * 64)
    assert [row["step"] for row in finished.rows() if "loss" in row] == list(range(1, 61))
    assert evaluation(finished)["step"] == 60, "it was evaluated after its last checkpoint was sealed"
    assert told(finished, f", held-out {evaluation(finished)['val_loss']:.4f} at step 60")


def test_every_second_of_a_run_is_in_the_line_of_its_launch(finished: TrainPipeline) -> None:
    (one,), damage = read_ends(finished.run.runs)
    assert (one.exit_class, one.last_step, one.proven_step, damage) == ("finished", 60, 60, ())
    assert {"launch", "load", "steps", "save_stall", "proving"} <= one.seconds.keys()
    begun, ended = finished.events("trainer_launched")[0], finished.events("run_finished")[0]
    began, end = (datetime.fromisoformat(event["time"]).timestamp() for event in (begun, ended))
    assert one.wall_s == pytest.approx(end - began, abs=2.5)  # two times in whole seconds, and the gates


def test_the_commands_show_launches_and_checkpoints(
    finished: TrainPipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(["runs", str(finished.data.file)]) == 0
    summary, goodput, _, row = capsys.readouterr().out.splitlines()
    assert summary == "run main of data: 1 launched" and " % of " in goodput
    assert "  0-60  " in row and row.endswith(" finished")
    assert exit_code(["checkpoint", "list", str(finished.data.file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["40", "50", "60"]
    assert all(line.endswith("  proven") for line in lines[2:])
    assert f"  goodput            {goodput.split('goodput ')[1]}" in told(finished, "goodput").splitlines()


def copy_of(finished: TrainPipeline, home: Path, **changes: Any) -> TrainPipeline:
    return make_training(finished.data.home, home, **changes)


@pytest.mark.parametrize(
    ("flipped", "content"),
    [
        ("model-00001.safetensors", b""),
        pytest.param("SHA256SUMS", b'{"v":1}', marks=pytest.mark.long),
        pytest.param("plan.jsonl", b'{"best', marks=pytest.mark.long),
    ],
)
def test_a_run_goes_on_to_a_farther_horizon_over_a_flipped_bit_in_its_newest_checkpoint_and_a_lost_record(
    finished: TrainPipeline, tmp_path: Path, flipped: str, content: bytes
) -> None:
    told = tmp_path / "told"
    code = f'import os; open({str(told)!r}, "a").write(os.environ["STOKER_STEP"] + " ")'
    hook = shlex.join([sys.executable, "-c", code])
    run = copy_of(finished, tmp_path / "further", train__steps=70, train__on_checkpoint=hook)
    before = run.record()
    run.run.record.write_bytes(content)
    file = run.run.checkpoints / "step-000000060" / flipped
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0x10
    file.write_bytes(data)
    ended = run.once()
    assert ended.returncode == 0, ended.stderr
    assert "run.json" in [event["what"] for event in run.events("run_file_restored")]
    assert {key: run.record()[key] for key in ("run_id", "heldout", "seed")} == {
        key: before[key] for key in ("run_id", "heldout", "seed")
    }
    finding = run.events("checkpoint_quarantined")[0]
    assert finding["path"] == "checkpoints/step-000000060"
    assert flipped in finding["reason"] or flipped == "SHA256SUMS"
    assert (Path(finding["moved_to"]) / "step-000000060" / flipped).exists()
    assert "event=checkpoint_quarantined" in ended.stderr
    assert run.data.status(TRAIN_SUPERVISOR)["figures"]["quarantined"] == 1
    assert run.events("trainer_launched")[1]["resume_step"] == 50
    assert told.read_text().split()[-1] == "70"  # a supervisor with nothing else to do waits for it
    assert run.record()["finished"] == "steps"
    assert run.checkpoints()[-1] == "step-000000070"
    assert [row["step"] for row in run.rows() if "loss" in row] == list(range(1, 71))


def test_a_pause_seals_and_holds_over_restarts_and_a_stop_seals_a_checkpoint_of_the_step_that_was_reached(
    shard_sets: Path, tmp_path: Path
) -> None:
    only_at_the_end = {"every": None, "every_steps": 5000}
    run = make_training(shard_sets, tmp_path / "paused", train__steps=5000, train__checkpoint=only_at_the_end)
    daemon = run.start()
    try:
        run.wait_for_step(5)
        assert exit_code(["pause", str(run.data.file)]) == 0
        assert "stoker resume continues" in wait_until(lambda: told(run, "paused by uid"), what="the status")
        assert run.checkpoints() == [f"step-{run.last_step():09d}"]
        assert run.events("trainer_exited")[-1]["exit_class"] == "stopped_as_asked"
    finally:
        assert daemon.stop() == 0
    assert run.once().returncode == 75 and launches(run) == 1
    assert exit_code(["resume", str(run.data.file)]) == 0  # filed: nobody is there
    daemon = run.start()
    run.wait_for_step(run.last_step() + 1)
    assert (run.record()["state"], launches(run)) == ("running", 2)

    before, (guard,) = run.processes(), run.guards()
    signal_process(guard, signal.SIGSTOP)  # it takes its time to ask the trainer
    daemon.process.terminate()
    stopping = wait_until(lambda: told(run, "waiting for the trainer to save and end"), what="the new words")
    assert "tokens/s" not in stopping and "time left" not in stopping
    signal_process(guard, signal.SIGCONT)
    assert daemon.stop() == 0
    wait_gone(before, ENDING_S)
    assert run.checkpoints()[-1] == f"step-{run.last_step():09d}"
    assert run.events("trainer_exited")[-1]["exit_class"] == "stopped_as_asked"
    assert run.record()["state"] == "running"
    last = [row for row in run.rows() if "loss" in row][-1]
    lines = told(run, "train_supervisor").splitlines()
    assert f"  step               {last['step']} of 5,000 ({last['step'] / 50:.1f} %)" in lines
    loss, held_out = last["loss"], evaluation(run)
    assert (
        f"  loss               training {loss:.4f}, held-out {held_out['val_loss']:.4f} "
        f"at step {held_out['step']}"
    ) in lines
    sealed = f"  checkpoint         step-{last['step']:09d}"  # proven, too, where the stop left time for it
    assert {sealed, f"{sealed} (sealed, not proven yet)"} & {*lines}, lines


def told(run: TrainPipeline, words: str) -> str:
    """What `stoker status` says now, once that has these words."""
    text = "\n".join(report_lines(Facts("data", "FILE", read_status(run.data.pipeline.layout))))
    return text if words in text else ""


def evaluation(run: TrainPipeline) -> dict[str, Any]:
    return [row for row in run.rows() if "val_loss" in row][-1]


def test_a_run_that_waits_for_data_says_what_for_and_since_when_and_ends_where_all_is_known_and_read(
    shard_sets: Path, tmp_path: Path
) -> None:
    run = make_training(
        shard_sets,
        tmp_path / "waits",
        train__steps=5000,
        train__seq_len=512,
        train__global_batch=16,
        train__model={"layers": 1, "width": 32, "heads": 2, "kv_heads": 2, "ffn_width": 32},
        train__evaluate={"every_steps": None, "tokens": 0},
        train__checkpoint={"every": "0.3s"},
        plan={"segment_tokens": 2000, "hold": "0.5s", "epochs": 1},
        supervise__hang_limit="2s",  # the wait is longer, and no hang
        supervise__no_progress_launches=100,  # where loading takes as long
    )
    pin = run.data.pin()
    more = replace(pin, listing=(*pin.listing, "late.parquet"), complete=False, whole=False)
    write_record(run.data.pipeline.layout.dataset("prose"), more.to_record())
    daemon = run.start()
    try:
        waiting = wait_until(lambda: long_waits(run), what="the event of a long wait")[0]
        assert waiting["level"] == "info"
        words = f"waiting for data: late.parquet, since {waiting['since']}: step {run.last_step()} of"
        text = wait_until(lambda: told(run, words), what="the wait in the status")
        assert "run                main: waiting" in text
        assert "tokens/s" not in text and "time left" not in text and "training:" not in text
        body = run.data.status(TRAIN_SUPERVISOR)
        assert (body["waiting_for"], body["waiting_since"]) == ("late.parquet", waiting["since"])
        seen = run.metrics()
        assert seen["stoker_train_state", "waiting"] == 1.0 and seen["stoker_train_state", "running"] == 0.0
        assert seen["stoker_train_tokens_per_second",] == 0.0 and math.isnan(seen["stoker_train_mfu_ratio",])
        names = ("data_wait_seconds", "save_stall_seconds", "memory_bytes", "allocation_retries_total")
        assert [seen[f"stoker_train_{name}",] for name in names] == [0.0, 0.5, 2**20, 1.0]
        assert seen["stoker_train_micro_batch",] == 16.0
        assert seen["stoker_train_fruitless_launches",] == 0.0  # the one that runs has made steps
        wait_until(lambda: told(run, f"checkpoint {run.last_step()}"), what="a save during the wait")
        assert told(run, f"since {waiting['since']}"), "a checkpoint does not end the wait"
        assert len(long_waits(run)) == 1
        since = run.metrics()["stoker_train_waiting_since_timestamp_seconds",]
        wait_until(lambda: time.time() - since > 3.5, what="a wait beyond the limit")
        assert not [event for event in run.events("trainer_hung") if event["phase"] == "wait-data"]
        metrics = wait_until(lambda: (now := run.metrics())["stoker_processes", "trainer"] and now, what="it")
        roles = ("daemon", "guard", "trainer")
        assert [metrics["stoker_processes", role] for role in roles] == [1, 1, 1]
        rss_bytes = [metrics["stoker_process_rss_bytes", role] for role in roles]
        assert rss_bytes[1] < rss_bytes[0] and rss_bytes[2] == metrics["stoker_trainer_rss_bytes",]
        write_record(run.data.pipeline.layout.dataset("prose"), pin.to_record())
        wait_until(lambda: run.record()["state"] == "finished", what="the end of the data")
    finally:
        assert daemon.stop() == 0
    record, books = run.record(), read_record(run.run.consumed)
    assert (record["finished"], record["heldout"]) == ("data_exhausted", None)
    assert 0 < books["remainder"] < 16
    assert books["applied"] == books["step"] * 16


def long_waits(run: TrainPipeline) -> list[dict[str, Any]]:
    return [event for event in run.events("data_wait") if event["waiting_for"] == "late.parquet"]


def launches(run: TrainPipeline) -> int:
    return len(run.events("trainer_launched"))


def test_launches_that_get_nowhere_halt_the_run_until_its_file_changes_or_somebody_resumes_it(
    finished: TrainPipeline, tmp_path: Path
) -> None:
    changes = {"train__steps": 80, "metrics__ports": {"download": 0, "shard": 0, "train": 0}}
    run = copy_of(finished, tmp_path / "broken", supervise__no_progress_launches=2, **changes)
    whole, before = run.run.heldout.read_bytes(), launches(run)
    run.run.heldout.write_bytes(b"not what run.json says")
    ended = run.once()
    assert ended.returncode == 70, ended.stderr
    record = run.record()
    assert (record["state"], record["fruitless"], record["halted"]["class"]) == ("halted", 2, "bad_data")
    end = run.events("trainer_exited")[-1]
    assert "heldout" in end["message"] and "held-out data changed" in end["last_lines"][-1]
    assert end["last_lines"][-1] in Path(end["output"]).read_text()
    assert run.events("run_halted")[-1]["level"] == "error"
    run = copy_of(finished, tmp_path / "broken", supervise__no_progress_launches=1, **changes)
    daemon = run.start()
    try:
        wait_until(lambda: launches(run) == before + 3, what="a launch: a changed file may mend it")
        text = wait_until(lambda: told(run, "  halted "), what="the status")
        assert "stoker resume FILE" in text and "left no new proven checkpoint" in text
        assert run.metrics()["stoker_train_halted",] == 1.0
        run.run.heldout.write_bytes(whole)
        assert exit_code(["resume", str(run.data.file)]) == 0
        wait_until(lambda: run.record()["state"] == "finished", what="the end of the run")
        assert run.metrics()["stoker_train_halted",] == 0.0
    finally:
        assert daemon.stop() == 0
    assert [event["message"] for event in run.events("run_resumed")] == [
        "the pipeline file has changed",
        f"asked for by uid {os.getuid()}",
    ]


def test_a_run_whose_every_checkpoint_is_bad_begins_anew_only_when_told_to(
    finished: TrainPipeline, tmp_path: Path
) -> None:
    run = copy_of(finished, tmp_path / "none-left", quarantine__keep_checkpoints=2)
    for model in run.run.checkpoints.glob("*/model-00001.safetensors"):
        model.write_bytes(model.read_bytes()[:-1] + b"X")
    ended = run.once()
    assert ended.returncode == 65, ended.stderr
    assert "has trained to step 60, and none of its checkpoints is left whole" in ended.stderr
    assert f"stoker rollback {run.data.file} 0" in ended.stderr
    assert run.record()["state"] == "failed"
    kept = sorted(path.parent.name for path in run.data.pipeline.layout.quarantine.glob("*/*/SHA256SUMS"))
    assert kept == ["step-000000050", "step-000000060"]
    assert len(run.events("trainer_launched")) == 1
    assert exit_code(["rollback", str(run.data.file), "0"]) == 0
    daemon = run.start()
    try:
        launched = wait_until(lambda: run.events("trainer_launched")[1:], what="a launch as it was told")
        assert launched[0]["resume_step"] == 0
    finally:
        assert daemon.stop() == 0


def newer(checkpoint: Path) -> None:
    with_body(checkpoint, (checkpoint / "checkpoint.json").read_bytes().replace(b'"v":1,"val', b'"v":2,"val'))


def newer_record(file: Path) -> None:
    write_record(file, {**read_record(file), "v": 2})


def newer_manifest(shards: Path) -> None:
    for manifest in shards.glob("*/*/manifest.json"):
        data = manifest.read_bytes().replace(b'"v":1}', b'"v":2}')
        sums = manifest.with_name("SHA256SUMS")
        before, after = (hashlib.sha256(one).hexdigest() for one in (manifest.read_bytes(), data))
        sums.write_text(sums.read_text().replace(before, after))
        manifest.write_bytes(data)


@pytest.mark.parametrize(
    ("below", "name", "make"),
    [
        ("state/runs/main/checkpoints/step-000000060", "checkpoint.json", newer),
        pytest.param("state/runs/main/run.json", "run.json", newer_record, marks=pytest.mark.long),
        pytest.param("hot/shards", "manifest.json", newer_manifest, marks=pytest.mark.long),
    ],
)
def test_what_a_newer_stoker_wrote_stops_the_run_and_stays_as_it_is(
    finished: TrainPipeline, tmp_path: Path, below: str, name: str, make: Callable[[Path], None]
) -> None:
    run = copy_of(finished, tmp_path / "newer", train__steps=70)
    make(run.data.home / below)
    before = run.checkpoints()
    ended = run.once()
    assert ended.returncode == 78, ended.stderr
    assert f"{name} is of format version 2, this Stoker reads version 1" in ended.stderr
    assert run.checkpoints() == before
    assert list(run.data.pipeline.layout.quarantine.iterdir()) == []


@pytest.mark.long  # test_shard_startup proves that such a pin is not read, the test above the exit code
@pytest.mark.parametrize(
    ("daemon", "place"), [(STAGE_SHARD, StateLayout.dataset), (DOWNLOAD_WATCHDOG, StateLayout.listing)]
)
def test_what_a_newer_stoker_wrote_stops_the_data_daemons_too(
    shard_sets: Path, tmp_path: Path, daemon: str, place: Callable[[StateLayout, str], Path]
) -> None:
    data = make_training(shard_sets, tmp_path / "newer").data
    file = place(data.pipeline.layout, "prose")
    newer_record(file)
    written = file.read_bytes()
    ended = data.once(daemon)
    assert ended.returncode == 78, ended.stderr
    assert f"{file} is of format version 2, this Stoker reads version 1" in ended.stderr
    assert file.read_bytes() == written


@pytest.mark.long
def test_a_checkpoint_nested_too_deep_is_passed_over_for_the_whole_one_before(
    finished: TrainPipeline, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copy_of(finished, tmp_path / "deep")
    with_body(run.run.checkpoints / "step-000000060", DEEP)
    assert exit_code(["audit", str(run.data.file)]) == 1
    assert "step-000000060: invalid: checkpoint.json is not JSON: nested deeper" in capsys.readouterr().out
    daemon = run.start()
    try:
        launched = wait_until(lambda: run.events("trainer_launched")[1:], what="a launch after the finding")
        assert launched[0]["resume_step"] == 50
    finally:
        assert daemon.stop() == 0
