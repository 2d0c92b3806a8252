"""Generates text from a checkpoint alone: its model.json, weights and tokenizer.json."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from tokenizers import Tokenizer

from stoker.shards.tokenize.engine import HFEngine
from stoker.shards.tokenize.tokenizer import load_tokenizer
from stoker.store.errors import DataError
from stoker.training.model.attention import KVCache
from stoker.training.model.shape import Shape
from stoker.training.model.transformer import Model
from stoker.training.state import SavedState, load_parameters, read_json

COLD = 1e-6  # a lower temperature would divide by what float32 holds as 0


@dataclass(frozen=True)
class Sampling:
    """How a token is drawn: temperature 0 takes the likeliest. Any integer is a seed.

    Else it is drawn from the `top_k` likeliest (0: all), and of these from the fewest that have together at
    least the share `top_p` of the probability (nucleus sampling, Holtzman et al. 2020).
    """

    temperature: float = 0.8
    top_k: int = 50
    top_p: float = 1.0
    seed: int = 0


def load_model(checkpoint: Path, stem: str = "model-") -> Model:
    """Returns the model of a checkpoint that the caller has proven, with the weights of files so named."""
    described = read_json(checkpoint / "model.json")
    model = Model(Shape.parse(described, vocab_size=described["vocab_size"], seq_len=described["seq_len"]))
    load_parameters(SavedState(checkpoint, read_json(checkpoint / "checkpoint.json")), model, stem)
    return model


class TextModel:
    """A trained model with its tokenizer, from a checkpoint that the caller has proven."""

    def __init__(self, checkpoint: Path, stem: str = "model-") -> None:
        self._model = load_model(checkpoint, stem)
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._model.to(self._device)
        frozen = load_tokenizer(checkpoint / "tokenizer.json")
        if frozen.vocab_size > (rows := self._model.shape.vocab_size):
            raise DataError(f"{checkpoint}: tokenizer.json has more ids than the model's {rows}")
        self._engine = HFEngine(frozen)
        self._tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
        self._eot = frozen.eot
        self._ids = frozen.vocab_size  # the embedding may be wider than the vocabulary

    def continue_text(self, prompt: str, tokens: int, sampling: Sampling) -> str:
        """Returns the prompt with at most `tokens` more tokens; stops at an end-of-text token."""
        ids = [int(token) for token in self._engine.encode([prompt])[0]]
        made = list(self._draw(ids, tokens, sampling))
        # Decoded together: a character may consist of several byte-level tokens. A character that the limit
        # cut in two would show as a replacement character.
        text: str = self._tokenizer.decode(ids + made, skip_special_tokens=True)
        return text.rstrip("\ufffd") if len(made) == tokens else text

    def _draw(self, ids: list[int], tokens: int, sampling: Sampling) -> Iterator[int]:
        """Yields tokens; puts end-of-text before the prompt, as before every document in training."""
        generator = torch.Generator().manual_seed(sampling.seed % 2**64)
        context = [self._eot, *ids]
        for logits in islice(self._next_logits(context), tokens):
            token = pick(logits[: self._ids].float().cpu(), sampling, generator)
            if token == self._eot:
                return
            context.append(token)
            yield token

    def _next_logits(self, context: list[int]) -> Iterator[torch.Tensor]:
        """Yields the logits (V,) after a context to which the caller appends the token that it draws.

        A context as long as the model's windows goes on from its last half, which is computed anew: positions
        are counted from the first token in sight, as in training.
        """
        longest = self._model.shape.seq_len
        sight, caches = context[-longest:], self._caches()
        while True:
            with torch.inference_mode():
                yield self._model.next_logits(torch.tensor([sight], device=self._device), caches)
            sight = context[-1:]
            if caches[0].length == longest:
                sight, caches = context[-max(1, longest // 2) :], self._caches()

    def _caches(self) -> list[KVCache]:
        return [KVCache(self._model.shape, self._device) for _ in self._model.blocks]


def pick(logits: torch.Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """Returns an id drawn from logits (V,)."""
    if sampling.temperature < COLD:
        return int(logits.argmax())
    if sampling.top_k:
        least = torch.topk(logits, min(sampling.top_k, len(logits))).values[-1]
        logits = logits.masked_fill(logits < least, -torch.inf)
    chances = torch.softmax(logits / sampling.temperature, dim=0)
    if sampling.top_p < 1:
        sorted_, order = chances.sort(descending=True)
        likelier = sorted_.cumsum(0) - sorted_  # the probability of the tokens before each
        chances[order[likelier >= sampling.top_p]] = 0.0
    return int(torch.multinomial(chances, 1, generator=generator))
