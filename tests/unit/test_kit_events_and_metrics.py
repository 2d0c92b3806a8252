"""Events on disk, in the log and in a counter; metrics as a scrape sees them."""

from __future__ import annotations

import math
import os
import shutil
import socket
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stoker.kit import events as events_module
from stoker.kit.event_types import event_types
from stoker.kit.events import Events, EventTail, Log
from stoker.kit.metrics import Figure, Metrics
from stoker.store.errors import ConfigError, UnavailableError
from stoker.store.layout import StateLayout
from stoker.store.requests import file_request, waiting_requests
from support.waiting import LONG_S

DAEMON = "stage_shard"


@pytest.fixture
def layout(tmp_path: Path) -> StateLayout:
    layout = StateLayout(tmp_path / "state")
    layout.create()
    return layout


@pytest.fixture
def metrics() -> Iterator[Metrics]:
    metrics = Metrics(DAEMON)
    yield metrics
    metrics.close()


def new_events(layout: StateLayout, metrics: Metrics | None = None) -> Events:
    return Events(layout, Log(DAEMON, "demo", environ={}), (metrics or Metrics(DAEMON)).events)


def test_an_event_is_on_disk_in_the_log_and_counted(
    layout: StateLayout, metrics: Metrics, capfd: pytest.CaptureFixture[str]
) -> None:
    events = new_events(layout, metrics)
    events.record("source_quarantined", message="page 3 is rotten", path="a.parquet")
    events.record("source_proven", path="b.parquet")
    first, second = EventTail(layout).new()
    assert first["event"] == "source_quarantined" and first["path"] == "a.parquet"
    assert (first["level"], first["pipeline"], first["daemon"]) == ("warning", "demo", DAEMON)
    assert (first["seq"], second["seq"]) == (1, 2) and first["time"].endswith("Z")
    assert 'event=source_quarantined message="page 3 is rotten" path=a.parquet' in capfd.readouterr().err
    assert b'stoker_events_total{event="source_proven"} 1.0' in metrics.text()


def test_the_numbering_goes_on_after_a_restart_and_a_torn_line(layout: StateLayout) -> None:
    first = new_events(layout)
    first.record("one")
    first.close()
    with layout.events(DAEMON).open("ab") as stream:
        stream.write(b'{"event":"torn')
    new_events(layout).record("two")
    assert [(event["event"], event["seq"]) for event in EventTail(layout).new()] == [("one", 1), ("two", 2)]


def test_events_keep_to_their_budget_and_to_their_numbering(
    layout: StateLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events_module, "BUDGET_BYTES", 4000)
    events = new_events(layout)
    for number in range(100):
        events.record("tick", number=number)
    kept = EventTail(layout).new()
    assert 0 < len(kept) < 40 and kept[-1]["seq"] == 100
    files = (layout.state / "events").iterdir()
    assert sum(file.stat().st_size for file in files) < 4000 + 300


def test_a_disk_that_takes_no_event_is_said_once_and_stops_nothing(
    layout: StateLayout, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(layout.state / "events")
    events = new_events(layout)
    for number in range(3):
        events.record("tick", number=number)
    said = capfd.readouterr().err
    assert said.count("event=events_unwritable") == 1 and said.count("event=tick") == 3
    layout.create()
    events.record("tick", number=3)
    assert "event=events_writable" in capfd.readouterr().err
    assert [event["number"] for event in EventTail(layout).new()] == [3]


def series(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """Returns the values on the page, by name and label values."""
    families = text_string_to_metric_families(metrics.text().decode())
    return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}


def test_names_follow_the_rule_and_the_target_alone_names_pipeline_and_daemon(metrics: Metrics) -> None:
    metrics.figures = (
        Figure("queue_files", "Files waiting", "queue"),
        Figure("build_bytes_total", "Bytes", "built.*", {"result": ()}),
    )
    metrics.status = {"queue": 3, "built": {"ok": 5}}
    metrics.histogram("step_seconds", "Steps", (1.0, 2.0)).observe(1.5)
    families = list(text_string_to_metric_families(metrics.text().decode()))
    samples = [sample for family in families for sample in family.samples]
    assert not [sample for sample in samples if {"pipeline", "daemon"} & sample.labels.keys()]
    assert all(sample.name.startswith("stoker_") for sample in samples)
    assert not [sample.name for sample in samples if sample.name.endswith("_created")]
    for family in families:
        assert family.documentation and family.type in ("counter", "gauge", "histogram")
        if family.type == "counter":
            assert all(sample.name.endswith("_total") for sample in family.samples)
    found = series(metrics)
    assert found["stoker_queue_files",] == 3 and found["stoker_build_bytes_total", "ok"] == 5
    assert found["stoker_daemon_rss_bytes",] > 1 << 20
    assert found["stoker_step_seconds_bucket", "2.0"] == 1 and found["stoker_step_seconds_sum",] == 1.5


def test_figures_are_read_from_the_status_as_it_is_at_the_scrape(metrics: Metrics) -> None:
    metrics.figures = (
        Figure("queue_files", "Files waiting.", "queue"),
        Figure("ends_total", "Ends.", "ends.*.*", {"activity": ("build",), "class": ("done", "died")}),
        Figure("disk_free_bytes", "Room.", "disks.*.free", {"disk": ()}),
        Figure("workers_stuck", "Stuck.", "stuck"),
    )
    metrics.status = {"disks": {"hot": {}, "warm": {}}}
    before = series(metrics)
    assert math.isnan(before["stoker_queue_files",]) and math.isnan(before["stoker_disk_free_bytes", "warm"])
    assert before["stoker_ends_total", "build", "done"] == 0
    disks = {"hot": {"free": 9}, "warm": {"trouble": "gone"}}
    metrics.status = {"queue": 3, "ends": {"build": {"done": 2}}, "disks": disks, "stuck": {"a": 1}}
    after = series(metrics)
    assert after.keys() == before.keys(), "no series appears later"
    assert after["stoker_queue_files",] == 3 and after["stoker_workers_stuck",] == 1
    assert (after["stoker_ends_total", "build", "done"], after["stoker_ends_total", "build", "died"]) == (
        2,
        0,
    )
    assert after["stoker_disk_free_bytes", "hot"] == 9 and math.isnan(after["stoker_disk_free_bytes", "warm"])


def test_every_event_word_is_counted_from_0_and_requests_are_shown_until_answered(
    layout: StateLayout,
) -> None:
    metrics = Metrics(DAEMON, lambda: waiting_requests(layout, DAEMON))
    found = series(metrics)
    assert {key[1] for key in found if key[0] == "stoker_events_total"} == event_types(DAEMON).keys()
    assert found["stoker_events_total", "source_quarantined"] == found["stoker_requests_waiting",] == 0
    assert math.isnan(found["stoker_requests_oldest_timestamp_seconds",])
    file_request(layout, DAEMON, "release", {})
    (file,) = layout.requests(DAEMON).iterdir()
    os.utime(file, (5.0, 5.0))
    file_request(layout, DAEMON, "release", {})
    found = series(metrics)
    assert found["stoker_requests_waiting",] == 2
    assert found["stoker_requests_oldest_timestamp_seconds",] == 5.0


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_metrics_are_served_on_loopback_and_nothing_else_is(metrics: Metrics, address: str) -> None:
    if address == "::1" and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    place = metrics.serve(address, 0)
    metrics.answer()
    assert urllib.parse.urlsplit(f"//{place}").hostname == address, "Prometheus wants brackets around IPv6"
    with urllib.request.urlopen(f"http://{place}/metrics", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        assert b"stoker_build_info{" in answer.read()
    with pytest.raises(OSError), socket.create_connection(("127.0.0.2", port_of(place)), timeout=2):
        pass


def port_of(place: str) -> int:
    return int(place.rpartition(":")[2])


def test_a_client_that_says_nothing_does_not_keep_others_waiting(metrics: Metrics) -> None:
    port = port_of(metrics.serve("127.0.0.1", 0))
    metrics.answer()
    with (
        socket.create_connection(("127.0.0.1", port)),
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=LONG_S) as answer,
    ):
        assert answer.status == 200


def test_a_taken_port_says_which_key_to_change(metrics: Metrics) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UnavailableError, match=rf"metrics\.ports\.shard.*{port}") as refused:
            metrics.serve("127.0.0.1", port)
    assert refused.value.exit_code == 69


@pytest.mark.parametrize("address", ["192.0.2.1", "no.such.host.invalid"])
def test_an_address_that_is_not_ours_is_a_wrong_configuration(metrics: Metrics, address: str) -> None:
    with pytest.raises(ConfigError, match=r"metrics\.address"):
        metrics.serve(address, 0)
