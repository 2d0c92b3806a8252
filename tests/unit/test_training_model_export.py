"""An exported model is the same model to the real transformers, and the export is whole or not there."""

from __future__ import annotations

import errno
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from stoker.checkpoints.seal import CheckpointWriter, tensor_files
from stoker.cli.output import Sink
from stoker.release import transformers_model
from stoker.release.export_model import export_model
from stoker.release.generate import generate
from stoker.release.sampling import Sampling, TextModel
from stoker.shards.tokenize.engine import HFEngine
from stoker.shards.tokenize.tokenizer import load_tokenizer
from stoker.store.checksums import write_checksums
from stoker.store.direct import hash_file
from stoker.store.errors import DataError, StorageError, UsageError
from stoker.store.files import canonical_json
from stoker.training.copying import flat_bytes
from stoker.training.model.shape import Shape
from stoker.training.model.transformer import Model
from stoker.training.state import model_tensors, named
from support.checkpoint_data import body_of
from support.tokenizers import tokenizer_like

TEXT = "the quick brown fox"
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


def checkpoint_of(home: Path, **shape: Any) -> tuple[Path, Model]:
    """A sealed checkpoint of a model whose every part matters to its logits."""
    tokenizer = tokenizer_like("llama3", end_last=True)
    file = home / "tokenizer.json"
    home.mkdir(exist_ok=True)
    file.write_bytes(tokenizer)
    vocab_size = load_tokenizer(file).vocab_size + 3  # the embedding may be wider
    model = Model(Shape.parse({**SHAPE, **shape}, vocab_size=vocab_size, seq_len=64))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(
                torch.empty_like(parameter).normal_(float(parameter.ndim < 2), 0.3, generator=generator)
            )
    with CheckpointWriter(home, 7, "l1") as writer:
        for name, parts in tensor_files("model", named(model_tensors(model))):
            writer.add(
                name, [one if isinstance(one, bytes) else flat_bytes(one).numpy().data for one in parts]
            )
        writer.add("model.json", [canonical_json({"v": 1, **model.shape.body()})])
        writer.add("tokenizer.json", [tokenizer])
        return writer.seal(body_of(7)), model


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `generate` sets for its own process is not left to other tests."""
    for name in ("HF_HUB_OFFLINE", "HF_HUB_DISABLE_PROGRESS_BARS"):
        monkeypatch.setenv(name, "1")


@pytest.mark.parametrize(
    ("shape", "architecture"),
    [
        ({}, "LlamaForCausalLM"),
        ({"kv_heads": 2, "tie_embeddings": False}, "LlamaForCausalLM"),
        ({"kv_heads": 1, "qk_norm": True, "document_mask": True}, "Qwen3ForCausalLM"),
    ],
)
def test_transformers_computes_the_same_logits_and_text(
    shape: dict[str, Any], architecture: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import transformers  # it takes seconds

    transformers.utils.logging.enable_propagation()
    checkpoint, model = checkpoint_of(tmp_path / "run", **shape)
    out = tmp_path / "out"
    done = CliRunner().invoke(export_model, [str(tmp_path / "run"), str(out)], catch_exceptions=False)
    assert done.exit_code == 0 and f"{architecture} of step 7" in done.output
    with caplog.at_level(logging.WARNING):
        theirs = transformers.AutoModelForCausalLM.from_pretrained(out)
        tokenizer = transformers.AutoTokenizer.from_pretrained(out)
        begun = tokenizer(TEXT, return_tensors="pt")
        text = theirs.generate(**begun, max_new_tokens=12, do_sample=False)
    assert not caplog.records, caplog.text
    assert type(theirs).__name__ == architecture and theirs.dtype == torch.float32

    frozen = load_tokenizer(checkpoint / "tokenizer.json")
    plain = [int(token) for token in HFEngine(frozen).encode([TEXT])[0]]
    assert begun["input_ids"][0].tolist() == [frozen.eot, *plain]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (frozen.eot, frozen.eot)
    ids = torch.randint(0, model.shape.vocab_size, (2, 64), generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        ours, found = model(ids), theirs(ids).logits
    assert ours.std() > 1 and torch.allclose(found, ours, atol=1e-4)
    expected = TextModel(checkpoint).continue_text(TEXT, 12, Sampling(temperature=0))
    assert tokenizer.decode(text[0], skip_special_tokens=True).startswith(expected)

    write_checksums(out, {file.name: hash_file(file).sha256 for file in out.iterdir()})
    asked = [str(out), "--prompt", TEXT, "--tokens"]
    done = CliRunner().invoke(generate, [*asked, "12", "--temperature", "0"], catch_exceptions=False)
    assert done.stdout == f"{expected}\n"
    drawn = [CliRunner().invoke(generate, [*asked, "30", "--seed", seed]).stdout for seed in "112"]
    assert drawn[0] == drawn[1] != drawn[2]
    failed = CliRunner().invoke(generate, [*asked, "64"]).exception
    assert isinstance(failed, UsageError) and "64" in str(failed)
    (out / "config.json").write_text("{}")
    failed = CliRunner().invoke(generate, [*asked, "9"]).exception
    assert isinstance(failed, DataError) and "config.json" in str(failed)


def test_large_models_are_split_and_indexed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers  # it takes seconds

    monkeypatch.setattr(transformers_model, "FILE_BYTES", 40_000)
    _, model = checkpoint_of(tmp_path / "run")
    assert CliRunner().invoke(export_model, [str(tmp_path / "run"), str(tmp_path / "out")]).exit_code == 0
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_bytes())
    assert set(index["weight_map"].values()) == {file.name for file in (tmp_path / "out").glob("model-*")}
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    with torch.inference_mode():
        assert torch.allclose(theirs(torch.tensor([[1, 2]])).logits, model(torch.tensor([[1, 2]])), atol=1e-4)


def test_a_damaged_checkpoint_or_a_failed_write_leaves_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, _ = checkpoint_of(tmp_path / "run")
    arguments = [str(checkpoint), str(tmp_path / "out")]

    def full(sink: Sink, data: Any) -> int:
        raise StorageError(f"write {sink.path}: no space left", errno.ENOSPC)

    with monkeypatch.context() as patched:
        patched.setattr(Sink, "write", full)
        failed = CliRunner().invoke(export_model, arguments)
        assert isinstance(failed.exception, StorageError)
    weights = checkpoint / "model-00001.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-1] ^= 1
    weights.write_bytes(raw)
    failed = CliRunner().invoke(export_model, arguments)
    assert isinstance(failed.exception, DataError) and weights.name in str(failed.exception)
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]

    (tmp_path / "out").mkdir()
    raw[-1] ^= 1
    weights.write_bytes(raw)
    assert isinstance(CliRunner().invoke(export_model, arguments).exception, UsageError)
