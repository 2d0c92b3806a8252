"""Replay: a history as phases, what rules out equal bits, rows held against each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stoker.plan.log import PlanWriter, Segment, segment_key
from stoker.plan.timelines import Timeline, Timelines, ancestry
from stoker.replay.replay_phases import Phase, insist_on_equal_bits, phases
from stoker.replay.replay_site import Site, link_sets
from stoker.replay.replay_trial import Trial
from stoker.replay.replay_verdict import read_rows, row_differences
from stoker.store.errors import ConfigError, DataError
from stoker.supervise.run.launch_record import Launch, Launched
from stoker.supervise.run.numerics_record import LEGACY
from stoker.supervise.run.record import Heldout, Identity, LaterHeldout, RunRecord
from support.pipelines import make_pipeline
from support.trainer_run import make_shard_set


def launched(timeline: int, resume_step: int, **settings: Any) -> Launched:
    return Launched("l", timeline, resume_step, {"global_batch": 8, **settings}, "")


def forked(*forks: tuple[int, int]) -> Timelines:
    """Timelines from (parent, from_step), numbered from 1."""
    return Timelines(tuple(Timeline(n, parent, step, (), "") for n, (parent, step) in enumerate(forks, 1)))


def told(parts: list[Phase]) -> list[tuple[int, int, int, int]]:
    return [(part.first, part.last, part.timeline, part.settings["global_batch"]) for part in parts]


@pytest.mark.parametrize(
    ("launches", "forks", "timeline", "to", "expected"),
    [
        ([launched(0, 0)], [], 0, 60, [(1, 60, 0, 8)]),
        # Kills: the same settings again and again are one phase.
        ([launched(0, 0), launched(0, 20), launched(0, 20), launched(0, 50)], [], 0, 60, [(1, 60, 0, 8)]),
        # A batch changed at a checkpoint.
        (
            [launched(0, 0), launched(0, 20, global_batch=16)],
            [],
            0,
            60,
            [(1, 20, 0, 8), (21, 60, 0, 16)],
        ),
        # Changed, killed before anything was sealed, and changed back: as if it had never been.
        (
            [launched(0, 0), launched(0, 20, global_batch=16), launched(0, 20)],
            [],
            0,
            60,
            [(1, 60, 0, 8)],
        ),
        # A checkpoint was lost: steps 11 to 30 were made again, with another batch.
        (
            [launched(0, 0), launched(0, 30), launched(0, 10, global_batch=4)],
            [],
            0,
            60,
            [(1, 10, 0, 8), (11, 60, 0, 4)],
        ),
        # A rollback to 30 from 50.
        ([launched(0, 0), launched(1, 30)], [(0, 30)], 1, 60, [(1, 30, 0, 8), (31, 60, 1, 8)]),
        # What was launched past the fork does not count, nor does it for a replay that ends before it.
        (
            [launched(0, 0), launched(0, 40, global_batch=16), launched(1, 30)],
            [(0, 30)],
            1,
            60,
            [(1, 30, 0, 8), (31, 60, 1, 8)],
        ),
        ([launched(0, 0), launched(1, 30)], [(0, 30)], 1, 25, [(1, 25, 0, 8)]),
        # The checkpoint forked from was lost: the new timeline began further back.
        ([launched(0, 0), launched(1, 20)], [(0, 30)], 1, 60, [(1, 20, 0, 8), (21, 60, 1, 8)]),
        # Back twice, the second time past the first fork.
        (
            [launched(0, 0), launched(1, 30), launched(2, 10, global_batch=2)],
            [(0, 30), (0, 10)],
            2,
            60,
            [(1, 10, 0, 8), (11, 60, 2, 2)],
        ),
        # The history of an earlier timeline, for a replay that was begun before the rollback.
        ([launched(0, 0), launched(1, 30)], [(0, 30)], 0, 60, [(1, 60, 0, 8)]),
    ],
)
def test_a_history_is_cut_where_settings_or_timeline_change(
    launches: list[Launched], forks: list[tuple[int, int]], timeline: int, to: int, expected: list[Any]
) -> None:
    assert told(phases(launches, forked(*forks), timeline=timeline, to=to)) == expected


def test_phases_also_end_where_a_checkpoint_is_wanted() -> None:
    for stop in (60, 70, None):
        assert len(phases([launched(0, 0)], Timelines(), timeline=0, to=60, stop=stop)) == 1
    parts = phases([launched(0, 0)], Timelines(), timeline=0, to=60, stop=40)
    assert [(part.first, part.last) for part in parts] == [(1, 40), (41, 60)]


def test_a_step_that_no_launch_on_record_made_is_refused() -> None:
    with pytest.raises(DataError, match="made step 1 of timeline 0"):
        phases([launched(0, 20)], Timelines(), timeline=0, to=60)


MADE = {"device": "cpu", "card": None, "cuda": None, "cpu": "AVX2", "torch": "2.13.0", "micro_batch": 8}
ON_CARD = {**MADE, "device": "cuda", "card": "H100"}


HALVED = {**MADE, "micro_batch": 4, "recompute": "blocks"}


def made(first: int, numerics: Any, *, deterministic: bool = True, **settings: Any) -> Phase:
    return Phase(first, first + 19, 0, {"numerics": numerics, "deterministic": deterministic, **settings})


@pytest.mark.parametrize(
    ("parts", "sealed", "said"),
    [
        ([made(1, MADE)], MADE, ""),
        # Another wish with the same result, and a field that only one of them has.
        ([made(1, MADE), made(21, {**MADE, "micro_batch_asked": 8, "later": 1})], MADE, ""),
        ([made(1, ON_CARD)], ON_CARD, ""),
        ([made(1, MADE, deterministic=False)], MADE, ""),
        ([made(1, None)], None, "steps 1 to 20: their numerics are not on record"),
        # A run that began before there were numerics: not whole.
        ([made(1, dict(LEGACY)), made(21, MADE)], MADE, "steps 1 to 20: their numerics are not on record"),
        ([made(1, MADE), made(21, ON_CARD)], None, "(device: cpu -> cuda; card: none -> H100); "),
        ([made(1, MADE), made(21, ON_CARD), made(41, MADE)], None, "up to there: --to 20"),
        ([made(1, MADE), made(21, MADE), made(41, {**MADE, "micro_batch": 4})], None, "--to 40"),
        # A phase of a run begins with its own, and keeps them.
        ([made(1, MADE), made(21, HALVED, phase="a"), made(41, HALVED, phase="a")], MADE, ""),
        ([made(1, MADE), made(7, HALVED, phase="a")], HALVED, ""),
        ([made(1, MADE), made(21, MADE, phase="a"), made(41, HALVED, phase="a")], None, "--to 40"),
        ([made(1, MADE), made(21, {**MADE, "torch": "2.14.0"}, phase="a")], None, "--to 20"),
        ([made(1, MADE), made(21, None)], None, "changed (to unknown ones); replay it up to there: --to 20"),
        ([made(1, ON_CARD, deterministic=False)], None, "on cuda with train.deterministic: false"),
        # The supervisor died before it heard of a smaller micro-batch.
        ([made(1, MADE)], {**MADE, "micro_batch": 4}, "step-7: it was made with other numerics"),
    ],
)
def test_only_steps_of_the_same_numerics_can_be_repeated(parts: list[Phase], sealed: Any, said: str) -> None:
    if not said:
        insist_on_equal_bits(parts, "step-7", sealed)
        return
    with pytest.raises(ConfigError) as refusal:
        insist_on_equal_bits(parts, "step-7", sealed)
    assert said in str(refusal.value)


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 9, "tim')
    return path


def row(step: int, loss: float = 2.0, timeline: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "step": step,
        "timeline": timeline,
        "loss": loss,
        "tokens_per_s": step * 1.5,
        "time": "now",
        **more,
    }


def test_rows_of_the_history_are_compared_and_no_others(tmp_path: Path) -> None:
    """Abandoned steps, steps beyond the end, and the clock's figures do not count."""
    history = ancestry(forked((0, 2)))
    recorded = write_rows(
        tmp_path / "a", [row(1), row(2), row(3, 7.0), row(3, 2.5, 1), row(4, 2.6, 1), row(5, 9.9, 1)]
    )
    repeated = write_rows(tmp_path / "b", [row(1, tokens_per_s=0.1), row(2), row(3, 2.5, 1), row(4, 2.6, 1)])
    rows = [read_rows(path, history, 4) for path in (recorded, repeated)]
    assert sorted(rows[0]) == [(1, True), (2, True), (3, True), (4, True)]
    assert list(row_differences(*rows)) == []


def test_a_held_out_loss_may_have_been_taken_on_either_side_of_a_fork(tmp_path: Path) -> None:
    before = {"step": 0, "timeline": 0, "val_loss": 5.5}
    recorded = write_rows(tmp_path / "a", [before, row(1, 2.5, 1)])
    repeated = write_rows(tmp_path / "b", [{**before, "timeline": 1}, row(1, 2.5, 1)])
    rows = [read_rows(path, ancestry(forked((0, 0))), 4) for path in (recorded, repeated)]
    assert [key for each in rows for key in each] == [(0, False), (1, True)] * 2
    assert list(row_differences(*rows)) == []


def test_each_difference_of_the_rows_is_told_with_both_values(tmp_path: Path) -> None:
    held = {"step": 2, "timeline": 0, "val_loss": 3.0}
    recorded = write_rows(tmp_path / "a", [row(1), row(2, 2.0000000000000004), held, {**held, "step": 3}])
    repeated = write_rows(tmp_path / "b", [row(2), {**held, "val_loss": 3.5}, row(3)])
    rows = [read_rows(path, [(0, None)], 9) for path in (recorded, repeated)]
    assert list(row_differences(*rows)) == [
        "step 1: the replay has no row",
        "step 2: val_loss is 3.0 in the record, 3.5 in the replay",
        "step 2: loss is 2.0000000000000004 in the record, 2.0 in the replay",
        "step 3: the record has no row",
    ]


def test_links_lead_to_hot_and_to_warm_where_a_set_has_left_hot(tmp_path: Path) -> None:
    data = make_pipeline(tmp_path, warm=str(tmp_path / "warm"))
    pipeline = data.pipeline
    hot, warm = tmp_path / "hot" / "shards" / "prose", tmp_path / "warm" / "shards" / "prose"
    pairs = [make_shard_set(hot, seed, 100) for seed in range(3)]
    site = Site(tmp_path / "out", {"dataset": "prose"})
    site.run.create()
    writer = PlanWriter(site.run.plan)
    for n, pair in enumerate(pairs):
        writer.append(Segment(n, 0, (pair,), 16, 6, 4, segment_key(1, n)))
    names = [key[:16] for key, _ in pairs]
    assert link_sets(site, pipeline) == names
    assert link_sets(site, pipeline) == []
    warm.mkdir(parents=True)
    (hot / names[0]).rename(warm / names[0])
    assert link_sets(site, pipeline) == names[:1]
    assert (site.shards / names[0]).readlink() == warm / names[0]
    (warm / names[0] / "manifest.json").write_text("{}")
    assert link_sets(site, pipeline) == [], "the trainer that opens it says that it is another one"


def test_a_replay_ends_where_the_record_says_and_by_no_patience(tmp_path: Path) -> None:
    trial = object.__new__(Trial)  # without the files of a replay
    trial.site, trial.base = Site(tmp_path, {"dataset": "prose"}), {"heldout": None}
    evaluate = {"every_steps": 2, "tokens": 8, "patience": 3}
    body = trial.body(Launch("l", 0, None, 0, tmp_path), Phase(1, 9, 0, {"evaluate": evaluate}))
    assert body["evaluate"] == evaluate | {"patience": None}


def test_a_replay_of_the_steps_before_a_phase_has_neither_its_rope_nor_its_windows(tmp_path: Path) -> None:
    trial = object.__new__(Trial)
    identity = Identity("main", "r", "2026", 1, "prose", 1, "b" * 64, "c" * 64, 400, "uint16", 10)
    later = LaterHeldout("e" * 64, 3, "uint16", 60, "long", "heldout-long.bin", 20)
    record = RunRecord(identity, Heldout("d" * 64, 6, "uint16", 60), (later,))
    base = {"phase": "long", "rope": {"theta": 5e5}, "heldout": {"sha256": "d" * 64}, "heldouts": ["theirs"]}
    trial.site, trial.base = Site(tmp_path, {}), {**base, "run_record": record.for_checkpoints()}
    settings: dict[str, Any] = {"evaluate": {}, "seq_len": 10, "phase": ""}
    before = trial.body(Launch("l", 0, None, 0, tmp_path), Phase(1, 9, 0, settings))
    assert (before["phase"], before["rope"], list(before["heldouts"])) == ("", None, [])
    settings |= {"seq_len": 20, "phase": "long", "rope": {"theta": 5e5}}
    since = trial.body(Launch("l", 0, None, 0, tmp_path), Phase(10, 19, 0, settings))
    assert (since["phase"], since["rope"]) == ("long", {"theta": 5e5})
    assert [one["file"] for one in since["heldouts"]] == [str(trial.site.run.root / "heldout-long.bin")]
