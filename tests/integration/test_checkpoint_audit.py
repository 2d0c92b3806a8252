"""The audit of a run: true books when all is well, and each planted fault told with its line and figure."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import stoker.checkpoints.proof as proof_module
import stoker.supervise.audit.audit as audit_module
from stoker.checkpoints.format import FileEntry, read_body, read_sums, write_body, write_sums
from stoker.config.load import load_pipeline
from stoker.config.schema import Pipeline
from stoker.corpus.records.dataset import DatasetPin, TokenizerPin, write_pin
from stoker.corpus.records.sources import Source, read_sources, tokens_of, write_source
from stoker.plan.consumption import Holdings, consumed_body
from stoker.plan.growth import GrowthPolicy, PlanSource, decide
from stoker.plan.log import Closed, End, PlanWriter, Segment, segment_key
from stoker.plan.positions import START, Accounts, Position, Skip, advance
from stoker.plan.timelines import Timeline
from stoker.store.layout import RunLayout
from stoker.store.log import ChainedLog
from stoker.store.record import read_record, write_record
from stoker.supervise.audit.audit import RunAudit, audit_run
from stoker.supervise.run.launch_record import SETTINGS, launched_body, note_launch
from stoker.supervise.run.record import Heldout, Identity, LaterHeldout, RunRecord, parse_record
from support.books import books_of
from support.checkpoint_data import seal
from support.plan_data import fake_set

BATCH, SEQ, STEPS = 16, 8, 30
CONFIG = """\
name: small
state: {root}/state
hot: {root}/hot
dataset:
  name: prose
  source: {{kind: folder, path: {root}/source}}
tokenizer: {{train: {{vocab_size: 4096, train_bytes: 1MB}}}}
train:
  seed: 1
  steps: {steps}
  seq_len: {seq}
  global_batch: {batch}
  model: {{layers: 1, width: 16, heads: 2, ffn: 32}}
"""

IDENTITY = Identity(
    run="main", run_id="ab" * 16, created="2026-11-20T12:00:00Z", seed=1, dataset="prose", dataset_version=1,
    build_id="b1" * 32, tokenizer_sha256="70" * 32, vocab_size=4096, dtype="uint16", seq_len=SEQ,
)  # fmt: skip


@dataclass
class Run:
    """A run made by hand: `rows` as they are in metrics.jsonl."""

    pipeline: Pipeline
    layout: RunLayout
    writer: PlanWriter

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.layout.metrics.read_text().splitlines()]

    @rows.setter
    def rows(self, rows: list[dict[str, Any]]) -> None:
        self.layout.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def audit(self, **options: bool) -> RunAudit:
        return audit_run(self.pipeline, **options)

    def launches(self, *launches: tuple[int, int, int]) -> None:
        """Note these launches and no others: their timeline, the step they resumed from, global batch."""
        self.layout.launches.unlink()
        for launch in launches:
            self.note_launch(*launch)

    def note_launch(self, timeline: int, step: int, batch: int) -> None:
        record = dict.fromkeys(SETTINGS) | {"launch": "l", "timeline": timeline}
        body = launched_body({**record, "global_batch": batch}, resume_step=step, time="")
        note_launch(self.layout.launches, body)

    def train(
        self,
        upto: int,
        *,
        after: int = 0,
        timeline: int = 0,
        skips: tuple[Skip, ...] = (),
        batch: int = BATCH,
    ) -> None:
        """Append rows for the steps, and a held-out row for every tenth, as a launch of their batch."""
        self.note_launch(timeline, after, batch)
        position = self.position(after)
        with self.layout.metrics.open("a") as log:
            for step in range(after + 1, upto + 1):
                following = advance(self.writer.plan, position, batch, skips)
                assert following is not None
                position = following
                tokens = Accounts(self.writer.plan, skips).tokens(position)
                row = {"step": step, "timeline": timeline, "loss": 3.0, "tokens": tokens}
                log.write(json.dumps({**row, "position": position.as_list()}) + "\n")
                if step % 10 == 0:
                    log.write(json.dumps({"step": step, "timeline": timeline, "val_loss": 3.1}) + "\n")

    def position(self, step: int) -> Position:
        rows = [row for row in self.rows if row["step"] == step and "loss" in row] if step else []
        return Position.parse(rows[-1]["position"]) if rows else START

    def seal(self, step: int, **changes: Any) -> Path:
        row = [row for row in self.rows if row["step"] == step and "loss" in row][-1]
        figures = {
            "tokens": row["tokens"],
            "position": row["position"],
            "timeline": row["timeline"],
            "plan_head": self.writer.plan.head,
            "run_record": RunRecord(IDENTITY).for_checkpoints(),
        }
        timelines = self.layout.timelines
        files = {
            "plan.jsonl": self.layout.plan.read_bytes(),
            "timelines.jsonl": timelines.read_bytes() if timelines.exists() else b"",
        }
        return seal(self.layout.checkpoints, step, files=files, **{**figures, **changes})

    def consume(self, step: int, *, finished: str | None = None, **changes: Any) -> None:
        """Write consumed.json for the step's checkpoint, as the supervisor does."""
        name = f"step-{step:09d}"
        body = read_body((self.layout.checkpoints / name / "checkpoint.json").read_bytes()).raw
        account = consumed_body(Holdings("main", self.writer.plan, finished=finished), name, body)
        write_record(self.layout.consumed, {**account, **changes})

    def finish(self, finished: str, *, step: int = 20) -> None:
        self.consume(step, finished=finished)
        record = read_record(self.layout.record)
        write_record(self.layout.record, {**record, "state": "finished", "finished": finished})


def reseal(path: Path, **changes: Any) -> None:
    """Change checkpoint.json and make its sums right again, as a careful forger would."""
    body = read_body((path / "checkpoint.json").read_bytes())
    raw = {key: value for key, value in body.raw.items() if key != "files"}
    files = {name: FileEntry(entry.size, entry.sha256) for name, entry in body.files.items()}
    data = write_body({**raw, **changes}, files)
    (path / "checkpoint.json").write_bytes(data)
    sums = read_sums((path / "SHA256SUMS").read_bytes())
    (path / "SHA256SUMS").write_bytes(
        write_sums({**sums, "checkpoint.json": hashlib.sha256(data).hexdigest()})
    )


def sources() -> list[Source]:
    made = []
    for name, tokens in (("a", 2500), ("b", 1500), ("c", 1303)):
        key, manifest = fake_set(name)
        made.append(
            Source(
                "prose", f"{name}.parquet", 10, "00" * 32, "proven", key,
                books=books_of(tokens), manifest_sha256=manifest,
            )
        )  # fmt: skip
    return made


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """Three sources, two segments an epoch, 25 of 30 steps made, checkpoints at 10 and 20."""
    root = tmp_path_factory.mktemp("made")
    (root / "source").mkdir()
    file = root / "small.yaml"
    file.write_text(CONFIG.format(root=root, steps=STEPS, seq=SEQ, batch=BATCH))
    pipeline = load_pipeline(file)
    pipeline.layout.create()
    layout = pipeline.layout.run("main")
    layout.create()
    for source in sources():
        write_source(pipeline.layout, source)
    writer = PlanWriter(layout.plan)
    offered = [
        PlanSource.of(one.path, one.state, one.key, one.manifest_sha256, tokens_of(one.books, "train"))
        for one in sources()
    ]
    policy = GrowthPolicy(seed=1, seq_len=SEQ, segment_tokens=4000, epochs=1)
    for entry in decide(writer.plan, offered, complete=True, target=10**7, policy=policy, now=0.0).entries:
        writer.append(entry)
    write_record(layout.record, RunRecord(IDENTITY, state="running").body())
    run = Run(pipeline, layout, writer)
    run.train(25)
    run.seal(10)
    run.seal(20)
    return load_pipeline(file)  # whose layouts nobody has asked for


@pytest.fixture
def run(made: Pipeline, tmp_path: Path) -> Run:
    """A copy of that run."""
    pipeline = made.model_copy(update={"state": tmp_path / "state", "hot": tmp_path / "hot"})
    shutil.copytree(made.state, pipeline.state)
    layout = pipeline.layout.run("main")
    return Run(pipeline, layout, PlanWriter(layout.plan))


def test_a_run_in_good_order_balances_with_the_right_figures(run: Run) -> None:
    audit = run.audit(deep=True)
    assert audit.findings == ()
    assert audit.figures() == {
        "plan": {
            "entries": 3, "windows": 499 + 162, "applied": 20 * BATCH, "skipped": 0, "remainder": 0,
            "ahead": 499 + 162 - 20 * BATCH, "tail_tokens": 4000 - 499 * 8 + 1303 - 162 * 8,
        },
        "checkpoints": {"proven": 2, "quarantined": 0, "abandoned": 0, "mirrored": 0},
    }  # fmt: skip


def test_a_run_that_has_not_begun_has_nothing_to_find(run: Run) -> None:
    shutil.rmtree(run.layout.root)
    audit = run.audit()
    assert audit.findings == ()
    assert audit.figures()["plan"]["entries"] == 0
    run.layout.create()
    assert run.audit().findings == ()


def test_a_run_without_checkpoints_yet_has_everything_ahead(run: Run) -> None:
    shutil.rmtree(run.layout.checkpoints)
    audit = run.audit()
    assert audit.findings == ()
    assert (audit.plan.applied, audit.plan.ahead) == (0, audit.plan.windows)


def test_a_run_that_used_up_its_data_books_the_remainder(run: Run) -> None:
    run.train(41, after=25)
    run.seal(41)
    run.finish("data_exhausted", step=41)
    audit = run.audit()
    assert audit.findings == ()
    assert (audit.plan.applied, audit.plan.remainder, audit.plan.ahead) == (41 * BATCH, 5, 0)


def test_a_rollback_with_a_skip_balances(run: Run) -> None:
    fork = Timeline(1, 0, 20, ((run.position(21), run.position(22)),), "non_finite")
    ChainedLog(run.layout.timelines).append(fork.body())
    run.train(24, after=20, timeline=1, skips=fork.skip)
    run.seal(24)
    audit = run.audit(deep=True)
    assert audit.findings == ()
    assert (audit.plan.applied, audit.plan.skipped) == (24 * BATCH, BATCH)


def test_an_abandoned_step_does_not_count_and_its_checkpoint_is_to_be_moved(run: Run) -> None:
    ChainedLog(run.layout.timelines).append(Timeline(1, 0, 10, (), "operator").body())
    audit = run.audit()
    assert audit.plan.applied == 10 * BATCH
    assert [finding.split(": ", 1)[1] for finding in audit.findings] == [
        "lies past the fork of timeline 1; the next start of the supervisor finishes it"
    ]


def test_three_timelines_and_a_batch_that_changed_balance_by_the_log_of_launches(run: Run) -> None:
    fork = Timeline(1, 0, 20, ((run.position(21), run.position(22)),), "non_finite")
    log = ChainedLog(run.layout.timelines)
    log.append(fork.body())
    run.train(24, after=20, timeline=1, skips=fork.skip)
    log.append(Timeline(2, 1, 22, (), "operator").body())
    run.train(27, after=22, timeline=2, skips=fork.skip, batch=BATCH // 2)
    run.seal(27)
    audit = run.audit(deep=True)
    assert audit.findings == ()
    assert (audit.plan.applied, audit.plan.skipped) == (22 * BATCH + 5 * BATCH // 2, BATCH)


def test_a_timeline_that_had_to_begin_before_its_fork_balances(run: Run) -> None:
    ChainedLog(run.layout.timelines).append(Timeline(1, 0, 20, (), "operator").body())
    shutil.rmtree(run.layout.checkpoints / "step-000000020")  # it was found bad
    run.train(24, after=10, timeline=1)
    run.seal(24)
    audit = run.audit()
    assert audit.findings == ()
    assert audit.plan.applied == 24 * BATCH


@pytest.mark.parametrize(
    ("launches", "words"),
    [
        ([(0, 0, BATCH * 2)], "step 1 is 16 windows after step 0, its launch trained on 32 a step"),
        ([(0, 10, BATCH)], ": steps from 1 on were made by no launch on record"),
        ([(0, 0, BATCH), (1, 20, BATCH)], "is of timeline 1, timelines.jsonl ends at 0"),
    ],
)
def test_a_log_of_launches_that_cannot_be_is_found(run: Run, launches: list[Any], words: str) -> None:
    run.launches(*launches)
    assert any(words in finding for finding in found(run)), found(run)


def test_consumed_is_compared(run: Run) -> None:
    run.finish("steps")
    write_record(run.layout.launch, {"v": 1, "steps": 20, "global_batch": BATCH})
    run.consume(20, finished="steps")
    assert found(run) == []
    figures = {
        "applied": (321, 320),
        "tokens": (1, 2560),
        "position": ([0, 304], [0, 320]),
        "skipped": (3, 0),
        "remainder": (3, 0),
        "tail_tokens": (3, 15),
        "run": ("other", "main"),
    }
    run.consume(20, finished="steps", **{name: wrong for name, (wrong, _) in figures.items()})
    told = {
        f"{run.layout.consumed}: {one} is {wrong}, recounted {true}" for one, (wrong, true) in figures.items()
    }
    assert set(found(run)) == told
    run.consume(20, finished="steps", checkpoint="step-000000010")
    words = "checkpoint is step-000000010, the newest proven one step-000000020"
    assert f"{run.layout.consumed}: {words}" in found(run)


def test_records_that_later_work_needs_are_missed(run: Run) -> None:
    run.layout.record.unlink()
    assert found(run) == [f"{run.layout.record}: missing, but step-000000020 was made by the run"]


def test_a_finished_run_has_its_consumption_on_record(run: Run) -> None:
    write_record(run.layout.launch, {"v": 1, "steps": 20, "global_batch": BATCH})
    run.finish("steps")
    assert found(run) == []
    run.layout.consumed.unlink()
    assert found(run) == [f"{run.layout.consumed}: missing, but the run is finished"]


def with_heldout(run: Run, windows: int = 3) -> Path:
    """A run with held-out windows, and checkpoints that know of them."""
    data = bytes(range(windows * (SEQ + 1) * 2))
    run.layout.heldout.write_bytes(data)
    held = Heldout(hashlib.sha256(data).hexdigest(), windows, "uint16", windows * SEQ)
    record = RunRecord(IDENTITY, held, state="running")
    write_record(run.layout.record, record.body())
    for step in (10, 20):
        reseal(run.layout.checkpoints / f"step-{step:09d}", run_record=record.for_checkpoints())
    return run.layout.heldout


def test_held_out_windows_must_be_those_of_the_run(run: Run) -> None:
    file = with_heldout(run)
    assert found(run) == []
    longer = run.layout.root / "heldout-long.bin"
    longer.write_bytes(b"longer")
    later = LaterHeldout(hashlib.sha256(b"longer").hexdigest(), 1, "uint16", 2, "long", longer.name, 2)
    held = replace(parse_record(read_record(run.layout.record)), heldouts=(later,))
    write_record(run.layout.record, held.body())
    assert found(run) == [], "it joined after these checkpoints"
    reseal(run.layout.checkpoints / "step-000000020", run_record=held.for_checkpoints())
    longer.unlink()
    assert found(run) == [f"{longer}: missing, the run is evaluated on its 1 windows"]
    write_record(run.layout.record, replace(held, heldouts=()).body())
    assert "run_record.heldouts [{" in " ".join(found(run))
    with_heldout(run)
    data = file.read_bytes()
    file.write_bytes(data[:5] + b"x" + data[6:])
    assert [finding.split(" is ")[0][: len(str(file)) + 8] for finding in found(run)] == [f"{file}: sha256"]
    file.unlink()
    assert found(run) == [f"{file}: missing, the run is evaluated on its 3 windows"]


def test_the_run_record_is_held_against_its_place_the_pin_and_the_checkpoints(run: Run) -> None:
    pin = DatasetPin(
        "prose", 1, IDENTITY.build_id, {}, TokenizerPin("t", IDENTITY.tokenizer_sha256, 4096, 0), {}
    )
    write_pin(run.pipeline.layout, pin)
    assert found(run) == []
    for name, value in {"run": "x", "dataset": "x", "build_id": "x", "tokenizer_sha256": "x"}.items():
        write_record(run.layout.record, {**RunRecord(IDENTITY).body(), name: value})
        findings = found(run)
        assert f"{run.layout.record}: {name} is x, on record is " in findings[0]
        assert f"step-000000010: run_record.{name} " in " ".join(findings)


def test_a_rollback_that_skips_what_is_trained_on_already_is_found(run: Run) -> None:
    fork = Timeline(1, 0, 20, ((run.position(3), run.position(4)),), "forged")
    ChainedLog(run.layout.timelines).append(fork.body())
    run.train(22, after=20, timeline=1)
    assert any(
        "step 21 says 2688 tokens; its position [0, 336] has 2560" in finding for finding in found(run)
    )


def test_a_run_that_moves_on_under_the_look_is_looked_at_again(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan grows by a set whose record the first look has missed."""
    looks = []

    def read(*args: Any) -> dict[str, Source]:
        looks.append(args)
        if len(looks) > 1:
            return read_sources(*args)
        run.writer.append(replace(run.writer.plan.segments[1], n=3, epoch=1, key=segment_key(1, 3)))
        return {}

    monkeypatch.setattr(audit_module, "read_sources", read)
    assert found(run) == []
    assert len(looks) == 2


def found(run: Run, **options: bool) -> list[str]:
    return list(run.audit(**options).findings)


def applied_twice(rows: list[dict[str, Any]]) -> None:
    """Step 14 trains on the windows of step 13 again, and everything behind it is consistent with that."""
    for row in rows:
        if row["step"] >= 14 and "loss" in row:
            row["position"][1] -= BATCH
            row["tokens"] -= BATCH * SEQ


def half_a_batch_twice(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if 14 <= row["step"] < 20 and "loss" in row:
            row["position"][1] -= BATCH // 2
            row["tokens"] -= BATCH * SEQ // 2


# Rows 1 to 10 are lines 1 to 10, then a held-out row: step 14 is line 15, step 20 line 21.
ROW_FAULTS: dict[str, tuple[Callable[[list[dict[str, Any]]], None], str]] = {
    "a batch applied twice": (applied_twice, "line 15: step 14 is 0 windows after step 13"),
    "half a batch applied twice": (half_a_batch_twice, "line 15: step 14 is 8 windows after step 13, its"),
    "a row written twice": (lambda rows: rows.insert(15, dict(rows[14])), "line 16: step 14"),
    "a held-out row written twice": (lambda rows: rows.insert(11, dict(rows[10])), "line 12: step 10"),
    "a row lost": (lambda rows: rows.__delitem__(14), "line 15: step 15 follows step 13"),
    "other tokens": (lambda rows: rows[14].update(tokens=1), "line 15: step 14 says 1 tokens"),
    "a held-out row of no timeline": (
        lambda rows: rows[10].update(timeline=3),
        "line 11: step 10: timeline 3 is not in timelines.jsonl",
    ),
    "a position beyond": (lambda rows: rows[14].update(position=[9, 0]), "line 15: step 14: position"),
    "an unknown timeline": (lambda rows: rows[14].update(timeline=4), "line 15: step 14: timeline 4"),
    "no row at all": (lambda rows: rows.clear(), "step 10 of timeline 0 is sealed in a checkpoint"),
    "rows cut too far": (lambda rows: rows.__delitem__(slice(15, None)), "step 20 of timeline 0 is sealed"),
}


@pytest.mark.parametrize("fault", ROW_FAULTS)
def test_a_wrong_row_is_found_with_its_line(run: Run, fault: str) -> None:
    change, words = ROW_FAULTS[fault]
    rows = run.rows
    change(rows)
    run.rows = rows
    findings = found(run)
    assert any(finding.startswith(f"{run.layout.metrics}: {words}") for finding in findings), findings


def test_a_row_being_written_is_no_finding_but_a_broken_one_is(run: Run) -> None:
    whole = run.layout.metrics.read_text()
    run.layout.metrics.write_text(whole + '{"step": 26, "ti')
    assert found(run) == []
    run.layout.metrics.write_text(whole + '{"step": 26, "ti\n')
    assert len(found(run)) == 1
    assert "line 28" in found(run)[0]


def plan_again(run: Run, change: Callable[[Segment], Segment]) -> None:
    """Write the plan anew, chain and all, with a changed second segment."""
    entries = run.writer.plan.entries
    run.layout.plan.unlink()
    writer = PlanWriter(run.layout.plan)
    for entry in entries:
        writer.append(change(entry) if isinstance(entry, Segment) and entry.n == 1 else entry)
    shutil.rmtree(run.layout.checkpoints)


def test_a_set_named_twice_in_an_epoch_is_found(run: Run) -> None:
    first = run.writer.plan.segments[0].sets[0]
    plan_again(run, lambda entry: replace(entry, sets=(*entry.sets, first)))
    words = f"{run.layout.plan}: entry 1: names set {first[0][:16]} again in epoch 0, first in entry 0"
    assert found(run)[0].startswith(words)


def test_the_second_epoch_may_name_the_sets_of_the_first(run: Run) -> None:
    last = run.writer.plan.segments[1]
    run.writer.append(replace(last, n=3, epoch=1, key=segment_key(1, 3)))
    assert found(run) == []
    run.writer.append(replace(last, n=4, epoch=1, key=segment_key(1, 4)))
    assert len(found(run)) == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda entry: replace(entry, windows=entry.windows + 1),
            "its shard sets have 1303 train tokens",
        ),
        (lambda entry: replace(entry, tail_tokens=0), "which give 162 and 7"),
        (lambda entry: replace(entry, epoch=2), "epoch 2 follows epoch 0"),
        (lambda entry: replace(entry, key="00" * 32), "its key is not that of the run's seed"),
        (lambda entry: replace(entry, sets=(fake_set("other"),)), "which no published source record has"),
        (
            lambda entry: replace(entry, sets=((entry.sets[0][0], "11" * 32),)),
            "has manifest sha256 1111111111111111, the record of c.parquet",
        ),
    ],
)
def test_a_wrong_entry_is_found(run: Run, change: Callable[[Segment], Segment], words: str) -> None:
    plan_again(run, change)
    findings = found(run)
    assert any(f"{run.layout.plan}: entry 1: " in finding and words in finding for finding in findings), (
        findings
    )


def in_parts(run: Run, change: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Append an epoch in three parts and its end, some entries changed; return the findings."""
    parts = [("a", 0, 100), ("ab", 800, 300), ("bc", 700, 200)]
    entries: list[Segment | Closed] = []
    for n, (names, first, windows) in enumerate(parts, start=3):
        sets, key = [fake_set(name) for name in names], segment_key(1, n)
        entries.append(Segment(n, 1, sets, SEQ, windows, 0, key, dataset="prose", first=first))
    for entry in (*entries, Closed(6, "prose", 1, 503)):
        run.writer.append(replace(entry, **change.get(entry.n, {})))
    return [finding.removeprefix(f"{run.layout.plan}: ") for finding in found(run)]


SETS = {name: fake_set(name) for name in "abc"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, []),
        (
            {5: {"first": 696}},
            ["entry 5: it begins at token 696 of set 3e23e8160039594a, the part before it ended at token 700",
             "entry 6: it closes an epoch with 503 tail tokens, the books of its sets leave 507"],
        ),
        ({6: {"tail_tokens": 500}}, ["entry 6: it closes an epoch with 500 tail tokens, the books"]),
        (
            {4: {"windows": 200}, 5: {"first": 2400, "sets": [SETS["b"], SETS["c"]], "windows": 1}},
            ["entry 5: it begins at token 2400 of set 3e23e8160039594a", "entry 6: it closes an",
             "entry 4: 200 windows from token 800 on", "entry 5: 1 windows from token 2400 on"],
        ),
        (
            {5: {"sets": [SETS["b"], SETS["a"]]}, 6: {"tail_tokens": 1700}},
            ["entry 5: names set ca978112ca1bbdca again in epoch 1, first in entry 4"],
        ),
    ],
)  # fmt: skip
def test_parts_follow_each_other_and_their_epochs_balance(
    run: Run, change: Mapping[int, Mapping[str, Any]], words: list[str]
) -> None:
    findings = in_parts(run, change)
    assert len(findings) == len(words), findings
    assert all(one.startswith(its) for one, its in zip(findings, words, strict=True)), findings


def test_a_damaged_plan_is_found_and_named(run: Run) -> None:
    lines = run.layout.plan.read_bytes().splitlines(keepends=True)
    run.layout.plan.write_bytes(lines[0].replace(b'"epoch":0', b'"epoch":5') + b"".join(lines[1:]))
    assert any(f"{run.layout.plan}: line 2" in finding for finding in found(run))


@pytest.mark.parametrize("name", ["plan.jsonl", "timelines.jsonl"])
def test_a_last_line_that_is_no_entry_is_torn_without_its_newline_and_damage_with_it(
    run: Run, name: str
) -> None:
    log = run.layout.root / name
    log.touch()
    whole = log.read_bytes()
    for garbage in (b'{"v":1,"n":9,"wind', b'{"v":1,"n":9,"windows":7,"prev":3}', bytes(50)):
        log.write_bytes(whole + garbage)
        assert found(run) == []
        log.write_bytes(whole + garbage + b"\n")
        line = whole.count(b"\n") + 1
        told = any(f"{log}: line {line} does not parse, and is whole" in finding for finding in found(run))
        assert told == (b"\0" not in garbage)  # zeros are what a power cut leaves
        log.write_bytes(whole + garbage + b"\n" + b'{"v":1,')  # somebody is writing the next one
        assert found(run) == []
    log.write_bytes(whole + b"garbage\n")
    copy = run.seal(25) / name
    log.write_bytes(whole)
    assert any(f"{copy}: line {line} does not parse" in finding for finding in found(run))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokens": 2432}, "tokens=2432, but position [0, 320] has 2560 before it"),
        ({"position": [0, 304]}, "tokens=2560, but position [0, 304] has 2432 before it"),
        ({"position": [7, 0]}, "lies beyond the plan's 3 entries"),
        ({"plan_head": "11" * 32}, "plan_head is 1111111111111111"),
        ({"run_id": "cd" * 16}, "is not the run's"),
        ({"run": "other"}, "run other is not the run's, main"),
        ({"run_record": {**RunRecord(IDENTITY).for_checkpoints(), "seed": 7}}, "run_record.seed 7 is not"),
        ({"timeline": 3}, "timeline 3 is not in timelines.jsonl"),
    ],
)
def test_a_forged_checkpoint_is_found(run: Run, changes: dict[str, Any], words: str) -> None:
    path = run.layout.checkpoints / "step-000000020"
    reseal(path, **changes)
    findings = found(run, deep=True)
    assert any(finding.startswith(f"{path}: ") and words in finding for finding in findings), findings


def test_a_forged_checkpoint_that_agrees_with_itself_is_found_by_its_row(run: Run) -> None:
    reseal(run.layout.checkpoints / "step-000000020", tokens=2432, position=[0, 304])
    assert any("line 21: step 20 has position [0, 320]" in finding for finding in found(run))


def test_a_plan_that_forked_from_a_checkpoints_copy_is_found(run: Run) -> None:
    path = run.layout.checkpoints / "step-000000020"
    entries = run.writer.plan.entries
    run.layout.plan.unlink()
    writer = PlanWriter(run.layout.plan)
    for entry in entries:
        writer.append(End(entry.n, "other") if isinstance(entry, End) else entry)
    assert f"{path}: its plan.jsonl is no prefix of the run's plan" in found(run)


def test_a_flipped_bit_in_a_checkpoint_is_found_by_the_deep_audit(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof_module, "QUICK_BYTES", 100)  # the tensors of this run are small
    file = run.layout.checkpoints / "step-000000020" / "model-00001.safetensors"
    data = bytearray(file.read_bytes())
    data[-3] ^= 8
    file.write_bytes(data)
    assert found(run) == []
    assert found(run, deep=True) == [f"{file.parent}: invalid: sha256 of {file.name} differs"]
    file.write_bytes(data[:-1])
    assert f"{file.parent}: invalid: {file.name} has" in found(run)[0]


def test_a_file_that_no_list_names_is_found(run: Run) -> None:
    extra = run.layout.checkpoints / "step-000000020" / "model-00002.safetensors"
    extra.write_bytes(b"x")
    assert found(run) == [f"{extra}: in no list of this checkpoint"]


def test_a_run_that_says_it_is_finished_must_be(run: Run) -> None:
    run.finish("steps")
    assert found(run) == [
        f"{run.layout.record}: finished at step 30, the newest proven checkpoint is step 20"
    ]
    run.finish("data_exhausted")
    assert found(run) == [f"{run.layout.record}: finished for want of data, but 341 windows are left"]
    run.train(30, after=25)
    run.seal(30)
    run.finish("steps", step=30)
    assert found(run) == []


def test_many_wrong_rows_do_not_bury_the_rest(run: Run) -> None:
    run.rows = [{**row, "tokens": 0} if "loss" in row else row for row in run.rows]
    findings = found(run)
    assert len(findings) == 21
    assert findings[-1].endswith("more findings than these 20")


def test_a_finding_stands_while_the_run_trains_on(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.launches((0, 900, BATCH))

    def train_on(layout: RunLayout, deep: bool) -> dict[str, Any]:
        run.train(run.rows[-1]["step"] + 1, after=run.rows[-1]["step"])
        run.launches((0, 900, BATCH))
        return {}

    monkeypatch.setattr(audit_module, "_proofs", train_on)
    assert any("steps from 1 on were made by no launch" in finding for finding in found(run))
