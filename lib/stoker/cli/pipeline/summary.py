"""The last lines of `stoker run`: what was trained, and how to try it."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from stoker.cli.pipeline.status import losses
from stoker.config.schema import Pipeline
from stoker.observe.status import read_status
from stoker.store.layout import TRAIN_SUPERVISOR

PROMPT = "Once upon a time"


def summary_lines(pipeline: Pipeline) -> Iterator[str]:
    """What the train supervisor showed last: step, losses, tokens, checkpoint, the command for a text."""
    body = read_status(pipeline.layout)[TRAIN_SUPERVISOR]["body"]
    checkpoint = body.get("checkpoint")
    if checkpoint is None:
        yield "no checkpoint yet"
        return
    place = pipeline.layout.run(pipeline.train.run).checkpoints / checkpoint["name"]
    yield f"step        {body['step']:,} of {body['steps']:,}"
    if told := losses(body):
        yield f"loss        {told}"
    yield f"tokens      {body['tokens'] or 0:,} trained on"
    yield f"checkpoint  step {checkpoint['step']:,}: {place}"
    # By its name where a shell finds it by that, else by its place.
    found = shutil.which("stoker")
    program = "stoker" if found and Path(found).samefile(sys.argv[0]) else sys.argv[0]
    yield f"try it      {shlex.join([program, 'generate', str(place), '--prompt', PROMPT])}"
