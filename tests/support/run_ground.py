"""A run with sealed checkpoints and what decides about them, without processes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from stoker.checkpoints.retention import find_checkpoints
from stoker.plan.timelines import ancestry, read_timelines
from stoker.store.record import write_record
from stoker.supervise.actions import AnswerEnd
from stoker.supervise.mirror.inventory import Checkpoint, Checkpoints
from stoker.supervise.policy import Response
from stoker.supervise.run.record import Identity, RunRecord, configured
from stoker.supervise.state import Phase, RunState
from stokerd.supervision import policies
from stokerd.supervision.books.run_store import RunStore
from stokerd.supervision.requests import Requests
from stokerd.supervision.run import Run
from support.checkpoint_data import seal
from support.pipelines import make_pipeline
from support.plan_data import plan_of, segment

NAME = "step-000000030"
NO_TIMINGS = SimpleNamespace(proof=SimpleNamespace(observe=lambda _: None))


class Ground:
    """A run with checkpoints of steps 10, 20 and 30, all proven."""

    def __init__(self, home: Path, **changes: Any) -> None:
        self.pipeline = make_pipeline(home, **changes).pipeline
        self.pipeline.layout.create()
        self.files = self.pipeline.layout.run("main")
        self.files.create()
        for step in (10, 20, 30):
            if not (self.files.checkpoints / f"step-{step:09d}").exists():
                seal(self.files.checkpoints, step, files={"timelines.jsonl": b""})
        if not self.files.record.exists():
            known = {name: value for name, value in configured(self.pipeline).items() if name != "init_from"}
            text = dict.fromkeys(("run_id", "created", "build_id", "tokenizer_sha256", "dtype"), "x")
            identity = Identity(**{"run": "main", **text, "vocab_size": 400, "seq_len": 64, **known})
            write_record(self.files.record, RunRecord(identity).body())
        self.words: list[str] = []
        accounts = SimpleNamespace(
            timelines=lambda: read_timelines(self.files.timelines),
            history=lambda: ancestry(read_timelines(self.files.timelines)),
            planner=SimpleNamespace(plan=plan_of(segment(0, 1000))),
        )
        events = SimpleNamespace(record=lambda word, *_, **__: self.words.append(word))
        context = SimpleNamespace(pipeline=self.pipeline, events=events)
        parts = cast(
            Any, (RunStore(self.pipeline), Checkpoints(self.pipeline), None, accounts, None, NO_TIMINGS, None)
        )
        self.run = Run(cast(Any, context), RunState(Phase.CLEANING, 0.0, proofs={NAME: "proven"}), *parts)
        body = {"step": 30, "timeline": 0, "files": {}, "position": [0, 120]}
        self.run.checkpoints._proven[NAME] = Checkpoint(self.files.checkpoints / NAME, 30, body, "ab" * 32)
        self.requests = Requests(self.run)

    @property
    def record(self) -> RunRecord:
        return self.run.store.begun

    def answer(self, response: Response, kind: str = "crashed") -> None:
        policies.answer(self.run, AnswerEnd(1, 35, False, response=response, kind=kind))

    def roll_back(self) -> bool:
        asked = self.requests.rollbacks.of_policy()
        assert asked is not None
        return self.requests.rollbacks.make(asked.request)

    def here(self) -> list[int]:
        return sorted(one.step for one in find_checkpoints(self.files.checkpoints))
