"""Text beyond the length that a model was trained at: loss by quarter of its positions, by rope.

The text is the demo's. A model is trained at BEGUN tokens, then for a few steps at LONGER with each rope.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from demolib.prose import gather
from torch import Tensor

from benchlib.runner import Bar, Measures, Scenario, Series
from stoker.training.model.shape import Shape
from stoker.training.model.transformer import Model, initialize

BEGUN, LONGER = 64, 512
VOCABULARY, TEXT_BYTES = 4096, 6_000_000
SHAPE = Shape(VOCABULARY, LONGER, 4, 128, 4, 4, 384, 10000.0, 1e-5, True)
BEGUN_STEPS, LONGER_STEPS, TOKENS_A_STEP = 600, 20, 2048
YARN = {"yarn": {"factor": LONGER / BEGUN, "original_seq_len": BEGUN, "beta_fast": 32.0, "beta_slow": 1.0}}
ROPES: Mapping[str, Mapping[str, Any] | None] = {"none": None, "yarn": YARN}


class ContextScenario(Scenario):
    """Nats a token in the first and the last quarter, before and after steps at the longer length."""

    name = "context"
    repeats = 1

    def prepare(self, directory: Path) -> None:
        tokens = _tokens()
        held = len(tokens) // 50
        self._text, self._held = tokens[held:], tokens[:held]
        self._model = Model(SHAPE)
        initialize(self._model, 1)
        self._train(self._model, BEGUN_STEPS, BEGUN, 3e-3)

    def variants(self) -> Mapping[str, Callable[[Path], Measures]]:
        return {name: lambda _, rope=rope: self._measured(rope) for name, rope in ROPES.items()}

    def bars(self, series: Mapping[str, Mapping[str, Series]]) -> Iterator[Bar]:
        for when in ("before", "after"):
            name = f"{when}_last_loss"
            ours, theirs = series["yarn"][name].median, series["none"][name].median
            yield Bar(f"loss of the last quarter {when} steps, x that without yarn", ours / theirs, 1.0)

    def _measured(self, rope: Mapping[str, Any] | None) -> Measures:
        model = Model(replace(SHAPE, rope=rope))
        model.load_state_dict(self._model.state_dict())
        before = self._quarters(model)
        self._train(model, LONGER_STEPS, LONGER, 5e-4)
        found = {"before": before, "after": self._quarters(model)}
        places = {"first": 0, "last": -1}
        return {f"{when}_{place}_loss": found[when][n] for when in found for place, n in places.items()}

    def _train(self, model: Model, steps: int, length: int, peak: float) -> None:
        """Makes steps over windows at random places, the same for each model, with a falling rate."""
        rng, size = np.random.default_rng(1), TOKENS_A_STEP // length
        optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.1)
        for step in range(steps):
            windows = self._windows(self._text, rng.integers(0, len(self._text) - length - 1, size), length)
            (model.loss_sum(windows) / (size * length)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for group in optimizer.param_groups:
                group["lr"] = peak * min(1.0, (step + 1) / 30) * (1 - 0.7 * step / steps)
            optimizer.step()
            optimizer.zero_grad()

    def _quarters(self, model: Model) -> list[float]:
        """Returns the mean loss of each quarter of the positions of the held-out text."""
        starts = np.arange(0, len(self._held) - LONGER, LONGER)
        with torch.inference_mode():
            parts = np.array_split(starts, max(1, len(starts) // 8))
            losses = torch.cat([model.loss_by_target(self._windows(self._held, p, LONGER)) for p in parts])
        return [float(quarter.mean()) for quarter in losses.chunk(4, dim=1)]

    @staticmethod
    def _windows(tokens: npt.NDArray[np.int64], starts: npt.NDArray[np.int64], length: int) -> Tensor:
        return torch.from_numpy(tokens[starts[:, None] + np.arange(length + 1)])


def _tokens() -> npt.NDArray[np.int64]:
    """Returns the demo's text as tokens of a tokenizer trained on it."""
    from tokenizers import ByteLevelBPETokenizer

    texts = [text for _, text in gather(TEXT_BYTES, 1, lambda _: None)]
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(texts, VOCABULARY, show_progress=False, special_tokens=["<|eot|>"])
    found = [(encoded.ids, 0) for encoded in tokenizer.encode_batch(texts)]
    return np.concatenate([np.array([*ids, end], dtype=np.int64) for ids, end in found])
