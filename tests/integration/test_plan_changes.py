"""A run whose surroundings change: files are added, all is stopped, batches and windows differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stoker.corpus.sources import read_sources
from stoker.plan.consumption import read_holdings
from stoker.plan.log import read_plan
from stoker.plan.residency import planned
from stoker.store.layout import DAEMONS, STAGE_SHARD
from stoker.store.record import read_record
from support.audits import audit_of
from support.parquet import write_fineweb
from support.pipelines import DataPipeline
from support.training import TrainPipeline, on_one_core
from support.waiting import wait_until
from support.warm_ground import SETTINGS, Ground, at_work


def add_file(data: DataPipeline, name: str, seed: int) -> None:
    """Put a whole file into the source folder at once."""
    write_fineweb(data.home / "made" / name, rows=150, seed=seed).rename(data.source / name)


def of_train(**changes: Any) -> dict[str, Any]:
    return {"train": {**SETTINGS["train"], **changes}}


def test_files_join_while_it_trains_and_after_a_pause_it_goes_on_with_other_batches_and_windows(
    ground: Ground, tmp_path: Path
) -> None:
    here = {"dataset__source__path": str(tmp_path / "source"), "dataset__filters": {"min_chars": 20}}
    run = TrainPipeline(ground.copy(tmp_path, **here))
    for file in sorted(ground.made.source.iterdir()):
        (run.data.source / file.name).hardlink_to(file)
    daemons = {}
    try:
        with on_one_core():
            daemons = {name: run.data.start(name) for name in DAEMONS}
        run.wait_for_step(3)
        add_file(run.data, "0-and-a-half.parquet", 11)
        add_file(run.data, "9.parquet", 12)
        run.wait_for_step(14)
    finally:
        codes = [daemon.stop(40) for daemon in daemons.values()]
    assert codes == [0, 0, 0]
    paused_at = run.last_step()
    before = read_plan(run.run.plan)

    run = TrainPipeline(ground.again(tmp_path, **here, **of_train(seq_len=32, global_batch=24)))
    try:
        with on_one_core():
            daemons = {name: run.data.start(name) for name in DAEMONS}
        wait_until(lambda: run.record().get("state") == "finished", 120, "the end of the run")
    finally:
        codes = [daemon.stop(40) for daemon in daemons.values()]
    assert codes == [0, 0, 0]
    plan = read_plan(run.run.plan)
    assert plan.hashes[: len(before.hashes)] == before.hashes
    lengths = [segment.seq_len for segment in plan.segments]
    assert lengths == sorted(lengths, reverse=True)
    assert set(lengths) == {64, 32}
    sources = run.data.sources()
    assert len(sources) == 6
    keys = [key for segment in plan.segments for key, _ in segment.sets]
    assert sorted(keys) == sorted(str(source.key) for source in sources.values()), "each set once"
    added = [str(sources[name].key) for name in ("0-and-a-half.parquet", "9.parquet")]
    assert keys.index(added[0]) < keys.index(added[1])
    rows = run.rows()
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    assert paused_at in [event["resume_step"] for event in run.events("trainer_launched")]
    audit = audit_of(run.data.file)
    assert audit["findings"] == []
    assert audit["plan"]["applied"] == paused_at * 16 + (len(rows) - paused_at) * 24
    assert 0 <= audit["plan"]["remainder"] < 24


def test_a_second_run_over_the_same_sets_takes_none_away_from_the_first(
    ground: Ground, tmp_path: Path
) -> None:
    off = {"evict": {"target_free": "1000TiB", "keep_hot_sets": 0}}
    run = TrainPipeline(ground.copy(tmp_path, **off))
    layout = run.data.pipeline.layout
    with at_work(run.data):
        run.wait_for_step(12)
    stopped_at = run.last_step()
    held = planned(one for one in read_holdings(layout) if one.run == "main")
    assert held
    already = len(run.data.events(STAGE_SHARD, "shard_set_evicted"))

    other = ground.again(tmp_path, **off, **of_train(run="other", seed=7))
    second = layout.run("other")
    with at_work(other):
        wait_until(lambda: read_state(second.record) == "finished", 120, "the end of the second run")
        wait_until(lambda: on_warm_only(other) == all_keys(other) - held, 60, "what nobody needs to leave")
    evicted = {event["key"] for event in other.events(STAGE_SHARD, "shard_set_evicted")[already:]}
    assert evicted == {key[:16] for key in all_keys(other) - held}

    run = TrainPipeline(ground.again(tmp_path, **off))
    with at_work(run.data):
        wait_until(lambda: run.record().get("state") == "finished", 120, "the end of the first run")
    assert run.events("trainer_launched")[-1]["resume_step"] == stopped_at
    assert run.rows() == ground.peace.rows()
    assert run.tensors() == ground.peace.tensors()
    assert audit_of(run.data.file)["findings"] == []
    assert audit_of(other.file)["findings"] == []


def read_state(record: Path) -> str:
    try:
        return str(read_record(record)["state"])
    except FileNotFoundError:
        return ""


def all_keys(data: DataPipeline) -> set[str]:
    return {str(source.key) for source in read_sources(data.pipeline.layout, "prose").values()}


def on_warm_only(data: DataPipeline) -> set[str]:
    sources = read_sources(data.pipeline.layout, "prose").values()
    return {str(source.key) for source in sources if source.evicted}
