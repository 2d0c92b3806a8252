"""`dataset.limit` with the real daemons: the slice is settled, only it is trained on, and it can grow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from stoker.corpus.records.dataset import write_pin
from stoker.corpus.records.sources import TERMINAL
from stoker.plan.growth import GrowthPolicy
from stoker.plan.log import Segment
from stoker.shards.audit.audit import audit_sets
from stoker.supervise.run.planner import Planner
from support.parquet import flip_page, write_fineweb
from support.pipelines import DataPipeline, Template, make_pipeline

ROWS = 60


def sliced(home: Path, tokenizer: dict[str, str], **limit: int) -> DataPipeline:
    """Six files of 60 rows, the second one damaged, behind a limit."""
    data = make_pipeline(home, dataset__limit=limit, shard__workers=2, tokenizer=tokenizer)
    if not any(data.source.iterdir()):
        for number in range(6):
            write_fineweb(data.source / f"{number}.parquet", rows=ROWS, seed=number, row_group=20)
        flip_page(data.source / "1.parquet", 1)
    return data


def listed(data: DataPipeline) -> tuple[list[str], bool]:
    """The pin's listing by the files' stems, and whether it is complete."""
    pin = data.pin()
    return [path.removesuffix(".parquet") for path in pin.listing], pin.complete


def planned(data: DataPipeline) -> list[str]:
    """The stems of the files whose sets a run of one epoch would be trained on."""
    planner = Planner(data.pipeline.layout, "prose", data.home / "plan.jsonl")
    policy = GrowthPolicy(1, 32, 10**9, epochs=1)
    assert planner.grow(data.pin(), 64, policy, 0.0) == ()
    for key, digest in planner.to_prove(0.0).items():
        planner.proven(key, digest)
    entries = planner.grow(data.pin(), 64, policy, 0.0)
    keys = [key for entry in entries if isinstance(entry, Segment) for key, _ in entry.sets]
    assert planner.in_view(data.pin()).sets == len(keys)
    paths = {source.key: path.removesuffix(".parquet") for path, source in data.sources().items()}
    return [paths[key] for key in keys]


def test_a_slice_takes_whole_files_and_grows_with_its_limit(drained: Template, tmp_path: Path) -> None:
    data = sliced(tmp_path, drained.tokenizer, files=2)
    assert data.once("download_watchdog").returncode == 0
    assert set(data.receipts()) == {"0.parquet", "1.parquet"} == set(data.listed()), "no more is hashed"

    data = sliced(tmp_path, drained.tokenizer, rows=ROWS + 1)
    data.drain()
    # 0 has 60 rows, 1 is damaged and counts nothing, 2 reaches the limit.
    assert listed(data) == (["0", "1", "2"], True)
    open_ = {path for path, state in data.states().items() if state not in TERMINAL}
    assert open_ <= {"4.parquet", "5.parquet"}, "what was staged ahead is built, and no more is staged"
    assert not list(data.pipeline.hot_layout.parquet.iterdir()), "nor does parquet stay on hot"
    assert audit_sets(data.pipeline).findings == ()
    assert planned(data) == ["0", "2"]
    pin = data.pin()
    write_pin(data.pipeline.layout, replace(pin, listing=pin.listing[:2]))
    assert any("its listing lacks 2.parquet" in finding for finding in audit_sets(data.pipeline).findings)
    write_pin(data.pipeline.layout, pin)
    before = data.sets()

    data = sliced(tmp_path, drained.tokenizer, files=5)
    assert data.once("stage_shard").returncode == 0
    assert listed(data) == (["0", "1", "2", "3", "4"], True)
    assert before.items() <= data.sets().items()
    assert audit_sets(data.pipeline).findings == ()

    data = sliced(tmp_path, drained.tokenizer, rows=1)
    assert data.once("stage_shard").returncode == 0
    assert listed(data) == (["0", "1", "2", "3", "4"], True)
    assert [event["files"] for event in data.events("stage_shard", "limit_below_slice")] == [4]
    assert audit_sets(data.pipeline).findings == ()
