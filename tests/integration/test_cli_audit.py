"""`stoker audit` and `stoker verify shards` over a folder that the real data daemons went through."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from stoker.cli.main import exit_code
from stoker.store.record import read_record
from support.parquet import flip_page, write_fineweb
from support.pipelines import DataPipeline, make_pipeline


@pytest.fixture(scope="module")
def drained(tmp_path_factory: pytest.TempPathFactory) -> DataPipeline:
    """Three files, one of them damaged, brought to shard sets; no test changes what is here."""
    made = make_pipeline(tmp_path_factory.mktemp("audit"))
    for number in range(3):
        write_fineweb(made.source / f"{number}.parquet", 300, seed=number)
    flip_page(made.source / "1.parquet", 2)
    made.drain()
    return made


def audit(file: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the JSON of one audit."""
    capsys.readouterr()
    code = exit_code(["audit", str(file), "--json", *options])
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, report


@pytest.mark.parametrize("deep", [False, True])
def test_the_books_balance_and_the_json_has_every_field(
    drained: DataPipeline, capsys: pytest.CaptureFixture[str], deep: bool
) -> None:
    code, report = audit(drained.file, capsys, *(["--deep"] if deep else []))
    assert (code, report["balanced"], report["findings"], report["deep"]) == (0, True, [], deep)
    assert report["v"] == 1
    assert report["sources"] == {"total": 3, "proven": 2, "quarantined": 1, "duplicate": 0}
    assert report["rows"] == 600
    assert report["rows"] == report["documents"] + sum(report["dropped"].values())
    assert report["tokens"]["train"] > report["tokens"]["val"] > 0
    plan = report["plan"]
    assert plan["windows"] == plan["applied"] + plan["skipped"] + plan["remainder"] + plan["ahead"]
    assert set(plan) == {"entries", "windows", "applied", "skipped", "remainder", "ahead", "tail_tokens"}
    assert report["checkpoints"] == {"proven": 0, "quarantined": 0, "abandoned": 0, "mirrored": 0}
    assert {"manifests", "sizes", "plan", "checkpoints"} <= set(report["recounted"])
    assert ("parquet rows" in report["recounted"]) is deep
    assert ("parquet rows" in report["on_record"]) is not deep


def test_the_report_for_people_says_the_same(
    drained: DataPipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(["audit", str(drained.file)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("data: balanced\n")
    assert "  sources      3 total, 2 proven, 1 quarantined\n" in text
    assert "  rows         600 = " in text


def test_nothing_to_audit_is_not_balanced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, report = audit(make_pipeline(tmp_path).file, capsys)
    assert (code, report["balanced"]) == (1, False)
    assert "nothing to audit" in report["findings"][0]


def test_a_pipeline_that_has_no_set_yet_keeps_no_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_pipeline(tmp_path)
    assert exit_code(["audit", str(made.file), "--keep"]) == 0, "a timer may come before the first set"
    assert "nothing is kept" in capsys.readouterr().out
    assert not made.pipeline.layout.audit.exists()


def test_what_a_deep_audit_found_stands_until_a_deep_one_does_not_find_it(
    drained: DataPipeline, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(drained.home, tmp_path / "copy")
    file = tmp_path / "copy" / drained.file.name
    file.write_text(drained.file.read_text().replace(str(drained.home), str(tmp_path / "copy")))
    record = tmp_path / "copy" / drained.pipeline.layout.audit.relative_to(drained.home)
    tokens = next((tmp_path / "copy" / "hot" / "shards").rglob("train-*.bin"))
    whole = tokens.read_bytes()
    tokens.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    for option, code, balanced in (
        ("", 0, True),
        ("--deep", 1, False),
        ("", 0, False),
        ("whole", 0, False),
        ("--deep", 0, True),
    ):
        if option == "whole":
            tokens.write_bytes(whole)
        options = ["--keep", *([option] if option == "--deep" else [])]
        assert audit(file, capsys, *options)[0] == code, option
        kept = read_record(record)
        assert (kept["balanced"], bool(kept["findings"])) == (balanced, not balanced), option


def test_a_planted_fault_is_a_finding_that_names_the_file(
    drained: DataPipeline, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(drained.home, tmp_path / "copy")
    text = drained.file.read_text().replace(str(drained.home), str(tmp_path / "copy"))
    file = tmp_path / "copy" / drained.file.name
    file.write_text(text)
    hot = tmp_path / "copy" / "hot" / "shards" / "prose"
    assert audit(file, capsys)[0] == 0
    assert exit_code(["verify", "shards", str(hot)]) == 0
    victim = sorted(hot.iterdir())[0]
    with (victim / "train-00000.idx").open("r+b") as index:
        index.truncate((victim / "train-00000.idx").stat().st_size - 8)
    code, report = audit(file, capsys)
    assert (code, report["balanced"]) == (1, False)
    assert any("train-00000.idx" in finding and victim.name in finding for finding in report["findings"])
    assert exit_code(["audit", str(file)]) == 1
    assert "data: NOT balanced\n" in capsys.readouterr().out
    assert exit_code(["verify", "shards", str(hot)]) == 1
    told = capsys.readouterr().out
    assert f"{victim}: invalid: " in told


def test_a_whole_set_in_anothers_place_is_found(
    drained: DataPipeline, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = sorted((drained.home / "hot" / "shards" / "prose").iterdir())
    moved = tmp_path / sets[1].name
    shutil.copytree(sets[0], moved)
    assert exit_code(["verify", "shards", str(moved)]) == 1
    assert f"the key begins {sets[0].name}, not {moved.name}" in capsys.readouterr().out
