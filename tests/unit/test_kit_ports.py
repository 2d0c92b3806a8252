"""A daemon whose metrics port is taken: who has it, and when it gives up."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.kit import daemon
from stoker.kit.context import DaemonContext
from stoker.kit.loop import Waiter
from stoker.kit.ports import listener_on
from stoker.store.errors import ConfigError, StokerError, UnavailableError
from stoker.store.layout import STAGE_SHARD
from support.pipelines import make_pipeline


@pytest.fixture
def taken() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_who_listens_on_a_port_is_known_by_process_and_command(taken: socket.socket) -> None:
    port = taken.getsockname()[1]
    assert listener_on(port).startswith(f"process {os.getpid()} (")
    with socket.create_connection(("127.0.0.1", port)), taken.accept()[0]:
        taken.close()
        assert listener_on(port) == "", "a connection is no listener"


@pytest.mark.parametrize(
    ("notify", "refusals", "error"), [("@unit", 3, ConfigError), ("", 1, UnavailableError)]
)
def test_a_port_that_stays_taken_ends_a_unit_for_good_and_anything_else_at_once(
    *,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    taken: socket.socket,
    notify: str,
    refusals: int,
    error: type[StokerError],
) -> None:
    port = taken.getsockname()[1]
    pipeline = make_pipeline(tmp_path, metrics={"ports": {"shard": port}}).pipeline
    context = DaemonContext(STAGE_SHARD, pipeline, Waiter(), once=True)
    tried = list[str]()
    serve = context.metrics.serve

    def counted(address: str, port: int, *, listening: int | None = None) -> str:
        tried.append(address)
        return serve(address, port, listening=listening)

    monkeypatch.setattr(context.metrics, "serve", counted)
    monkeypatch.setattr(daemon, "PORT_WAIT_S", 0.0)
    monkeypatch.setenv("NOTIFY_SOCKET", notify)
    with pytest.raises(error) as refused:
        daemon._serve(context)
    assert len(tried) == refusals
    said = f"metrics.ports.shard: port {port} on 127.0.0.1 is taken by process {os.getpid()} ("
    assert said in str(refused.value)
