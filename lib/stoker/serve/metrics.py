"""The server's metrics; each label has few values, known from the start."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY = CollectorRegistry()
TOKENS = Counter("stoker_serve_tokens", "Tokens of prompts, and tokens made.", ["kind"], registry=REGISTRY)
FIRST_TOKEN = Histogram(
    "stoker_serve_first_token_seconds", "From a request to its first token.", registry=REGISTRY
)
REQUESTS = Gauge("stoker_serve_requests", "Requests that run, and that wait.", ["state"], registry=REGISTRY)
_ANSWERS = Counter("stoker_serve_answers", "Answers begun.", ["route", "status"], registry=REGISTRY)


class CountAnswers:
    """Counts each answer by its route and status; passes everything on as it is."""

    def __init__(self, app: Any, routes: frozenset[str]) -> None:
        self._app, self._routes = app, routes

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def counted(message: Any) -> None:
            if message["type"] == "http.response.start":
                route = scope["path"] if scope["path"] in self._routes else "other"
                _ANSWERS.labels(route, message["status"]).inc()
            await send(message)

        await self._app(scope, receive, counted)
