"""Small models, the same for the same seed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stoker.training.model.shape import Shape
from stoker.training.model.transformer import Model, initialize

SHAPE = Shape(
    vocab_size=50,
    seq_len=32,
    layers=2,
    width=16,
    heads=4,
    kv_heads=2,
    ffn_width=24,
    rope_theta=10000.0,
    norm_eps=1e-5,
    tie_embeddings=False,
)


def make_model(shape: Shape = SHAPE, *, seed: int = 1, **changes: Any) -> Model:
    """A model with first values, of a shape with some fields changed."""
    model = Model(replace(shape, **changes))
    initialize(model, seed)
    return model
