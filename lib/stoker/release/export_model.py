"""`stoker checkpoint export`: writes a checkpoint's model for Hugging Face transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from stoker.cli.model_weights import mean_options, proven_weights
from stoker.cli.options import PATH
from stoker.cli.output import new_directory


@click.command("export", epilog="Example: stoker checkpoint export /etc/stoker/fineweb.yaml fineweb-hf")
@click.argument("sources", metavar="CHECKPOINT...", nargs=-1, required=True, type=PATH)
@click.argument("out", type=PATH)
@mean_options
def export_model(sources: tuple[Path, ...], out: Path, **chosen: Any) -> None:
    """Write the model of CHECKPOINT to the new directory OUT, as Hugging Face transformers loads it.

    CHECKPOINT is a step-... directory; a pipeline FILE, a run's directory or its checkpoints/ means the
    newest checkpoint of it. It is proven whole first. OUT gets its name when it is complete: weights
    (safetensors, float32), configuration (LlamaForCausalLM; with qk_norm Qwen3ForCausalLM) and tokenizer,
    which puts end-of-text before a text. Of several checkpoints of one run it is the mean, which config.json
    tells. Exit codes: 65 the checkpoint is not whole, or there is no mean; 74 no room.
    """
    with proven_weights(sources, **chosen) as weights:
        from stoker.cli.transformers_model import bytes_of, write_model

        with new_directory(out, bytes_of(weights)) as directory:
            name, _ = write_model(weights, directory)
    click.echo(f"{out}: {name} of {weights}; AutoModelForCausalLM.from_pretrained reads it")
