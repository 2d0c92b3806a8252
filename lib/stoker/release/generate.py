"""`stoker checkpoint generate`: generates text from a checkpoint or a bundle, after proving it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from stoker.cli.bundles import is_bundle
from stoker.cli.model_weights import STEMS, proven_weights, weights_option
from stoker.cli.options import PATH, TEXT, FiniteRange, promoted_option


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
@promoted_option
@weights_option
@click.option("--seed", default=0, type=int, help="The same seed gives the same text.")
def generate(checkpoint: Path, prompt: str, tokens: int, promoted: bool, kind: str, **sampling: Any) -> None:
    """Continue a text with the model of CHECKPOINT, which is proven whole first.

    CHECKPOINT is a step-... directory; a pipeline FILE, a run's directory or its checkpoints/ means the
    newest checkpoint of it. The command needs no other files. A text that outgrows the model's seq_len goes
    on from the last half of that, again and again. CHECKPOINT may be a bundle: transformers generates, and no
    text outgrows the model. Exit code 65: the checkpoint or bundle is not whole.
    """
    from stoker.release.sampling import Sampling, TextModel

    how = Sampling(**sampling)
    if is_bundle(checkpoint) and not promoted and kind == "raw":
        from stoker.release.bundled import continue_bundle

        text = continue_bundle(checkpoint, prompt, tokens, how)
    else:
        with proven_weights([checkpoint], kind=kind, promoted=promoted) as weights:
            model = TextModel(weights.newest.directory, STEMS[kind])
        text = model.continue_text(prompt, tokens, how)
    sys.stdout.buffer.write(text.encode() + b"\n")
    sys.stdout.buffer.flush()
