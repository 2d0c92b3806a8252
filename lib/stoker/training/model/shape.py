"""The shape of a model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from stoker.store.errors import ConfigError

LATER = ("qk_norm", "document_mask", "rope")  # keys that models of earlier versions do not have


@dataclass(frozen=True)
class Shape:
    """The shape of a model, which decides its parameters; the names are those of model.json."""

    vocab_size: int
    seq_len: int  # in tokens: the context
    layers: int
    width: int
    heads: int
    kv_heads: int
    ffn_width: int
    rope_theta: float
    norm_eps: float
    tie_embeddings: bool
    qk_norm: bool = False
    document_mask: bool = False
    rope: Mapping[str, Any] | None = None  # {"theta"} or {"yarn"}: in force instead of `rope_theta` alone

    @classmethod
    def parse(cls, model: Mapping[str, Any], *, vocab_size: int, seq_len: int) -> Shape:
        """Returns the shape of a model mapping; raises ConfigError for contradicting numbers."""
        names = [field.name for field in fields(cls) if field.name not in ("vocab_size", "seq_len")]
        if missing := [name for name in names if name not in model and name not in LATER]:
            raise ConfigError(f"the model lacks {', '.join(missing)}")
        given = {name: model[name] for name in names if name in model}
        shape = cls(vocab_size=vocab_size, seq_len=seq_len, **given)
        if shape.width % shape.heads or (shape.width // shape.heads) % 2 or shape.heads % shape.kv_heads:
            raise ConfigError(
                f"model width {shape.width}, heads {shape.heads}, kv_heads {shape.kv_heads}: "
                "width / heads must be a whole even number and kv_heads must divide heads"
            )
        return shape

    @property
    def theta(self) -> float:
        """The base of the rotary angles."""
        return float((self.rope or {}).get("theta", self.rope_theta))

    @property
    def yarn(self) -> dict[str, Any] | None:
        """The parameters of YaRN, with the factor of cosines and sines (Peng et al. 2023)."""
        yarn = (self.rope or {}).get("yarn")
        return yarn and {"attention_factor": 0.1 * math.log(yarn["factor"]) + 1, **yarn}

    def body(self) -> dict[str, Any]:
        """Returns the shape as model.json has it: without a later key that is off."""
        return {name: value for name, value in asdict(self).items() if value or name not in LATER}
