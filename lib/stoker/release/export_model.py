"""`stoker checkpoint export`: writes a checkpoint's model for Hugging Face transformers."""

from __future__ import annotations

from pathlib import Path

import click

from stoker.cli.options import PATH
from stoker.cli.which_run import proven_checkpoint


@click.command("export", epilog="Example: stoker checkpoint export /etc/stoker/fineweb.yaml fineweb-hf")
@click.argument("checkpoint", type=PATH)
@click.argument("out", type=PATH)
def export_model(checkpoint: Path, out: Path) -> None:
    """Write the model of CHECKPOINT to the new directory OUT, as Hugging Face transformers loads it.

    CHECKPOINT is a step-... directory; a pipeline FILE, a run's directory or its checkpoints/ means the
    newest checkpoint of it. It is proven whole first. OUT gets its name when it is complete: weights
    (safetensors, float32), configuration (LlamaForCausalLM; with qk_norm Qwen3ForCausalLM) and tokenizer,
    which puts end-of-text before a text. Exit codes: 65 the checkpoint is not whole; 74 no room.
    """
    directory, body = proven_checkpoint(checkpoint)
    from stoker.cli import transformers_model

    name = transformers_model.export_model(directory, body.files, out)
    click.echo(f"{out}: {name} of step {body.step:,}; AutoModelForCausalLM.from_pretrained reads it")
