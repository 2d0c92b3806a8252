"""A run's record, its horizon and books, its launch, and what may enter its plan."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.cli.pipeline.events import event_line
from stoker.corpus.records.dataset import DatasetPin, TokenizerPin, write_pin
from stoker.corpus.records.receipts import Listing, write_listing
from stoker.corpus.records.sources import Source, write_source
from stoker.plan.consumption import Holdings, consumed_body
from stoker.plan.growth import GrowthPolicy
from stoker.plan.log import End, Passed, Plan, Segment
from stoker.plan.positions import Position
from stoker.store.errors import ConfigError, DataError, UnknownFormat
from stoker.store.layout import RunLayout, StateLayout
from stoker.supervise.run.gates import RequiredData, start_gate
from stoker.supervise.run.launch_record import (
    Launch,
    config_digest,
    launch_body,
    launched_body,
    trainer_environment,
)
from stoker.supervise.run.origin import Origin, choose_origin
from stoker.supervise.run.planner import RETRY_S, Planner
from stoker.supervise.run.progress import finished_at
from stoker.supervise.run.record import (
    Heldout,
    Identity,
    LaterHeldout,
    RunRecord,
    configured,
    parse_record,
    refusal,
)
from support.books import books_of
from support.pipelines import make_pipeline

IDENTITY = Identity(
    run="main",
    run_id="r-1",
    created="2026-11-20T12:00:00Z",
    seed=1,
    dataset="prose",
    dataset_version=1,
    build_id="b" * 64,
    tokenizer_sha256="c" * 64,
    vocab_size=400,
    dtype="uint16",
    seq_len=10,
)


PIN = DatasetPin(
    "prose",
    1,
    "b" * 64,
    {},
    TokenizerPin("tokenizers/prose-v1.json", "c" * 64, 400, 0),
    {},
    listing=("a.parquet", "b.parquet"),
    complete=True,
)


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_a_run_record_comes_back_as_it_was_and_a_checkpoint_carries_its_identity() -> None:
    record = RunRecord(IDENTITY, Heldout("d" * 64, 6, "uint16", 60), state="running", launches=3, best_step=9)
    assert parse_record(record.body()) == record
    restored = parse_record(record.for_checkpoints())
    assert (restored.identity, restored.heldout, restored.launches) == (IDENTITY, record.heldout, 0)


def test_a_longer_phase_has_held_out_windows_of_its_own_once(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    record = RunRecord(IDENTITY, Heldout("d" * 64, 6, "uint16", 60))
    assert [record.lacks_heldout(*one) for one in (("", 20), ("a", 10), ("a", 9), ("a", 20))] == [
        *(False, False, False),  # by hand without a phase; as long as the run's; shorter
        True,
    ]
    assert not RunRecord(IDENTITY).lacks_heldout("a", 20), "the run has no held-out text"
    later = LaterHeldout("e" * 64, 3, "uint16", 60, "a", "heldout-a.bin", 20)
    record = replace(
        record, heldouts=(later, replace(later, windows=0, name="b", file="heldout-b.bin", seq_len=40))
    )
    assert parse_record(record.body()) == record
    assert parse_record(record.for_checkpoints()).heldouts == record.heldouts
    assert [record.lacks_heldout(*one) for one in (("a", 80), ("c", 20), ("c", 80))] == [False, False, True]
    told = {"name": "a", "file": str(tmp_path / "heldout-a.bin"), "sha256": "e" * 64}
    told |= {"windows": 3, "seq_len": 20}
    assert record.heldouts_upto(40, layout) == {"heldouts": [told]}, "one without windows is not read"
    assert record.heldouts_upto(19, layout) == {}, "a rollback to before the phase"
    names = [file.name for file in record.held_files(layout)]
    assert names == [
        "heldout.bin",
        "heldout-a.bin",
        "heldout-b.bin",
    ]


def test_a_launch_has_the_rope_and_the_held_out_files_of_its_step(tmp_path: Path) -> None:
    yarn = {"factor": 2.0, "original_seq_len": 10, "beta_fast": 32.0, "beta_slow": 1.0}
    longer = {"name": "a", "from": 30, "seq_len": 20, "rope": {"yarn": yarn}}
    phases = [longer, {"name": "b", "from": 40, "global_batch": 8}]
    later = LaterHeldout("e" * 64, 3, "uint16", 60, "a", "heldout-a.bin", 20)
    record = RunRecord(IDENTITY, Heldout("d" * 64, 6, "uint16", 60), (later,))

    def body(step: int, **train: Any) -> dict[str, Any]:
        keys = {"train__steps": 60, "train__seq_len": 10, **train}
        pipeline = make_pipeline(tmp_path, **keys).pipeline
        launch = Launch("l", 0, None, step, tmp_path / "socket")
        return launch_body(launch, pipeline, PIN, record)

    assert not {"phase", "rope", "heldouts"} & body(30).keys(), "a run without phases"
    made = {step: body(step, train__phases=phases) for step in (29, 30, 31, 40)}
    assert [one["phase"] for one in made.values()] == ["", "a", "a", "b"]
    assert [one.get("rope") for one in made.values()] == [None, *[{"yarn": yarn}] * 3]
    assert ["heldouts" in one for one in made.values()] == [False, True, True, True]
    settings = launched_body(made[30], resume_step=30, time="")["settings"]
    assert (settings["phase"], settings["rope"]) == ("a", {"yarn": yarn})


def test_a_record_names_the_checkpoint_that_the_run_began_with_and_an_older_record_has_none() -> None:
    begun = replace(IDENTITY, origin=Origin("/other/step-000000005", 5, "e" * 64))
    assert parse_record(RunRecord(begun).body()).identity == begun
    assert begun.init_from == "/other/step-000000005"
    assert "origin" not in RunRecord(IDENTITY).body()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, None),
        ({"vocab_size": 401}, "model.vocab_size is 401, this run's is 400"),
        ({"qk_norm": True}, "model.qk_norm is True, this run's is None"),
        ({"rope_theta": 500000.0}, "model.rope_theta is 500000.0, this run's is 10000.0"),
        ({"seq_len": 8}, None),
        ({"tokenizer": "d" * 64}, f"tokenizer (sha256) is {'d' * 64}, this run's is {'c' * 64}"),
    ],
)
def test_a_run_begins_with_parameters_of_the_same_model_and_tokenizer_alone(
    change: dict[str, Any], said: str | None, tmp_path: Path
) -> None:
    pipeline = make_pipeline(tmp_path, train__init_from="step-000000005").pipeline
    model = {"v": 1, **pipeline.train.model.body(), "vocab_size": 400, "seq_len": 64, **change}
    files = {"tokenizer.json": {"sha256": model.pop("tokenizer", "c" * 64)}}
    proof = {"body": {"step": 5, "files": files}, "digest": "e" * 64, "model": model}
    if said is None:
        assert choose_origin(pipeline, PIN, proof) == Origin(str(tmp_path / "step-000000005"), 5, "e" * 64)
        return
    with pytest.raises(ConfigError) as refused:
        choose_origin(pipeline, PIN, proof)
    assert said in str(refused.value)


def test_a_record_of_another_version_is_not_guessed_at() -> None:
    with pytest.raises(UnknownFormat, match=r"run\.json is of format version 2"):
        parse_record({**RunRecord(IDENTITY).body(), "v": 2})
    with pytest.raises(DataError, match="run_id"):
        parse_record({"v": 1, "run": "main"})


def test_what_must_not_change_is_refused_with_both_values(tmp_path: Path) -> None:
    pipeline = make_pipeline(tmp_path).pipeline
    begun = replace(IDENTITY, seed=pipeline.train.seed)
    assert refusal(pipeline, begun, configured(pipeline)) == ""
    changes = {"train__seed": 2, "train__init_from": "/other", "dataset__version": 2}
    changed = make_pipeline(tmp_path, **changes).pipeline
    told = refusal(changed, begun, configured(changed))
    assert "init_from is null in this run and '/other' now" in told
    assert f"seed is {begun.seed} in this run and 2 now" in told
    assert "dataset_version is 1 in this run and 2 now" in told


def test_the_digest_follows_the_model_and_not_the_horizon() -> None:
    first = config_digest(IDENTITY, {"layers": 2}, "adamw")
    assert first == config_digest(IDENTITY, {"layers": 2}, "adamw")
    assert first != config_digest(IDENTITY, {"layers": 3}, "adamw")


SEGMENT = Segment(0, 0, ((sha("a"), sha("m")),), 10, 25, 3, sha("key"))


@pytest.mark.parametrize(
    ("step", "position", "ended", "why"),
    [
        (100, Position(0, 4), False, "steps"),
        (99, Position(0, 4), False, None),
        (5, Position(0, 24), False, None),  # more may come
        (5, Position(0, 24), True, "data_exhausted"),
        (5, Position(0, 20), True, None),  # a whole batch is left
    ],
)
def test_a_run_ends_at_its_horizon_or_when_no_whole_batch_is_left(
    step: int, position: Position, ended: bool, why: str | None
) -> None:
    plan = Plan((SEGMENT, End(1)) if ended else (SEGMENT,), "")
    assert finished_at(step, position, plan, steps=100, global_batch=4) == why


def test_what_the_data_left_over_is_booked_as_remainder() -> None:
    plan = Plan((SEGMENT, End(1)), "")
    body = {"step": 6, "tokens": 240, "position": [0, 24]}
    books = consumed_body(Holdings("main", plan, finished="data_exhausted"), "step-000000006", body)
    assert (books["applied"], books["remainder"], books["tail_tokens"]) == (24, 1, 3)
    run = Holdings("main", plan, finished="steps")
    assert consumed_body(run, "step-000000006", body)["remainder"] == 0


def test_the_trainer_hears_nothing_that_is_meant_for_its_supervisor() -> None:
    launch = Launch("l-1", 0, None, 0, Path("/run/x.sock"))
    ours = {"NOTIFY_SOCKET": "/run/systemd/notify", "PATH": "/bin"}
    environ = trainer_environment(ours, launch, RunLayout(Path("/s/runs/main")))
    assert "NOTIFY_SOCKET" not in environ
    assert environ["PATH"] == "/bin"
    assert environ["STOKER_RESUME_FROM"] == ""
    assert environ["STOKER_RUN_DIR"] == "/s/runs/main"


POLICY = GrowthPolicy(seed=1, seq_len=10, segment_tokens=1000, epochs=1)
TARGET = 64  # windows


@pytest.fixture
def planner(tmp_path: Path) -> Planner:
    """Two published sets of 300 tokens each, listed and complete."""
    layout = StateLayout(tmp_path)
    layout.create()
    for name in ("a", "b"):
        source = Source(
            "prose",
            f"{name}.parquet",
            9,
            sha(name),
            "proven",
            sha("key" + name),
            books=books_of(300, 40, documents=4),
        )
        write_source(layout, replace(source, manifest_sha256=sha("manifest" + name)))
    write_pin(layout, PIN)
    layout.run("main").create()
    return Planner(layout, "prose", layout.run("main").plan)


def test_no_entry_names_a_set_before_its_proof(planner: Planner) -> None:
    pin = planner.pin()
    assert pin is not None
    assert planner.grow(pin, TARGET, POLICY, 0.0) == ()
    wanted = planner.to_prove(0.0)
    assert wanted == {sha("keya"): sha("manifesta"), sha("keyb"): sha("manifestb")}
    for key, digest in wanted.items():
        planner.proven(key, digest)
    segment, end = planner.grow(pin, TARGET, POLICY, 0.0)
    assert isinstance(segment, Segment)
    assert segment.sets == tuple(wanted.items())
    assert isinstance(end, End)
    assert planner.to_prove(0.0) == {}


def test_a_set_that_could_not_be_proven_is_tried_again_later_and_holds_its_place(planner: Planner) -> None:
    pin = planner.pin()
    assert pin is not None
    planner.not_proven(sha("keya"), now=0.0)
    planner.proven(sha("keyb"), sha("manifestb"))
    assert planner.grow(pin, TARGET, POLICY, 1.0) == ()  # b comes after a in the listing
    assert sha("keya") not in planner.to_prove(1.0)
    assert sha("keya") in planner.to_prove(RETRY_S + 1)


def waiting_for(planner: Planner, path: str, now: float) -> list[str]:
    """What the plan passes over once everything is proven that it asks for, where a path's record is gone."""
    pin = planner.pin()
    assert pin is not None
    pin = replace(pin, listing=(path, *pin.listing), complete=False)
    entries = planner.grow(pin, TARGET, SHORT, now)
    for key, digest in planner.to_prove(now).items():
        planner.proven(key, digest)
    entries += planner.grow(pin, TARGET, SHORT, now)
    return [entry.path for entry in entries if isinstance(entry, Passed)]


SHORT = replace(POLICY, segment_tokens=500, hold_s=100.0)


def test_a_hold_goes_on_where_it_was_with_another_supervisor(planner: Planner, tmp_path: Path) -> None:
    assert waiting_for(planner, "0.parquet", now=1000.0) == []
    assert waiting_for(planner, "0.parquet", now=1060.0) == []
    layout = StateLayout(tmp_path)
    again = Planner(layout, "prose", layout.run("main").plan)  # on a machine that was started anew
    assert waiting_for(again, "0.parquet", now=5.0) == []
    assert waiting_for(again, "0.parquet", now=44.0) == []
    assert waiting_for(again, "0.parquet", now=45.0) == ["0.parquet"]


def test_a_set_whose_proof_always_fails_is_waited_for_no_longer_than_one_that_never_comes(
    planner: Planner,
) -> None:
    pin = planner.pin()
    assert pin is not None
    passed: list[str] = []
    for now in range(0, 200, 10):
        entries = planner.grow(pin, TARGET, replace(SHORT, segment_tokens=200), float(now))
        for key, digest in planner.to_prove(float(now)).items():
            if key == sha("keya"):
                planner.not_proven(key, float(now))
            else:
                planner.proven(key, digest)
        passed += [entry.path for entry in entries if isinstance(entry, Passed)]
    assert passed == ["a.parquet"]


def test_what_is_in_view_and_what_is_held_out_come_from_the_books(planner: Planner) -> None:
    pin = planner.pin()
    assert pin is not None
    view = planner.in_view(pin)
    assert (view.sets, view.train_tokens, view.val_tokens, view.complete) == (2, 600, 80, True)
    assert list(planner.sets_with_heldout(pin, 40)) == [sha("keya")]
    assert list(planner.sets_with_heldout(pin, 41)) == [sha("keya"), sha("keyb")]


def test_a_dataset_whose_every_file_is_quarantined_is_complete_without_a_pin(tmp_path: Path) -> None:
    layout = StateLayout(tmp_path)
    layout.create()
    layout.run("main").create()
    planner = Planner(layout, "prose", layout.run("main").plan)
    assert not planner.in_view(None).complete
    write_listing(layout, Listing("prose", (("a.parquet", 9), ("b.parquet", 9)), True, ""))
    write_source(layout, Source("prose", "a.parquet", 9, sha("a"), state="quarantined"))
    assert not planner.in_view(None).complete
    write_source(layout, Source("prose", "b.parquet", 9, sha("b"), state="quarantined"))
    view = planner.in_view(None)
    assert view.complete
    assert (
        start_gate(view, RequiredData(sets=1, train_tokens=1, heldout_tokens=0, seq_len=8)).state
        == "hopeless"
    )


def test_an_event_is_one_line_with_its_sentence_last() -> None:
    event = {"time": "…", "seq": 3, "event": "run_finished", "step": 9, "path": None, "message": "steps"}
    assert event_line(event) == "run_finished step=9 - steps"
