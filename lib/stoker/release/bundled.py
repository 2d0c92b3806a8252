"""Generates text from a bundle, with transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stoker.cli.bundles import proven_bundle, use_transformers
from stoker.release.sampling import COLD, Sampling
from stoker.store.errors import UsageError


def continue_bundle(directory: Path, prompt: str, tokens: int, sampling: Sampling) -> str:
    """Returns the prompt with at most `tokens` more tokens; stops at an end-of-text token.

    Raises as proven_bundle, UnavailableError without transformers, UsageError where the model's context is
    too short.
    """
    use_transformers("hf")
    bundle = proven_bundle(directory)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(bundle, trust_remote_code=False)
    model: Any = AutoModelForCausalLM.from_pretrained(bundle, trust_remote_code=False, use_safetensors=True)
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    ids = tokenizer(prompt, return_tensors="pt").to(model.device)
    has, longest = ids["input_ids"].shape[1], model.config.max_position_embeddings
    if has + tokens > longest:
        raise UsageError(
            f"the prompt has {has} tokens; with --tokens {tokens} they pass the model's {longest}"
        )
    draw: dict[str, Any] = {"do_sample": False}
    if sampling.temperature >= COLD:
        draw = {"do_sample": True, "temperature": sampling.temperature}
        draw |= {"top_k": sampling.top_k, "top_p": sampling.top_p}
    torch.manual_seed(sampling.seed % 2**64)
    made = model.generate(**ids, max_new_tokens=tokens, **draw)[0]
    text = str(tokenizer.decode(made, skip_special_tokens=True))
    return text.rstrip("\ufffd") if len(made) == has + tokens else text  # as TextModel
