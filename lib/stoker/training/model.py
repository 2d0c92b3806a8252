"""The model: a decoder-only transformer with RMSNorm, rotary positions, grouped-query attention and SwiGLU.

Shapes in comments: B sequences, T tokens, C width, H query heads, K key/value heads, D = C / H, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the usual name in torch code

from stoker.store.errors import ConfigError


@dataclass(frozen=True)
class Shape:
    """The shape of a model, which decides its parameters; the names are those of model.json."""

    vocab_size: int
    seq_len: int  # in tokens: the length of the rotary tables
    layers: int
    width: int
    heads: int
    kv_heads: int
    ffn_width: int
    rope_theta: float
    norm_eps: float
    tie_embeddings: bool

    @classmethod
    def parse(cls, model: Mapping[str, Any], *, vocab_size: int, seq_len: int) -> Shape:
        """Returns the shape of a model mapping; raises ConfigError for contradicting numbers."""
        names = [field.name for field in fields(cls) if field.name not in ("vocab_size", "seq_len")]
        if missing := [name for name in names if name not in model]:
            raise ConfigError(f"the model lacks {', '.join(missing)}")
        shape = cls(vocab_size=vocab_size, seq_len=seq_len, **{name: model[name] for name in names})
        if shape.width % shape.heads or (shape.width // shape.heads) % 2 or shape.heads % shape.kv_heads:
            raise ConfigError(
                f"model width {shape.width}, heads {shape.heads}, kv_heads {shape.kv_heads}: "
                "width / heads must be a whole even number and kv_heads must divide heads"
            )
        return shape


class RMSNorm(nn.Module):
    """x / rms(x) * weight (Zhang and Sennrich 2019), without subtracting the mean, without bias."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def rotary_tables(seq_len: int, head_width: int, theta: float) -> tuple[Tensor, Tensor]:
    """Returns float32 cosines and sines (T, D) of angle position * theta^(-2i/D), pair i (Su et al. 2021).

    Pair i is the dimensions i and i + D/2: both halves of a row hold the same angles, and the first half of
    the sines has the rotation's minus sign.
    """
    half = torch.arange(0, head_width, 2, dtype=torch.float64) / head_width
    angles = torch.outer(torch.arange(seq_len, dtype=torch.float64), theta**-half)  # (T, D/2)
    cos, sin = angles.cos().float(), angles.sin().float()
    return torch.cat((cos, cos), dim=1), torch.cat((-sin, sin), dim=1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates each pair (i, i + D/2) of x (..., T, D) by its position's angle: q.k depends on the lag alone.

    Computes in float32 for any x: with cosines rounded to bfloat16, q.k would also depend on the position.
    """
    first, second = x.float().chunk(2, dim=-1)
    return (x * cos + torch.cat((second, first), dim=-1) * sin).type_as(x)


class Attention(nn.Module):
    """Causal self-attention; each key/value head serves a group of query heads (Ainslie et al. 2023)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, self.kv_heads = shape.heads, shape.kv_heads
        self.head_width = shape.width // shape.heads
        self.qkv = nn.Linear(shape.width, (self.heads + 2 * self.kv_heads) * self.head_width, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = self.qkv(x).view(batch, length, -1, self.head_width).transpose(1, 2)  # (B, H + 2K, T, D)
        q, k, v = heads.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        grouped = self.kv_heads != self.heads
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)  # (B, H, T, D)
        mixed: Tensor = self.out(y.transpose(1, 2).reshape(batch, length, width))
        return mixed


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

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        y: Tensor = x + self.ffn(self.ffn_norm(x))
        return y


class Model(nn.Module):
    """Maps token ids (B, T) to the logits (B, T, V) of each next token."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocab_size, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.width, shape.norm_eps)
        self.head = None if shape.tie_embeddings else nn.Linear(shape.width, shape.vocab_size, bias=False)
        cos, sin = rotary_tables(shape.seq_len, shape.width // shape.heads, shape.rope_theta)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[1]
        cos, sin = self.cos[:length], self.sin[:length]
        x = self.embedding(ids)  # (B, T, C)
        for block in self.blocks:
            x = block(x, cos, sin)
        return F.linear(self.norm(x), self.embedding.weight if self.head is None else self.head.weight)

    def loss_sum(self, windows: Tensor) -> Tensor:
        """Returns the cross-entropy in nats, summed over all B * T targets of windows (B, T + 1)."""
        logits = self(windows[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1).float(), windows[:, 1:].flatten(), reduction="sum")

    def loss_by_window(self, windows: Tensor) -> Tensor:
        """Returns the mean cross-entropy in nats (B,) of each of the windows (B, T + 1)."""
        logits = self(windows[:, :-1])
        targets = windows[:, 1:]
        losses = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")
        return losses.view(targets.shape).mean(dim=1)


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
