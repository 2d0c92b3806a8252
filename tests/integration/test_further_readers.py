"""A format of source files and a filter of rows are a module and a row in a table each, and nothing else."""

from __future__ import annotations

import os
import signal
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from stoker.corpus.readers.reader import reader_of
from stoker.corpus.readers.table import READERS
from stoker.corpus.records.sources import Source
from stoker.corpus.staging.disk_contents import parquet_name
from stoker.shards.audit.recount import recount, row_findings
from stoker.shards.build import build_worker
from stoker.shards.format.identity import BuildParameters
from stoker.shards.format.steps import STEPS
from support.builds import Recorder, build_task, messages_of, set_bytes, small_tokenizer, start_worker
from support.halting import halts_at, wait_halted
from support.line_reader import READER, STEP
from support.text import documents

BUILD = "support.line_worker"
LINES = [" ".join((text or "").split()) for text in documents(400, seed=3)]
MIN_WORDS, HALT_AFTER = 12, 9  # words of a document; messages of a build


@pytest.fixture(autouse=True)
def rows(monkeypatch: pytest.MonkeyPatch) -> None:
    build_worker._kept.clear()  # what a test of tokens used
    monkeypatch.chdir(Path(__file__).parents[1])  # a worker finds the package `support` there
    for table, further in ((READERS, READER), (STEPS, STEP)):
        for name, row in further.items():
            monkeypatch.setitem(table, name, row)  # type: ignore[arg-type]


def task_for(home: Path, content: bytes) -> dict[str, Any]:
    source = home / "prose.txt"
    home.mkdir(exist_ok=True)
    source.write_bytes(content)
    filters = {"min_words": MIN_WORDS}
    return build_task(home, source, small_tokenizer(home / "tokenizer.json"), filters=filters, every_s=0.0)


def test_a_line_a_document_is_built_resumed_and_recounted_by_a_row_in_each_table(tmp_path: Path) -> None:
    task = task_for(tmp_path / "in-peace", "\n".join(LINES).encode())
    books = build_worker.main(task, Recorder())["books"]
    kept = [row for row, line in enumerate(LINES) if len(line.split()) >= MIN_WORDS]
    assert 300 < len(kept) < len(LINES) - 30
    assert (books["rows"], books["documents"]) == (len(LINES), len(kept))
    assert books["dropped"] == {"min_words": len(LINES) - len(kept)}
    target, tokenizer = Path(task["target"]), Tokenizer.from_file(task["tokenizer_file"])
    train = np.concatenate([np.fromfile(file, "<u2") for file in sorted(target.glob("train-*.bin"))])
    rows = np.concatenate([np.fromfile(file, "<u8") for file in sorted(target.glob("train-*.row"))])
    found = tokenizer.decode(train.tolist(), skip_special_tokens=False).split("<|endoftext|>")
    plain = [row for row in rows.tolist() if "<|endoftext|>" not in LINES[row]]
    assert {*(LINES[row] for row in plain)} < {*found} and len(plain) > 200

    counted = recount(Path(task["parquet"]), BuildParameters.from_mapping(task["build"]))
    assert row_findings(target, counted) == []
    assert {name: books[name] for name in ("rows", "dropped", "chars")} == {
        name: counted.books[name] for name in ("rows", "dropped", "chars")
    }

    again = task_for(tmp_path / "killed", "\n".join(LINES).encode())
    halts = {**os.environ, **halts_at(tmp_path / "halts", [HALT_AFTER])}
    with start_worker(BUILD, again, env=halts) as process:
        told = [message["kind"] for message in islice(messages_of(process), HALT_AFTER)]
        wait_halted(process.pid)
        process.send_signal(signal.SIGKILL)
    assert "commit" in told
    with start_worker(BUILD, again) as process:
        first, *_, last = messages_of(process)
    assert first["row"] > 0
    assert last["done"]["status"] == "published"
    assert set_bytes(Path(again["target"])) == set_bytes(target)


def test_what_is_wrong_with_such_a_file_is_its_readers_word(tmp_path: Path) -> None:
    task = task_for(tmp_path, b"fine\n\xff\xfe\n")
    result = build_worker.main(task, Recorder())
    assert (result["status"], result["reason"], result["row_group"]) == ("bad", "invalid_utf8", 0)
    source = Path(task["parquet"])
    flaw = reader_of(source).preflight(source, "text", decode=True)
    assert flaw is not None and flaw.reason == "invalid_utf8"
    assert parquet_name(Source("prose", "a/b.txt", 1, "0" * 64)).endswith(".txt")
