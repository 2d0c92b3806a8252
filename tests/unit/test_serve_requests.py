"""Whatever a client asks for is understood, or refused with the name of what is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stoker.serve.requests import Asked, Chat, Completion, Refused, parse

SAID = {"model": "m", "prompt": "a"}
HELLO = {"role": "user", "content": "hello"}
OURS = "model max_tokens temperature top_p top_k stop stream stream_options"


@pytest.mark.parametrize(
    ("kind", "body", "param", "words"),
    [
        (Completion, {"prompt": "a"}, "model", "required"),
        (Completion, {"model": "m"}, "prompt", "required"),
        (Completion, {**SAID, "prompt": ["a"]}, "prompt", "string"),
        (Completion, {**SAID, "prompt": [1, 2]}, "prompt", "string"),
        (Completion, {**SAID, "n": 2}, "n", "does not know"),
        (Completion, {**SAID, "logprobs": 1}, "logprobs", "max_tokens"),
        (Completion, {**SAID, "echo": True}, "echo", "prompt"),
        (Completion, {**SAID, "seed": 1, "user": "u"}, "seed", "user: "),
        (Completion, {**SAID, "max_tokens": 0}, "max_tokens", "greater"),
        (Completion, {**SAID, "max_tokens": 10**12}, "max_tokens", "2147483647"),
        (Completion, {**SAID, "max_tokens": "5"}, "max_tokens", "integer"),
        (Completion, {**SAID, "max_tokens": 1.5}, "max_tokens", "integer"),
        (Completion, {**SAID, "temperature": -1}, "temperature", "greater"),
        (Completion, {**SAID, "temperature": float("nan")}, "temperature", "finite"),
        (Completion, {**SAID, "temperature": float("inf")}, "temperature", "finite"),
        (Completion, {**SAID, "top_p": 0}, "top_p", "greater"),
        (Completion, {**SAID, "top_p": 1.1}, "top_p", "less"),
        (Completion, {**SAID, "top_k": -1}, "top_k", "greater"),
        (Completion, {**SAID, "stop": ""}, "stop", "at least 1"),
        (Completion, {**SAID, "stop": ["a", ""]}, "stop", "at least 1"),
        (Completion, {**SAID, "stop": list("abcde")}, "stop", "at most 4"),
        (Completion, {**SAID, "stop": 1}, "stop", "array"),
        (Completion, {**SAID, "stream": "yes"}, "stream", "boolean"),
        (Completion, {**SAID, "stream_options": {"include_usage": True}}, None, "stream is not true"),
        (Completion, {**SAID, "stream": True, "stream_options": {"x": 1}}, "stream_options", "x: "),
        (Completion, {**SAID, "messages": [HELLO]}, "messages", "does not know"),
        (Chat, {"model": "m", "messages": []}, "messages", "at least 1"),
        (Chat, {"model": "m", "messages": [{**HELLO, "role": "tool"}]}, "messages", "0.role"),
        (Chat, {"model": "m", "messages": [{**HELLO, "content": [1]}]}, "messages", "0.content"),
        (Chat, {"model": "m", "messages": [{**HELLO, "name": "x"}]}, "messages", "0.name"),
        (Chat, {**SAID, "messages": [HELLO]}, "prompt", "messages"),
        (Chat, [], None, "object"),
    ],
)
def test_a_body_is_refused_by_the_name_of_what_is_wrong(
    kind: type[Asked], body: Any, param: str | None, words: str
) -> None:
    with pytest.raises(Refused) as refused:
        parse(kind, json.dumps(body).encode())
    error = refused.value.body()["error"]
    assert (refused.value.status, error["param"], error["type"]) == (400, param, "invalid_request_error")
    assert words in error["message"], error["message"]


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"\xff", b'{"model":"\\ud800"}', b"[" * 200_000, b'{"a":' * 200_000, b"1e999", b"null"],
)
def test_what_is_no_json_is_refused(data: bytes) -> None:
    with pytest.raises(Refused) as refused:
        parse(Completion, data)
    assert refused.value.status == 400 and str(refused.value)


def test_a_body_is_read_with_openais_defaults() -> None:
    asked = parse(Completion, json.dumps({**SAID, "stop": "x", "temperature": 0}).encode())
    assert (asked.stop, asked.temperature, asked.top_p, asked.max_tokens, asked.stream) == (
        ["x"],
        0,
        1.0,
        None,
        False,
    )
    chat = parse(Chat, json.dumps({"model": "m", "messages": [HELLO], "stop": ["a", "b"]}).encode())
    assert chat.stop == ["a", "b"] and chat.messages[0].content == "hello"
    assert set(Completion.model_fields) == {*OURS.split(), "prompt"}
