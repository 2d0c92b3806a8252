"""The model as Hugging Face transformers names its parts: a Llama, or a Qwen3 where heads are normed.

It is the same arithmetic under other names: both rotate the pairs (i, i + D/2) of a head, so no row changes
its place; fused matrices are taken apart by rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stoker.training.model.shape import Shape


@dataclass(frozen=True)
class Rows:
    """Rows of a tensor in a checkpoint, all of them by default."""

    name: str
    start: int = 0
    stop: int | None = None


def config_of(shape: Shape, eot: int) -> dict[str, Any]:
    """Returns config.json: a Llama, or a Qwen3 where query and key heads are normed."""
    family = "qwen3" if shape.qk_norm else "llama"
    return {
        "architectures": ["Qwen3ForCausalLM" if shape.qk_norm else "LlamaForCausalLM"],
        "model_type": family,
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.width,
        "intermediate_size": shape.ffn_width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.width // shape.heads,
        "max_position_embeddings": shape.seq_len,
        "hidden_act": "silu",
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.theta,
        **rope_of(shape),
        "tie_word_embeddings": shape.tie_embeddings,
        "attention_bias": False,
        "bos_token_id": eot,
        "eos_token_id": eot,
        "pad_token_id": eot,
        "dtype": "float32",
    }


def rope_of(shape: Shape) -> dict[str, Any]:
    """Returns what config.json says of a rope in force; {} where the model has rotated alike all along.

    transformers 5 reads `rope_scaling` before `rope_parameters`, version 4 knows no `rope_parameters`.
    """
    if shape.yarn is None:
        plain = {"rope_type": "default", "rope_theta": shape.theta}
        return {"rope_parameters": plain} if shape.rope else {}
    scaling = {"rope_type": "yarn", **shape.yarn}
    scaling["original_max_position_embeddings"] = scaling.pop("original_seq_len")
    return {"rope_scaling": scaling, "rope_parameters": {**scaling, "rope_theta": shape.theta}}


def rows_of(shape: Shape) -> dict[str, Rows]:
    """Returns where each tensor of the exported model comes from, by its name there."""
    head, ffn = shape.width // shape.heads, shape.ffn_width
    queries, keys = shape.heads * head, (shape.heads + shape.kv_heads) * head
    found = {"model.embed_tokens": Rows("embedding"), "model.norm": Rows("norm")}
    if not shape.tie_embeddings:
        found["lm_head"] = Rows("head")
    for layer in range(shape.layers):
        ours = f"blocks.{layer}"
        parts = {
            "input_layernorm": Rows(f"{ours}.attention_norm"),
            "self_attn.q_proj": Rows(f"{ours}.attention.qkv", 0, queries),
            "self_attn.k_proj": Rows(f"{ours}.attention.qkv", queries, keys),
            "self_attn.v_proj": Rows(f"{ours}.attention.qkv", keys),
            "self_attn.o_proj": Rows(f"{ours}.attention.out"),
            "post_attention_layernorm": Rows(f"{ours}.ffn_norm"),
            "mlp.gate_proj": Rows(f"{ours}.ffn.gate_up", 0, ffn),
            "mlp.up_proj": Rows(f"{ours}.ffn.gate_up", ffn),
            "mlp.down_proj": Rows(f"{ours}.ffn.down"),
        }
        if shape.qk_norm:
            parts |= {f"self_attn.{one}_norm": Rows(f"{ours}.attention.{one}_norm") for one in "qk"}
        found |= {f"model.layers.{layer}.{name}": rows for name, rows in parts.items()}
    return {
        f"{name}.weight": Rows(f"{rows.name}.weight", rows.start, rows.stop) for name, rows in found.items()
    }


def sizes_of(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Returns the size of each tensor of the exported model, by its name there."""
    width, ffn, head = shape.width, shape.ffn_width, shape.width // shape.heads
    keys = (shape.kv_heads * head, width)
    sizes = {
        **dict.fromkeys(("embed_tokens", "lm_head"), (shape.vocab_size, width)),
        **{"q_proj": (width, width), "k_proj": keys, "v_proj": keys, "o_proj": (width, width)},
        **{"gate_proj": (ffn, width), "up_proj": (ffn, width), "down_proj": (width, ffn)},
        **{"q_norm": (head,), "k_norm": (head,)},
    }
    return {name: sizes.get(name.split(".")[-2], (width,)) for name in rows_of(shape)}
