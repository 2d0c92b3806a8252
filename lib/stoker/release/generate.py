"""`stoker checkpoint generate`: generates text from a checkpoint, after proving it."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from stoker.cli.options import PATH, TEXT, FiniteRange
from stoker.cli.which_run import proven_checkpoint


@click.command(
    epilog="Example: stoker checkpoint generate demo-run/state/runs/main/checkpoints --prompt 'The file'"
)
@click.argument("checkpoint", type=PATH)
@click.option("--prompt", type=TEXT, default="", help="What the text begins with; empty for a new document.")
@click.option("--tokens", default=100, type=click.IntRange(1), help="At most so many more tokens.")
@click.option("--temperature", default=0.8, type=FiniteRange(0), help="0 takes the likeliest token.")
@click.option("--top-k", default=50, type=click.IntRange(0), help="Draw from the k likeliest; 0 from all.")
@click.option(
    "--top-p",
    default=1.0,
    type=FiniteRange(0, 1, min_open=True),
    help="Of these, draw from the fewest that have this share of the probability.",
)
@click.option("--seed", default=0, type=int, help="The same seed gives the same text.")
def generate(  # noqa: PLR0917 - click passes an argument per option
    checkpoint: Path, prompt: str, tokens: int, temperature: float, top_k: int, top_p: float, seed: int
) -> None:
    """Continue a text with the model of CHECKPOINT, which is proven whole first.

    CHECKPOINT is a step-... directory; a pipeline FILE, a run's directory or its checkpoints/ means the
    newest checkpoint of it. The command needs no other files. A text that outgrows the model's seq_len goes
    on from the last half of that, again and again. Exit code 65: the checkpoint is not whole.
    """
    directory, _ = proven_checkpoint(checkpoint)
    from stoker.release.sampling import Sampling, TextModel

    model = TextModel(directory)
    text = model.continue_text(prompt, tokens, Sampling(temperature, top_k, top_p, seed))
    sys.stdout.buffer.write(text.encode() + b"\n")
    sys.stdout.buffer.flush()
