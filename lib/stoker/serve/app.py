"""The routes: OpenAI's completions, and what an operator's programs ask."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
import uuid
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from jinja2 import TemplateError
from prometheus_client import generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from stoker.serve.engine import Engine, Generation
from stoker.serve.metrics import FIRST_TOKEN, REGISTRY, REQUESTS, TOKENS, CountAnswers
from stoker.serve.requests import Asked, Chat, Completion, Refused, parse
from stoker.serve.text import Text

MOST_BODY_BYTES = 10**6
DEFAULT_TOKENS = 16  # of a completion, as OpenAI's
_HEADERS = {429: {"Retry-After": "1"}, 503: {"Retry-After": "5"}, 401: {"WWW-Authenticate": "Bearer"}}


class Service:
    """What the routes share."""

    def __init__(self, name: str, key: str | None, loading: Future[Engine]) -> None:
        self.name, self._key, self._loading = name, key, loading
        self.draining_since: float | None = None

    @property
    def engine(self) -> Engine | None:
        """None until the model is loaded, and where it cannot be."""
        ended = self._loading.done() and self._loading.exception() is None
        return self._loading.result() if ended else None

    def failed(self) -> bool:
        """Whether no text will come any more."""
        return self._loading.done() and not (self.engine and self.engine.alive())

    def app(self) -> CountAnswers:
        """Returns the routes; all but /healthz and /readyz ask for the key."""
        app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
        answers: dict[str, Callable[..., Any]] = {
            "/healthz": lambda: Response(status_code=500 if self.failed() else 200),
            "/readyz": lambda: Response(status_code=200 if self._ready() else 503),
            "/metrics": self._metrics,
            "/v1/models": self._models,
            "/v1/completions": self._complete,
            "/v1/chat/completions": self._chat,
        }
        for path, answer in answers.items():
            asks = [] if path.endswith("z") else [Depends(self._admit)]
            methods = ["POST"] if path.endswith("completions") else ["GET"]
            app.add_api_route(path, answer, methods=methods, dependencies=asks, response_model=None)
        for kind in (Refused, HTTPException, ClientDisconnect, Exception):
            app.add_exception_handler(kind, _refuse)
        return CountAnswers(app, frozenset(answers))  # outside of what answers 500

    async def _admit(self, request: Request) -> None:
        given, key = request.headers.get("authorization", ""), f"Bearer {self._key}"
        if self._key and not hmac.compare_digest(given.encode(), key.encode()):
            raise Refused(401, "the API key is missing or wrong; send it as `Authorization: Bearer KEY`")

    def _ready(self) -> Engine | None:
        return None if self.failed() or self.draining_since is not None else self.engine

    async def _metrics(self) -> Response:
        for state in ("running", "waiting"):
            REQUESTS.labels(state).set(len(getattr(self.engine, state, ())))
        return Response(generate_latest(REGISTRY), media_type="text/plain; version=0.0.4")

    async def _models(self) -> Any:
        about = {"id": self.name, "object": "model", "created": 0, "owned_by": "stoker"}
        return {"object": "list", "data": [about]}

    async def _complete(self, request: Request) -> Response:
        asked = parse(Completion, await _body(request))
        return await self._answer(asked, lambda engine: engine.encode(asked.prompt))

    async def _chat(self, request: Request) -> Response:
        asked = parse(Chat, await _body(request))
        return await self._answer(asked, lambda engine: _encode_chat(engine, asked))

    async def _answer(self, asked: Asked, encode: Callable[[Engine], list[int]]) -> Response:
        if asked.model != self.name:
            raise Refused(404, f"there is no model {asked.model!r}; this server has {self.name!r}", "model")
        engine, prompt = self._ready(), list[int]()
        if engine is not None:
            prompt = await asyncio.to_thread(encode, engine)  # a long one takes a while, so asked again:
        if engine is None or self._ready() is None:
            raise Refused(503, "the server loads its model, or ends; ask again")
        generation = engine.open(prompt, _tokens(engine, prompt, asked), asked)
        TOKENS.labels("prompt").inc(len(prompt))
        return _Answer(self.name, engine, generation)


class _Answer(Response):
    """The answer to one request, which ends with it, or when the client hangs up."""

    def __init__(self, model: str, engine: Engine, generation: Generation) -> None:
        super().__init__()
        self._engine, self._generation, self._asked = engine, generation, generation.asked
        self._began, self._made, self._is_chat = time.monotonic(), 0, isinstance(self._asked, Chat)
        kind = "chat.completion" if self._is_chat else "text_completion"
        if self._is_chat and self._asked.stream:
            kind += ".chunk"
        self._about = {"id": f"cmpl-{uuid.uuid4().hex}", "object": kind, "created": int(time.time())}
        self._about["model"] = model

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def answer() -> None:
            if self._asked.stream:
                stream = StreamingResponse(self._events(), media_type="text/event-stream")
                await stream.stream_response(send)
            else:
                await JSONResponse(await self._whole())(scope, receive, send)

        tasks = [asyncio.ensure_future(answer()), asyncio.ensure_future(receive())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if tasks[0].done():
                tasks[0].result()
        finally:
            for task in tasks:
                task.cancel()
            self._engine.close(self._generation)

    async def _pieces(self) -> AsyncIterator[tuple[str, str | None]]:
        """Yields text and, with the last, why it ended."""
        text = Text(self._engine.decode, self._asked.stop)
        async for tokens, ended in self._generation.outputs():
            if not self._made:
                FIRST_TOKEN.observe(time.monotonic() - self._began)
            TOKENS.labels("made").inc(len(tokens) - self._made)
            self._made = len(tokens)
            piece = text.add(tokens, ended)
            if text.stopped or ended:
                is_stop = text.stopped or tokens[-1] in self._engine.ends
                yield piece, "stop" if is_stop else "length"
                return
            if piece:
                yield piece, None

    async def _events(self) -> AsyncIterator[str]:
        async for piece, reason in self._pieces():
            yield _event({**self._about, "choices": [self._choice("delta", piece, reason)]})
        options = self._asked.stream_options
        if options is not None and options.include_usage:
            yield _event({**self._about, "choices": [], "usage": self._usage()})
        yield "data: [DONE]\n\n"

    async def _whole(self) -> dict[str, Any]:
        pieces = [piece async for piece in self._pieces()]
        choice = self._choice("message", "".join(text for text, _ in pieces), pieces[-1][1])
        return {**self._about, "choices": [choice], "usage": self._usage()}

    def _choice(self, field: str, text: str, reason: str | None) -> dict[str, Any]:
        said = {field: {"role": "assistant", "content": text}} if self._is_chat else {"text": text}
        return {"index": 0, **said, "logprobs": None, "finish_reason": reason}

    def _usage(self) -> dict[str, int]:
        prompt = len(self._generation.prompt)
        return {"prompt_tokens": prompt, "completion_tokens": self._made, "total_tokens": prompt + self._made}


async def _body(request: Request) -> bytes:
    """Returns the body; Refused where it is too long, before all of it is read."""
    announced, data = int(request.headers.get("content-length", "0")), bytearray()
    if announced <= MOST_BODY_BYTES:
        async for part in request.stream():
            data += part
            if len(data) > MOST_BODY_BYTES:
                break
    if max(announced, len(data)) > MOST_BODY_BYTES:
        raise Refused(413, f"the body is longer than {MOST_BODY_BYTES:,} bytes")
    return bytes(data)


def _encode_chat(engine: Engine, asked: Chat) -> list[int]:
    if not engine.tokenizer.chat_template:
        raise Refused(400, "this model has no chat template; ask /v1/completions", "messages")
    said = [message.model_dump() for message in asked.messages]
    try:
        text = engine.tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
    except (TemplateError, TypeError, ValueError) as error:
        raise Refused(400, f"the model's chat template refuses this: {error}", "messages") from error
    return engine.encode(text, special=False)


def _tokens(engine: Engine, prompt: list[int], asked: Asked) -> int:
    """Returns how many tokens are made at most; Refused where the context has no room for them."""
    has, room, wanted = len(prompt), engine.context - len(prompt), asked.max_tokens or 1
    if not prompt:
        raise Refused(400, "the prompt has no tokens", "prompt")
    if wanted > room:
        field = "max_tokens" if room > 0 else "prompt"
        why = f"the prompt has {has} tokens and {wanted} are to follow; the context is {engine.context}"
        raise Refused(400, why, field)
    return asked.max_tokens or (room if isinstance(asked, Chat) else min(room, DEFAULT_TOKENS))


async def _refuse(_request: Request, error: Exception) -> Response:
    """Returns an error as OpenAI's clients read it."""
    if isinstance(error, HTTPException):
        error = Refused(error.status_code, str(error.detail))
    elif not isinstance(error, Refused):
        hung_up = isinstance(error, ClientDisconnect)
        error = Refused(499, "hung up") if hung_up else Refused(500, "the server failed; its log says why")
    return JSONResponse(error.body(), error.status, _HEADERS.get(error.status))


def _event(body: Any) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"
