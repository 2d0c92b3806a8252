"""A run's directory as the supervisor leaves it before a launch, for the real trainer without any daemon."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from demolib import prose

from stoker.config.load import load_pipeline
from stoker.corpus.records.dataset import DatasetPin, TokenizerPin
from stoker.plan.log import End, PlanWriter, Segment, segment_key
from stoker.store.files import canonical_json
from stoker.store.record import write_record
from stoker.supervise.run import launch_record
from stoker.supervise.run.record import Heldout, Identity, RunRecord

Tokens = npt.NDArray[np.uint16]
TOKENIZER = b"{}"  # the trainer asks only for its hash


@dataclass(frozen=True)
class Workload:
    """The keys of train: in the configuration, and the vocabulary."""

    train: Mapping[str, Any]
    vocab: int

    @property
    def window(self) -> int:
        """The tokens of a window: the inputs and one more target."""
        return int(self.train["seq_len"]) + 1

    def made_up(self, windows: int) -> Tokens:
        """Tokens for so many windows: few ids come often, most of them seldom, as in text."""
        drawn = np.random.default_rng(1).random(windows * self.window) ** 4
        return (drawn * self.vocab).astype("<u2")


class PreparedRun:
    """One run: configuration, shard set, plan with its end, held-out windows, launch.json."""

    def __init__(self, home: Path, workload: Workload, train: Tokens, heldout: Tokens | None = None) -> None:
        home.mkdir()
        self.workload, self.heldout = workload, heldout
        tokenizer = home / "tokenizer.json"
        tokenizer.write_bytes(TOKENIZER)
        quiet = {"evaluate": {"every_steps": None}, "checkpoint": {"every": None, "every_steps": 10**6}}
        body = {
            "name": "bench",
            "state": str(home / "state"),
            "hot": str(home / "hot"),
            "dataset": {"name": "text", "source": {"kind": "folder", "path": str(home / "source")}},
            "tokenizer": {"file": str(tokenizer)},
            "train": {**quiet, **workload.train},
            "metrics": {"ports": {"download": 0, "shard": 0, "train": 0}},
        }
        (home / "bench.yaml").write_text(json.dumps(body))
        self.pipeline = load_pipeline(home / "bench.yaml")
        self.layout = self.pipeline.layout.run("main")
        self.layout.create()
        if heldout is not None:
            self.layout.heldout.write_bytes(heldout.tobytes())
        self.token_file = self._publish(train)
        self._home = home

    def __enter__(self) -> PreparedRun:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._home)

    def launch(self, *, until: int | None = None, resume: Path | None = None) -> dict[str, str]:
        """Writes launch.json and returns the environment of its trainer."""
        seq_len, held = self.pipeline.train.seq_len, None
        if self.heldout is not None:
            digest, size = hashlib.sha256(self.heldout.tobytes()).hexdigest(), self.heldout.size
            held = Heldout(digest, size // (seq_len + 1), "uint16", size)
        sha256, vocab = hashlib.sha256(TOKENIZER).hexdigest(), self.workload.vocab
        identity = Identity("main", "bench", "", 1, "text", 1, "build", sha256, vocab, "uint16", seq_len)
        tokenizer = TokenizerPin(str(self.pipeline.file.parent / "tokenizer.json"), sha256, vocab, 0)
        pin = DatasetPin("text", 1, "build", {}, tokenizer, {})
        launch = launch_record.Launch("bench", 0, resume, 0, self.layout.root / "socket", until)
        record = RunRecord(identity, held)
        write_record(self.layout.launch, launch_record.launch_body(launch, self.pipeline, pin, record))
        return launch_record.trainer_environment(os.environ, launch, self.layout)

    def rows(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl."""
        return [json.loads(line) for line in self.layout.metrics.read_text().splitlines()]

    def _publish(self, tokens: Tokens) -> Path:
        """Writes a shard set with these tokens and a plan with its windows, in one entry."""
        key, seq_len = hashlib.sha256(tokens.tobytes()).hexdigest(), self.pipeline.train.seq_len
        directory = self.pipeline.hot_layout.shard_set("text", key)
        directory.mkdir(parents=True)
        file = directory / "train-00000.bin"
        file.write_bytes(tokens.tobytes())
        files = {file.name: {"tokens": tokens.size}}
        manifest = canonical_json({"v": 1, "key": key, "dtype": "uint16", "files": files})
        (directory / "manifest.json").write_bytes(manifest)
        windows = (tokens.size - 1) // seq_len
        pair = (key, hashlib.sha256(manifest).hexdigest())
        writer = PlanWriter(self.layout.plan)
        writer.append(
            Segment(0, 0, [pair], seq_len, windows, tokens.size - windows * seq_len, segment_key(1, 0))
        )
        writer.append(End(1))
        return file


def byte_text(tokens: int) -> Tokens:
    """The demo's text as its UTF-8 bytes, so many; a document ends in a 0. Raises RuntimeError for less."""
    documents = prose.gather(tokens, 1, lambda _: None)
    found = b"\0".join(text.encode() for _, text in documents)
    if len(found) < tokens:
        raise RuntimeError(f"this machine has {len(found)} bytes of prose, {tokens} are needed")
    return np.frombuffer(found[:tokens], np.uint8).astype("<u2")
