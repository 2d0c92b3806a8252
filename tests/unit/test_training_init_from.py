"""A run begins with a model in the layout of transformers: what must be equal, and what it then computes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from stoker.shards.tokenize.tokenizer import load_tokenizer
from stoker.store.checksums import SUMS
from stoker.store.errors import ConfigError, DataError, StorageError
from stoker.supervise.run.origin import Origin, prove_origin
from stoker.training.model.shape import Shape
from stoker.training.model.transformer import Model
from stoker.training.model.transformers_config import config_differences
from stoker.training.origin_worker import differences, main
from stoker.training.state import take_parameters
from support.model_directories import list_sums, write_model
from support.tokenizers import tokenizer_like
from support.trainer_run import VOCAB, TrainerRun

MODEL: dict[str, Any] = {
    "layers": 2,
    "width": 32,
    "heads": 4,
    "kv_heads": 2,
    "ffn_width": 48,
    "rope_theta": 10_000.0,
    "norm_eps": 1e-5,
    "tie_embeddings": False,
}
PLAIN = {"rope_theta": 10_000.0, "rope_type": "default"}
YARN = {"factor": 4.0, "original_seq_len": 16, "beta_fast": 32.0, "beta_slow": 1.0}


def shape_of(**changes: Any) -> Shape:
    return Shape.parse({**MODEL, **changes}, vocab_size=40, seq_len=16)


def told(directory: Path, shape: Shape, **config: Any) -> list[str]:
    """What of a config.json differs from the run of MODEL; a key may be left out."""
    target = write_model(directory, shape, b"", **config) / "config.json"
    body = json.loads(target.read_bytes())
    target.write_text(json.dumps({name: value for name, value in body.items() if value != "left out"}))
    return config_differences(directory, MODEL, 40)


@pytest.mark.parametrize(
    ("shape", "config", "words"),
    [
        ({}, {}, []),
        ({}, {"max_position_embeddings": 9, "dtype": "bfloat16", "eos_token_id": [3, 4]}, []),
        ({}, {"rope_theta": "left out", "head_dim": "left out", "hidden_act": "left out"}, []),
        ({}, {"rope_theta": "left out", "rope_parameters": PLAIN, "head_dim": None}, []),
        ({}, {"rope_theta": 7, "rope_parameters": PLAIN, "attention_bias": "left out"}, []),
        ({"width": 64, "ffn_width": 64}, {}, ["hidden_size is 64, this run's is 32", "intermediate_size"]),
        ({"layers": 3}, {}, ["num_hidden_layers is 3, this run's is 2"]),
        ({"kv_heads": 4}, {}, ["num_key_value_heads is 4"]),
        ({"kv_heads": 4}, {"num_key_value_heads": "left out"}, ["num_key_value_heads is 4"]),
        ({"heads": 8}, {}, ["num_attention_heads is 8", "head_dim is 4"]),
        ({}, {"head_dim": 16}, ["head_dim is 16, this run's is 8"]),
        ({}, {"vocab_size": 41}, ["vocab_size is 41, this run's is 40"]),
        ({"norm_eps": 1e-3}, {}, ["rms_norm_eps is 0.001, this run's is 1e-05"]),
        ({}, {"rms_norm_eps": "left out"}, ["rms_norm_eps is 1e-06"]),
        ({"tie_embeddings": True}, {}, ["tie_word_embeddings is true, this run's is false"]),
        ({"qk_norm": True}, {}, ['model_type is "qwen3", this run\'s is "llama"']),
        ({}, {"model_type": "mistral"}, ['model_type is "mistral"']),
        ({}, {"rope_theta": 500_000.0}, ["rope_theta is 500000.0"]),
        ({}, {"rope_parameters": {**PLAIN, "rope_theta": 5e5}}, ["rope_theta is 500000.0"]),
        ({}, {"rope_scaling": {"type": "linear", "factor": 2.0}}, ["rope_scaling is", "linear"]),
        ({"rope": {"theta": 5e5}}, {}, ["rope_theta is 500000.0"]),
        ({"rope": {"yarn": YARN}}, {}, ["rope_scaling is", "yarn"]),
        ({}, {"rope_parameters": {**PLAIN, "rope_type": "llama3"}}, ["rope_scaling is", "llama3"]),
        ({}, {"rope_parameters": {"full_attention": PLAIN}}, ["rope_scaling is", "full_attention"]),
        ({}, {"attention_bias": True, "mlp_bias": True}, ["attention_bias is true", "mlp_bias is true"]),
        ({}, {"use_sliding_window": True}, ["use_sliding_window is true"]),
        ({}, {"hidden_act": "gelu"}, ['hidden_act is "gelu", this run\'s is "silu"']),
    ],
)  # fmt: skip
def test_each_setting_that_differs_is_named(
    shape: dict[str, Any], config: dict[str, Any], words: list[str], tmp_path: Path
) -> None:
    found = told(tmp_path / "model", shape_of(**shape), **config)
    assert all(word in "; ".join(found) for word in words)
    assert bool(found) is bool(words)


def test_a_qwen3_that_leaves_its_heads_out_has_those_of_transformers(tmp_path: Path) -> None:
    found = told(
        tmp_path / "model", shape_of(qk_norm=True), head_dim="left out", num_key_value_heads="left out"
    )
    assert (
        "head_dim is 128, this run's is 8" in found and "num_key_value_heads is 32, this run's is 2" in found
    )


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"model_type": "llama", "rope_scaling": 3}'])
def test_a_config_that_describes_no_such_model_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(DataError, match=r"config\.json is none of a Llama or Qwen3"):
        config_differences(tmp_path, MODEL, None)


class Ground:
    """A model's directory, and the run that would begin with it."""

    def __init__(self, home: Path) -> None:
        self.run_tokenizer = home / "run.json"
        self.run_tokenizer.write_bytes(tokenizer_like("llama3"))
        self.vocab_size = load_tokenizer(self.run_tokenizer).vocab_size
        self.shape = Shape.parse(MODEL, vocab_size=self.vocab_size, seq_len=16)
        self.model = write_model(home / "model", self.shape, self.run_tokenizer.read_bytes())
        self.task = {
            "checkpoint": str(self.model),
            "model": MODEL,
            "vocab_size": self.vocab_size,
            "tokenizer": str(self.run_tokenizer),
        }

    def differences(self) -> str:
        return "; ".join(differences(self.model, self.task))

    def proof(self) -> dict[str, Any]:
        return main(self.task, lambda *_, **__: None)  # type: ignore[arg-type]


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model.norm.weight": None}, ["model.norm.weight is missing, this run's is (32,)"]),
        (
            {"model.layers.0.self_attn.q_proj.bias": (32,)},
            ["q_proj.bias is ('F32', (32,)), this run's is not there"],
        ),
        ({"lm_head.weight": (7, 32)}, ["lm_head.weight is ('F32', (7, 32)), this run's is ("]),
        ({"model.norm.weight": np.zeros(32, "i1")}, ["model.norm.weight is ('I8', (32,))"]),
    ],
)
def test_each_tensor_that_differs_is_named(change: dict[str, Any], words: list[str], ground: Ground) -> None:
    file = ground.model / "model.safetensors"
    tensors = load_file(file)
    for name, value in change.items():
        tensors[name] = np.zeros(value, "<f4") if isinstance(value, tuple) else value
    save_file({name: value for name, value in tensors.items() if value is not None}, file)
    found = ground.differences()
    assert found and all(word in found for word in words), found


def test_a_tokenizer_counts_by_what_it_encodes(ground: Ground) -> None:
    """What an export puts around a text is no difference; other rules, tokens or merges are one."""
    assert ground.differences() == ""
    file = ground.model / "tokenizer.json"
    exported = Tokenizer.from_file(str(file))
    exported.add_special_tokens(["<|endoftext|>"])
    exported.post_processor = TemplateProcessing(
        single=["<|endoftext|>", "$A"], special_tokens=[("<|endoftext|>", 0)]
    )
    file.write_text(exported.to_str(pretty=True))
    assert file.read_bytes() != ground.run_tokenizer.read_bytes()
    assert json.loads(file.read_bytes())["post_processor"] is not None and ground.differences() == ""
    file.write_bytes(tokenizer_like("gpt2"))
    assert "rules for splitting a text differ" in ground.differences()
    body = json.loads(ground.run_tokenizer.read_bytes())
    vocab = body["model"]["vocab"]
    first, second = sorted(vocab, key=vocab.__getitem__)[-2:]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    file.write_text(json.dumps(body))
    assert "tokens and their ids differ" in ground.differences()
    body = json.loads(ground.run_tokenizer.read_bytes())
    body["model"]["merges"].reverse()
    file.write_text(json.dumps(body))
    assert ground.differences() == "the tokenizer's merges differ"
    file.write_text(json.dumps({**body, "normalizer": {"type": "NFC"}}))
    assert "normalizer (NFC) changes text" in ground.differences()
    file.unlink()
    assert "tokenizer.json" in ground.differences()


def test_the_digest_tells_a_directory_by_its_bytes_with_or_without_a_list(ground: Ground) -> None:
    proof = ground.proof()
    assert (proof["verdict"], proof["differences"], "model" in proof) == ("proven", [], False)
    list_sums(ground.model)
    assert ground.proof() == proof
    origin, weights = Origin(str(ground.model), None, proof["digest"]), ground.model / "model.safetensors"
    assert prove_origin(origin) is None
    raw = bytearray(weights.read_bytes())
    raw[-1] ^= 1
    weights.write_bytes(raw)
    assert ground.proof()["verdict"] == "invalid"
    with pytest.raises(ConfigError, match=r"is not whole: model\.safetensors has the sha256"):
        prove_origin(origin)
    (ground.model / SUMS).unlink()
    assert ground.proof()["digest"] not in (None, proof["digest"])
    with pytest.raises(ConfigError, match=f"is another model now; put back .* {proof['digest']}"):
        prove_origin(origin)
    weights.rename(ground.model / "pytorch_model.bin")
    proof = ground.proof()
    assert proof["verdict"] == "invalid" and "pickles are never read" in proof["reason"]
    (ground.model / "model.safetensors").symlink_to("pytorch_model.bin")
    assert ground.proof()["verdict"] == "invalid"
    ground.model.rename(ground.model.with_name("gone"))
    with pytest.raises(StorageError, match="put it back"):
        prove_origin(origin)


def test_weights_that_are_no_safetensors_or_there_twice_are_refused(ground: Ground) -> None:
    copy = ground.model / "copy.safetensors"
    copy.write_bytes((ground.model / "model.safetensors").read_bytes())
    assert "is in another file, too" in ground.proof()["reason"]
    copy.write_bytes(b"\x80\x04pickle")
    proof = ground.proof()
    assert proof["verdict"] == "invalid" and "header" in proof["reason"]


@pytest.mark.parametrize(
    ("model", "dtype"),
    [({}, torch.float32), ({"qk_norm": True, "tie_embeddings": True}, torch.bfloat16)],
)
def test_at_step_0_the_logits_are_those_of_transformers(
    model: dict[str, Any], dtype: torch.dtype, tmp_path: Path
) -> None:
    import transformers  # it takes seconds

    kind = "Qwen3" if model else "Llama"
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        rms_norm_eps=1e-5,
        tie_word_embeddings=bool(model),
        initializer_range=0.3,
    )
    family = getattr(transformers, f"{kind}ForCausalLM")
    theirs = family(config).to(dtype)
    for parameter in theirs.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, 1.0, 0.3)  # a norm that matters
    directory, run = tmp_path / "model", TrainerRun(tmp_path / "run")
    theirs.save_pretrained(directory, max_shard_size="20KB")
    theirs = family.from_pretrained(directory, dtype=torch.float32)
    assert len(list(directory.glob("*.safetensors"))) > 1
    (directory / "tokenizer.json").write_bytes(run.tokenizer.read_bytes())
    settings = run.record("launch-1")["model"] | model
    task = {"checkpoint": str(directory), "model": settings, "vocab_size": VOCAB}
    proof = main({**task, "tokenizer": str(run.tokenizer)}, lambda *_, **__: None)  # type: ignore[arg-type]
    assert (proof["verdict"], proof["differences"]) == ("proven", [])
    run.plan(40)
    origin = {"path": str(directory), "step": None, "sha256": proof["digest"]}
    ids = torch.randint(0, VOCAB, (2, 16), generator=torch.Generator().manual_seed(2))
    with run.training(model=settings, origin=origin) as training, torch.inference_mode():
        ours, expected = training.model(ids), theirs(ids).logits
    assert ours.dtype == torch.float32 and ours.std() > 0.5
    assert torch.allclose(ours, expected, atol=1e-4)


def test_a_model_of_another_shape_than_the_launch_is_not_taken(ground: Ground) -> None:
    origin = Origin(str(ground.model), None, ground.proof()["digest"])
    fewer = Model(Shape.parse({**MODEL, "layers": 1}, vocab_size=ground.vocab_size, seq_len=16))
    with pytest.raises(DataError, match=r"layers\.1\..* is .*, this run's is not there"):
        take_parameters(origin, fewer)
