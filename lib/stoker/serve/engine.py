"""The model in memory, and the thread of transformers' continuous batching, which computes all requests."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from stoker.cli.bundles import load_bundle
from stoker.config.units import format_bytes
from stoker.serve.requests import Asked, Refused
from stoker.store.errors import DataError, UsageError

AT_ONCE = 32  # requests in one batch: the memory of their logits is bounded
BATCH_TOKENS = 256  # a longer prompt takes several batches, in which the others go on
PAGE = 32  # tokens; the cache is shared out in pages


class Engine:
    """A loaded model.

    A request begins when the cache has room for all that it may become: the library's way out of a full
    cache, to compute one again later, can leave others waiting for ever once a client hangs up.
    """

    def __init__(self, directory: Path, cache_bytes: int, queue: int) -> None:
        """Loads the model; raises UsageError where the cache is too small for one text of full length."""
        from stoker.serve.drawing import cut_quickly

        self.tokenizer, model = load_bundle(directory, attn_implementation="sdpa")
        self.context, self._ids = model.config.max_position_embeddings, model.config.vocab_size
        if (ids := len(self.tokenizer)) > self._ids:
            raise DataError(f"{directory}: the tokenizer has {ids} ids, the model {self._ids}")
        self._free, self._queue, self._names = self._pages(model, cache_bytes), queue, itertools.count()
        self.waiting, self.running = deque[Generation](), set[Generation]()
        ends = model.generation_config.eos_token_id
        self.ends = frozenset([ends] if isinstance(ends, int) else ends or [])
        self._manager = self._batching(model)
        cut_quickly(self._manager.logit_processor.logits_processor)
        self._manager.warmup()  # makes the cache here, where an error is seen
        self._manager.start()

    def _batching(self, model: Any) -> Any:
        from transformers import ContinuousBatchingConfig

        # What a request may set has to be set here, and to no neutral value: else nothing applies it.
        drawing = model.generation_config
        drawing.update(do_sample=True, temperature=0.5, top_k=1, top_p=0.5)
        settings = ContinuousBatchingConfig(
            page_size=PAGE, num_blocks=self._free, per_request_processors=True
        )
        settings.max_batch_tokens, settings.max_requests_per_batch = BATCH_TOKENS, AT_ONCE
        settings.safety_margin = 0.0  # there is room for all that is begun
        settings.auto_switch_to_flash = False  # it may fetch code
        return model.init_continuous_batching(drawing, settings)

    def _pages(self, model: Any, cache_bytes: int) -> int:
        """Returns the pages that fit, each with its share of the attention's mask, and are of use."""
        config = model.config
        heads = config.num_attention_heads  # not each layout names the other two
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        kv_heads = getattr(config, "num_key_value_heads", None) or heads
        of_token = 2 * config.num_hidden_layers * kv_heads * head_dim + BATCH_TOKENS
        of_page = PAGE * of_token * model.dtype.itemsize
        longest = pages(self.context)
        if cache_bytes < longest * of_page:
            least, given = format_bytes(longest * of_page), format_bytes(cache_bytes)
            raise UsageError(f"--cache-bytes is {given}; one text of {self.context} tokens takes {least}")
        return int(min(cache_bytes // of_page, AT_ONCE * longest))

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Returns the tokens of a text; `special`: with what the tokenizer puts around it."""
        ids: list[int] = self.tokenizer.backend_tokenizer.encode(text, add_special_tokens=special).ids
        return ids

    def decode(self, tokens: Sequence[int]) -> str:
        """Returns the text of tokens, without the special ones."""
        return str(self.tokenizer.backend_tokenizer.decode(tokens, skip_special_tokens=True))

    def alive(self) -> bool:
        """Whether the thread computes."""
        return bool(self._manager.is_running())

    def stop(self) -> None:
        """Ends the thread."""
        self._manager.stop(block=True, timeout=5, hard_stop=True)

    def open(self, prompt: list[int], tokens: int, asked: Asked) -> Generation:
        """Returns a request that runs or waits, until it is closed; Refused where too many wait."""
        made = Generation(str(next(self._names)), prompt, tokens, asked)
        if len(self.waiting) >= self._queue and (self.waiting or not self._fits(made)):
            raise Refused(429, f"{len(self.waiting)} requests wait already; try again later")
        self.waiting.append(made)
        self._begin()
        return made

    def close(self, generation: Generation) -> None:
        """Takes a request out, wherever it is."""
        if generation in self.waiting:
            self.waiting.remove(generation)
        if generation in self.running:
            self.running.remove(generation)
            self._free += generation.pages
            self._manager.cancel_request(generation.name)
            self._manager.output_router.result_handlers.pop(generation.name, None)
            while self._manager.get_result(timeout=0):  # came too late for a handler that is gone
                pass
        self._begin()

    def _fits(self, generation: Generation) -> bool:
        return len(self.running) < AT_ONCE and generation.pages <= self._free

    def _begin(self) -> None:
        while self.waiting and self._fits(self.waiting[0]):
            one = self.waiting.popleft()
            self.running.add(one)
            self._free -= one.pages
            cold = one.asked.temperature < 1e-6
            top_k = 1 if cold else min(one.asked.top_k or self._ids, self._ids)
            drawn = {"temperature": 1.0 if cold else float(one.asked.temperature), "top_k": top_k}
            drawn["top_p"] = 1.0 if cold else float(one.asked.top_p)
            self._manager.register_result_handler(one.name, one.tell)
            self._manager.add_request(one.prompt, one.name, one.tokens, streaming=True, **drawn)


class Generation:
    """One request, with its newest output alone: a client that reads slowly piles up nothing."""

    def __init__(self, name: str, prompt: list[int], tokens: int, asked: Asked) -> None:
        self.name, self.prompt, self.tokens, self.asked = name, prompt, tokens, asked
        self.pages = pages(len(prompt) + tokens)
        self._output: Any = None
        self._changed = asyncio.Event()

    def tell(self, output: Any) -> None:
        """Takes an output of the engine, in the event loop's thread."""
        self._output = output
        self._changed.set()

    async def outputs(self) -> AsyncIterator[tuple[list[int], bool]]:
        """Yields all tokens so far and whether they are the last, as often as there are more."""
        while self._output is None or not self._output.is_finished():
            await self._changed.wait()
            self._changed.clear()
            if self._output.error is not None:
                raise Refused(503, "the server ends; ask again")
            yield self._output.generated_tokens, self._output.is_finished()


def pages(tokens: int) -> int:
    """Returns the pages that so many tokens take, and one to spare."""
    return -(-tokens // PAGE) + 1
