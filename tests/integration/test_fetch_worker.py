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


def test_files_of_a_repository_land_whole_and_the_token_goes_to_the_hub_alone(
    hub: LoopbackHub, landing: Path, start: Start, tmp_path: Path
) -> None:
    hub.control("set", gated={"dataset/org/data": "secret"}, xet=True)
    (tmp_path / "token").write_text("secret\n")
    wanted = {name: noise(size, size) for name, size in (("a.parquet", SIZE), ("b.json", 999), ("c.bin", 0))}
    files = [hub_file(hub, f"deep/er/{name}", data) for name, data in wanted.items()]
    worker = start(token_file=str(tmp_path / "token"))
    worker.fetch(*files)
    worker.until("done", count=3)
    ended = worker.finish()
    assert ended.result == {"status": "ended"}
    for file, data in zip(files, wanted.values(), strict=True):
        assert content(landing, file) == data
        assert worker.of("done", file.path)[0]["sha256"] == hashlib.sha256(data).hexdigest()
    assert left(landing) == [] and not (landing / EVIDENCE).exists()
    asked = hub.requests("deep/er")
    assert {each["host"]: each["authorization"] for each in asked} == {
        "127.0.0.1": "Bearer secret",
        "127.0.0.2": None,
    }
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
    ("strike", "kind"),
    [
        (({"kind": "stall", "after": CUT}, {"read_s": 0.5}), "stalled"),
        (({"kind": "trickle", "after": CUT, "seconds": 0.05}, {"min_rate": 50_000, "read_s": 1.0}), "slow"),
        (({"kind": "reset", "after": CUT}, {}), "broken"),
        (({"kind": "short", "after": CUT}, {}), "short"),
        (({"kind": "status", "on": "cdn", "code": 500}, {}), "server"),
        (({"kind": "status", "on": "resolve", "code": 502}, {}), "server"),
        (({"kind": "status", "on": "cdn", "code": 503, "retry_after": "0"}, {}), "server"),
        (({"kind": "status", "on": "resolve", "code": 429}, {}), "throttled"),
        (({"kind": "slow_head", "on": "cdn"}, {"read_s": 0.3}), None),
        (({"kind": "expired", "on": "resolve"}, {}), "expired"),
    ],
    ids=["stall", "trickle", "reset", "short", "500", "502", "503", "429", "slow head", "expired"],
)
def test_a_transfer_goes_on_after(
    strike: tuple[dict[str, Any], dict[str, Any]],
    kind: str | None,
    hub: LoopbackHub,
    landing: Path,
    start: Start,
) -> None:
    data = noise(SIZE, 3)
    file = hub_file(hub, "on.parquet", data)
    fault, task = strike
    hub.fault(**fault, path="on.parquet")
    worker = start(**task)
    worker.fetch(file)
    worker.until("done")
    worker.finish()
    assert content(landing, file) == data and left(landing) == []
    said = worker.of("retry")
    assert said and kind in (None, said[0]["class"]), said
    # Not a byte comes twice while the worker lives, but what was under way when it hung up.
    assert worker.of("done")[0]["fetched"] == SIZE
    assert hub.served("on.parquet") <= SIZE + ON_THE_WAY


@pytest.mark.parametrize("as_date", [False, True], ids=["seconds", "date"])
def test_retry_after_is_honoured_for_every_file_of_that_server(
    as_date: bool, hub: LoopbackHub, start: Start
) -> None:
    files = [hub_file(hub, f"wait{i}.parquet", noise(1000, i)) for i in range(3)]
    wait_s = 2
    hub.fault("status", on="resolve", code=429, retry_after=f"date {wait_s}" if as_date else str(wait_s))
    worker = start(files_at_once=1)
    worker.fetch(*files)
    worker.until("done", count=3)
    at = [each["at"] for each in hub.requests("resolve")]
    assert at[1] - at[0] > (wait_s - 1.1 if as_date else wait_s - 0.1)  # a date has whole seconds
    assert worker.of("retry")[0]["class"] == "throttled" and len(at) == 4


def test_wrong_content_is_kept_as_evidence_counted_and_given_up_and_the_others_go_on(
    hub: LoopbackHub, landing: Path, start: Start
) -> None:
    good, once, always = (
        hub_file(hub, f"bad/{name}.parquet", noise(SIZE, i)) for i, name in enumerate("goa")
    )
    hub.fault("wrong", path="bad/o", after=CUT)
    hub.fault("wrong", path="bad/a", after=CUT, times=-1)
    worker = start(attempts=3, keep_files=2)
    worker.fetch(always, once, good)
    failed = worker.until("failed")
    worker.until("done", count=2)
    assert (failed["path"], failed["class"]) == (always.path, "mismatch")
    assert [each["about"]["count"] for each in worker.of("mismatch", "bad/a")] == [1, 2, 3]
    assert content(landing, once) == noise(SIZE, 1) and not (landing / always.path).exists()
    kept = sorted((landing / EVIDENCE).iterdir())
    assert len(kept) == 2
    reason = read_record(kept[-1] / "reason.json")
    assert reason["found"] == hashlib.sha256((kept[-1] / "content").read_bytes()).hexdigest()
    assert left(landing) == []


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ({"kind": "length", "size": SIZE - 1}, "length"),
        ({"kind": "length", "size": SIZE + 1}, "length"),
        ({"kind": "loop", "on": "resolve"}, "redirects"),
        ({"kind": "status", "on": "cdn", "code": 403}, "expired"),
        ({"kind": "status", "on": "resolve", "code": 451}, "refused"),
        ({"kind": "encoded"}, "encoded"),
    ],
    ids=["shorter", "longer", "loop", "always 403 elsewhere", "451", "gzip"],
)
def test_what_no_retry_betters_is_given_up_with_its_reason(
    fault: dict[str, Any], kind: str, hub: LoopbackHub, landing: Path, start: Start
) -> None:
    file = hub_file(hub, "no.parquet", noise(SIZE, 3))
    hub.fault(**fault, times=-1)
    worker = start()
    worker.fetch(file)
    failed = worker.until("failed")
    assert failed["class"] == kind and failed["reason"]
    assert len(worker.of("retry")) == (2 if kind in ("length", "redirects", "expired") else 0)
    assert not (landing / file.path).exists()


def test_a_gated_repository_names_the_page_to_visit_and_a_missing_file_is_missing(
    hub: LoopbackHub, start: Start
) -> None:
    file = hub_file(hub, "gated.parquet", noise(1000, 3))
    gone = RemoteFile.listed("gone.parquet", 5, "0" * 64, None, file.url.replace("gated", "gone"))
    worker = start()
    worker.fetch(gone)
    assert worker.until("failed")["class"] == "missing"
    hub.control("set", gated={"dataset/org/data": "secret"})
    worker.fetch(file)
    failed = worker.until("failed", count=2)
    assert failed["class"] == "gated" and f"{hub.endpoint}/datasets/org/data" in failed["reason"]


def test_a_redirect_to_another_host_is_followed_without_the_token(
    hub: LoopbackHub, landing: Path, start: Start
) -> None:
    data = noise(5000, 4)
    file = plain_file(hub, "far.parquet", data)
    hub.fault("elsewhere", on="url")
    worker = start(environ={"HF_TOKEN": "secret"})
    worker.fetch(file)
    worker.until("done")
    assert content(landing, file) == data
    assert [(each["host"], each["authorization"]) for each in hub.requests("far")] == [
        ("127.0.0.1", "Bearer secret"),
        ("127.0.0.3", None),
    ]


@pytest.mark.parametrize("ranges", [True, False], ids=["if-range", "without ranges"])
def test_content_that_changed_half_way_is_fetched_from_its_start(
    ranges: bool, hub: LoopbackHub, landing: Path, start: Start
) -> None:
    file = plain_file(hub, "change.parquet", noise(SIZE, 1), summed=False)
    hub.put("change.parquet.v1", noise(SIZE, 2), repo="urls")
    hub.fault("etag", path="change", after=CUT)
    hub.control("set", tags={})
    if not ranges:
        hub.fault("no_range", path="change", times=-1)
    worker = start()
    worker.fetch(file)
    worker.until("done")
    assert content(landing, file) == noise(SIZE, 2)
    assert worker.of("anew")[0]["bytes"] == CUT
    again = hub.requests("change")[-1]
    assert again["range"] == f"bytes={CUT}-" and again["if_range"].endswith('-0"')


# What the daemon may wish


def test_a_landed_file_is_removed_with_its_folder(hub: LoopbackHub, landing: Path, start: Start) -> None:
    file = hub_file(hub, "gone/a.parquet", noise(SIZE, 1))
    worker = start()
    worker.fetch(file)
    worker.until("done")
    worker.worker.send({"remove": file.path})
    worker.until("removed", file.path)
    assert not (landing / "gone").exists()


def test_the_bandwidth_holds_for_all_files_together(hub: LoopbackHub, start: Start) -> None:
    files = [hub_file(hub, f"slow{i}.parquet", noise(400_000, i)) for i in range(3)]
    worker = start(bandwidth=400_000)
    worker.until("ready")
    began = time.monotonic()
    worker.fetch(*files)
    worker.until("done", count=3)
    assert time.monotonic() - began > 1.0  # a second's worth may come at once


def test_the_worker_stays_small(hub: LoopbackHub, start: Start) -> None:
    files = [hub_file(hub, f"small{i}.parquet", noise(12 << 20, i)) for i in range(4)]
    worker = start()
    worker.fetch(*files)
    worker.until("done", count=4)
    assert worker.rss_bytes() < 120 << 20
