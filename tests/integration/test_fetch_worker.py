"""The fetch worker against a hub on loopback: whatever the network does, what lands is true."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import pytest

from stoker.corpus.fetch.landing import EVIDENCE
from stoker.corpus.http.remote_file import RemoteFile
from stoker.store.record import read_record
from support.fetch_fixtures import (  # noqa: F401 - fixtures are found by their names
    CUT,
    SIZE,
    Start,
    content,
    hub_fixture,
    landing_fixture,
    left,
    served_hub_fixture,
    start_fixture,
    until_durable,
)
from support.fetching import hub_file, plain_file
from support.loopback_hub import LoopbackHub, noise

ON_THE_WAY = 1 << 20  # what the kernel holds between the hub and a worker that is killed


# When all is well


def test_files_land_whole_and_the_token_goes_to_the_hub_alone(
    hub: LoopbackHub, landing: Path, start: Start, tmp_path: Path
) -> None:
    hub.control("set", gated={"dataset/org/data": "secret"}, xet=True)
    (tmp_path / "token").write_text("secret\n")
    wanted = {name: noise(size, size) for name, size in (("a.parquet", SIZE), ("b.json", 999), ("c.bin", 0))}
    files = [hub_file(hub, f"deep/er/{name}", data) for name, data in wanted.items()]
    far = plain_file(hub, "far.parquet", noise(5000, 4))
    hub.fault("elsewhere", on="url")
    worker = start(token_file=str(tmp_path / "token"))
    worker.fetch(*files, far)
    worker.until("done", count=4)
    ended = worker.finish()
    assert ended.result == {"status": "ended"}
    for file, data in zip(files, wanted.values(), strict=True):
        assert content(landing, file) == data
        assert worker.of("done", file.path)[0]["sha256"] == hashlib.sha256(data).hexdigest()
    assert content(landing, far) == noise(5000, 4)
    assert left(landing) == [] and not (landing / EVIDENCE).exists()
    asked, elsewhere = hub.requests("deep/er"), hub.requests("far")
    assert {(each["host"], each["authorization"]) for each in asked} == {
        ("127.0.0.1", "Bearer secret"),
        ("127.0.0.2", None),
    }
    assert [(each["host"], each["authorization"]) for each in elsewhere] == [
        ("127.0.0.1", "Bearer secret"),
        ("127.0.0.3", None),
    ]
    assert {each["encoding"] for each in asked} == {"identity"}
    assert "secret" not in json.dumps(worker.said)


def test_plain_urls_land_with_and_without_a_sum_and_a_proxy_is_asked_where_one_is_set(
    hub: LoopbackHub, landing: Path, start: Start
) -> None:
    data = noise(70_000, 7)
    plain_file(hub, "plain.parquet", data)
    files = [
        RemoteFile.listed("one.parquet", None, None, None, "http://far.example/files/plain.parquet"),
        RemoteFile.listed(
            "two.parquet",
            None,
            hashlib.sha256(data).hexdigest(),
            None,
            "http://far.example/files/plain.parquet",
        ),
    ]
    worker = start(hub=None, environ={"HTTP_PROXY": hub.endpoint, "NO_PROXY": ""})
    worker.fetch(*files)
    worker.until("done", count=2)
    assert [content(landing, file) for file in files] == [data, data]
    assert {each["via"] for each in hub.requests("plain")} == {"http://far.example/files/plain.parquet"}


def test_a_proxy_that_cannot_be_used_is_told_by_its_name(start: Start) -> None:
    worker = start(environ={"ALL_PROXY": "nonsense://x", "NO_PROXY": ""})
    worker.until_true(lambda: worker.ended is not None, "the worker's end")
    assert worker.ended is not None and worker.ended.code == 69 and "ALL_PROXY" in worker.ended.reason()


def test_what_lies_there_already_is_kept_when_right_and_fetched_again_when_not(
    hub: LoopbackHub, landing: Path, start: Start
) -> None:
    right, wrong = (hub_file(hub, f"kept/{name}.parquet", noise(SIZE, i)) for i, name in enumerate("rw"))
    (landing / "kept").mkdir(parents=True)
    (landing / right.path).write_bytes(noise(SIZE, 0))
    (landing / wrong.path).write_bytes(noise(SIZE, 5))
    theirs = landing / ".cache" / "huggingface" / "x.incomplete"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(b"theirs")
    worker = start()
    assert worker.until("ready")["unmanaged"] == [".cache/huggingface/x.incomplete"]
    worker.fetch(right, wrong)
    worker.until("done", count=2)
    assert worker.of("done", right.path)[0]["how"] == "kept" and hub.served("r.parquet") == 0
    assert worker.of("done", wrong.path)[0]["how"] == "fetched"
    assert content(landing, wrong) == noise(SIZE, 1) and theirs.read_bytes() == b"theirs"
    told = worker.of("mismatch")[0]["about"]
    assert told["landed"] and Path(told["evidence"], "content").read_bytes() == noise(SIZE, 5)


# When it is not


@pytest.mark.parametrize(
    ("strikes", "task"),
    [
        (
            [
                ({"kind": "reset", "after": CUT}, "broken"),
                ({"kind": "short", "after": CUT}, "short"),
                ({"kind": "status", "on": "cdn", "code": 500}, "server"),
                ({"kind": "status", "on": "resolve", "code": 502}, "server"),
                ({"kind": "status", "on": "cdn", "code": 503, "retry_after": "0"}, "server"),
                ({"kind": "status", "on": "resolve", "code": 429}, "throttled"),
                ({"kind": "expired", "on": "resolve"}, "expired"),
            ],
            {},
        ),
        (
            [
                ({"kind": "stall", "after": CUT}, "stalled"),
                ({"kind": "trickle", "after": CUT, "seconds": 0.05}, "slow"),
                ({"kind": "slow_head", "on": "cdn"}, None),
            ],
            {"read_s": 1.0, "min_rate": 50_000},
        ),
    ],
    ids=["what a server says or breaks off", "what it keeps waiting"],
)
def test_a_transfer_goes_on_after(
    strikes: list[tuple[dict[str, Any], str | None]],
    task: dict[str, Any],
    hub: LoopbackHub,
    landing: Path,
    start: Start,
) -> None:
    data = noise(SIZE, 3)
    files = [hub_file(hub, f"on{number}.parquet", data) for number in range(len(strikes))]
    for file, (fault, _) in zip(files, strikes, strict=True):
        hub.fault(**fault, path=file.path)
    worker = start(**task)
    worker.fetch(*files)
    worker.until("done", count=len(files))
    worker.finish()
    assert left(landing) == []
    for file, (_, kind) in zip(files, strikes, strict=True):
        assert content(landing, file) == data
        said = worker.of("retry", file.path)
        assert said and kind in (None, said[0]["class"]), said
        # Not a byte comes twice while the worker lives, but what was under way when it hung up.
        assert worker.of("done", file.path)[0]["fetched"] == SIZE
        assert hub.served(file.path) <= SIZE + ON_THE_WAY


def test_retry_after_is_honoured_for_every_file_of_that_server(hub: LoopbackHub, start: Start) -> None:
    files = [hub_file(hub, f"wait{i}.parquet", noise(1000, i)) for i in range(3)]
    hub.fault("status", on="resolve", code=429, retry_after="1")
    worker = start(files_at_once=1)
    worker.fetch(*files)
    worker.until("done", count=3)
    at = [each["at"] for each in hub.requests("resolve")]
    assert at[1] - at[0] > 0.9
    assert worker.of("retry")[0]["class"] == "throttled" and len(at) == 4


def test_what_no_retry_betters_is_given_up_with_its_reason_kept_as_evidence_and_the_others_go_on(
    hub: LoopbackHub, landing: Path, start: Start
) -> None:
    strikes: dict[str, tuple[dict[str, Any], str, int]] = {
        "shorter": ({"kind": "length", "size": SIZE - 1}, "length", 2),
        "longer": ({"kind": "length", "size": SIZE + 1}, "length", 2),
        "loop": ({"kind": "loop", "on": "resolve"}, "redirects", 2),
        "elsewhere": ({"kind": "status", "on": "cdn", "code": 403}, "expired", 2),
        "refused": ({"kind": "status", "on": "resolve", "code": 451}, "refused", 0),
        "encoded": ({"kind": "encoded"}, "encoded", 0),
        "always": ({"kind": "wrong", "after": CUT}, "mismatch", 2),
    }
    bad = {name: hub_file(hub, f"{name}.parquet", noise(SIZE, 3)) for name in strikes}
    good, once = (hub_file(hub, f"good{i}.parquet", noise(SIZE, i)) for i in range(2))
    for name, (fault, _, _) in strikes.items():
        hub.fault(**fault, path=f"{name}.parquet", times=-1)
    hub.fault("wrong", path=once.path, after=CUT)
    gone = RemoteFile.listed("gone.parquet", 5, "0" * 64, None, good.url.replace("good0", "gone"))
    worker = start(attempts=3, keep_files=2)
    worker.fetch(*bad.values(), gone, once, good)
    worker.until("failed", count=len(bad) + 1)
    worker.until("done", count=2)
    for name, (_, kind, retries) in strikes.items():
        (failed,) = worker.of("failed", bad[name].path)
        assert failed["class"] == kind and failed["reason"]
        tried = [each for each in worker.of("retry", bad[name].path) if each["class"] == kind]
        assert len(tried) == retries and not (landing / bad[name].path).exists()
    assert worker.of("failed", gone.path)[0]["class"] == "missing"
    assert [each["about"]["count"] for each in worker.of("mismatch", "always")] == [1, 2, 3]
    assert [content(landing, file) for file in (good, once)] == [noise(SIZE, 0), noise(SIZE, 1)]
    kept = sorted((landing / EVIDENCE).iterdir())
    assert len(kept) == 2
    reason = read_record(kept[-1] / "reason.json")
    assert reason["found"] == hashlib.sha256((kept[-1] / "content").read_bytes()).hexdigest()
    assert not [name for name in left(landing) if "always" in name]
    hub.control("set", gated={"dataset/org/data": "secret"})
    worker.fetch(file := hub_file(hub, "gated.parquet", noise(1000, 3)))
    worker.until_true(lambda: bool(worker.of("failed", file.path)), "the end of the gated file")
    (failed,) = worker.of("failed", file.path)
    assert failed["class"] == "gated" and f"{hub.endpoint}/datasets/org/data" in failed["reason"]


def test_content_that_changed_half_way_is_fetched_from_its_start_and_a_landed_file_is_removed(
    hub: LoopbackHub, landing: Path, start: Start
) -> None:
    files = [plain_file(hub, f"{name}/change.parquet", noise(SIZE, 1), summed=False) for name in ("a", "b")]
    hub.control("set", tags={})
    for name in ("a", "b"):
        hub.put(f"{name}/change.parquet.v1", noise(SIZE, 2), repo="urls")
        hub.fault("etag", path=f"{name}/change", after=CUT)
    hub.fault("no_range", path="b/change", times=-1)
    worker = start()
    worker.fetch(*files)
    worker.until("done", count=2)
    for file in files:
        assert content(landing, file) == noise(SIZE, 2)
        assert worker.of("anew", file.path)[0]["bytes"] == CUT
        again = hub.requests(file.path)[-1]
        assert again["range"] == f"bytes={CUT}-" and again["if_range"].endswith('-0"')
    worker.worker.send({"remove": files[0].path})
    worker.until("removed", files[0].path)
    assert not (landing / "a").exists()


def test_the_bandwidth_holds_for_all_files_together_and_the_worker_stays_small(
    hub: LoopbackHub, start: Start
) -> None:
    files = [hub_file(hub, f"slow{i}.parquet", noise(8 << 20, i)) for i in range(3)]
    worker = start(bandwidth=8 << 20)
    worker.until("ready")
    small = worker.rss_bytes()
    began = time.monotonic()
    worker.fetch(*files)
    worker.until("done", count=3)
    assert time.monotonic() - began > 1.0  # a second's worth may come at once
    assert worker.rss_bytes() < small + (8 << 20)
