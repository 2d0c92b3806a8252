"""Causal attention with rotary positions, and the norm it shares with the rest of the model.

Shapes in comments: B sequences, T tokens, C width, H query heads, K key/value heads, D = C / H.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the usual name in torch code

from stoker.training.model.shape import Shape


class RMSNorm(nn.Module):
    """x / rms(x) * weight (Zhang and Sennrich 2019), without subtracting the mean, without bias."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def frequencies(head_width: int, theta: float, yarn: Mapping[str, Any] | None = None) -> Tensor:
    """Returns the float64 angles (D/2) of one position: theta^(-2i/D) of pair i (Su et al. 2021).

    With `yarn` those of pairs that turn seldom over its `original_seq_len` are divided by its factor, those
    that turn often stay, and a ramp leads from one to the other (Peng et al. 2023).
    """
    half = torch.arange(0, head_width, 2, dtype=torch.float64) / head_width
    plain: Tensor = theta**-half
    if yarn is None:
        return plain

    def pair(turns: float) -> float:
        """Returns the pair that turns so often over the original context."""
        return head_width * math.log(yarn["original_seq_len"] / (turns * math.tau)) / (2 * math.log(theta))

    # Whole pairs, the last one clamped to D - 1 and not to D/2 - 1: as everyone does who reads an export.
    low, high = math.floor(pair(yarn["beta_fast"])), math.ceil(pair(yarn["beta_slow"]))
    low, high = max(low, 0), min(high, head_width - 1)
    pairs = torch.arange(head_width // 2, dtype=torch.float64)
    share = ((pairs - low) / ((high - low) or 0.001)).clamp(0, 1)  # of the divided angle
    mixed: Tensor = plain * (1 - share + share / yarn["factor"])
    return mixed


def rotary_tables(
    seq_len: int, head_width: int, theta: float, yarn: Mapping[str, Any] | None = None
) -> tuple[Tensor, Tensor]:
    """Returns float32 cosines and sines (T, D) of the angles of each position, as `frequencies` has them.

    Pair i is the dimensions i and i + D/2: both halves of a row hold the same angles, and the first half of
    the sines has the rotation's minus sign. With `yarn` both are scaled by its attention factor.
    """
    positions = torch.arange(seq_len, dtype=torch.float64)
    angles = torch.outer(positions, frequencies(head_width, theta, yarn))  # (T, D/2)
    scale = yarn["attention_factor"] if yarn else 1.0
    cos, sin = (angles.cos() * scale).float(), (angles.sin() * scale).float()
    return torch.cat((cos, cos), dim=1), torch.cat((-sin, sin), dim=1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates each pair (i, i + D/2) of x (..., T, D) by its position's angle: q.k depends on the lag alone.

    Computes in float32 for any x: with cosines rounded to bfloat16, q.k would also depend on the position.
    """
    first, second = x.float().chunk(2, dim=-1)
    return (x * cos + torch.cat((second, first), dim=-1) * sin).type_as(x)


TYPICAL_DOCUMENT = 256  # tokens; most documents of a web corpus are longer


@dataclass(frozen=True)
class Documents:
    """Which tokens of a micro-batch attend to each other: as a dense mask, or as packed sequences."""

    allowed: Tensor | None = None  # bool (B, 1, T, T): the query in a row sees the key in a column
    starts: Tensor | None = None  # int32 (N + 1): of each document in the B * T tokens, then B * T


class Sight(NamedTuple):
    """What each token of a micro-batch sees of the others: how far away they are, and which at all."""

    cos: Tensor  # (T, D), as `rotary_tables` has them
    sin: Tensor
    documents: Documents | None = None  # None: each window is one


class DocumentMask:
    """Keeps documents apart: a token attends to earlier tokens of its own document alone.

    An end-of-text token begins a document. What a window has before its first one is the rest of a document
    that began earlier. `varlen` is for bfloat16 on CUDA; the dense mask is for any device and precision.
    """

    def __init__(self, eot: int, *, varlen: bool) -> None:
        self._eot, self._varlen = eot, varlen

    def __call__(self, ids: Tensor) -> Documents:
        """Returns the documents of ids (B, T)."""
        begins = ids == self._eot
        if not self._varlen:
            numbers = begins.cumsum(1)
            same = numbers[:, :, None] == numbers[:, None, :]
            return Documents(allowed=same.tril().unsqueeze(1))
        begins[:, 0] = True
        starts = begins.flatten().nonzero().flatten()
        # Empty documents fill up to a power of two, mostly the same one: compiled blocks meet few sizes.
        size = 1 << max(len(starts), ids.numel() // TYPICAL_DOCUMENT).bit_length()
        return Documents(starts=F.pad(starts, (0, size - len(starts)), value=ids.numel()).int())


class KVCache:
    """The rotated keys and the values of one layer for the tokens seen so far, while text is generated."""

    def __init__(self, shape: Shape, device: torch.device) -> None:
        size = (1, shape.kv_heads, shape.seq_len, shape.width // shape.heads)
        self._keys, self._values = torch.empty(size, device=device), torch.empty(size, device=device)
        self.length = 0  # in tokens

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Appends keys and values (1, K, T, D): a first piece of any T, then one token at a time.

        Returns those of all tokens.
        """
        start, self.length = self.length, self.length + k.shape[2]
        self._keys[:, :, start : self.length], self._values[:, :, start : self.length] = k, v
        return self._keys[:, :, : self.length], self._values[:, :, : self.length]


def attend(q: Tensor, k: Tensor, v: Tensor, documents: Documents | None) -> Tensor:
    """Returns the causal attention (B, H, T, D) of queries (B, H, T, D) to keys and values (B, K, T, D).

    A single query is that of the last token: it sees each of any number of keys.
    """
    grouped = q.shape[1] != k.shape[1]
    if documents is None:
        is_causal = q.shape[2] == k.shape[2]
        return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=grouped)
    if documents.starts is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=documents.allowed, enable_gqa=grouped)
    from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415 - few runs need it

    starts, length = documents.starts, q.shape[2]
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))  # (B * T, heads, D)
    y = varlen_attn(q, k, v, starts, starts, length, length, window_size=(-1, 0), enable_gqa=grouped)
    assert isinstance(y, Tensor)
    return y.view(-1, length, *y.shape[1:]).transpose(1, 2)


class Attention(nn.Module):
    """Causal self-attention; each key/value head serves a group of query heads (Ainslie et al. 2023).

    With `qk_norm` each query and key head is normalized before its rotation (Henry et al. 2020): no
    product of the two can grow without bound.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, self.kv_heads = shape.heads, shape.kv_heads
        self.head_width = shape.width // shape.heads
        self.qkv = nn.Linear(shape.width, (self.heads + 2 * self.kv_heads) * self.head_width, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)
        self.q_norm = RMSNorm(self.head_width, shape.norm_eps) if shape.qk_norm else None
        self.k_norm = RMSNorm(self.head_width, shape.norm_eps) if shape.qk_norm else None

    def project(self, x: Tensor, sight: Sight) -> tuple[Tensor, Tensor, Tensor]:
        """Returns rotated queries (B, H, T, D), rotated keys and values (B, K, T, D) of x (B, T, C)."""
        heads = self.qkv(x).view(*x.shape[:2], -1, self.head_width).transpose(1, 2)  # (B, H + 2K, T, D)
        q, k, v = heads.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q.float()), self.k_norm(k.float())  # as the weights: one fused kernel
        cos, sin, _ = sight
        return rotate(q, cos, sin).type_as(v), rotate(k, cos, sin).type_as(v), v

    def forward(self, x: Tensor, sight: Sight, cache: KVCache | None = None) -> Tensor:
        q, k, v = self.project(x, sight)
        if cache is not None:
            k, v = cache.extend(k, v)
        y = attend(q, k, v, sight.documents)
        mixed: Tensor = self.out(y.transpose(1, 2).reshape(x.shape))
        return mixed
