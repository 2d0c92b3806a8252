"""From when on a changed key counts, and what of a configuration is recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stoker.config.changes import WHEN, changed_keys
from stoker.config.show import recorded
from stoker.store.layout import DOWNLOAD_WATCHDOG, STAGE_SHARD, TRAIN_SUPERVISOR
from support.config_files import MINIMAL, load_text

NOW, LAUNCH, RESTART, _ = WHEN


@pytest.mark.parametrize(
    ("now", "of_run", "of_others"),
    [
        ("supervise: {hang_limit: 20m}", {"supervise.hang_limit": NOW}, NOW),
        ("supervise: {stop_time: 1m}", {"supervise.stop_time": LAUNCH}, NOW),
        ("download: {files_at_once: 2}", {"download.files_at_once": NOW}, NOW),
        ("  steps: 20", {"train.steps": LAUNCH}, NOW),
        ("  optimizer: {lr: 1.0e-3}", {"train.optimizer.lr": LAUNCH}, NOW),
        ("  optimizer: {name: muon}", {"train.optimizer.name": RESTART}, NOW),
        (
            "  checkpoint: {every: 1h, keep_last: 9}",
            {"train.checkpoint.every": LAUNCH, "train.checkpoint.keep_last": NOW},
            NOW,
        ),
        ("  on_checkpoint: backup", {"train.on_checkpoint": NOW}, NOW),
        ("  on_promoted: publish", {"train.on_promoted": NOW}, NOW),
        ("evaluations: [{suite: a.yaml, at: [finish]}]", {"evaluations": NOW}, NOW),
        ("promote: null", {}, NOW),
        ("  seed: 7", {"train.seed": RESTART}, NOW),
        ("hot: elsewhere", {"hot": RESTART}, NOW),
        ("metrics: {ports: {train: 0}}", {"metrics.ports.train": RESTART}, RESTART),
        ("state: elsewhere", {"state": RESTART}, RESTART),
    ],
)
def test_a_key_counts_now_at_a_launch_or_after_a_stop(
    tmp_path: Path, now: str, of_run: dict[str, str], of_others: str
) -> None:
    before = recorded(load_text(tmp_path, MINIMAL))
    kept = [line for line in MINIMAL.splitlines() if line.split(":")[0] != now.split(":", maxsplit=1)[0]]
    after = recorded(load_text(tmp_path, "\n".join((*kept, now, ""))))
    assert changed_keys(TRAIN_SUPERVISOR, before, after) == of_run
    for daemon in (STAGE_SHARD, DOWNLOAD_WATCHDOG):
        assert changed_keys(daemon, before, after) == dict.fromkeys(of_run, of_others)
    assert not changed_keys(TRAIN_SUPERVISOR, after, json.loads(json.dumps(after)))


def test_a_record_has_no_secret_and_tells_another_one(tmp_path: Path) -> None:
    text = "name: mine\nstate: state\ntrain:\n  command: [train, --token, SECRET, 'https://me:SECRET@x/']\n"
    first, same, other = (
        recorded(load_text(tmp_path, text.replace("SECRET", word))) for word in ("1st", "1st", "2nd")
    )
    assert "1st" not in json.dumps(first)
    assert "********@x" in first["train"]["command"]
    assert not changed_keys(TRAIN_SUPERVISOR, first, same)
    assert changed_keys(TRAIN_SUPERVISOR, first, other) == {"train.command": LAUNCH}
