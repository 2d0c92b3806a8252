"""The server's answers and its end, as its engine loads, lives, dies and is asked to go."""

from __future__ import annotations

import asyncio
import itertools
import signal
import socket
from collections import deque
from concurrent.futures import Future
from typing import Any
from unittest.mock import Mock

import pytest
from starlette.testclient import TestClient

from stoker.serve.app import Service
from stoker.serve.engine import Engine as RealEngine
from stoker.serve.engine import Generation
from stoker.serve.metrics import REGISTRY
from stoker.serve.requests import Completion, Refused
from stoker.serve.server import Server


class Engine:
    """What the server asks of one."""

    def __init__(self, *, lives: bool = True, busy: bool = False) -> None:
        self.running, self.waiting, self.alive = {1} if busy else (), (), lambda: lives


LOADING, FAILED, LIVES, DEAD = None, ValueError("no model"), Engine(), Engine(lives=False)


@pytest.mark.parametrize(
    ("engine", "signals", "health", "ready", "ends"),
    [
        (LOADING, 0, 200, 503, False),
        (LOADING, 1, 200, 503, True),
        (FAILED, 0, 500, 503, True),
        (LIVES, 0, 200, 200, False),
        (LIVES, 1, 200, 503, True),
        (DEAD, 0, 500, 503, True),
        (Engine(busy=True), 1, 200, 503, False),
        (Engine(busy=True), 2, 200, 503, True),
        (Engine(lives=False, busy=True), 1, 500, 503, True),
    ],
)
def test_health_readiness_and_end(engine: Any, signals: int, health: int, ready: int, ends: bool) -> None:
    loading: Future[Any] = Future()
    if isinstance(engine, Exception):
        loading.set_exception(engine)
    elif engine is not None:
        loading.set_result(engine)
    service = Service("m", None, loading)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Server(service, listener, 30.0)
    for _ in range(signals):
        server.handle_exit(signal.SIGTERM, None)
    client = TestClient(service.app())
    assert [client.get(path).status_code for path in ("/healthz", "/readyz")] == [health, ready]
    assert asyncio.run(server.on_tick(1)) is ends


def test_a_stop_that_comes_while_a_prompt_is_read_is_seen_and_a_fault_is_counted() -> None:
    loading: Future[Any] = Future()
    engine, service = Mock(running=(), waiting=(), context=99), Service("m", None, loading)

    def encode(text: str) -> list[int]:
        service.draining_since = 1.0
        if text == "fault":
            raise RuntimeError("of the test")
        return [1]

    engine.encode = encode
    loading.set_result(engine)
    client = TestClient(service.app(), raise_server_exceptions=False)
    for prompt, status in (("a", 503), ("fault", 500)):
        service.draining_since = None
        assert client.post("/v1/completions", json={"model": "m", "prompt": prompt}).status_code == status
    engine.open.assert_not_called()
    labels = {"route": "/v1/completions", "status": "500"}
    assert REGISTRY.get_sample_value("stoker_serve_answers_total", labels) == 1


def test_what_runs_is_given_up_when_its_time_is_over() -> None:
    loading: Future[Any] = Future()
    loading.set_result(Engine(busy=True))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Server(Service("m", None, loading), listener, 0.0)
    server.handle_exit(signal.SIGTERM, None)
    assert asyncio.run(server.on_tick(1))


def test_a_request_that_is_closed_leaves_the_library_with_its_handler_and_what_came_too_late() -> None:
    late, cancelled = ["an output"], []
    engine, manager = RealEngine.__new__(RealEngine), Mock()
    one = Generation("7", [1, 2], 5, Completion(model="m", prompt=""))
    engine._manager, engine.waiting, engine.running, engine._free = manager, deque(), {one}, 3
    manager.output_router.result_handlers = {"7": 1, "8": 2}
    manager.get_result = lambda timeout: late.pop() if late else None
    manager.cancel_request = cancelled.append
    engine.close(one)
    engine.close(one)
    assert (cancelled, manager.output_router.result_handlers, late) == (["7"], {"8": 2}, [])
    assert (engine.running, engine._free) == (set(), 3 + one.pages)


def test_where_too_many_wait_the_next_is_refused() -> None:
    engine = RealEngine.__new__(RealEngine)
    engine.waiting, engine.running, engine._free, engine._queue = deque(), set(), 0, 2
    engine._names = itertools.count()
    asked = Completion(model="m", prompt="")
    for _ in range(2):
        engine.open([1], 1, asked)
    with pytest.raises(Refused, match="2 requests wait") as refused:
        engine.open([1], 1, asked)
    assert refused.value.status == 429
