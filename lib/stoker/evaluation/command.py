"""`stoker evaluate`: runs a suite over a checkpoint in the foreground, and compares it with another."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from stoker.cli.model_weights import mean_options, proven_weights
from stoker.cli.options import PATH, TEXT, answer, did_you_mean, json_option
from stoker.cli.worker_jobs import Workers
from stoker.config.load import examples_dir
from stoker.kit.workers.pool import Activity
from stoker.store.errors import DataError, UnavailableError, UsageError

EVALUATION = Activity("evaluation", "stoker.evaluation.worker", silent_s=3600.0)  # a pass of a large model
SAMPLES_BYTES = 64 << 20
VERDICT = " {verdict}: {difference:+.4f} ({low:+.4f} to {high:+.4f})"


@click.command(epilog="Example: stoker evaluate /etc/stoker/fineweb.yaml --suite heldout")
@click.argument("sources", metavar="CHECKPOINT...", nargs=-1, required=True, type=PATH)
@click.option("--suite", required=True, type=TEXT, help="A shipped suite, or the YAML file of one.")
@click.option("--baseline", type=PATH, metavar="CHECKPOINT", help="Compare with this one.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu")
@click.option("--batch", type=click.IntRange(1), default=8, help="Texts a pass at most.")
@click.option("--threads", type=click.IntRange(1), default=1, help="Of the CPU.")
@click.option("--samples", type=PATH, metavar="DIR", help="Keep what was made of each text there.")
@mean_options
@json_option
def evaluate(sources: tuple[Path, ...], suite: str, baseline: Path | None, as_json: bool, **how: Any) -> int:
    """Evaluate the model of CHECKPOINT with a suite of tasks of lm-evaluation-harness.

    CHECKPOINT is a step-... directory; a pipeline FILE, a run's directory or its checkpoints/ means the
    newest checkpoint of it. It is proven whole first. Of several checkpoints of one run it is their mean; the
    baseline is one, with its raw weights. Nothing is recorded, and nothing is fetched. A metric is better,
    not_worse or worse than the baseline's only where its texts show it, else doubt; a difference above 0 is
    in favour.

    Exit codes: 64 there is no such suite; 65 the checkpoint or the suite is wrong, or the model computes what
    is no number; 69 lm_eval is not installed; 71 memory ran out; 74 no room in TMPDIR.
    """
    if importlib.util.find_spec("lm_eval") is None:
        raise UnavailableError("lm_eval is not installed; `pip install 'stoker[eval]'` installs it")
    samples, chosen = how.pop("samples"), {name: how.pop(name) for name in ("kind", "last", "share")}
    task = {"suite": str(find_suite(suite)), "margins": None, **how, **_subject(sources, **chosen)}
    other = (
        None if baseline is None else {**_subject([baseline], kind="raw"), "suite_digest": "", "samples": ""}
    )
    with tempfile.TemporaryDirectory(prefix="stoker-") as scratch, Workers() as workers:
        kept = str(scratch if samples is None else samples.absolute())
        task |= {"baseline": other, "scratch": scratch, "samples": kept, "samples_bytes": SAMPLES_BYTES}
        result = workers.run(EVALUATION, task, f"{sources[0]} could not be evaluated", _show)
    if why := result.get("refused"):
        raise DataError(why)
    result["evaluated"][-1] |= {"of": task["of"]} if task["of"] else {}
    answer(result, (row for line in result["evaluated"] for row in _rows(line)), as_json=as_json)
    return DataError.exit_code if result["evaluated"][-1]["invalid"] else 0


def find_suite(name: str) -> Path:
    """Returns the file of a shipped suite, or the path that the name is; UsageError where there is none."""
    shipped = {file.stem: file for file in sorted((examples_dir() / "suites").glob("*.yaml"))}
    if not (file := shipped.get(name, Path(name).absolute())).is_file():
        hint = did_you_mean(name, shipped, f"name a YAML file, or one of {', '.join(shipped)}")
        raise UsageError(f"there is no suite {name!r}; {hint}")
    return file


def _subject(sources: Sequence[Path], **chosen: Any) -> dict[str, Any]:
    with proven_weights(sources, **chosen) as weights:  # the worker holds them again
        directory, of = weights.newest.directory.absolute(), str(weights) if weights.about else ""
        return {"checkpoint": str(directory), "digest": weights.digest, "weights": weights.task, "of": of}


def _show(message: Mapping[str, Any]) -> None:
    click.echo(f"{message['doing']}: {message['done']:,}", err=True)


def _rows(line: Mapping[str, Any]) -> Iterator[str]:
    of = line.get("of", f"checkpoint {line['checkpoint_digest'][:16]}")
    yield f"{line['suite']}, {of}: {line['invalid'] or 'valid'}"
    verdicts = {} if line["against"] is None else line["against"]["verdicts"]
    for name, metric in line["metrics"].items():
        words = [f"{metric[key]:.4f}" for key in ("value", "stderr") if metric[key] is not None]
        shown = VERDICT.format_map(verdicts[name]) if name in verdicts else ""
        yield f"  {name:32} {' +- '.join(words):20} n {metric['n']:<6}{shown}"
    if gate := line["gate"]:
        yield f"  {gate['passed']} of {gate['of']} cases passed; failed: {gate['failed']}"
