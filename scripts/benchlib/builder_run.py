"""One build worker alone: how soon it commits, how large it grows over a file."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.shards.format.identity import BuildParameters, Filters, build_id, set_key
from stoker.shards.tokenize.tokenizer import reload_tokenizer


@dataclass
class Built:
    """What one build took; `held` is resident bytes at each commit, in order."""

    first_commit_s: float = 0.0
    whole_s: float = 0.0
    cpu_s: float = 0.0
    peak_bytes: int = 0
    tokens: int = 0
    held: list[int] = field(default_factory=list)


def build_alone(home: Path, parquet: Path, tokenizer: Path, *, to_first_commit: bool = False) -> Built:
    """Run a worker on one file, to its end or to its first commit; RuntimeError where it fails."""
    task = task_for(home, parquet, tokenizer)
    built, began = Built(), time.monotonic()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "stoker.shards.build.build_worker"]
    last: dict[str, Any] = {}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(task).encode() + b"\n")
        process.stdin.close()
        for line in process.stdout:
            last = json.loads(line)
            if last.get("kind") == "commit":
                built.first_commit_s = built.first_commit_s or time.monotonic() - began
                built.held.append(_resident(process.pid))
                if to_first_commit:
                    process.kill()
    if to_first_commit:
        return built
    result = last.get("result") or last.get("done") or last
    if result.get("status") != "published":
        raise RuntimeError(f"the build of {parquet.name} ended with {last}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    built.whole_s = time.monotonic() - began
    built.cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    built.tokens = result["books"]["tokens"]
    note = json.loads((Path(task["target"]) / "build.json").read_text())
    built.peak_bytes = note["max_rss_bytes"]
    return built


def task_for(home: Path, parquet: Path, tokenizer: Path) -> dict[str, Any]:
    """The task as the loop sends it."""
    frozen = reload_tokenizer(tokenizer)
    build = BuildParameters(
        tokenizer_sha256=frozen.sha256,
        vocab_size=frozen.vocab_size,
        eot=frozen.eot,
        text_column="text",
        filters=Filters(min_chars=80),
        val_ratio=0.005,
        shard_tokens=100_000_000,
    )
    with parquet.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    key = set_key(sha256, build_id(build))
    return {
        "parquet": str(parquet),
        "source": {"path": parquet.name, "size": parquet.stat().st_size, "sha256": sha256},
        "dataset": "bench",
        "key": key,
        "build_id": build_id(build),
        "build": build.to_mapping(),
        "tokenizer_file": str(tokenizer),
        "building": str(home / "building" / key[:16]),
        "target": str(home / "sets" / key[:16]),
        "read_rows": 250,
        "commit": {"every_s": 2.0, "bytes": 64 << 20},
        "engine": "fastokens",
    }


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):  # it has ended
        return 0
