"""Cuts a batch's logits as each request asks; the library's own sorts the vocabulary twice for each token."""

from __future__ import annotations

from typing import Any

import torch
from transformers.generation.continuous_batching import cb_logits_processors as theirs


class TopK(theirs.ContinuousBatchingTopKLogitsWarper):
    """Leaves each request its likeliest tokens; a `top_k` of the whole vocabulary leaves all."""

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        """Returns scores (B, V) with what is cut at -inf."""
        wanted = tensor_arg[: scores.size(0)].long()
        cut = wanted < scores.size(1)
        if not cut.any():
            return scores
        likeliest = torch.topk(scores, int(wanted[cut].max())).values
        least = likeliest.gather(1, (wanted - 1).clamp(max=likeliest.size(1) - 1)[:, None])
        return scores.masked_fill(cut[:, None] & (scores < least), -torch.inf)


class TopP(theirs.ContinuousBatchingTopPLogitsWarper):
    """Leaves each request the fewest tokens with the probability asked for; computed where it is below 1."""

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        """Returns scores (B, V) with what is cut at -inf."""
        share = tensor_arg[: scores.size(0)].view(torch.float32)
        cut = share < 1
        if cut.any():
            scores = scores.clone()
            scores[cut] = super().__call__(scores[cut], tensor_arg[: scores.size(0)][cut])
        return scores


def cut_quickly(processors: Any) -> None:
    """Puts these two in the place of the library's, in a list of its logits processors."""
    for place, one in enumerate(processors):
        for kind in (TopK, TopP):
            if type(one) is kind.__base__:
                processors[place] = kind(one)  # type: ignore[arg-type]
