"""Generates text from a bundle, with transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stoker.cli.bundles import load_bundle, proven_bundle, use_transformers
from stoker.release.sampling import COLD, Sampling
from stoker.store.errors import UsageError


def continue_bundle(directory: Path, prompt: str, tokens: int, sampling: Sampling) -> str:
    """Returns the prompt with at most `tokens` more tokens; stops at an end-of-text token.

    Raises as proven_bundle and load_bundle, UnavailableError without transformers, UsageError where
    the prompt has no tokens, or the model's context is too short.
    """
    use_transformers("hf")
    tokenizer, model = load_bundle(proven_bundle(directory))
    import torch

    ids = tokenizer(prompt, return_tensors="pt").to(model.device)
    has, longest = ids["input_ids"].shape[1], model.config.max_position_embeddings
    if not 0 < has <= longest - tokens:
        why = f"it takes 1 at least, and with --tokens {tokens} at most {longest} together"
        raise UsageError(f"the prompt has {has} tokens; {why}")
    draw: dict[str, Any] = {"do_sample": False}
    if sampling.temperature >= COLD:
        draw = {"do_sample": True, "temperature": sampling.temperature}
        draw |= {"top_k": sampling.top_k, "top_p": sampling.top_p}
    torch.manual_seed(sampling.seed % 2**64)
    made = model.generate(**ids, max_new_tokens=tokens, **draw)[0]
    text = str(tokenizer.decode(made, skip_special_tokens=True))
    return text.rstrip("\ufffd") if len(made) == has + tokens else text  # as TextModel
