"""config.json of a model in the layout of Hugging Face transformers, held against a run's model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stoker.store.errors import DataError
from stoker.store.record import parse_json
from stoker.training.model.shape import Shape
from stoker.training.model.transformers_layout import config_of

CONFIG = "config.json"
# What Stoker's model does not have; a model without it says so, or leaves the key out.
_OFF = {"attention_bias": False, "mlp_bias": False, "use_sliding_window": False}
# What transformers takes for another key that config.json leaves out.
_DEFAULTS = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "tie_word_embeddings": False}
_DEFAULTS_OF_QWEN3 = {"num_key_value_heads": 32, "head_dim": 128}
_NOT_COMPARED = {"architectures", "max_position_embeddings", "dtype"}  # nor ids: the tokenizer decides


def config_differences(directory: Path, model: Mapping[str, Any], vocab_size: int | None) -> list[str]:
    """Returns in what a model's config.json differs from a run's, with both values.

    Without a `vocab_size` that is not compared. Raises DataError where config.json cannot be understood,
    OSError.
    """
    try:
        found = _complete(parse_json((directory / CONFIG).read_bytes()))
        rows = int(found["vocab_size"]) if vocab_size is None else vocab_size
    except (ValueError, TypeError, AttributeError, KeyError, ZeroDivisionError) as problem:
        raise DataError(f"{directory / CONFIG} is none of a Llama or Qwen3: {problem!r}") from problem
    wanted = {**_OFF, "rope_scaling": {}, **config_of(Shape.parse(model, vocab_size=rows, seq_len=1), 0)}
    return [
        f"{name} is {json.dumps(found.get(name))}, this run's is {json.dumps(value)}"
        for name, value in wanted.items()
        if found.get(name) != value and name not in _NOT_COMPARED and not name.endswith("_token_id")
    ]


def _complete(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the values that transformers uses; in `rope_scaling` all that is not plain rotation."""
    found = {**_OFF, **_DEFAULTS, **(_DEFAULTS_OF_QWEN3 if config["model_type"] == "qwen3" else {}), **config}
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    found["rope_theta"] = rope.get("rope_theta", config.get("rope_theta", 10_000.0))
    plain = (None, "default", 1.0, found["rope_theta"])
    found["rope_scaling"] = {name: value for name, value in rope.items() if value not in plain}
    heads = found["num_attention_heads"]
    found["num_key_value_heads"] = found.get("num_key_value_heads") or heads
    found["head_dim"] = found.get("head_dim") or found["hidden_size"] // heads
    return found
