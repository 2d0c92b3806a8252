"""`stoker data download` and `stoker verify downloads`, over a hub on loopback, URLs and a folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stoker.cli.main import exit_code
from support.downloads import ENVIRON, hub_pipeline, put_parquet, stoker_command, urls_pipeline
from support.fetch_fixtures import hub_fixture, served_hub_fixture  # noqa: F401 - found by their names
from support.loopback_hub import REPO, LoopbackHub, noise
from support.parquet import write_fineweb
from support.pipelines import DataPipeline, make_pipeline
from support.terminal import run_on_terminal


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)


def dry_run(data: DataPipeline) -> int:
    return exit_code(["data", "download", str(data.file), "--dry-run"])


def verify(data: DataPipeline, *options: str) -> int:
    return exit_code(["verify", "downloads", str(data.file), *options])


def told(report: str) -> dict[str, str]:
    """The report's lines by their first words."""
    return {line[:16].strip(): line[16:] for line in report.splitlines()}


def test_a_dry_run_tells_what_comes_and_leaves_no_trace(
    tmp_path: Path, hub: LoopbackHub, capsys: pytest.CaptureFixture[str]
) -> None:
    put_parquet(hub, 3, 300)
    data = hub_pipeline(tmp_path / "p", hub, dataset__limit={"files": 2})
    before = sorted(tmp_path.joinpath("p").rglob("*"))
    assert dry_run(data) == 0
    lines = told(capsys.readouterr().out)
    assert f"{REPO}@main" in lines["source"]
    assert lines["listed"].startswith("2 files, ") and "files: 2" in lines["listed"]
    assert lines["here, hashed"] == "0 files, 0 B"
    assert lines["to be fetched"].startswith("2 files, ")
    assert lines["asked for"] == "data/000.parquet: it may be fetched"
    assert sorted(tmp_path.joinpath("p").rglob("*")) == before


def test_what_is_here_need_not_come_and_what_is_wrong_or_missing_is_told_disputed_and_comes_again(
    tmp_path: Path, hub: LoopbackHub, capsys: pytest.CaptureFixture[str]
) -> None:
    files = put_parquet(hub, 4, 200)
    data = hub_pipeline(tmp_path / "p", hub, dataset__limit={"files": 3})
    assert verify(data) == 64
    # A terminal shows how far it is, and the exit code is the daemon's.
    environ = {**ENVIRON, "NO_COLOR": "1"}
    code, screen = run_on_terminal(
        [*stoker_command(), "data", "download", str(data.file), "--once"], environ=environ
    )
    assert (code, screen.last) == (0, "")
    assert any(re.match(r"\d/3 files", line) for line in screen.footers), screen.footers
    assert set(data.receipts()) == {f"data/{number:03d}.parquet" for number in range(3)}

    data = hub_pipeline(tmp_path / "p", hub)
    landed = [data.pipeline.source_root / f"data/{number:03d}.parquet" for number in range(4)]
    landed[3].write_bytes(files[3].read_bytes())
    capsys.readouterr()
    assert dry_run(data) == 0
    report = capsys.readouterr().out
    lines = told(report)
    assert lines["here, hashed"].startswith("3 files, ")
    assert lines["to be hashed"].startswith("1 file, ")
    assert "nothing has to be fetched" in report
    hub.control("forget")
    assert data.once("download_watchdog").returncode == 0
    assert hub.served() == 0
    assert dry_run(data) == 0
    assert "nothing is left" in capsys.readouterr().out

    assert verify(data) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith(": 4 true")
    flipped = bytearray(landed[1].read_bytes())
    flipped[1000] ^= 1
    landed[1].write_bytes(flipped)
    landed[2].write_bytes(b"short")
    landed[3].unlink()
    assert verify(data) == 1
    rows = capsys.readouterr().out.splitlines()
    assert rows[0].split() == ["verdict", "file", "why"]
    assert {row.split()[1]: row.split()[0] for row in rows[1:4]} == {
        str(landed[1]): "wrong",
        str(landed[2]): "wrong",
        str(landed[3]): "missing",
    }
    assert rows[4].endswith("1 true, 2 wrong, 1 missing")
    asked = data.pipeline.layout.requests("download_watchdog")
    assert not list(asked.glob("*.json")), "it only looks unless it is told to"
    assert verify(data, "--dispute") == 1
    assert len(list(asked.glob("*.json"))) == 3
    capsys.readouterr()
    assert data.once("download_watchdog").returncode == 0
    assert verify(data) == 0
    assert [file.read_bytes() for file in landed] == [file.read_bytes() for file in files]

    landing = data.pipeline.source_root
    landing.rename(tmp_path / "away")
    landing.mkdir()
    assert verify(data, "--dispute") == 69, "a disk that is not mounted is no missing file"
    assert "mount the disk" in capsys.readouterr().err
    assert not list(asked.glob("*.json"))


def test_urls_that_are_refused_are_told_and_a_wrong_list_its_lines(
    tmp_path: Path, hub: LoopbackHub, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"{number}.parquet" for number in range(6)]
    for number, name in enumerate(names):
        hub.put(name, noise(100_000, number), repo="urls")
    data = urls_pipeline(tmp_path / "p", [hub.url(name) for name in names])
    assert dry_run(data) == 0
    lines = told(capsys.readouterr().out)
    assert lines["to be fetched"] == "6 files, 0 B and 6 of unknown size"
    hub.fault("status", on="url", path="0.parquet", code=404)
    assert dry_run(data) == 69
    assert told(capsys.readouterr().out)["asked for"].startswith("0.parquet: ")
    (tmp_path / "p" / "urls.txt").write_text(f"{hub.url('a.parquet')}\nnot a URL at all\n")
    assert dry_run(data) == 78
    assert "urls.txt:2" in capsys.readouterr().err


def test_a_gate_is_told_with_the_page_to_visit(
    tmp_path: Path, hub: LoopbackHub, capsys: pytest.CaptureFixture[str]
) -> None:
    put_parquet(hub, 1, 100)
    hub.control("set", gated={f"dataset/{REPO}": "secret"})
    data = hub_pipeline(tmp_path / "p", hub)
    assert dry_run(data) == 69
    said = capsys.readouterr().err
    assert "gated" in said and f"{hub.endpoint}/datasets/{REPO}" in said
    assert exit_code(["data", "download", str(data.file), "--dry-run", "--once"]) == 64
    assert exit_code(["data", "download", str(tmp_path / "none.yaml")]) == 78


def test_a_dry_run_of_a_source_that_holds_nothing_meant_is_no_success(
    tmp_path: Path, hub: LoopbackHub, capsys: pytest.CaptureFixture[str]
) -> None:
    put_parquet(hub, 1, 100)
    data = hub_pipeline(tmp_path / "p", hub)
    data.file.write_text(data.file.read_text().replace("endpoint:", "include: ['*.arrow']\n    endpoint:"))
    assert dry_run(data) == 69
    assert "holds no file that matches *.arrow" in capsys.readouterr().err


def test_a_folders_files_are_to_be_hashed_until_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = make_pipeline(tmp_path / "p")
    write_fineweb(data.source / "a.parquet", 200)
    assert dry_run(data) == 0
    lines = told(capsys.readouterr().out)
    assert lines["to be hashed"].startswith("1 file, ")
    assert not (tmp_path / "p" / "state").exists()
    data.receive()
    assert dry_run(data) == 0
    assert "nothing is left" in capsys.readouterr().out
    (data.source / "a.parquet").write_bytes(b"x" * data.receipts()["a.parquet"].size)
    assert verify(data) == 1
    assert re.search(r"^wrong +\S+/a\.parquet  sha256 ", capsys.readouterr().out, re.MULTILINE)
