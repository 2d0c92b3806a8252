"""A sealed checkpoint of a small model whose every part matters to its logits."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch

from stoker.checkpoints.format import BODY, read_body
from stoker.checkpoints.seal import CheckpointWriter, tensor_files
from stoker.cli.model_weights import Input, Weights
from stoker.shards.tokenize.tokenizer import load_tokenizer
from stoker.store.files import canonical_json
from stoker.training.copying import flat_bytes
from stoker.training.model.shape import Shape
from stoker.training.model.transformer import Model
from stoker.training.state import model_tensors, named
from support.checkpoint_data import body_of
from support.tokenizers import tokenizer_like

SHAPE: dict[str, Any] = {
    "layers": 2,
    "width": 32,
    "heads": 4,
    "kv_heads": 4,
    "ffn_width": 48,
    "rope_theta": 1000.0,
    "norm_eps": 1e-3,
    "tie_embeddings": True,
}
WIDER = 3  # rows of the embedding that the tokenizer has no ids for


def checkpoint_of(
    home: Path,
    *,
    wider: int = WIDER,
    step: int = 7,
    ema: Callable[[Model], Any] | None = None,
    tokenizer: bytes | None = None,
    body: dict[str, Any] | None = None,
    change: Callable[[Model], Any] = lambda _: None,
    **shape: Any,
) -> tuple[Path, Model]:
    """The checkpoint, in `home`, with what differs in its body and in its weights; and its model.

    What `ema` changes of them, the checkpoint has as averaged weights.
    """
    tokenizer = tokenizer or tokenizer_like("llama3", end_last=True)
    file = home / "tokenizer.json"
    home.mkdir(parents=True, exist_ok=True)
    file.write_bytes(tokenizer)
    vocab_size = load_tokenizer(file).vocab_size + wider
    model = Model(Shape.parse({**SHAPE, **shape}, vocab_size=vocab_size, seq_len=64))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(
                torch.empty_like(parameter).normal_(float(parameter.ndim < 2), 0.3, generator=generator)
            )
    change(model)
    averaged = deepcopy(model)
    if ema is not None:
        ema(averaged)
    with CheckpointWriter(home, step, "l1") as writer:
        for stem, of in (("model", model), ("ema", averaged))[: 1 + (ema is not None)]:
            for name, parts in tensor_files(stem, named(model_tensors(of))):
                writer.add(
                    name, [one if isinstance(one, bytes) else flat_bytes(one).numpy().data for one in parts]
                )
        writer.add("model.json", [canonical_json({"v": 1, **model.shape.body()})])
        writer.add("tokenizer.json", [tokenizer])
        return writer.seal(body_of(step, **(body or {}))), model


def weights_of(*checkpoints: Path, kind: str = "raw") -> Weights:
    """The weights of checkpoints that nobody has to prove, with equal shares."""
    data = [(one / BODY).read_bytes() for one in checkpoints]
    digests = [hashlib.sha256(each).hexdigest() for each in data]
    rows = zip(checkpoints, map(read_body, data), digests, strict=True)
    return Weights([Input(*row, 1.0) for row in rows], kind)
