"""A phase with longer windows, through the real supervisor: its held-out file is copied once and for good."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from stoker.store.record import read_record
from support.training import TrainPipeline, make_training
from support.waiting import wait_until

YARN = {"yarn": {"factor": 2.0, "original_seq_len": 64, "beta_fast": 32.0, "beta_slow": 1.0}}


def test_a_longer_phase_has_its_held_out_windows_once_through_a_kill_and_a_lost_record(
    finished: TrainPipeline, tmp_path: Path
) -> None:
    phases = [{"name": "long", "from": 60, "seq_len": 128, "rope": YARN}]
    run = make_training(finished.data.home, tmp_path / "home", train__steps=100, train__phases=phases)
    before = run.record()
    daemon = run.start()
    try:
        wait_until(lambda: "step-000000080" in run.checkpoints(), what="a checkpoint of the phase")
    finally:
        daemon.kill()
    file, first = run.run.root / "heldout-long.bin", run.run.heldout.read_bytes()
    (held,) = run.record()["heldouts"]
    assert (held["name"], held["file"], held["seq_len"], held["windows"]) == ("long", file.name, 128, 4)
    place = file.stat().st_ino
    run.run.record.unlink()
    ended = run.once()
    assert ended.returncode == 0, ended.stderr
    assert run.events("run_file_restored")[-1]["what"] == "run.json"
    assert (run.record()["heldouts"], file.stat().st_ino) == ([held], place), "as it was, not copied anew"
    assert (run.record()["heldout"], run.run.heldout.read_bytes()) == (before["heldout"], first)

    windows = np.fromfile(file, "<u2").reshape(4, 129)
    short = np.fromfile(run.run.heldout, "<u2").reshape(-1, 65)
    assert (windows[0, :65] == short[0]).all(), "of the same val sets"
    launched = read_record(run.run.launch)
    assert (launched["phase"], launched["rope"], launched["seq_len"]) == ("long", YARN, 128)
    assert [one["file"] for one in launched["heldouts"]] == [str(file)]
