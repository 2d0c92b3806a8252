"""`stoker data rows`: the first rows of a source in one file, and no more files of it than that takes."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stoker.cli.main import exit_code
from stoker.corpus.records.receipts import Receipt, write_receipt
from stoker.corpus.records.sources import Source, write_source
from stoker.kit.process import children_tree
from stoker.store.direct import hash_file
from support.downloads import ENVIRON, hub_pipeline, put_parquet, stoker_command, urls_pipeline
from support.loopback_hub import LoopbackHub
from support.parquet import flip_page, write_columns, write_fineweb
from support.pipelines import DataPipeline, make_pipeline
from support.processes import kill_tree, wait_gone
from support.waiting import LONG_S, wait_until


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(name="hub")
def hub_fixture(tmp_path: Path) -> Iterator[LoopbackHub]:
    with LoopbackHub(tmp_path / "hub") as hub:
        yield hub


def rows(data: DataPipeline, most: int, out: Path) -> int:
    return exit_code(["data", "rows", str(data.file), "--max-rows", str(most), str(out)])


def first_rows(files: list[Path], most: int) -> pa.Table:
    return pa.concat_tables([pq.read_table(file) for file in files]).slice(0, most)


def beside(out: Path) -> list[str]:
    return sorted(each.name for each in out.parent.iterdir())


def test_the_first_rows_of_a_hubs_files_come_in_listing_order_and_no_further_file_does(
    tmp_path: Path, hub: LoopbackHub, capsys: pytest.CaptureFixture[str]
) -> None:
    files = put_parquet(hub, 3, 600)
    data = hub_pipeline(tmp_path / "p", hub)
    out = tmp_path / "out" / "look.parquet"
    out.parent.mkdir()
    assert rows(data, 60, out) == 0
    assert pq.read_table(out).equals(first_rows(files, 60))
    assert ": 60 rows\n" in capsys.readouterr().out
    assert hub.served("001") == hub.served("002") == 0
    over = tmp_path / "out" / "over.parquet"
    assert rows(data, 610, over) == 0
    assert pq.read_table(over).equals(first_rows(files, 610))
    assert hub.served("002") == 0
    assert beside(out) == ["look.parquet", "over.parquet"]
    assert not (tmp_path / "p" / "state").exists()


def test_what_is_here_is_read_here_and_what_is_not_over_the_network(tmp_path: Path, hub: LoopbackHub) -> None:
    files = put_parquet(hub, 2, 300)
    data = hub_pipeline(tmp_path / "p", hub)
    data.pipeline.layout.create()
    for file in files:  # as the download watchdog leaves it
        landed, found = data.pipeline.source_root / "data" / file.name, hash_file(file)
        landed.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, landed)
        path = f"data/{file.name}"
        receipt = Receipt("prose", path, str(landed), found.size, found.sha256, "", "e", "verified")
        write_receipt(data.pipeline.layout, receipt)
    hub.control("forget")
    assert rows(data, 600, tmp_path / "all.parquet") == 0
    assert hub.served() == 0
    landed = Path(data.receipts()["data/001.parquet"].file)
    landed.unlink()
    assert rows(data, 600, tmp_path / "again.parquet") == 0
    assert hub.served("000") == 0 < hub.served("001")
    wanted = first_rows(files, 600)
    assert pq.read_table(tmp_path / "all.parquet").equals(wanted)
    assert pq.read_table(tmp_path / "again.parquet").equals(wanted)


def test_urls_without_sizes_will_do_and_a_broken_off_answer_is_gone_on_with(
    tmp_path: Path, hub: LoopbackHub, capsys: pytest.CaptureFixture[str]
) -> None:
    files = put_parquet(hub, 2, 400, below="urls")
    data = urls_pipeline(tmp_path / "p", [hub.url(f"data/{file.name}") for file in files])
    hub.fault("reset", on="url", path="000", after=20_000)
    hub.fault("status", on="url", path="001", code=503)
    assert rows(data, 10_000, tmp_path / "all.parquet") == 0
    assert pq.read_table(tmp_path / "all.parquet").equals(first_rows(files, 800))
    assert "there are no more" in capsys.readouterr().out


def test_wrong_content_is_no_preview(
    tmp_path: Path, hub: LoopbackHub, capsys: pytest.CaptureFixture[str]
) -> None:
    put_parquet(hub, 1, 600)
    data = hub_pipeline(tmp_path / "p", hub)
    hub.fault("wrong", path="000", times=-1)
    out = tmp_path / "out" / "look.parquet"
    out.parent.mkdir()
    assert rows(data, 10, out) == 75
    assert "has the sum" in capsys.readouterr().err
    assert beside(out) == []


def test_a_file_that_is_there_is_not_touched(tmp_path: Path) -> None:
    data = make_pipeline(tmp_path / "p")
    out = tmp_path / "mine.parquet"
    out.write_text("mine")
    assert rows(data, 10, out) == 64
    assert out.read_text() == "mine"
    assert rows(data, 10, tmp_path / "nowhere" / "out.parquet") == 64


@pytest.mark.parametrize(
    ("kind", "said"), [("text", "not_parquet"), ("columns", "other_columns"), ("page", "page_corrupt")]
)
def test_a_bad_file_is_named_and_nothing_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, said: str
) -> None:
    data = make_pipeline(tmp_path / "p")
    write_fineweb(data.source / "a.parquet", 100)
    bad = data.source / "b.parquet"
    if kind == "text":
        bad.write_text("this is no parquet at all")
    elif kind == "columns":
        write_columns(bad, text=pa.array(["alone"]))
    else:
        flip_page(write_fineweb(bad, 100, seed=2), 1)
    out = tmp_path / "out" / "look.parquet"
    out.parent.mkdir()
    assert rows(data, 1000, out) == 65
    told = capsys.readouterr().err
    assert "b.parquet" in told and said in told
    assert beside(out) == []
    assert rows(data, 100, out) == 0, "what stands before it can be looked at"
    assert pq.read_table(out).num_rows == 100


def test_a_file_in_quarantine_is_passed_over(tmp_path: Path) -> None:
    data = make_pipeline(tmp_path / "p")
    files = [write_fineweb(data.source / f"{name}.parquet", 50, seed=seed) for seed, name in enumerate("ac")]
    (data.source / "b.parquet").write_text("this is no parquet at all")
    data.pipeline.layout.create()
    bad = Source("prose", "b.parquet", 25, "c" * 64, state="quarantined", reason="not_parquet")
    write_source(data.pipeline.layout, bad)
    assert rows(data, 1000, tmp_path / "out.parquet") == 0
    assert pq.read_table(tmp_path / "out.parquet").equals(first_rows(files, 100))


def test_an_empty_folder_has_nothing_to_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = make_pipeline(tmp_path / "p")
    assert rows(data, 10, tmp_path / "out.parquet") == 65
    assert "no rows" in capsys.readouterr().err
    assert not (tmp_path / "out.parquet").exists()


@pytest.mark.parametrize("signum", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_a_stop_in_the_middle_leaves_nothing(
    tmp_path: Path, hub: LoopbackHub, signum: signal.Signals
) -> None:
    put_parquet(hub, 1, 600)
    data = hub_pipeline(tmp_path / "p", hub)
    hub.fault("stall", path="000")
    out = tmp_path / "out" / "look.parquet"
    out.parent.mkdir()
    command = [*stoker_command(), "data", "rows", str(data.file), "--max-rows", "2000", str(out)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: [each for each in hub.requests("000") if each["status"] == 200])
        children = children_tree(process.pid)
        process.send_signal(signum)
        assert process.wait(LONG_S) == {signal.SIGTERM: 143, signal.SIGINT: 130}[signum]
        wait_gone(children)
    finally:
        kill_tree(process.pid)
    assert beside(out) == []
