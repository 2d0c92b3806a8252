"""`stoker replay`: trains a recorded run again without its interruptions and compares it bit by bit."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click

from stoker.cli.complete import offer
from stoker.cli.options import PATH, answer, json_option, planned_file, plural
from stoker.cli.which_run import read_identity
from stoker.config.schema import Pipeline
from stoker.kit.workers.child import paced
from stoker.replay.replay_site import Site, take_up
from stoker.replay.replay_trial import Stopped, Trial
from stoker.replay.replay_verdict import Verdict, compare
from stoker.supervise.health.trainer_protocol import TrainerView

EXIT_DIFFERENT, EXIT_INTERRUPTED = 1, 130
TELL_EVERY_S = 5.0


@click.command(epilog="Example: stoker replay /etc/stoker/fineweb.yaml main /scratch/replay --to 2000")
@planned_file
@click.argument("run", shell_complete=offer("run"))
@click.argument("out", type=PATH)
@click.option("--to", type=click.IntRange(1), help="Stop at this step instead of the newest checkpoint's.")
@json_option
def replay(pipeline: Pipeline, run: str, out: Path, to: int | None, as_json: bool) -> int:
    """Train RUN's recorded steps once more in OUT, and compare.

    The replay follows the recorded plan with the settings of each step, rollbacks and skips included, but
    without kills or restarts. Every loss of the run's history and the tensor files of its newest checkpoint
    up to the last step must come out the same, bit by bit: exit code 0, else 1 with the first differences.

    The pipeline may be running or not, and is not disturbed. OUT is a new directory; called again, the
    command continues a replay that was stopped. Exit code 78: this machine cannot give the same bits, or the
    run's numerics changed on the way.
    """

    def say(line: str) -> None:
        click.echo(line, err=as_json)

    read_identity(pipeline.layout, run)  # raises UsageError where the run has not begun
    out = out.absolute()
    site, lock = take_up(pipeline, run, out, to)
    with lock, tempfile.TemporaryDirectory() as short:
        environ = dict(os.environ)
        if site.device == "cpu":
            environ["CUDA_VISIBLE_DEVICES"] = ""  # where the run had no GPU
        progress = paced(lambda view: say(_progress(view, site.to)), TELL_EVERY_S)
        trial = Trial(site, pipeline, environ, socket=Path(short) / "s", say=say, progress=progress)
        say(f"run {run} again in {out}: {site.to:,} steps in {plural(len(trial.phases), 'phase')}")
        try:
            trial.run()
        except Stopped:
            say(f"stopped at step {trial.newest_step():,}; the same command continues from there")
            return EXIT_INTERRUPTED
        verdict = compare(site)
        site.finish(asdict(verdict))
    fields = {name: site.fields[name] for name in ("run", "run_id", "timeline", "to")}
    report = {"v": 1, **fields, "out": str(out), "phases": len(trial.phases), **asdict(verdict)}
    answer(report, _lines(site, verdict), as_json=as_json)
    return 0 if verdict.identical else EXIT_DIFFERENT


def _progress(view: TrainerView, to: int) -> str:
    return f"step {view.step or 0:,} of {to:,}" + ("" if view.loss is None else f", loss {view.loss:.4f}")


def _lines(site: Site, verdict: Verdict) -> Iterator[str]:
    rows = f"{verdict.rows:,} steps and {verdict.heldout_rows:,} held-out losses"
    if verdict.step is None:
        tensors = f"no checkpoint of the run is as early as step {verdict.to:,}: losses only"
    else:
        tensors = f"{plural(verdict.files, 'file')} of tensors at step {verdict.step:,}"
    if verdict.identical:
        yield f"identical: {rows}; {tensors}"
        return
    yield f"NOT identical: {rows}; {tensors}"
    yield from (f"  {difference}" for difference in verdict.differences)
    if verdict.more:
        yield f"  and {verdict.more:,} more; both logs and checkpoints are in {site.root}"
