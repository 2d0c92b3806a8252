"""One real `stoker serve`, asked by OpenAI's client, by many at once, by clients that hang up, and ended."""

from __future__ import annotations

import http.client
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from click.testing import CliRunner

from stoker.release.export_model import export_model
from stoker.release.sampling import Sampling, TextModel
from stoker.serve.command import read_key, serve
from stoker.store.checksums import write_checksums
from stoker.store.direct import hash_file
from stoker.store.errors import ConfigError, DataError, UsageError
from support.stoker_command import STOKER, StokerCommand
from support.waiting import LONG_S, wait_until
from unit.test_training_model_export import checkpoint_of

KEY = "key-that-nobody-else-sees"
PROMPTS = ["the quick brown fox", "a", "", "one two three", "The file", "zebra é", "to be or not", "€ 5"]
TEMPLATE = "{{ bos_token }}{% for one in messages %}{{ one.content }}{% endfor %}"
CONTEXT, RUNNING, QUEUE = 4000, 32, 70
LONG_TEXT = {"model": "small", "prompt": "on and on", "max_tokens": 3900, "stream": True}


def bundle_at(home: Path) -> tuple[Path, Path]:
    """A checkpoint, and a bundle of it whose context is far longer: streams that last."""
    checkpoint, _ = checkpoint_of(home / "run", kv_heads=2)
    bundle = home / "small"
    assert CliRunner().invoke(export_model, [str(checkpoint), str(bundle)]).exit_code == 0
    for name, more in {
        "config.json": {"max_position_embeddings": CONTEXT},
        "tokenizer_config.json": {"chat_template": TEMPLATE},
    }.items():
        body = json.loads((bundle / name).read_bytes())
        (bundle / name).write_text(json.dumps({**body, **more}))
    write_checksums(bundle, {file.name: hash_file(file).sha256 for file in bundle.iterdir()})
    return checkpoint, bundle


class Served(StokerCommand):
    """A server, and questions to it."""

    checkpoint: Path
    bundle: Path

    def await_ready(self) -> int:
        found = wait_until(
            lambda: re.search(r"ready on http://127\.0\.0\.1:(\d+)", self.said()) or self.process.poll(),
            what=f"a model in memory: {self.said()}",
        )
        assert isinstance(found, re.Match), self.said()
        self.port = int(found[1])
        return self.port

    def ask(
        self, path: str, body: Any = None, key: str | None = KEY, **headers: str
    ) -> tuple[int, Any, http.client.HTTPMessage]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LONG_S)
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        headers |= {"Authorization": f"Bearer {key}"} if key else {}
        connection.request("GET" if body is None else "POST", path, data, headers)
        answer = connection.getresponse()
        said = answer.read()
        connection.close()
        return answer.status, json.loads(said) if said[:1] == b"{" else said.decode(), answer.headers

    def figure(self, name: str) -> float:
        found = re.search(rf"^{re.escape(name)} (\S+)$", self.ask("/metrics")[1], re.MULTILINE)
        return float(found[1]) if found else 0.0

    def busy(self) -> float:
        return sum(
            self.figure(f'stoker_serve_requests{{state="{state}"}}') for state in ("running", "waiting")
        )

    def begin_stream(self, body: dict[str, Any]) -> socket.socket:
        """A connection that has asked, and of whose answer nothing is read."""
        data = json.dumps(body).encode()
        client = socket.create_connection(("127.0.0.1", self.port))
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
        client.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        return client

    def threads(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/task").iterdir()))


@pytest.fixture(name="served", scope="module")
def served_fixture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = tmp_path_factory.mktemp("serve")
    checkpoint, bundle = bundle_at(home)
    (home / "key").write_text(f"{KEY}\n")
    words = ("--port", "0", "--key-file", str(home / "key"), "--queue", str(QUEUE), "--cache-bytes", "2GB")
    server = Served(home / "said", "serve", str(bundle), *words)
    try:
        server.checkpoint, server.bundle = checkpoint, bundle
        server.await_ready()
        yield server
    finally:
        server.end()
        print(server.said())


@pytest.fixture(name="client")
def client_fixture(served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://127.0.0.1:{served.port}/v1", api_key=KEY, max_retries=0)


def test_eight_at_once_get_the_models_own_text_streamed_or_not_and_as_a_chat(
    served: Served, client: openai.OpenAI
) -> None:
    assert [model.id for model in client.models.list()] == ["small"]
    own = TextModel(served.checkpoint)
    own._ids = own._model.shape.vocab_size  # a server leaves out no row, as transformers' generate
    wanted = [own.continue_text(prompt, 40, Sampling(temperature=0)) for prompt in PROMPTS]
    asked: dict[str, Any] = {"model": "small", "max_tokens": 40, "temperature": 0}

    def whole(prompt: str) -> str:
        answer = client.completions.create(prompt=prompt, **asked)
        assert answer.usage is not None and 1 <= answer.usage.completion_tokens <= 40
        return prompt + answer.choices[0].text

    def stream(prompt: str) -> str:
        options: Any = {"include_usage": True}
        parts = list(client.completions.create(prompt=prompt, stream=True, stream_options=options, **asked))
        assert parts[-1].usage is not None and not parts[-1].choices
        ends = [part.choices[0].finish_reason for part in parts[:-1]]
        assert ends[-1] in {"length", "stop"} and set(ends[:-1]) <= {None}
        return prompt + "".join(part.choices[0].text for part in parts[:-1])

    def chat(prompt: str) -> str:
        messages: Any = [{"role": "user", "content": prompt}]
        answer = client.chat.completions.create(messages=messages, **asked)
        return f"{prompt}{answer.choices[0].message.content}"

    def chat_stream(prompt: str) -> str:
        messages: Any = [{"role": "user", "content": prompt}]
        parts = client.chat.completions.create(messages=messages, stream=True, **asked)
        return prompt + "".join(part.choices[0].delta.content or "" for part in parts)

    with ThreadPoolExecutor(8) as threads:
        for ask in (whole, stream, chat, chat_stream):
            assert list(threads.map(ask, PROMPTS)) == wanted, ask.__name__
    longest = max(wanted, key=len)
    prompt = PROMPTS[wanted.index(longest)]
    stop = longest[-3:]
    asked["stop"] = stop
    assert whole(prompt) == stream(prompt) == longest[: longest.index(stop, len(prompt))]
    drawn = [client.completions.create(model="small", prompt="a", max_tokens=30, extra_body={"top_k": 5})]
    drawn.append(client.completions.create(model="small", prompt="a", max_tokens=30, top_p=0.9))
    assert drawn[0].choices[0].text != drawn[1].choices[0].text


def test_what_cannot_be_answered_is_refused_with_what_is_wrong(served: Served) -> None:
    completion = {"model": "small", "prompt": "a b c"}
    for status, words, asked in [
        (404, "'small'", served.ask("/v1/completions", {**completion, "model": "large"})),
        (400, "n: ", served.ask("/v1/completions", {**completion, "n": 2})),
        (400, "JSON", served.ask("/v1/completions", b'{"model": ')),
        (400, f"{CONTEXT}", served.ask("/v1/completions", {**completion, "max_tokens": CONTEXT})),
        (400, "tokens and 1", served.ask("/v1/completions", {**completion, "prompt": "a b " * CONTEXT})),
        (413, "1,000,000", served.ask("/v1/completions", b"", **{"Content-Length": f"{10**7}"})),
        (401, "key", served.ask("/v1/models", key=None)),
        (401, "key", served.ask("/v1/completions", completion, key="é")),
        (401, "key", served.ask("/metrics", key=KEY + "x")),
        (404, "Not Found", served.ask("/v1/embeddings", {})),
        (405, "Not Allowed", served.ask("/v1/completions")),
    ]:
        assert asked[0] == status and words in asked[1]["error"]["message"], asked[:2]
    many = served.begin_stream({**completion, "prompt": "x" * 1_100_000})
    assert b" 413 " in many.recv(100)
    many.close()
    assert [served.ask(path, key=None)[0] for path in ("/healthz", "/readyz")] == [200, 200]
    assert served.figure('stoker_serve_answers_total{route="/v1/completions",status="413"}') == 2
    assert "é" not in served.said() and KEY not in served.said()


@pytest.mark.long  # what ends one of them: unit/test_serve_server
def test_a_hundred_clients_that_hang_up_leave_no_request_and_no_thread(served: Served) -> None:
    before = served.threads()
    clients = [served.begin_stream(LONG_TEXT) for _ in range(RUNNING + QUEUE)]
    wait_until(lambda: served.busy() == len(clients), what="all to run or wait")
    assert served.figure('stoker_serve_requests{state="running"}') == RUNNING
    status, body, headers = served.ask("/v1/completions", LONG_TEXT)
    assert (status, headers["Retry-After"]) == (429, "1") and "wait" in body["error"]["message"]
    wait_until(lambda: b"data: " in clients[0].recv(10_000), what="the middle of a stream")
    clients.append(served.begin_stream({**LONG_TEXT, "stream": False, "prompt": "whole"}))
    for client in clients:
        client.close()
    wait_until(lambda: served.busy() == 0, what="an end of all that nobody waits for")
    assert (
        served.figure('stoker_serve_tokens_total{kind="made"}') < len(clients) * 3900 / 10
    )  # long before its end
    done = served.ask("/v1/completions", {"model": "small", "prompt": "a", "max_tokens": 5})
    assert done[1]["usage"]["completion_tokens"] <= 5
    assert served.threads() <= before + min(32, (os.cpu_count() or 1) + 4)  # of asyncio, which tokenize


def test_sigterm_lets_what_runs_finish_and_takes_nothing_new(served: Served) -> None:
    place = Path(f"/proc/{served.process.pid}")
    assert KEY.encode() not in (place / "cmdline").read_bytes() + (place / "environ").read_bytes()
    running = served.begin_stream({**LONG_TEXT, "max_tokens": 1500})
    said = running.recv(10_000)
    served.process.send_signal(signal.SIGTERM)
    wait_until(lambda: served.ask("/readyz")[0] == 503, what="the begin of draining")
    assert served.ask("/v1/completions", LONG_TEXT)[0] == 503
    assert served.ask("/healthz")[0] == 200
    while part := running.recv(1 << 20):
        said += part
    assert b"data: [DONE]" in said
    assert served.process.wait(LONG_S) == 0, served.said()
    assert KEY not in served.said() and "Traceback" not in served.said()


@pytest.mark.long
def test_a_server_whose_engine_dies_says_so_and_ends_for_its_restart(served: Served, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    bundle = tmp_path / "broken"
    shutil.copytree(served.bundle, bundle)
    weights = bundle / "model.safetensors"
    save_file({name: torch.full_like(one, torch.nan) for name, one in load_file(weights).items()}, weights)
    flipped = CliRunner().invoke(serve, [str(bundle)]).exception
    assert isinstance(flipped, DataError) and "model.safetensors" in str(flipped)
    write_checksums(bundle, {file.name: hash_file(file).sha256 for file in bundle.iterdir() if file.suffix})
    server = Served(tmp_path / "said", "serve", str(bundle), "--port", "0", "--name", "n")
    try:
        server.await_ready()
        assert server.ask("/v1/completions", {"model": "n", "prompt": "a"}, None)[0] == 503
        assert server.process.wait(LONG_S) == 70
        assert "died" in server.said()
    finally:
        server.end()


@pytest.mark.long
def test_the_three_commands_of_the_readme_bundle_serve_and_ask(tmp_path: Path) -> None:
    text = (Path(__file__).resolve().parents[2] / "README.md").read_text()
    section = text.split("## Use the model")[1].split("```")[1]
    bundle, served, curl = re.findall(r"^(?:\.venv/bin/stoker|curl) .*?(?=  +#|$)", section, re.MULTILINE)
    checkpoint, _ = checkpoint_of(tmp_path / "run")
    words = bundle.replace("mine.yaml", str(checkpoint)).replace("mine-1", str(tmp_path / "mine-1")).split()
    subprocess.run([STOKER, *words[1:]], check=True)
    server = Served(tmp_path / "said", "serve", str(tmp_path / served.split()[-1]), "--port", "0")
    try:
        asked = curl.replace(":8000", f":{server.await_ready()}")
        done = subprocess.run(shlex.split(asked), capture_output=True, check=True)
        assert json.loads(done.stdout)["usage"]["completion_tokens"] >= 1, done.stdout
    finally:
        server.end()


def test_it_does_not_begin_with_what_is_no_bundle_or_open_to_any_machine(tmp_path: Path) -> None:
    for words, error, said in [
        ([str(tmp_path)], DataError, "SHA256SUMS"),
        ([str(tmp_path), "--host", "0.0.0.0"], UsageError, "--key-file"),
        ([str(tmp_path), "--key-file", str(tmp_path / "none")], ConfigError, "none"),
    ]:
        failed = CliRunner().invoke(serve, words).exception
        assert isinstance(failed, error) and said in str(failed)


def test_the_key_is_the_files_or_the_credentials(tmp_path: Path) -> None:
    environ = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    assert read_key(None, environ) is None and read_key(None, {}) is None
    credential, file = tmp_path / "serve-key", tmp_path / "key"
    credential.write_text("-")
    assert read_key(None, environ) is None
    credential.write_text("of-systemd\n")
    file.write_text("of-file")
    assert (read_key(None, environ), read_key(file, environ)) == ("of-systemd", "of-file")
    for wrong in (b"", b"two words", b"\xff"):
        file.write_bytes(wrong)
        with pytest.raises(ConfigError, match="key"):
            read_key(file, environ)
