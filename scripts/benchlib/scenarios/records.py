"""What many source records cost: to start with, to decide, to turn when nothing or one of them changed."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from benchlib.runner import Measures, Scenario
from stoker.config.load import load_pipeline
from stoker.config.schema import Pipeline
from stoker.corpus.records.dataset import DatasetPin, TokenizerPin, write_pin
from stoker.corpus.records.receipts import Listing, Receipt, write_listing
from stoker.corpus.records.sources import PUBLISHED, Books, Source, SourceState
from stoker.kit.process import children_tree
from stoker.shards.format.identity import build_id, set_key
from stoker.shards.format.pinned import parameters_asked
from stoker.store.files import canonical_json
from stoker.store.layout import record_name

COUNTS = (1_000, 50_000)
LONGEST_S = 120.0
PROBE = Path(__file__).parent.parent / "records_probe.py"
# Of twenty: the most is built, some wait, one is a duplicate.
STATES: tuple[SourceState, ...] = (*("proven",) * 16, "seen", "seen", "seen", "duplicate")
DOCUMENTS, TOKENS = 1_000_000, 700_000_000

PIPELINE = """\
name: bench
state: state
hot: hot
dataset: {name: prose, source: {kind: folder, path: source}}
tokenizer: {file: tokenizer.json}
stage: {copies: 1, free_floor: 1MiB}
shard: {workers: 1, release: never}
train: {steps: 10, model: demo, seq_len: 256, global_batch: 16, micro_batch: 16}
metrics: {ports: {download: 0, shard: 0, train: 0}}
"""


class RecordsScenario(Scenario):
    """A stage-shard loop with 1,000 (the scale) and 50,000 source records, receipts and sets on hot."""

    name = "records"
    repeats = 3
    limits: ClassVar = {"start_s": 2.0, "quiet_turn_s": 0.01, "one_changed_s": 0.15, "rss_bytes": 136 * 2**20}

    def prepare(self, directory: Path) -> None:
        for count in COUNTS:
            write_state(directory / str(count), count)

    def variants(self) -> Mapping[str, Callable[[Path], Measures]]:
        return {
            f"{count:,} records": lambda directory, count=count: {
                **_start(directory / str(count)),
                **_probe(directory / str(count)),
            }
            for count in COUNTS
        }


def _start(home: Path) -> Measures:
    """From the daemon's launch until it gives a worker the first file to stage; its memory then."""
    began = time.monotonic()
    with (home / "stderr.log").open("ab") as errors:
        daemon = subprocess.Popen(
            [str(Path(sys.executable).parent / "stoker-stage-shard"), "bench.yaml"],
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
        )
    try:
        while not _is_staging(daemon.pid):
            if daemon.poll() is not None or time.monotonic() > began + LONGEST_S:
                said = (home / "stderr.log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"the daemon staged nothing; it said:\n{said}")
            time.sleep(0.002)
        took = time.monotonic() - began
        cpu_s = sum(_cpu_ticks(daemon.pid)) / os.sysconf("SC_CLK_TCK")
        return {"start_s": took, "start_cpu_s": cpu_s, "rss_bytes": _rss(daemon.pid)}
    finally:
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(LONGEST_S)


def _probe(home: Path) -> Measures:
    """The parts by themselves, in a process of their own."""
    command = [sys.executable, str(PROBE), str(home / "bench.yaml")]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    if said.returncode:
        raise RuntimeError(said.stderr[-2000:])
    measures: Measures = json.loads(said.stdout)
    return measures


def _is_staging(pid: int) -> bool:
    for child in children_tree(pid):
        try:
            command = Path(f"/proc/{child.pid}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if b"stage_worker" in command:
            return True
    return False


def _cpu_ticks(pid: int) -> tuple[int, int]:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]), int(fields[12])


def _rss(pid: int) -> float:
    return float(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"))


# What lies on disk


def write_state(home: Path, count: int) -> None:
    home.mkdir()
    (home / "source").mkdir()
    (home / "tokenizer.json").write_text("{}\n")  # no daemon reads it
    (home / "bench.yaml").write_text(PIPELINE)
    pipeline = load_pipeline(home / "bench.yaml")
    layout, hot = pipeline.layout, pipeline.hot_layout
    layout.create()
    pin = _write_pin(pipeline)
    sources = [_source(number, pin.build_id) for number in range(count)]
    for source in sources:
        name = f"{record_name(source.dataset, source.path)}.json"
        write_record_undurably(layout.sources / name, source.to_record())
        write_record_undurably(layout.receipts / name, _receipt(home, source).to_record())
    shards = hot.shards("prose")
    shards.mkdir(parents=True)
    hot.owner_lock.touch()
    for source in sources:
        if source.state in PUBLISHED:
            (shards / source.key16).mkdir()
    files = tuple((source.path, source.size) for source in sources)
    write_listing(layout, Listing("prose", files, complete=True, revision=""))


def _write_pin(pipeline: Pipeline) -> DatasetPin:
    sha256 = hashlib.sha256(b"{}\n").hexdigest()
    name = "prose-v1.json"
    (pipeline.layout.datasets / "tokenizers" / name).write_text("{}\n")
    parameters = parameters_asked(pipeline, TokenizerPin("", sha256, 32_000, 0))
    pin = DatasetPin(
        dataset="prose",
        version=1,
        build_id=build_id(parameters),
        build=parameters.to_mapping(),
        tokenizer=TokenizerPin(f"tokenizers/{name}", sha256, 32_000, 0),
        asked={"file": sha256},
    )
    write_pin(pipeline.layout, pin)
    return pin


def _source(number: int, build: str) -> Source:
    path = f"sample/350BT/{number // 1000:03d}_{number % 1000:05d}.parquet"
    state = STATES[number % len(STATES)]
    content = number - 19 if state == "duplicate" else number
    sha256 = hashlib.sha256(f"content {content}".encode()).hexdigest()
    plain = Source("prose", path, 2**31 + number, sha256, state)
    if state not in PUBLISHED:
        return plain
    val = DOCUMENTS // 1000
    books: dict[str, Any] = {
        "rows": DOCUMENTS + number,
        "documents": DOCUMENTS,
        "dropped": {"min_chars": number},
        "chars": 3 * TOKENS + number,
        "tokens": TOKENS,
        "train": {"documents": DOCUMENTS - val, "tokens": TOKENS - number},
        "val": {"documents": val, "tokens": number},
    }
    manifest = hashlib.sha256(f"manifest {number}".encode()).hexdigest()
    return Source(
        "prose",
        path,
        plain.size,
        sha256,
        state,
        key=set_key(sha256, build),
        books=Books.from_mapping(books),
        manifest_sha256=manifest,
        engine="fastokens",
    )


def _receipt(home: Path, source: Source) -> Receipt:
    etag = f"{source.size}-{10**18 + source.size}-{source.size % 10**6}"
    file = str(home / "source" / source.path)
    return Receipt(source.dataset, source.path, file, source.size, source.sha256, "", etag, "verified")


def write_record_undurably(file: Path, body: Mapping[str, Any]) -> None:
    """As the store writes it, but not durable: a hundred thousand syncs take minutes."""
    summed = hashlib.sha256(canonical_json(body)).hexdigest()[:16]
    file.write_bytes(canonical_json({**body, "sum": summed}) + b"\n")
