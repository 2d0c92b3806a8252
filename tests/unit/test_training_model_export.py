"""An exported model is the same model to the real transformers, and the export is whole or not there."""

from __future__ import annotations

import errno
import json
import logging
import shutil
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from stoker.cli import transformers_model
from stoker.cli.output import Sink
from stoker.release import model_proof_worker
from stoker.release.export_model import export_model
from stoker.release.generate import generate
from stoker.release.sampling import Sampling, TextModel
from stoker.shards.tokenize.engine import HFEngine
from stoker.shards.tokenize.tokenizer import load_tokenizer
from stoker.store.checksums import write_checksums
from stoker.store.direct import hash_file
from stoker.store.errors import DataError, StorageError, UsageError
from stoker.training.model.transformer import Model
from support.model_checkpoints import checkpoint_of

TEXT = "the quick brown fox"
# Of 64 positions; one pair of four stays, one is half interpolated.
YARN = {"factor": 4.0, "original_seq_len": 16, "beta_fast": 0.25, "beta_slow": 0.05}


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
        ({"rope": {"theta": 50_000.0}}, "LlamaForCausalLM"),
        ({"rope": {"yarn": YARN}}, "LlamaForCausalLM"),
        ({"rope": {"yarn": {**YARN, "attention_factor": 1.4}}, "qk_norm": True}, "Qwen3ForCausalLM"),
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
    if "rope" in shape:
        assert not torch.allclose(replace_rope(model)(ids), ours, atol=0.1)
        for_4 = json.loads((out / "config.json").read_bytes())
        del for_4["rope_parameters"]
        told = for_4.get("rope_scaling", {}).get("attention_factor")
        assert told == (model.shape.yarn or {}).get("attention_factor"), "no reader computes it by itself"
        (tmp_path / "4").mkdir()
        (tmp_path / "4" / "config.json").write_text(json.dumps(for_4))
        config = transformers.AutoConfig.from_pretrained(tmp_path / "4")
        assert config.rope_parameters == theirs.config.rope_parameters
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
    write_checksums(out, {file.name: hash_file(file).sha256 for file in out.glob("*.*")})
    failed = CliRunner().invoke(generate, [*asked, "9"]).exception
    assert isinstance(failed, DataError) and "transformers cannot load" in str(failed)


def replace_rope(model: Model) -> Model:
    """The same parameters without the model's rope."""
    plain = Model(replace(model.shape, rope=None))
    plain.load_state_dict(model.state_dict())
    return plain


def test_large_models_are_split_and_indexed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers  # it takes seconds

    monkeypatch.setattr(transformers_model, "FILE_BYTES", 40_000)
    monkeypatch.setattr(transformers_model, "PIECE_BYTES", 1000)  # a few rows at a time
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


def edit(file: Path, name: str, value: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_bytes()), name: value}))


def fewer_merges(out: Path) -> None:
    model = json.loads((out / "tokenizer.json").read_bytes())["model"]
    edit(out / "tokenizer.json", "model", {**model, "merges": model["merges"][:-1]})


def other_weight(out: Path) -> None:
    """One value of the last norm, the last of the file's whose change every logit shows."""
    raw = bytearray((out / "model.safetensors").read_bytes())
    size = int.from_bytes(raw[:8], "little")
    first, _ = json.loads(raw[8 : 8 + size])["model.norm.weight"]["data_offsets"]
    raw[8 + size + first + 3] ^= 0x80  # its sign
    (out / "model.safetensors").write_bytes(raw)


TEXT_IDS = "the token ids of the text"
PROOF = {
    "whole": (lambda out: None, ""),
    "weights": (other_weight, "after 1 tokens a logit is"),
    "config": (lambda out: edit(out / "config.json", "rope_theta", 1001.0), "after 9 tokens a logit is"),
    "tokenizer": (lambda out: edit(out / "tokenizer.json", "post_processor", None), TEXT_IDS),
    "merges": (fewer_merges, TEXT_IDS),
    "special": (lambda out: edit(out / "generation_config.json", "eos_token_id", 1), "eos_token_id is"),
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("exported")
    checkpoint_of(home / "run")
    assert CliRunner().invoke(export_model, [str(home / "run"), str(home / "out")]).exit_code == 0
    return home


@pytest.mark.parametrize("change", PROOF)
def test_the_proof_names_the_first_difference(change: str, exported: Path, tmp_path: Path) -> None:
    spoil, difference = PROOF[change]
    out = Path(shutil.copytree(exported / "out", tmp_path / "out"))
    spoil(out)
    task = {"checkpoint": str(exported / "run" / "step-000000007"), "directory": str(out), "dtype": "float32"}
    found = model_proof_worker.main(task, lambda *_, **__: None)["difference"]  # type: ignore[arg-type]
    assert found.startswith(difference) and bool(found) == bool(difference), found


def test_the_proof_tries_texts_of_every_kind(exported: Path) -> None:
    tokenizer = transformers_tokenizer(exported / "out")
    texts = list(model_proof_worker.made_texts(tokenizer, len(tokenizer)))
    kinds = {unicodedata.category(sign) for text in texts for sign in text}
    assert len(texts) == 1000 and len({*texts}) > 950
    assert (
        kinds > {*["Lu", "Ll", "Lo", "Mn", "Nd", "Zs", "Cc", "Cf", "Co", "So", "Sm", "Po"]}
        and "Cs" not in kinds
    )
    assert any("    " in text for text in texts) and any(max(map(ord, text)) > 0xFFFF for text in texts)


def transformers_tokenizer(directory: Path) -> Any:
    import transformers  # it takes seconds

    return transformers.AutoTokenizer.from_pretrained(directory)
