"""Replay: a history as phases, what rules out equal bits, rows held against each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stoker.plan.log import PlanWriter, Segment, segment_key
from stoker.plan.timelines import Timeline, Timelines, ancestry
from stoker.store.errors import DataError
from stoker.supervise.replay.replay_site import Phase, Site, forbids, link_sets, phases
from stoker.supervise.replay.replay_verdict import read_rows, row_differences
from stoker.supervise.run.launch_record import Launched
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


def test_only_what_decides_bits_forbids_a_comparison() -> None:
    recorded = {
        "compute": {"device": "cpu", "precision": "float32", "threads": 2, "micro_batch": 4},
        "versions": {"torch": "2.5.0", "numpy": "1.26", "python": "3.11"},
    }
    assert forbids(recorded, recorded) == []
    assert forbids(recorded, {"versions": {"torch": "2.5.0"}}) == []
    assert forbids(recorded, {**recorded, "versions": {"torch": "2.5.0", "numpy": "2.0"}}) == []
    other = {"compute": {**recorded["compute"], "threads": 4}, "versions": {"torch": "2.6.0"}}
    assert forbids(recorded, other) == [
        "torch is 2.5.0 in the recorded run and 2.6.0 here",
        "threads is 2 in the recorded run and 4 here",
    ]


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
