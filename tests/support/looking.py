"""A run that was never trained, with every file it would have left, and its own memory of which row was when.

The sets are built by the real worker; the order, the positions and the labels are plain Python.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from stoker.config.load import load_pipeline
from stoker.config.schema import Pipeline
from stoker.corpus.records.dataset import DatasetPin, TokenizerPin, write_pin
from stoker.corpus.records.sources import Books, Source, write_source
from stoker.plan.log import Closed, End, Passed, PlanWriter, Segment, segment_key
from stoker.shards.build.build_worker import main
from stoker.store.files import write_atomic
from stoker.store.log import ChainedLog
from stoker.store.record import write_record
from stoker.supervise.run.record import Identity, RunRecord
from support.builds import Recorder, build_task, small_tokenizer
from support.checkpoint_data import seal
from support.text import documents, write_parquet

BUILT = ("a.parquet", "b.parquet", "c.parquet")
PIPELINE = """
name: small
state: state
hot: hot
warm: warm
dataset: {name: prose, source: {kind: folder, path: source}, filters: {min_chars: 10}}
tokenizer: {train: {vocab_size: 600, train_bytes: 1MB}}
shard: {val_ratio: 0.1, shard_tokens: 2000}
train: {run: main, steps: 60, seq_len: 64, global_batch: 6, micro_batch: 1,
        model: {layers: 1, width: 32, heads: 2, kv_heads: 2, ffn_width: 64}}
"""

RUN_ID = "f" * 32

Label = tuple[str, int]  # (source path, row)
Window = tuple[int, int]  # (entry, offset)


@dataclass
class Site:
    """A pipeline with three shard sets of several files each, a duplicate and a quarantined source."""

    home: Path
    texts: dict[str, list[str | None]]

    @property
    def file(self) -> Path:
        return self.home / "small.yaml"

    @property
    def pipeline(self) -> Pipeline:
        return load_pipeline(self.file, {})

    def configure(self, **train: int) -> None:
        """Change whole numbers of the pipeline file's section train."""
        text = self.file.read_text()
        for name, value in train.items():
            text = re.sub(rf"\b{name}: \d+", f"{name}: {value}", text)
        self.file.write_text(text)

    def set_of(self, path: str) -> Path:
        """Where the source's set is, on hot."""
        source = json.loads(self.pipeline.layout.source("prose", path).read_bytes())
        return self.pipeline.hot_layout.shard_set("prose", source["key"])


def make_site(home: Path) -> Site:
    """Build it; a source of 60 rows each."""
    home.mkdir(parents=True, exist_ok=True)
    site = Site(home, {path: documents(60, seed=number) for number, path in enumerate(BUILT)})
    site.file.write_text(PIPELINE)
    layout = site.pipeline.layout
    layout.create()
    tokenizer = small_tokenizer(layout.tokenizer("prose", 1))
    for path, texts in site.texts.items():
        parquet = write_parquet(home / "source" / path, texts, row_group=17)
        task = build_task(home, parquet, tokenizer, shard_tokens=2000)
        done = main(task, Recorder())
        sha256, size = task["source"]["sha256"], task["source"]["size"]
        write_source(
            layout,
            Source(
                "prose",
                path,
                size,
                sha256,
                state="proven",
                key=task["key"],
                books=Books.from_mapping(done["books"]),
                manifest_sha256=done["manifest_sha256"],
            ),
        )
    write_source(layout, Source("prose", "same.parquet", size, sha256, state="duplicate"))
    write_source(layout, Source("prose", "bad.parquet", 1, "c" * 64, state="quarantined", reason="truncated"))
    write_source(layout, Source("prose", "late.parquet", 1, "d" * 64, state="staged"))
    build = task["build"]
    pinned = TokenizerPin(
        f"tokenizers/{tokenizer.name}", build["tokenizer_sha256"], build["vocab_size"], build["eot"]
    )
    listing = (*BUILT, "bad.parquet", "late.parquet", "same.parquet")
    pin = DatasetPin("prose", 1, task["build_id"], build, pinned, {}, None, listing, complete=False)
    write_pin(layout, pin)
    identity = Identity(
        "main",
        RUN_ID,
        "2026-11-20T12:00:00Z",
        1,
        "prose",
        1,
        task["build_id"],
        build["tokenizer_sha256"],
        build["vocab_size"],
        "uint16",
        64,
    )
    run = layout.run("main")
    run.create()
    write_record(run.record, RunRecord(identity, state="running").body())
    return site


@dataclass
class FakeRun:
    """Plans, trains, seals and rolls back on paper, and remembers what each step of each timeline read."""

    site: Site
    timeline: int = 0
    step: int = 0
    steps: dict[tuple[int, int], list[Window]] = field(default_factory=dict)
    positions: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    skipped: set[Window] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.run = self.site.pipeline.layout.run("main")
        self.segments: dict[int, tuple[int, list[str]]] = {}  # entry -> (seq_len, paths)
        self._streams: dict[int, list[Label]] = {}
        self.order: list[Window] = []
        self.cursor = 0
        self.tokens = 0

    def plan(self, *paths: str, epoch: int = 0, seq_len: int = 64) -> None:
        """Append a segment of these sources' sets."""
        writer = PlanWriter(self.run.plan)
        n = len(writer.plan.entries)
        sets = [self.site.set_of(path) for path in paths]
        raw = [(one / "manifest.json").read_bytes() for one in sets]
        tokens = sum(json.loads(one)["books"]["train"]["tokens"] for one in raw)
        windows = (tokens - 1) // seq_len
        pairs = tuple(pair_of(one) for one in sets)
        tail = tokens - windows * seq_len
        key = segment_key(1, n)
        writer.append(Segment(n, epoch, pairs, seq_len, windows, tail, key, run_id=RUN_ID))
        self.segments[n] = (seq_len, list(paths))
        self.order += [(n, offset) for offset in range(windows)]

    def go_on(self, *paths: str, first: int, windows: int, epoch: int = 0, seq_len: int = 64) -> int:
        """Append a part of these sources' sets; return the tokens that it leaves."""
        writer = PlanWriter(self.run.plan)
        n = len(writer.plan.entries)
        pairs = [pair_of(self.site.set_of(path)) for path in paths]
        whole = Segment(n, epoch, pairs, seq_len, windows, 0, segment_key(1, n), run_id=RUN_ID)
        writer.append(replace(whole, dataset="prose", first=first))
        self.segments[n] = (seq_len, list(paths))
        self.order += [(n, offset) for offset in range(windows)]
        stream = [label for path in paths for label in train_labels(self.site.set_of(path), path)]
        self._streams[n] = stream[first : first + windows * seq_len + 1]
        return len(stream) - first - windows * seq_len

    def close(self, epoch: int, tail_tokens: int) -> None:
        """Append the end of an epoch."""
        writer = PlanWriter(self.run.plan)
        writer.append(Closed(len(writer.plan.entries), "prose", epoch, tail_tokens))

    def pass_over(self, path: str) -> None:
        """Append an entry that passes over a source."""
        writer = PlanWriter(self.run.plan)
        writer.append(Passed(len(writer.plan.entries), path, "quarantined"))

    def end(self) -> None:
        """Append the plan's end."""
        writer = PlanWriter(self.run.plan)
        writer.append(End(len(writer.plan.entries)))

    def launch(self, batch: int, steps: int = 60) -> None:
        """Note a launch from where the run is."""
        log = ChainedLog(self.run.launches)
        settings = {"global_batch": batch, "steps": steps}
        log.append(
            {
                "v": 1,
                "launch": f"l{self.step}",
                "timeline": self.timeline,
                "resume_step": self.step,
                "settings": settings,
                "time": "2026-11-20T12:00:00Z",
            }
        )
        log.close()

    def train(self, steps: int, batch: int) -> None:
        """Make steps of so many windows."""
        for _ in range(steps):
            taken: list[Window] = []
            while len(taken) < batch:
                window = self.order[self.cursor]
                self.cursor += 1
                if window not in self.skipped:
                    taken.append(window)
            self.step += 1
            self.tokens += sum(self.segments[entry][0] for entry, _ in taken)
            key = (self.timeline, self.step)
            self.steps[key] = taken
            self.positions[key] = [taken[-1][0], taken[-1][1] + 1]
            row = {
                "step": self.step,
                "timeline": self.timeline,
                "loss": 1.0,
                "tokens": self.tokens,
                "position": self.positions[key],
            }
            with self.run.metrics.open("a") as log:
                log.write(json.dumps(row) + "\n")

    def seal(self, **changes: Any) -> Path:
        """Seal a checkpoint of where the run is."""
        position = self.positions[self.timeline, self.step]
        body = {"position": position, "timeline": self.timeline, "tokens": self.tokens, **changes}
        return seal(self.run.checkpoints, self.step, **body)

    def roll_back(self, to: int, skip_to: int) -> None:
        """Give up all after step `to`, and never read the windows of the steps up to `skip_to` again."""
        first, last = self.positions[self.timeline, to], self.positions[self.timeline, skip_to]
        passed = [self.steps[self.timeline, step] for step in range(to + 1, skip_to + 1)]
        self.skipped |= {window for windows in passed for window in windows}
        cursor = self.order.index((first[0], first[1] - 1)) + 1
        parent, self.timeline = self.timeline, self.timeline + 1
        log = ChainedLog(self.run.timelines)
        log.append(
            {
                "v": 1,
                "timeline": self.timeline,
                "parent": parent,
                "from": to,
                "skip": [[first, last]],
                "reason": "spike",
            }
        )
        log.close()
        for old in range(1, to + 1):
            self.steps[self.timeline, old] = self.steps[parent, old]
            self.positions[self.timeline, old] = self.positions[parent, old]
        self.step, self.cursor = to, cursor

    def labels(self, window: Window) -> list[Label]:
        """The rows that a window holds tokens of, in order, token by token in plain Python and numpy."""
        entry, offset = window
        seq_len, paths = self.segments[entry]
        if entry not in self._streams:
            sets = [label for path in paths for label in train_labels(self.site.set_of(path), path)]
            self._streams[entry] = sets
        return window_labels(self._streams[entry], segment_key(1, entry), seq_len, offset)


def pair_of(shard_set: Path) -> tuple[str, str]:
    """The key of a set and the sha256 of its manifest."""
    raw = (shard_set / "manifest.json").read_bytes()
    return str(json.loads(raw)["key"]), hashlib.sha256(raw).hexdigest()


def train_labels(shard_set: Path, path: str) -> list[Label]:
    """The source's path and the row of each train token of a set."""
    found: list[Label] = []
    for ends in sorted(shard_set.glob("train-*.idx")):
        lengths = np.diff(np.fromfile(ends, "<u8").astype(int), prepend=0).tolist()
        rows = np.fromfile(ends.with_suffix(".row"), "<u8").tolist()
        for length, row in zip(lengths, rows, strict=True):
            found += [(path, row)] * length
    return found


def window_labels(stream: list[Label], key: str, seq_len: int, offset: int) -> list[Label]:
    """The rows in the window at an offset of an entry whose stream of tokens has these labels, in order."""
    place = by_hand(key, (len(stream) - 1) // seq_len, offset)
    return list(dict.fromkeys(stream[place * seq_len : place * seq_len + seq_len + 1]))


def by_hand(key: str, n: int, offset: int) -> int:
    """The plan's permutation in plain integers, a value at a time."""
    half = max(1, -(-max(n - 1, 1).bit_length() // 2))
    mask, word = (1 << half) - 1, (1 << 64) - 1
    keys = [
        int.from_bytes(hashlib.sha256(bytes.fromhex(key) + bytes([i])).digest()[:8], "little")
        for i in range(8)
    ]
    while True:
        left, right = offset >> half, offset & mask
        for round_key in keys:
            mixed = right ^ round_key
            mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & word
            mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & word
            left, right = right, left ^ ((mixed ^ (mixed >> 31)) & mask)
        offset = (left << half) | right
        if offset < n:
            return offset


def damage(path: Path) -> None:
    """Flip a bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    write_atomic(path, bytes(data))
