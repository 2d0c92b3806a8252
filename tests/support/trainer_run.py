"""A small run for the trainer: shard sets, plan, held-out windows and launch record, without any daemon."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stoker.checkpoints.handover import Sealer
from stoker.plan.log import End, PlanWriter, Segment, segment_key
from stoker.shards.tokenize.tokenizer import train_tokenizer
from stoker.store.files import canonical_json
from stoker.store.layout import RunLayout
from stoker.store.record import write_record
from stoker.supervise.run.metrics_log import TIMED
from stoker.training.launch import read_launch
from stoker.training.protocol import Protocol, Stop
from support.waiting import wait_until

if TYPE_CHECKING:
    from stoker.training.loop import Training

VOCAB = 300
SEQ_LEN = 16
TEXT = "the quick brown fox jumps over a lazy dog while café owners sip tea"


def make_shard_set(root: Path, seed: int, tokens: int) -> tuple[str, str]:
    """A shard set of random but learnable tokens; returns (key, sha256 of its manifest)."""
    random = np.random.default_rng(seed)
    steps = random.choice([1, 2, 3, 40], size=tokens, p=[0.6, 0.2, 0.1, 0.1])
    train = (np.cumsum(steps) % VOCAB).astype("<u2")
    key = hashlib.sha256(f"set {seed}".encode()).hexdigest()
    directory = root / key[:16]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "train-00000.bin").write_bytes(train.tobytes())
    manifest = canonical_json(
        {"v": 1, "key": key, "dtype": "uint16", "files": {"train-00000.bin": {"tokens": tokens}}}
    )
    (directory / "manifest.json").write_bytes(manifest)
    return key, hashlib.sha256(manifest).hexdigest()


@dataclass
class TrainerRun:
    """One run's directory and what is needed to launch its trainer as a real process."""

    root: Path
    steps: int = 12
    global_batch: int = 8
    overrides: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.layout = RunLayout(self.root / "run")
        self.shards = self.root / "shards"
        self.tokenizer = self.root / "tokenizer.json"
        if not self.layout.root.exists():
            self.layout.create()
            self.tokenizer.write_bytes(train_tokenizer([[TEXT] * 20], VOCAB))
            windows = np.random.default_rng(9).integers(0, VOCAB, (6, SEQ_LEN + 1)).astype("<u2")
            self.layout.heldout.write_bytes(windows.tobytes())
        self.launches = 0

    def plan(self, *windows: int, end: bool = False, seq_len: int = SEQ_LEN) -> None:
        """Append a segment of its own shard set for each number of windows, and perhaps the plan's end."""
        writer = PlanWriter(self.layout.plan)
        for count in windows:
            n = len(writer.plan.entries)
            pair = make_shard_set(self.shards, n, count * seq_len + 5)
            writer.append(Segment(n, 0, (pair,), seq_len, count, 5, segment_key(1, n)))
        if end:
            writer.append(End(len(writer.plan.entries)))

    def start(
        self,
        *,
        resume: Path | None = None,
        socket_path: Path | None = None,
        environ: Mapping[str, str] | None = None,
        below: Sequence[str] = (),
        **overrides: Any,
    ) -> subprocess.Popen[bytes]:
        """Launch the trainer, as a child of the command `below`; its stderr: <root>/trainer-<launch>.err."""
        self.launches += 1
        launch = f"launch-{self.launches}"
        write_record(self.layout.launch, self.record(launch) | self.overrides | overrides)
        environment = {
            **{name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ},
            "STOKER_LAUNCH": launch,
            "STOKER_RUN_DIR": str(self.layout.root),
            "STOKER_RESUME_FROM": str(resume or ""),
            "STOKER_PLAN": str(self.layout.plan),
            "STOKER_TIMELINES": str(self.layout.timelines),
            "STOKER_NOTIFY_SOCKET": str(socket_path or ""),
            **(environ or {}),
        }
        with self.errors.open("wb") as errors:
            return subprocess.Popen(
                [*below, sys.executable, "-m", "stoker.training.trainer"],
                env=environment,
                stderr=errors,
                cwd=self.root,
            )

    @contextlib.contextmanager
    def training(
        self, *, resume: Path | None = None, socket_path: Path | None = None, **overrides: Any
    ) -> Iterator[Training]:
        """The training of launch-1, loaded in this process, and its sealer."""
        from stoker.training.load import load  # torch takes seconds

        write_record(self.layout.launch, self.record("launch-1") | self.overrides | overrides)
        environ = {"STOKER_RUN_DIR": str(self.layout.root), "STOKER_RESUME_FROM": str(resume or "")}
        protocol = Protocol(str(socket_path or ""), "launch-1")
        sealer = Sealer(self.layout.checkpoints, "launch-1")
        try:
            yield load(read_launch(environ), protocol, Stop(), sealer)
        finally:
            sealer.end()

    @property
    def errors(self) -> Path:
        return self.root / f"trainer-{self.launches}.err"

    def record(self, launch: str) -> dict[str, Any]:
        held = self.layout.heldout.read_bytes()
        return {
            "v": 1,
            "launch": launch,
            "run": "main",
            "run_id": "run-1",
            "pipeline": "tiny",
            "timeline": 0,
            "config_digest": "d" * 64,
            "seed": 1,
            "steps": self.steps,
            "seq_len": SEQ_LEN,
            "global_batch": self.global_batch,
            "micro_batch": None,
            "numerics": None,
            "compile": "none",
            "recompute": "none",
            "precision": "auto",
            "deterministic": True,
            "threads": 1,
            "model": {
                "layers": 2,
                "width": 32,
                "heads": 4,
                "kv_heads": 2,
                "ffn_width": 64,
                "rope_theta": 10000.0,
                "norm_eps": 1e-5,
                "tie_embeddings": False,
            },
            "optimizer": {
                "name": "adamw",
                "lr": 3e-3,
                "betas": [0.9, 0.95],
                "weight_decay": 0.1,
                "clip": 1.0,
            },
            "schedule": {"name": "cosine", "warmup_steps": 3, "min_ratio": 0.1},
            "evaluate": {"every_steps": 5, "tokens": 96},
            "checkpoint": {"every_s": None, "every_steps": None},
            "shards_root": str(self.shards),
            "tokenizer_file": str(self.tokenizer),
            "vocab_size": VOCAB,
            "dtype": "uint16",
            "eot": 0,
            "heldout": {
                "file": str(self.layout.heldout),
                "sha256": hashlib.sha256(held).hexdigest(),
                "windows": 6,
                "seq_len": SEQ_LEN,
            },
            "run_record": {"v": 1, "run": "main", "run_id": "run-1"},
        }

    def checkpoints(self) -> list[Path]:
        return sorted(self.layout.checkpoints.glob("step-*"))

    def rows(self) -> list[dict[str, Any]]:
        """The metrics rows, without what differs from launch to launch (speed, waits, time)."""
        if not self.layout.metrics.exists():
            return []
        rows = [json.loads(line) for line in self.layout.metrics.read_bytes().split(b"\n")[:-1]]
        return [{key: value for key, value in row.items() if key not in TIMED} for row in rows]

    def last_step(self) -> int:
        """The last step whose whole row is in the log now."""
        return max((row["step"] for row in self.rows() if "loss" in row), default=0)


class Inbox:
    """A supervisor's datagram socket: what the trainer said, as dicts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.words: list[dict[str, str]] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)

    def read(self) -> list[dict[str, str]]:
        while True:
            try:
                data = self._socket.recv(65536)
            except BlockingIOError:
                return self.words
            self.words.append(dict(line.split("=", 1) for line in data.decode().split("\n")))

    def until_end(self, trainer: subprocess.Popen[bytes]) -> int:
        """Read on until the trainer has ended; its exit code.

        The socket's queue is short: a last word that finds it full for a second is given up.
        """
        wait_until(lambda: (self.read(), trainer.poll() is not None)[1], what="the trainer's end")
        assert trainer.returncode is not None
        return trainer.returncode

    def close(self) -> None:
        self._socket.close()
