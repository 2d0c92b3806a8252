"""`stoker serve` with 100 M parameters beside transformers' generate() (the scale): time by token, memory."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchlib.runner import Bar, Measures, Scenario, Series
from stoker.shards.tokenize.tokenizer import train_tokenizer
from stoker.store.checksums import write_checksums
from stoker.store.direct import hash_file

STOKER = str(Path(sys.executable).parent / "stoker")
MAKE = """
import sys
from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(
    vocab_size=32768, hidden_size=768, intermediate_size=2048, num_hidden_layers=11, num_attention_heads=12,
    max_position_embeddings=1024, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None,
)  # no end: each text gets all its tokens
LlamaForCausalLM(config).save_pretrained(sys.argv[1])
"""
GENERATE = """
import sys, time, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
prompt, count = torch.arange(5, 21)[None], int(sys.argv[2])
model.generate(prompt, max_new_tokens=2, do_sample=False)
began = time.perf_counter()
model.generate(prompt, max_new_tokens=count, do_sample=False)
print((time.perf_counter() - began) / count)
"""
TOKENS, CLIENTS, CACHE_BYTES, LONGEST_S = 48, 8, 256 << 20, 120.0


class ServeScenario(Scenario):
    """Greedy texts of 48 tokens in float32: by generate(), by one client, by eight at once.

    `token_s` is the time of the whole by all its tokens; memory is the most that the server had resident.
    """

    name = "release-serve"
    repeats = 3

    def prepare(self, directory: Path) -> None:
        bundle = directory / "bench"
        subprocess.run([sys.executable, "-c", MAKE, bundle], check=True, capture_output=True)
        (bundle / "tokenizer.json").write_bytes(train_tokenizer([["a text to train on, and another"]], 300))
        (bundle / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
        write_checksums(bundle, {file.name: hash_file(file).sha256 for file in bundle.iterdir()})
        self._weights = sum(file.stat().st_size for file in bundle.glob("*.safetensors"))
        words = ["serve", str(bundle), "--port", "0", "--cache-bytes", str(CACHE_BYTES)]
        self._said = directory / "said"
        with self._said.open("wb") as stream:
            self._server = subprocess.Popen([STOKER, *words], stdout=stream, stderr=stream)
        until = time.monotonic() + LONGEST_S
        while not (found := re.search(r"ready on (\S+)", self._said.read_text())):
            if time.monotonic() > until or self._server.poll() is not None:
                raise RuntimeError(f"the server is not ready: {self._said.read_text()}")
            time.sleep(0.1)
        self._url = found[1]

    def finish(self) -> None:
        self._server.terminate()
        self._server.wait(LONGEST_S)

    def variants(self) -> Mapping[str, Callable[[Path], Measures]]:
        return {
            "generate()": self._generate,
            "one client": lambda _: self._ask(1),
            "eight clients": lambda _: self._ask(CLIENTS),
        }

    def bars(self, series: Mapping[str, Mapping[str, Series]]) -> Iterator[Bar]:
        one, eight = series["one client"], series["eight clients"]
        yield Bar("one client's token beside generate()'s", one["token_s"].ratio or float("inf"), 1.5)
        rate = one["token_s"].median / eight["token_s"].median
        yield Bar("eight clients' tokens a second beside one's", rate, 2.5, least=True)
        beyond = max(each["rss_bytes"].values[-1] for each in (one, eight)) - self._weights - CACHE_BYTES
        yield Bar("MB beyond weights and cache", beyond / 1e6, 550)

    def _generate(self, home: Path) -> Measures:
        command = [sys.executable, "-c", GENERATE, str(home / "bench"), str(TOKENS)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return {"token_s": float(done.stdout.split()[-1])}

    def _ask(self, clients: int) -> Measures:
        self._complete(0, 2)
        began = time.monotonic()
        with ThreadPoolExecutor(clients) as threads:
            made = sum(threads.map(lambda number: self._complete(number, TOKENS), range(clients)))
        lasted = time.monotonic() - began
        peak = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{self._server.pid}/status").read_text())
        assert peak is not None
        return {"token_s": lasted / made, "rss_bytes": 1024.0 * int(peak[1])}

    def _complete(self, number: int, tokens: int) -> int:
        asked = {"model": "bench", "prompt": f"text {number}", "max_tokens": tokens, "temperature": 0}
        request = urllib.request.Request(f"{self._url}/v1/completions", json.dumps(asked).encode())
        with urllib.request.urlopen(request, timeout=LONGEST_S) as answer:
            return int(json.load(answer)["usage"]["completion_tokens"])
