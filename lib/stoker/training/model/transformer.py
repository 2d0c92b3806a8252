"""The model: a decoder-only transformer with RMSNorm, rotary positions, grouped-query attention and SwiGLU.

Shapes in comments: B sequences, T tokens, C width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the usual name in torch code

from stoker.training.model.attention import Attention, DocumentMask, KVCache, RMSNorm, Sight, rotary_tables
from stoker.training.model.loss import loss_sum, losses
from stoker.training.model.recompute import recomputed
from stoker.training.model.shape import Shape


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)) (Shazeer 2020)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_up = nn.Linear(width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        y: Tensor = self.down(F.silu(gate) * up)
        return y


class Block(nn.Module):
    """Attention, then the feed-forward part, each after a norm and added to the residual stream."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(shape.width, shape.norm_eps)
        self.attention = Attention(shape)
        self.ffn_norm = RMSNorm(shape.width, shape.norm_eps)
        self.ffn = SwiGLU(shape.width, shape.ffn_width)

    def forward(self, x: Tensor, sight: Sight, cache: KVCache | None = None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), sight, cache)
        y: Tensor = x + self.ffn(self.ffn_norm(x))
        return y


class Model(nn.Module):
    """Maps token ids (B, T) to the logits (B, T, V) of each next token.

    `mask` keeps the documents of a window apart; None where a window is one document. With `recompute` the
    backward pass makes the activations of each block again. Logits are made for `loss_chunk` tokens at once.
    `longest` is the most tokens of a window, where that is not the context.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape, longest: int | None = None) -> None:
        super().__init__()
        self.shape = shape
        self.mask: DocumentMask | None = None
        self.recompute = False
        self.loss_chunk = 256
        self.embedding = nn.Embedding(shape.vocab_size, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.width, shape.norm_eps)
        self.head = None if shape.tie_embeddings else nn.Linear(shape.width, shape.vocab_size, bias=False)
        longest = longest or shape.seq_len
        cos, sin = rotary_tables(longest, shape.width // shape.heads, shape.theta, shape.yarn)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    @property
    def output_weight(self) -> Tensor:
        """The matrix (V, C) that makes logits of normed states."""
        return self.embedding.weight if self.head is None else self.head.weight

    def forward(self, ids: Tensor) -> Tensor:
        return F.linear(self.states(ids), self.output_weight)

    def states(self, ids: Tensor) -> Tensor:
        """Returns the normed states (B, T, C) of ids (B, T)."""
        length = ids.shape[1]
        sight = Sight(self.cos[:length], self.sin[:length], self.mask(ids) if self.mask else None)
        x = self.embedding(ids)
        again = self.recompute and torch.is_grad_enabled()
        for block in self.blocks:
            run = partial(recomputed, block) if again else block
            x = run(x, sight)
        y: Tensor = self.norm(x)
        return y

    def next_logits(self, ids: Tensor, caches: Sequence[KVCache]) -> Tensor:
        """Returns the logits (V,) of the token after ids (1, T), which follow the tokens in the caches.

        The caches, one a layer, take up ids: the first tokens together, each later one by itself.
        """
        start, stop = caches[0].length, caches[0].length + ids.shape[1]
        sight = Sight(self.cos[start:stop], self.sin[start:stop])
        x = self.embedding(ids)
        for block, cache in zip(self.blocks, caches, strict=True):
            x = block(x, sight, cache)
        logits: Tensor = F.linear(self.norm(x[0, -1]), self.output_weight)
        return logits

    def loss_sum(self, windows: Tensor) -> Tensor:
        """Returns the cross-entropy in nats, in float64, summed over all targets of windows (B, T + 1)."""
        states = self.states(windows[:, :-1]).flatten(0, 1)
        return loss_sum(states, self.output_weight, windows[:, 1:].flatten(), self.loss_chunk)

    def loss_by_target(self, windows: Tensor) -> Tensor:
        """Returns the cross-entropy in nats (B, T) of each target of windows (B, T + 1); no gradients."""
        states, targets = self.states(windows[:, :-1]).flatten(0, 1), windows[:, 1:]
        each = losses(states, self.output_weight, targets.flatten(), self.loss_chunk)
        return each.view(targets.shape)


def initialize(model: Model, seed: int) -> None:
    """Initializes every parameter, from the seed alone and not from torch's global generator.

    GPT-2's recipe (Radford et al. 2019): normal with standard deviation 0.02, and 0.02 / sqrt(2 x layers) for
    the projections that add to the residual stream, so that its variance does not grow with depth. Norms
    start at 1.
    """
    generator = torch.Generator().manual_seed(seed)
    residual = 0.02 / math.sqrt(2 * model.shape.layers)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim < 2:
                parameter.fill_(1.0)
            else:
                std = residual if name.endswith(("attention.out.weight", "ffn.down.weight")) else 0.02
                parameter.copy_(torch.empty(parameter.shape).normal_(0.0, std, generator=generator))
