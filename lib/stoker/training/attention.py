"""Causal attention with rotary positions, and the norm it shares with the rest of the model.

Shapes in comments: B sequences, T tokens, C width, H query heads, K key/value heads, D = C / H.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the usual name in torch code

from stoker.training.shape import Shape


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
