"""Holds a model's directory against its checkpoint: `python -m stoker.release.model_proof_worker`.

Task: {"weights": those of a checkpoint or a mean, "directory", "dtype"}. Result: {"difference": the first
one, "" for none}. What Stoker computes from the checkpoints is compared with what transformers computes from
the directory, both in float32, with weights rounded as in the directory: logits, token ids, special ids. The
network is not asked.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812 - the usual name in torch code

from stoker.cli.model_weights import STEMS, Weights, held_weights
from stoker.kit.workers.child import Report, run_worker
from stoker.release.sampling import load_model
from stoker.shards.tokenize.engine import HFEngine
from stoker.shards.tokenize.tokenizer import load_tokenizer
from stoker.training.model.transformer import Model
from stoker.training.state import SavedState, load_tensors, model_tensors

TOLERANCE = 1e-4  # absolute, between logits
PROMPTS = (1, 9, 1 << 30)  # tokens, where the model takes so many at once
LAST = 256  # positions of a prompt whose logits are compared; all before them have a part in these
TEXTS = 1000
# Where the runs of characters begin that texts are made of, and how many different ones a run may have:
# controls, spaces, ASCII, scripts, marks, joiners, symbols, private use, emoji, further planes.
STARTS = "\0  A\xa0\u0300\u0400\u0590\u0900\u2000\u3040\u4e00\uac00\ue000\U00010000\U0001f300\U0010fe00"
WIDTHS = (1, 26, 95, 500)


def main(task: dict[str, Any], _report: Report) -> dict[str, Any]:
    os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported
    directory = Path(task["directory"])
    with held_weights(task["weights"]) as weights:
        difference = tokens_difference(weights.newest.directory / "tokenizer.json", directory)
        return {"difference": difference or _logits_difference(weights, directory, task["dtype"])}


def tokens_difference(tokenizer: Path, directory: Path) -> str:
    """Returns the first text or special id that transformers reads otherwise than training; "" for none."""
    from transformers import AutoTokenizer, GenerationConfig

    frozen, theirs = load_tokenizer(tokenizer), AutoTokenizer.from_pretrained(directory)
    generation = GenerationConfig.from_pretrained(directory)
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if {getattr(theirs, name), getattr(generation, name)} != {frozen.eot}:
            return f"{name} is {getattr(theirs, name)}, end-of-text is {frozen.eot}"
    special = [token.content for token in theirs.added_tokens_decoder.values() if token.special]
    texts = [one for one in made_texts(theirs, frozen.vocab_size) if not any(word in one for word in special)]
    ids, lengths = HFEngine(frozen).encode(texts)
    ends = lengths.cumsum()
    for text, found, end, length in zip(texts, theirs(texts)["input_ids"], ends, lengths, strict=True):
        if found != [frozen.eot, *ids[end - length : end].tolist()]:
            return f"the token ids of the text {text!r} are {found[:20]}..."
    return ""


def made_texts(tokenizer: Any, ids: int) -> Iterator[str]:
    """Yields the same texts each time: tokens in any order, and runs of characters of one kind each."""
    dice = random.Random(31)  # noqa: S311 - no secret
    for _ in range(TEXTS // 2):
        yield tokenizer.decode([dice.randrange(ids) for _ in range(20)], skip_special_tokens=True)
        runs = [(ord(dice.choice(STARTS)), dice.choice(WIDTHS)) for _ in range(dice.randrange(1, 6))]
        yield "".join(chr(start + dice.randrange(width)) for start, width in runs for _ in range(12))


def _model_of(weights: Weights) -> Model:
    """Returns the model; a mean is computed otherwise than where the directory was written."""
    stem, zero = STEMS[weights.kind], torch.zeros((), dtype=torch.float64)
    model, whole = load_model(weights.newest.directory, stem), sum(one.share for one in weights.inputs)
    saved = [load_tensors(SavedState(one.directory, one.body.raw), stem) for one in weights.inputs]
    for name, target in model_tensors(model).items():
        values = zip((found[name].double() for found in saved), weights.inputs, strict=True)
        target.copy_(sum((each * (one.share / whole) for each, one in values), zero))
    return model


@torch.inference_mode()
def _logits_difference(weights: Weights, directory: Path, dtype: str) -> str:
    from transformers import AutoModelForCausalLM

    model, dice = _model_of(weights), torch.Generator().manual_seed(31)
    sizes = [min(size, model.shape.seq_len) for size in PROMPTS]
    prompts = [torch.randint(model.shape.vocab_size, (1, size), generator=dice) for size in sizes]
    for parameter in model.parameters():
        parameter.copy_(parameter.to(getattr(torch, dtype)))
    ours = [F.linear(model.states(prompt)[:, -LAST:], model.output_weight) for prompt in prompts]
    del model  # one model at a time is in memory
    theirs = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    for prompt, wanted in zip(prompts, ours, strict=True):
        found = theirs(prompt, logits_to_keep=LAST, use_cache=False).logits
        apart = float((found - wanted).abs().max())
        if not apart <= TOLERANCE:  # nor is nan
            return f"after {prompt.shape[1]:,} tokens a logit is {apart:g} off; {TOLERANCE:g} is allowed"
    return ""


if __name__ == "__main__":
    run_worker(main, stop_anywhere=True)
