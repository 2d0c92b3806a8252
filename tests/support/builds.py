"""Miniature builds for tests: a parquet, a tokenizer, and the task a stage-shard loop would send a worker."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stoker.shards.format.identity import BuildParameters, Filters, build_id, set_key
from stoker.shards.tokenize.tokenizer import load_tokenizer, train_tokenizer
from support.text import documents, write_parquet

VOCAB_SIZE = 600


class Recorder:
    """Stands in for a worker's report: keeps the messages."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.stopping = False
        self.answers: list[dict[str, Any]] = []

    def __call__(self, kind: str, **fields: Any) -> None:
        self.messages.append({"kind": kind, **fields})

    def receive(self) -> dict[str, Any] | None:
        """Nobody answers these builds unless the test says so."""
        return self.answers.pop(0)

    def raise_if_stopping(self) -> None:
        """Nobody asks these builds to stop unless the test says so."""
        if self.stopping:
            raise InterruptedError("asked to stop")


def small_tokenizer(path: Path) -> Path:
    """A tokenizer of at most VOCAB_SIZE ids trained on seeded text."""
    texts = [text for text in documents(300, seed=99) if text]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(train_tokenizer(iter([texts]), VOCAB_SIZE))
    return path


def build_task(
    home: Path,
    parquet: Path,
    tokenizer_file: Path,
    *,
    read_rows: int = 37,
    every_s: float = 3600.0,
    commit_bytes: int = 1 << 30,
    hot: str = "hot",
    filters: Mapping[str, Any] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """The task for one parquet; `changes` are build parameters that differ from a small default."""
    tokenizer = load_tokenizer(tokenizer_file)
    parameters = BuildParameters(
        **{
            "tokenizer_sha256": tokenizer.sha256,
            "vocab_size": tokenizer.vocab_size,
            "eot": tokenizer.eot,
            "text_column": "text",
            "filters": Filters.from_mapping(filters if filters is not None else {"min_chars": 10}),
            "val_ratio": 0.1,
            "shard_tokens": 20_000,
            **changes,
        }
    )
    data = parquet.read_bytes()
    source_sha256 = hashlib.sha256(data).hexdigest()
    build = build_id(parameters)
    key = set_key(source_sha256, build)
    return {
        "parquet": str(parquet),
        "source": {"path": f"data/{parquet.name}", "size": len(data), "sha256": source_sha256},
        "dataset": "prose",
        "key": key,
        "build_id": build,
        "build": parameters.to_mapping(),
        "tokenizer_file": str(tokenizer_file),
        "building": str(home / hot / ".building" / key[:16]),
        "target": str(home / hot / "shards" / "prose" / key[:16]),
        "read_rows": read_rows,
        "commit": {"every_s": every_s, "bytes": commit_bytes},
        "engine": "tokenizers",
    }


def small_source(home: Path, count: int = 700, seed: int = 1) -> Path:
    """A parquet of `count` seeded documents."""
    return write_parquet(home / f"source-{seed}.parquet", documents(count, seed), seed=seed)


class Started(subprocess.Popen[bytes]):
    """A worker that is killed where its test fails: one that has halted would never end."""

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        if kind is not None:
            self.kill()
        super().__exit__(kind, value, traceback)


def start_worker(module: str, task: Mapping[str, Any], **options: Any) -> subprocess.Popen[bytes]:
    """Start a worker as its daemon would, the task on its standard input."""
    process = Started(
        [sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(task).encode() + b"\n")
    process.stdin.close()
    return process


def messages_of(process: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    """The worker's messages as they come, to its last."""
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)


def run_to_end(module: str, task: Mapping[str, Any]) -> dict[str, Any]:
    """The worker's result; fails the test where it ends with an error."""
    with start_worker(module, task) as process:
        last = list(messages_of(process))[-1]
    assert process.returncode == 0, last
    return dict(last["result"] if "result" in last else last["done"])


def set_bytes(directory: Path) -> dict[str, bytes]:
    """Every file of a published set that is part of its identity."""
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.name != "build.json"}
