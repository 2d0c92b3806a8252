"""What `stoker config check` finds beside the file: a run that has begun, other pipelines, and links."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.cli.main import exit_code
from stoker.cli.pipeline import beside
from support.checkpoint_data import seal
from support.config_files import MINIMAL, load_text, write_pipeline

TOKENS = MINIMAL.replace("steps: 10", "tokens: 2048") + "  seq_len: 8\n  global_batch: 16\n"
SMALL = "stage: {free_floor: 0}\nplan: {segment_tokens: 1M}\n"
OTHER = MINIMAL.replace("name: mine", "name: other")


def check(file: Path, capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    assert exit_code(["config", "check", str(file)]) == code
    captured = capsys.readouterr()
    return captured.out + captured.err


def test_the_steps_of_a_run_by_tokens_are_counted_from_its_newest_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = TOKENS + SMALL
    assert "run main: 16 steps, 2,048 tokens" in check(write_pipeline(tmp_path, text), capsys)
    layout = load_text(tmp_path, text).layout.run("main")
    layout.create()
    seal(layout.checkpoints, 8, position=[0, 0])  # of 16 windows of 8 tokens each
    raised = write_pipeline(tmp_path, text.replace("global_batch: 16", "global_batch: 32"))
    assert "run main: 12 steps, 2,048 tokens" in check(raised, capsys), "eight of 16, then four of 32"
    wsd = "  schedule: {name: wsd, warmup_steps: 9, decay: 0.25}\n"
    assert "ok: " in check(write_pipeline(tmp_path, raised.read_text().replace(SMALL, wsd + SMALL)), capsys)


@pytest.mark.parametrize(
    ("ports", "state", "told"),
    [
        ("", "state-2", "port 9811 is also metrics.ports.download of"),
        ("metrics: {ports: {download: 9811, shard: 1, train: 2}}\n", "state-2", "9811 is also"),
        ("metrics: {ports: {download: 1, shard: 2, train: 9811}}\n", "state-2", "metrics.ports.train of"),
        ("metrics: {ports: {download: 1, shard: 2, train: 3}}\n", "state-2", ""),
        ("metrics: {ports: {download: 0, shard: 0, train: 0}}\n", "state-2", ""),
        ("", "state", ""),  # the same pipeline by another name
        ("", "nowhere", ""),  # it has never run
        ("what: [is, this\n", "state-2", ""),
    ],
)
def test_a_metrics_port_of_another_pipeline_beside_the_file_or_of_the_machine_is_told(
    *,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ports: str,
    state: str,
    told: str,
) -> None:
    for name in ("state", "state-2", "etc"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(beside, "OF_MACHINE", tmp_path / "etc")
    file = write_pipeline(tmp_path, MINIMAL + SMALL)
    place = tmp_path if ports else tmp_path / "etc"
    other = place / "other.yaml"
    other.write_text(OTHER.replace("state: state", f"state: {tmp_path}/{state}") + SMALL + ports)
    said = check(file, capsys)
    assert ("is also metrics.ports" in said) is bool(told)
    assert told in said and (not told or str(other) in said)


def test_checkpoints_that_are_a_link_to_another_disk_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_pipeline(tmp_path, MINIMAL + SMALL)
    layout = load_text(tmp_path, MINIMAL + SMALL).layout.run("main")
    layout.create()
    (tmp_path / "disk").mkdir()
    layout.checkpoints.rmdir()
    layout.checkpoints.symlink_to(tmp_path / "disk")
    said = check(file, capsys, code=78)
    assert f"{layout.checkpoints} is a symbolic link to {tmp_path}/disk" in said
    assert "mount that disk there, or set state to a directory on it" in said
