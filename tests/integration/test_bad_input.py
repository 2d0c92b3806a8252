"""Bad parquet of every kind beside good files, through real daemons: each has its word, and nothing stirs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from stoker.shards.format.reader import ShardSet
from support import bad_parquet as bad
from support.parquet import flip_page, truncate, write_columns, write_fineweb
from support.pipelines import make_pipeline

ODD_NAMES = ("new\nline.parquet", "quo'te\"s.parquet", "🔥 ünï.parquet", "x" * 247 + ".parquet")


def write_bad(folder: Path) -> dict[str, str]:
    """One file of each kind; the reason each will be quarantined for."""
    text = pa.array(["a line of text that is long enough"] * 40)

    def good(name: str) -> Path:
        return write_columns(folder / name, text=text)

    (folder / "zero.parquet").write_bytes(b"")
    (folder / "words.parquet").write_text("not parquet at all")
    truncate(good("cut.parquet"))
    write_columns(folder / "empty.parquet", text=pa.array([], pa.string()))
    write_columns(folder / "schema.parquet", body=text)
    write_columns(folder / "numbers.parquet", text=pa.array([1, 2, 3]))
    write_columns(folder / "bytes.parquet", text=pa.array([b"fine text, and then"] * 30 + [b"\xff\xfe"]))
    pq.write_table(pa.Table.from_arrays([text, text], names=["text", "text"]), folder / "twice.parquet")
    bad.write_encrypted(folder / "locked.parquet", ["text"], plain_footer=False)
    bad.write_encrypted(folder / "half-locked.parquet", ["n"], plain_footer=True)
    bad.write_footer(folder / "beyond.parquet", b"\x15\x02", claimed=1 << 31)
    bomb = bad.group(bad.structs(1000, bad.CHUNK * 1000))
    groups = bad.structs(4000, bomb * 4000)
    bad.write_footer(folder / "bomb.parquet", bad.footer(bad.TEXT_SCHEMA, 4000, groups))
    flip_page(write_fineweb(folder / "page.parquet", 90, seed=7, row_group=30), row_group=2)
    return {
        "zero.parquet": "zero_bytes",
        "words.parquet": "not_parquet",
        "cut.parquet": "truncated",
        "empty.parquet": "no_rows",
        "schema.parquet": "missing_column",
        "numbers.parquet": "column_type",
        "bytes.parquet": "invalid_utf8",
        "twice.parquet": "ambiguous_column",
        "locked.parquet": "encrypted",
        "half-locked.parquet": "encrypted",
        "beyond.parquet": "footer_absurd",
        "bomb.parquet": "footer_absurd",
        "page.parquet": "page_corrupt",
    }


def test_every_kind_of_bad_file_is_named_and_the_good_ones_are_built(tmp_path: Path) -> None:
    data = make_pipeline(tmp_path)
    for number in range(2):
        write_fineweb(data.source / f"000-{number}.parquet", 120, seed=number)
    for number, name in enumerate(ODD_NAMES):
        write_fineweb(data.source / name, 60, seed=10 + number)
    inside = data.source / "folder.parquet"  # as others write a data set of many files
    write_fineweb(inside / "part.parquet", 60, seed=20)
    (data.source / "empty folder.parquet").mkdir()
    nulls = write_columns(
        data.source / "nulls.parquet", text=pa.array([None, "a line of text, long enough"] * 9)
    )
    reasons = write_bad(data.source)

    assert data.once("download_watchdog").returncode == 0
    data.build()

    told = data.reasons()
    assert {path: each["reason"] for path, each in told.items()} == reasons
    assert all(each["detail"] for each in told.values())
    assert (told["page.parquet"]["row_group"], told["page.parquet"]["column"]) == (2, "text")
    assert told["bytes.parquet"]["detail"].startswith("rows 0 to 30: ")
    good = {"000-0.parquet", "000-1.parquet", *ODD_NAMES, "folder.parquet/part.parquet", "nulls.parquet"}
    states = data.states()
    assert {path for path, state in states.items() if state == "released"} == good
    assert {path for path, state in states.items() if state == "quarantined"} == reasons.keys()
    books = data.sources()[nulls.name].books
    assert books is not None
    assert (books.rows, books.documents, books.dropped) == (18, 9, (("null", 9),))
    for name in ODD_NAMES:
        source = data.sources()[name]
        shard_set = ShardSet(data.pipeline.hot_layout.shard_set("prose", str(source.key)))
        assert shard_set.manifest.books.rows == 60
    events = data.events("stage_shard", "source_quarantined")
    assert {each["path"]: each["reason"] for each in events} == reasons
    assert len(events) == len(reasons)
    assert not data.events("stage_shard", "stage_failed"), "a worker died of what it should have told"
    code = "from stoker.cli.main import main; main()"
    command = [sys.executable, "-c", code, "audit", str(data.file), "--json", "--deep"]
    report = json.loads(subprocess.run(command, capture_output=True, text=True, check=False).stdout)
    assert report["balanced"], report["findings"]
    assert report["sources"]["quarantined"] == len(reasons)
